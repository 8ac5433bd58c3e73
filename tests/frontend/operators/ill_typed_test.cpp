// SPDX-License-Identifier: Apache-2.0
// Every operator of the registry with inputs of every type, and with attributes of every kind and
// of absurd values: it imports as a well-formed graph or is refused in one line that names the
// node; it never aborts and is never called a defect.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>
#include <random>

#include "frontend/import/attributes.h"
#include "frontend/import/import.h"
#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::f64, DType::i64,
                            DType::i32, DType::i8,  DType::u8,  DType::boolean};
constexpr int kSeconds = 5;  // that one import may take, on a busy machine and under sanitizers

// What is imported now, for the message of an abort.
char g_current[4096];

void say_current(int) {
  std::fputs(g_current, stderr);
  std::_Exit(134);
}

Attribute integer(std::string name, int64_t v) {
  Attribute a;
  a.name = std::move(name), a.kind = Attribute::Kind::integer, a.i = v;
  return a;
}

Attribute real(std::string name, float v) {
  Attribute a;
  a.name = std::move(name), a.kind = Attribute::Kind::real, a.f = v;
  return a;
}

Attribute text(std::string name, std::string v) {
  Attribute a;
  a.name = std::move(name), a.kind = Attribute::Kind::string, a.s = std::move(v);
  return a;
}

Attribute integers(std::string name, std::vector<int64_t> v) {
  Attribute a;
  a.name = std::move(name), a.kind = Attribute::Kind::integers, a.ints = std::move(v);
  return a;
}

ir::Constant constant(DType t, const std::vector<int64_t>& dims, int64_t value) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(t));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (is_float(t)) ir::write_real(t, bytes.data(), i, static_cast<double>(value));
    else ir::write_int(t, bytes.data(), i, t == DType::boolean ? value & 1 : value);
  }
  return ir::constant_from_bytes(t, dims, std::move(bytes));
}

// A model of one node.
struct Builder {
  Model model;
  std::string said;

  explicit Builder(const OperatorInfo& op) {
    model.path = "model.onnx";
    model.opsets = {{"", std::max<int64_t>(op.domain.empty() ? op.min_opset : 0, 25)},
                    {"com.microsoft", 1}};
    Node n;
    n.name = "n", n.op_type = op.name, n.domain = op.domain;
    for (int i = 0; i < 8; ++i) n.outputs.push_back(fmt::format("y{}", i));
    model.nodes.push_back(std::move(n));
    said = op.domain + " " + op.name;
  }

  Node& node() { return model.nodes[0]; }

  void input(DType t, const std::vector<int64_t>& dims) {
    ValueInfo in;
    in.name = fmt::format("x{}", node().inputs.size());
    in.is_tensor = in.has_shape = true;
    in.dtype = t;
    for (int64_t d : dims)
      in.dims.push_back(d < 0 ? Dim{std::nullopt, d == -1 ? "B" : "S"} : Dim{d, ""});
    node().inputs.push_back(in.name);
    said += fmt::format(" {}[{}]", to_string(t), fmt::join(dims, ","));
    model.inputs.push_back(std::move(in));
  }

  void weight(DType t, const std::vector<int64_t>& dims, int64_t value) {
    const std::string name = fmt::format("w{}", node().inputs.size());
    node().inputs.push_back(name);
    said += fmt::format(" {}[{}]={}", to_string(t), fmt::join(dims, ","), value);
    model.initializers.emplace_back(name, constant(t, dims, value));
  }

  void no_input() {
    node().inputs.emplace_back();
    said += " none";
  }

  void attribute(Attribute a) {
    said += fmt::format(" {}:{}:{}/{}/'{}'/[{}]", a.name, static_cast<int>(a.kind), a.i, a.f,
                        escaped(a.s), fmt::join(a.ints, ","));
    if (!node().find(a.name)) node().attributes.push_back(std::move(a));
  }
};

bool imported(Model& model, const std::string& said) {
  std::snprintf(g_current, sizeof g_current, "aborted: %s\n", said.c_str());
  // As many outputs as the operator has: one that is not computed is not asked for.
  for (size_t outputs = 8; outputs-- > 0;) {
    model.outputs.clear();
    for (size_t i = 0; i <= outputs; ++i) {
      ValueInfo out;
      out.name = model.nodes[0].outputs[i];
      model.outputs.push_back(out);
    }
    const auto start = std::chrono::steady_clock::now();
    const auto graph = import_onnx(model);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(kSeconds)) << said;
    if (graph) return true;
    const std::string& why = graph.error().message;
    if (why.find("is not computed") != std::string::npos) continue;
    EXPECT_NE(graph.error().code, ErrorCode::internal) << said << "\n" << why;
    EXPECT_TRUE(why.starts_with("model.onnx: ")) << said << "\n" << why;
    EXPECT_EQ(why.find('\n'), std::string::npos) << said << "\n" << why;
    return false;
  }
  return false;
}

// Attributes without which an operator is refused before it looks at its inputs.
void needed_attributes(Builder& b, const OperatorInfo& op) {
  if (op.name == "Cast") b.attribute(integer("to", 1));
  if (op.name == "Concat") b.attribute(integer("axis", 0));
  if (op.name == "Einsum") b.attribute(text("equation", "...,...->..."));
  if (op.name == "Mod") b.attribute(integer("fmod", 1));
  if (op.name == "GroupNormalization") b.attribute(integer("num_groups", 2));
  if (op.name == "BitShift") b.attribute(text("direction", "LEFT"));
  if (op.name == "DepthToSpace" || op.name == "SpaceToDepth") b.attribute(integer("blocksize", 1));
  if (op.name == "Attention")
    b.attribute(integer("q_num_heads", 2)), b.attribute(integer("kv_num_heads", 2));
  if (op.name == "MatMulNBits") {
    for (auto [name, v] : {std::pair{"K", 16}, {"N", 2}, {"bits", 4}, {"block_size", 16}})
      b.attribute(integer(name, v));
  }
  if (!op.domain.empty() || op.name == "RotaryEmbedding")
    b.attribute(integer("num_heads", 2)), b.attribute(integer("kv_num_heads", 2));
}

class IllTyped : public ::testing::Test {
 protected:
  void SetUp() override { before_ = std::signal(SIGABRT, say_current); }
  void TearDown() override { std::signal(SIGABRT, before_); }

 private:
  void (*before_)(int) = nullptr;
};

// One to three inputs, every combination of types.
TEST_F(IllTyped, EveryTypeForEveryInput) {
  size_t right = 0, all = 0;
  for (const OperatorInfo& op : supported_operators()) {
    for (size_t count = 1; count <= 3; ++count) {
      const size_t combinations = count == 1 ? 8 : count == 2 ? 64 : 512;
      for (size_t k = 0; k < combinations; ++k) {
        for (const std::vector<int64_t>& dims : {std::vector<int64_t>{-1, 4}, {2}, {1, 2, 16}}) {
          Builder b(op);
          for (size_t i = 0, rest = k; i < count; ++i, rest /= 8) b.input(kTypes[rest % 8], dims);
          needed_attributes(b, op);
          right += imported(b.model, b.said);
          ++all;
        }
      }
    }
  }
  std::printf("%zu of %zu imported\n", right, all);
  EXPECT_GT(right, all / 20);
}

const char* const kAttributes[] = {"K",
                                   "N",
                                   "allowzero",
                                   "alpha",
                                   "approximate",
                                   "auto_pad",
                                   "axes",
                                   "axis",
                                   "batch_axis",
                                   "batch_dims",
                                   "beta",
                                   "bias",
                                   "bits",
                                   "block_size",
                                   "blocksize",
                                   "causal",
                                   "detect_negative",
                                   "detect_positive",
                                   "dilations",
                                   "direction",
                                   "do_rotary",
                                   "dtype",
                                   "end",
                                   "epsilon",
                                   "equation",
                                   "exclusive",
                                   "fmod",
                                   "gamma",
                                   "group",
                                   "hidden_size",
                                   "interleaved",
                                   "is_causal",
                                   "is_packed_batching",
                                   "k",
                                   "keepdims",
                                   "kernel_shape",
                                   "kv_num_heads",
                                   "lambd",
                                   "largest",
                                   "left_window_size",
                                   "local_window_size",
                                   "mask_filter_value",
                                   "max",
                                   "min",
                                   "mode",
                                   "noop_with_empty_axes",
                                   "num_groups",
                                   "num_heads",
                                   "num_outputs",
                                   "output_dtype",
                                   "output_padding",
                                   "output_shape",
                                   "pads",
                                   "past_present_share_buffer",
                                   "perm",
                                   "precision",
                                   "q_num_heads",
                                   "qk_matmul_output_mode",
                                   "qkv_hidden_sizes",
                                   "reduction",
                                   "reverse",
                                   "right_window_size",
                                   "rotary_embedding_dim",
                                   "rotary_interleaved",
                                   "saturate",
                                   "scale",
                                   "select_last_index",
                                   "smooth_softmax",
                                   "softcap",
                                   "softmax_precision",
                                   "split",
                                   "start",
                                   "stash_type",
                                   "strides",
                                   "time_axis",
                                   "to",
                                   "transA",
                                   "transB",
                                   "transBatchA",
                                   "transBatchB",
                                   "unidirectional",
                                   "upper",
                                   "value",
                                   "value_float",
                                   "value_int",
                                   "value_ints"};

class Random {
 public:
  size_t below(size_t n) { return random_() % n; }
  bool one_in(size_t n) { return below(n) == 0; }

  template <class T, size_t N> const T& of(const T (&list)[N]) { return list[below(N)]; }

  int64_t number() {
    static constexpr int64_t kOdd[] = {0,       1,         2,         3,         4,        8,
                                       10,      16,        -1,        -2,        -3,       100,
                                       1 << 20, INT32_MAX, 1LL << 40, INT64_MAX, INT64_MIN};
    return one_in(3) ? of(kOdd) : static_cast<int64_t>(below(4));
  }

  Attribute attribute() {
    static constexpr float kReals[] = {0, 1, -1, 1e-5f, 1e30f, INFINITY, -INFINITY, NAN};
    static const std::string kTexts[] = {
        "",           "LEFT",  "RIGHT",   "max",       "none", "tanh",
        "SAME_UPPER", "VALID", "NOTSET",  "ab,bc->ac", "...",  "->",
        "a->aa",      "i,i",   "reflect", "edge",      "wrap", std::string("\0\xff", 2)};
    const std::string name = of(kAttributes);
    static constexpr Attribute::Kind kKinds[] = {Attribute::Kind::real, Attribute::Kind::string,
                                                 Attribute::Kind::integers,
                                                 Attribute::Kind::integer};
    // Mostly of its own kind: one of another is refused before anything is read.
    const ListedAttribute* listed = listed_attribute(name);
    switch (listed && !one_in(8) ? listed->kind : of(kKinds)) {
      case Attribute::Kind::real: return real(name, of(kReals));
      case Attribute::Kind::string: return text(name, of(kTexts));
      case Attribute::Kind::integers: {
        std::vector<int64_t> list(below(5));
        for (int64_t& v : list) v = number();
        return integers(name, list);
      }
      default: return integer(name, number());
    }
  }

  std::vector<int64_t> dims(bool known) {
    static constexpr int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 0};
    std::vector<int64_t> dims(below(5));
    for (int64_t& d : dims)
      d = !known && one_in(3) ? -1 - static_cast<int64_t>(below(2)) : of(kSizes);
    return dims;
  }

 private:
  std::mt19937 random_{7};
};

// Types, ranks, constants, missing inputs and attributes at random.
TEST_F(IllTyped, AnyInputsAndAttributes) {
  Random random;
  size_t right = 0, all = 0;
  for (const OperatorInfo& op : supported_operators()) {
    for (int k = 0; k < 1500; ++k) {
      Builder b(op);
      const bool alike = random.one_in(2);
      const std::vector<int64_t> common = random.dims(true);
      const DType first = random.of(kTypes);
      for (size_t count = random.below(random.one_in(3) ? 10 : 4); count > 0; --count) {
        if (random.one_in(12)) {
          b.no_input();
          continue;
        }
        const DType t = random.one_in(4) ? random.of(kTypes) : first;
        if (random.one_in(3))
          b.weight(random.one_in(2) ? DType::i64 : t,
                   random.one_in(2) ? std::vector<int64_t>{2} : random.dims(true),
                   random.number() & 0xffffffff);
        else b.input(t, alike ? common : random.dims(false));
      }
      if (!random.one_in(4)) needed_attributes(b, op);
      for (size_t count = random.below(5); count > 0; --count) b.attribute(random.attribute());
      right += imported(b.model, b.said);
      ++all;
    }
  }
  std::printf("%zu of %zu imported\n", right, all);
  EXPECT_GT(right, all / 20);
}

}  // namespace
}  // namespace tfcc::frontend

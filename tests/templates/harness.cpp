// SPDX-License-Identifier: Apache-2.0
#include "tests/templates/harness.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "ir/elements.h"
#include "ir/ir.h"
#include "passes/passes.h"

namespace tfcc::test {
namespace {

using Tensors = std::map<std::string, ir::HostTensor>;
constexpr size_t kGuard = 64;  // poisoned bytes behind every output

// ---- data ----

double special(uint32_t n) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kValues[] = {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf, 0.0, -0.0};
  return kValues[n % 5];
}

std::vector<std::byte> random_bytes(DType t, int64_t count, const Fill* fill,
                                    std::mt19937& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(t));
  const Fill f = fill ? *fill : is_float(t) ? Fill{} : Fill{-9, 9};
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const double u = random() / 4294967296.0;
    if (t == DType::boolean) ir::write_int(t, bytes.data(), i, random() & 1);
    else if (!is_float(t))
      ir::write_int(t, bytes.data(), i,
                    static_cast<int64_t>(std::floor(f.low + u * (f.high - f.low + 1))));
    else
      ir::write_real(
          t, bytes.data(), i,
          f.specials && random() % 8 == 0 ? special(random()) : f.low + u * (f.high - f.low));
  }
  return bytes;
}

ir::HostTensor host_tensor(DType t, std::vector<int64_t> dims, const std::byte* data) {
  ir::HostTensor h{t, std::move(dims), {}, {}};
  const size_t n = static_cast<size_t>(h.element_count());
  for (size_t i = 0; i < n; ++i) {
    if (is_float(t)) h.reals.push_back(ir::read_real(t, data, i));
    else h.ints.push_back(ir::read_int(t, data, i));
  }
  return h;
}

/// A caller's memory: aligned to its element size and to no more, poisoned, with a guard behind.
class Memory {
 public:
  Memory() = default;
  Memory(DType t, size_t bytes)
      : offset_(size_of(t)), bytes_(offset_ + bytes + kGuard, std::byte{0xff}) {}
  std::byte* data() { return bytes_.data() + offset_; }
  size_t size() const { return bytes_.size() - offset_ - kGuard; }
  bool guard_whole() const {
    return std::all_of(bytes_.end() - kGuard, bytes_.end(),
                       [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  size_t offset_ = 0;
  std::vector<std::byte> bytes_;
};

/// Inputs of a graph at one shape, as bytes and as the evaluator wants them.
struct Inputs {
  std::map<std::string, Memory> bytes;
  Tensors tensors;
};

std::vector<int64_t> dims_at(const ir::Graph& g, ir::ValueId v, const std::vector<int64_t>& shape) {
  std::vector<int64_t> dims;
  for (ir::ExprRef d : g.value(v).type.dims) {
    dims.push_back(ir::eval_size(d, [&](std::string_view name) {
      for (size_t i = 0; i < g.symbols.size(); ++i) {
        if (g.symbols[i].name == name) return shape[i];
      }
      return int64_t{0};
    }));
  }
  return dims;
}

Inputs make_inputs(const Case& c, const ir::Graph& g, const std::vector<int64_t>& shape,
                   bool poison = false) {
  Inputs in;
  std::mt19937 random(17);
  for (ir::ValueId v : g.inputs()) {
    const ir::Value& value = g.value(v);
    const auto dims = dims_at(g, v, shape);
    int64_t count = 1;
    for (int64_t d : dims) count *= d;
    auto fill = c.fills.find(value.name);
    auto bytes = random_bytes(value.type.dtype, count,
                              fill == c.fills.end() ? nullptr : &fill->second, random);
    if (poison && is_float(value.type.dtype)) {
      for (size_t i = 0; i < static_cast<size_t>(count); ++i)
        ir::write_real(value.type.dtype, bytes.data(), i, std::nan(""));
    }
    in.tensors[value.name] = host_tensor(value.type.dtype, dims, bytes.data());
    Memory& memory = in.bytes[value.name] = Memory(value.type.dtype, bytes.size());
    std::copy(bytes.begin(), bytes.end(), memory.data());
  }
  return in;
}

// ---- comparison ----

// A reference value as the result's type holds it.
double rounded(DType t, double v) {
  std::byte b[8];
  ir::write_real(t, b, 0, v);
  return ir::read_real(t, b, 0);
}

// NaN and infinities at the same places; else the L2 error, and no element off by more than a few
// times that on its scale.
void compare_reals(const ir::HostTensor& got, const ir::HostTensor& want, double tolerance) {
  double error = 0, norm = 0, worst = 0, largest = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.reals.size(); ++i) {
    const double w = rounded(want.dtype, want.reals[i]), g = got.reals[i];
    if (!std::isfinite(w) || !std::isfinite(g)) {
      ASSERT_TRUE(std::isnan(w) ? std::isnan(g) : w == g)
          << "element " << i << ": " << g << ", expected " << w;
      continue;
    }
    error += (g - w) * (g - w);
    norm += w * w;
    largest = std::max(largest, std::abs(w));
    if (std::abs(g - w) > worst) worst = std::abs(g - w), at = i;
  }
  EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(norm))
      << "relative L2 error " << std::sqrt(error / norm) << "; element " << at << ": "
      << got.reals[at] << ", expected " << want.reals[at];
  EXPECT_LE(worst, 8 * tolerance * largest)
      << "element " << at << ": " << got.reals[at] << ", expected " << want.reals[at];
}

void compare(const ir::HostTensor& got, const ir::HostTensor& want, double tolerance) {
  ASSERT_EQ(got.dims, want.dims);
  if (is_float(got.dtype)) return compare_reals(got, want, tolerance);
  for (size_t i = 0; i < got.ints.size(); ++i) {
    ASSERT_EQ(got.ints[i], want.ints[i]) << "element " << i << " of " << got.ints.size();
  }
}

constexpr double kToleranceTf32 = 1e-3;

double tolerance_of(const Case& c, const Where& where, DType t) {
  const double own = t == DType::f16 ? 4.5e-4 : t == DType::bf16 ? 3.5e-3 : c.tolerance;
  const double steps = where.storage == DType::bf16 ? 8 : 1;  // of bf16 in those of f16
  if (where.tf32 == 1) return std::max(own, kToleranceTf32);  // three are as near as f32
  return where.half() ? std::max(own, steps * c.tolerance_f16) : own;
}

// ---- compiling ----

bool has_computed_weight(const ir::Graph& g) {
  return std::ranges::any_of(g.order(), [&](ir::OpId o) {
    return g.op(o).kind == ir::OpKind::matmul && g.op(o).as<ir::MatmulAttrs>().weight;
  });
}

std::optional<ir::Graph> graph_of(const Case& c, const Where& where) {
  auto g = ir::parse(c.text, c.name);
  if (!g) {
    ADD_FAILURE() << g.error().message << "\n" << c.text;
    return std::nullopt;
  }
  for (const ir::Violation& problem : ir::verify(*g)) {
    ADD_FAILURE() << to_string(problem) << "\n" << c.text;
    return std::nullopt;
  }
  const bool widen = c.widen_on_cpu && where.family == Family::cpu;
  if (where.half() || widen) {
    if (auto done =
            passes::run_passes(*g, {fmt::format("convert-precision-{}", to_string(where.storage))});
        !done) {
      ADD_FAILURE() << done.error().message;
      return std::nullopt;
    }
  }
  // As every plan has them. A weight that is an expression stays by rows, for which there are other
  // kernels: a case that compares one with a constant has its bits without.
  if (where.tf32 == 3 && !has_computed_weight(*g) &&
      !passes::run_passes(*g, {"transpose-weights"})) {
    ADD_FAILURE() << "weights by columns";
    return std::nullopt;
  }
  return *std::move(g);
}

std::optional<codegen::CompileResult> compile_graph(const ir::Graph& g, const Where& where,
                                                    const std::string& path) {
  compiler::GraphOptions options{{where.target, where.family}};
  options.cache.dir =
      std::filesystem::temp_directory_path() / fmt::format("tfcc-kernel-tests-{}", getuid());
  options.precision = where.tf32 == 1   ? std::string(runtime::kTf32)
                      : where.tf32 == 3 ? std::string(runtime::kTf32x3)
                                        : to_string(where.storage);
  auto result = compiler::compile_graph(g, path, options);
  if (!result) {
    ADD_FAILURE() << result.error().message << "\n" << ir::print(g);
    return std::nullopt;
  }
  return *std::move(result);
}

// ---- running ----

/// The bytes of every output at every shape so far: a second run must give the same.
using Seen = std::map<std::pair<std::vector<int64_t>, std::string>, std::vector<std::byte>>;

class Runner {
 public:
  Runner(const Case& c, const Where& where, const ir::Graph& g, Executor& executor, Seen& seen)
      : case_(c), where_(where), graph_(g), executor_(executor), seen_(seen) {}

  // Whatever the arena holds from now on is NaN where the model's data is real.
  void poison(const std::vector<int64_t>& shape) {
    Inputs in = make_inputs(case_, graph_, shape, true);
    set(in);
    if (auto ran = executor_.run(); !ran) ADD_FAILURE() << ran.error().message;
  }

  void check(const std::vector<int64_t>& shape) {
    SCOPED_TRACE(fmt::format("{} at [{}]", case_.name, fmt::join(shape, ",")));
    Inputs in = make_inputs(case_, graph_, shape);
    // With 16-bit storage the evaluator rounds where the plan does; what is left is arithmetic.
    auto want = ir::eval(graph_, in.tensors, {.round_stores = where_.half()});
    ASSERT_TRUE(want) << want.error().message;
    set(in);
    run_and_compare(shape, *want, in);
  }

  // Not against the evaluator: bit for bit what another run gave, after so many runs.
  void repeat(const std::vector<int64_t>& shape, int runs = 1) {
    SCOPED_TRACE(fmt::format("{} again at [{}]", case_.name, fmt::join(shape, ",")));
    Inputs in = make_inputs(case_, graph_, shape);
    set(in);
    for (int n = 0; n < runs; ++n) {
      auto ran = executor_.run();
      ASSERT_TRUE(ran) << ran.error().message;
    }
    for (const auto& out : graph_.outputs) {
      if (is_state(out.name)) {
        same_bits(shape, out.name, in.bytes[out.name].data(), in.bytes[out.name].size());
        continue;
      }
      auto got = executor_.output(out.name);
      ASSERT_TRUE(got) << got.error().message;
      same_bits(shape, out.name, static_cast<const std::byte*>(got->data), got->bytes);
    }
  }

 private:
  bool is_state(const std::string& name) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(), [&](const auto& o) {
      return o.name == name && ir::is_state(graph_, o.value);
    });
  }

  void set(Inputs& in) {
    for (auto& [name, t] : in.tensors) {
      auto done = executor_.set(name, {in.bytes[name].data(), t.dtype, t.dims});
      ASSERT_TRUE(done) << done.error().message;
    }
  }

  // Into the caller's memory, which is poisoned before and must be whole behind the results.
  // States are in the memory of their inputs.
  void run_and_compare(const std::vector<int64_t>& shape, const Tensors& want, Inputs& in) {
    std::map<std::string, Memory> memory;
    for (const auto& [name, t] : want) {
      if (is_state(name)) continue;
      const size_t bytes = static_cast<size_t>(t.element_count()) * size_of(t.dtype);
      Memory& m = memory[name] = Memory(t.dtype, bytes);
      auto done = executor_.set(name, {m.data(), t.dtype, t.dims});
      ASSERT_TRUE(done) << done.error().message;
    }
    auto ran = executor_.run();
    ASSERT_TRUE(ran) << ran.error().message;
    for (const auto& [name, t] : want) {
      SCOPED_TRACE("output " + name);
      Memory& m = is_state(name) ? in.bytes[name] : memory[name];
      compare(host_tensor(t.dtype, t.dims, m.data()), t, tolerance_of(case_, where_, t.dtype));
      ASSERT_TRUE(m.guard_whole()) << "written behind the end";
      same_bits(shape, name, m.data(), static_cast<size_t>(t.element_count()) * size_of(t.dtype));
    }
  }

  void same_bits(const std::vector<int64_t>& shape, const std::string& name, const std::byte* data,
                 size_t bytes) {
    const std::vector<std::byte> now(data, data + bytes);
    const auto [before, first] = seen_.emplace(std::pair(shape, name), now);
    EXPECT_TRUE(first || before->second == now) << name << " differs from another run's";
  }

  const Case& case_;
  const Where& where_;
  const ir::Graph& graph_;
  Executor& executor_;
  Seen& seen_;
};

}  // namespace

ScratchFile::ScratchFile() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tfcc-kernels-XXXXXX").string();
  const int fd = mkstemp(pattern.data());
  if (fd >= 0) close(fd);
  path_ = pattern;
}

ScratchFile::~ScratchFile() { unlink(path_.c_str()); }

namespace {

Result<Model> loaded(const ScratchFile& file, const Where& where, int threads) {
  LoadOptions options;
  options.device = where.family == Family::cuda ? "cuda" : "cpu";
  options.threads = threads;
  return Model::load(file.path(), options);
}

// The case in a file, loaded for two threads; fails the test where that cannot be.
std::optional<Model> compiled(const Case& c, const Where& where, const ScratchFile& file) {
  auto g = graph_of(c, where);
  if (!g || !compile_graph(*g, where, file.path())) return std::nullopt;
  auto model = loaded(file, where, 2);
  EXPECT_TRUE(model) << model.error().message;
  if (!model) return std::nullopt;
  return std::move(*model);
}

}  // namespace

void check_case(const Case& c, const Where& where) {
  SCOPED_TRACE(fmt::format("{} {}", where.target, to_string(where.storage)));
  auto g = graph_of(c, where);
  if (!g) return;
  ScratchFile file;
  if (!compile_graph(*g, where, file.path())) return;
  auto model = loaded(file, where, 3);
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_EQ(model->target(), where.target);
  auto executor = model->executor();
  ASSERT_TRUE(executor) << executor.error().message;
  Seen seen;
  Runner runner(c, where, *g, *executor, seen);
  auto shapes = c.shapes;
  if (shapes.empty()) shapes.emplace_back();
  runner.poison(shapes.back());
  for (const auto& shape : shapes) {
    runner.check(shape);
    if (testing::Test::HasFatalFailure()) return;
  }
  for (size_t i = shapes.size() - 1; i-- > 0;) runner.check(shapes[i]);
  auto other = model->executor();
  ASSERT_TRUE(other) << other.error().message;
  Runner again(c, where, *g, *other, seen);
  for (const auto& shape : shapes) again.repeat(shape);
}

namespace {

// Element k of row j of sequence `who` of an input of a packed case: sequence 0 is the same in
// every batch.
float element(std::string_view name, int64_t who, int64_t j, int64_t k) {
  if (name == "p") return static_cast<float>((j * 31 + k * 17) % 64) / 8.0f - 4.0f;
  const auto n = static_cast<uint32_t>(who * 7919 + j * 769 + k) * 2654435761u;
  return static_cast<float>(n >> 16) / 32768.0f - 1.0f;
}

// The rows of y that sequence 0, of so many live tokens, has at `place` of a batch of `batch`
// padded to `length`.
std::vector<std::byte> results_of_sequence(const Model& model, Executor& executor, int64_t batch,
                                           int64_t length, int64_t live, int64_t place) {
  std::map<std::string, std::vector<std::byte>> memory;
  for (const TensorInfo& t : model.inputs()) {
    std::vector<int64_t> dims = {length, length};  // p
    if (t.name == "x") dims = {batch, length, t.dims[2].min};
    if (t.name == "mask") dims = {batch, length};
    const int64_t width = dims.back(), rows = dims.size() == 3 ? length : 1;
    std::vector<std::byte>& bytes = memory[t.name];
    bytes.resize(static_cast<size_t>(dims[0] * rows * width) * size_of(t.dtype));
    for (int64_t i = 0; i < dims[0] * rows * width; ++i) {
      const int64_t outer = i / width / rows, j = i / width % rows, k = i % width;
      const int64_t who = outer == place ? 0 : outer == 0 ? place : outer;
      const size_t at = static_cast<size_t>(i);
      if (t.name == "mask")
        ir::write_int(t.dtype, bytes.data(), at, k < (who == 0 ? live : length - who));
      else
        ir::write_real(t.dtype, bytes.data(), at,
                       t.name == "p" ? element("p", 0, outer, k) : element("x", who, j, k));
    }
    auto done = executor.set(t.name, {bytes.data(), t.dtype, dims});
    EXPECT_TRUE(done) << done.error().message;
  }
  auto ran = executor.run();
  EXPECT_TRUE(ran) << ran.error().message;
  const auto y = executor.output("y");
  EXPECT_TRUE(y);
  if (!ran || !y) return {};
  const size_t row = static_cast<size_t>(y->shape[2]) * size_of(y->dtype);
  const auto* data =
      static_cast<const std::byte*>(y->data) + static_cast<size_t>(place * length) * row;
  return {data, data + static_cast<size_t>(live) * row};
}

}  // namespace

void check_sequence_alone(const Case& c, const Where& where) {
  SCOPED_TRACE(fmt::format("{} {} {}", c.name, where.target, to_string(where.storage)));
  ScratchFile file;
  const auto model = compiled(c, where, file);
  if (!model) return;
  auto executor = model->executor();
  ASSERT_TRUE(executor) << executor.error().message;
  // Lengths on both sides of where another form or tile begins.
  for (int64_t live : {5, 16, 17, 33, 64, 65, 100, 128, 129, 200}) {
    const auto alone = results_of_sequence(*model, *executor, 1, live, live, 0);
    for (int64_t length : {live + 1, live + 40, int64_t{300}}) {
      for (int64_t place : {0, 2}) {
        EXPECT_EQ(results_of_sequence(*model, *executor, 3, length, live, place), alone)
            << live << " tokens, sequence " << place << " of those of " << length;
      }
    }
  }
}

void check_first_rows(const Case& c, const Where& where, const std::set<std::string>& left_out) {
  SCOPED_TRACE(fmt::format("{} {}", c.name, where.target));
  ScratchFile file;
  const auto model = compiled(c, where, file);
  if (!model) return;
  auto executor = model->executor();
  ASSERT_TRUE(executor) << executor.error().message;
  std::map<std::string, std::vector<std::byte>> before;
  // On both sides of where another number of rows is multiplied at once.
  const auto& of_first = model->inputs()[0].dims;
  const auto most = of_first[of_first.size() - 2].max;
  for (int64_t rows : {1, 2, 3, 4, 5, 7, 9, 13, 49, 130, 400}) {
    if (most > 0 && rows > most) break;
    std::map<std::string, std::vector<std::byte>> memory;
    for (const TensorInfo& t : model->inputs()) {
      const size_t rank = t.dims.size();
      const int64_t width = t.dims.back().min;
      std::vector<int64_t> dims(rank, 1);
      dims[rank - 2] = rows, dims[rank - 1] = width;
      std::vector<std::byte>& bytes = memory[t.name];
      bytes.resize(static_cast<size_t>(rows * width) * size_of(t.dtype));
      for (int64_t i = 0; i < rows * width; ++i) {
        const size_t at = static_cast<size_t>(i);
        if (is_float(t.dtype))
          ir::write_real(t.dtype, bytes.data(), at, element("x", 0, i / width, i % width));
        else ir::write_int(t.dtype, bytes.data(), at, i * 7 % 11);
      }
      auto done = executor->set(t.name, {bytes.data(), t.dtype, dims});
      ASSERT_TRUE(done) << done.error().message;
    }
    auto ran = executor->run();
    ASSERT_TRUE(ran) << ran.error().message;
    for (const TensorInfo& t : model->outputs()) {
      if (left_out.contains(t.name)) continue;
      const auto y = executor->output(t.name);
      ASSERT_TRUE(y);
      size_t size = size_of(y->dtype);
      for (int64_t d : y->shape) size *= static_cast<size_t>(d);
      const auto* data = static_cast<const std::byte*>(y->data);
      std::vector<std::byte>& known = before[t.name];
      EXPECT_TRUE(std::equal(known.begin(), known.end(), data)) << t.name << " of " << rows;
      known.assign(data, data + size);
    }
  }
}

void check_at_once(const Case& c, const Where& where, const std::vector<int64_t>& shape) {
  auto g = graph_of(c, where);
  if (!g) return;
  ScratchFile file;
  if (!compile_graph(*g, where, file.path())) return;
  auto model = loaded(file, where, 2);
  ASSERT_TRUE(model) << model.error().message;
  Seen alone;
  std::vector<std::thread> threads;
  for (int n = 0; n < 13; ++n) {
    const auto repeat = [&](Seen seen, int runs) {
      auto executor = model->executor();
      ASSERT_TRUE(executor) << executor.error().message;
      Runner(c, where, *g, *executor, seen).repeat(shape, runs);
      if (alone.empty()) alone = std::move(seen);
    };
    if (n == 0) repeat({}, 1);
    else threads.emplace_back(repeat, alone, 200);
  }
  for (std::thread& t : threads) t.join();
}

namespace {

// What plans hold that an older reader would not do is said in the header.
void expect_features(const std::string& path, const std::vector<codegen::Lowered>& plans) {
  runtime::Header h{};
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&h), sizeof h);
  bool maps = false, f32_maps = false, clusters = false, counters = false, tiles = false;
  for (const codegen::Lowered& l : plans) {
    counters |= l.plan.counters > 0;
    for (const runtime::Kernel& k : l.plan.kernels) clusters |= k.cluster > 0;
    for (const runtime::Bucket& b : l.plan.buckets)
      for (const runtime::Launch& launch : b.launches)
        if (launch.kernel) {
          maps |= !launch.kernel->maps.empty();
          tiles |= launch.kernel->tiles.has_value();
          for (const runtime::TensorMap& m : launch.kernel->maps)
            f32_maps |= l.plan.buffers[m.buffer].dtype == DType::f32;
        }
  }
  EXPECT_EQ((h.features & runtime::kTensorMaps) != 0, maps);
  EXPECT_EQ((h.features & runtime::kF32Maps) != 0, f32_maps);
  EXPECT_EQ((h.features & runtime::kTileChoices) != 0, tiles);
  EXPECT_EQ((h.features & runtime::kClusters) != 0, clusters);
  EXPECT_EQ((h.features & runtime::kCounters) != 0, counters);
}

}  // namespace

void compile_case(const Case& c, const Where& where) {
  SCOPED_TRACE(fmt::format("{} {}", where.target, to_string(where.storage)));
  auto g = graph_of(c, where);
  if (!g) return;
  ScratchFile file;
  auto result = compile_graph(*g, where, file.path());
  if (!result) return;
  for (const codegen::KernelResult& k : result->kernels) EXPECT_EQ(k.spill_bytes, 0) << k.name;
  expect_features(file.path(), result->plans);
}

}  // namespace tfcc::test

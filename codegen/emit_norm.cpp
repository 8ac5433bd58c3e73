// SPDX-License-Identifier: Apache-2.0
// softmax, layer_norm, rms_norm, residual_norm and pointwise_norm: one row at a time, statistics in f32.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "codegen/lowering.h"

namespace tfcc::codegen {
namespace {

// Widest power-of-two pack of at most 16 bytes that divides the row; 1 where it would be read from the caller's memory, which may be
// misaligned. Templates look at the alignment of what they write themselves.
int row_vector(const Lowering& l, const std::vector<ValueId>& read, DType type, int64_t hidden) {
  if (l.reads_io(read)) return 1;
  int vec = static_cast<int>(16 / size_of(type));
  while (hidden % vec != 0) vec /= 2;
  return std::max(vec, 1);
}

// Threads that share a row: a warp while a lane holds at most 32 values, then more (templates/README.md).
int threads_per_row(int64_t hidden, int vec) {
  for (int t = 32; t < 1024; t *= 2) {
    if ((hidden + t * vec - 1) / (t * vec) * vec <= 32) return t;
  }
  return 1024;
}

std::string number(double v) {
  char buffer[64];
  std::string s(buffer, std::to_chars(buffer, buffer + 64, v).ptr);
  return s.find_first_of(".e") == std::string::npos ? s + ".0" : s;
}

struct RowKernel {
  int vec, per_row, threads;
};

RowKernel row_kernel(const Lowering& l, const std::vector<ValueId>& read, DType type, int64_t hidden) {
  const int vec = row_vector(l, read, type, hidden);
  const int per_row = threads_per_row(hidden, vec);
  return {vec, per_row, per_row == 32 ? 128 : per_row};
}

LaunchSize row_size(const Lowering& l, ValueId y, const RowKernel& k) {
  LaunchSize s;
  s.threads = static_cast<uint32_t>(k.threads);
  s.grid = {l.ceil_div(l.rows(y), k.threads / k.per_row)};
  s.work = l.rows(y);
  s.grain = 4;
  return s;
}

// The row, and how CUDA shares it out.
std::string machine(const Lowering& l, int64_t hidden, const RowKernel& k) {
  if (!l.cuda()) return fmt::format("static constexpr int hidden = {}; ", hidden);
  return fmt::format("static constexpr int hidden = {}, vec = {}, threads_per_row = {}, threads = {}; ", hidden, k.vec, k.per_row, k.threads);
}

std::string eps_field(double eps) { return fmt::format("static constexpr f32 eps = {}f; ", number(eps)); }

Result<int64_t> hidden_of(const Lowering& l, OpId o) {
  auto hidden = l.known(l.dims(l.graph.op(o).results[0]).back());
  if (!hidden) return l.unsupported(o, "the normalised axis has no size known at compile time");
  if (*hidden > 65536 && l.cuda()) return l.unsupported(o, "rows of more than 65536 elements are not supported on CUDA");
  return *hidden;
}

}  // namespace

Result<void> emit_softmax(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const ValueId x = op.operands[0], y = op.results[0];
  if (l.dims(y).empty()) return l.unsupported(o, "softmax of a scalar");
  ExprRef columns = l.dims(y).back();
  l.begin(o, {x}, {y});
  RowKernel k{1, 32, 128};
  const std::string t = l.storage(x);
  std::string text = l.include("softmax");
  text += fmt::format("struct Value {{ const {0}* a0; idx cols; TFCC_FN Compute<{0}> operator()(idx row, idx col) const {{ return load(a0, row * cols + col); }} }};\n", t);
  const std::string value = fmt::format("Value{{{}, (idx){}}}", l.pointer(0), l.size(columns));
  if (l.cuda()) {
    auto known = l.known(columns);
    const bool wide = known && *known > 1024;
    if (wide) k = {1, 256, 256};
    const int64_t registers = wide ? 16 : known ? std::max<int64_t>(1, (*known + 31) / 32) : 8;
    text += fmt::format("struct Spec {{ using Out = {}; static constexpr int registers = {}, threads_per_row = {}, threads = {}; static constexpr bool log = false; }};\n",
                        l.storage(y), registers, k.per_row, k.threads);
    text += l.header(static_cast<uint32_t>(k.threads)) +
            fmt::format("softmax<Spec>({}, {}, {}, {});\n}}\n", l.pointer(1), l.size(l.rows(y)), l.size(columns), value);
  } else {
    text += fmt::format("struct Spec {{ using Out = {}; static constexpr bool log = false; }};\n", l.storage(y));
    text += l.header(0) + fmt::format("softmax<Spec>({}, {}, {}, begin, end);\n}}\n", l.pointer(1), l.size(columns), value);
  }
  l.launch(fmt::format("softmax__{}", l.storage(y)), "softmax", text, row_size(l, y, k), ir::mul(l.count(y), l.integer(5)));
  return {};
}

Result<void> emit_layer_norm(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const ValueId x = op.operands[0], y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(l, o));
  l.begin(o, op.operands, {y});
  const bool has_beta = op.operands.size() > 2;
  const RowKernel k = row_kernel(l, op.operands, l.type(x).dtype, hidden);
  std::string text = l.include("layer_norm");
  text += fmt::format("struct Spec {{ using In = {}; using Weight = {}; using Out = {}; {}static constexpr bool has_beta = {}; {}}};\n", l.storage(x),
                      l.storage(op.operands[1]), l.storage(y), machine(l, hidden, k), has_beta, eps_field(op.as<ir::NormAttrs>().eps));
  const std::string beta = has_beta ? l.pointer(l.arg_of(op.operands[2])) : "nullptr";
  const std::string rest = l.cuda() ? l.size(l.rows(y)) : std::string("begin, end");
  text += l.header(static_cast<uint32_t>(k.threads)) + fmt::format("layer_norm<Spec>({}, {}, {}, {}, {});\n}}\n", l.pointer(op.operands.size()), l.pointer(0),
                                            l.pointer(l.arg_of(op.operands[1])), beta, rest);
  l.launch(fmt::format("layer_norm__{}_h{}", l.storage(x), hidden), "layer_norm", text, row_size(l, y, k), ir::mul(l.count(y), l.integer(8)));
  return {};
}

Result<void> emit_rms_norm(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const ValueId x = op.operands[0], y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(l, o));
  l.begin(o, op.operands, {y});
  const RowKernel k = row_kernel(l, op.operands, l.type(x).dtype, hidden);
  std::string text = l.include("rms_norm");
  text += fmt::format("struct Spec {{ using In = {}; using Weight = {}; using Out = {}; {}{}}};\n", l.storage(x), l.storage(op.operands[1]),
                      l.storage(y), machine(l, hidden, k), eps_field(op.as<ir::NormAttrs>().eps));
  const std::string rest = l.cuda() ? l.size(l.rows(y)) : std::string("begin, end");
  text += l.header(static_cast<uint32_t>(k.threads)) + fmt::format("rms_norm<Spec>({}, {}, {}, {});\n}}\n", l.pointer(op.operands.size()), l.pointer(0),
                                            l.pointer(l.arg_of(op.operands[1])), rest);
  l.launch(fmt::format("rms_norm__{}_h{}", l.storage(x), hidden), "rms_norm", text, row_size(l, y, k), ir::mul(l.count(y), l.integer(6)));
  return {};
}

Result<void> emit_residual_norm(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::ResidualNormAttrs>();
  const ValueId x = op.operands[0], y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(l, o));
  const bool has_sum = op.results.size() > 1;
  l.begin(o, op.operands, op.results);
  const RowKernel k = row_kernel(l, op.operands, l.type(x).dtype, hidden);
  const size_t reads = op.operands.size();
  std::string text = l.include("residual_norm");
  text += fmt::format("struct Spec {{ using In = {}; using Weight = {}; using Out = {}; {}static constexpr bool rms = {}, has_beta = {}, has_bias = {}, has_sum = {}; {}}};\n",
                      l.storage(x), l.storage(op.operands[2]), l.storage(y), machine(l, hidden, k), attrs.kind == ir::NormKind::rms,
                      attrs.has_beta, attrs.has_bias, has_sum, eps_field(attrs.eps));
  auto operand = [&](bool there, size_t i) { return there ? l.pointer(l.arg_of(op.operands[i])) : std::string("nullptr"); };
  const std::string rest = l.cuda() ? l.size(l.rows(y)) : std::string("begin, end");
  text += l.header(static_cast<uint32_t>(k.threads)) +
          fmt::format("residual_norm<Spec>({}, {}, {}, {}, {}, {}, {}, {});\n}}\n", l.pointer(reads), has_sum ? l.pointer(reads + 1) : "nullptr",
                      operand(true, 0), operand(true, 1), operand(true, 2), operand(attrs.has_beta, 3),
                      operand(attrs.has_bias, attrs.has_beta ? 4 : 3), rest);
  l.launch(fmt::format("residual_norm__{}_h{}", l.storage(x), hidden), "residual_norm", text, row_size(l, y, k), ir::mul(l.count(y), l.integer(10)));
  return {};
}

Result<void> emit_pointwise_norm(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::PointwiseNormAttrs>();
  const ValueId y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(l, o));
  const bool has_sum = op.results.size() > 1;
  const ValueId sum = op.results.back();                   // of the type that the body stands for
  l.begin(o, op.operands, op.results);
  const std::vector<ValueId> weights(op.operands.begin(), op.operands.begin() + (attrs.has_beta ? 2 : 1));
  const RowKernel k = row_kernel(l, weights, l.type(sum).dtype, hidden);
  const size_t rank = l.dims(y).size(), reads = op.operands.size();
  std::string text = l.include("pointwise_norm");
  text += l.row_functor("Value", attrs.body, static_cast<int64_t>(rank) - 1, attrs.body->type);
  text += fmt::format("struct Spec {{ using In = {}; using Weight = {}; using Out = {}; static constexpr int rank = {}; {}static constexpr bool rms = {}, has_beta = {}, has_sum = {}; {}}};\n",
                      l.storage(sum), l.storage(op.operands[0]), l.storage(y), rank, machine(l, hidden, k), attrs.kind == ir::NormKind::rms,
                      attrs.has_beta, has_sum, eps_field(attrs.eps));
  const std::vector<ExprRef> outer(l.dims(y).begin(), l.dims(y).end() - 1);
  text += l.header(static_cast<uint32_t>(k.threads)) +
          fmt::format("pointwise_norm<Spec>({}, {}, {}, {}, {}, {}{});\n}}\n", l.pointer(reads), has_sum ? l.pointer(reads + 1) : "nullptr",
                      l.sizes(outer), l.functor_value("Value"), l.pointer(l.arg_of(op.operands[0])),
                      attrs.has_beta ? l.pointer(l.arg_of(op.operands[1])) : "nullptr", l.cuda() ? "" : ", begin, end");
  const auto flops = static_cast<int64_t>(ir::node_count(attrs.body)) + 8;
  l.launch(fmt::format("pointwise_norm__{}_h{}", l.storage(y), hidden), "pointwise_norm", text, row_size(l, y, k), ir::mul(l.count(y), l.integer(flops)));
  return {};
}

}  // namespace tfcc::codegen

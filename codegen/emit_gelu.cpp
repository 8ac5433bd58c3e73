// SPDX-License-Identifier: Apache-2.0
// gelu and bias_gelu.
#include <fmt/format.h>

#include "codegen/lowering.h"

namespace tfcc::codegen {
namespace {

int pack(const Lowering& l, ValueId x, int64_t hidden) {
  if (l.any_io()) return 1;
  int vec = static_cast<int>(16 / size_of(l.type(x).dtype));
  while (vec > 1 && hidden % vec != 0) vec /= 2;
  return vec;
}

constexpr int64_t kFlopsPerElement = 20;

}  // namespace

Result<void> emit_gelu(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const ValueId x = op.operands[0], y = op.results[0];
  const auto& d = l.dims(y);
  const int64_t hidden = d.empty() ? 1 : l.known(d.back()).value_or(1);
  l.begin(o, {x}, {y});
  const int vec = pack(l, x, hidden);
  const bool tanh = op.as<ir::GeluAttrs>().approx == ir::GeluKind::tanh;
  std::string text = l.include("gelu");
  text += fmt::format("struct Spec {{ using In = {}; using Out = {}; static constexpr int vec = {}; static constexpr bool tanh = {}; }};\n",
                      l.storage(x), l.storage(y), vec, tanh);
  if (l.cuda()) text += l.header(256) + fmt::format("gelu<Spec>({}, {}, {});\n}}\n", l.pointer(1), l.pointer(0), l.size(l.count(y)));
  else text += l.header(0) + fmt::format("gelu<Spec>({}, {}, {}, begin, end);\n}}\n", l.pointer(1), l.pointer(0), d.empty() ? "1" : l.size(d.back()));
  LaunchSize s;
  s.grid = {l.ceil_div(l.count(y), 256 * vec)};
  s.work = l.rows(y);
  s.grain = 4;
  l.launch(fmt::format("gelu__{}", l.storage(x)), "gelu", text, s, ir::mul(l.count(y), l.integer(kFlopsPerElement)));
  return {};
}

Result<void> emit_bias_gelu(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const ValueId x = op.operands[0], bias = op.operands[1], y = op.results[0];
  auto hidden = l.known(l.dims(y).back());
  if (!hidden) return l.unsupported(o, "the last axis has no size known at compile time");
  l.begin(o, op.operands, {y});
  const int vec = pack(l, x, *hidden);
  const bool tanh = op.as<ir::GeluAttrs>().approx == ir::GeluKind::tanh;
  std::string text = l.include("bias_gelu");
  text += fmt::format("struct Spec {{ using In = {}; using Weight = {}; using Out = {}; static constexpr int hidden = {}, vec = {}; static constexpr bool tanh = {}; }};\n",
                      l.storage(x), l.storage(bias), l.storage(y), *hidden, vec, tanh);
  const std::string rest = l.cuda() ? l.size(l.rows(y)) : std::string("begin, end");
  text += l.header(256) + fmt::format("bias_gelu<Spec>({}, {}, {}, {});\n}}\n", l.pointer(op.operands.size()), l.pointer(0), l.pointer(l.arg_of(bias)), rest);
  LaunchSize s;
  s.grid = {l.ceil_div(l.count(y), 256 * vec)};
  s.work = l.rows(y);
  s.grain = 4;
  l.launch(fmt::format("bias_gelu__{}_h{}", l.storage(x), *hidden), "bias_gelu", text, s, ir::mul(l.count(y), l.integer(kFlopsPerElement)));
  return {};
}

}  // namespace tfcc::codegen

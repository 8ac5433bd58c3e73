// SPDX-License-Identifier: Apache-2.0
// pointwise, reduce and cumsum: kernels generated from element expressions (templates/*/pointwise, reduce, cumsum).
#include <fmt/format.h>

#include <algorithm>

#include "codegen/lowering.h"

namespace tfcc::codegen {
namespace {

std::string parameters(size_t first, size_t count) {
  std::string s;
  for (size_t k = 0; k < count; ++k) s += (k ? ", idx i" : "idx i") + std::to_string(first + k);
  return s;
}

std::string index_name(int64_t k) { return "i" + std::to_string(k); }

// Elements that one thread stores at once: the last dim must be a known multiple, the store at most 16 bytes.
int vector_width(const Lowering& l, ValueId v) {
  const auto& d = l.dims(v);
  if (d.empty() || !l.known(d.back())) return 1;
  const int64_t last = *l.known(d.back());
  const int64_t widest = 16 / static_cast<int64_t>(size_of(l.type(v).dtype));
  for (int64_t vec = std::min<int64_t>(widest, 8); vec > 1; vec /= 2) {
    if (last % vec == 0) return static_cast<int>(vec);
  }
  return 1;
}

const char* reduce_op(ir::ReduceKind kind) {
  static constexpr const char* kNames[] = {"Sum", "Mean", "Max", "Min", "Prod"};
  return kNames[static_cast<int>(kind)];
}

// Does the reduction run across rows (the last output index is the fastest in memory), rather than along them?
bool runs_across(ExprRef body, size_t rank) {
  if (rank == 0) return false;
  bool across = false, along = false;
  ir::for_each_node(body, [&](ExprRef n) {
    if (n->kind != ir::ExprKind::load || n->args.empty()) return;
    const ExprRef last = n->args.back();
    along |= last->kind == ir::ExprKind::index && last->value >= static_cast<int64_t>(rank);
    across |= last->kind == ir::ExprKind::index && last->value == static_cast<int64_t>(rank) - 1;
  });
  return across && !along;
}

}  // namespace

Result<void> emit_pointwise(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const ValueId y = op.results[0];
  const size_t rank = l.dims(y).size();
  ExprRef body = op.as<ir::PointwiseAttrs>().body;
  l.begin(o, op.operands, {y});
  const int vec = l.cuda() ? vector_width(l, y) : 1;
  std::string text = l.include("pointwise");
  text += l.functor("Body", parameters(0, rank), body, ir::scalar_of(l.type(y).dtype), index_name);
  text += fmt::format("struct Spec {{ using Out = {}; static constexpr int rank = {}, vec = {}; }};\n", l.storage(y), rank, vec);
  const std::string out = l.pointer(op.operands.size());
  text += l.header(256) + fmt::format("pointwise<Spec>({}, {}, {}{});\n}}\n", out, l.sizes(l.dims(y)), l.functor_value("Body"),
                                      l.cuda() ? "" : ", begin, end");
  LaunchSize s;
  s.grid = {l.ceil_div(l.count(y), 256 * vec)};
  s.work = l.rows(y);
  s.grain = 8;
  l.launch(fmt::format("pointwise__{}_r{}", l.storage(y), rank), "pointwise", text, s,
           ir::mul(l.count(y), l.integer(static_cast<int64_t>(ir::node_count(body)))));
  return {};
}

Result<void> emit_reduce(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::ReduceAttrs>();
  const ValueId y = op.results[0];
  const size_t rank = l.dims(y).size(), reduced = attrs.extents.size();
  const bool across = runs_across(attrs.body, rank);
  l.begin(o, op.operands, {y});
  ExprRef domain = ir::element_count(l.pool(), attrs.extents);
  const bool short_domain = ir::prove_le(domain, l.integer(1024));
  const int per_row = across ? 1 : short_domain ? 32 : 256;
  std::string text = l.include("reduce");
  text += l.functor("Value", parameters(0, rank + reduced), attrs.body, ir::scalar_of(l.type(y).dtype), index_name);
  text += fmt::format("struct Spec {{ using Out = {}; using Op = {}; static constexpr int rank = {}, reduce_rank = {}", l.storage(y),
                      reduce_op(attrs.kind), rank, reduced);
  if (l.cuda()) text += fmt::format(", threads_per_row = {}, threads = 256", per_row);
  text += fmt::format("; static constexpr bool across = {}; }};\n", across);
  text += l.header(256) + fmt::format("reduce<Spec>({}, {}, {}, {}{});\n}}\n", l.pointer(op.operands.size()), l.sizes(l.dims(y)),
                                      l.sizes(attrs.extents), l.functor_value("Value"), l.cuda() ? "" : ", begin, end");
  LaunchSize s;
  s.grid = {l.ceil_div(l.count(y), across ? 32 : 256 / per_row)};
  s.work = across ? l.rows(y) : l.count(y);
  s.grain = 4;
  l.launch(fmt::format("reduce_{}__{}", ir::kReduceKindNames[static_cast<int>(attrs.kind)], l.storage(y)), "reduce", text, s,
           ir::mul(l.count(y), domain));
  return {};
}

Result<void> emit_cumsum(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::CumsumAttrs>();
  const ValueId x = op.operands[0], y = op.results[0];
  const auto& d = l.dims(y);
  const auto part = [&](size_t a, size_t b) { return ir::element_count(l.pool(), std::vector<ExprRef>(d.begin() + a, d.begin() + b)); };
  ExprRef outer = part(0, attrs.axis), length = d[attrs.axis], inner = part(attrs.axis + 1, d.size());
  const bool contiguous = ir::is_int(inner, 1);
  l.begin(o, {x}, {y});
  std::string text = l.include("cumsum");
  text += fmt::format("struct Spec {{ using In = {}; using Out = {}; static constexpr bool exclusive = {}, reverse = {}", l.storage(x),
                      l.storage(y), attrs.exclusive, attrs.reverse);
  text += l.cuda() ? fmt::format(", contiguous = {}; }};\n", contiguous) : "; };\n";
  text += l.header(128);
  if (l.cuda()) text += fmt::format("cumsum<Spec>({}, {}, {}, {}, {});\n}}\n", l.pointer(1), l.pointer(0), l.size(outer), l.size(length), l.size(inner));
  else text += fmt::format("cumsum<Spec>({}, {}, {}, {}, begin, end);\n}}\n", l.pointer(1), l.pointer(0), l.size(length), l.size(inner));
  LaunchSize s;
  s.threads = 128;
  s.grid = {l.ceil_div(ir::mul(outer, inner), contiguous ? 4 : 128)};
  s.work = outer;
  l.launch(fmt::format("cumsum__{}", l.storage(y)), "cumsum", text, s, l.count(y));
  return {};
}

}  // namespace tfcc::codegen

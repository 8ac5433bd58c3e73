// SPDX-License-Identifier: Apache-2.0
// pointwise, reduce and cumsum: kernels generated from element expressions (templates/*/pointwise,
// reduce, cumsum).
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {
namespace {

constexpr const char* kFile = "codegen/emit/pointwise.cpp";

// Elements that one thread stores at once: the last dim must be a known multiple, the store at most
// 16 bytes.
int64_t vector_width(const EmitContext& c, ValueId v) {
  const auto& d = c.dims(v);
  if (!c.cuda() || d.empty() || !c.known(d.back())) return 1;
  const int64_t last = *c.known(d.back());
  const int64_t widest = 16 / static_cast<int64_t>(size_of(c.type(v).dtype));
  for (int64_t vec = std::min<int64_t>(widest, 8); vec > 1; vec /= 2) {
    if (last % vec == 0) return vec;
  }
  return 1;
}

const char* reduce_op(ir::ReduceKind kind) {
  static constexpr const char* kNames[] = {"Sum", "Mean", "Max", "Min", "Prod"};
  return kNames[static_cast<int>(kind)];
}

// Does the reduction run across rows (the last output index is the fastest in memory), rather than
// along them?
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

KernelLaunch pointwise_launch(const EmitContext& c, std::string name, Stub stub, ValueId like,
                              ExprRef body) {
  const int64_t vec = vector_width(c, like);
  std::vector<ExprRef> dims = c.dims(like);
  if (dims.empty()) dims.push_back(c.integer(1));
  const auto rank = static_cast<int64_t>(dims.size());
  stub.row_functor("Body", body, rank - 1, vec);
  stub.type("Out", c.type(like).dtype);
  stub.field("rank", rank);
  if (c.cuda()) stub.field("vec", vec);
  stub.call({stub.out(), stub.sizes(dims), stub.object("Body")}, {});
  LaunchSize size;
  size.grid = {c.ceil_div(c.count(like), 256 * vec)};
  size.work = c.rows(like);
  size.grain = 8;
  return {std::move(name), std::move(stub), std::move(size),
          ir::mul(c.count(like), c.integer(static_cast<int64_t>(ir::node_count(body))))};
}

Result<Emission> emit_pointwise(const EmitContext& c, OpId o) {
  ExprRef body = c.graph.op(o).as<ir::PointwiseAttrs>().body;
  const ValueId y = c.graph.op(o).results[0];
  Emission e = Emission::of(
      pointwise_launch(c, fmt::format("pointwise__{}_r{}", c.storage(y), c.dims(y).size()),
                       Stub(c, "pointwise", o), y, body));
  if (c.cuda())
    e.reason = {fmt::format("{} of a row by each thread: the most that a store has and that divide "
                            "the last dim",
                            vector_width(c, y)),
                kFile, __LINE__};
  return e;
}

KernelLaunch copy_of(const EmitContext& c, ValueId v) {
  ExprRef element = c.pool().load(0, c.type(v).dtype, ir::indices_of(c.graph, v));
  return pointwise_launch(c, "copy__" + c.storage(v), Stub::copy(c, v), v, element);
}

constexpr int64_t kFewTerms = 16;  // which one thread adds up, as for a short convolution
// CPU: outputs that stand side by side, and are worth lanes of their own for few terms.
constexpr int64_t kLanesOfOutputs = 16;

Result<Emission> emit_reduce(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::ReduceAttrs>();
  const ValueId y = op.results[0];
  const size_t rank = c.dims(y).size(), reduced = attrs.extents.size();
  ExprRef domain = ir::element_count(c.pool(), attrs.extents);
  const bool few = ir::prove_le(domain, c.integer(kFewTerms));
  const bool side_by_side =
      few && !c.cuda() && rank > 0 && ir::prove_le(c.integer(kLanesOfOutputs), c.dims(y).back());
  const bool across = side_by_side || (!(few && c.cuda()) && runs_across(attrs.body, rank));
  const int64_t per_row = few || across ? 1 : ir::prove_le(domain, c.integer(1024)) ? 32 : 256;
  Stub stub(c, "reduce", o);
  stub.functor("Value", index_parameters(rank + reduced), attrs.body,
               ir::scalar_of(c.type(y).dtype));
  stub.type("Out", c.type(y).dtype);
  stub.type("Op", reduce_op(attrs.kind));
  stub.field("rank", static_cast<int64_t>(rank));
  stub.field("reduce_rank", static_cast<int64_t>(reduced));
  if (c.cuda()) {
    stub.field("threads_per_row", per_row);
    stub.field("threads", int64_t{256});
  }
  stub.field("across", across);
  stub.call({stub.out(), stub.sizes(c.dims(y)), stub.sizes(attrs.extents), stub.object("Value")},
            {});
  LaunchSize size;
  size.grid = {c.ceil_div(c.count(y), across ? 32 : 256 / per_row)};
  size.work = across ? c.rows(y) : c.count(y);
  size.grain = 4;
  Emission e =
      Emission::of({fmt::format("reduce_{}__{}", ir::kReduceKindNames[static_cast<int>(attrs.kind)],
                                c.storage(y)),
                    std::move(stub), std::move(size), ir::mul(c.count(y), domain)});
  if (c.cuda())
    e.reason = {across ? std::string("a thread sums across rows: neighbours read neighbours")
                : few  ? std::string("a thread for a sum of few terms")
                       : fmt::format("{} threads for a sum, by its length", per_row),
                kFile, __LINE__};
  return e;
}

Result<Emission> emit_cumsum(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::CumsumAttrs>();
  const ValueId x = op.operands[0], y = op.results[0];
  const auto& d = c.dims(y);
  const auto part = [&](size_t a, size_t b) {
    return ir::element_count(c.pool(), std::vector<ExprRef>(d.begin() + a, d.begin() + b));
  };
  const auto axis = static_cast<size_t>(attrs.axis);
  ExprRef outer = part(0, axis), length = d[axis], inner = part(axis + 1, d.size());
  const bool contiguous = ir::is_int(inner, 1);
  Stub stub(c, "cumsum", o);
  stub.type("In", c.type(x).dtype);
  stub.type("Out", c.type(y).dtype);
  stub.field("exclusive", attrs.exclusive);
  stub.field("reverse", attrs.reverse);
  if (c.cuda()) stub.field("contiguous", contiguous);
  stub.call({stub.out(), stub.in(x), stub.size(length), stub.size(inner)}, {outer});
  LaunchSize size;
  size.threads = 128;
  size.grid = {c.ceil_div(ir::mul(outer, inner), contiguous ? 4 : 128)};
  size.work = outer;
  return Emission::of(
      {fmt::format("cumsum__{}", c.storage(y)), std::move(stub), std::move(size), c.count(y)});
}

}  // namespace tfcc::codegen

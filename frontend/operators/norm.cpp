// SPDX-License-Identifier: Apache-2.0
// Normalisation over the last axis: one op, and its statistics where a graph asks for them.
#include "frontend/operators/norm.h"

#include "ir/norm.h"

#include <fmt/format.h>

#include <functional>

namespace tfcc::frontend {
namespace {

// The mean over the last axis of f(element), with that axis kept as 1.
ValueId row_mean(Importer& im, ValueId x, const std::string& name,
                 const std::function<ExprRef(ExprRef, const Indices&)>& f) {
  const Dims d = im.dims(x);
  Dims out = d;
  out.back() = im.integer(1);
  ir::ReduceAttrs attrs;
  attrs.kind = ir::ReduceKind::mean;
  attrs.extents = {d.back()};
  Indices at = im.index_vars(out);
  at.back() = im.pool().index(static_cast<int64_t>(d.size()), d.back());
  ir::Captured c = ir::capture(f(im.element(x, at), at));
  attrs.body = c.body;
  return im.graph.add(ir::OpKind::reduce, c.operands, attrs, {im.type(x).dtype, out},
                      im.value_name(0) + name, im.node->name);
}

}  // namespace

RowStatistics row_statistics(Importer& im, ValueId x, float eps, bool centred) {
  RowStatistics s;
  if (centred) s.mean = row_mean(im, x, ".mean", [](ExprRef e, const Indices&) { return e; });
  const ValueId square = row_mean(im, x, ".square", [&](ExprRef e, const Indices& at) {
    Indices row = at;
    row.back() = im.integer(0);
    ExprRef c = centred ? ir::sub(e, im.element(s.mean, row)) : e;
    return ir::mul(c, c);
  });
  const Dims d = im.dims(square);
  ExprRef e = im.element(square, im.index_vars(d));
  ExprRef root = ir::unary(ir::ExprKind::sqrt, ir::add(e, im.pool().real(eps, e->type)));
  s.inverse_deviation = im.pointwise(ir::div(im.pool().real(1, e->type), root), im.type(x).dtype, d,
                                     ".inverse_deviation");
  return s;
}

Result<ValueId> norm_op(Importer& im, ir::NormKind kind, ValueId x, ValueId gamma,
                        std::optional<ValueId> beta, float eps, std::string name) {
  if (!is_float(im.type(x).dtype) || im.rank(x) == 0)
    return im.fail(ErrorCode::bad_file, "the input must be of floats and no scalar");
  std::vector<ValueId> operands{x, gamma};
  if (beta) operands.push_back(*beta);
  for (size_t i = 1; i < operands.size(); ++i) {
    const auto text =
        fmt::format("{} {} is no vector over the last axis of {}", i == 1 ? "scale" : "bias",
                    ir::to_string(im.type(operands[i])), ir::to_string(im.type(x)));
    if (im.rank(operands[i]) != 1 || !is_float(im.type(operands[i]).dtype))
      return im.fail(ErrorCode::shape, text);
    TFCC_TRY([[maybe_unused]] ExprRef n,
             im.unify(im.dims(x).back(), im.dims(operands[i])[0], text));
  }
  return ir::add_norm(im.graph, {kind, eps, gamma, beta}, x, im.type(x), std::move(name),
                      im.node->name);
}

bool wants_output(const Importer& im, size_t i) {
  return i < im.node->outputs.size() && !im.node->outputs[i].empty();
}

}  // namespace tfcc::frontend

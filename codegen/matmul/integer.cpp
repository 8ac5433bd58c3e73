// SPDX-License-Identifier: Apache-2.0
// Products of integers, by a kernel that reads its operands by their own indices
// (templates/*/matmul).
#include <fmt/format.h>

#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {

Result<Emission> emit_matmul_integer(const EmitContext& c, OpId o, const MatmulDesc& x,
                                     const MatmulConfig&) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const auto& d = c.dims(y);
  const size_t rank = d.size();
  const auto at = ir::indices_of(c.pool(), d);
  ExprRef p = c.pool().index(static_cast<int64_t>(rank), x.k);
  ExprRef i = at[rank - 2], j = at[rank - 1];
  Stub stub(c, "matmul", o);
  const auto add_factor = [&](const char* name, int64_t slot, bool transposed, ExprRef row,
                              ExprRef column) {
    ExprRef element = ir::factor_element(c.graph, op.operands[static_cast<size_t>(slot)],
                                         transposed, at, row, column);
    stub.functor(name, index_parameters(rank + 1), c.pool().load(slot, Scalar::i64, element->args),
                 Scalar::i64);
  };
  add_factor("A", 0, attrs.trans_a, i, p);
  add_factor("B", 1, attrs.trans_b, p, j);
  stub.type("Out", c.type(y).dtype);
  stub.type("Acc", size_of(c.type(y).dtype) == 4 ? "u32" : "u64");
  stub.field("rank", static_cast<int64_t>(rank));
  if (c.cuda()) stub.field("a_across", attrs.trans_a);
  stub.field(c.cuda() ? "b_across" : "across", !attrs.trans_b);
  stub.call({stub.out(), stub.sizes(d), stub.size(x.k), stub.object("A"), stub.object("B")}, {});
  LaunchSize size;
  ExprRef matrices = ir::element_count(c.pool(), std::vector<ExprRef>(d.begin(), d.end() - 2));
  size.grid = {
      ir::mul(matrices, ir::mul(c.ceil_div(d[rank - 2], 64), c.ceil_div(d[rank - 1], 64)))};
  size.work = c.rows(y);
  size.grain = 4;
  return Emission::of({fmt::format("matmul__{}_{}_{}", c.storage(a), c.storage(b), c.storage(y)),
                       std::move(stub), std::move(size),
                       ir::mul(c.integer(2), ir::mul(c.count(y), x.k))});
}

}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// Products of integers, by a kernel that reads its operands by their own indices (templates/*/matmul).
#include <fmt/format.h>

#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {

Result<void> emit_matmul_integer(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const size_t rank = l.dims(y).size();
  const auto at = ir::indices_of(l.pool(), l.dims(y));
  ExprRef inner = l.dims(a)[l.dims(a).size() - (attrs.trans_a ? 2 : 1)];
  ExprRef p = l.pool().index(static_cast<int64_t>(rank), inner);
  ExprRef i = at[rank - 2], j = at[rank - 1];
  l.begin(o, a == b ? std::vector<ValueId>{a} : std::vector<ValueId>{a, b}, {y});
  std::string parameters;
  for (size_t k = 0; k <= rank; ++k) parameters += fmt::format("{}idx i{}", k ? ", " : "", k);
  const auto index_name = [](int64_t k) { return fmt::format("i{}", k); };
  std::string text = l.include("matmul");
  const auto body = [&](ValueId factor, bool transposed, ExprRef row, ExprRef column) {
    ExprRef free = ir::factor_element(l.graph, factor, transposed, at, row, column);
    return l.pool().load(factor == a ? 0 : 1, Scalar::i64, free->args);
  };
  text += l.functor("A", parameters, body(a, attrs.trans_a, i, p), Scalar::i64, index_name);
  text += l.functor("B", parameters, body(b, attrs.trans_b, p, j), Scalar::i64, index_name);
  text += fmt::format("struct Spec {{ using Out = {}; using Acc = {}; static constexpr int rank = {}; static constexpr bool ",
                      l.storage(y), size_of(l.type(y).dtype) == 4 ? "u32" : "u64", rank);
  text += l.cuda() ? fmt::format("a_across = {}, b_across = {}; }};\n", attrs.trans_a, !attrs.trans_b)
                   : fmt::format("across = {}; }};\n", !attrs.trans_b);
  text += l.header(256) + fmt::format("matmul<Spec>({}, {}, {}, {}, {}{});\n}}\n", l.pointer(a == b ? 1 : 2), l.sizes(l.dims(y)),
                                      l.size(inner), l.functor_value("A"), l.functor_value("B"), l.cuda() ? "" : ", begin, end");
  LaunchSize s;
  ExprRef matrices = ir::element_count(l.pool(), std::vector<ExprRef>(l.dims(y).begin(), l.dims(y).end() - 2));
  s.grid = {ir::mul(matrices, ir::mul(l.ceil_div(l.dims(y)[rank - 2], 64), l.ceil_div(l.dims(y)[rank - 1], 64)))};
  s.work = l.rows(y);
  s.grain = 4;
  l.launch(fmt::format("matmul__{}_{}_{}", l.storage(a), l.storage(b), l.storage(y)), "matmul", text, s,
           ir::mul(l.integer(2), ir::mul(l.count(y), inner)));
  return {};
}

}  // namespace tfcc::codegen

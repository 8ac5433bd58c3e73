// SPDX-License-Identifier: Apache-2.0
// narrow-weights: a weight that was stored in 16 bits stays so where products are in f32, which read
// half the bytes. Their results have the same bits.
//   before: const @w : f32[N,K] = f16[N,K] .. |> cast(f32);  %y = matmul(%x, @w) {trans_b = true} : f32[S,N]
//   after:  const @w : f16[N,K] = ..;                        %y = matmul(%x, @w) {trans_b = true, weight = (i,j) => @w[i,j]} : f32[S,N]
// narrow-weights-bf16: weights of f32 are rounded to bf16 as well, for a step of a decoder that
// reads each once.
//   before: const @w : f32[N,K] = ..;  %y = matmul(%x, @w) {trans_b = true} : f32[S,N]
//   after:  const @w : bf16[N,K] = .. |> cast(bf16);  %y = matmul(%x, @w) {trans_b = true, weight = (i,j) => @w[i,j]} : f32[S,N]
// The matrices of a grouped_matmul are read so as well: {groups = 32, weight = (i,j,k) => @w[i,j,k], which = ..}.
// Requires: a constant, f32 in the end. Of the matrices of matmul those alone are rounded that fill
// panels of the CPU: columns in sixteens, rows of the left factor one behind the other. Others would
// not gain by it. Runs after: convert-precision-f32. What no arm reads so, code generation widens when the
// model is compiled.
#include <map>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using Kind = ir::ConstantStep::Kind;

bool is_narrow(DType t) { return t == DType::f16 || t == DType::bf16; }

// The constant in 16 bits, if it is that but for its layout, or with `rounds` of any.
std::optional<ir::Constant> narrow(ir::Constant c, bool rounds) {
  const auto moves = [](const ir::ConstantStep& s) {
    return s.kind == Kind::transpose || s.kind == Kind::reshape;
  };
  const auto last = std::find_if_not(c.steps.rbegin(), c.steps.rend(), moves);
  if (last != c.steps.rend() && last->kind == Kind::cast) {
    ir::Constant before = c, same = c;
    before.steps.erase(before.steps.end() - (last - c.steps.rbegin()) - 1, before.steps.end());
    same.steps.erase(same.steps.end() - (last - c.steps.rbegin()) - 1);
    if (is_narrow(before.result_dtype())) return same;
  }
  if (!rounds) return std::nullopt;
  c.steps.push_back({Kind::cast, {}, DType::bf16});
  return c;
}

bool fills_panels(const Graph& g, const ir::Op& product) {
  const auto columns = ir::as_int(g.value(product.results[0]).type.dims.back());
  return columns.value_or(1) % 16 == 0 && !product.as<ir::MatmulAttrs>().trans_a;
}

// The constants of 16 bits, by those that were.
class Narrowing {
 public:
  Narrowing(Graph& graph, bool rounds) : g_(graph), rounds_(rounds) {}

  bool product(OpId o) {
    const ir::Op product = g_.op(o);
    const ValueId b = product.operands[1], y = product.results[0];
    ExprRef weight = g_.value(b).type.rank() == 2 ? element(b, fills_panels(g_, product)) : nullptr;
    if (!weight) return false;
    auto attrs = product.as<ir::MatmulAttrs>();
    attrs.weight = weight;
    const ExprRef epilogue = ir::free_epilogue(g_, o, ir::indices_of(g_, y));
    g_.replace_uses(y, ir::add_matmul(g_, product.operands[0], b, attrs, epilogue, g_.value(y).type,
                                      g_.value(y).name, product.origin));
    return true;
  }

  bool matrices(OpId o) {
    const ir::Op& product = g_.op(o);
    if (product.as<ir::GroupedMatmulAttrs>().weight) return false;
    ExprRef weight = element(product.operands[1], true);
    if (weight) ir::compute_matrices(g_, o, weight);
    return weight != nullptr;
  }

 private:
  // The element of w, null if that stays as it is.
  ExprRef element(ValueId w, bool may_round) {
    const ir::Constant* stored = g_.constant(w);
    if (!stored || g_.value(w).type.dtype != DType::f32) return nullptr;
    auto known = made_.find(w.value);
    if (known == made_.end()) {
      const auto c = narrow(*stored, rounds_ && may_round);
      if (!c) return nullptr;
      known = made_.emplace(w.value, g_.add_constant(g_.value(w).name, *c)).first;
    }
    return ir::load_of(g_, known->second, ir::indices_of(g_, known->second));
  }

  Graph& g_;
  bool rounds_;
  std::map<uint32_t, ValueId> made_;
};

PassReport narrow_all(Graph& g, bool rounds) {
  PassReport report;
  Narrowing narrowing(g, rounds);
  for (OpId o : std::vector<OpId>(g.order())) {
    if (ir::is_plain_product(g.op(o))) report.rewrites += narrowing.product(o);
    if (g.op(o).kind == OpKind::grouped_matmul) report.rewrites += narrowing.matrices(o);
  }
  return report;
}

}  // namespace

PassReport narrow_weights(Graph& graph) { return narrow_all(graph, false); }
PassReport narrow_weights_bf16(Graph& graph) { return narrow_all(graph, true); }

}  // namespace tfcc::passes

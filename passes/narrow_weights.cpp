// SPDX-License-Identifier: Apache-2.0
// narrow-weights: a weight that was stored in 16 bits stays so where products are in f32, which read
// half the bytes. Their results have the same bits.
//   before: const @w : f32[N,K] = f16[N,K] .. |> cast(f32);  %y = matmul(%x, @w) {trans_b = true} : f32[S,N]
//   after:  const @w : f16[N,K] = ..;                        %y = matmul(%x, @w) {trans_b = true, weight = (i,j) => @w[i,j]} : f32[S,N]
// narrow-weights-bf16: weights of f32 are rounded to bf16 as well, for a step of a decoder that
// reads each once.
//   before: const @w : f32[N,K] = ..;  %y = matmul(%x, @w) {trans_b = true} : f32[S,N]
//   after:  const @w : bf16[N,K] = .. |> cast(bf16);  %y = matmul(%x, @w) {trans_b = true, weight = (i,j) => @w[i,j]} : f32[S,N]
// Requires: a matrix that is a constant, f32 in the end; rounded are those alone that fill panels of
// the CPU, which others would not gain by: columns in sixteens, rows of the left factor one behind the
// other. Runs after: convert-precision-f32. What no arm reads so, code generation widens when the
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

PassReport narrow_all(Graph& g, bool rounds) {
  PassReport report;
  std::map<uint32_t, ValueId> made;  // by the weight that was
  for (OpId o : std::vector<OpId>(g.order())) {
    if (!ir::is_plain_product(g.op(o))) continue;
    const ir::Op product = g.op(o);
    const ValueId b = product.operands[1], y = product.results[0];
    const ir::Constant* stored = g.constant(b);
    if (!stored || g.value(b).type.rank() != 2 || g.value(b).type.dtype != DType::f32) continue;
    auto known = made.find(b.value);
    if (known == made.end()) {
      const auto c = narrow(*stored, rounds && fills_panels(g, product));
      if (!c) continue;
      known = made.emplace(b.value, g.add_constant(g.value(b).name, *c)).first;
    }
    auto attrs = product.as<ir::MatmulAttrs>();
    attrs.weight = ir::load_of(g, known->second, ir::indices_of(g, known->second));
    const ExprRef epilogue = ir::free_epilogue(g, o, ir::indices_of(g, y));
    g.replace_uses(y, ir::add_matmul(g, product.operands[0], b, attrs, epilogue, g.value(y).type,
                                     g.value(y).name, product.origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace

PassReport narrow_weights(Graph& graph) { return narrow_all(graph, false); }
PassReport narrow_weights_bf16(Graph& graph) { return narrow_all(graph, true); }

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// fuse-epilogue: the elementwise op after a product becomes the product's epilogue: GELU with its
// bias, another activation, a scale, a residual, a cast.
//   before: %m = matmul(%x, @w, @b) {epilogue = (s,i,j,k) => s + @b[k]}; %y = pointwise(%m) {body = (i,j,k) => max(%m[i,j,k], 0.0)}
//   after:  %y = matmul(%x, @w, @b) {epilogue = (s,i,j,k) => max(s + @b[k], 0.0)}
// Requires: %m is read by this op alone, at its own place and once in all dims of it; %y is real;
// what else the op loads it loads at its own place, along the last axis, or as one value, beside
// integers also for its row, so that an arm of execution has it at hand with the sum; %y has the
// type of %m, or a wider one: where the epilogue is split off again, the sum is stored in it; %m of
// integers is an i32, and exact in any case; the epilogue stays within 64 nodes, and rounds to
// integers beside such a sum alone (what is rounded keeps its type under --fp16). Code generation
// splits off what the chosen arm cannot compute, so that the target need not be known here.
// Runs after: fuse-gated-mlp and fuse-qkv, which merge products that have a bias alone;
// fuse-residual-norm, which takes sums to a norm.
#include <algorithm>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr size_t kLargestEpilogue = 64;

// The product that the op reads at its own place, if it may take the op's body; else why not, where
// there is a product at all.
std::optional<ValueId> product_of(const Graph& g, OpId o, ExprRef body, bool& integers,
                                  std::string& reason) {
  const ValueId y = g.result(o);
  std::optional<ValueId> found;
  for (ValueId v : g.op(o).operands) {
    const ir::Op* op = g.def(v);
    if (!op || op->kind != OpKind::matmul || op->as<ir::MatmulAttrs>().gate ||
        op->as<ir::MatmulAttrs>().heads || g.value(v).type.dims != g.value(y).type.dims)
      continue;
    if (g.use_count(v) != 1) {
      reason = "the product has another use";
      continue;
    }
    found = v;
    break;
  }
  if (!found) return std::nullopt;
  const Indices at = ir::indices_of(g, y), row(at.begin(), at.end() - 1);
  const std::vector<ExprRef>& dims = g.value(y).type.dims;
  const std::vector<ExprRef> rows(dims.begin(), dims.end() - 1);
  integers = !is_float(g.value(*found).type.dtype);
  bool ok = true, rounds = false;
  ir::for_each_node(body, [&](ExprRef n) {
    rounds |= n->kind == ExprKind::rint;
    const auto v = loaded(n);
    if (!v) return;
    const bool one_value = std::ranges::none_of(n->args, [](ExprRef i) { return !ir::as_int(i); });
    ok &= v == found      ? n->args == at
          : n->args == at ? g.value(*v).type.dims == g.value(y).type.dims
                          : one_value || loaded_along_last(g, n, at).has_value() ||
                                (integers && n->args == row && g.value(*v).type.dims == rows);
  });
  if (ok && integers && g.value(*found).type.dtype != DType::i32) {
    reason = "the sum is an i64";
    return std::nullopt;
  }
  rounds &=
      !integers;  // what is rounded beside an exact sum is not narrowed either (convert-precision)
  if (ok && rounds) reason = "the op rounds to integers, and what it rounds keeps its own type";
  if (ok && !rounds) return found;
  if (ok) return std::nullopt;
  reason = "the op reads elements that do not stand beside the sum";
  return std::nullopt;
}

}  // namespace

PassReport fuse_epilogue(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    const ValueId y = graph.result(o);
    if (graph.use_count(y) == 0) continue;  // cost: read by nothing
    if (!ir::has_elements(graph, y)) continue;
    const ir::Type type = graph.value(y).type;
    if (!is_float(type.dtype)) continue;
    const Indices at = ir::indices_of(graph, y);
    ExprRef body = ir::element_of(graph, y, at);
    if (body->kind == ExprKind::load) continue;  // a view or a cast: its reader takes it
    std::string reason;
    bool integers = false;
    const auto m = product_of(graph, o, body, integers, reason);
    if (!m) {
      if (!reason.empty()) report.misses.push_back({label(graph, o), reason});
      continue;
    }
    const ir::Op product = *graph.def(*m);
    ExprRef before = ir::free_epilogue(graph, graph.value(*m).def, at);
    if (!integers && before->type != ir::scalar_of(type.dtype)) continue;  // f64
    if (!integers && graph.value(*m).type.dtype != type.dtype &&
        size_of(type.dtype) <= size_of(graph.value(*m).type.dtype)) {
      report.misses.push_back(
          {label(graph, o), "the result has another type, which may not hold the sum"});
      continue;
    }
    ExprRef epilogue =
        ir::rewrite(body, [&](ExprRef n) { return loaded(n) == m ? before : nullptr; });
    if (ir::node_count(epilogue) > kLargestEpilogue) {
      report.misses.push_back({label(graph, o), "the epilogue would be too large an expression"});
      continue;
    }
    graph.replace_uses(y, ir::add_matmul(graph, product.operands[0], product.operands[1],
                                         ir::free_attrs(graph, graph.value(*m).def), epilogue, type,
                                         graph.value(y).name, product.origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// fuse-embedding: a norm computes the elementwise expression that it reads, above all the sum of
// embeddings at the start of a model.
//   before: %e = pointwise(%ids, @word, @position) {body = (i,j,k) => @word[bounded(%ids[i,j], 200, 0),k] + @position[j,k]} : f32[B,S,64]
//           %y = norm(@g, @b, %e) {body = (i,j,k) => %e[i,j,k], eps, has_beta = true, kind = layer} : f32[B,S,64]
//   after:  %y = norm(@g, @b, %ids, @word, @position) {body = (i,j,k) => @word[bounded(%ids[i,j], 200, 0),k] + @position[j,k], ..}
//   with other uses of %e:  %y, %e = norm(...)
// Requires: %e is no f64; its body reads along the rows, is small and has no costly function,
// because a row may be computed three times; the body does not load gamma or beta, and neither is
// made of %e.
#include <algorithm>

#include "ir/norm.h"
#include "passes/match.h"
#include "passes/norm_argument.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr size_t kLargestBody = 96;

// Neighbours in a row are neighbours in memory, or the same element.
bool reads_along_rows(ExprRef load, ExprRef last) {
  for (size_t d = 0; d < load->args.size(); ++d) {
    if (!ir::uses_index(load->args[d], last->value)) continue;
    if (d + 1 != load->args.size() || ir::uses_index(ir::sub(load->args[d], last), last->value))
      return false;
  }
  return true;
}

// Why the body cannot be computed by the norm; null if it can.
const char* obstacle(ExprRef body, ExprRef last) {
  if (body->type != ir::Scalar::f32) return "the norm's argument is computed in f64";
  if (ir::node_count(body) > kLargestBody) return "the norm's argument is too large an expression";
  bool costly = false, along = true;
  ir::for_each_node(body, [&](ExprRef n) {
    costly |= ir::is_costly(n);
    // A row of one element has no index variable.
    along &=
        n->kind != ExprKind::load || last->kind != ExprKind::index || reads_along_rows(n, last);
  });
  if (costly) return "the norm's argument has a costly function";
  return along ? nullptr : "the norm's argument does not read along its rows";
}

}  // namespace

PassReport fuse_embedding(Graph& graph) {
  PassReport report;
  const NormArguments arguments(graph);
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::norm || graph.op(o).results.size() > 1) continue;
    const auto of = ir::normed_value(graph, o);
    if (!of) continue;
    const ValueId e = *of, y = graph.result(o);
    const ir::NormOf norm = ir::norm_of(graph.op(o));
    const ir::Op* producer = graph.def(e);
    if (!producer || producer->kind != OpKind::pointwise) continue;
    const Indices at = ir::indices_of(graph, e);
    const ExprRef free = ir::element_of(graph, e, at);
    auto miss = [&](const char* reason) { report.misses.push_back({label(graph, o), reason}); };
    const char* reason = obstacle(free, at.back());
    if (reason) {
      miss(reason);
      continue;
    }
    const std::vector<ValueId> loaded = ir::loads_of(free);
    const auto loads = [&](std::optional<ValueId> w) {
      return w && std::find(loaded.begin(), loaded.end(), *w) != loaded.end();
    };
    const bool weights_loaded = loads(norm.gamma) || loads(norm.beta);
    if (weights_loaded) {
      miss("the norm's argument loads gamma or beta");
      continue;
    }
    ir::NormParts parts = ir::norm_parts(norm, free);
    std::vector<ir::Type> types{graph.value(y).type};
    std::vector<std::string> names{graph.value(y).name};
    const bool keep = graph.use_count(e) > 1;
    if (keep && arguments.is_in_weights(graph, norm, e)) {
      miss("gamma or beta is made of the norm's argument");
      continue;
    }
    if (keep) {
      types.push_back(graph.value(e).type);
      names.push_back(graph.value(e).name);
    }
    const OpId f = graph.add_op(OpKind::norm, std::move(parts.operands), std::move(parts.attrs),
                                types, names, graph.op(o).origin);
    graph.replace_uses(y, graph.result(f, 0));
    if (keep) graph.replace_uses(e, graph.result(f, 1));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes

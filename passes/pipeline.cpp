// SPDX-License-Identifier: Apache-2.0
// The one list that orders the passes, and the loop that runs and verifies them.
#include <fmt/format.h>

#include <algorithm>

#include "ir/elements.h"
#include "ir/ir.h"
#include "passes/passes.h"

namespace tfcc::passes {

const std::vector<PassInfo>& all_passes() {
  static const std::vector<PassInfo> kPasses = {
#define TFCC_PASS(function, name, summary) {name, summary, function},
#include "passes/passes.def"
#undef TFCC_PASS
  };
  return kPasses;
}

const PassInfo* find_pass(std::string_view name) {
  for (const PassInfo& p : all_passes()) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

const std::vector<std::string>& default_pipeline() {
  static const std::vector<std::string> kOrder = {
      "quantize-linear",  // before fold-constants, which would make reals of the integers
      "fold-constants", "canonicalize", "eliminate-common-ops", "eliminate-dead-ops", "split-rows",
      "raise-grouped-matmul",  // of the rows that are tokens again
      // Norms before GELU and attention: they read the smallest expressions while every ONNX op is
      // still its own.
      "raise-layer-norm", "raise-rms-norm", "raise-gelu", "raise-softmax",
      "raise-rope",  // before fuse-attention, which would take rotation and cache for one expression
      "fuse-attention",
      "classify-mask",  // needs the score of fuse-attention
      "turn-products",  // after fuse-attention, which reads q and k by its own products
      "raise-linear-attention",  // after fuse-attention, so that what is left of products of products is no softmax's
      // Named fusions before fuse-pointwise, which would swallow their adds; linear-bias takes the
      // biases that are left.
      "fuse-bias-gelu", "fuse-residual-norm", "fuse-linear-bias", "fuse-pointwise", "canonicalize",
      "fuse-pointwise",      // of the views that canonicalize puts behind products
      "fuse-embedding",      // what a norm reads is one expression by now
      "fuse-gated-mlp",      // after fuse-pointwise: activation and product are one op then
      "fuse-head-norm",      // before fuse-qkv, which finds q and k behind the rotation
      "join-head-products",  // after fuse-pointwise, which makes each factor one expression
      "fuse-qkv",  // after all views are gone, so that q, k and v are products where they can be
      "fuse-epilogue",  // after the merging of products, which takes those with a bias alone
      // Inlined views have become identities; q, k and v of one input may have become equal.
      "canonicalize", "eliminate-common-ops", "eliminate-dead-ops",
      "fold-products",   // after the fusions, which look for products of weights
      "remove-padding",  // last: all others know tokens as [B,S]
  };
  return kOrder;
}

std::vector<std::string> generation_passes(const std::vector<std::string>& passes) {
  const auto at = std::find(passes.begin(), passes.end(), kLiftedBefore);
  std::vector<std::string> rest = {"lift-kv-cache", "canonicalize", "eliminate-common-ops",
                                   "eliminate-dead-ops",
                                   "fuse-rope-append"};  // when the tables of q and k are one
  rest.insert(rest.end(), at, passes.end());
  std::erase(rest, "remove-padding");  // tokens of any sequences have none
  return rest;
}

Result<std::vector<PassReport>> run_passes(
    ir::Graph& graph, const std::vector<std::string>& names,
    const std::function<void(const PassReport&, const ir::Graph&)>& after, Provenance* provenance) {
  std::vector<PassReport> reports;
  for (const std::string& name : names) {
    const PassInfo* pass = find_pass(name);
    if (!pass) {
      std::string list;
      for (const PassInfo& p : all_passes())
        list += (list.empty() ? "" : ", ") + std::string(p.name);
      return Error{ErrorCode::invalid_argument,
                   fmt::format("there is no pass '{}'; passes are {}", name, list)};
    }
    ir::Graph before = graph;
    reports.push_back(pass->run(graph));
    reports.back().pass = name;
    for (ir::OpId o : graph.order())
      ir::merge_operands(graph, o);  // two operands may have become one value
    graph.clean();
    std::vector<std::string> broken;
    for (const ir::Violation& v : ir::verify(graph)) broken.push_back(to_string(v));
    if (!broken.empty()) {
      // An optimisation is never a requirement: what it cannot prove right is left alone, and said.
      graph = std::move(before);
      reports.back().rewrites = 0;
      reports.back().misses.push_back({graph.name, fmt::format("{}: {}", kUndone, broken[0])});
    } else if (provenance) {
      provenance->update(name, before, graph);
    }
    for (ir::OpId o : graph.order()) reports.back().ops += graph.op(o).kind != ir::OpKind::constant;
    if (after) after(reports.back(), graph);
  }
  return reports;
}

}  // namespace tfcc::passes

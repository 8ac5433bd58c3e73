// SPDX-License-Identifier: Apache-2.0
// A small graph with an origin for each op, inputs for it, and changes that break it.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "ir/gelu.h"
#include "ir/ir.h"
#include "tools/tfcc/verify_bisect.h"

namespace tfcc::tools {

inline constexpr const char* kMlp = R"(
graph @mlp(%x: f32[B,S,8], %w1: f32[8,16], %b1: f32[16], %w2: f32[16,8], %g: f32[8], %e: f32[8]) symbols(B = x.0 in 1.., S = x.1 in 1..) {
  %n = norm(%g, %e, %x) {body = (i,j,k) => %x[i,j,k], eps = 1e-05, has_beta = true, kind = layer} : f32[B,S,8]
  %h = matmul(%n, %w1) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,16]
  %hb = pointwise(%h, %b1) {body = (i,j,k) => %h[i,j,k] + %b1[k]} : f32[B,S,16]
  %a = pointwise(%hb) {body = (i,j,k) => 0.5 * %hb[i,j,k] * (1.0 + erf(%hb[i,j,k] * 0.7071067811865476))} : f32[B,S,16]
  %o = matmul(%a, %w2) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,8]
  %y = pointwise(%x, %o) {body = (i,j,k) => %x[i,j,k] + %o[i,j,k]} : f32[B,S,8]
  return y = %y
}
)";

/// Attention over a padded batch, which remove-padding packs.
inline constexpr const char* kPadded = R"(
graph @padded(%x: f32[B,S,8], %mask: i64[B,S] as mask, %w: f32[8,8]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length) {
  %h = pointwise(%x) {body = (i,j,k) => tanh(%x[i,j,k])} : f32[B,S,8]
  %a = attention(%h, %h, %h, %mask) {causal = false, heads = 2, key_padding = true, kv_heads = 2, score = (s,b,h,i,j) => s * 0.5, visible = (b,h,i,j) => 0 != %mask[b,j]} : f32[B,S,8]
  %d = matmul(%a, %w) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,8]
  %m = pointwise(%d) {body = (i,j,k) => max(%d[i,j,k], 0.0)} : f32[B,S,8]
  %y = pointwise(%m, %h) {body = (i,j,k) => %m[i,j,k] + %h[i,j,k]} : f32[B,S,8]
  return y = %y
}
)";

/// Every op comes from the node "node of NAME".
inline ir::Graph parsed(const std::string& text) {
  auto graph = ir::parse(text);
  EXPECT_TRUE(graph) << (graph ? "" : graph.error().message);
  EXPECT_TRUE(ir::verify(*graph).empty());
  for (ir::OpId o : graph->order())
    graph->op(o).origin = "node of " + graph->value(graph->result(o)).name;
  return *std::move(graph);
}

/// Normal numbers for every input, and a mask that ends the second sequence; B = 2, S = 3.
inline HostTensors random_tensors(const ir::Graph& graph) {
  std::mt19937_64 rng(1);
  std::normal_distribution<double> normal;
  HostTensors out;
  for (ir::ValueId v : graph.inputs()) {
    ir::HostTensor& t = out[graph.value(v).name];
    for (ir::ExprRef d : graph.value(v).type.dims)
      t.dims.push_back(ir::eval_size(d, [](std::string_view s) { return s == "B" ? 2 : 3; }));
    t.dtype = graph.value(v).type.dtype;
    for (int64_t i = 0; i < t.element_count(); ++i) {
      if (is_float(t.dtype)) t.reals.push_back(static_cast<float>(normal(rng)));
      else t.ints.push_back(i < 5);
    }
  }
  return out;
}

inline ir::Op& op_of(ir::Graph& graph, const std::string& value) {
  return graph.op(graph.value(graph.find_value(value)).def);
}

/// The value is larger by `by` in every element from here on; true if the graph has it.
inline bool add_to(ir::Graph& graph, const std::string& value, double by) {
  const ir::ValueId v = graph.find_value(value);
  if (!v.valid()) return false;
  ir::Op& op = op_of(graph, value);
  if (op.kind == ir::OpKind::pointwise) {
    ir::ExprRef& body = op.as<ir::PointwiseAttrs>().body;
    body = ir::add(body, graph.pool().real(by));
  } else if (op.kind == ir::OpKind::matmul) {
    op.as<ir::MatmulAttrs>().alpha *= 1 + by;
  } else if (op.kind == ir::OpKind::norm) {
    op.as<ir::NormAttrs>().eps += by;
  }
  return true;
}

/// An elementwise op that is a GELU is one of this kind from here on.
inline void become_gelu(ir::Op& op, ir::GeluKind kind) {
  if (op.kind != ir::OpKind::pointwise) return;
  ir::ExprRef& body = op.as<ir::PointwiseAttrs>().body;
  const auto gelu = ir::as_gelu(body);
  if (gelu) body = ir::gelu_of(gelu->x, kind);
}

/// What the failing output differs by when `target` runs `graph`.
inline Difference difference_of(const ir::Graph& imported, const ir::Graph& graph,
                                const HostTensors& inputs, const Target& target) {
  auto want = ir::eval(imported, inputs), got = target.run(graph, inputs);
  EXPECT_TRUE(want && got);
  return compare(got->at("y"), want->at("y"), Defined(masks_of(imported, inputs)));
}

}  // namespace tfcc::tools

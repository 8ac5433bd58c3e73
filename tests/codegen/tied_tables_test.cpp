// SPDX-License-Identifier: Apache-2.0
// codegen/tied_tables: a table that is also a weight is read as the weight lies, and means the same.
#include "codegen/tied_tables.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "codegen/plan/weights.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

const TargetClass& of_family(Family family) {
  for (const TargetClass& c : target_classes()) {
    if (c.family == family) return c;
  }
  ADD_FAILURE() << "no such class";
  return target_classes().front();
}

struct Texts {
  std::string weight = "const @w : f32[16,96] = f32[96,16] random(1) |> transpose(1,0)",
              trans = "false";
  std::string looked_up =
      "%h = pointwise(%ids, @e) {body = (i,j) => @e[bounded(%ids[i], 96, 0),j]} : f32[S,16]";
  std::string table = "f32[96,16] random(1)";
  size_t others = 0;  // weights that nothing else looks up
};

ir::Graph graph_of(const Texts& t) {
  auto graph = ir::parse(fmt::format(
      "graph @main(%ids: i64[S], %x: f32[S,16]) symbols(S = ids.0 in 1.. as tokens) {{\n  flag 0 \"ids: a row lies outside\"\n"
      "  const @e : f32[96,16] = {}\n  {}\n  {}\n"
      "  %y = pointwise(%x, %h) {{body = (i,j) => %x[i,j] + %h[i,j]}} : f32[S,16]\n"
      "  %p = matmul(%y, @w) {{alpha = 1.0, trans_a = false, trans_b = {}}} : f32[S,96]\n  return out = %p, h = %h\n}}\n",
      t.table, t.weight, t.looked_up, t.trans));
  EXPECT_TRUE(graph) << (graph ? "" : graph.error().message);
  return *std::move(graph);
}

size_t weights_of(const ir::Graph& graph, Family family) {
  WeightPool pool;
  const auto lowered = lower(graph, of_family(family), pool, {});
  EXPECT_TRUE(lowered) << (lowered ? "" : lowered.error().message);
  return pool.entries().size();
}

void expect_same(const Texts& t, bool tied) {
  const ir::Graph before = graph_of(t);
  ir::Graph after = graph_of(t);
  tie_tables(after, of_family(Family::cpu));
  for (const ir::Violation& v : ir::verify(after))
    ADD_FAILURE() << v.rule << ": " << v.text << "\n" << ir::print(after);
  EXPECT_EQ(ir::print(after).find("panel48") != std::string::npos, tied) << ir::print(after);
  EXPECT_EQ(weights_of(before, Family::cpu), t.others + (tied ? 1 : 2)) << ir::print(after);
  ir::HostTensor ids, x;
  ids.dtype = DType::i64;
  ids.dims = {5};
  ids.ints = {0, 95, 17, 31, 32};
  x.dtype = DType::f32;
  x.dims = {5, 16};
  for (int i = 0; i < 80; ++i) x.reals.push_back(i % 7);
  const auto want = ir::eval(before, {{"ids", ids}, {"x", x}});
  const auto got = ir::eval(after, {{"ids", ids}, {"x", x}});
  ASSERT_TRUE(want && got);
  EXPECT_EQ(want->at("out").reals, got->at("out").reals);
  EXPECT_EQ(want->at("h").reals, got->at("h").reals);
}

TEST(TiedTables, AnEmbeddingReadsTheHead) {
  expect_same({}, true);
  expect_same({.weight = "const @w : f32[96,16] = f32[96,16] random(1)", .trans = "true"}, true);
}

TEST(TiedTables, ANormReadsIt) {
  expect_same(
      {.looked_up =
           "const @g : f32[16] = f32[16] random(5)\n  %h = norm(@g, %ids, @e) {body = (i,j) => @e[bounded(%ids[i], 96, 0),j], eps = 1e-05, "
           "has_beta = false, kind = rms} : f32[S,16]",
       .others = 1},
      true);
}

TEST(TiedTables, OtherWeightsStayApart) { expect_same({.table = "f32[96,16] random(2)"}, false); }

// On CUDA a weight and a table have one layout.
TEST(TiedTables, CudaSharesThemAsTheyAre) {
  const Texts t{.weight = "const @w : f32[96,16] = f32[96,16] random(1)", .trans = "true"};
  ir::Graph graph = graph_of(t);
  const std::string before = ir::print(graph);
  tie_tables(graph, of_family(Family::cuda));
  EXPECT_EQ(ir::print(graph), before);
  EXPECT_EQ(weights_of(graph, Family::cuda), 1U);
}

}  // namespace
}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// What each op after the passes stands for, and which passes made it so.
#include "passes/provenance.h"

#include <gtest/gtest.h>

#include "ir/ir.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using Names = std::vector<std::string>;

/// A graph before and after passes.
struct Traced {
  ir::Graph before, after;
  Provenance provenance;

  static Traced run(const std::string& text, const Names& passes) {
    auto before = ir::parse(text);
    EXPECT_TRUE(before) << (before ? "" : before.error().message);
    Traced t{*before, *before, Provenance(*before)};
    EXPECT_TRUE(run_passes(t.after, passes, {}, &t.provenance));
    return t;
  }
  const Provenance::Source& of(const std::string& value) const {
    const ir::ValueId v = after.find_value(value);
    EXPECT_TRUE(v.valid()) << value << " is not in\n" << ir::print(after);
    return provenance.of(v.valid() ? after.value(v).def : ir::OpId{});
  }
  Names ops(const std::string& value) const {
    Names names;
    for (ir::OpId o : of(value).ops) names.push_back(before.value(before.result(o)).name);
    return names;
  }
  // The only op of this kind.
  std::string named(ir::OpKind kind) const {
    std::string name;
    for (ir::OpId o : after.order()) {
      if (after.op(o).kind != kind) continue;
      EXPECT_TRUE(name.empty()) << "two of them in\n" << ir::print(after);
      name = after.value(after.result(o)).name;
    }
    return name;
  }
};

constexpr const char* kBiasGelu = R"(graph @main(%x: f32[B,64]) symbols(B = x.0 in 1..) {
  const @w : f32[64,64] = random(1)
  const @b : f32[64] = random(2)
  %m = matmul(%x, @w) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,64]
  %h = pointwise(%m, @b) {body = (i,j) => %m[i,j] + @b[j]} : f32[B,64]
  %e = pointwise(%h) {body = (i,j) => erf(%h[i,j] * 0.70710677)} : f32[B,64]
  %f = pointwise(%e) {body = (i,j) => 1.0 + %e[i,j]} : f32[B,64]
  %g = pointwise(%f, %h) {body = (i,j) => %f[i,j] * %h[i,j]} : f32[B,64]
  %y = pointwise(%g) {body = (i,j) => %g[i,j] * 0.5} : f32[B,64]
  return y = %y
}
)";

TEST(Provenance, EveryOpStandsForItselfAtFirst) {
  const Traced t = Traced::run(kBiasGelu, {});
  EXPECT_EQ(t.ops("f"), Names({"f"}));
  EXPECT_TRUE(t.of("f").passes.empty());
}

TEST(Provenance, AFusedOpStandsForAllThatItReplaced) {
  const Traced t = Traced::run(kBiasGelu, default_pipeline());
  EXPECT_EQ(t.ops(t.named(ir::OpKind::matmul)), Names({"m", "h", "e", "f", "g", "y"}));
  EXPECT_EQ(t.of(t.named(ir::OpKind::matmul)).passes,
            Names({"raise-gelu", "fuse-bias-gelu", "fuse-epilogue"}));
}

TEST(Provenance, AnOpThatGrowsInPlaceTakesWhatItReads) {
  const Traced t = Traced::run(R"(graph @main(%x: f32[B]) symbols(B = x.0 in 1..) {
  %a = pointwise(%x) {body = (i) => %x[i] * 2.0} : f32[B]
  %b = pointwise(%a) {body = (i) => exp(%a[i])} : f32[B]
  %y = pointwise(%b) {body = (i) => %b[i] + 1.0} : f32[B]
  return y = %y
}
)",
                               {"fuse-pointwise"});
  EXPECT_EQ(t.ops("y"), Names({"a", "b", "y"}));
  EXPECT_EQ(t.of("y").passes, Names({"fuse-pointwise"}));
}

TEST(Provenance, EqualOpsBecomeOne) {
  const Traced t = Traced::run(R"(graph @main(%x: f32[B]) symbols(B = x.0 in 1..) {
  %a = pointwise(%x) {body = (i) => exp(%x[i])} : f32[B]
  %b = pointwise(%x) {body = (i) => exp(%x[i])} : f32[B]
  return y = %a, z = %b
}
)",
                               {"eliminate-common-ops"});
  EXPECT_EQ(t.ops("a"), Names({"a", "b"}));
}

// q, k and v are one product; their biases and head views belong to it, what lies between the
// products to the attention.
TEST(Provenance, AttentionAndItsOperandsAreToldApart) {
  std::string text = "graph @main(%x: f32[B,S,32]) symbols(B = x.0 in 1.., S = x.1 in 1..) {\n";
  for (const std::string p : {"q", "k", "v"}) {
    const std::string seed = std::to_string(p[0]);  // equal weights would make equal products
    text += "  const @w" + p + " : f32[32,32] = random(1" + seed + ")\n  const @b" + p +
            " : f32[32] = random(2" + seed + ")\n";
    text += "  %m" + p + " = matmul(%x, @w" + p +
            ") {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,32]\n";
    text += "  %" + p + " = pointwise(@b" + p + ", %m" + p + ") {body = (i,j,k) => @b" + p +
            "[k] + %m" + p + "[i,j,k]} : f32[B,S,32]\n";
    text += "  %" + p + "h = pointwise(%" + p + ") {body = (i,j,k,l) => %" + p +
            "[i,k,8*j + l]} : f32[B,4,S,8]\n";
  }
  text += R"(  %s = matmul(%qh, %kh) {alpha = 1.0, trans_a = false, trans_b = true} : f32[B,4,S,S]
  %d = pointwise(%s) {body = (i,j,k,l) => %s[i,j,k,l] * 0.5} : f32[B,4,S,S]
  %p = softmax(%d) : f32[B,4,S,S]
  %c = matmul(%p, %vh) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,4,S,8]
  %y = pointwise(%c) {body = (i,j,k) => %c[i,k / 8,j,k % 8]} : f32[B,S,32]
  return y = %y
}
)";
  const Traced t = Traced::run(text, default_pipeline());
  EXPECT_EQ(t.ops(t.named(ir::OpKind::attention)),
            Names({"qh", "kh", "vh", "s", "d", "p", "c", "y"}));
  EXPECT_EQ(t.ops(t.named(ir::OpKind::matmul)), Names({"mq", "q", "mk", "k", "mv", "v"}));
  EXPECT_EQ(t.of(t.named(ir::OpKind::matmul)).passes, Names({"fuse-linear-bias", "fuse-qkv"}));
}

}  // namespace
}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// What a norm is of, read off its body.
#include "ir/norm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/elements.h"
#include "ir/ir.h"

namespace tfcc::ir {
namespace {

/// The norm of a body over x, r f32[B,4,8], h f16 like them, w f32[B,5,8] and vectors b, c.
struct Normed {
  Graph graph;
  OpId op;

  Normed(const std::string& operands, const std::string& body) : graph("none") {
    const std::string text = fmt::format(
        "graph @g(%x: f32[B,4,8], %r: f32[B,4,8], %h: f16[B,4,8], %w: f32[B,5,8], %b: f32[8], %c: f32[8]) symbols(B = x.0 in 1..) {{\n"
        "  %y = norm(%b, {}) {{body = (i,j,k) => {}, eps = 0.5, has_beta = false, kind = rms}} : f32[B,4,8]\n  return y = %y\n}}\n",
        operands, body);
    auto parsed = parse(text);
    EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
    graph = *std::move(parsed);
    for (const Violation& v : verify(graph)) ADD_FAILURE() << to_string(v);
    op = graph.value(graph.find_value("y")).def;
  }
  std::string name(ValueId v) const { return graph.value(v).name; }
};

TEST(Norm, IsOfAValueThatItLoadsAtItsOwnPlace) {
  const Normed plain("%x", "%x[i,j,k]");
  ASSERT_TRUE(normed_value(plain.graph, plain.op));
  EXPECT_EQ(plain.name(*normed_value(plain.graph, plain.op)), "x");
  for (const auto& [operands, body] : {std::pair{"%x", "%x[i,j,k] * 2.0"},
                                       {"%x", "%x[i,0,k]"},
                                       {"%w", "%w[i,j,k]"},
                                       {"%w", "%w[i,j + 1,k]"},
                                       {"%c", "%c[k]"}}) {
    const Normed other(operands, body);
    EXPECT_FALSE(normed_value(other.graph, other.op)) << body;
    EXPECT_FALSE(normed_sum(other.graph, other.op)) << body;
  }
}

TEST(Norm, IsOfASumOfTwoAndABias) {
  for (const char* body : {"%x[i,j,k] + %r[i,j,k]", "%r[i,j,k] + %x[i,j,k]",
                           "%x[i,j,k] + %r[i,j,k] + %c[k]", "%c[k] + (%r[i,j,k] + %x[i,j,k])"}) {
    const bool biased = std::string(body).find("%c") != std::string::npos;
    const Normed n(biased ? "%x, %r, %c" : "%x, %r", body);
    const auto sum = normed_sum(n.graph, n.op);
    ASSERT_TRUE(sum) << body;
    EXPECT_EQ(std::min(n.name(sum->x), n.name(sum->residual)), "r") << body;
    EXPECT_EQ(std::max(n.name(sum->x), n.name(sum->residual)), "x") << body;
    EXPECT_EQ(sum->bias.has_value(), biased) << body;
    EXPECT_EQ(sum_before_norm(n.graph, *sum, indices_of(n.graph, n.graph.result(n.op))),
              normed(n.graph, n.op))
        << body;
  }
  const Normed twice("%x", "%x[i,j,k] + %x[i,j,k]"),
      weights("%x, %r, %b", "%x[i,j,k] + %r[i,j,k] + %b[k]");
  ASSERT_TRUE(normed_sum(twice.graph, twice.op));
  ASSERT_TRUE(normed_sum(weights.graph, weights.op));  // gamma is the bias too
  EXPECT_EQ(weights.name(*normed_sum(weights.graph, weights.op)->bias), "b");
}

TEST(Norm, IsOfNoOtherSum) {
  for (const auto& [operands, body] :
       {std::pair{"%x, %h", "%x[i,j,k] + %h[i,j,k]"},
        {"%x, %w", "%x[i,j,k] + %w[i,j,k]"},
        {"%x, %c", "%x[i,j,k] + %c[k]"},
        {"%x, %r", "%x[i,j,k] - %r[i,j,k]"},
        {"%x, %r", "%x[i,j,k] + %r[i,0,k]"},
        {"%x, %r, %b, %c", "%x[i,j,k] + %r[i,j,k] + (%b[k] + %c[k])"},
        {"%x, %r, %c", "%x[i,j,k] + (%r[i,j,k] + %c[k])"}}) {
    const Normed n(operands, body);
    EXPECT_FALSE(normed_sum(n.graph, n.op)) << body;
  }
}

}  // namespace
}  // namespace tfcc::ir

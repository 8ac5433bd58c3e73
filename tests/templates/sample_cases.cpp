// SPDX-License-Identifier: Apache-2.0
// sample: greedy and by chance, each bound on what may be chosen alone and all at once, equal
// logits, logits that are no numbers, penalties.
#include <fmt/format.h>

#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

/// Options of a row as expressions over i, the row, and %u [R], uniform in [0, 1]. Seeds are random.
struct Options {
  std::string temperature = "%u[i] * 2.0 + 0.05", top_p = "1.0", min_p = "0.0", penalty = "1.0",
              top_k = "0";
};

Case make(const std::string& name, const Options& o, const std::string& type = "f32",
          const std::string& logit = "%x[i,j,k]", bool specials = false) {
  // Some rows are of no token; a third of its words say that a token was seen.
  const std::string text = fmt::format(
      "graph @sampled(%x: {0}[1,R,V], %ids: i64[1,T], %u: f32[R], %seeds: i32[R,2], %bits: i32[R,W]) symbols(R = x.1 in 1.., V = x.2 in 1.., T = ids.1 in 1.., W = bits.1 in 1..) {{\n"
      "  %wanted = pointwise() {{body = (i) => i % (T + 2) - 1}} : i32[R]\n"
      "  %positions = pointwise() {{body = (i) => 3*i + 7}} : i32[T]\n"
      "  %logits = pointwise(%x) {{body = (i,j,k) => {1}}} : {0}[1,R,V]\n"
      "  %sampling = pointwise(%u) {{body = (i,j) => select(j <= 0, {2}, select(j <= 1, {3}, select(j <= 2, {4}, {5})))}} : f32[R,4]\n"
      "  %draw = pointwise(%seeds) {{body = (i,j) => select(j <= 0, {6}, select(j <= 2, %seeds[i,max(min(j - 1, 1), 0)], i % 3))}} : i32[R,4]\n"
      "  %seen = pointwise(%bits) {{body = (i,j) => %bits[i,j]}} : i32[R,W]\n"
      "  %tokens, %logs = sample(%logits, %ids, %wanted, %positions, %sampling, %draw, %seen) : i64[1,R], f32[R]\n"
      "  return tokens = %tokens, logs = %logs\n}}\n",
      type, logit, o.temperature, o.top_p, o.min_p, o.penalty, o.top_k);
  Case c{"sample_" + name,
         text,
         {{1, 1, 1, 1},
          {3, 5, 2, 1},
          {40, 33, 7, 2},
          {5, 1024, 5, 31},
          {9, 1031, 4, 40},
          {3, 32000, 3, 1000}},
         {{"x", {-6, 6, specials}},
          {"u", {0, 1}},
          {"seeds", {-2147483648.0, 2147483647.0}},
          {"bits", {-2147483648.0, 2147483647.0}},
          {"ids", {0, 40}}}};
  c.f16 = false;  // precision is that of the logits
  return c;
}

}  // namespace

std::vector<Case> sample_cases() {
  Options greedy, top_k, top_p, min_p, all, penalty;
  greedy.temperature = "0.0";
  top_k.top_k = "1 + i % 50";
  top_p.top_p = "0.05 + 0.9 * %u[i]";
  min_p.min_p = "0.3 * %u[i]";
  all.top_k = "40 * (i % 3)";
  all.top_p = "0.5 + 0.5 * %u[i]";
  all.min_p = "0.1 * %u[i]";
  all.penalty = "0.8 + %u[i]";
  Options wild, wild_shares;  // of all sorts but the ones that check() lets through
  wild.temperature =
      "select(i % 5 == 0, -1.0, select(i % 5 == 1, %u[i] * 0.0000000000000000000000000000000000000001, select(i % 5 == 2, 1.0 / (%u[i] - %u[i]), select(i % 5 == 3, (%u[i] - %u[i]) / (%u[i] - %u[i]), 3.0e38))))";
  wild.top_p = wild.min_p = "0.5";
  wild_shares.top_p =
      "select(i % 3 == 0, 3.0 * %u[i] - 1.0, select(i % 3 == 1, (%u[i] - %u[i]) / (%u[i] - %u[i]), 0.7))";
  wild_shares.min_p = "select(i % 2 == 0, 3.0 * %u[i] - 1.0, 0.0)";
  wild_shares.penalty =
      "select(i % 4 == 0, -%u[i], select(i % 4 == 1, 1.0 / (%u[i] - %u[i]), 1.1))";
  wild_shares.top_k = "3 - i % 7";
  penalty.temperature = "0.0";
  penalty.penalty = "1.5";
  const std::string steps = "%x[i,j,k] - %x[i,j,k] + f32(k % 7)";  // each value many times
  std::vector<Case> cases = {
      make("greedy", greedy),
      make("greedy_f16", greedy, "f16"),
      make("greedy_specials", greedy, "f32", "%x[i,j,k]", true),
      make("greedy_equal", greedy, "f32", "%x[i,j,k] * 0.0"),
      make("penalty", penalty, "bf16"),
      make("plain", {}),
      make("plain_specials", {}, "f32", "%x[i,j,k]", true),
      make("top_k", top_k),
      make("top_k_equal", top_k, "f32", steps),
      make("top_p", top_p),
      make("top_p_equal", top_p, "f16", steps),
      make("min_p", min_p),
      make("all", all),
      make("all_equal", all, "f32", steps),
      make("wild", wild),
      make("wild_shares", wild_shares),
      make("never", {}, "f32", "-exp(1000.0) * (%x[i,j,k] * 0.0 + 1.0)"),
  };
  return cases;
}

}  // namespace tfcc::test

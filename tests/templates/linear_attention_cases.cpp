// SPDX-License-Identifier: Apache-2.0
// linear_attention: sizes of heads and channels, lengths around chunks, maps, masks, decays,
// normalisers, packed rows.
#include <fmt/format.h>

#include <cmath>

#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

struct Linear {
  int heads = 2, kv_heads = 2, d = 16, dv = 16;
  std::string how = "causal = true";  // attributes before heads, then those behind
  std::string maps = "", visible = "", extra = "", softmax = "";
  bool arena = true, cross = false, out_to_caller = false;
  bool may_lack_keys = false;  // k and v of a cross attention may have no token
  int most_tokens = 0;         // promised, in batches of up to two; 0: none
  bool state = false;          // sums before the first token, and those after the last
};

const std::string kElu = "(s,b,h,t,c) => select(s < 0.0, exp(s), s + 1.0)";
const std::string kNormal = "epilogue = (s,z,b,h,t,c) => s / (z + 1e-06)";

Case make(const std::string& name, const Linear& a, std::vector<std::vector<int64_t>> shapes) {
  const std::string keys = a.cross ? "T" : "S";
  const int widths[] = {a.heads * a.d, a.kv_heads * a.d, a.kv_heads * a.dv};
  std::string inputs, body, operands;
  for (int t = 0; t < 3; ++t) {
    const char n = "qkv"[t];
    const std::string type = fmt::format("f32[B,{},{}]", t ? keys : "S", widths[t]);
    inputs += fmt::format("%{}: {}, ", n, type);
    if (a.arena)
      body += fmt::format(
          "  %{0}a = pointwise(%{0}) {{body = (i,j,k) => %{0}[i,j,k] * 0.5}} : {1}\n", n, type);
    operands += fmt::format("{}%{}{}", t ? ", " : "", n, a.arena ? "a" : "");
  }
  const std::string sums = fmt::format(
      "f32[B,{},{},{}]", a.kv_heads,
      a.dv + (a.how.find("(z") != a.how.npos || a.how.find("abs(z)") != a.how.npos), a.d);
  if (a.state) inputs += fmt::format("%s: {}, ", sums);
  body += fmt::format(
      "  %y{} = linear_attention({}{}{}) {{{}, heads = {}{}, kv_heads = {}{}{}{}{}}} : f32[B,S,{}]{}\n",
      a.state ? ", %after" : "", operands, a.state ? ", %s" : "", a.extra, a.how, a.heads,
      a.maps.empty() ? "" : ", k_map = " + a.maps, a.kv_heads,
      a.maps.empty() ? "" : ", q_map = " + a.maps,
      a.softmax.empty() ? "" : ", softmax = " + a.softmax, a.state ? ", state = true" : "",
      a.visible.empty() ? "" : ", visible = (b,h,t) => " + a.visible, a.heads * a.dv,
      a.state ? ", " + sums : "");
  const bool reads_result = a.arena && !a.out_to_caller;
  if (reads_result)
    body +=
        fmt::format("  %w = pointwise(%y) {{body = (i,j,k) => %y[i,j,k] * 2.0}} : f32[B,S,{}]\n",
                    a.heads * a.dv);
  const std::string rest = fmt::format("%mask: i64[B,{0}], %g: f32[B,{0},{1}], %r: f32[B,S]",
                                       a.may_lack_keys ? "S" : keys, a.heads);
  Case c{"linear_attention_" + name,
         graph_text(
             inputs + rest,
             (a.most_tokens > 0 ? fmt::format("B = q.0 in 1..2, S = q.1 in 1..{}", a.most_tokens)
                                : std::string("B = q.0 in 1.., S = q.1 in 1..")) +
                 (!a.cross          ? ""
                  : a.may_lack_keys ? ", T = k.1 in 0.."
                                    : ", T = k.1 in 1.."),
             body,
             a.state ? std::vector<std::string>{reads_result ? "w" : "y", "after"}
                     : std::vector<std::string>{reads_result ? "w" : "y"}),
         std::move(shapes),
         {{"mask", {0, 1}}, {"g", {-0.2, 0}}},
         3e-6,
         1.2e-3};
  c.bf16 = true;
  return c;
}

/// Rows that a pack left, gathered from x and put back; two heads of d.
Case make_packed(const std::string& name, const std::string& how, const std::string& tail,
                 const std::string& kept, double live = 1, int d = 16) {
  const std::string text = fmt::format(
      "graph @packed(%x: f32[B,S,{6}], %mask: i64[B,S]) symbols(B = x.0 in 1.., S = x.1 in 1.., T <= (B*S) in 1.. as packed) {{\n"
      "  flag 0 \"a packed row lies outside\"\n"
      "  %row, %cu, %keys, %order, %seq, %pos = pack(%mask) {{{2}live = (i,j) => %mask[i,j] == 1}} : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n"
      "  %h = pointwise(%x, %seq, %pos) {{body = (i,j,k) => %x[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k] * 0.5}} : f32[1,T,{6}]\n"
      "  %q = pointwise(%h) {{body = (i,j,k) => %h[i,j,k]}} : f32[1,T,{4}]\n"
      "  %k = pointwise(%h) {{body = (i,j,k) => %h[i,j,k + {4}]}} : f32[1,T,{4}]\n"
      "  %v = pointwise(%h) {{body = (i,j,k) => %h[i,j,k + {5}]}} : f32[1,T,{4}]\n"
      "  %a = linear_attention(%q, %k, %v, %cu, %keys, %order, %pos) {{{0}, heads = 2, k_map = {3}, kv_heads = 2, packed = [B,S], q_map = {3}{1}}} : f32[1,T,{4}]\n"
      "  %y = pointwise(%row, %a) {{body = (i,j,k) => select(0 <= %row[i,j], %a[0,bounded(%row[i,j], T, 0),k], 0.0)}} : f32[B,S,{4}]\n"
      "  return y = %y, row = %row\n}}\n",
      how, tail, kept, kElu, 2 * d, 4 * d, 6 * d);
  std::vector<std::vector<int64_t>> shapes = {{1, 1}, {2, 5}, {3, 33}, {2, 130}, {40, 9}, {3, 200}};
  if (d >= 64) shapes = {{1, 1}, {3, 33}, {3, 200}, {2, 1300}};
  Case c{"linear_attention_packed_" + name, text, shapes, {{"mask", {1 - live, 1}}}, 3e-6, 1.2e-3};
  c.bf16 = true;
  return c;
}

/// Rows of sequences that go on with what slots of a state hold: of uneven numbers, some with no
/// state before them, some that keep none.
Case make_step(const std::string& name, const Linear& a, std::vector<std::vector<int64_t>> shapes) {
  const bool sums = a.how.find("(z") != a.how.npos;
  const std::string state = fmt::format("f32[P,{},{},{}]", a.kv_heads, a.dv + sums, a.d);
  std::string body =
      "  %first = pointwise() {body = (i) => select(i == B, B*S, i*S - i*7 % S)} : i32[B + 1]\n"
      "  %from = pointwise() {body = (i) => select(i % 3 == 2, -1, 2*i)} : i32[B]\n"
      "  %to = pointwise() {body = (i) => select(i % 4 == 3, P, 2*i + 1)} : i32[B]\n";
  const int widths[] = {a.heads * a.d, a.kv_heads * a.d, a.kv_heads * a.dv};
  std::string inputs, operands;
  for (int t = 0; t < 3; ++t) {
    const char n = "qkv"[t];
    inputs += fmt::format("%{}: f32[B,S,{}], ", n, widths[t]);
    body += fmt::format(
        "  %{0}a = pointwise(%{0}) {{body = (i,j,k) => %{0}[j / S,j % S,k] * 0.5}} : f32[1,B*S,{1}]\n",
        n, widths[t]);
    operands += fmt::format("%{}a, ", n);
  }
  const std::string y = fmt::format("f32[1,B*S,{}]", a.heads * a.dv);
  body += "  %r1 = pointwise(%g) {body = (i,j) => %g[0,j,0]} : f32[1,B*S]\n";
  body += fmt::format(
      "  %y1, %sums = linear_attention_step({}%first, %from, %to, %s{}) {{{}, heads = {}{}, kv_heads = {}{}{}}} : {}, {}\n",
      operands, a.extra, a.how, a.heads, a.maps.empty() ? "" : ", k_map = " + a.maps, a.kv_heads,
      a.maps.empty() ? "" : ", q_map = " + a.maps,
      a.softmax.empty() ? "" : ", softmax = " + a.softmax, y, state);
  body += fmt::format("  %y = pointwise(%y1) {{body = (i,j,k) => %y1[i,j,k] * 2.0}} : {}\n", y);
  Case c{
      "linear_attention_step_" + name,
      fmt::format(
          "graph @steps({}%s: {}, %g: f32[1,B*S,{}]) symbols(B = q.0 in 1.., S = q.1 in 1.., P = s.0 in 1.., tokens = (B*S) in 1.. as tokens) {{\n{}  return y = %y, s = %sums\n}}\n",
          inputs, state, a.heads, body),
      std::move(shapes),
      {{"g", {-0.2, 0}}},
      3e-6,
      1.2e-3};
  c.bf16 = true;
  return c;
}

/// The delta rule: sequences of a batch with sums before and after them or without, and steps. Keys
/// are short, so that a beta corrects.
void add_delta(std::vector<Case>& cases, const std::vector<std::vector<int64_t>>& steps) {
  const std::vector<std::vector<int64_t>> shapes = {{1, 1}, {3, 17}, {2, 65}, {1, 300}};
  const std::string
      beta = "beta = (b,h,t) => 0.5 + 0.4 * cos(f32(b + h + t)), causal = true",
      by_token = "beta = (b,h,t) => exp(%g[b,t,h]), causal = true, decay = (b,h,t) => %g[b,t,h]";
  Linear a;
  const auto add = [&](const std::string& name, const std::string& how, Linear x, bool step) {
    x.how = how;
    x.maps = fmt::format("(s,b,h,t,c) => s * {:.3f}", 2.5 / std::sqrt(x.d));
    if (how.find("%g") != how.npos) x.extra = ", %g";
    cases.push_back(make("delta_" + name, x, shapes));
    x.state = true;
    cases.push_back(make("delta_" + name + "_of_states", x, shapes));
    x.state = false;
    if (step) cases.push_back(make_step("delta_" + name, x, steps));
  };
  add("plain", beta, a, true);
  for (const auto& [d, dv] : std::vector<std::pair<int, int>>{
           {16, 16}, {64, 64}, {128, 128}, {128, 160}, {256, 40}, {512, 24}, {20, 12}, {7, 5}}) {
    Linear x = a;
    x.d = d, x.dv = dv;
    add(fmt::format("sizes_{}_{}", d, dv), by_token, x, true);
  }
  Linear shared = a;
  shared.heads = 4, shared.d = 64, shared.dv = 128;
  add("heads_share_keys",
      "beta = (b,h,t) => exp(%g[b,t,h]), causal = true, decay = (b,h,t) => %g[b,t,h / 2]", shared,
      true);
  Linear caller = a;
  caller.arena = false;
  add("memory_of_the_caller", by_token, caller, false);
  // Sums with no delta rule.
  Linear sums;
  sums.state = true;
  cases.push_back(make("of_states", sums, shapes));
  sums.maps = kElu;
  sums.how =
      "causal = true, decay = (b,h,t) => %g[b,t,h], epilogue = (s,z,b,h,t,c) => s / max(abs(z), 1.0)";
  sums.extra = ", %g";
  cases.push_back(make("of_states_normalised", sums, shapes));
}

/// Softmax over the features of q, of k or of both, in each form: with and without maps behind it,
/// of hidden keys, of heads that no tile has whole, and of states.
void add_softmax(std::vector<Case>& cases) {
  const std::vector<std::vector<int64_t>> shapes = {{1, 1}, {2, 65}, {3, 130}},
                                          steps = {{1, 1, 2}, {5, 1, 11}, {3, 7, 6}, {4, 33, 8}};
  Linear a;
  // Of few tokens the sum of weights is below 1, so that a wrong scale of q is seen.
  a.how = "causal = true, epilogue = (s,z,b,h,t,c) => s / max(abs(z), 1.0)";
  const auto add = [&](const std::string& name, const std::string& softmax, int d, int dv) {
    a.softmax = softmax, a.d = d, a.dv = dv;
    cases.push_back(make("softmax_" + name, a, shapes));
  };
  for (int d : {7, 16, 20, 64, 80, 128, 256, 512})
    add(fmt::format("of_both_{}", d), "both", d, d < 64 ? 16 : 64);
  add("of_q", "q", 64, 64);
  add("of_k", "k", 64, 64);
  Linear faded = a;
  faded.how = "causal = true, decay = (b,h,t) => %g[b,t,h]", faded.extra = ", %g";
  faded.softmax = "both";
  for (int d : {16, 64, 128}) {
    faded.d = faded.dv = d;
    cases.push_back(make(fmt::format("softmax_and_decay_{}", d), faded, shapes));
    cases.push_back(make_step(fmt::format("softmax_and_decay_{}", d), faded, steps));
  }
  Linear shared = a;
  shared.heads = 4, shared.kv_heads = 2, shared.d = shared.dv = 64, shared.softmax = "both";
  cases.push_back(make("softmax_heads_share_keys", shared, shapes));
  Linear wide = a;
  wide.heads = wide.kv_heads = 8, wide.d = wide.dv = 128, wide.softmax = "both";
  cases.push_back(make("softmax_128_of_8_heads", wide, {{1, 65}, {2, 600}}));
  a.maps = "(s,b,h,t,c) => s * (1.0 + f32(c) * 0.01)";
  for (int d : {12, 64, 128, 256}) add(fmt::format("and_map_{}", d), "both", d, 64);
  a.how = "causal = false, " + kNormal;
  a.visible = "%mask[b,t] == 1", a.extra = ", %mask";
  for (int d : {16, 64, 128}) add(fmt::format("padding_{}", d), "both", d, 64);
  a.visible = a.extra = "";
  a.how = "causal = true, epilogue = (s,z,b,h,t,c) => s / max(abs(z), 1.0)";
  a.heads = 4;
  for (int d : {7, 16, 20, 64, 128, 512}) {
    a.softmax = "both", a.d = d, a.dv = 24;
    cases.push_back(make_step(fmt::format("softmax_{}", d), a, steps));
  }
  a.maps = "", a.softmax = "q";
  cases.push_back(make_step("softmax_of_q", a, steps));
}

}  // namespace

std::vector<Case> linear_attention_cases() {
  std::vector<Case> cases;
  const std::vector<std::vector<int64_t>> lengths = {{1, 1},  {2, 15}, {1, 16},  {2, 63},
                                                     {1, 64}, {3, 65}, {1, 130}, {1, 300}};
  const auto add =
      [&](const std::string& name, const Linear& a,
          std::vector<std::vector<int64_t>> shapes = {{2, 1}, {2, 64}, {1, 100}, {1, 200}}) {
        cases.push_back(make(name, a, std::move(shapes)));
      };
  Linear a;
  add("lengths", a, lengths);
  a.maps = kElu, a.how = "causal = true, " + kNormal;
  add("elu_normalised", a, lengths);
  Linear caller = a;
  caller.arena = false;
  add("memory_of_the_caller", caller);
  Linear all = a;
  all.how = "causal = false, " + kNormal;
  add("all_tokens", all, lengths);
  all.visible = "%mask[b,t] == 1", all.extra = ", %mask";
  add("padding", all, lengths);
  all.cross = true;
  add("cross", all, {{1, 1, 1}, {2, 65, 3}, {2, 7, 130}, {1, 64, 64}});
  Linear hidden = a;
  hidden.visible = "%mask[b,t] == 1", hidden.extra = ", %mask";
  add("padding_causal", hidden, lengths);
  Linear gated = a;
  gated.maps = "", gated.how = "causal = true, decay = (b,h,t) => %g[b,t,h]", gated.extra = ", %g";
  add("decay_by_token", gated, lengths);
  gated.how =
      "causal = true, decay = (b,h,t) => f32(h) * -0.125 - 0.01, epilogue = (s,z,b,h,t,c) => s / max(abs(z), 1.0)",
  gated.extra = "";
  add("decay_by_head", gated, lengths);
  Linear shared = a;
  shared.heads = 4, shared.kv_heads = 2;
  add("heads_share_keys", shared);
  Linear row = a;
  row.how = "causal = true, epilogue = (s,z,b,h,t,c) => s * %r[b,t] + f32(c) * 0.01 + f32(h)",
  row.extra = ", %r";
  add("epilogue_of_places", row);
  for (const auto& [d, dv] : std::vector<std::pair<int, int>>{{64, 64},
                                                              {128, 128},
                                                              {64, 128},
                                                              {128, 64},
                                                              {32, 80},
                                                              {20, 12},
                                                              {7, 5},
                                                              {96, 160},
                                                              {256, 256},
                                                              {256, 40},
                                                              {512, 64}}) {
    Linear x = a;
    x.d = d, x.dv = dv;
    add(fmt::format("sizes_{}_{}", d, dv), x, {{1, 1}, {2, 65}, {1, 150}});
  }
  Linear wide = gated;
  wide.d = wide.dv = 128;
  add("wide_decay", wide);
  // Several spans of a sequence, by one block or by several.
  const std::vector<std::vector<int64_t>> spans = {{1, 512},  {1, 513},  {2, 1100}, {1, 4096},
                                                   {1, 4097}, {1, 9300}, {40, 1100}};
  add("spans", a, spans);
  add("spans_decay", gated, spans);
  Linear by_token = gated;
  by_token.how = "causal = true, decay = (b,h,t) => %g[b,t,h]", by_token.extra = ", %g";
  add("spans_decay_by_token", by_token, spans);
  Linear every = all;
  every.cross = false;
  add("spans_all_tokens", every, spans);
  Linear wide_spans = a;
  wide_spans.d = wide_spans.dv = 128;
  add("spans_wide", wide_spans, {{1, 4700}, {34, 600}});
  wide_spans.heads = wide_spans.kv_heads = 8;
  add("spans_wide_of_8_heads", wide_spans, {{1, 1100}, {6, 520}});
  wide_spans.d = 64;
  add("spans_64_128_of_8_heads", wide_spans, {{1, 1100}, {6, 520}});
  wide_spans.dv = 64;
  add("spans_64_of_8_heads", wide_spans, {{1, 1100}, {2, 2000}, {2, 2300}});
  // Of promised sizes, by shorter spans.
  for (const auto& [most, shapes] : std::vector<std::pair<int, std::vector<std::vector<int64_t>>>>{
           {1000, {{1, 1000}, {2, 777}, {2, 513}, {1, 512}, {2, 128}}},
           {4000, {{1, 4000}, {2, 2100}, {1, 770}}}}) {
    Linear promised = a;
    promised.heads = promised.kv_heads = 4, promised.d = promised.dv = 64;
    promised.most_tokens = most;
    add(fmt::format("spans_of_{}_tokens", most), promised, shapes);
    promised.d = promised.dv = 128;
    add(fmt::format("spans_of_{}_tokens_wide", most), promised, shapes);
    promised.maps = "", promised.how = by_token.how, promised.extra = by_token.extra;
    add(fmt::format("spans_of_{}_tokens_decay_wide", most), promised, shapes);
    promised.d = promised.dv = 64;
    add(fmt::format("spans_of_{}_tokens_decay", most), promised, shapes);
  }
  // Heads that warpgroups take: without maps, with a result in the caller's memory, over all
  // tokens, with hidden and shared keys, and with a decay.
  const auto of_64 = [](Linear x) {
    x.d = x.dv = 64;
    return x;
  };
  const std::vector<std::vector<int64_t>> few = {{1, 64}, {2, 130}, {1, 1100}};
  Linear bare = of_64(Linear{});
  add("64_bare", bare, few);
  bare.heads = bare.kv_heads = 47;
  add("64_of_47_heads", bare, {{1, 600}});
  Linear sums = of_64(a);
  sums.out_to_caller = true;
  add("64_result_of_the_caller", sums, few);
  sums.heads = sums.kv_heads = 16, sums.d = sums.dv = 128;
  add("128_result_of_the_caller", sums, {{1, 65}, {1, 600}});
  Linear uneven = of_64(a);
  uneven.d = 128, uneven.dv = 192;
  add("sizes_128_192", uneven, {{1, 65}, {1, 600}});
  add("64_all_tokens", of_64(every), few);
  Linear crossed = of_64(every);
  crossed.cross = true;
  add("64_cross", crossed, {{1, 1, 1}, {2, 65, 3}, {1, 130, 1100}});
  crossed.may_lack_keys = true, crossed.visible = crossed.extra = "";
  add("64_cross_without_keys", crossed, {{1, 1, 0}, {2, 65, 3}, {3, 130, 0}});
  add("64_padding", of_64(hidden), few);
  add("64_heads_share_keys", of_64(shared), few);
  add("64_decay", of_64(gated), few);
  add("64_decay_by_token", of_64(by_token), few);
  const auto of = [](Linear x, int heads, int d, int dv) {
    x.heads = x.kv_heads = heads, x.d = d, x.dv = dv;
    return x;
  };
  add("128_all_tokens", of(every, 2, 128, 128), few);
  add("256_all_tokens", of(every, 2, 256, 64), {{1, 64}, {1, 600}});
  add("512_all_tokens", of(every, 1, 512, 64), {{1, 64}, {2, 600}});
  Linear widest = of(sums, 2, 512, 128);
  add("512_result_of_the_caller", widest, {{1, 65}, {1, 600}});
  add("512_padding", of(hidden, 2, 512, 64), few);
  add("512_bare", of(Linear{}, 2, 512, 64), few);
  add("128_decay", of(by_token, 2, 128, 128), {{1, 600}, {1, 2100}});
  add("64_128_decay_of_8_heads", of(by_token, 8, 64, 128), {{1, 600}, {1, 2100}});
  add("128_decay_of_16_heads", of(gated, 16, 128, 128), {{1, 600}, {3, 1100}});
  cases.push_back(
      make_packed("all_tokens", "causal = false, " + kNormal, "", "kept = (i,j) => j == 0, "));
  cases.push_back(make_packed("causal", "causal = true, " + kNormal, "", ""));
  cases.push_back(
      make_packed("few", "causal = false, " + kNormal, "", "kept = (i,j) => j == 0, ", 9));
  cases.push_back(make_packed("64_all_tokens", "causal = false, " + kNormal, "",
                              "kept = (i,j) => j == 0, ", 1, 64));
  cases.push_back(make_packed("64_causal", "causal = true, " + kNormal, "", "", 1, 64));
  cases.push_back(make_packed("128_causal", "causal = true", "", "", 1, 128));
  for (int d : {16, 64})
    for (const bool kept : {false, true})
      cases.push_back(make_packed(fmt::format("softmax_{}{}", d, kept ? "_kept" : ""),
                                  (kept ? "causal = false, " : "causal = true, ") + kNormal,
                                  ", softmax = both", kept ? "kept = (i,j) => j == 0, " : "", 1,
                                  d));
  // Batch, tokens, slots.
  const std::vector<std::vector<int64_t>> steps = {{1, 1, 2},  {5, 1, 11},  {3, 7, 6},
                                                   {4, 33, 8}, {1, 200, 2}, {70, 2, 140}};
  const auto add_step = [&](const std::string& name, const Linear& x) {
    cases.push_back(make_step(name, x, steps));
  };
  add_step("sums", Linear{});
  Linear kept = a;  // what a state holds may sum to nothing
  kept.how = "causal = true, epilogue = (s,z,b,h,t,c) => s / max(abs(z), 1.0)";
  add_step("elu_normalised", kept);
  add_step("decay_by_head", gated);
  Linear faded = by_token;
  faded.how = "causal = true, decay = (b,h,t) => %g[b,t,h]";
  add_step("decay_by_token", faded);
  Linear grouped = kept;
  grouped.heads = 4, grouped.kv_heads = 2;
  add_step("heads_share_keys", grouped);
  grouped.how = "causal = true, decay = (b,h,t) => %r1[0,t] - 1.0";
  grouped.extra = ", %r1";
  add_step("heads_share_keys_and_a_decay", grouped);
  for (const auto& [d, dv] : std::vector<std::pair<int, int>>{
           {64, 64}, {128, 160}, {256, 40}, {512, 24}, {20, 12}, {7, 5}, {64, 40}, {128, 24}}) {
    Linear x = kept;
    x.d = d, x.dv = dv;
    add_step(fmt::format("sizes_{}_{}", d, dv), x);
  }
  // More tiles than a GPU has blocks, so that each takes several; few tokens, and some more than
  // are there at a time.
  Linear many = of(kept, 4, 128, 160);
  cases.push_back(make_step("many_tiles", many, {{128, 1, 256}, {42, 3, 84}, {25, 5, 50}}));
  add_softmax(cases);
  add_delta(cases, steps);
  return cases;
}

}  // namespace tfcc::test

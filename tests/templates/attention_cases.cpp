// SPDX-License-Identifier: Apache-2.0
// attention: head sizes, groups of heads, lengths around the tiles, scores and masks of every
// class.
#include <fmt/format.h>

#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

/// Builds one attention; q, k, v are inputs, or copies of them in the arena.
struct Attention {
  int heads = 2, kv_heads = 2, d = 16, dv = 16;
  std::string score = "s * 0.25", sink = "", visible = "none", extra = "";
  bool causal = false, key_padding = false, arena = true, cross = false;
  int left = -1, right = -1;
  bool dead_infinite = false;  // keys and values where %mask is 0
  bool may_lack_keys = false;  // a cross attention's memory may have no token
};

std::string text_of(const Attention& a) {
  const std::string keys = a.cross ? "T" : "S";
  const int widths[] = {a.heads * a.d, a.kv_heads * a.d, a.kv_heads * a.dv};
  std::string inputs, body, operands;
  for (int t = 0; t < 3; ++t) {
    const char name = "qkv"[t];
    const std::string type = fmt::format("f32[B,{},{}]", t ? keys : "S", widths[t]);
    inputs += fmt::format("%{}: {}, ", name, type);
    if (a.arena && t > 0 && a.dead_infinite)
      body += fmt::format(
          "  %{0}a = pointwise(%{0}, %mask) {{body = (i,j,k) => %{0}[i,j,k] / f32(%mask[i,j])}} : {1}\n",
          name, type);
    else if (a.arena)
      body += fmt::format(
          "  %{0}a = pointwise(%{0}) {{body = (i,j,k) => %{0}[i,j,k] * 2.0}} : {1}\n", name, type);
    operands += fmt::format("{}%{}{}", t ? ", " : "", name, a.arena ? "a" : "");
  }
  const std::string visible = a.visible == "none" ? "none" : "(b,h,i,j) => " + a.visible;
  const std::string call = fmt::format(
      "attention({}{}) {{causal = {}, heads = {}, key_padding = {}, kv_heads = {}, score = "
      "(s,b,h,i,j) => {}, {}visible = {}{}{}}} : f32[B,S,{}]",
      operands, a.extra, a.causal, a.heads, a.key_padding, a.kv_heads, a.score,
      a.sink.empty() ? "" : fmt::format("sink = (b,h) => {}, ", a.sink), visible,
      a.left < 0 ? "" : fmt::format(", window_left = {}", a.left),
      a.right < 0 ? "" : fmt::format(", window_right = {}", a.right), a.heads * a.dv);
  body += fmt::format("  %y = {}\n", call);
  if (a.arena)
    body +=
        fmt::format("  %w = pointwise(%y) {{body = (i,j,k) => %y[i,j,k] * 2.0}} : f32[B,S,{}]\n",
                    a.heads * a.dv);
  const std::string rest = fmt::format("%mask: i64[B,{0}], %m: f32[B,{0}], %p: f32[S,{0}]",
                                       a.may_lack_keys ? "S" : keys);
  return graph_text(
      inputs + rest,
      std::string("B = q.0 in 1.., S = q.1 in 1..") + (!a.cross          ? ""
                                                       : a.may_lack_keys ? ", T = k.1 in 0.."
                                                                         : ", T = k.1 in 1.."),
      body, a.arena ? std::vector<std::string>{"w"} : std::vector<std::string>{"y"});
}

std::vector<std::vector<int64_t>> lengths(std::vector<int64_t> list) {
  std::vector<std::vector<int64_t>> shapes;
  for (int64_t s : list) shapes.push_back({1 + s % 3 % 2, s});
  return shapes;
}

Case make(const std::string& name, const Attention& a, std::vector<std::vector<int64_t>> shapes) {
  // Masks of 0 and 1, more 1 than 0; biases of a few units.
  return {"attention_" + name,
          text_of(a),
          std::move(shapes),
          {{"mask", {0, 1}}, {"m", {-4, 4}}, {"p", {-4, 4}}},
          3e-6,
          8e-4};
}

/// The same over rows that a pack left: gathered from x, attended to, and put back. A row of x is
/// `factor` times what it is.
// Sequence b has `past + b` tokens in the cache and S new ones; its pages lie anywhere, every other
// one is nobody's. Everything that a scheduler would compute follows from sizes; what the cache
// holds is random.
Case make_paged(const std::string& name, const std::string& how, int past, int d = 8, int dv = 8,
                int heads = 4, int kv_heads = 2, int page = 64, bool f32_alone = false) {
  const std::string text = fmt::format(
      "graph @paged(%x: f32[B,S,{q}], %k: f32[B,S,{kw}], %v: f32[B,S,{vw}], %kc: f32[P,{kv},{page},{d}], %vc: f32[P,{kv},{page},{dv}]) symbols(B = x.0 in 1.., S = x.1 in 1.., P = kc.0 in 1.., tokens = (B*S) in 1.. as tokens) {{\n"
      "  %cu = pointwise() {{body = (i) => i*S}} : i32[B + 1]\n"
      "  %n = pointwise() {{body = (i) => {past} + i + S}} : i32[B]\n"
      "  %order = pointwise() {{body = (i) => B - 1 - i}} : i32[B]\n"
      "  %pos = pointwise() {{body = (i) => {past} + i / S + i % S}} : i32[B*S]\n"
      "  %table = pointwise() {{body = (i,j) => (7*(i + B*j) + 3) % P}} : i32[B,({past} + B + S) / {page} + 1]\n"
      "  %slots = pointwise() {{body = (i) => (7*(i / S + B*(({past} + i / S + i % S) / {page})) + 3) % P * {page} + ({past} + i / S + i % S) % {page}}} : i32[B*S]\n"
      "  %q1 = pointwise(%x) {{body = (i,j,k) => %x[j / S,j % S,k] * 2.0}} : f32[1,B*S,{q}]\n"
      "  %k1 = pointwise(%k) {{body = (i,j,k) => %k[j / S,j % S,k] * 2.0}} : f32[1,B*S,{kw}]\n"
      "  %v1 = pointwise(%v) {{body = (i,j,k) => %v[j / S,j % S,k] * 2.0}} : f32[1,B*S,{vw}]\n"
      "  %keys, %values = kv_append(%kc, %vc, %k1, %v1, %slots) : f32[P,{kv},{page},{d}], f32[P,{kv},{page},{dv}]\n"
      "  %a = attention(%q1, %keys, %values, %cu, %n, %order, %pos, %table) {{heads = {h}, key_padding = false, kv_heads = {kv}, packed = [B,{page}*(({past} + B + S) / {page} + 1)], page = {page}, {how}}} : f32[1,B*S,{ow}]\n"
      "  %y = pointwise(%a) {{body = (i,j,k) => %a[0,S*i + j,k] * 2.0}} : f32[B,S,{ow}]\n"
      "  return y = %y, kc = %keys, vc = %values\n}}\n",
      fmt::arg("q", heads * d), fmt::arg("kw", kv_heads * d), fmt::arg("vw", kv_heads * dv),
      fmt::arg("ow", heads * dv), fmt::arg("d", d), fmt::arg("dv", dv), fmt::arg("h", heads),
      fmt::arg("kv", kv_heads), fmt::arg("page", page), fmt::arg("past", past),
      fmt::arg("how", how));
  // Pages enough, and a number that 7 does not divide, so that all in use are different.
  Case c{"attention_paged_" + name,
         text,
         {{1, 1, 29}, {3, 1, 29}, {2, 17, 29}, {1, 130, 29}, {5, 9, 62}},
         {},
         3e-6,
         8e-4};
  c.f16 = !f32_alone;
  c.bf16 = !f32_alone;
  return c;
}

/// A step of sequences that go on beside others that begin: every fourth has 40 new tokens, the others
/// one. `order` is no order of lengths: it decides what is computed first, not what is computed.
Case make_mixed(const std::string& name, const std::string& how, int past, int d, int heads,
                int kv_heads) {
  const std::string text = fmt::format(
      "graph @mixed(%x: f32[T,{q}], %k: f32[T,{kw}], %v: f32[T,{kw}], %kc: f32[P,{kv},64,{d}], %vc: f32[P,{kv},64,{d}], %many: f32[B]) symbols(T = x.0 in 1.. as tokens, P = kc.0 in 1.., B = many.0 in 1..) {{\n"
      "  %cu = pointwise() {{body = (i) => i + 39*((i + 3) / 4)}} : i32[B + 1]\n"
      "  %n = pointwise() {{body = (i) => select(i % 4 == 0, {past} + i + 40, {past} + i + 1)}} : i32[B]\n"
      "  %order = pointwise() {{body = (i) => B - 1 - i}} : i32[B]\n"
      "  %seq = pointwise() {{body = (i) => select(i % 43 <= 39, 4*(i / 43), 4*(i / 43) + i % 43 - 39)}} : i32[T]\n"
      "  %pos = pointwise(%seq) {{body = (i) => {past} + %seq[i] + select(i % 43 <= 39, i % 43, 0)}} : i32[T]\n"
      "  %table = pointwise() {{body = (i,j) => (7*(i + B*j) + 3) % P}} : i32[B,({past} + B + 40) / 64 + 1]\n"
      "  %slots = pointwise(%seq, %pos) {{body = (i) => (7*(%seq[i] + B*(%pos[i] / 64)) + 3) % P * 64 + %pos[i] % 64}} : i32[T]\n"
      "  %q1 = pointwise(%x) {{body = (i,j,k) => %x[j,k] * 2.0}} : f32[1,T,{q}]\n"
      "  %k1 = pointwise(%k) {{body = (i,j,k) => %k[j,k] * 2.0}} : f32[1,T,{kw}]\n"
      "  %v1 = pointwise(%v) {{body = (i,j,k) => %v[j,k] * 2.0}} : f32[1,T,{kw}]\n"
      "  %keys, %values = kv_append(%kc, %vc, %k1, %v1, %slots) : f32[P,{kv},64,{d}], f32[P,{kv},64,{d}]\n"
      "  %a = attention(%q1, %keys, %values, %cu, %n, %order, %pos, %table) {{heads = {h}, key_padding = false, kv_heads = {kv}, packed = [B,64*(({past} + B + 40) / 64 + 1)], page = 64, {how}}} : f32[1,T,{q}]\n"
      "  %y = pointwise(%a) {{body = (i,j) => %a[0,i,j] * 2.0}} : f32[T,{q}]\n"
      "  return y = %y, kc = %keys, vc = %values\n}}\n",
      fmt::arg("q", heads * d), fmt::arg("kw", kv_heads * d), fmt::arg("d", d),
      fmt::arg("h", heads), fmt::arg("kv", kv_heads), fmt::arg("past", past), fmt::arg("how", how));
  // Tokens, pages and sequences that fit each other: 86 tokens are few, the others are not.
  Case c{"attention_mixed_" + name,
         text,
         {{86, 100, 8}, {172, 142, 16}, {212, 230, 17}, {43 * 34, 1300, 136}},
         {},
         3e-6,
         8e-4};
  c.bf16 = true;
  return c;
}

Case make_packed(const std::string& name, const std::string& how, const std::string& operands = "",
                 double live = 1, int d = 8, const std::string& factor = "2.0") {
  const std::string text = fmt::format(
      "graph @packed(%x: f32[B,S,{2}], %mask: i64[B,S], %p: f32[S,S]) symbols(B = x.0 in 1.., S = x.1 in 1.., T <= (B*S) in 1.. as packed) {{\n"
      "  flag 0 \"a packed row lies outside\"\n"
      "  %row, %cu, %keys, %order, %seq, %pos = pack(%mask) {{kept = (i,j) => j == 0, live = (i,j) => %mask[i,j] == 1}} : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n"
      "  %h = pointwise(%x, %seq, %pos) {{body = (i,j,k) => %x[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k] * {3}}} : f32[1,T,{2}]\n"
      "  %q = pointwise(%h) {{body = (i,j,k) => %h[i,j,k]}} : f32[1,T,{0}]\n"
      "  %k = pointwise(%h) {{body = (i,j,k) => %h[i,j,k + {0}]}} : f32[1,T,{0}]\n"
      "  %v = pointwise(%h) {{body = (i,j,k) => %h[i,j,k + {1}]}} : f32[1,T,{0}]\n"
      "  %a = attention(%q, %k, %v, %cu, %keys, %order, %pos{4}) {{heads = 2, key_padding = false, kv_heads = 2, packed = [B,S], {5}}} : f32[1,T,{0}]\n"
      "  %y = pointwise(%row, %a) {{body = (i,j,k) => select(0 <= %row[i,j], %a[0,bounded(%row[i,j], T, 0),k], 0.0)}} : f32[B,S,{0}]\n"
      "  return y = %y, row = %row, cu = %cu, keys = %keys, order = %order\n}}\n",
      2 * d, 4 * d, 6 * d, factor, operands, how);
  std::vector<std::vector<int64_t>> shapes = {{1, 1}, {2, 5}, {3, 33}, {2, 130}, {40, 9}, {70, 2}};
  if (d >= 64) shapes = {{1, 1}, {3, 70}, {2, 130}, {2, 300}, {3, 200}};
  return {"attention_packed_" + name,
          text,
          shapes,
          {{"mask", {1 - live, 1}}, {"p", {-4, 4}}},
          3e-6,
          8e-4};
}

/// What executes heads of 64 and 128 by warpgroups: the same questions, at lengths around tiles of
/// 64 keys and blocks of 64 and 128 queries. A batch of at most 128 keys takes the mma.sync form,
/// so `pairs` are batches of two with more.
void add_warpgroups(std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, const Attention& a,
                       std::vector<int64_t> list = {33, 64, 65, 129, 330}) {
    cases.push_back(make("wide_" + name, a, lengths(list)));
  };
  Attention a;
  a.d = a.dv = 64, a.score = "s * 0.125";
  const std::vector<std::vector<int64_t>> pairs = {{2, 150}, {2, 193}, {2, 300}};
  const auto add_pairs = [&](const std::string& name, const Attention& x) {
    cases.push_back(make("wide_" + name + "_pairs", x, pairs));
  };
  add("lengths", a, {33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 321, 385, 700});
  Attention c = a;
  c.visible = "j <= i", c.causal = true;
  add("causal", c);
  c.visible = "j <= i and i <= j + 70", c.left = 70;
  add("causal_window", c);
  add_pairs("causal_window", c);
  Attention pad = a;
  pad.visible = "%mask[b,j] == 1", pad.key_padding = true, pad.extra = ", %mask";
  pad.heads = 4, pad.dead_infinite = true;
  add("dead_infinite", pad);
  cases.back().fills["mask"] = {-20, 1};
  add_pairs("dead_infinite", pad);
  cases.back().fills["mask"] = {-20, 1};
  pad.d = pad.dv = 128, pad.kv_heads = 1;
  add_pairs("d128_dead_infinite", pad);
  cases.back().fills["mask"] = {-3, 1};
  pad.visible = "j <= i and i <= j + 90 and %mask[b,j] == 1", pad.causal = true, pad.left = 90;
  add_pairs("d128_dead_infinite_causal_window", pad);
  cases.back().fills["mask"] = {0, 1};
  pad.d = pad.dv = 64, pad.kv_heads = 2;
  add_pairs("dead_infinite_causal_window", pad);
  cases.back().fills["mask"] = {0, 1};
  pad.visible = "j <= i and i <= j + 90 and %mask[b,j] == 1 and f32(%mask[b,j]) * 2.0 > %m[b,j]",
  pad.extra = ", %mask, %m";
  add_pairs("long_condition", pad);
  Attention score = a;
  score.score = "s * 0.125 + %p[i,j] * f32(h + 1)", score.visible = "%p[i,j] < 3.0",
  score.extra = ", %p";
  add("score", score);
  add_pairs("score", score);
  score.d = score.dv = 128;
  add("d128_score", score, {33, 130});
  // What is added depends on the distance alone: a line of the table, arithmetic, beside a mask.
  Attention distance = a;
  distance.score = "s * 0.125 + %m[b,abs(j - i)] * f32(h + 1)", distance.extra = ", %m";
  add("distance", distance, {33, 64, 65, 127, 129, 193, 330});
  add_pairs("distance", distance);
  distance.d = distance.dv = 128;
  add("d128_distance", distance, {33, 130, 200});
  distance = a, distance.score = "%m[b,0] * 0.125 * s - f32(j - i) * 0.0625",
  distance.extra = ", %m";
  distance.visible = "j <= i and i <= j + 100", distance.causal = true, distance.left = 100;
  add("distance_causal_window", distance);
  add_pairs("distance_causal_window", distance);
  distance = a, distance.score = "s * 0.125 - f32(j - i) * 0.0625 + %p[i,j]";
  distance.extra = ", %p, %mask", distance.visible = "%mask[b,j] == 1";
  distance.key_padding = true;
  add_pairs("distance_and_place", distance);
  Attention d128 = a;
  d128.d = d128.dv = 128;
  add("d128", d128, {65, 127, 130, 191, 193, 256, 400});
  Attention mixed = a;
  mixed.heads = 4, mixed.dv = 128;
  add("v128", mixed, {33, 200});
  mixed.d = 128, mixed.dv = 64, mixed.kv_heads = 1, mixed.visible = "j <= i", mixed.causal = true;
  add("d128_v64_one_key_head", mixed, {33, 200});
  Attention cross = a;
  cross.cross = true;
  cases.push_back(make("wide_cross", cross, {{1, 40, 1}, {2, 130, 65}, {1, 64, 300}}));
  cross.may_lack_keys = true;
  cases.push_back(make("wide_cross_without_keys", cross, {{1, 40, 0}, {2, 130, 65}, {3, 70, 0}}));
  cross.may_lack_keys = false;
  cross.score = "s * 0.125 + f32(j - i) * 0.0625";
  cases.push_back(make("wide_cross_distance", cross, {{1, 40, 1}, {2, 130, 65}, {1, 64, 300}}));
}

/// One more score in the sum of the weights: beside scores of a row without a key, far above and far
/// below them, of every form.
void add_sinks(std::vector<Case>& cases) {
  const std::vector<int64_t> few = {1, 17, 33, 70};
  Attention a;
  a.sink = "f32(h) * 0.5 - 0.25";
  cases.push_back(make("sink", a, lengths(few)));
  a.sink = "%m[b,0] * 30.0", a.extra = ", %m, %mask";  // what exceeds all floats, too
  a.visible = "%mask[b,j] == 1", a.key_padding = true;
  cases.push_back(make("sink_padding", a, lengths(few)));
  cases.push_back(make("sink_rare_keys", a, lengths({1, 64, 65, 129})));
  cases.back().fills["mask"] = {-20, 1};
  a.sink = "-100.0", a.extra = ", %mask";
  cases.push_back(make("sink_no_visible_key", a, lengths(few)));
  cases.back().fills["mask"] = {0, 0};
  a = Attention{};
  a.sink = "f32(h) - 1.0", a.score = "s * 0.25 + %m[b,j]", a.extra = ", %m";
  cases.push_back(make("sink_score", a, lengths(few)));
  a.d = a.dv = 256;
  cases.push_back(make("sink_d256", a, lengths(few)));
  for (int d : {64, 128}) {
    Attention x;
    x.d = x.dv = d, x.score = "s * 0.125", x.sink = "f32(h) * 2.0 - 1.0";
    cases.push_back(make(fmt::format("wide_d{}_sink", d), x, lengths({64, 129, 330})));
    x.visible = "j <= i and i <= j + 70", x.causal = true, x.left = 70, x.heads = 4;
    cases.push_back(make(fmt::format("wide_d{}_sink_window", d), x, lengths({129, 330})));
  }
  const char* const steps =
      "causal = true, score = (s,b,h,i,j) => s * 0.25, sink = (b,h) => f32(h) - 1.5, visible = (b,h,i,j) => j <= i";
  cases.push_back(make_paged("sink", steps, 0));
  cases.push_back(make_paged("sink_spans", steps, 560, 64, 64, 8, 2));
  cases.push_back(make_paged("sink_wide", steps, 100, 128, 128, 4, 1));
  cases.push_back(make_paged("sink_widest", steps, 200, 256, 256, 4, 2));
  cases.push_back(make_paged("sink_odd", steps, 70, 20, 12, 3, 3));
  cases.push_back(make_paged(
      "sink_window",
      "causal = true, score = (s,b,h,i,j) => s * 0.25, sink = (b,h) => f32(h) - 1.5, visible = (b,h,i,j) => j <= i and i <= j + 70, window_left = 70",
      1500, 64, 64, 8, 2));
  cases.push_back(make_mixed("sink", steps, 300, 64, 8, 2));
  const std::string open =
      "causal = false, score = (s,b,h,i,j) => s * 0.25, sink = (b,h) => f32(h) - 0.5, visible = none";
  cases.push_back(make_packed("sink", open));
  cases.push_back(make_packed("wide_sink", open, "", 1, 64));
}

}  // namespace

std::vector<Case> attention_cases() {
  const std::vector<int64_t> all = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
  const std::vector<int64_t> few = {1, 17, 33, 70};
  const std::string padding = "%mask[b,j] == 1";
  std::vector<Case> cases;
  Attention a;
  cases.push_back(make("lengths", a, lengths(all)));
  for (int d : {1, 8, 20, 64, 80, 128, 160, 256}) {
    Attention x;
    x.d = x.dv = d;
    x.score = "s * 0.125";
    cases.push_back(make(fmt::format("d{}", d), x, lengths(d == 64 ? all : few)));
  }
  for (auto [d, dv] : {std::pair{16, 40}, {64, 32}, {40, 128}}) {
    Attention x;
    x.d = d, x.dv = dv;
    cases.push_back(make(fmt::format("d{}_v{}", d, dv), x, lengths(few)));
  }
  Attention g = a;
  g.heads = 6, g.kv_heads = 2, g.visible = padding, g.key_padding = true, g.extra = ", %mask";
  cases.push_back(make("groups", g, lengths(few)));
  g.heads = 4, g.kv_heads = 1;
  cases.push_back(make("one_key_head", g, lengths(few)));

  Attention in = a;
  in.arena = false;
  cases.push_back(make("inputs", in, lengths(few)));
  in.visible = padding, in.key_padding = true, in.extra = ", %mask", in.d = in.dv = 20;
  cases.push_back(make("inputs_padding", in, lengths(few)));

  const std::vector<std::vector<int64_t>> cross = {{1, 1, 1},  {2, 1, 64},  {1, 16, 65},
                                                   {2, 17, 1}, {1, 33, 16}, {2, 40, 129}};
  Attention c = a;
  c.cross = true;
  cases.push_back(make("cross", c, cross));
  c.may_lack_keys = true;
  cases.push_back(make("cross_without_keys", c, {{1, 40, 0}, {2, 13, 65}, {3, 70, 0}}));
  c.may_lack_keys = false;
  c.visible = padding + " and i < j + 8", c.key_padding = true, c.extra = ", %mask";
  cases.push_back(make("cross_padding", c, cross));
  c.visible = "j <= i + (T - S)", c.key_padding = false, c.causal = true, c.extra = "";
  cases.push_back(make("cross_causal", c, cross));
  c.visible = "j <= i + (T - S) and i + (T - S) <= j + 20", c.left = 20;
  cases.push_back(make("cross_causal_window", c, cross));

  Attention plain = a;
  plain.score = "s";
  cases.push_back(make("unscaled", plain, lengths(few)));
  Attention bias = a;
  bias.score = "s * 0.25 + %m[b,j]", bias.extra = ", %m";
  cases.push_back(make("key_bias", bias, lengths(all)));
  bias.score = "s * 0.25 + %p[i,j] * f32(h + 1)", bias.extra = ", %p";
  cases.push_back(make("position_bias", bias, lengths(few)));
  bias.score = "tanh(s * 0.1) * 5.0 + %m[b,j] + %p[i,j]", bias.extra = ", %m, %p";
  cases.push_back(make("capped", bias, lengths(few)));

  Attention pad = a;
  pad.visible = padding, pad.key_padding = true, pad.extra = ", %mask";
  cases.push_back(make("padding", pad, lengths(all)));
  Case none = make("no_visible_key", pad, lengths(few));
  none.fills["mask"] = {0, 0};
  cases.push_back(none);
  Case rare = make("rare_keys", pad, lengths({1, 64, 65, 129, 200}));
  rare.fills["mask"] = {-20, 1};
  cases.push_back(rare);
  pad.visible = padding + " and %p[i,j] < 2.0", pad.extra = ", %mask, %p";
  cases.push_back(make("padding_and_pairs", pad, lengths(few)));

  Attention causal = a;
  causal.visible = "j <= i", causal.causal = true;
  cases.push_back(make("causal", causal, lengths(all)));
  causal.visible = "j <= i and " + padding, causal.key_padding = true, causal.extra = ", %mask",
  causal.score = "s * 0.25 + %m[b,j]";
  causal.extra = ", %mask, %m";
  cases.push_back(make("causal_padding_bias", causal, lengths(few)));
  Attention window = a;
  window.visible = "j <= i + 3 and i <= j + 5";
  cases.push_back(make("window", window, lengths(few)));
  window.left = 5, window.right = 3;
  cases.push_back(make("window_skipped", window, lengths(all)));
  window.right = -1, window.causal = true, window.visible = "j <= i and i <= j + 5 and " + padding,
  window.key_padding = true, window.extra = ", %mask";
  cases.push_back(make("causal_window_padding", window, lengths(all)));
  window.left = -1, window.causal = false, window.key_padding = false;
  window.visible = "%p[i,j] > 3.5", window.extra = ", %p";
  cases.push_back(make("rare_pairs", window, lengths(few)));

  const std::string open = "causal = false, score = (s,b,h,i,j) => s * 0.25, visible = none";
  const char* const steps =
      "causal = true, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => j <= i";
  cases.push_back(make_paged("first", steps, 0));
  cases.push_back(make_paged("later", steps, 200));
  cases.push_back(make_mixed("heads_alone", steps, 70, 16, 2, 2));
  cases.push_back(make_mixed("groups", steps, 300, 64, 8, 2));
  cases.push_back(make_mixed("many_heads", steps, 40, 16, 20, 1));
  cases.push_back(make_paged("page_end", steps, 63, 64, 64));
  cases.push_back(make_paged("wide", steps, 100, 128, 128, 4, 1));
  cases.push_back(make_paged("spans", steps, 560, 64, 64, 8, 2));
  cases.push_back(make_paged("long", steps, 1500, 64, 64, 8, 2));
  cases.push_back(make_paged(
      "long_window",
      "causal = true, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => j <= i and i <= j + 900, window_left = 900",
      2500, 16, 24, 4, 4));
  for (size_t i : {1, 2})
    cases[cases.size() - i].shapes = {{1, 1, 44}, {1, 2, 44}, {2, 1, 85}, {3, 1, 128}};
  cases.push_back(make_paged("widest", steps, 200, 256, 256, 4, 2));
  cases.push_back(make_paged("one_head", steps, 300, 16, 16, 20, 1));
  cases.push_back(make_paged(
      "all_seen", "causal = false, score = (s,b,h,i,j) => s * 0.25, visible = none", 140));
  cases.push_back(make_paged("odd", steps, 70, 20, 12, 3, 3));
  cases.push_back(make_paged(
      "score",
      "causal = true, score = (s,b,h,i,j) => s * 0.25 - f32(i - j) * 0.125, visible = (b,h,i,j) => j <= i",
      100));
  cases.push_back(make_paged(
      "window",
      "causal = true, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => j <= i and i <= j + 70, window_left = 70",
      150));
  cases.push_back(make_packed("rows", open));
  cases.push_back(make_packed("all_rows", open, "", 0));
  cases.push_back(make_packed("rare_rows", open, "", 20));
  cases.push_back(make_packed(
      "score",
      "causal = false, score = (s,b,h,i,j) => s * 0.25 + f32(i - j) * 0.125, visible = (b,h,i,j) => %p[i,j] < 2.0",
      ", %p"));
  cases.push_back(make_packed(
      "causal", "causal = true, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => j <= i"));
  cases.push_back(make_packed(
      "window",
      "causal = false, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => i <= j + 5 and j <= i + 3, window_left = 5, window_right = 3"));
  // A score that reads what belongs to its query and to its key, row by row.
  const std::string of_rows =
      "causal = false, score = (s,b,h,i,j) => s * 0.25 + %h[0,bounded(%row[b,i], T, 0),h] - %h[0,bounded(%row[b,j], T, 0),min(7, max(0, i - j + 3))], visible = none";
  for (const auto& [name, live] :
       {std::pair{"rows", 1.0}, {"all_rows", 0.0}, {"rare_rows", 20.0}}) {
    cases.push_back(make_packed(fmt::format("reads_{}", name), of_rows, ", %row, %h", live));
  }
  add_warpgroups(cases);
  const std::string of_key =  // of both, sm_80 has too few registers
      "causal = false, score = (s,b,h,i,j) => s * 0.25 - %h[0,max(0, min(%row[b,j], T - 1)),h], visible = none";
  for (const auto& [name, live] :
       {std::pair{"rows", 1.0}, {"all_rows", 0.0}, {"rare_rows", 20.0}}) {
    cases.push_back(
        make_packed(fmt::format("wide_reads_{}", name), of_key, ", %row, %h", live, 64));
  }
  cases.push_back(make_packed("wide", open, "", 1, 64));
  cases.push_back(make_packed("wide_rare_rows", open, "", 20, 64));
  cases.push_back(make_packed("wide_infinite", open, "", 1, 64, "2.0 / f32(1 - %seq[j])"));
  cases.push_back(make_packed(
      "wide_score",
      "causal = false, score = (s,b,h,i,j) => s * 0.25 + f32(i - j) * 0.125, visible = (b,h,i,j) => %p[i,j] < 2.0",
      ", %p", 1, 64));
  // Rows one behind the other, whose distances are those of places, and rows here and there.
  for (const auto& [name, live] :
       {std::pair{"rows", 1.0}, {"all_rows", 0.0}, {"rare_rows", 20.0}}) {
    cases.push_back(make_packed(
        fmt::format("wide_distance_{}", name),
        "causal = false, score = (s,b,h,i,j) => s * 0.25 + %p[0,abs(j - i)] * f32(h + 1), visible = none",
        ", %p", live, 64));
  }
  cases.push_back(make_packed(
      "wide_d128_distance",
      "causal = true, score = (s,b,h,i,j) => s * 0.25 - f32(i - j) * 0.125, visible = (b,h,i,j) => j <= i",
      "", 0, 128));
  cases.push_back(make_packed(
      "wide_causal",
      "causal = true, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => j <= i", "", 1, 64));
  cases.push_back(make_packed("wide_d128", open, "", 1, 128));
  cases.push_back(make_packed(
      "wide_d128_causal",
      "causal = true, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => j <= i", "", 1, 128));
  add_sinks(cases);
  for (Case& x : cases) x.bf16 = x.name.find("wide") != std::string::npos;
  return cases;
}

}  // namespace tfcc::test

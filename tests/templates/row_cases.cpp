// SPDX-License-Identifier: Apache-2.0
// softmax, norms and GELU: rows of every length and alignment, in the arena and in the caller's
// memory.
#include <fmt/format.h>

#include <ranges>

#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

const char* const kSymbols = "B = x.0 in 1.., S = x.1 in 1..";

/// GELU of an element, as text.
std::string gelu(const std::string& x, bool tanh) {
  if (tanh)
    return fmt::format(
        "0.5 * {0} * (1.0 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))", x);
  return fmt::format("0.5 * {0} * (1.0 + erf({0} * 0.7071067811865476))", x);
}

/// A graph over x: f32[B,S,hidden] and its copies in the arena.
struct Rows {
  int hidden;
  std::string body;
  std::vector<std::string> outputs = {};
  explicit Rows(int h) : hidden(h) {
    for (const char* name : {"gamma", "beta", "bias"})
      body += fmt::format("  const @{0} : f32[{1}] = random({2})\n", name, h, name[0] + name[1]);
    body += fmt::format(
        "  %a = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 0.5}} : f32[B,S,{}]\n", h);
  }
  std::string type() const { return fmt::format("f32[B,S,{}]", hidden); }
  void add(const std::string& name, const std::string& op, const std::string& operands,
           const std::string& attributes) {
    body += fmt::format("  %{} = {}({}){} : {}\n", name, op, operands,
                        attributes.empty() ? "" : " {" + attributes + "}", type());
    outputs.push_back(name);
  }
  // Read from the arena by one more op, so that its own result is there too.
  void add_inside(const std::string& name, const std::string& op, const std::string& operands,
                  const std::string& attributes) {
    add(name + "_arena", op, operands, attributes);
    outputs.back() = name;
    body += fmt::format(
        "  %{0} = pointwise(%{0}_arena) {{body = (i,j,k) => %{0}_arena[i,j,k] * 2.0}} : {1}\n",
        name, type());
  }
  std::string text() const {
    return graph_text(fmt::format("%x: f32[B,S,{0}], %r: f32[B,S,{0}]", hidden), kSymbols, body,
                      outputs);
  }
};

const std::vector<std::vector<int64_t>> kRows = {{1, 1}, {1, 3}, {2, 4}, {3, 11}};

Case norms(int hidden, double mean) {
  Rows r(hidden);
  const auto of = [](const char* x, const char* eps, bool beta, const char* kind) {
    return fmt::format("body = (i,j,k) => {}[i,j,k], eps = {}, has_beta = {}, kind = {}", x, eps,
                       beta, kind);
  };
  r.add("layer", "norm", "@gamma, @beta, %x", of("%x", "1e-12", true, "layer"));
  r.add("layer_plain", "norm", "@gamma, %x", of("%x", "0.001", false, "layer"));
  r.add_inside("layer_inside", "norm", "@gamma, @beta, %a", of("%a", "1e-05", true, "layer"));
  r.add("rms", "norm", "@gamma, %x", of("%x", "1e-06", false, "rms"));
  r.add_inside("rms_inside", "norm", "@gamma, %a", of("%a", "1e-06", false, "rms"));
  Case c{fmt::format("norms_{}{}", hidden, mean != 0 ? "_mean1000" : ""),
         r.text(),
         kRows,
         {{"x", {mean - 1, mean + 1}}}};
  c.tolerance = mean != 0 ? 1e-4 : 2e-6;  // 1000 +- 1 leaves 14 bits of f32 for what is normalised
  if (mean != 0) c.tolerance_f16 = 9e-4;
  return c;
}

Case residual_norms(int hidden, bool all) {
  Rows r(hidden);
  for (const char* kind : {"layer", "rms"}) {
    for (bool beta : {false, true}) {
      for (bool bias : {false, true}) {
        if (beta && kind[0] == 'r') continue;
        if (!all && (!bias || (!beta && kind[0] == 'l'))) continue;
        const std::string name =
            fmt::format("{}{}{}", kind, beta ? "_beta" : "", bias ? "_bias" : "");
        const auto operands = [&](const std::string& x, const std::string& residual) {
          return fmt::format("@gamma{}, {}, {}{}", beta ? ", @beta" : "", x, residual,
                             bias ? ", @bias" : "");
        };
        const auto attributes = [&](const std::string& x, const std::string& residual) {
          return fmt::format(
              "body = (i,j,k) => {}[i,j,k] + {}[i,j,k]{}, eps = 1e-05, has_beta = {}, kind = {}", x,
              residual, bias ? " + @bias[k]" : "", beta, kind);
        };
        r.add(name, "norm", operands("%x", "%r"), attributes("%x", "%r"));
        r.body += fmt::format("  %{0}_y, %{0}_sum = norm({1}) {{{2}}} : {3}, {3}\n", name,
                              operands("%a", "%" + name), attributes("%a", "%" + name), r.type());
        r.outputs.push_back(name + "_y");
        r.outputs.push_back(name + "_sum");
        const std::string sum = "%" + name + "_sum";
        r.add_inside(name + "_inside", "norm", operands("%a", sum), attributes("%a", sum));
      }
    }
  }
  return {fmt::format("residual_norms_{}", hidden), r.text(), kRows, {}, 3e-6, 1e-3};
}

/// Sums of embeddings, slices and broadcasts in front of a norm; ids of the last token may repeat
/// the first.
Case pointwise_norms(int hidden) {
  std::string body = fmt::format(
      "  flag 0 \"ids\"\n  const @word : f32[10,{0}] = random(1)\n"
      "  const @position : f32[16,{0}] = random(2)\n  const @gamma : f32[{0}] = random(3)\n"
      "  const @beta : f32[{0}] = random(4)\n",
      hidden);
  const std::string t = fmt::format("f32[B,S,{}]", hidden);
  const std::string sum = "(i,j,k) => @word[bounded(abs(%ids[i,j]), 10, 0),k] + @position[j,k]";
  const auto add = [&](const std::string& names, const std::string& operands,
                       const std::string& what, bool beta, const char* kind,
                       const std::string& types) {
    body += fmt::format(
        "  {} = norm(@gamma{}, {}) {{body = {}, eps = 1e-05, has_beta = {}, kind = {}}} : {}\n",
        names, beta ? ", @beta" : "", operands, what, beta, kind, types);
  };
  add("%layer", "%ids, @word, @position", sum, true, "layer", t);
  add("%plain, %plain_sum", "%ids, @word, @position", sum, false, "layer", t + ", " + t);
  add("%rms, %rms_sum", "%ids, @word, %plain",
      "(i,j,k) => @word[bounded(abs(%ids[i,j]), 10, 0),k] * 0.5 + select(%ids[i,0] >= 0, %plain[i,j,k], %plain[i,0,k])",
      false, "rms", t + ", " + t);
  add("%rows", "%rms_sum", "(i,j,k) => %rms_sum[i,0,k] - %rms_sum[i,j,0]", true, "layer", t);
  // Read by one more op, so that some results are in the arena.
  body += fmt::format(
      "  %inside = pointwise(%rms, %plain_sum) {{body = (i,j,k) => %rms[i,j,k] + %plain_sum[i,j,k]}} : {}\n",
      t);
  return {fmt::format("pointwise_norms_{}", hidden),
          graph_text("%ids: i64[B,S]", "B = ids.0 in 1.., S = ids.1 in 1..16", body,
                     {"layer", "plain", "rows", "inside", "rms_sum"}),
          {{1, 1}, {1, 3}, {2, 4}, {3, 11}},
          {},
          5e-6,
          2e-3};
}

Case gelus(int hidden) {
  Rows r(hidden);
  for (const bool tanh : {false, true}) {
    const std::string k = tanh ? "tanh" : "erf";
    const auto body = [&](const std::string& x) { return "body = (i,j,k) => " + gelu(x, tanh); };
    r.add("gelu_" + k, "pointwise", "%x", body("%x[i,j,k]"));
    r.add_inside("gelu_inside_" + k, "pointwise", "%a", body("%a[i,j,k]"));
    r.add("bias_gelu_" + k, "pointwise", "%x, @bias", body("(%x[i,j,k] + @bias[k])"));
    r.add_inside("bias_gelu_inside_" + k, "pointwise", "%a, @bias", body("(%a[i,j,k] + @bias[k])"));
  }
  Case c{fmt::format("gelus_{}", hidden), r.text(), {{1, 1}, {2, 5}, {3, 33}}, {{"x", {-6, 6}}}};
  c.tolerance = 1e-5;  // 1 + erf(x) cancels for negative x
  return c;
}

// Both layouts, tables by pair and by channel, for each row and shared by the batch; from inputs,
// from the arena, from a slice; of heads that are normalised too.
Case ropes(int heads, int dim, int rotary) {
  const int width = heads * dim;
  const std::string x = fmt::format("f32[B,S,{}]", width),
                    pairs = fmt::format("f32[B,S,{}]", rotary / 2),
                    channels = fmt::format("f32[1,S,{}]", rotary);
  std::string body = fmt::format(
      "  %w = pointwise(%x, %r) {{body = (i,j,k) => select(k < {0}, %x[i,j,k] * 2.0, %r[i,j,k - {0}])}} : f32[B,S,{1}]\n"
      "  %a = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 2.0}} : {2}\n"
      "  %s = pointwise(%w) {{body = (i,j,k) => %w[i,j,k + {0}]}} : {2}\n"
      "  %h = pointwise(%g) {{body = (i) => %g[i] * 2.0}} : f32[{3}]\n",
      width, 2 * width, x, dim);
  std::vector<std::string> outputs;
  for (const char* interleaved : {"false", "true"}) {
    for (const char* operands : {"%x, %c, %n", "%a, %c, %n", "%s, %cw, %nw", "%x, %c, %n, %g",
                                 "%a, %c, %n, %h", "%s, %cw, %nw, %h"}) {
      const std::string name = fmt::format("y{}", outputs.size());
      const bool normalised =
          std::string_view(operands).ends_with("g") || std::string_view(operands).ends_with("h");
      body += fmt::format(
          "  %{0}_arena = rope({1}) {{{6}heads = {2}, interleaved = {3}, rotary = {4}}} : {5}\n"
          "  %{0} = pointwise(%{0}_arena) {{body = (i,j,k) => %{0}_arena[i,j,k] * 2.0}} : {5}\n",
          name, operands, heads, interleaved, rotary, x, normalised ? "eps = 0.01, " : "");
      outputs.push_back(name);
    }
    const std::string name = fmt::format("y{}", outputs.size());
    body += fmt::format(
        "  %{} = rope(%a, %cw, %nw) {{heads = {}, interleaved = {}, rotary = {}}} : {}\n", name,
        heads, interleaved, rotary, x);
    outputs.push_back(name);
  }
  const std::string inputs =
      fmt::format("%x: {0}, %r: {0}, %c: {1}, %n: {1}, %cw: {2}, %nw: {2}, %g: f32[{3}]", x, pairs,
                  channels, dim);
  return {fmt::format("ropes_{}x{}_{}", heads, dim, rotary),
          graph_text(inputs, kSymbols, body, outputs),
          kRows,
          {},
          2e-6,
          2e-3};
}

// Keys and queries that lie in the caller's memory, in a tensor of their own and in one with
// values; whole, in pairs, in part; normalised or not.
Case rope_appends(int heads, int kv_heads, int d, int dv, int rotary) {
  const int q = heads * d, k = kv_heads * d, v = kv_heads * dv;
  const std::string cache = fmt::format("f32[P,{},4,{}]", kv_heads, d),
                    values = fmt::format("f32[P,{},4,{}]", kv_heads, dv);
  std::string inputs =
      fmt::format("%x: f32[B,S,{}], %c: f32[1,B*S,{}], %n: f32[1,B*S,{}], %g: f32[{}]", q + k + v,
                  rotary / 2, rotary / 2, d);
  std::string body = fmt::format(
      "  %slots = pointwise() {{body = (i) => select(i % 5 == 3, -1, (7*i + 2) % P*4 + i / P % 4)}} : i32[B*S]\n"
      "  %w = pointwise(%x) {{body = (i,j,k) => %x[j / S,j % S,k] * 2.0}} : f32[1,B*S,{0}]\n"
      "  %cw = pointwise(%c) {{body = (i,j,k) => %c[0,j,k % {1}]}} : f32[1,B*S,{2}]\n"
      "  %nw = pointwise(%n) {{body = (i,j,k) => %n[0,j,k % {1}]}} : f32[1,B*S,{2}]\n"
      "  %gq = pointwise(%g) {{body = (i) => %g[i] * 2.0}} : f32[{3}]\n"
      "  %gk = pointwise(%g) {{body = (i) => %g[i] - 3.0}} : f32[{3}]\n",
      q + k + v, rotary / 2, rotary, d);
  std::vector<std::string> outputs, states;
  for (const char* part : {"q", "k", "v"}) {
    const int width = *part == 'q'   ? q
                      : *part == 'k' ? k
                                     : v,
              from = *part == 'q'   ? 0
                     : *part == 'k' ? q
                                    : q + k;
    body += fmt::format(
        "  %{0}s = pointwise(%w) {{body = (i,j,k) => %w[i,j,k + {1}]}} : f32[1,B*S,{2}]\n"
        "  %{0}o = pointwise(%w) {{body = (i,j,k) => %w[i,j,k + {1}] * 0.5}} : f32[1,B*S,{2}]\n",
        part, from, width);
  }
  for (const char* interleaved : {"false", "true"}) {
    for (const std::string from : {"s", "o", "sn", "on"}) {
      const std::string name = fmt::format("y{}", outputs.size());
      const bool normalised = from.size() > 1;
      inputs += fmt::format(", %{0}k: {1}, %{0}v: {2}", name, cache, values);
      body += fmt::format(
          "  %{0}k2, %{0}v2, %{0}a = rope_append(%{0}k, %{0}v, %k{1}, %v{1}, %slots, %q{1}, {2}{9}) {{{10}heads = {3}, interleaved = {4}, rotary = {5}}} : {6}, {7}, f32[1,B*S,{8}]\n"
          "  %{0} = pointwise(%{0}a) {{body = (i,j,k) => %{0}a[i,j,k] * 2.0}} : f32[1,B*S,{8}]\n",
          name, from.substr(0, 1), from[0] == 's' ? "%c, %n" : "%cw, %nw", heads, interleaved,
          rotary, cache, values, q, normalised ? ", %gq, %gk" : "",
          normalised ? "eps = 0.01, " : "");
      outputs.push_back(name);
      states.push_back(fmt::format("{0}k = %{0}k2, {0}v = %{0}v2", name));
    }
  }
  const std::string text = fmt::format(
      "graph @appends({}) symbols(B = x.0 in 1.., S = x.1 in 1.., P = y0k.0 in 1..) {{\n{}  return {}, {}\n}}\n",
      inputs, body,
      fmt::join(
          outputs | std::views::transform([](const std::string& o) { return o + " = %" + o; }),
          ", "),
      fmt::join(states, ", "));
  return {fmt::format("rope_appends_{}x{}_{}_{}", heads, d, dv, rotary),
          text,
          {{1, 1, 3}, {1, 5, 6}, {3, 20, 31}},
          {},
          2e-6,
          2e-3};
}

Case gelu_of_any_size() {
  return {
      "gelu_any_size",
      graph_text(
          "%x: f32[B,S]", kSymbols,
          fmt::format(
              "  %a = pointwise(%x) {{body = (i,j) => %x[i,j] - 0.5}} : f32[B,S]\n"
              "  %y = pointwise(%a) {{body = (i,j) => {}}} : f32[B,S]\n  %z = pointwise(%y) {{body = (i,j) => {}}} : f32[B,S]\n",
              gelu("%a[i,j]", false), gelu("%y[i,j]", true)),
          {"y", "z"}),
      {{1, 1}, {3, 7}, {2, 129}},
      {{"x", {-6, 6}}},
      1e-5,
      9e-4};
}

Case softmaxes() {
  return {"softmax_any_length",
          graph_text("%x: f32[B,S]", kSymbols,
                     "  %y = softmax(%x) : f32[B,S]\n  %a = pointwise(%x) {body = (i,j) => %x[i,j] "
                     "* 4.0} : f32[B,S]\n"
                     "  %z = softmax(%a) : f32[B,S]\n",
                     {"y", "z"}),
          {{1, 1},
           {3, 2},
           {2, 31},
           {2, 32},
           {5, 33},
           {2, 255},
           {2, 256},
           {2, 257},
           {1, 1024},
           {1, 1025},
           {2, 3000}},
          {{"x", {-20, 20}}},
          5e-6};
}

// Lengths known at compile time have kernels of their own.
Case softmaxes_of_known_length() {
  std::string body;
  std::vector<std::string> outputs;
  for (int n : {1, 7, 32, 33, 64, 1024, 1025, 3000}) {
    outputs.push_back(fmt::format("y{}", n));
    body += fmt::format(
        "  %x{0} = pointwise(%x) {{body = (i,j) => %x[i,j]}} : f32[N,{0}]\n  %y{0} = "
        "softmax(%x{0}) : f32[N,{0}]\n",
        n);
  }
  return {"softmax_known_length",
          graph_text("%x: f32[N,3000]", "N = x.0 in 1..", body, outputs),
          {{1}, {3}, {5}},
          {{"x", {-9, 9}}},
          5e-6};
}

Case types() {
  std::string body, inputs;
  std::vector<std::string> outputs;
  for (const std::string t : {"f16", "bf16"}) {
    inputs +=
        fmt::format("{}%{}: {}[N,48]", inputs.empty() ? "" : ", ", t[0] == 'f' ? "x" : "z", t);
    const std::string x = t[0] == 'f' ? "%x" : "%z";
    body += fmt::format(
        "  const @g_{0} : {0}[48] = f32[48] random(1) |> cast({0})\n  const @b_{0} : {0}[48] = "
        "f32[48] random(2) |> cast({0})\n",
        t);
    const auto add = [&](const std::string& name, const std::string& rest) {
      outputs.push_back(name + "_" + t);
      body += fmt::format("  %{} = {} : {}[N,48]\n", outputs.back(), rest, t);
    };
    add("softmax", fmt::format("softmax({})", x));
    add("layer",
        fmt::format(
            "norm(@g_{1}, @b_{1}, {0}) {{body = (i,j) => {0}[i,j], eps = 1e-05, has_beta = true, kind = layer}}",
            x, t));
    add("rms",
        fmt::format(
            "norm(@g_{1}, {0}) {{body = (i,j) => {0}[i,j], eps = 1e-05, has_beta = false, kind = rms}}",
            x, t));
    add("gelu", fmt::format("pointwise({0}) {{body = (i,j) => {1}}}", x, gelu(x + "[i,j]", false)));
    add("bias_gelu", fmt::format("pointwise({0}, @b_{1}) {{body = (i,j) => {2}}}", x, t,
                                 gelu(fmt::format("({0}[i,j] + @b_{1}[j])", x, t), true)));
    add("residual",
        fmt::format(
            "norm(@g_{1}, @b_{1}, {0}, %gelu_{1}) {{body = (i,j) => {0}[i,j] + %gelu_{1}[i,j], eps = 1e-05, "
            "has_beta = true, kind = layer}}",
            x, t));
  }
  Case c{"rows_16_bit",
         graph_text(inputs, "N = x.0 in 1..", body, outputs),
         {{1}, {4}, {37}},
         {{"x", {-3, 3}}, {"z", {-3, 3}}}};
  return c;
}

/// What is read, added, normalised and written has types of its own, in the arena.
Case rows_of_mixed_types() {
  const std::string body =
      "  const @g : f16[48] = f32[48] random(1) |> cast(f16)\n  const @b : f32[48] = random(2)\n"
      "  const @h : f32[48] = random(3)\n"
      "  %a = pointwise(%x) {body = (i,j) => %x[i,j] * 0.5} : f16[N,48]\n"
      "  %c = pointwise(%x) {body = (i,j) => %x[i,j] + 0.25} : f16[N,48]\n"
      "  %f = pointwise(%x) {body = (i,j) => %x[i,j] - 0.25} : f32[N,48]\n"
      "  %r = pointwise(%x) {body = (i,j) => %x[i,j] * 0.75} : f32[N,48]\n" +
      fmt::format("  %wide = pointwise(%a) {{body = (i,j) => {}}} : f32[N,48]\n",
                  gelu("%a[i,j]", false)) +
      fmt::format("  %narrow = pointwise(%f) {{body = (i,j) => {}}} : f16[N,48]\n",
                  gelu("%f[i,j]", true)) +
      fmt::format("  %biased = pointwise(%a, @b) {{body = (i,j) => {}}} : f32[N,48]\n",
                  gelu("(%a[i,j] + @b[j])", false)) +
      "  %n, %s = norm(@g, %a, %c) {body = (i,j) => %a[i,j] + %c[i,j], eps = 1e-05, has_beta = "
      "false, kind = layer} : f16[N,48], f32[N,48]\n"
      "  %m, %t = norm(@h, %f, %r) {body = (i,j) => %f[i,j] + %r[i,j], eps = 1e-05, has_beta = "
      "false, kind = rms} : f32[N,48], f16[N,48]\n"
      "  %k = norm(@g, %a, %c, @b) {body = (i,j) => %a[i,j] + %c[i,j] + @b[j], eps = 1e-05, "
      "has_beta = false, kind = rms} : f16[N,48]\n"
      "  %p = norm(@h, %a) {body = (i,j) => %a[i,j], eps = 1e-05, has_beta = false, kind = rms} : "
      "f32[N,48]\n"
      "  %y = pointwise(%wide, %narrow, %biased, %n, %s, %m, %t, %k, %p) {body = (i,j) => "
      "select(j < 8, %wide[i,j], select(j < 16, %narrow[i,j], %biased[i,j])) + select(i < 2, "
      "%n[i,j] + %s[i,j] + %m[i,j], %t[i,j] + %k[i,j] + %p[i,j])} : f32[N,48]\n";
  return {"rows_mixed_types",
          graph_text("%x: f16[N,48]", "N = x.0 in 1..", body, {"y"}),
          {{1}, {4}, {37}},
          {{"x", {-3, 3}}},
          4e-3,
          4e-3};
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> cases;
  for (int hidden : {1, 7, 33, 64, 768, 770, 3000}) cases.push_back(norms(hidden, 0));
  for (int hidden : {770, 768}) cases.push_back(norms(hidden, 1000));
  cases.push_back(rows_of_mixed_types());
  for (int hidden : {1, 33, 768, 3000}) cases.push_back(residual_norms(hidden, hidden == 33));
  for (int hidden : {1, 6, 40}) cases.push_back(gelus(hidden));
  for (int hidden : {1, 7, 64, 770, 3000}) cases.push_back(pointwise_norms(hidden));
  cases.push_back(gelu_of_any_size());
  cases.push_back(ropes(2, 16, 16));
  cases.push_back(ropes(3, 64, 32));
  cases.push_back(ropes(1, 10, 6));
  cases.push_back(ropes(3, 128, 128));  // a head in 8, 16 or 32 threads
  cases.push_back(ropes(1, 256, 256));
  cases.push_back(rope_appends(4, 2, 16, 16, 16));
  cases.push_back(rope_appends(8, 1, 64, 32, 32));
  cases.push_back(rope_appends(1, 1, 10, 3, 6));
  cases.push_back(rope_appends(4, 2, 128, 128, 128));
  cases.push_back(rope_appends(2, 1, 64, 24, 64));  // threads of a row that heads do not divide
  cases.push_back(softmaxes());
  cases.push_back(softmaxes_of_known_length());
  cases.push_back(types());
  return cases;
}

}  // namespace tfcc::test

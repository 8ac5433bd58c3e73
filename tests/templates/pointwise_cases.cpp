// SPDX-License-Identifier: Apache-2.0
// pointwise: views, gathers, casts, functions, conditions, ranks 0 to 8, every width of store.
#include <fmt/format.h>

#include "runtime/dtype.h"
#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

/// Collects ops of one graph.
struct Ops {
  std::string body;
  std::vector<std::string> outputs;
  void add(const std::string& name, const std::string& operands, const std::string& expr,
           const std::string& type) {
    body += fmt::format("  %{} = pointwise({}) {{body = {}}} : {}\n", name, operands, expr, type);
    outputs.push_back(name);
  }
};

const std::vector<std::vector<int64_t>> kSmall = {{1, 1}, {2, 3}, {1, 33}, {3, 17}};

Case views() {
  Ops o;
  o.body =
      "  flag 0 \"ids: a value lies outside [0, 50)\"\n  const @table : f32[50,24] = random(3)\n  "
      "const @tail : f32[16] = random(4)\n";
  o.add("gather", "%ids, @table, %x", "(i,j,k) => @table[bounded(%ids[i,j], 50, 0),k] + %x[i,j,k]",
        "f32[B,S,24]");
  o.add("concat", "%x, @tail", "(i,j,k) => select(k < 24, %x[i,j,k], @tail[k-24])", "f32[B,S,40]");
  o.add("strided", "%x", "(i,j,k) => %x[i,j,3*k+1]", "f32[B,S,8]");
  o.add("transposed", "%x", "(i,j,k) => %x[k,j,i]", "f32[24,S,B]");
  o.add("heads", "%x", "(i,j,k,l) => %x[i,k,6*j+l]", "f32[B,4,S,6]");
  o.add("merged", "%x", "(i,j) => %x[i/S,i % S,j]", "f32[B*S,24]");
  o.add("flipped", "%x", "(i,j,k) => %x[i,S-1-j,k]", "f32[B,S,24]");
  o.add("row", "%x", "(i,j) => %x[i,0,j]", "f32[B,24]");
  o.add("scalar", "%x", "() => %x[0,0,0]", "f32[]");
  o.add("spread", "%scalar", "(i,j) => %scalar[] * 2.0", "f32[S,3]");
  o.add("iota", "%ids", "(i,j) => 100*i + j + %ids[i,0]", "i64[B,S]");
  o.add("small", "%ids", "(i,j) => %ids[i,j] % 7 + i", "i32[B,S]");
  return {"views",
          graph_text("%x: f32[B,S,24], %ids: i64[B,S]", "B = x.0 in 1.., S = x.1 in 1..", o.body,
                     o.outputs),
          kSmall,
          {{"ids", {0, 49}}}};
}

// One result of each type, its rows the ten types converted.
Case casts(bool reals) {
  std::string inputs, operands;
  for (int t = 0; t < kDTypeCount; ++t) {
    const char* name = to_string(static_cast<DType>(t));
    inputs += fmt::format("{}%x{}: {}[N]", t ? ", " : "", t, name);
    operands += fmt::format("{}%x{}", t ? ", " : "", t);
  }
  Ops o;
  for (int to = 0; to < kDTypeCount; ++to) {
    const DType type = static_cast<DType>(to);
    if (is_float(type) != reals) continue;
    const char* scalar = type == DType::f64 ? "f64"
                         : is_float(type)   ? "f32"
                         : is_integer(type) ? "i64"
                                            : "bool";
    std::string e;
    for (int from = 0; from < kDTypeCount; ++from) {
      const std::string one = fmt::format("{}(%x{}[j])", scalar, from);
      e += from == kDTypeCount - 1 ? one : fmt::format("select(i == {}, {}, ", from, one);
    }
    o.add(std::string("to_") + to_string(type), operands,
          "(i,j) => " + e + std::string(kDTypeCount - 1, ')'),
          fmt::format("{}[10,N]", to_string(type)));
  }
  std::map<std::string, Fill> fills;
  for (int t = 0; t < 4; ++t) fills[fmt::format("x{}", t)] = {-300, 300, true};
  for (int t : {4, 5}) fills[fmt::format("x{}", t)] = {-2e9, 2e9};
  fills["x6"] = {-32768, 32767};
  fills["x7"] = {-128, 127};
  fills["x8"] = {0, 255};
  return {reals ? "casts_to_reals" : "casts_to_integers",
          graph_text(inputs, "N = x0.0 in 1..", o.body, o.outputs),
          {{1}, {64}, {129}},
          fills};
}

Case functions(const char* type, bool specials) {
  const char* d = std::string(type) == "f64" ? "d" : "";
  Ops o;
  const auto unary = [&](const std::string& name, const std::string& expr) {
    o.add(name, "%x", "(i,j) => " + expr, fmt::format("{}[N,5]", type));
  };
  for (const char* f :
       {"exp", "erf", "tanh", "sin", "cos", "atan", "floor", "ceil", "rint", "sign", "abs"})
    unary(f, fmt::format("{}(%x[i,j])", f));
  unary("log", fmt::format("log(abs(%x[i,j]) + 0.1{})", d));
  unary("sqrt", "sqrt(abs(%x[i,j]))");
  unary("f16", "f16(%x[i,j])");
  unary("bf16", "bf16(%x[i,j])");
  const auto binary = [&](const std::string& name, const std::string& expr) {
    o.add(name, "%x, %y", "(i,j) => " + expr, fmt::format("{}[N,5]", type));
  };
  binary("min", "min(%x[i,j], %y[i,j])");
  binary("max", "max(%x[i,j], %y[i,j])");
  binary("pow", "pow(abs(%x[i,j]), %y[i,j])");
  binary("fmod", fmt::format("fmod(%x[i,j], abs(%y[i,j]) + 0.5{})", d));
  binary("quotient", fmt::format("%x[i,j] / (abs(%y[i,j]) + 0.5{}) - %y[i,j]", d));
  o.add("isnan", "%x", "(i,j) => isnan(%x[i,j])", "bool[N,5]");
  o.add("less", "%x, %y", "(i,j) => %x[i,j] < %y[i,j]", "bool[N,5]");
  o.add("at_most", "%x, %y", "(i,j) => not %x[i,j] <= %y[i,j]", "bool[N,5]");
  o.add("equal", "%x, %y", "(i,j) => %x[i,j] == %y[i,j] or %x[i,j] != %x[i,j]", "bool[N,5]");
  Case c{fmt::format("functions_{}{}", type, specials ? "_specials" : ""),
         graph_text(fmt::format("%x: {0}[N,5], %y: {0}[N,5]", type), "N = x.0 in 1..", o.body,
                    o.outputs),
         {{1}, {77}},
         {{"x", {-4, 4, specials}}, {"y", {-3, 3, specials}}}};
  c.f16 = false;  // floor of a rounded value is another value
  return c;
}

Case integers_and_conditions() {
  Ops o;
  const auto i64 = [&](const std::string& name, const std::string& e) {
    o.add(name, "%a, %b", "(i,j) => " + e, "i64[N,16]");
  };
  i64("quotient", "%a[i,j] / (abs(%b[i,j]) + 1)");
  i64("modulo", "%a[i,j] % (abs(%b[i,j]) + 1)");
  i64("smaller", "min(%a[i,j], %b[i,j])");
  i64("larger", "max(%a[i,j], 3*%b[i,j] - 2)");
  i64("common_bits", "bitand(%a[i,j], %b[i,j])");
  i64("polynomial", "%a[i,j]*%a[i,j]*%b[i,j] - 4*%b[i,j] + i*j");
  const auto condition = [&](const std::string& name, const std::string& e) {
    o.add(name, "%a, %b, %m", "(i,j) => " + e, "bool[N,16]");
  };
  condition("less", "%a[i,j] < %b[i,j] and %m[i,j]");
  condition("equal", "%a[i,j] == %b[i,j] or not %m[i,j]");
  condition("different", "%a[i,j] != %b[i,j] and %a[i,j] >= i and %m[i,j]");
  o.add("chosen", "%a, %b, %m", "(i,j) => select(%m[i,j], %a[i,j], %b[i,j])", "i32[N,16]");
  o.add("counted", "%m", "(i,j) => i64(%m[i,j]) + i64(%m[i,15-j])", "u8[N,16]");
  o.add("weighted", "%a, %m", "(i,j) => f32(%a[i,j]) * f32(%m[i,j])", "f32[N,16]");
  return {"integers_and_conditions",
          graph_text("%a: i64[N,16], %b: i64[N,16], %m: bool[N,16]", "N = a.0 in 1..", o.body,
                     o.outputs),
          {{1}, {2}, {37}}};
}

Case ranks() {
  Ops o;
  o.add("r0", "%x", "() => %x[0,1,0,2] * 2.0", "f32[]");
  o.add("r1", "%x", "(i) => %x[i,0,0,0]", "f32[B]");
  o.add("r5", "%x", "(a,b,c,d,e) => %x[b,a,c,e] + f32(d)", "f32[2,B,S,2,3]");
  o.add("r6", "%r5", "(a,b,c,d,e,f) => %r5[f,a,b,c,d]", "f32[B,S,2,3,1,2]");
  o.add("r7", "%x", "(a,b,c,d,e,f,g) => %x[c,f,a,0] * f32(g + 10*e)", "f32[S,1,B,1,2,2,4]");
  o.add("r8", "%x", "(a,b,c,d,e,f,g,h) => %x[h,b,e,d] - f32(a*c + g)", "f32[2,2,2,3,S,1,2,B]");
  return {"ranks",
          graph_text("%x: f32[B,2,S,3]", "B = x.0 in 1.., S = x.2 in 1..", o.body, o.outputs),
          {{1, 1}, {3, 5}, {2, 17}}};
}

/// What is read as packs of neighbours and what may not be: pieces of a row from multiples of the
/// pack on and from elsewhere, other strides, rows that end where a condition says so, other types;
/// of the caller (%x, %y, %m) and of the arena (%a).
Case packs() {
  Ops o;
  o.body = "  const @bias : f32[24] = random(5)\n";
  o.add("a", "%x", "(i,j,k) => %x[i,j,k] * 2.0", "f32[B,S,40]");
  for (const char* from : {"x", "a"}) {
    const auto piece = [&](const std::string& name, const std::string& expr) {
      std::string e = expr, operands = fmt::format("%{}", from);
      for (size_t at; (at = e.find('X')) != std::string::npos;) e.replace(at, 1, operands);
      for (const char* other : {"%y", "%m", "@bias"}) {
        if (e.find(other) != std::string::npos) operands += std::string(", ") + other;
      }
      o.add(fmt::format("{}_{}", name, from), operands, "(i,j,k) => " + e, "f32[B,S,24]");
    };
    piece("from_16", "X[i,j,k+16]");
    piece("from_8_and_3", "X[i,j,k+8] + X[i,j,k+3]");
    piece("turned", "X[i,j,39-k]");
    piece("other_row", "X[i,S-1-j,k+8] * @bias[k]");
    piece("short_row", "select(k < 16, %y[i,j,k], X[i,j,k+8])");
    piece("in_a_condition", "select(X[i,j,k+8] > 0.0, f32(%y[i,j,k-8*(k/8)]), @bias[k])");
    piece("whole", "f32(%y[i,j,0]) + f32(%m[i,j,k]) * X[i,j,k]");
    piece("integers", "f32(%m[i,j,k+8]) - X[i,j,k+8]");
  }
  return {"packs",
          graph_text("%x: f32[B,S,40], %y: f16[B,S,16], %m: i64[B,S,32]",
                     "B = x.0 in 1.., S = x.1 in 1..", o.body, o.outputs),
          kSmall,
          {{"m", {-9, 9}}}};
}

Case store_widths() {
  Ops o;
  for (const char* t : {"f32", "f16", "f64", "u8", "bool", "i64"}) {
    for (int last : {1, 2, 3, 4, 8, 16}) {
      const char* e = std::string(t) == "f64"    ? "f64(%x[i,j])"
                      : std::string(t) == "bool" ? "%x[i,j] > 0.0"
                      : std::string(t)[0] == 'f' ? "%x[i,j] * 2.0"
                                                 : "i64(%x[i,j] * 50.0)";
      o.add(fmt::format("{}_{}", t, last), "%x", fmt::format("(i,j) => {}", e),
            fmt::format("{}[N,{}]", t, last));
    }
  }
  Case c{"store_widths",
         graph_text("%x: f32[N,16]", "N = x.0 in 1..", o.body, o.outputs),
         {{1}, {7}, {150}}};
  c.f16 = false;  // truncation of a rounded value is another value
  return c;
}

// Ties, clamping on both sides, zero points of either sign; scales that divide without rounding, so
// that every target must agree.
Case quantise() {
  Ops o;
  o.add("u8", "%x", "(i,j) => i64(min(255.0, max(0.0, rint(%x[i,j] / 0.5) + 3.0)))", "u8[N,S]");
  o.add("i8", "%x, %s, %z",
        "(i,j) => i64(min(127.0, max(-128.0, rint(%x[i,j] / %s[j / 4]) + f32(%z[j / 4]))))",
        "i8[N,S]");
  o.add("i16", "%x", "(i,j) => i64(min(32767.0, max(-32768.0, rint(%x[i,j] * 1024.0))))",
        "i16[N,S]");
  o.add("back", "%i8, %s, %z", "(i,j) => %s[j / 4] * f32(%i8[i,j] - %z[j / 4])", "f32[N,S]");
  o.add("ties", "%k", "(i,j) => i64(rint(f32(%k[i,j]) * 0.5))", "i8[N,S]");
  o.body =
      "  const @sc : f32[64] = random(1)\n  %s = pointwise(@sc) {body = (i) => select(@sc[i] < 0.0, 0.25, 2.0)} : f32[64]\n" +
      o.body;
  Case c{"quantise",
         graph_text("%x: f32[N,S], %z: i8[64], %k: i32[N,S]", "N = x.0 in 1.., S = x.1 in 1..256",
                    o.body, o.outputs),
         {{1, 1}, {2, 17}, {5, 256}},
         {{"x", {-100, 200}}, {"z", {-128, 127}}, {"k", {-100, 100}}}};
  c.f16 = false;  // a rounded value has another quotient
  return c;
}

// 4 and 2 bits in bytes, whole rows and rows that share a byte; 8-bit floats through a table.
Case packed_weights() {
  Ops o;
  o.add("nibbles", "%b", "(i,j) => select(j % 2 == 1, %b[i,j / 2] / 16, %b[i,j / 2]) % 16 - 8",
        "i8[N,32]");
  o.add("signed", "%b", "(i,j) => (select(j % 2 == 1, %b[i,j / 2] / 16, %b[i,j / 2]) + 8) % 16 - 8",
        "i8[N,32]");
  o.add("shared", "%flat",
        "(i,j) => select((i*7 + j) % 2 == 1, %flat[(i*7 + j) / 2] / 16, %flat[(i*7 + j) / 2]) % 16",
        "u8[5,7]");
  o.add("pairs", "%b",
        "(i,j) => select(j % 4 == 3, %b[i,j / 4] / 64, select(j % 4 == 2, %b[i,j / 4] / 16, "
        "select(j % 4 == 1, %b[i,j / 4] / 4, %b[i,j / 4]))) % 4",
        "u8[N,64]");
  o.add("floats", "%b, @values", "(i,j) => @values[%b[i,j] % 256] * 0.5", "f32[N,16]");
  o.add("wide", "%h", "(i,j) => f32(%h[i,j] % 65536 - 40000)", "f32[N,16]");
  o.body = "  const @values : f32[256] = random(3)\n" + o.body;
  return {
      "packed_weights",
      graph_text("%b: u8[N,16], %flat: u8[18], %h: i16[N,16]", "N = b.0 in 1..", o.body, o.outputs),
      {{1}, {3}, {65}},
      {{"b", {0, 255}}, {"flat", {0, 255}}, {"h", {-32768, 32767}}}};
}

// Sizes of nothing: no element, no launch that fails.
Case empty() {
  Ops o;
  o.add("copy", "%x", "(i,j) => %x[i,j] + 1.0", "f32[N,4]");
  o.body += "  %sum = reduce(%x) {body = (i,j) => %x[j,i], extents = [N], kind = sum} : f32[4]\n";
  o.body +=
      "  %largest = reduce(%x) {body = (i,j) => %x[j,i], extents = [N], kind = max} : f32[4]\n";
  o.outputs.insert(o.outputs.end(), {"sum", "largest"});
  return {"empty", graph_text("%x: f32[N,4]", "N = x.0 in 0..", o.body, o.outputs), {{0}, {3}}};
}

// Outputs that are inputs, constants, the same value twice, or read by a product.
Case outputs() {
  return {
      "outputs",
      "graph @case(%x: f32[B,S,6], %m: bool[B,S], %k: i32[B,S], %h: f16[S])"
      " symbols(B = x.0 in 1.., S = x.1 in 1..) {\n"
      "  const @c : f32[3,2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n"
      "  const @n : i64[2] = [7, -8]\n  const @w : f32[6,4] = random(1)\n"
      "  %y = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 3.0} : f32[B,S,6]\n"
      "  %z = matmul(%y, @w) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,4]\n"
      "  %t = pointwise(%y) {body = (i,j,k) => %y[i,j,5-k]} : f32[B,S,6]\n"
      "  return x2 = %x, m2 = %m, k2 = %k, h2 = %h, c = @c, n = @n, y = %y, again = %y, z = %z, "
      "last = %z, t = %t\n}\n",
      kSmall};
}

}  // namespace

std::vector<Case> pointwise_cases() {
  return {views(),
          packs(),
          casts(true),
          casts(false),
          functions("f32", false),
          functions("f32", true),
          functions("f64", false),
          integers_and_conditions(),
          ranks(),
          store_widths(),
          quantise(),
          packed_weights(),
          outputs(),
          empty()};
}

}  // namespace tfcc::test

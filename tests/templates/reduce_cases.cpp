// SPDX-License-Identifier: Apache-2.0
// reduce and cumsum: all kinds, over the last axis, across rows, over several axes and over
// everything; integers.
#include <fmt/format.h>

#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

struct Ops {
  std::string body;
  std::vector<std::string> outputs;
  void reduce(const std::string& name, const std::string& kind, const std::string& expr,
              const std::string& extents, const std::string& type, const std::string& x = "%x") {
    body += fmt::format("  %{} = reduce({}) {{body = {}, extents = [{}], kind = {}}} : {}\n", name,
                        x, expr, extents, kind, type);
    outputs.push_back(name);
  }
};

const char* const kKinds[] = {"sum", "mean", "max", "min", "prod"};

Case axes() {
  Ops o;
  for (const std::string kind : kKinds) {
    o.reduce(kind + "_last", kind, "(i,j,k) => %x[i,j,k]", "20", "f32[B,S]");
    if (kind == "prod") continue;  // of many factors: out of range
    o.reduce(kind + "_outer", kind, "(i,j,k) => %x[k,i,j]", "B", "f32[S,20]");
    o.reduce(kind + "_middle", kind, "(i,j,k) => %x[i,k,j]", "S", "f32[B,20]");
    o.reduce(kind + "_all", kind, "(i,j,k) => %x[i,j,k]", "B,S,20", "f32[]");
    o.reduce(kind + "_two", kind, "(i,j,k) => %x[j,i,k]", "B,20", "f32[S]");
    o.reduce(kind + "_outer_two", kind, "(i,j,k) => %x[j,k,i]", "B,S", "f32[20]");
  }
  o.reduce("squares", "sum", "(i,j,k) => %x[i,j,k] * %x[i,j,k] + 1.0", "20", "f32[B,S]");
  Case c{"reduce_axes",
         graph_text("%x: f32[B,S,20]", "B = x.0 in 1.., S = x.1 in 1..", o.body, o.outputs),
         {{1, 1}, {2, 5}, {3, 33}, {5, 129}},
         {{"x", {0.5, 1.5}}}};
  return c;
}

Case long_rows() {
  Ops o;
  for (const std::string kind : kKinds) {
    if (kind != "prod") o.reduce(kind, kind, "(i,j) => %x[i,j]", "S", "f32[B]");
  }
  o.reduce("rows", "sum", "(i,j) => %x[j,i]", "B", "f32[S]");
  return {"reduce_long",
          graph_text("%x: f32[B,S]", "B = x.0 in 1.., S = x.1 in 1..", o.body, o.outputs),
          {{1, 1}, {3, 31}, {3, 32}, {2, 255}, {2, 256}, {2, 257}, {1, 1025}, {2, 5000}},
          {{"x", {-1, 2}}}};
}

// Few terms, which one thread of a GPU adds up: at the most that it does and one more, over two axes, across rows, and of a
// short convolution.
Case few_terms() {
  Ops o;
  for (const std::string kind : kKinds) {
    o.reduce(kind + "_one", kind, "(i,j,k) => %x[i,j,k]", "1", "f32[B,S]");
    o.reduce(kind + "_most", kind, "(i,j,k) => %x[i,j,k]", "16", "f32[B,S]");
    o.reduce(kind + "_more", kind, "(i,j,k) => %x[i,j,k]", "17", "f32[B,S]");
    o.reduce(kind + "_two", kind, "(i,j,k,l) => %x[i,j,4*k + l]", "2,3", "f32[B,S]");
    o.reduce(kind + "_across", kind, "(i,j,k) => %x[i,k,j]", "1", "f32[B,20]");
    o.reduce(kind + "_half", kind, "(i,j,k) => %h[i,4*j + k]", "4", "f16[B,5]", "%h");
    o.reduce(kind + "_bf16", kind, "(i,j,k) => %h[i,4*j + k]", "4", "bf16[B,5]", "%h");
    if (kind == "mean") continue;  // of reals alone
    o.reduce(kind + "_whole", kind, "(i,j) => i64(%h[i,5*j] * 8.0)", "4", "i64[B]", "%h");
  }
  o.reduce("convolution", "sum",
           "(i,j,k,l,m) => %h[0,m] * select(m <= j, %x[i,j - min(m, j),k], 0.0)", "1,3",
           "f32[B,S,20]", "%x, %h");
  return {"reduce_few_terms",
          graph_text("%x: f32[B,S,20], %h: f32[B,20]", "B = x.0 in 1.., S = x.1 in 1..", o.body,
                     o.outputs),
          {{1, 1}, {2, 5}, {3, 33}, {5, 129}},
          {{"x", {0.5, 1.5}}, {"h", {0.5, 1.5}}}};
}

Case specials() {
  Ops o;
  for (const std::string kind : kKinds) o.reduce(kind, kind, "(i,j) => %x[i,j]", "6", "f32[N]");
  return {"reduce_specials",
          graph_text("%x: f32[N,6]", "N = x.0 in 1..", o.body, o.outputs),
          {{1}, {200}},
          {{"x", {-1, 1, true}}}};
}

Case integers() {
  Ops o;
  for (const std::string kind : kKinds) {
    if (kind == "mean") continue;
    o.reduce("i64_" + kind, kind, "(i,j) => %k[i,j]", "S", "i64[B]", "%k");
    o.reduce("i32_" + kind, kind, "(i,j) => 2*%k[i,j] - 1", "S", "i32[B]", "%k");
    o.reduce("u8_" + kind, kind, "(i,j) => %k[j,i]", "B", "u8[S]", "%k");
  }
  o.reduce("count", "sum", "(i,j) => i64(%m[i,j])", "S", "i64[B]", "%m");
  o.reduce("any", "max", "(i,j) => i64(%m[i,j])", "B,S", "i64[]", "%m");
  return {"reduce_integers",
          graph_text("%k: i64[B,S], %m: bool[B,S]", "B = k.0 in 1.., S = k.1 in 1..", o.body,
                     o.outputs),
          {{1, 1}, {2, 9}, {5, 40}, {33, 7}}};
}

Case types() {
  Ops o;
  for (const std::string kind : kKinds) {
    o.reduce("f64_" + kind, kind, "(i,j) => %d[i,j]", "S", "f64[B]", "%d");
    o.reduce("f16_" + kind, kind, "(i,j) => %h[i,j]", "S", "f16[B]", "%h");
    o.reduce("bf16_" + kind, kind, "(i,j) => %h[j,i]", "B", "bf16[S]", "%h");
  }
  return {
      "reduce_types",
      graph_text("%d: f64[B,S], %h: f16[B,S]", "B = d.0 in 1.., S = d.1 in 1..", o.body, o.outputs),
      {{1, 1}, {4, 21}, {3, 65}},
      {{"d", {0.9, 1.1}}, {"h", {0.9, 1.1}}}};
}

Case cumsum() {
  std::string body;
  std::vector<std::string> outputs;
  const auto add = [&](const std::string& x, const std::string& type, int axis, bool exclusive,
                       bool reverse) {
    outputs.push_back(fmt::format("{}_{}{}{}", x, axis, exclusive ? "_exclusive" : "",
                                  reverse ? "_reverse" : ""));
    body += fmt::format("  %{} = cumsum(%{}) {{axis = {}, exclusive = {}, reverse = {}}} : {}\n",
                        outputs.back(), x, axis, exclusive, reverse, type);
  };
  for (bool exclusive : {false, true}) {
    for (bool reverse : {false, true}) {
      add("k", "i64[B,S]", 1, exclusive, reverse);
      add("x", "f32[B,S,3]", 1, exclusive, reverse);
      add("x", "f32[B,S,3]", 0, exclusive, reverse);
      add("x", "f32[B,S,3]", 2, exclusive, reverse);
    }
  }
  add("n", "i32[B,S]", 1, false, false);
  add("u", "u8[S]", 0, false, false);
  add("h", "f16[S]", 0, false, true);
  add("d", "f64[S]", 0, true, false);
  add("h", "f32[S]", 0, false, false);
  add("h", "bf16[S]", 0, true, false);
  add("d", "f32[S]", 0, false, false);
  body += "  %half = pointwise(%h) {body = (i) => %h[i] + 1.0} : f32[(S + 1) / 2]\n";
  add("half", "f32[(S + 1) / 2]", 0, false, false);  // a size that is computed with a division
  Case c{"cumsum",
         graph_text("%k: i64[B,S], %x: f32[B,S,3], %n: i32[B,S], %u: u8[S], %h: f16[S], %d: f64[S]",
                    "B = k.0 in 1.., S = k.1 in 1..", body, outputs),
         {{1, 1}, {2, 31}, {3, 32}, {5, 33}, {2, 127}, {1, 128}, {3, 300}},
         {{"x", {0, 1}}, {"h", {0, 1}}}};
  return c;
}

}  // namespace

std::vector<Case> reduce_cases() {
  return {axes(), long_rows(), few_terms(), specials(), integers(), types(), cumsum()};
}

}  // namespace tfcc::test

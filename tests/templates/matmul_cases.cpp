// SPDX-License-Identifier: Apache-2.0
// matmul: weights, batches, broadcast leading dims, transposes, alpha, bias, graph inputs and
// outputs, f64, integers.
#include <fmt/format.h>

#include <algorithm>

#include "tests/templates/cases.h"
#include "tests/templates/product_ops.h"

namespace tfcc::test {
namespace {

const std::vector<std::vector<int64_t>> kShapes = {{1, 1},  {2, 15}, {1, 16},
                                                   {3, 17}, {2, 64}, {1, 65}};

Case weights() {
  Ops o;
  o.body =
      "  const @w : f32[20,28] = random(1)\n  const @wt : f32[28,20] = random(2)\n  const @b : "
      "f32[28] = random(3)\n"
      "  %h = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 0.5} : f32[B,S,20]\n";
  o.matmul("input", "%x, @w", "f32[B,S,28]");
  o.matmul("arena", "%h, @w", "f32[B,S,28]");
  o.matmul("bias", "%h, @w, @b", "f32[B,S,28]");
  o.matmul("transposed", "%h, @wt, @b", "f32[B,S,28]", 1, false, true);
  o.matmul("alpha", "%h, @wt, @b", "f32[B,S,28]", 0.125, false, true);
  o.matmul("input_bias", "%h, @w, %c", "f32[B,S,28]", 2);
  o.body += "  %next = pointwise(%bias) {body = (i,j,k) => tanh(%bias[i,j,k])} : f32[B,S,28]\n";
  o.outputs.push_back("next");
  o.matmul("last", "%next, @wt", "f32[B,S,20]");
  return {"matmul_weights",
          graph_text("%x: f32[B,S,20], %c: f32[28]", "B = x.0 in 1.., S = x.1 in 1..", o.body,
                     o.outputs),
          kShapes,
          {},
          1e-5,
          9e-4};
}

// Heads side by side: more columns than a tile of the CPU has, fewer, and as many as a run says.
Case heads() {
  Ops o;
  o.body = "  %q = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 0.5} : f32[B,S,48]\n";
  const auto product = [&](const std::string& name, const std::string& factor,
                           const std::string& of, const std::string& columns) {
    o.body += fmt::format(
        "  %{0} = matmul(%q, %{1}2) {{alpha = 0.25, heads = {2}, trans_a = false, trans_b = false}} : f32[B,S,{3}]\n",
        name, factor, of, columns);
    o.outputs.push_back(name);
  };
  for (const auto& [name, columns] : {std::pair{"wide", "88"}, {"narrow", "5"}, {"some", "S + 3"}})
    o.body +=
        fmt::format("  %{0}2 = pointwise(%{0}) {{body = (i,j) => %{0}[i,j] * 2.0}} : f32[48,{1}]\n",
                    name, columns);
  product("y3", "wide", "3", "264");
  product("y12", "narrow", "12", "60");
  product("y1", "narrow", "1", "5");
  product("ys", "some", "4", "4*S + 12");
  return {"matmul_heads",
          graph_text("%x: f32[B,S,48], %wide: f32[48,88], %narrow: f32[48,5], %some: f32[48,S + 3]",
                     "B = x.0 in 1.., S = x.1 in 1..", o.body, o.outputs),
          kShapes,
          {},
          1e-5,
          9e-4};
}

Case batched() {
  Ops o;
  for (bool trans_a : {false, true}) {
    for (bool trans_b : {false, true}) {
      o.matmul(fmt::format("y{}{}", int(trans_a), int(trans_b)),
               fmt::format("%{}, %{}", trans_a ? "at" : "a", trans_b ? "bt" : "b"), "f32[B,3,S,9]",
               0.5, trans_a, trans_b);
    }
  }
  o.matmul("square", "%a, %a", "f32[B,3,S,S]", 1, false, true);
  o.body += "  %scores = softmax(%square) : f32[B,3,S,S]\n";
  o.matmul("attended", "%scores, %a", "f32[B,3,S,6]");
  return {"matmul_batched",
          graph_text("%a: f32[B,3,S,6], %at: f32[B,3,6,S], %b: f32[B,3,6,9], %bt: f32[B,3,9,6]",
                     "B = a.0 in 1.., S = a.2 in 1..", o.body, o.outputs),
          kShapes,
          {},
          1e-5,
          9e-4};
}

Case broadcast() {
  Ops o;
  o.body =
      "  const @w : f32[4,8,8] = random(1)\n  const @left : f32[5,8] = random(2)\n  const @bias : "
      "f32[8] = random(3)\n";
  o.matmul("both", "%a, %b", "f32[B,4,S,5]");
  o.matmul("both_bias", "%a, @w, @bias", "f32[B,4,S,8]", 0.5, false, true);
  o.matmul("left_2d", "%p, %b", "f32[1,4,S,5]");
  o.matmul("right_2d", "%a, %q", "f32[B,1,S,3]");
  o.matmul("left_shared", "@left, %r", "f32[B,5,S]");
  o.matmul("left_shared_transposed", "%q, %r", "f32[B,3,S]", 1, true, false);
  o.matmul("right_shared_transposed_a", "%r, %q", "f32[B,S,3]", 1, true, false);
  o.matmul("two_2d", "%p, %q", "f32[S,3]");
  o.matmul("longer_right", "%p, %r", "f32[B,S,S]");
  return {
      "matmul_broadcast",
      graph_text("%a: f32[B,1,S,8], %b: f32[1,4,8,5], %p: f32[S,8], %q: f32[8,3], %r: f32[B,8,S]",
                 "B = a.0 in 1.., S = a.2 in 1..", o.body, o.outputs),
      kShapes,
      {},
      1e-5,
      9e-4};
}

Case of_16_bits() {
  Ops o;
  o.body =
      "  const @w : f16[24,16] = f32[24,16] random(1) |> cast(f16)\n  const @b : f16[16] = f32[16] "
      "random(2) |> cast(f16)\n"
      "  const @v : bf16[24,16] = f32[24,16] random(1) |> cast(bf16)\n";
  o.matmul("half", "%h, @w, @b", "f16[B,S,16]", 0.5);
  o.matmul("half_pairs", "%h, %h", "f16[B,S,S]", 1, false, true);
  o.matmul("brain", "%g, @v", "bf16[B,S,16]");
  o.matmul("wide", "%h, @w", "f32[B,S,16]");
  o.matmul("wide_pairs", "%g, %g", "f32[B,S,S]", 0.5, false, true);
  Case c{"matmul_16_bit",
         graph_text("%h: f16[B,S,24], %g: bf16[B,S,24]", "B = h.0 in 1.., S = h.1 in 1..", o.body,
                    o.outputs),
         kShapes,
         {},
         1e-5,
         9e-4};
  c.widen_on_cpu = true;
  return c;
}

Case doubles() {
  Ops o;
  o.matmul("double", "%d, %e", "f64[B,S,7]");
  o.matmul("transposed", "%e, %d", "f64[B,7,S]", 2, true, true);
  o.matmul("pairs", "%d, %d", "f64[B,S,S]", 0.25, false, true);
  o.matmul("bias", "%d, %e, %b", "f64[B,S,7]");
  o.body +=
      "  const @q : u8[5,24] = " + codes(5 * 24, 1, false) +
      "\n  %bytes = matmul(%d, @q) {alpha = 0.5, trans_a = false, trans_b = true, weight = (i,j) => f64(@q[i,j]) * 0.125d} : f64[B,S,5]\n";
  o.outputs.push_back("bytes");
  return {"matmul_f64",
          graph_text("%d: f64[B,S,24], %e: f64[24,7], %b: f64[7]", "B = d.0 in 1.., S = d.1 in 1..",
                     o.body, o.outputs),
          kShapes,
          {},
          1e-5,
          9e-4};
}

// Exact for every pair of widths and signs, modulo 2^32 or 2^64; whole ranges of values, so that
// sums of i32 do pass 2^31.
Case integers() {
  Ops o;
  o.matmul("activations", "%u, %w", "i32[B,S,19]");
  o.matmul("transposed", "%u, %wt", "i32[B,S,19]", 1, false, true);
  o.matmul("both", "%v, %wt", "i32[B,S,19]", 1, true, true);
  o.matmul("wide", "%h, %w", "i64[B,S,19]");
  o.matmul("pairs", "%u, %u", "i32[B,S,S]", 1, false, true);
  o.matmul("shared", "%w, %v", "i32[B,19,S]", 1, true, false);
  o.matmul("wraps", "%q, %q", "i32[B,S,S]", 1, false, true);
  o.matmul("long", "%l, %q", "i64[B,S,S]", 1, false, true);
  o.matmul("four", "%f, %g", "i32[B,2,S,5]");
  o.body +=
      "  %next = pointwise(%activations) {body = (i,j,k) => %activations[i,j,k] * 3 - 7} : i32[B,S,19]\n";
  o.outputs.push_back("next");
  o.matmul("chained", "%next, %wt", "i32[B,S,24]");
  Case c{
      "matmul_integers",
      graph_text(
          "%u: u8[B,S,24], %v: u8[B,24,S], %w: i8[24,19], %wt: i8[19,24], %h: i16[B,S,24], %q: i32[B,S,24], "
          "%l: i64[B,S,24], %f: i8[B,1,S,7], %g: u8[2,7,5]",
          "B = u.0 in 1.., S = u.1 in 1..", o.body, o.outputs),
      kShapes,
      {{"u", {0, 255}},
       {"v", {0, 255}},
       {"w", {-128, 127}},
       {"wt", {-128, 127}},
       {"h", {-32768, 32767}},
       {"q", {-2147483648.0, 2147483647.0}},
       {"l", {-4e18, 4e18}},
       {"g", {0, 255}}}};
  c.f16 = false;
  return c;
}

// Each of the sizes alone at 1, and sizes past any tile.
Case edges() {
  Ops o;
  const int sizes[] = {1, 15, 33, 130};
  for (int k : sizes) {
    for (int n : sizes) {
      o.body += fmt::format(
          "  const @w{0}_{1} : f32[{0},{1}] = random({0})\n  %x{0}_{1} = pointwise(%x) {{body = "
          "(i,j) => %x[i,j]}} : f32[N,{0}]\n",
          k, n);
      o.matmul(fmt::format("y{}_{}", k, n), fmt::format("%x{0}_{1}, @w{0}_{1}", k, n),
               fmt::format("f32[N,{}]", n));
    }
  }
  return {"matmul_edges",
          graph_text("%x: f32[N,130]", "N = x.0 in 1..", o.body, o.outputs),
          {{1}, {2}, {127}, {128}, {129}},
          {},
          1e-5,
          9e-4};
}

// Bytes by a weight of bytes, whole ranges of both: panels of each width, every count of rows up to
// a tile and past a block; with an epilogue of what may stand beside such a sum, where the sum is
// stored first (k is no multiple of 4), and where it is stored alone.
Case bytes() {
  Ops o;
  const auto weight = [](int64_t rows, int64_t columns) {
    std::string list;
    for (int64_t i = 0; i < rows * columns; ++i)
      list += fmt::format("{}{}", i ? ", " : "", (i * 7919 + i / 13 * 104729 + 77) % 256 - 128);
    return fmt::format("i8[{},{}] = [{}]", rows, columns, list);
  };
  for (auto [k, n] :
       {std::pair{4, 16}, {20, 32}, {132, 48}, {36, 64}, {8, 192}, {1028, 16}, {7, 16}}) {
    const std::string id = fmt::format("{}_{}", k, n);
    o.body += fmt::format(
        "  const @w{0} : {3}\n  const @t{0} : {4}\n  const @b{0} : f32[{2}] = random(3)\n"
        "  %u{0} = pointwise(%u) {{body = (i,j) => %u[i,j]}} : u8[N,{1}]\n  %v{0} = pointwise(%v) {{body = (i,j) => %v[i,j]}} : i8[N,{1}]\n"
        "  %r{0} = pointwise(%x) {{body = (i,j) => %x[i,j]}} : f32[N,{2}]\n",
        id, k, n, weight(k, n), weight(n, k));
    o.matmul("sum" + id, fmt::format("%u{0}, @w{0}", id), fmt::format("i32[N,{}]", n));
    o.matmul("signed" + id, fmt::format("%v{0}, @t{0}", id), fmt::format("i32[N,{}]", n), 1, false,
             true);
    o.product("all" + id, fmt::format("%u{0}, @t{0}, %rows, %scale, @b{0}, %r{0}", id),
              fmt::format("max(f32(s - 3 * %rows[i]) * %scale[], 0.0) + @b{0}[j] + %r{0}[i,j]", id),
              fmt::format("f32[N,{}]", n), 1, false, true);
    o.product("other" + id, fmt::format("%v{0}, @w{0}", id), "f32(s * (j + 1))",
              fmt::format("f32[N,{}]", n));
  }
  Case c{"matmul_bytes",
         graph_text("%u: u8[N,1028], %v: i8[N,1028], %rows: i32[N], %scale: f32[], %x: f32[N,192]",
                    "N = u.0 in 1..", o.body, o.outputs),
         {{1}, {2}, {3}, {4}, {5}, {6}, {7}, {11}, {12}, {13}, {127}, {129}, {300}},
         {{"u", {0, 255}}, {"v", {-128, 127}}}};
  c.f16 = false;
  return c;
}

// Weights whose columns fill vectors: panels of each width, one and several, sums in one and in two
// parts, every count of rows up to a tile and past a block; with what may follow a product, and
// what must not be taken into it.
Case panels() {
  Ops o;
  for (auto [k, n] : {std::pair{5, 16},
                      {20, 32},
                      {7, 48},
                      {33, 64},
                      {130, 192},
                      {1, 240},
                      {1601, 16},
                      {1601, 64}}) {
    const std::string id = fmt::format("{}_{}", k, n);
    o.body += fmt::format(
        "  const @w{0} : f32[{1},{2}] = random({2})\n  const @t{0} : f32[{2},{1}] = random({1})\n  const @b{0} : f32[{2}] = random(3)\n"
        "  %x{0} = pointwise(%x) {{body = (i,j) => %x[i,j]}} : f32[N,{1}]\n",
        id, k, n);
    o.matmul("plain" + id, fmt::format("%x{0}, @w{0}", id), fmt::format("f32[N,{}]", n));
    o.matmul("all" + id, fmt::format("%x{0}, @t{0}, @b{0}", id), fmt::format("f32[N,{}]", n), 0.5,
             false, true);
  }
  return {"matmul_panels",
          graph_text("%x: f32[N,1601]", "N = x.0 in 1..", o.body, o.outputs),
          {{1},
           {2},
           {3},
           {4},
           {5},
           {6},
           {7},
           {8},
           {9},
           {11},
           {12},
           {13},
           {14},
           {15},
           {41},
           {127},
           {128},
           {129},
           {300}},
          {},
          1e-5,
          9e-4};
}

// Epilogues of every form: GELU, which has kernels of its own where an arm cannot take it; a
// residual, a column and a single value beside the sum, the factor itself; elements of other rows
// and the indices, which no arm takes.
Case epilogues() {
  Ops o;
  o.body =
      "  const @w : f32[24,64] = random(1)\n  const @v : f32[64,64] = random(4)\n  const @b : f32[64] = random(2)\n  const @one : f32[] = random(3)\n"
      "  %h = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 40.0} : f32[B,S,24]\n"
      "  %r = pointwise(%x) {body = (i,j,k) => %x[i,j,k % 24]} : f32[B,S,64]\n";
  const auto erf = [](const std::string& x) {
    return fmt::format("0.5 * ({0}) * (1.0 + erf(({0}) * 0.70710677))", x);
  };
  const auto tanh = [](const std::string& x) {
    return fmt::format(
        "0.5 * ({0}) * (1.0 + tanh(0.7978846 * (({0}) + 0.044715 * ({0}) * ({0}) * ({0}))))", x);
  };
  int n = 0;
  const auto add = [&](const std::string& operands, const std::string& epilogue, double alpha = 1) {
    o.product(fmt::format("y{}", n++), operands, epilogue, "f32[B,S,64]", alpha);
  };
  add("%h, @w", erf("s"));
  add("%h, @w, @b", erf("s + @b[k]"), 0.5);
  add("%h, @w, %c", erf("s + %c[k]"));
  add("%h, @w", tanh("s"));
  add("%h, @w, @b", tanh("s + @b[k]"), 0.5);
  add("%h, @w, @b", "max(s + @b[k], 0.0)");
  add("%h, @w, @b, %r", "s + @b[k] + %r[i,j,k]");
  add("%h, @w, %r, @b, @one", "(s * @one[] + @b[k]) / (1.0 + exp(-%r[i,j,k]))", 0.25);
  add("%r, @v, %r", "s + %r[i,j,k]");
  add("%h, @w, %r", "s + %r[i,0,k]");
  add("%h, @w", "s * f32(j + 1)");
  add("%h, @w, %r", "s + %r[i,j,63 - k]");
  o.body += "  %next = pointwise(%y5) {body = (i,j,k) => tanh(%y5[i,j,k])} : f32[B,S,64]\n";
  o.outputs.push_back("next");
  return {"matmul_epilogues",
          graph_text("%x: f32[B,S,24], %c: f32[64]", "B = x.0 in 1.., S = x.1 in 1..", o.body,
                     o.outputs),
          kShapes,
          {},
          1e-5,
          9e-4};
}

// Weights that are expressions of bytes: of 8, 4 and 2 bits, with a scale for a block or a column,
// with zero points in bits; tiles that are not full, sums of less than a line of codes and of many.
// On the CPU, and on a GPU in 16 bits for so few rows, they are computed where they are read; one
// whose neighbours share too little, and one whose sum has a part of a chunk, never are.
Case weights_in_bits() {
  Ops o;
  uint32_t seed = 1;
  const auto add = [&](int64_t k, int64_t n, int64_t bits, int64_t block, bool zero, bool is_signed,
                       const std::string& epilogue = "") {
    const int64_t per = 8 / bits, blocks = (k + block - 1) / block,
                  zero_bytes = (blocks + per - 1) / per;
    const std::string id = fmt::format("{}_{}_{}_{}{}", k, n, bits, block, is_signed ? "s" : "");
    o.body += fmt::format(
        "  const @q{0} : {1}[{2},{3}] = {4}\n  const @s{0} : f32[{2},{5}] = random({6})\n"
        "  %h{0} = pointwise(%x) {{body = (i,j,k) => %x[i,j,k % 64]}} : f32[B,S,{7}]\n",
        id, is_signed ? "i8" : "u8", n, k / per, codes(n * k / per, seed, is_signed), blocks,
        ++seed, k);
    std::string operands = fmt::format("%h{0}, @q{0}, @s{0}", id);
    const auto value = [&](const std::string& of, const std::string& row, const std::string& at) {
      if (per == 1) return fmt::format("{}{}[{},{}]", of, id, row, at);
      const std::string byte = fmt::format("{}{}[{},({}) / {}]", of, id, row, at, per);
      std::string text = byte;
      for (int64_t k = 1; k < per; ++k)
        text = fmt::format("select(({}) % {} == {}, {} / {}, {})", at, per, k, byte,
                           1 << (k * bits), text);
      return fmt::format("({}) % {}", text, 1 << bits);
    };
    const std::string at = fmt::format("j / {}", block);
    std::string shift = is_signed ? "0.0" : fmt::format("{}.0", 1 << (bits - 1));
    if (zero) {
      o.body += fmt::format("  const @z{} : u8[{},{}] = {}\n", id, n, zero_bytes,
                            codes(n * zero_bytes, ++seed, false));
      operands += fmt::format(", @z{}", id);
      shift = fmt::format("f32({})", value("@z", "i", at));
    }
    const std::string name = fmt::format("y{}", id);
    const std::string bias =
        epilogue.empty() ? "" : fmt::format(", epilogue = (s,i,j,k) => {}", epilogue);
    o.body += fmt::format(
        "  %{} = matmul({}) {{alpha = 0.01{}, trans_a = false, trans_b = true, weight = (i,j) => (f32({}) - {}) * @s{}[i,{}]}} : f32[B,S,{}]\n",
        name, operands, bias, value("@q", "i", "j"), shift, id, at, n);
    o.outputs.push_back(name);
  };
  // Of other forms, which are ops of their own: codes that are read twice, or elsewhere, and indices.
  const auto other = [&](const std::string& name, int64_t n, const std::string& weight,
                         const std::string& type = "f32") {
    o.body += fmt::format(
        "  const @c{0} : u8[{1},64] = {2}\n  %g{0} = pointwise(%x) {{body = (i,j,k) => {3}(%x[i,j,k])}} : {3}[B,S,64]\n"
        "  %{0} = matmul(%g{0}, @c{0}) {{alpha = 0.01, trans_a = false, trans_b = true, weight = (i,j) => {4}}} : {3}[B,S,{1}]\n",
        name, n, codes(n * 64, ++seed, false), type, weight);
    o.outputs.push_back(name);
  };
  other("twice", 64, "f32(@ctwice[i,j]) - f32(@ctwice[i,0])");
  other("elsewhere", 64, "f32(@celsewhere[63 - i,j])");
  other("triangle", 64, "select(j <= i, f32(@ctriangle[i,j]), 0.0)");
  other("column", 64, "f32(@ccolumn[i,j] + i)");
  other("one", 1, "f32(@cone[i,j]) * 0.5");
  add(64, 64, 4, 32, false, false);
  add(320, 136, 4, 32, true, false);
  add(1024, 208, 4, 128, false, false, "max(s, 0.0)");
  add(64, 2560, 4, 32, false, false);
  add(320, 72, 8, 32, false, false);
  add(256, 80, 8, 256, false, true);
  add(2112, 64, 8, 64, true, false);
  add(512, 96, 2, 64, false, false);
  add(1088, 80, 2, 64, true, false);
  add(128, 80, 4, 16, false, false);
  add(72, 80, 4, 32, false, false);
  return of_few_rows("matmul_weights_in_bits", o);
}

// Weights of 16 bits in products of f32, by rows and by columns: the CPU reads them so where the
// columns fill panels, and each result has the bits that the same weight in f32 gives.
Case weights_in_16_bits() {
  Ops o;
  int seed = 1;
  for (const std::string type : {"f16", "bf16"}) {
    for (const auto& [k, n] : {std::pair{70, 64}, {1600, 48}, {33, 32}, {64, 16}, {40, 72}}) {
      for (const bool transposed : {false, true}) {
        const std::string id = fmt::format("{}_{}_{}{}", type, k, n, transposed ? "_t" : ""),
                          dims =
                              transposed ? fmt::format("{},{}", n, k) : fmt::format("{},{}", k, n);
        o.body += fmt::format(
            "  const @w{0} : {1}[{2}] = f32[{2}] random({3}) |> cast({1})\n"
            "  const @v{0} : f32[{2}] = f32[{2}] random({3}) |> cast({1}) |> cast(f32)\n"
            "  %h{0} = pointwise(%x) {{body = (i,j) => %x[i,j % 64]}} : f32[S,{4}]\n"
            "  %a{0} = matmul(%h{0}, @w{0}) {{alpha = 0.5, epilogue = (s,i,j) => max(s, -1.0), trans_a = false, trans_b = {5}, weight = (i,j) => @w{0}[i,j]}} : f32[S,{6}]\n"
            "  %b{0} = matmul(%h{0}, @v{0}) {{alpha = 0.5, epilogue = (s,i,j) => max(s, -1.0), trans_a = false, trans_b = {5}}} : f32[S,{6}]\n"
            "  %d{0} = pointwise(%a{0}, %b{0}) {{body = (i,j) => select(%a{0}[i,j] <= %b{0}[i,j] and %b{0}[i,j] <= %a{0}[i,j], 1, 0)}} : i64[S,{6}]\n",
            id, type, dims, seed++, k, transposed, n);
        o.outputs.push_back("a" + id);
        o.outputs.push_back("d" + id);
      }
    }
  }
  Case c{"matmul_weights_in_16_bits",
         graph_text("%x: f32[S,64]", "S = x.0 in 1..", o.body, o.outputs),
         {{1}, {3}, {16}, {130}},
         {},
         1e-6};
  c.f16 = false;
  return c;
}

}  // namespace

std::vector<Case> matmul_cases() {
  std::vector<Case> all = {panels(),    epilogues(),       weights(),           batched(),  heads(),
                           broadcast(), of_16_bits(),      doubles(),           integers(), bytes(),
                           edges(),     weights_in_bits(), weights_in_16_bits()};
  for (Case& c : matmul_tile_cases()) all.push_back(std::move(c));
  return all;
}

}  // namespace tfcc::test

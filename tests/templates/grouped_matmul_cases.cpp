// SPDX-License-Identifier: Apache-2.0
// grouped_matmul: fewer rows than matrices and many more, rows that share one of x, sizes off the
// edges of tiles, choices that leave matrices out, results of another type, matrices of few bits.
#include <fmt/format.h>

#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

const std::vector<std::vector<int64_t>> kShapes = {{1, 1}, {1, 2}, {2, 7}, {1, 33}, {3, 65}};

// `experts` of [n, k], of which a token takes two, and a product of each of these by as many [k, n].
Case experts(int64_t count, int64_t n, int64_t k) {
  Case c{
      fmt::format("grouped_matmul_{}_of_{}x{}", count, n, k),
      graph_text(
          fmt::format("%x: f32[B,S,{}], %e: i64[B,S,2]", k), "B = x.0 in 1.., S = x.1 in 1..",
          fmt::format(
              "  const @up : f32[{0},{1},{2}] = random(1)\n"
              "  const @down : f32[{0},{2},{1}] = random(2)\n"
              "  %h = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 0.5}} : f32[B,S,{2}]\n"
              "  %u = grouped_matmul(%h, @up, %e) {{which = (i,j,k) => (%e[i,j,k] + 9) % {0}}} : f32[B,S,2,{1}]\n"
              "  %a = pointwise(%u) {{body = (i,j,k,l) => %u[i,j,k,l] * %u[i,j,k,l]}} : f32[B,S,2,{1}]\n"
              "  %d = grouped_matmul(%a, @down, %e) {{which = (i,j,k) => (%e[i,j,k] + 9) % {0}}} : f32[B,S,2,{2}]\n"
              "  %y = reduce(%d) {{body = (i,j,k,l) => %d[i,j,l,k], extents = [2], kind = sum}} : f32[B,S,{2}]\n",
              count, n, k),
          {"y"}),
      kShapes,
      {},
      1e-5,
      2e-3};
  c.bf16 = true;
  c.widen_on_cpu = true;
  return c;
}

// Matrices that are expressions of bytes, of 8, 4 or 2 bits, with a scale for each block of a row: read
// in chunks where a chunk has one scale and rows are whole chunks, else value by value.
// `tokens`: so many, which the compiler knows; then rows are few, and a GPU has a kernel for them.
Case coded(int64_t count, int64_t n, int64_t k, int64_t bits, int64_t block, bool zero = false,
           bool is_signed = false, int64_t tokens = 0) {
  const int64_t per = 8 / bits, blocks = k / block, zero_bytes = (blocks + per - 1) / per;
  const auto value = [&](const std::string& of, const std::string& at) {
    if (per == 1) return fmt::format("{}[i,j,{}]", of, at);
    const std::string byte = fmt::format("{}[i,j,({}) / {}]", of, at, per);
    std::string text = byte;
    for (int64_t v = 1; v < per; ++v)
      text = fmt::format("select(({}) % {} == {}, {} / {}, {})", at, per, v, byte, 1 << (v * bits),
                         text);
    return fmt::format("({}) % {}", text, 1 << bits);
  };
  const std::string of_block = fmt::format("k / {}", block);
  std::string body =
      fmt::format("  const @q : {}[{},{},{}] = {}\n  const @s : f32[{},{},{}] = random(3)\n",
                  is_signed ? "i8" : "u8", count, n, k / per,
                  codes(count * n * k / per, 1, is_signed), count, n, blocks);
  std::string shift = is_signed ? "0.0" : fmt::format("{}.0", 1 << (bits - 1));
  if (zero) {
    body += fmt::format("  const @z : u8[{},{},{}] = {}\n", count, n, zero_bytes,
                        codes(count * n * zero_bytes, 2, false));
    shift = fmt::format("f32({})", value("@z", of_block));
  }
  body += fmt::format(
      "  %h = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 0.125}} : f32[B,S,{0}]\n"
      "  %y = grouped_matmul(%h, @q, @s{1}, %e) {{groups = {2}, weight = (i,j,k) => (f32({3}) - {4}) * @s[i,j,{5}], which = (i,j,k) => (%e[i,j,k] + 9) % {2}}} : f32[B,S,2,{6}]\n"
      "  %d = pointwise(%y) {{body = (i,j,k,l) => %y[i,j,k,l] * 0.5}} : f32[B,S,2,{6}]\n",
      k, zero ? ", @z" : "", count, value("@q", "k"), shift, of_block, n);
  Case c{fmt::format("grouped_matmul_{}_of_{}x{}_in_{}_bits_by_{}{}{}", count, n, k, bits, block,
                     zero ? "_zero" : "", is_signed ? "_signed" : ""),
         graph_text(fmt::format("%x: f32[B,S,{}], %e: i64[B,S,2]", k),
                    "B = x.0 in 1.., S = x.1 in 1..", body, {"d"}),
         kShapes,
         {},
         1e-5,
         2e-3};
  c.bf16 = true;
  c.widen_on_cpu = true;
  if (tokens) {
    c.name += fmt::format("_{}_tokens", tokens);
    c.shapes = {{}};
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>{" symbols(B = x.0 in 1.., S = x.1 in 1..)", ""},
          {"[B,S,", fmt::format("[1,{},", tokens)}}) {
      for (size_t at = c.text.find(from); at != std::string::npos; at = c.text.find(from, at))
        c.text.replace(at, from.size(), to);
    }
  }
  return c;
}

// Matrices that stay in 16 bits where products are in f32.
Case narrow(int64_t count, int64_t n, int64_t k, const char* dtype) {
  Case c{
      fmt::format("grouped_matmul_{}_of_{}x{}_in_{}", count, n, k, dtype),
      graph_text(
          fmt::format("%x: f32[B,S,{}], %e: i64[B,S,2]", k), "B = x.0 in 1.., S = x.1 in 1..",
          fmt::format(
              "  const @w : {3}[{0},{1},{2}] = random(1)\n"
              "  %h = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 0.5}} : f32[B,S,{2}]\n"
              "  %u = grouped_matmul(%h, @w, %e) {{groups = {0}, weight = (i,j,k) => @w[i,j,k], which = (i,j,k) => (%e[i,j,k] + 9) % {0}}} : f32[B,S,2,{1}]\n"
              "  %y = pointwise(%u) {{body = (i,j,k,l) => %u[i,j,k,l] * 0.5}} : f32[B,S,2,{1}]\n",
              count, n, k, dtype),
          {"y"}),
      kShapes,
      {},
      1e-5,
      2e-3};
  c.bf16 = true;
  return c;
}

// One row for each token; of some a matrix that all choose, of some one that follows from where they are.
Case rows() {
  Case c{
      "grouped_matmul_rows",
      graph_text(
          "%x: f32[B,S,24], %w: f32[3,20,24], %s: f32[24]", "B = x.0 in 1.., S = x.1 in 1..",
          "  %one = grouped_matmul(%x, %w) {which = (i,j) => 2} : f32[B,S,20]\n"
          "  %turns = grouped_matmul(%x, %w) {which = (i,j) => (i + j) % 3} : f32[B,S,20]\n"
          "  %same = grouped_matmul(%s, %w) {which = (i,j) => j % 3} : f32[B,S,20]\n"
          "  %y = pointwise(%one, %turns, %same) {body = (i,j,k) => %one[i,j,k] + 2.0 * %turns[i,j,k] + 3.0 * %same[i,j,k]} : f32[B,S,20]\n",
          {"one", "y"}),
      kShapes,
      {},
      1e-5,
      2e-3};
  c.widen_on_cpu = true;
  return c;
}

}  // namespace

std::vector<Case> grouped_matmul_cases() {
  return {experts(1, 16, 32),
          experts(4, 48, 32),
          experts(19, 24, 40),
          experts(128, 72, 16),
          experts(3, 130, 264),
          experts(5, 7, 9),
          rows(),
          narrow(4, 48, 32, "f16"),
          narrow(2, 32, 1600, "bf16"),
          narrow(19, 70, 45, "bf16"),
          coded(4, 48, 64, 4, 32),
          coded(2, 96, 544, 4, 32),
          coded(3, 130, 160, 4, 32, true),
          coded(19, 64, 64, 4, 64),
          coded(2, 80, 128, 2, 64, true),
          coded(4, 48, 80, 8, 16),
          coded(3, 24, 64, 8, 64, false, true),
          coded(3, 24, 40, 4, 8),
          coded(4, 33, 64, 4, 16),
          coded(4, 48, 64, 4, 32, false, false, 5),
          coded(3, 130, 160, 4, 32, true, false, 7),
          coded(2, 40, 1056, 4, 32, false, false, 16),
          coded(2, 72, 288, 8, 32, true, false, 13),
          coded(3, 56, 176, 8, 16, false, true, 3),
          coded(8, 80, 576, 2, 64, true, false, 9)};
}

}  // namespace tfcc::test

// SPDX-License-Identifier: Apache-2.0
// matmul: what decides between kernels of a GPU and their tiles. Numbers of rows, widths, orders of
// the weight, gates, sums in order, rows that a run counts, norms between products.
#include <fmt/format.h>

#include <algorithm>

#include "tests/templates/cases.h"
#include "tests/templates/product_ops.h"

namespace tfcc::test {
namespace {

// Sizes past a tile of a warpgroup in each direction and off its multiples, both orders of the
// weight, sums of one and of many tiles; rows up to each number of tokens that has tiles of its
// own. In f32 the library's.
Case tiles() {
  Ops o;
  o.body = "  %r = pointwise(%x) {body = (i,j,k) => %x[i,j,k % 72]} : f32[B,S,200]\n";
  for (auto [k, n] : {std::pair{64, 64}, {72, 200}, {136, 72}, {1000, 128}, {200, 776}}) {
    const std::string id = fmt::format("{}_{}", k, n), type = fmt::format("f32[B,S,{}]", n);
    o.body += fmt::format(
        "  const @w{0} : f32[{1},{2}] = random({2})\n  const @t{0} : f32[{2},{1}] = random({1})\n  const @b{0} : f32[{2}] = random(3)\n"
        "  %h{0} = pointwise(%x) {{body = (i,j,k) => %x[i,j,k % 72]}} : f32[B,S,{1}]\n",
        id, k, n);
    o.matmul("plain" + id, fmt::format("%h{0}, @w{0}", id), type);
    o.matmul("transposed" + id, fmt::format("%h{0}, @t{0}, @b{0}", id), type, 0.5, false, true);
    o.product("relu" + id, fmt::format("%h{0}, @w{0}, @b{0}", id),
              fmt::format("max(s + @b{}[k], 0.0)", id), type);
  }
  o.product("residual", "%h72_200, @w72_200, %r", "s + %r[i,j,k]", "f32[B,S,200]");
  return {"matmul_tiles",
          graph_text("%x: f32[B,S,72]", kOfTokens, o.body, o.outputs),
          {{1, 1}, {1, 63}, {2, 64}, {1, 129}, {3, 100}, {1, 700}, {5, 300}, {1, 4500}},
          {},
          1e-5,
          9e-4};
}

// Every width of a tile of a warpgroup; most divide neither rows nor columns.
Case widths() {
  Ops o;
  for (auto [k, n] : kEveryWidth) {
    const std::string id = fmt::format("{}_{}", k, n);
    o.body += fmt::format(
        "  const @t{0} : f32[{2},{1}] = random({1})\n  const @b{0} : f32[{2}] = random(3)\n"
        "  %h{0} = pointwise(%x) {{body = (i,j,k) => %x[i,j,k % 72]}} : f32[B,S,{1}]\n",
        id, k, n);
    o.product("relu" + id, fmt::format("%h{0}, @t{0}, @b{0}", id),
              fmt::format("max(s + @b{}[k], 0.0)", id), fmt::format("f32[B,S,{}]", n), 1, false,
              true);
  }
  std::vector<std::vector<int64_t>> shapes;
  for (int rows : kRowsOfEveryWidth) shapes.push_back({1, rows});
  return {"matmul_widths",
          graph_text("%x: f32[B,S,72]", kOfTokens, o.body, o.outputs),
          shapes,
          {},
          1e-5,
          9e-4};
}

/// Of x [B,S,64] and a weight stored by columns: alone, and with a bias and a ReLU.
void add_products(Ops& o, int k, int n) {
  const std::string id = fmt::format("{}_{}", k, n), type = fmt::format("f32[B,S,{}]", n);
  o.body += fmt::format(
      "  const @t{0} : f32[{2},{1}] = random({1})\n  const @b{0} : f32[{2}] = random(3)\n"
      "  %h{0} = pointwise(%x) {{body = (i,j,k) => %x[i,j,k % 64]}} : f32[B,S,{1}]\n",
      id, k, n);
  o.matmul("plain" + id, fmt::format("%h{0}, @t{0}", id), type, 1, false, true);
  o.product("relu" + id, fmt::format("%h{0}, @t{0}, @b{0}", id),
            fmt::format("max(s + @b{}[k], 0.0)", id), type, 0.5, false, true);
}

// At most 16 rows, past which the weight streams: tiles of several sizes, the last not full; sums
// whose last part is not; one round and more.
Case streams() {
  Ops o;
  o.body = "  %r = pointwise(%x) {body = (i,j,k) => %x[i,j,k % 64]} : f32[B,S,72]\n";
  for (auto [k, n] : {std::pair{64, 64},
                      {128, 72},
                      {320, 136},
                      {1024, 200},
                      {128, 2560},
                      {192, 6200},
                      {128, 8440},
                      {64, 9000}}) {
    add_products(o, k, n);
  }
  o.product("residual", "%h128_72, @t128_72, %r", "s + %r[i,j,k]", "f32[B,S,72]", 1, false, true);
  return of_few_rows("matmul_streams", o);
}

// One value of each pair of eight columns: tiles that are not full, one round and more, both orders
// of the weight, one or two operations in the gate. `few`: at most 16 rows.
Case gates(bool few) {
  Ops o;
  for (auto [k, n] :
       {std::pair{64, 64}, {128, 80}, {320, 208}, {1032, 128}, {64, 6256}, {192, 9024}}) {
    if (few ? k == 1032 : n > 9000) continue;
    const std::string id = fmt::format("{}_{}", k, n);
    o.body += fmt::format(
        "  const @t{0} : f32[{2},{1}] = random({1})\n  const @w{0} : f32[{1},{2}] = random({2})\n"
        "  %h{0} = pointwise(%x) {{body = (i,j,k) => %x[i,j,k % 64]}} : f32[B,S,{1}]\n",
        id, k, n);
    const auto add = [&](const std::string& name, const std::string& gate, double alpha,
                         bool trans_b) {
      o.body += fmt::format(
          "  %{0}{1} = matmul(%h{1}, @{5}{1}) {{alpha = {2:#}, gate = (s,t,i,j,k) => {3}, trans_a = false, trans_b = {6}}} : f32[B,S,{4}]\n",
          name, id, alpha, gate, n / 2, trans_b ? "t" : "w", trans_b);
      o.outputs.push_back(name + id);
    };
    add("swish", "s / (1.0 + exp(-s)) * t", 1, true);
    add("relu", "max(s, 0.0) - t", 0.5, few);
  }
  if (few) return of_few_rows("matmul_gated_streams", o);
  return {"matmul_gates",
          graph_text("%x: f32[B,S,64]", kOfTokens, o.body, o.outputs),
          {{1, 1}, {1, 63}, {2, 64}, {1, 129}, {3, 100}, {1, 700}, {5, 300}},
          {},
          1e-5,
          9e-4};
}

// Beside caches, where sums are in order: every tile, none of them full; rows of k that are copied
// in 16 bytes, and in as few as divide them; one round of the large tiles, and more.
Case ordered() {
  Ops o;
  o.body =
      "  %slots = pointwise() {body = (i) => select(i < 4*P, i, -1)} : i32[B*S]\n"
      "  %k1 = pointwise(%x) {body = (i,j,k) => %x[j / S,j % S,k] * 2.0} : f32[1,B*S,8]\n"
      "  %keys, %values = kv_append(%kc, %vc, %k1, %k1, %slots) : f32[P,1,4,8], f32[P,1,4,8]\n"
      "  %r = pointwise(%x) {body = (i,j,k) => %x[i,j,k % 64]} : f32[B,S,112]\n";
  for (auto [k, n] : {std::pair{64, 112}, {20, 24}, {37, 19}, {7, 1}, {1030, 200}, {128, 2560}}) {
    add_products(o, k, n);
    const std::string id = fmt::format("{}_{}", k, n);
    if (n % 16 != 0) continue;
    o.body += fmt::format(
        "  %gate{0} = matmul(%h{0}, @t{0}) {{alpha = 0.5, gate = (s,t,i,j,k) => max(s, 0.0) - t, trans_a = false, trans_b = true}} : f32[B,S,{1}]\n",
        id, n / 2);
    o.outputs.push_back("gate" + id);
  }
  o.product("residual", "%h64_112, @t64_112, %r", "s + %r[i,j,k]", "f32[B,S,112]", 1, false, true);
  o.body += "  %made = pointwise(@t64_112) {body = (i,j) => @t64_112[i,j] * 0.5} : f32[112,64]\n";
  o.matmul("of_made", "%h64_112, %made", "f32[B,S,112]", 1, false, true);
  std::string results;
  for (const std::string& y : o.outputs) results += fmt::format("{0} = %{0}, ", y);
  return {
      "matmul_ordered",
      fmt::format(
          "graph @ordered(%x: f32[B,S,64], %kc: f32[P,1,4,8], %vc: f32[P,1,4,8]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length, P = kc.0 in 1.., tokens = (B*S) in 1.. as tokens) {{\n{}  return {}kc = %keys, vc = %values\n}}\n",
          o.body, results),
      {{1, 1, 2}, {1, 3, 2}, {2, 10, 9}, {1, 128, 3}, {3, 43, 50}, {1, 1500, 4}},
      {},
      1e-5,
      9e-4};
}

// Rows of x that the run counts, as h, and how they are read again.
constexpr const char* kPackedSizes =
    "B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens, T <= (B*S) in 1.. as packed";
std::string pack_of(int width) {
  return fmt::format(
      "  flag 0 \"a packed row lies outside\"\n  %row, %cu, %keys, %order, %seq, %pos = pack(%mask) {{live = (i,j) => %mask[i,j] == 1}} : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n"
      "  %h = pointwise(%x, %seq, %pos) {{body = (i,j,k) => %x[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]}} : f32[1,T,{}]\n",
      width);
}
std::string padded(const std::string& to, const std::string& of, int width) {
  return fmt::format(
      "  %{0} = pointwise(%row, %{1}) {{body = (i,j,k) => select(0 <= %row[i,j], %{1}[0,bounded(%row[i,j], T, 0),k], 0.0)}} : f32[B,S,{2}]\n",
      to, of, width);
}

// Rows that the run counts: as few as need their weights early, as many as a library takes, and
// more, for which blocks take one tile after the other.
Case packed_rows() {
  const std::string body =
      pack_of(72) +
      "  const @w : f32[72,1544] = random(1)\n  const @v : f32[1544,72] = random(2)\n  const @b : f32[1544] = random(3)\n"
      "  %u = matmul(%h, @w, @b) {alpha = 1.0, epilogue = (s,i,j,k) => 0.5 * (s + @b[k]) * (1.0 + erf((s + @b[k]) * 0.70710677)), trans_a = false, trans_b = false} : f32[1,T,1544]\n"
      "  %d = matmul(%u, @v) {alpha = 0.125, trans_a = false, trans_b = false} : f32[1,T,72]\n"
      "  %r = pointwise(%d, %h) {body = (i,j,k) => %d[i,j,k] + %h[i,j,k]} : f32[1,T,72]\n" +
      padded("p", "r", 72) + padded("q", "u", 1544);
  return {"matmul_packed",
          graph_text("%x: f32[B,S,72], %mask: i64[B,S]", kPackedSizes, body, {"p", "q"}),
          {{1, 1}, {2, 60}, {3, 100}, {3, 750}, {33, 300}},
          {{"mask", {0, 1}}},
          1e-5,
          2e-3};
}

// Norms between products: of the sum with what the norm before gives, as encoders have them, or of
// a sum that is read too, as decoders do. In 16 bits on Hopper they are parts of the products, but
// for the last, whose reader is none. `counted`: of rows without padding, at any number of these.
Case norms_between(bool sums, bool rms, bool transposed, bool counted = false) {
  Ops o;
  const std::string rows = counted ? "1,T" : "B,S";
  if (counted) o.body = pack_of(256);
  o.body +=
      fmt::format("  %h0 = pointwise(%{}) {{body = (i,j,k) => 0.5 * %{}[i,j,k]}} : f32[{},256]\n",
                  counted ? "h" : "x", counted ? "h" : "x", rows);
  const auto product = [&](const std::string& name, const std::string& of, int k, int n,
                           const std::string& epilogue) {
    o.body += fmt::format(
        "  const @w_{0} : f32[{1},{2}] = random({3})\n  const @b_{0} : f32[{4}] = random({4})\n",
        name, transposed ? n : k, transposed ? k : n, k + n, n);
    o.product(name,
              epilogue.empty() ? fmt::format("%{}, @w_{}", of, name)
                               : fmt::format("%{}, @w_{}, @b_{}", of, name, name),
              epilogue, fmt::format("f32[{},{}]", rows, n), 16, false, transposed);
    o.outputs.pop_back();
  };
  const auto norm = [&](const std::string& name, const std::string& product,
                        const std::string& residual) {
    o.body += fmt::format(
        "  const @g_{0} : f32[256] = random({1})\n  const @c_{0} : f32[256] = random({2})\n  const @d_{0} : f32[256] = random({3})\n",
        name, name[1], name[1] + 10, name[1] + 20);
    o.body += fmt::format(
        "  %{0}{1} = norm(@g_{0}{4}, %{2}, %{3}, @d_{0}) {{body = (i,j,k) => %{2}[i,j,k] + %{3}[i,j,k] + @d_{0}[k], eps = 1e-05, has_beta = {5}, kind = {6}}} : f32[{8},256]{7}\n",
        name, sums ? fmt::format(", %sum{}", name) : "", residual, product,
        rms ? "" : fmt::format(", @c_{}", name), !rms, rms ? "rms" : "layer",
        sums ? fmt::format(", f32[{},256]", rows) : "", rows);
  };
  product("context", "h0", 256, 256, "");
  norm("h1", "context", "h0");
  product("up", "h1", 256, 384, "tanh(s + @b_up[k])");
  product("down", "up", 384, 256, "s + @b_down[k]");
  norm("h2", "down", sums ? "sumh1" : "h1");
  product("next", "h2", 256, 768, "s + @b_next[k]");
  product("also", "h2", 256, 64, "s * s + @b_also[k]");
  product("back", "next", 768, 256, "");
  norm("h3", "back", sums ? "sumh2" : "h2");
  for (const auto& [name, n] : {std::pair{"next", 768}, {"also", 64}, {"h3", 256}}) {
    o.outputs.push_back(fmt::format("{}_out", name));
    o.body +=
        counted
            ? padded(o.outputs.back(), name, n)
            : fmt::format(
                  "  %{0}_out = pointwise(%{0}) {{body = (i,j,k) => 2.0 * %{0}[i,j,k]}} : f32[B,S,{1}]\n",
                  name, n);
  }
  Case c{fmt::format("norms_between_products{}{}{}{}", sums ? "_sums" : "", rms ? "_rms" : "",
                     transposed ? "_transposed" : "", counted ? "_packed" : ""),
         graph_text(counted ? "%x: f32[B,S,256], %mask: i64[B,S]" : "%x: f32[B,S,256]",
                    counted ? kPackedSizes : kOfTokens, o.body, o.outputs),
         {{1, 1}, {1, 63}, {2, 64}, {1, 129}, {1, 700}, {1, 1500}},
         {},
         1e-5,
         4e-3};
  if (counted) {
    c.shapes = {{1, 1}, {2, 60}, {3, 600}, {5, 700}, {17, 300}};
    c.fills = {{"mask", {0, 1}}};
  }
  return c;
}

// More than a tile in each direction, and an inner size that is no multiple of a slice.
Case integer_tiles() {
  Ops o;
  o.matmul("y", "%u, %w", "i32[N,130]");
  o.matmul("t", "%u, %wt", "i32[N,130]", 1, false, true);
  Case c{"matmul_integer_tiles",
         graph_text("%u: u8[N,75], %w: i8[75,130], %wt: i8[130,75]", "N = u.0 in 1..", o.body,
                    o.outputs),
         {{1}, {5}, {63}, {64}, {65}, {129}},
         {{"u", {0, 255}}, {"w", {-128, 127}}, {"wt", {-128, 127}}}};
  c.f16 = false;
  return c;
}

}  // namespace

std::vector<Case> matmul_tile_cases() {
  return {norms_between(false, false, false),
          norms_between(false, false, true),
          norms_between(true, false, true),
          norms_between(true, true, false),
          norms_between(false, true, true),
          norms_between(false, false, true, true),
          norms_between(false, false, false, true),
          norms_between(true, true, true, true),
          tiles(),
          integer_tiles(),
          widths(),
          streams(),
          ordered(),
          gates(false),
          gates(true),
          packed_rows()};
}

}  // namespace tfcc::test

// SPDX-License-Identifier: Apache-2.0
#include "tests/templates/cuda/stubs.h"

#include <fmt/format.h>

#include <algorithm>

namespace tfcc::test {
namespace {

int round_up(int a, int b) { return (a + b - 1) / b * b; }

}  // namespace

int NormStub::vec() const {
  int v = type == "f32" ? 4 : 8;
  while (hidden % v != 0) v /= 2;
  return v;
}

int NormStub::threads_per_row() const {
  for (int threads = 32; threads < 1024; threads *= 2) {
    if ((hidden + threads * vec() - 1) / (threads * vec()) * vec() <= 32) return threads;
  }
  return 1024;
}

std::string NormStub::text() const {
  const auto pack = [&](bool wanted, const char* from) {
    return wanted ? fmt::format(" + read_pack<Spec::vec>({} + col)[k]", from) : "";
  };
  return fmt::format(R"(#include "cuda/norm.cuh"
struct Spec {{
  using Real = f32;
  static constexpr int rank = 2, hidden = {1}, vec = {2}, threads_per_row = {3}, threads = {4};
  static constexpr int units = 0; static constexpr bool early = false;
  static constexpr bool rms = {5}; static constexpr f32 eps = 1e-5f;
}};
struct Value {{
  const {0}* x; const {0}* residual; const {0}* bias;
  TFCC_FN auto operator()(idx row) const {{
    return [=, *this](idx col, auto& v) {{
      fill_pack(v, col, [&](idx, int k) -> f32 {{ return 0.0f{6}{7}{8}; }});
    }};
  }}
}};
TFCC_KERNEL({4}, kernel, const {0}* x, const {0}* residual, const {0}* gamma, const {0}* beta, const {0}* bias, {0}* y, {0}* sum) {{
  norm<Spec>(y, {9}, {{n[0]}}, Value{{x, residual, bias}}, gamma, {10});
}}
)",
                     type, hidden, vec(), threads_per_row(), threads(), rms,
                     pack(true, "x + row * Spec::hidden"),
                     pack(has_residual, "residual + row * Spec::hidden"), pack(has_bias, "bias"),
                     has_sum ? "sum" : "nullptr", has_beta ? "beta" : "nullptr");
}

int AttentionStub::shared_bytes() const {
  int d = round_up(head_dim, 16), dv = round_up(v_dim, 16);
  if (type == "f32") {
    return 4 * (block_m * (d + 4) + block_n * (d + 4) + block_n * dv + block_m * (block_n + 4));
  }
  d += d % 64 == 0 ? 0 : 8;
  dv += dv % 64 == 0 ? 0 : 8;
  return 2 * (block_m * std::max(d, dv) + 2 * block_n * (d + dv));
}

void AttentionStub::choose_tile() {
  int d = std::max(head_dim, v_dim);
  if (type == "f32") {
    block_m = d <= 128 ? 64 : 32;
    block_n = d <= 64 ? 64 : d <= 128 ? 32 : 16;
  } else {
    int plain = scaled && !visible ? 2 : 1;
    block_m = 64;
    block_n = d <= 64 * plain ? 64 : d <= 128 * plain ? 32 : 16;
  }
}

std::string AttentionStub::text() const {
  int q = heads * head_dim, k = kv_heads * head_dim, v = kv_heads * v_dim, all = q + k + v;
  std::string pointers = packed ? fmt::format("q, q + {}, q + {}", q, q + k) : "q, k, v";
  return fmt::format(R"(#include "cuda/attention.cuh"
struct Score {{
  const i64* n; const f32* bias;
  TFCC_FN f32 operator()(f32 s, idx b, idx h, idx i, idx j) const {{ return s * {0}f{1}; }}
}};
struct Visible {{
  const i64* n; const b8* visible;
  TFCC_FN bool operator()(idx b, idx h, idx i, idx j) const {{ return load(visible, (b * (idx)n[1] + i) * (idx)n[2] + j); }}
}};
struct Live {{ const i64* n; const i64* live; TFCC_FN bool operator()(idx b, idx j) const {{ return load(live, b * (idx)n[2] + j) != 0; }} }};
struct Spec {{
  using T = {2};
  static constexpr int heads = {3}, kv_heads = {4}, head_dim = {5}, v_dim = {6};
  static constexpr int q_stride = {7}, k_stride = {8}, v_stride = {9}, out_stride = {10};
  static constexpr int block_m = {11}, block_n = {12};
  static constexpr int window_left = {22}, window_right = {23};
  static constexpr bool early = false, aligned = {13}, causal = {14}, scaled = {15};
  static constexpr int tf32 = 0;
  static constexpr f32 score_scale = {0}f;
}};
static_assert(AttentionShape<Spec>::threads == {16} && AttentionShape<Spec>::shared_bytes == {17});
TFCC_KERNEL(AttentionShape<Spec>::threads, kernel, const {2}* q, const {2}* k, const {2}* v, const i64* live, const b8* visible, const f32* bias, {2}* out) {{
  attention<Spec>(out, {18}, n[0], n[1], n[2], {19}, {20}, {21}, NoSink{{}});
}}
)",
                     fmt::format("{:.9e}", scale),
                     bias ? " + load(bias, (h * (idx)n[1] + i) * (idx)n[2] + j)" : "", type, heads,
                     kv_heads, head_dim, v_dim, packed ? all : q, packed ? all : k,
                     packed ? all : v, heads * v_dim, block_m, block_n, aligned, causal, scaled,
                     threads(), shared_bytes(), pointers, scaled ? "NoScore{}" : "Score{n, bias}",
                     visible ? "Visible{n, visible}" : "AllVisible{}",
                     live ? "Live{n, live}" : "AllLive{}", window_left, window_right);
}

}  // namespace tfcc::test

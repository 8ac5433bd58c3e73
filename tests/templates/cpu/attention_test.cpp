// SPDX-License-Identifier: Apache-2.0
// The CPU attention template against a double reference: tile edges, masks, causal, grouped heads,
// dv != d, strides.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/templates/cpu/cpu_kernel.h"

namespace {

using tfcc::test::CpuKernels;
using tfcc::test::random_floats;
using F = std::vector<float>;

/// One variant of the template; the fields are those of Spec.
struct Variant {
  int heads = 2, kv_heads = 2, head_dim = 16, v_dim = 16, block_m = 32, block_n = 32;
  bool causal = false;
  bool padding = false;       // Live: mask[b, j] != 0, a[4]
  bool bias = false;          // Score adds a[5][h, i, j]
  bool odd_keys = false;      // Visible: (i + j) % 3 != 0
  int left = -1, right = -1;  // window
  int gap = 0;                // extra elements from one token to the next
};

std::string stub(const Variant& v) {
  std::string spec =
      "static constexpr int heads = " + std::to_string(v.heads) +
      ", kv_heads = " + std::to_string(v.kv_heads) + ", head_dim = " + std::to_string(v.head_dim) +
      ", v_dim = " + std::to_string(v.v_dim) + ", gap = " + std::to_string(v.gap) +
      ", block_m = " + std::to_string(v.block_m) + ", block_n = " + std::to_string(v.block_n) +
      ", window_left = " + std::to_string(v.left) + ", window_right = " + std::to_string(v.right) +
      "; static constexpr bool causal = " + (v.causal ? "true" : "false") + ";";
  return R"(
#include "cpu/attention.h"
namespace {
struct Score {
  const i64* n; const f32* bias;
  TFCC_FN f32 operator()(f32 s, idx, idx h, idx i, idx j) const { return s)" +
         std::string(v.bias ? " + load(bias, (h * n[1] + i) * n[2] + j)" : "") + R"(; }
};
struct Odd { TFCC_FN bool operator()(idx, idx, idx i, idx j) const { return (i + j) % 3 != 0; } };
struct Live { const i64* n; const i64* mask; TFCC_FN bool operator()(idx b, idx j) const { return load(mask, b * n[2] + j) != 0; } };
struct Spec {
  using T = f32;
  )" + spec +
         R"(
  static constexpr int q_stride = heads * head_dim + gap, k_stride = kv_heads * head_dim + gap;
  static constexpr int v_stride = kv_heads * v_dim + gap, out_stride = heads * v_dim + gap;
  static constexpr bool scaled = true; static constexpr f32 score_scale = 0.25f;
};
}
TFCC_KERNEL(attention_0) {
  attention<Spec>((f32*)a[3], (const f32*)a[0], (const f32*)a[1], (const f32*)a[2], n[0], n[1], n[2], Score{n, (const f32*)a[5]},
                  )" +
         (v.odd_keys ? "Odd{}" : "AllVisible{}") + ", " +
         (v.padding ? "Live{n, (const i64*)a[4]}" : "AllLive{}") + R"(, NoSink{}, begin, end);
}
)";
}

struct Data {
  int64_t batch, queries, keys;
  F q, k, v, bias;
  std::vector<int64_t> mask;
};

Data make_data(const Variant& c, int64_t batch, int64_t queries, int64_t keys) {
  Data d{batch, queries, keys, {}, {}, {}, {}, {}};
  auto rows = [&](int64_t count, int width, uint32_t seed) {
    F f = random_floats(static_cast<size_t>(batch * count * (width + c.gap)), -2, 2, seed);
    for (size_t i = 0; i < f.size(); ++i) {
      if (static_cast<int>(i % static_cast<size_t>(width + c.gap)) >= width)
        f[i] = NAN;  // gaps must not be read
    }
    return f;
  };
  d.q = rows(queries, c.heads * c.head_dim, 1);
  d.k = rows(keys, c.kv_heads * c.head_dim, 2);
  d.v = rows(keys, c.kv_heads * c.v_dim, 3);
  d.bias = random_floats(static_cast<size_t>(c.heads * queries * keys), -3, 3, 4);
  d.mask.resize(static_cast<size_t>(batch * keys));
  for (size_t i = 0; i < d.mask.size(); ++i) d.mask[i] = (i * 2654435761u >> 7) % 3 != 0;
  if (batch > 1) std::fill_n(d.mask.begin(), keys, 0);  // a batch without any live key
  return d;
}

/// The attention of one (b, h, i) in double.
std::vector<double> reference_row(const Variant& c, const Data& x, int64_t b, int64_t h,
                                  int64_t i) {
  int64_t kv = h / (c.heads / c.kv_heads);
  std::vector<double> score(static_cast<size_t>(x.keys), -INFINITY),
      out(static_cast<size_t>(c.v_dim), 0.0);
  double top = -INFINITY, sum = 0;
  for (int64_t j = 0; j < x.keys; ++j) {
    const int64_t right = c.causal ? 0 : c.right, diagonal = i + x.keys - x.queries;
    if ((right >= 0 && j > diagonal + right) || (c.left >= 0 && j < diagonal - c.left)) continue;
    if (c.padding && !x.mask[static_cast<size_t>(b * x.keys + j)]) continue;
    if (c.odd_keys && (i + j) % 3 == 0) continue;
    double s = 0;
    for (int t = 0; t < c.head_dim; ++t) {
      s += double(x.q[static_cast<size_t>((b * x.queries + i) * (c.heads * c.head_dim + c.gap) +
                                          h * c.head_dim + t)]) *
           x.k[static_cast<size_t>((b * x.keys + j) * (c.kv_heads * c.head_dim + c.gap) +
                                   kv * c.head_dim + t)];
    }
    s = 0.25 * s + (c.bias ? x.bias[static_cast<size_t>((h * x.queries + i) * x.keys + j)] : 0);
    score[static_cast<size_t>(j)] = s;
    top = std::max(top, s);
  }
  if (top == -INFINITY) return out;
  for (double& s : score) sum += s = std::exp(s - top);
  for (int64_t j = 0; j < x.keys; ++j) {
    if (score[static_cast<size_t>(j)] == 0) continue;
    for (int t = 0; t < c.v_dim; ++t) {
      out[static_cast<size_t>(t)] +=
          score[static_cast<size_t>(j)] / sum *
          x.v[static_cast<size_t>((b * x.keys + j) * (c.kv_heads * c.v_dim + c.gap) + kv * c.v_dim +
                                  t)];
    }
  }
  return out;
}

void check(const Variant& c, const std::vector<std::pair<int64_t, int64_t>>& sizes,
           const std::string& level = "native") {
  CpuKernels kernels(stub(c), level);
  for (auto [queries, keys] : sizes) {
    const int64_t batch = 2;
    Data x = make_data(c, batch, queries, keys);
    Data poisoned = x;  // what may not be read is NaN
    for (size_t r = 0; c.padding && r < x.mask.size(); ++r) {
      if (x.mask[r]) continue;
      size_t kw = x.k.size() / x.mask.size(), vw = x.v.size() / x.mask.size();
      std::fill_n(poisoned.k.begin() + static_cast<int64_t>(r * kw), kw, NAN);
      std::fill_n(poisoned.v.begin() + static_cast<int64_t>(r * vw), vw, NAN);
    }
    const int width = c.heads * c.v_dim + c.gap;
    F out(static_cast<size_t>(batch * queries * width), 77.0f);
    int64_t work = batch * c.heads * ((queries + c.block_m - 1) / c.block_m);
    kernels.run("attention_0", {batch, queries, keys},
                {poisoned.q.data(), poisoned.k.data(), poisoned.v.data(), out.data(), x.mask.data(),
                 x.bias.data()},
                work);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < queries; ++i) {
        const float* row = out.data() + (b * queries + i) * width;
        for (int64_t h = 0; h < c.heads; ++h) {
          std::vector<double> want = reference_row(c, x, b, h, i);
          for (int t = 0; t < c.v_dim; ++t) {
            ASSERT_NEAR(row[h * c.v_dim + t], want[static_cast<size_t>(t)], 1e-5)
                << "b " << b << " h " << h << " i " << i << " of " << queries << " x " << keys
                << " column " << t;
          }
        }
        for (int t = 0; t < c.gap; ++t)
          ASSERT_EQ(row[c.heads * c.v_dim + t], 77.0f) << "wrote into a gap";
      }
  }
}

const std::vector<std::pair<int64_t, int64_t>> kEdges = {{1, 1},   {1, 33},  {31, 31},  {32, 32},
                                                         {33, 33}, {64, 65}, {17, 100}, {70, 5}};

class CpuAttention : public tfcc::test::CpuTargetTest {};

/// Runs the last `rows` queries of the data alone.
F last_rows(CpuKernels& kernels, const Variant& c, const Data& x, int64_t rows) {
  const int64_t in = c.heads * c.head_dim + c.gap, out_width = c.heads * c.v_dim + c.gap;
  F q(x.q.end() - rows * in, x.q.end()), out(static_cast<size_t>(rows * out_width), 77.0f);
  Data d = x;
  kernels.run("attention_0", {1, rows, x.keys},
              {q.data(), d.k.data(), d.v.data(), out.data(), d.mask.data(), d.bias.data()},
              c.heads * ((rows + c.block_m - 1) / c.block_m));
  return out;
}

// Few queries take another form than many: it must add in the same order.
TEST_F(CpuAttention, ARowHasTheBitsThatItHasAmongOthers) {
  for (const std::string level : {"native", "x86-64-v3", "x86-64-v2"}) {
    for (const int head : {8, 20, 64}) {
      for (const bool causal : {false, true}) {
        const Variant c{.heads = 4,
                        .head_dim = head,
                        .v_dim = head + 12,
                        .block_n = 40,
                        .causal = causal,
                        .padding = true,
                        .gap = 3};
        CpuKernels kernels(stub(c), level);
        const Data x = make_data(c, 1, 50, 170);
        const F all = last_rows(kernels, c, x, 50);
        for (const int64_t rows : {1, 2, 3, 7, 8, 9, 33}) {
          const F got = last_rows(kernels, c, x, rows);
          EXPECT_EQ(std::memcmp(got.data(), all.data() + all.size() - got.size(),
                                got.size() * sizeof(float)),
                    0)
              << level << ", heads of " << head << (causal ? ", causal, " : ", ") << rows
              << " rows";
        }
      }
    }
  }
}

TEST_F(CpuAttention, Edges) { check({}, kEdges); }

TEST_F(CpuAttention, EveryLevel) {
  for (const char* level : {"x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
    if (level <= tfcc::codegen::native_cpu_level())
      check({.padding = true, .bias = true}, kEdges, level);
  }
}

TEST_F(CpuAttention, Blocks) {
  for (int block_m : {16, 32, 64, 128})
    check({.block_m = block_m, .block_n = 64}, {{130, 70}, {15, 64}});
  check({.block_n = 8}, kEdges);
}

TEST_F(CpuAttention, HeadSizes) {
  for (int d : {1, 3, 12, 24, 40, 64, 80, 128, 256})
    check({.head_dim = d, .v_dim = d}, {{33, 35}, {3, 35}});
  check({.head_dim = 24, .v_dim = 7}, kEdges);
  check({.head_dim = 5, .v_dim = 32}, kEdges);
}

TEST_F(CpuAttention, Causal) {
  check({.causal = true}, kEdges);
  check({.left = 3}, kEdges);
  check({.left = 40, .right = 2}, kEdges);
  check({.causal = true, .left = 7}, kEdges);
  check({.block_m = 64, .block_n = 16, .causal = true, .padding = true},
        {{100, 100}, {3, 90}, {65, 64}});
}

TEST_F(CpuAttention, MaskedKeysAreNeverReadAndEmptyRowsAreZero) {
  check({.padding = true}, kEdges);
}

TEST_F(CpuAttention, VisibleAndBias) { check({.bias = true, .odd_keys = true}, kEdges); }

TEST_F(CpuAttention, GroupedHeadsAndStrides) {
  check({.heads = 6, .kv_heads = 2}, {{33, 40}});
  check({.heads = 4, .kv_heads = 1, .gap = 5}, {{33, 40}});
}

TEST_F(CpuAttention, NanAndInfinityOfScoresAreNotHidden) {
  Variant c{.heads = 1, .kv_heads = 1, .bias = true};
  CpuKernels kernels(stub(c));
  Data x = make_data(c, 1, 4, 20);
  x.bias[0 * 20 + 3] = NAN;
  x.bias[1 * 20 + 3] = -INFINITY;
  std::fill_n(x.bias.begin() + 2 * 20, 20, -INFINITY);
  F out(4 * 16);
  kernels.run("attention_0", {1, 4, 20},
              {x.q.data(), x.k.data(), x.v.data(), out.data(), x.mask.data(), x.bias.data()}, 1);
  EXPECT_TRUE(std::isnan(out[0]));
  for (int64_t i : {1, 3}) {
    std::vector<double> want = reference_row(c, x, 0, 0, i);
    for (int t = 0; t < 16; ++t)
      EXPECT_NEAR(out[static_cast<size_t>(i * 16 + t)], want[static_cast<size_t>(t)], 1e-5);
  }
  for (int t = 0; t < 16; ++t)
    EXPECT_EQ(out[static_cast<size_t>(2 * 16 + t)], 0.0f) << "no key has any weight";
}

}  // namespace

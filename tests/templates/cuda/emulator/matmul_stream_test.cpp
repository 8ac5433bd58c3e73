// SPDX-License-Identifier: Apache-2.0
// templates/cuda/matmul_stream.cuh, as it stands, on an emulated block: every tile that codegen
// chooses, 1 to 16 rows, edges of columns and k, several rounds, against sums of whole numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/matmul_stream.cuh"

namespace tfcc::test {
namespace {

constexpr int16_t kUntouched = 12345;

template <class O, int BlockN, int BlockK, int Stages, bool Gated = false> struct SpecOf {
  using T = f16;
  using Out = O;
  static constexpr bool gated = Gated;
  static constexpr int block_n = BlockN, block_k = BlockK, stages = Stages;
};

struct Shape {
  int rows, columns, k, blocks;
};

int small(unsigned seed, int i) {
  return static_cast<int>((static_cast<unsigned>(i) * 2654435761u + seed * 40503u) >> 13) % 5 - 2;
}

/// s + column - row; both must lie inside.
struct Sum {
  int rows, columns;
  f32 operator()(f32 s, idx r, idx c) const {
    if (r < 0 || r >= rows || c < 0 || c >= columns)
      simt().fail(fmt::format("the epilogue is asked for ({}, {})", r, c));
    return s + static_cast<f32>(c % 7 - r);
  }
  f32 operator()(f32 s, f32 t, idx r, idx c) const { return (*this)(s - 3 * t, r, c); }
};

template <class Spec> void check(const Shape& s, unsigned seed) {
  SCOPED_TRACE(
      fmt::format("{} x {} x {} in {} blocks, seed {}", s.rows, s.columns, s.k, s.blocks, seed));
  const auto fill = [&](unsigned of, int n) {
    std::vector<f16> v(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i)
      v[static_cast<size_t>(i)].whole = static_cast<int16_t>(small(seed + of, i));
    return v;
  };
  // Rows behind the last are there, as behind the rows of a run in a bucket, and must not matter.
  auto a = fill(1, 16 * s.k), b = fill(2, s.k * s.columns);
  for (size_t i = static_cast<size_t>(s.rows * s.k); i < a.size(); ++i) a[i].whole = 999;
  const int width = Spec::gated ? s.columns / 2 : s.columns;
  std::vector<typename Spec::Out> out(static_cast<size_t>(17 * width));
  const auto value = [](const auto& o) {
    if constexpr (sizeof(o) == 2) return static_cast<int>(o.whole);
    else return static_cast<int>(o);
  };
  for (auto& o : out) {
    if constexpr (sizeof(o) == 2) o.whole = kUntouched;
    else o = kUntouched;
  }

  using Shape90 = MatmulStreamShape<Spec>;
  constexpr int parts = Spec::block_k / 64;
  const TensorMap ma{a.data(), 16, s.k, 8, false, parts},
      mb{b.data(), s.columns, s.k, Spec::block_n, true, parts};
  const auto of_b = [&](int c, int p) { return b[static_cast<size_t>(c * s.k + p)].whole; };
  block_threads = Shape90::threads;
  Simt block;
  for (int x = 0; x < s.blocks; ++x) {
    emulated::state = {};
    std::memset(shared_memory, 0x7f, sizeof shared_memory);
    const bool ok = block.run(
        Shape90::threads, {x, 0, 0}, {s.blocks, 1, 1}, seed + static_cast<unsigned>(x), [&] {
          matmul_stream<Spec>(
              out.data(), ma, mb, [&] { return s.rows; }, s.columns, s.k, Sum{s.rows, width});
        });
    ASSERT_TRUE(ok) << "block " << x << ": " << block.error();
    for (int t = 0; t < Shape90::threads; ++t) {
      const bool computes = t >= 128 && t < Shape90::threads - kWarp;  // of constants alone
      ASSERT_EQ(emulated::state.waited[t], !computes) << "thread " << t;
    }
    for (const auto& [barrier, unused] : emulated::state.barriers) {
      const auto at =
          static_cast<int>(reinterpret_cast<const unsigned char*>(barrier) - shared_memory);
      ASSERT_TRUE(at >= 0 && at + 8 <= Shape90::shared_bytes && at % 8 == 0)
          << "a barrier lies at " << at;
    }
  }
  for (int r = 0; r < s.rows; ++r) {
    for (int c = 0; c < width; ++c) {
      const int first = Spec::gated ? c / 8 * 16 + c % 8 : c;
      int want = c % 7 - r;
      for (int p = 0; p < s.k; ++p)
        want += a[static_cast<size_t>(r * s.k + p)].whole *
                (of_b(first, p) - (Spec::gated ? 3 * of_b(first + 8, p) : 0));
      ASSERT_EQ(value(out[static_cast<size_t>(r * width + c)]), want)
          << "row " << r << ", column " << c;
    }
  }
  for (size_t i = static_cast<size_t>(s.rows * width); i < out.size(); ++i)
    ASSERT_EQ(value(out[i]), kUntouched) << "behind the last row";
}

template <int BlockN, int BlockK, int Stages> void check_all() {
  unsigned seed = 1;
  for (const Shape& s : {Shape{0, 64, 64, 1},
                         {1, 64, 64, 1},
                         {3, 72, 320, 2},
                         {8, 136, 192, 3},
                         {9, 64, 2048, 1},
                         {16, 200, 640, 2},
                         {16, 64, 128, 4}}) {
    check<SpecOf<f16, BlockN, BlockK, Stages>>(s, ++seed);
    if (s.rows < 9) check<SpecOf<f32, BlockN, BlockK, Stages>>(s, ++seed);
    Shape pairs = s;
    pairs.columns = s.columns / 16 * 16;
    if constexpr (BlockN % 16 == 0) check<SpecOf<f16, BlockN, BlockK, Stages, true>>(pairs, ++seed);
  }
}

// A block with a whole ring of 112 KiB has a multiprocessor of 228 KiB to itself; the driver keeps
// 1 KiB of each block.
template <int BlockN, int BlockK, int Stages>
constexpr bool fits_twice =
    2 * (MatmulStreamShape<SpecOf<f16, BlockN, BlockK, Stages>>::shared_bytes + 1024) <= 228 << 10;
static_assert(!fits_twice<16, 256, 7> && !fits_twice<40, 256, 4> && !fits_twice<48, 128, 7>);

TEST(EmulatedMatmulStream, Tiles16) { check_all<16, 256, 7>(); }
TEST(EmulatedMatmulStream, Tiles24) { check_all<24, 256, 5>(); }
TEST(EmulatedMatmulStream, Tiles48) { check_all<48, 128, 7>(); }
TEST(EmulatedMatmulStream, Tiles56) { check_all<56, 128, 6>(); }
TEST(EmulatedMatmulStream, Tiles64) { check_all<64, 128, 5>(); }

}  // namespace
}  // namespace tfcc::test

// SPDX-License-Identifier: Apache-2.0
// templates/cuda/matmul_tf32.cuh, as it stands, on an emulated block: every tile and list of tiles,
// edges of rows, columns and k, several rounds, early and late. All have the same bits, near those
// of float64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/matmul_tf32.cuh"
#include "tests/templates/cuda/emulator/matmul_values.h"

namespace tfcc::test {
namespace {

constexpr f32 kUntouched = 12345;

template <bool Early, bool Gated, class... Ts> struct SpecOf {
  using Tiles = Tf32Tiles<Ts...>;
  static constexpr bool early = Early, gated = Gated;
};

struct Shape {
  int rows, columns, k, blocks;
};

template <class Spec> std::vector<f32> run(const Shape& s, unsigned seed) {
  const int behind = 70, width = Spec::gated ? s.columns / 2 : s.columns;
  auto a = filled<f32>(1, (s.rows + behind) * s.k);
  const auto b = filled<f32>(2, s.columns * s.k);
  for (size_t i = static_cast<size_t>(s.rows * s.k); i < a.size(); ++i) a[i] = NAN;
  std::vector<f32> out(static_cast<size_t>((s.rows + behind) * width), kUntouched);
  const auto map = [&](const std::vector<f32>& of, bool weight) {
    return TensorMap{reinterpret_cast<const f16*>(of.data()),
                     static_cast<i64>(of.size()) / s.k,
                     2 * s.k,
                     64,
                     weight,
                     1,
                     false,
                     true};
  };
  const TensorMap ma = map(a, false), mb = map(b, true);
  block_threads = Tf32Shape::threads;
  Simt block;
  for (int x = 0; x < s.blocks; ++x) {
    emulated::state = {};
    std::memset(shared_memory, 0x7f, sizeof shared_memory);
    const bool ok = block.run(
        Tf32Shape::threads, {x, 0, 0}, {s.blocks, 1, 1}, seed + static_cast<unsigned>(x), [&] {
          matmul_tf32<Spec>(
              out.data(), ma, mb, [&] { return s.rows; }, s.columns, s.k, Sum{s.rows, width});
        });
    EXPECT_TRUE(ok) << "block " << x << ": " << block.error();
    for (int t = 0; t < 256; ++t)
      EXPECT_TRUE(emulated::state.waited[t]) << "thread " << t << " did not wait";
  }
  const auto sum = [&](int r, int c) {
    double d = 0;
    for (int p = 0; p < s.k; ++p)
      d += static_cast<double>(a[static_cast<size_t>(r * s.k + p)]) *
           b[static_cast<size_t>(c * s.k + p)];
    return d;
  };
  for (int r = 0; r < s.rows && !testing::Test::HasFailure(); ++r) {
    for (int c = 0; c < width; ++c) {
      const int first = Spec::gated ? c / 8 * 16 + c % 8 : c;
      const double want =
          (Spec::gated ? sum(r, first) - 3 * sum(r, first + 8) : sum(r, first)) + c % 7 - r % 5;
      EXPECT_NEAR(out[static_cast<size_t>(r * width + c)], want,
                  (Spec::gated ? 4e-6 : 1e-6) * std::sqrt(s.k))
          << "row " << r << ", column " << c;
    }
  }
  for (size_t i = static_cast<size_t>(s.rows * width); i < out.size(); ++i)
    EXPECT_EQ(out[i], kUntouched) << "behind the last row";
  return out;
}

template <bool Gated> void check_all(const Shape& s) {
  SCOPED_TRACE(fmt::format("{} x {} x {} in {} blocks", s.rows, s.columns, s.k, s.blocks));
  const auto first = run<SpecOf<true, Gated, Tf32Tile<64, 64>>>(s, 1);
  const auto same = [&](const std::vector<f32>& other, const char* tiles) {
    EXPECT_EQ(std::memcmp(first.data(), other.data(), first.size() * sizeof(f32)), 0) << tiles;
  };
  same(run<SpecOf<false, Gated, Tf32Tile<128, 64>>>(s, 2), "128 x 64");
  same(run<SpecOf<true, Gated, Tf32Tile<128, 128>>>(s, 3), "128 x 128");
  same(run<SpecOf<false, Gated, Tf32Tile<64, 128>>>(s, 4), "64 x 128");
  same(run<SpecOf<true, Gated, Tf32Tile<128, 128>, Tf32Tile<128, 64>, Tf32Tile<64, 64>>>(s, 5),
       "three");
}

TEST(EmulatedMatmulTf32, EdgesOfRowsColumnsAndK) {
  check_all<false>({1, 8, 4, 1});
  check_all<false>({63, 72, 100, 2});
  check_all<false>({129, 136, 68, 3});
}
TEST(EmulatedMatmulTf32, MorePartsThanTheRing) { check_all<false>({65, 64, 330, 1}); }
TEST(EmulatedMatmulTf32, RoundsOfTiles) { check_all<false>({200, 264, 32, 2}); }
TEST(EmulatedMatmulTf32, BlocksWithoutATile) { check_all<false>({5, 64, 64, 3}); }
TEST(EmulatedMatmulTf32, PairsOfColumns) { check_all<true>({70, 144, 40, 2}); }

}  // namespace
}  // namespace tfcc::test

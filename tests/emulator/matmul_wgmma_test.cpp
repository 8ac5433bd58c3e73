// SPDX-License-Identifier: Apache-2.0
// templates/cuda/matmul_wgmma.cuh, as it stands, on an emulated block: every tile and list of tiles, edges of rows, columns and k, several
// rounds, early and late, against sums of whole numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/matmul_wgmma.cuh"

namespace tfcc::test {
namespace {

constexpr int16_t kUntouched = 12345;

template <class O, bool Early, bool Trans, class... Ts> struct SpecOf {
  using T = f16;
  using Out = O;
  using Tiles = WgmmaTiles<Ts...>;
  static constexpr bool early = Early, trans_b = Trans;
};

/// s + bias[column] + beside[row, column]; both must lie inside.
struct Sum {
  const std::vector<int>& bias;
  const std::vector<int>& beside;
  int rows, columns;
  f32 operator()(f32 s, idx r, idx c) const {
    if (r < 0 || r >= rows || c < 0 || c >= columns) simt().fail(fmt::format("the epilogue reads ({}, {})", r, c));
    return s + static_cast<f32>(bias[static_cast<size_t>(c)] + beside[static_cast<size_t>(r * columns + c)]);
  }
};

struct Shape { int rows, columns, k, blocks; };

int small(unsigned seed, int i) { return static_cast<int>((static_cast<unsigned>(i) * 2654435761u + seed * 40503u) >> 13) % 5 - 2; }

template <class Spec> void check(const Shape& s, unsigned seed) {
  SCOPED_TRACE(fmt::format("{} x {} x {} in {} blocks, seed {}", s.rows, s.columns, s.k, s.blocks, seed));
  const auto fill = [&](unsigned of, int n) {
    std::vector<f16> v(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) v[static_cast<size_t>(i)].whole = static_cast<int16_t>(small(seed + of, i));
    return v;
  };
  // Rows behind the last are there, as behind the rows of a run in a bucket, and must not matter.
  const int allocated = s.rows + 70;
  auto a = fill(1, allocated * s.k), b = fill(2, s.k * s.columns);
  for (size_t i = static_cast<size_t>(s.rows * s.k); i < a.size(); ++i) a[i].whole = 999;
  std::vector<int> bias, beside;
  for (int c = 0; c < s.columns; ++c) bias.push_back(small(seed + 3, c));
  for (int i = 0; i < s.rows * s.columns; ++i) beside.push_back(small(seed + 4, i));
  std::vector<typename Spec::Out> out(static_cast<size_t>(allocated * s.columns));
  const auto value = [](const auto& o) { if constexpr (sizeof(o) == 2) return static_cast<int>(o.whole); else return static_cast<int>(o); };
  for (auto& o : out) { if constexpr (sizeof(o) == 2) o.whole = kUntouched; else o = kUntouched; }

  using Shape90 = MatmulWgmmaShape<Spec>;
  const TensorMap ma{a.data(), allocated, s.k, Spec::Tiles::box_m, false};
  const TensorMap mb = Spec::trans_b ? TensorMap{b.data(), s.columns, s.k, 64, true} : TensorMap{b.data(), s.k, s.columns, 64, true};
  const Sum sum{bias, beside, s.rows, s.columns};
  block_threads = Shape90::threads;
  Simt block;
  for (int x = 0; x < s.blocks; ++x) {
    emulated::state = {};
    std::memset(shared_memory, 0x7f, sizeof shared_memory);
    const bool ok = block.run(Shape90::threads, {x, 0, 0}, {s.blocks, 1, 1}, seed + static_cast<unsigned>(x), [&] {
      matmul_wgmma<Spec>(out.data(), ma, mb, [&] {
        if (!Spec::early && !emulated::state.waited[simt().thread()]) simt().fail("rows are read before the launch before has ended");
        return s.rows;
      }, s.columns, s.k, sum);
    });
    ASSERT_TRUE(ok) << "block " << x << ": " << block.error();
    for (int t = 0; t < Shape90::groups * 128; ++t) ASSERT_TRUE(emulated::state.waited[t]) << "thread " << t << " did not wait";
  }
  for (int r = 0; r < s.rows; ++r) {
    for (int c = 0; c < s.columns; ++c) {
      int want = bias[static_cast<size_t>(c)] + beside[static_cast<size_t>(r * s.columns + c)];
      for (int p = 0; p < s.k; ++p) want += a[static_cast<size_t>(r * s.k + p)].whole * b[static_cast<size_t>(Spec::trans_b ? c * s.k + p : p * s.columns + c)].whole;
      ASSERT_EQ(value(out[static_cast<size_t>(r * s.columns + c)]), want) << "row " << r << ", column " << c;
    }
  }
  for (size_t i = static_cast<size_t>(s.rows * s.columns); i < out.size(); ++i) ASSERT_EQ(value(out[i]), kUntouched) << "behind the last row";
}

const Shape kShapes[] = {{0, 64, 64, 1}, {64, 128, 512, 1}, {128, 192, 384, 2}, {1, 64, 64, 1}, {63, 72, 72, 1}, {65, 64, 128, 2}, {50, 64, 1024, 1}, {100, 64, 200, 1}, {130, 136, 200, 1}, {129, 264, 832, 2}, {200, 392, 64, 3}, {300, 200, 136, 2}};

template <class Tiles> int chosen_of(Tiles tiles, const Shape& s) {
  int chosen = -1;
  Simt().run(1, {}, {s.blocks, 1, 1}, 1, [&] {
    chosen = matmul_wgmma_detail::cheapest<SpecOf<f16, true, false, WgmmaTile<64, 64, 2>>>(tiles, {nullptr, nullptr, nullptr, s.rows, s.columns, s.k});
  });
  return chosen;
}

template <class... Ts> void check_all() {
  unsigned seed = 1;
  std::vector<int> chosen(sizeof...(Ts));
  for (const Shape& s : kShapes) {
    ++chosen[static_cast<size_t>(chosen_of(WgmmaTiles<Ts...>{}, s))];
    check<SpecOf<f16, true, false, Ts...>>(s, ++seed);
    check<SpecOf<f16, false, true, Ts...>>(s, ++seed);
    if (s.rows < 200) check<SpecOf<f32, false, false, Ts...>>(s, ++seed);
  }
  for (int n : chosen) EXPECT_GT(n, 0) << "a tile of the list is tested by no shape";
}

TEST(EmulatedMatmulWgmma, SmallTiles) { check_all<WgmmaTile<64, 64, 8>>(); }
TEST(EmulatedMatmulWgmma, WideTiles) { check_all<WgmmaTile<128, 192, 5>>(); }
TEST(EmulatedMatmulWgmma, WidestTilesOfOneGroup) { check_all<WgmmaTile<64, 256, 3>>(); }
TEST(EmulatedMatmulWgmma, TilesOfSomeRows) { check_all<WgmmaTile<128, 128, 6>, WgmmaTile<128, 64, 8>, WgmmaTile<64, 64, 12>>(); }
TEST(EmulatedMatmulWgmma, TilesOfManyRows) { check_all<WgmmaTile<128, 192, 5>, WgmmaTile<128, 128, 6>, WgmmaTile<128, 64, 8>>(); }

// A list takes each of its tiles at some number of rows, or it would not be worth its code.
TEST(EmulatedMatmulWgmma, EachTileOfAListIsTheCheapestSomewhere) {
  const auto chosen = [](auto tiles, int columns) {
    std::vector<int> at(decltype(tiles)::count);
    for (int rows = 1; rows < 9000; rows += 7) ++at[static_cast<size_t>(chosen_of(tiles, {rows, columns, 768, 132}))];
    return at;
  };
  using Some = WgmmaTiles<WgmmaTile<128, 128, 6>, WgmmaTile<128, 64, 8>, WgmmaTile<64, 64, 12>>;
  using Many = WgmmaTiles<WgmmaTile<128, 192, 5>, WgmmaTile<128, 128, 6>, WgmmaTile<128, 64, 8>>;
  for (int columns : {768, 3072}) {
    for (int n : chosen(Some{}, columns)) EXPECT_GT(n, 0) << columns;
    for (int n : chosen(Many{}, columns)) EXPECT_GT(n, 0) << columns;
  }
}

}  // namespace
}  // namespace tfcc::test

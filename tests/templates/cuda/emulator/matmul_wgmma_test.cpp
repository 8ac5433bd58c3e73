// SPDX-License-Identifier: Apache-2.0
// templates/cuda/matmul_wgmma.cuh, as it stands, on an emulated block: every tile and list of
// tiles, edges of rows, columns and k, several rounds, early and late, against sums of whole
// numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "codegen/matmul/matmul.h"
#include "cuda/matmul_wgmma.cuh"
#include "runtime/core/tile_table.h"

namespace tfcc::test {
namespace {

constexpr int16_t kUntouched = 12345;

template <class O, bool Early, bool Trans, class... Ts> struct SpecOf {
  static constexpr bool gated = false;
  using Columns = ColumnValues<>;
  static constexpr int norm = 0;
  static constexpr bool moments = false, sum = false, beside = false;
  using T = f16;
  using Out = O;
  using Tiles = WgmmaTiles<Ts...>;
  static constexpr bool early = Early, trans_b = Trans, costly = !Early;
  static constexpr int tiles_of_few = -1;
};

template <class O, bool Early, bool Trans, class... Ts>
struct GatedSpecOf : SpecOf<O, Early, Trans, Ts...> {
  static constexpr bool gated = true;
};

/// s + bias[column] + beside[row, column]; both must lie inside.
struct Sum {
  const std::vector<int>& bias;
  const std::vector<int>& beside;
  int rows, columns;
  f32 operator()(f32 s, f32, f32, f32, f32, f32, f32, f32, idx r, idx c) const {
    if (r < 0 || r >= rows || c < 0 || c >= columns)
      simt().fail(fmt::format("the epilogue reads ({}, {})", r, c));
    return s + static_cast<f32>(bias[static_cast<size_t>(c)] +
                                beside[static_cast<size_t>(r * columns + c)]);
  }
  f32 operator()(f32 s, f32 t, idx r, idx c) const {
    return (*this)(s - 3 * t, 0, 0, 0, 0, 0, 0, 0, r, c);
  }
};

struct Shape {
  int rows, columns, k, blocks;
};

int small(unsigned seed, int i) {
  return static_cast<int>((static_cast<unsigned>(i) * 2654435761u + seed * 40503u) >> 13) % 5 - 2;
}

/// The maps of b, one for each tile: boxes of its columns, or of 64 of k.
template <class Spec> struct MapsOfB {
  std::vector<TensorMap> maps;
  const TensorMap* of[Spec::Tiles::count];
  MapsOfB(const f16* b, int columns, int k) {
    const auto add = [&]<class... Ts>(WgmmaTiles<Ts...>) {
      (maps.push_back(Spec::trans_b ? TensorMap{b, columns, k, Ts::block_n, true}
                                    : TensorMap{b, k, columns, 64, true}),
       ...);
    };
    add(typename Spec::Tiles{});
    for (size_t i = 0; i < maps.size(); ++i) of[i] = &maps[i];
  }
};

/// f(the table by which a kernel takes the tile of this number), whatever its rows.
template <class Spec, class F> void with_table(size_t number, const F& f) {
  if constexpr (!matmul_wgmma_detail::has_table<Spec>) {
    f(NoTable{});
  } else {
    TilesByRows<Spec::early ? 1 : 4> table = {};
    for (u64& n : table.numbers) n = number * 0x1111111111111111;
    if constexpr (!Spec::early) table.shift = 7;
    f(table);
  }
}

template <class Spec> void check(const Shape& s, unsigned seed, size_t tile) {
  SCOPED_TRACE(fmt::format("{} x {} x {} in {} blocks, seed {}, tile {}", s.rows, s.columns, s.k,
                           s.blocks, seed, tile));
  const auto fill = [&](unsigned of, int n) {
    std::vector<f16> v(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i)
      v[static_cast<size_t>(i)].whole = static_cast<int16_t>(small(seed + of, i));
    return v;
  };
  // Rows behind the last are there, as behind the rows of a run in a bucket, and must not matter.
  const int allocated = s.rows + 70, width = Spec::gated ? s.columns / 2 : s.columns;
  auto a = fill(1, allocated * s.k), b = fill(2, s.k * s.columns);
  for (size_t i = static_cast<size_t>(s.rows * s.k); i < a.size(); ++i) a[i].whole = 999;
  std::vector<int> bias, beside;
  for (int c = 0; c < width; ++c) bias.push_back(small(seed + 3, c));
  for (int i = 0; i < s.rows * width; ++i) beside.push_back(small(seed + 4, i));
  std::vector<typename Spec::Out> out(static_cast<size_t>(allocated * width));
  const auto value = [](const auto& o) {
    if constexpr (sizeof(o) == 2) return static_cast<int>(o.whole);
    else return static_cast<int>(o);
  };
  for (auto& o : out) {
    if constexpr (sizeof(o) == 2) o.whole = kUntouched;
    else o = kUntouched;
  }

  using Shape90 = MatmulWgmmaShape<Spec>;
  const TensorMap ma{a.data(), allocated, s.k, Spec::Tiles::box_m, false};
  const MapsOfB<Spec> mb(b.data(), s.columns, s.k);
  const Sum sum{bias, beside, s.rows, width};
  block_threads = Shape90::threads;
  Simt block;
  for (int x = 0; x < s.blocks; ++x) {
    emulated::state = {};
    std::memset(shared_memory, 0x7f, sizeof shared_memory);
    const bool ok = block.run(Shape90::threads, {x, 0, 0}, {s.blocks, 1, 1},
                              seed + static_cast<unsigned>(x), [&] {
                                const auto rows = [&] { return s.rows; };
                                with_table<Spec>(tile, [&](const auto& table) {
                                  matmul_wgmma<Spec>(ma, mb.of, rows, s.columns, s.k,
                                                     MatmulEnd<Spec, Sum>{out.data(), sum}, table);
                                });
                              });
    ASSERT_TRUE(ok) << "block " << x << ": " << block.error();
    EXPECT_LE(emulated::state.announced_early, Spec::early ? 2 : 0);
    for (int t = 0; t < Shape90::groups * 128; ++t)
      ASSERT_TRUE(emulated::state.waited[t]) << "thread " << t << " did not wait";
  }
  for (int r = 0; r < s.rows; ++r) {
    const auto product = [&](int c) {
      int sum_of = 0;
      for (int p = 0; p < s.k; ++p)
        sum_of += a[static_cast<size_t>(r * s.k + p)].whole *
                  b[static_cast<size_t>(Spec::trans_b ? c * s.k + p : p * s.columns + c)].whole;
      return sum_of;
    };
    for (int c = 0; c < width; ++c) {
      int want = bias[static_cast<size_t>(c)] + beside[static_cast<size_t>(r * width + c)];
      const int first = c / 8 * 16 + c % 8;
      want += Spec::gated ? product(first) - 3 * product(first + 8) : product(c);
      ASSERT_EQ(value(out[static_cast<size_t>(r * width + c)]), want)
          << "row " << r << ", column " << c;
    }
  }
  for (size_t i = static_cast<size_t>(s.rows * width); i < out.size(); ++i)
    ASSERT_EQ(value(out[i]), kUntouched) << "behind the last row";
}

const Shape kShapes[] = {{0, 64, 64, 1},     {60, 128, 200, 4},  {64, 128, 512, 1},
                         {128, 192, 384, 2}, {1, 64, 64, 1},     {63, 72, 72, 1},
                         {65, 64, 128, 2},   {50, 64, 1024, 1},  {100, 64, 200, 1},
                         {130, 136, 200, 1}, {129, 264, 832, 2}, {200, 392, 64, 3},
                         {300, 200, 136, 2}};

/// `narrow` tiles have columns that only weights stored by columns can be asked for. Of several
/// tiles each form of the kernel takes one after the other, a shape each: there are more shapes.
template <bool narrow, class... Ts> void check_all() {
  unsigned seed = 1, shape = 0;
  for (const Shape& s : kShapes) {
    const auto tile = [&](unsigned form) { return (shape + form) % sizeof...(Ts); };
    check<SpecOf<f16, true, narrow, Ts...>>(s, ++seed, tile(0));
    check<SpecOf<f16, false, true, Ts...>>(s, ++seed, tile(1));
    if (s.rows < 200) check<SpecOf<f32, false, narrow, Ts...>>(s, ++seed, tile(2));
    Shape pairs = s;
    pairs.columns = s.columns / 16 * 16;
    if constexpr (((Ts::block_n % 16 == 0) && ...)) {
      check<GatedSpecOf<f16, true, true, Ts...>>(pairs, ++seed, tile(3));
      if (s.rows < 200) check<GatedSpecOf<f32, false, true, Ts...>>(pairs, ++seed, tile(4));
    }
    ++shape;
  }
}

TEST(EmulatedMatmulWgmma, SmallTiles) { check_all<false, WgmmaTile<64, 64, 8>>(); }
TEST(EmulatedMatmulWgmma, SmallTilesOfColumns) {
  check_all<true, WgmmaTile<64, 64, 8>, WgmmaTile<64, 32, 12>>();
}
TEST(EmulatedMatmulWgmma, DeepTiles) {
  check_all<true, WgmmaTile<64, 64, 4, 128>, WgmmaTile<64, 32, 6, 128>>();
  check_all<true, WgmmaTile<128, 128, 2, 128>, WgmmaTile<128, 48, 3, 192>>();
}
TEST(EmulatedMatmulWgmma, TilesOfAnyWidth) {
  check_all<true, WgmmaTile<128, 208, 4>, WgmmaTile<128, 144, 4>, WgmmaTile<128, 80, 6>>();
  check_all<true, WgmmaTile<128, 104, 4>, WgmmaTile<128, 56, 4>, WgmmaTile<64, 40, 4, 128>>();
}
TEST(EmulatedMatmulWgmma, WideTiles) { check_all<false, WgmmaTile<128, 192, 5>>(); }
TEST(EmulatedMatmulWgmma, WidestTilesOfOneGroup) { check_all<false, WgmmaTile<64, 256, 3>>(); }
TEST(EmulatedMatmulWgmma, TilesOfSomeRows) {
  check_all<false, WgmmaTile<128, 128, 6>, WgmmaTile<128, 64, 8>, WgmmaTile<64, 64, 12>>();
}
TEST(EmulatedMatmulWgmma, TilesOfManyRows) {
  check_all<false, WgmmaTile<128, 192, 5>, WgmmaTile<128, 128, 6>, WgmmaTile<128, 64, 8>>();
}

/// The number of the tile that a kernel takes, with this table.
template <class Spec, class Table> int taken(const Table& table, int rows) {
  int number = -1;
  Simt().run(1, {}, {1, 1, 1}, 1, [&] {
    const u64* numbers = nullptr;
    if constexpr (matmul_wgmma_detail::has_table<Spec>) numbers = table.numbers;
    number = matmul_wgmma_detail::tile_for<Spec>(numbers, table, rows);
  });
  return number;
}

// What the runtime writes is what the kernel reads: of a launch of so many rows at most, each run
// takes what is best where its piece of rows is full.
TEST(EmulatedMatmulWgmma, TheKernelTakesWhatTheRuntimeChose) {
  using Few = SpecOf<f16, true, true, WgmmaTile<128, 64, 9>, WgmmaTile<64, 64, 6, 128>>;
  using Many = SpecOf<f16, false, true, WgmmaTile<128, 64, 9>, WgmmaTile<64, 64, 6, 128>>;
  runtime::TileChoice choice;
  choice.columns = 768;
  choice.tiles = codegen::cycles_of({{128, 64, 9}, {64, 64, 6, 128}}, 3072, false);
  for (const int most : {1, 64, 200, 1000, 1024, 1025, 4096, 8192, 50000}) {
    runtime::TileTable chosen(choice, 132);
    const runtime::TilesByRows& from = chosen.up_to(most);
    TilesByRows<4> many = {};
    for (size_t i = 0; i < 4; ++i) many.numbers[i] = from.numbers[i];
    many.shift = from.shift;
    const TilesByRows<1> few = {{from.numbers[0]}};
    const int piece = 1 << from.shift;
    std::set<int> seen;
    for (int rows = 1; rows <= most; rows += 1 + most / 700) {
      const auto want =
          static_cast<int>(chosen.at(std::min((rows + piece - 1) / piece * piece, most)));
      seen.insert(want);
      EXPECT_EQ(taken<Many>(many, rows), want) << rows << " of " << most;
      if (most <= 1024) EXPECT_EQ(taken<Few>(few, rows), want) << rows << " of " << most;
    }
    if (most > 1024 && most < 10000) EXPECT_EQ(seen.size(), 2u) << "both tiles are of use";
  }
}

struct FewRows : SpecOf<f16, true, true, WgmmaTile<64, 64, 8>, WgmmaTile<64, 32, 12>> {
  static constexpr int tiles_of_few = 1;  // that of 32 columns for up to 64 rows
};
TEST(EmulatedMatmulWgmma, FewRowsAreTheKernelsOwn) {
  for (int rows : {1, 64}) EXPECT_EQ(taken<FewRows>(NoTable{}, rows), 1);
  for (int rows : {65, 128}) EXPECT_EQ(taken<FewRows>(NoTable{}, rows), 0);
  for (int rows : {50, 65}) check<FewRows>({rows, 136, 200, 2}, 5, 0);
}

/// Of a product with norms before and after it.
template <bool Early, int Kind, int Groups, class... Ts> struct NormSpec {
  using T = f16;
  using Out = f16;
  using Tiles = WgmmaTiles<Ts...>;
  using Columns = ColumnValues<f32, f16>;
  static constexpr bool gated = false;
  static constexpr int norm = Kind, norm_groups = Groups;
  static constexpr f32 eps = 0.5f;
  static constexpr bool early = Early, trans_b = true, costly = Early, moments = true, sum = true,
                        beside = true;
  static constexpr int tiles_of_few = -1;
};

/// Of what a norm before the product gives, 8 times as much, rounded: results are whole numbers
/// here.
struct Normed {
  f32 operator()(f32 s, f32 mean, f32 rstd, f32 beside, f32 c0, f32, f32, f32, idx, idx) const {
    return std::round(8 * rstd * (s - mean * c0)) + beside;
  }
};
struct TwiceAndColumn {
  f32 operator()(f32 v, f32, f32 c1, f32, f32, idx, idx) const { return 2 * v + c1; }
};

struct NormResults {
  std::vector<f16> out, sum;
  std::vector<f32> moments;
};

template <class Spec>
NormResults run_norms(int rows, int columns, int k, int blocks, size_t tile = 0) {
  const int behind = 70;  // rows
  auto whole = [&](unsigned seed, int n) {
    std::vector<f16> v(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i)
      v[static_cast<size_t>(i)].whole = static_cast<int16_t>(small(seed, i));
    return v;
  };
  const auto a = whole(1, (rows + behind) * k), b = whole(2, k * columns),
             beside = whole(3, rows * columns), c1 = whole(5, columns);
  std::vector<f32> c0(static_cast<size_t>(columns)),
      of_rows(static_cast<size_t>(rows * Spec::norm_groups * 2));
  for (int c = 0; c < columns; ++c) c0[static_cast<size_t>(c)] = static_cast<f32>(small(6, c));
  for (size_t i = 0; i < of_rows.size(); ++i)
    of_rows[i] = i % 2 == 0 ? 0.25f * static_cast<f32>(small(7, static_cast<int>(i)))
                            : 3.0f + static_cast<f32>(small(8, static_cast<int>(i)));
  const size_t n = static_cast<size_t>((rows + behind) * columns);
  NormResults r{std::vector<f16>(n, {kUntouched}), std::vector<f16>(n, {kUntouched}),
                std::vector<f32>(n / 32 * 2, kUntouched)};
  const TensorMap ma{a.data(), rows + behind, k, Spec::Tiles::box_m, false};
  const MapsOfB<Spec> mb(b.data(), columns, k);
  using Shape90 = MatmulWgmmaShape<Spec>;
  block_threads = Shape90::threads;
  Simt block;
  for (int x = 0; x < blocks; ++x) {
    emulated::state = {};
    emulated::state.others_begin = beside.data();
    emulated::state.others_end = beside.data() + beside.size();
    const bool ok =
        block.run(Shape90::threads, {x, 0, 0}, {blocks, 1, 1}, 77 + static_cast<unsigned>(x), [&] {
          const MatmulEnd<Spec, Normed, TwiceAndColumn> end{r.out.data(),
                                                            {},
                                                            {c0.data(), {c1.data(), {}}},
                                                            {},
                                                            r.moments.data(),
                                                            r.sum.data(),
                                                            of_rows.data(),
                                                            beside.data()};
          with_table<Spec>(tile, [&](const auto& table) {
            matmul_wgmma<Spec>(
                ma, mb.of, [&] { return rows; }, columns, k, end, table);
          });
        });
    EXPECT_TRUE(ok) << "block " << x << ": " << block.error();
  }
  for (int i = 0; i < rows; ++i) {
    double mean = 0, squares = 0;
    const auto moment = [&](int g, int m) {
      return static_cast<double>(of_rows[static_cast<size_t>((g * rows + i) * 2 + m)]);
    };
    for (int g = 0; g < Spec::norm_groups; ++g) mean += moment(g, 0) / Spec::norm_groups;
    if (Spec::norm == 2) mean = 0;
    for (int g = 0; g < Spec::norm_groups; ++g)
      squares += moment(g, 1) + 32 * (moment(g, 0) - mean) * (moment(g, 0) - mean);
    const double rstd = 1 / std::sqrt(squares / (32 * Spec::norm_groups) + Spec::eps);
    for (int g = 0; g < columns / 32; ++g) {
      double group = 0, apart = 0;
      for (int j = g * 32; j < g * 32 + 32; ++j) {
        int s = 0;
        for (int p = 0; p < k; ++p)
          s += a[static_cast<size_t>(i * k + p)].whole * b[static_cast<size_t>(j * k + p)].whole;
        const size_t at = static_cast<size_t>(i * columns + j);
        const double want =
            8 * rstd * (s - mean * static_cast<double>(c0[static_cast<size_t>(j)])) +
            beside[at].whole;
        EXPECT_NEAR(r.sum[at].whole, want, 0.51 + std::abs(want) * 1e-5) << i << ", " << j;
        EXPECT_EQ(r.out[at].whole,
                  static_cast<int16_t>(2 * r.sum[at].whole + c1[static_cast<size_t>(j)].whole))
            << i << ", " << j;
        group += r.sum[at].whole / 32.0;
      }
      for (int j = g * 32; j < g * 32 + 32; ++j)
        apart += std::pow(r.sum[static_cast<size_t>(i * columns + j)].whole - group, 2);
      const size_t at = static_cast<size_t>((g * rows + i) * 2);
      EXPECT_NEAR(r.moments[at], group, 1e-5 + std::abs(group) * 1e-6);
      EXPECT_NEAR(r.moments[at + 1], apart, 1e-5 + apart * 1e-6);
      if (testing::Test::HasFailure()) return r;
    }
  }
  for (size_t i = static_cast<size_t>(rows * columns); i < n; ++i)
    EXPECT_TRUE(r.out[i].whole == kUntouched && r.sum[i].whole == kUntouched)
        << "behind the last row";
  for (size_t i = static_cast<size_t>(rows * columns / 16); i < r.moments.size(); ++i)
    EXPECT_EQ(r.moments[i], kUntouched) << "behind the moments";
  return r;
}

template <int Kind, int Groups> void check_norms(int rows, int columns, int k) {
  SCOPED_TRACE(fmt::format("norm {}, {} groups, {} x {} x {}", Kind, Groups, rows, columns, k));
  const auto first =
      run_norms<NormSpec<true, Kind, Groups, WgmmaTile<64, 64, 8>>>(rows, columns, k, 2);
  const auto same = [&](const NormResults& other, const char* tile) {
    EXPECT_EQ(
        std::memcmp(first.moments.data(), other.moments.data(), first.moments.size() * sizeof(f32)),
        0)
        << "moments of tiles of " << tile;
    EXPECT_EQ(std::memcmp(first.out.data(), other.out.data(), first.out.size() * sizeof(f16)), 0)
        << "results of tiles of " << tile;
  };
  same(run_norms<NormSpec<true, Kind, Groups, WgmmaTile<64, 32, 12>>>(rows, columns, k, 1),
       "64 x 32");
  same(run_norms<NormSpec<true, Kind, Groups, WgmmaTile<128, 64, 4>>>(rows, columns, k, 1),
       "128 x 64");
  same(run_norms<NormSpec<false, Kind, Groups, WgmmaTile<128, 192, 3>>>(rows, columns, k, 1),
       "128 x 192");
  // Tiles of 64 rows among larger ones: the second warpgroup has nothing to do.
  same(run_norms<NormSpec<false, Kind, Groups, WgmmaTile<128, 64, 4>, WgmmaTile<64, 64, 6>>>(
           rows, columns, k, 2, 1),
       "64 or 128 rows");
  // A tile narrower than the widest, with whose room vectors lie.
  same(run_norms<NormSpec<true, Kind, Groups, WgmmaTile<64, 64, 8>, WgmmaTile<64, 32, 12>>>(
           rows, columns, k, 16, 1),
       "64 or 32 columns");
  same(run_norms<NormSpec<true, Kind, Groups, WgmmaTile<128, 96, 2, 128>, WgmmaTile<64, 160, 4>>>(
           rows, columns, k, 3),
       "96 or 160 columns");
  same(run_norms<NormSpec<true, Kind, Groups, WgmmaTile<128, 192, 3>, WgmmaTile<64, 32, 6>>>(
           rows, columns, k, 16, 1),
       "192 or 32 columns");
}

// Moments of 32 columns, whatever the tile, so that the bits are the same in all; norms whose
// moments are held, and of rows too long for it.
TEST(EmulatedMatmulWgmma, LayerNormsBeforeAndAfter) {
  check_norms<1, 4>(65, 96, 72);
  check_norms<1, 24>(3, 256, 64);
}
TEST(EmulatedMatmulWgmma, RmsNormsBeforeAndAfter) {
  check_norms<2, 12>(70, 64, 128);
  check_norms<2, 64>(5, 160, 64);
}

}  // namespace
}  // namespace tfcc::test

// SPDX-License-Identifier: Apache-2.0
// The tiles that products of warpgroups choose from: few, all of use, and near the best of all at
// every number of rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "codegen/matmul/matmul.h"
#include "runtime/core/tile_table.h"
#include "tests/templates/product_ops.h"

namespace tfcc::codegen {
namespace {

constexpr uint32_t kShared = 227 << 10;

std::vector<WgmmaTile> candidates(bool moments = false) {
  std::vector<WgmmaTile> all;
  for (int width = 64; width <= 256; width += moments ? 32 : 16) all.push_back({128, width, 0});
  all.push_back({64, 64, 0, 128});
  return all;
}

double cycles(const WgmmaTile& tile, int64_t rows, const TileUse& use) {
  return runtime::tile_cycles(cycles_of({tile}, use.k, use.moments)[0], rows, use.n,
                              use.processors);
}

size_t cheapest(const std::vector<WgmmaTile>& tiles, int64_t rows, const TileUse& use) {
  return runtime::fastest_tile(cycles_of(tiles, use.k, use.moments), rows, use.n, use.processors);
}

TEST(Tiles, AFewAreNearTheBestOfAll) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2304, 768},
                             {768, 768},
                             {3072, 768},
                             {768, 3072},
                             {4096, 1024},
                             {384, 1536},
                             {64, 64}}) {
    for (const auto& [more, most] : {std::pair<int64_t, int64_t>{128, 300},
                                     {128, 1000},
                                     {128, 1024},
                                     {1024, INT64_MAX},
                                     {128, 4096}}) {
      for (const auto& [beside, moments] : {std::pair{false, false}, {true, false}, {true, true}}) {
        SCOPED_TRACE(fmt::format("{} x {}, {} to {} rows, {} beside, {} moments", n, k, more, most,
                                 beside, moments));
        const TileUse use{n, k, more, most, 132, kShared, beside, 5, moments};
        const auto tiles = best_tiles(candidates(moments), use);
        ASSERT_FALSE(tiles.empty());
        EXPECT_LE(tiles.size(), use.count);
        std::set<size_t> taken;
        double sum = 0, worst = 0;
        int places = 0;
        for (int64_t rows = more + 1; rows <= std::min<int64_t>(most, 16384); rows += 31) {
          const auto all = candidates(moments);
          const size_t t = cheapest(tiles, rows, use);
          taken.insert(t);
          const double loss =
              cycles(tiles[t], rows, use) / cycles(all[cheapest(all, rows, use)], rows, use) - 1;
          sum += loss, worst = std::max(worst, loss), ++places;
        }
        EXPECT_EQ(taken.size(), tiles.size()) << "a tile that no rows take";
        EXPECT_LE(sum / places, moments ? 0.06 : 0.05);  // each end costs more
        EXPECT_LE(worst, moments ? 0.22 : 0.2);
        for (const WgmmaTile& t : tiles) {
          EXPECT_GE(t.stages, 2);
          EXPECT_LE(wgmma_shared_bytes({t}, beside) + kWgmmaEndBytes, kShared);
        }
      }
    }
  }
}

// More of them lose no more, and all lose nothing.
TEST(Tiles, MoreAreNoWorse) {
  const auto all = candidates();
  const auto loss = [&](size_t count) {
    const TileUse use{768, 3072, 1024, 16384, 132, kShared, false, count};
    const auto tiles = best_tiles(all, use);
    double sum = 0;
    for (int64_t rows = 1152; rows <= 16384; rows += 128)
      sum += cycles(tiles[cheapest(tiles, rows, use)], rows, use) /
             cycles(all[cheapest(all, rows, use)], rows, use);
    return sum;
  };
  EXPECT_GT(loss(1), loss(3) * 1.02);
  EXPECT_GE(loss(3), loss(6));
  EXPECT_GE(loss(6), loss(all.size()));
  EXPECT_LE(loss(all.size()), 120 * 1.01);  // 120 numbers of rows
}

TEST(Tiles, WhatDoesNotFitIsNotTaken) {
  TileUse use{768, 768, 1024, 4096, 132, kShared, false, 5};
  use.shared_bytes = 66 << 10;  // two parts of 128 x 64 fit, and not of 128 x 80
  const auto tiles = best_tiles(candidates(), use);
  ASSERT_FALSE(tiles.empty());
  for (const WgmmaTile& t : tiles) EXPECT_EQ(t.block_n, 64);
  use.shared_bytes = 20 << 10;
  EXPECT_TRUE(best_tiles(candidates(), use).empty());
  EXPECT_EQ(best_tiles({{128, 128, 0}}, {768, 768, 1024, 4096, 132, kShared, false, 5}).size(), 1u);
}

// Runs whose bound lies below what another form takes: some tile all the same.
TEST(Tiles, NoRowsAtAllStillHaveATile) {
  EXPECT_FALSE(best_tiles(candidates(), {768, 768, 1024, 200, 132, kShared, false, 5}).empty());
}

MatmulDesc product(ir::ExprPool& pool, int64_t n, int64_t k, ir::ExprRef body) {
  MatmulDesc x;
  x.a = x.b = x.d = DType::f16;
  x.batch = pool.integer(1), x.m = pool.symbol("T"), x.n = pool.integer(n), x.k = pool.integer(k);
  x.trans_b = x.weight = x.token_rows = true;
  x.epilogue = Epilogue::beside, x.body = body;
  return x;
}

// matmul_widths of tests/templates/matmul_tile_cases.cpp runs every width that a kernel may have.
TEST(Tiles, KernelCasesHaveEveryWidth) {
  ir::ExprPool pool;
  const ir::ExprRef s = pool.param("s", ir::Scalar::f32);
  std::set<int> widths;
  for (const auto& [k, n] : test::kEveryWidth) {
    const MatmulDesc x = product(pool, n, k, s);
    const MatmulConfig c = choose(x, class_of("sm_90"));
    ASSERT_EQ(c.arm, Arm::wgmma) << print(c);
    const TileUse use{n, k, 128, 16384, 132, kShared, false, 5};
    for (int rows : test::kRowsOfEveryWidth)
      widths.insert(c.tiles[cheapest(c.tiles, rows, use)].block_n);
  }
  EXPECT_EQ(widths, (std::set<int>{64, 80, 96, 112, 128, 144, 160, 192, 224, 256}));
}

std::vector<WgmmaTile> chosen(const MatmulDesc& x) {
  const MatmulConfig c = choose(x, class_of("sm_90"));
  EXPECT_EQ(c.arm, Arm::wgmma) << print(c);
  EXPECT_FALSE(c.tiles.empty());
  return c.tiles;
}

// A long end has no use for the widest tiles, and B stored by rows none for what is no 64 columns.
TEST(Tiles, WhatDecidesWhichThereAre) {
  ir::ExprPool pool;
  const ir::ExprRef s = pool.param("s", ir::Scalar::f32);
  const auto widest = [&](const MatmulDesc& x) {
    return std::ranges::max(chosen(x), {}, &WgmmaTile::block_n).block_n;
  };
  EXPECT_EQ(widest(product(pool, 3072, 768, s)), 256);
  EXPECT_EQ(widest(product(pool, 3072, 768, ir::unary(ir::ExprKind::erf, s))), 192);
  MatmulDesc rows = product(pool, 3072, 768, s);
  rows.trans_b = false;
  for (const WgmmaTile& t : chosen(rows)) EXPECT_EQ(t.block_n % 64, 0);
}

// Runs of at most 128 rows: k in parts of 128 where it has such, and each tile for some product.
TEST(Tiles, OfFewRows) {
  ir::ExprPool pool;
  MatmulDesc few = product(pool, 768, 768, pool.param("s", ir::Scalar::f32));
  few.most_rows = 128;
  const auto tiles = chosen(few);
  for (const WgmmaTile& t : tiles) EXPECT_EQ(t.block_k, 128);
  std::set<size_t> taken;
  for (int64_t n : {768, 2304, 3072, 4096}) {
    for (int64_t rows : {16, 100})
      taken.insert(cheapest(tiles, rows, {n, 768, 0, 128, 132, kShared, false, 5}));
  }
  EXPECT_EQ(taken.size(), tiles.size());
  few.k = pool.integer(776);
  for (const WgmmaTile& t : chosen(few)) EXPECT_EQ(t.block_k, 64);
}

// 129 to 192 rows are three rows of the smaller tiles, and four of the larger.
TEST(Tiles, SmallerOnesServeFewerRows) {
  ir::ExprPool pool;
  MatmulDesc x = product(pool, 2304, 768, pool.param("s", ir::Scalar::f32));
  x.made_rows = true, x.most_rows = 1024;
  const auto tiles = chosen(x);
  EXPECT_TRUE(std::ranges::any_of(tiles, [](const WgmmaTile& t) { return t.block_m == 64; }));
}

}  // namespace
}  // namespace tfcc::codegen

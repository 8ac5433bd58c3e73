// SPDX-License-Identifier: Apache-2.0
// Which tile a kernel is told to take: the model's, or what a timing cache has of its rows.
#include "runtime/core/tile_table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tfcc::runtime {
namespace {

// Narrow tiles read more, wide ones leave blocks without a tile.
TileChoice choice() {
  TileChoice c;
  c.columns = 768;
  c.tiles = {{128, 64, 15000, 250}, {128, 128, 30000, 300}, {64, 64, 11000, 200}};
  c.what = "wgmma f16 f16; 768x3072 bt; 128x64 128x128 64x64";
  return c;
}

void add(TimingCache& cache, const std::vector<std::pair<int64_t, uint64_t>>& entries) {
  for (const auto& [rows, number] : entries) {
    TimingCache::Entry entry;
    entry.algorithm[0] = number, entry.us = 1;
    cache.add(tile_key("NVIDIA H200", choice(), rows), entry);
  }
}

TEST(TileTable, CyclesAreRoundsAndReads) {
  const Tile t{128, 64, 1000, 3};
  EXPECT_DOUBLE_EQ(tile_cycles(t, 128, 64, 132), std::hypot(1000, 3));
  EXPECT_DOUBLE_EQ(tile_cycles(t, 129, 65, 132), std::hypot(1000, 12)) << "four tiles, one round";
  EXPECT_DOUBLE_EQ(tile_cycles(t, 129, 65, 3), std::hypot(2000, 12)) << "two rounds";
  EXPECT_DOUBLE_EQ(tile_cycles(t, 0, 64, 132), 0);
}

TEST(TileTable, TheModelTakesTheFewestCycles) {
  const TileChoice c = choice();
  const TileTable table(c, 132);
  std::vector<int> taken(c.tiles.size());
  for (int64_t rows = 1; rows < 6000; rows += 37) {
    const uint32_t number = table.at(rows);
    ++taken[number];
    for (const Tile& t : c.tiles)
      EXPECT_LE(tile_cycles(c.tiles[number], rows, 768, 132), tile_cycles(t, rows, 768, 132));
  }
  for (int n : taken) EXPECT_GT(n, 0);
}

TEST(TileTable, WhatWasMeasuredGoesFirst) {
  const TileChoice c = choice();
  TileTable table(c, 132);
  const uint32_t model = table.at(1000), other = (model + 1) % 3;
  table.set(896, 1024, other + 1);
  for (int64_t rows : {897, 1000, 1024}) EXPECT_EQ(table.at(rows), other) << rows;
  const TileTable plain(c, 132);
  for (int64_t rows : {1, 896, 1025, 5000}) EXPECT_EQ(table.at(rows), plain.at(rows)) << rows;
  table.set(896, 1024, 0);
  EXPECT_EQ(table.at(1000), model) << "measured, and not beaten";
}

TEST(TileTable, AnEntryHoldsForAFifthFewerRows) {
  const TileChoice c = choice();
  const TileTable plain(c, 132);
  TileTable table(c, 132);
  const auto other = [&](int64_t rows) { return (plain.at(rows) + 1) % 3; };
  TimingCache cache;
  add(cache, {{800, other(800) + 1}, {832, other(832) + 1}});
  table.read(cache, "NVIDIA H200");
  EXPECT_EQ(table.at(800), other(800));
  EXPECT_EQ(table.at(641), other(800));
  EXPECT_EQ(table.at(640), plain.at(640));
  EXPECT_EQ(table.at(801), other(832));
  EXPECT_EQ(table.at(833), plain.at(833));
}

// Another card, a tile that there is not, rows that are no number: as if nothing was measured.
TEST(TileTable, WhatDoesNotFitIsLeftOut) {
  const TileChoice c = choice();
  const TileTable plain(c, 132);
  TileTable table(c, 132);
  TimingCache cache;
  add(cache, {{512, 4}});
  TimingCache::Entry entry;
  entry.algorithm[0] = 3, entry.us = 1;
  cache.add(tile_key("NVIDIA H100", c, 512), entry);
  const std::string start = "NVIDIA H200; " + c.what + "; rows ";
  for (const char* rows : {"", "x", "512x", "-512", "0", "99999999999999999999"})
    cache.add(start + rows, entry);
  table.read(cache, "NVIDIA H200");
  for (int64_t rows = 1; rows < 4000; rows += 13) EXPECT_EQ(table.at(rows), plain.at(rows)) << rows;
}

TEST(TileTable, ALaunchIsToldByPiecesOfItsRows) {
  const TileChoice c = choice();
  TileTable table(c, 132);
  for (int64_t most : {1, 64, 1000, 1024, 4096, 4097, 100000}) {
    const TilesByRows& tiles = table.up_to(most);
    EXPECT_GE(tiles.shift, 6);
    EXPECT_EQ(tiles.shift == 6, most <= 4096) << most;
    for (int64_t rows = 1; rows <= most; rows += 1 + most / 500) {
      const int64_t piece = (rows - 1) >> tiles.shift, full = (piece + 1) << tiles.shift;
      ASSERT_LT(piece, 64);
      EXPECT_EQ(tiles.numbers[static_cast<size_t>(piece / 16)] >> piece % 16 * 4 & 15,
                table.at(std::min(full, most)));
    }
  }
  const TilesByRows before = table.up_to(1000);
  table.set(0, 1000, (table.at(1000) + 1) % 3 + 1);
  EXPECT_NE(table.up_to(1000).numbers, before.numbers) << "what was made of the old table";
}

}  // namespace
}  // namespace tfcc::runtime

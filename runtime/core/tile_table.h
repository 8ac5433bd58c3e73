// SPDX-License-Identifier: Apache-2.0
// Which tile a kernel with several takes, by the rows of a run: the one that `tfcc tune` measured to
// be the fastest, else that of fewest cycles by a model. Decided here, before launches; kernels look
// it up, for some learn their rows from the device.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/manifest.h"
#include "runtime/core/timing_cache.h"

namespace tfcc::runtime {

class Backend;

/// Tiles that a kernel has at most.
inline constexpr size_t kMostTiles = 15;
/// More rows than memory has.
inline constexpr int64_t kMostTileRows = int64_t{1} << 40;

/// What a kernel is given, or the beginning of it (templates/cuda/matmul_wgmma.cuh): 4 bits for each
/// 2^shift rows that are begun, from the lowest on, the number of their tile. The rows of a tile are
/// 64 at least.
struct TilesByRows {
  std::array<uint64_t, 4> numbers = {};
  int32_t shift = 6;
};

/// Cycles of a product of so many rows and columns on so many blocks: what they compute in rounds,
/// and what they read, of which each hides a part of the other.
double tile_cycles(const Tile& tile, int64_t rows, int64_t columns, int64_t blocks);
/// The number of that of fewest.
size_t fastest_tile(const std::vector<Tile>& tiles, int64_t rows, int64_t columns, int64_t blocks);

class TileTable {
 public:
  /// `choice` must outlive it.
  TileTable(const TileChoice& choice, int64_t blocks) : choice_(&choice), blocks_(blocks) {}

  /// Runs of more than `more` rows and at most `most` take this tile: 1 + its number, or 0 for that
  /// of the model. What was said of `most` before is forgotten.
  void set(int64_t more, int64_t most, uint32_t number_and_one);
  /// Takes what the cache has of this kernel on this card. An entry is of the most rows of a
  /// bucket, and holds for a fifth fewer, down to those of the one below: so far are buckets apart.
  void read(const TimingCache& cache, const std::string& card);
  /// The number of the tile at these rows.
  uint32_t at(int64_t rows) const;
  /// For a launch of at most `most` rows, by 64ths of them at best: each of these takes what is
  /// best where it is full. The reference holds until the next set().
  const TilesByRows& up_to(int64_t most);

 private:
  struct Measured {
    int64_t more;
    uint32_t number_and_one;
  };
  const TileChoice* choice_;
  int64_t blocks_;
  std::map<int64_t, Measured> measured_;  // by the most rows
  std::map<int64_t, TilesByRows> made_;   // by the most rows of launches
};

/// "NVIDIA H200; wgmma f16 f16; 768x3072 ..; rows 1024": an entry of a timing cache. The first
/// number of its algorithm is 1 + the tile, or 0 where the model's was not beaten.
std::string tile_key(const std::string& card, const TileChoice& choice, int64_t rows);

/// Those of a plan's launches on this device, by TileChoice::what.
using TileTables = std::map<std::string, TileTable>;
TileTables tile_tables(const Plan& plan, const Backend& backend);

}  // namespace tfcc::runtime

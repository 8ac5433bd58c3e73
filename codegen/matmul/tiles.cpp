// SPDX-License-Identifier: Apache-2.0
// Which tiles a product of warpgroups has to choose from.
//
// A run takes rounds of tiles, one for each multiprocessor. How many rows it has is known when it
// begins, and which tile leaves the fewest multiprocessors idle in the last round changes with every
// 64 or 128 of them. Each width is code of its own, so a kernel has a few: those that together lose
// least against all, over the rows that a run may have.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "codegen/matmul/matmul.h"
#include "runtime/core/tile_table.h"

namespace tfcc::codegen {
namespace {

/// Rows are counted by those of the smaller tiles.
constexpr int64_t kRows = 64;
/// Where nothing bounds the rows of a run.
constexpr int64_t kMostRows = 16384;
/// Parts under way at once, at most.
constexpr int kMostStages = 12;
/// A tile must save so much of the time, on the average, or it is not worth its code.
constexpr double kWorthATile = 0.003;

/// What moments add to the end of a tile, beside a part for each of its elements.
constexpr double kMomentsEnd = 2200;

double parts(int64_t all, int64_t size) { return static_cast<double>((all + size - 1) / size); }

/// With as many parts under way as its block has memory for; none: not two.
std::optional<WgmmaTile> with_stages(WgmmaTile t, const TileUse& use) {
  for (t.stages = kMostStages; t.stages >= 2; --t.stages) {
    if (wgmma_shared_bytes({t}, use.beside) + kWgmmaEndBytes <= use.shared_bytes) return t;
  }
  return std::nullopt;
}

/// Cycles of each tile at each number of rows that a run may have, all of kRows that are begun.
struct Table {
  int64_t first;
  std::vector<std::vector<double>> cycles;
  std::vector<double> least;

  Table(const std::vector<WgmmaTile>& tiles, const TileUse& use)
      : first(use.more_rows / kRows + 1) {
    const int64_t last = std::max(first, (std::min(use.most_rows, kMostRows) + kRows - 1) / kRows);
    for (const runtime::Tile& t : cycles_of(tiles, use.k, use.moments)) {
      auto& of = cycles.emplace_back();
      for (int64_t r = first; r <= last; ++r)
        of.push_back(runtime::tile_cycles(t, r * kRows, use.n, use.processors));
    }
    for (size_t i = 0; i < cycles.front().size(); ++i) least.push_back(cheapest(i, tiles.size()));
  }
  double cheapest(size_t row, size_t without) const {
    double best = std::numeric_limits<double>::infinity();
    for (size_t t = 0; t < cycles.size(); ++t) {
      if (t != without) best = std::min(best, cycles[t][row]);
    }
    return best;
  }
  /// How much longer than with all tiles a run takes on the average; more rows are rarer.
  double loss(size_t without) const {
    double sum = 0, weights = 0;
    for (size_t i = 0; i < least.size(); ++i) {
      const double weight = 1.0 / static_cast<double>(first + static_cast<int64_t>(i));
      sum += weight * (cheapest(i, without) / least[i] - 1), weights += weight;
    }
    return sum / weights;
  }
};

}  // namespace

std::vector<runtime::Tile> cycles_of(const std::vector<WgmmaTile>& tiles, int64_t k, bool moments) {
  std::vector<runtime::Tile> out;
  for (const WgmmaTile& t : tiles) {
    const bool large = t.block_m == 128;
    const double area = t.block_m * t.block_n, steps = parts(k, t.block_k), deep = t.block_k / 64,
                 end = area * (large ? 0.315 : 0.42) + (moments ? kMomentsEnd + 0.115 * area : 0),
                 step = area * deep / 35.3 + (large ? 0 : 46);
    out.push_back({static_cast<uint32_t>(t.block_m), static_cast<uint32_t>(t.block_n),
                   static_cast<float>(end + steps * step),
                   static_cast<float>(steps * deep * (t.block_m + t.block_n) * 128 / 6600)});
  }
  return out;
}

size_t fastest_tile(const std::vector<WgmmaTile>& tiles, int64_t rows, const MatmulDesc& x,
                    int64_t processors) {
  return runtime::fastest_tile(cycles_of(tiles, *ir::as_int(x.k), x.scaled != nullptr), rows,
                               *ir::as_int(x.n), processors);
}

std::vector<WgmmaTile> best_tiles(const std::vector<WgmmaTile>& candidates, const TileUse& use) {
  std::vector<WgmmaTile> tiles;
  for (const WgmmaTile& c : candidates) {
    if (const auto t = with_stages(c, use)) tiles.push_back(*t);
  }
  if (tiles.empty()) return tiles;
  Table table(tiles, use);
  while (tiles.size() > 1) {
    const double now = table.loss(tiles.size());
    size_t least = 0;
    double loss = std::numeric_limits<double>::infinity();
    for (size_t t = 0; t < tiles.size(); ++t) {
      if (const double without = table.loss(t); without < loss) least = t, loss = without;
    }
    if (tiles.size() <= use.count && loss > now + kWorthATile) break;
    tiles.erase(tiles.begin() + static_cast<std::ptrdiff_t>(least));
    table.cycles.erase(table.cycles.begin() + static_cast<std::ptrdiff_t>(least));
  }
  return tiles;
}

}  // namespace tfcc::codegen

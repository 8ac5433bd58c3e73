// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/tile_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/core/backend.h"

namespace tfcc::runtime {
namespace {

/// "NVIDIA H200; wgmma f16 f16; .., rows ", before the number.
std::string without_rows(const std::string& card, const TileChoice& choice) {
  std::string s = card + "; " + choice.what + "; rows ";
  for (char& c : s) c = c == '|' || c == '\n' ? '_' : c;
  return s;
}

double parts(int64_t all, int64_t size) { return static_cast<double>((all + size - 1) / size); }

}  // namespace

double tile_cycles(const Tile& t, int64_t rows, int64_t columns, int64_t blocks) {
  const double tiles = parts(rows, t.rows) * parts(columns, t.columns);
  return std::hypot(std::ceil(tiles / static_cast<double>(blocks)) * t.round_cycles,
                    tiles * t.read_cycles);
}

size_t fastest_tile(const std::vector<Tile>& tiles, int64_t rows, int64_t columns, int64_t blocks) {
  const auto cycles = [&](const Tile& t) { return tile_cycles(t, rows, columns, blocks); };
  return static_cast<size_t>(std::ranges::min_element(tiles, {}, cycles) - tiles.begin());
}

void TileTable::set(int64_t more, int64_t most, uint32_t number_and_one) {
  measured_[most] = {more, number_and_one};
  made_.clear();
}

void TileTable::read(const TimingCache& cache, const std::string& card) {
  std::map<int64_t, uint32_t> found;
  for (const auto& [rest, entry] : cache.starting_with(without_rows(card, *choice_))) {
    int64_t rows = 0;
    const auto end = rest.data() + rest.size();
    const auto number = std::from_chars(rest.data(), end, rows);
    if (number.ec != std::errc() || number.ptr != end || rows < 1) continue;
    if (entry.algorithm[0] <= choice_->tiles.size())
      found[rows] = static_cast<uint32_t>(entry.algorithm[0]);
  }
  int64_t below = 0;
  for (const auto& [rows, number] : found) {
    set(std::max(below, rows - rows / 5), rows, number);
    below = rows;
  }
}

uint32_t TileTable::at(int64_t rows) const {
  const auto it = measured_.lower_bound(rows);
  if (it != measured_.end() && it->second.more < rows && it->second.number_and_one > 0)
    return it->second.number_and_one - 1;
  return static_cast<uint32_t>(
      fastest_tile(choice_->tiles, rows, static_cast<int64_t>(choice_->columns), blocks_));
}

const TilesByRows& TileTable::up_to(int64_t most) {
  constexpr size_t kMostKept = 256;
  if (made_.size() >= kMostKept) made_.clear();
  const auto [it, added] = made_.try_emplace(most);
  TilesByRows& tiles = it->second;
  if (!added) return tiles;
  constexpr int64_t kInANumber = 16;
  const auto pieces = static_cast<int64_t>(tiles.numbers.size()) * kInANumber;
  while (most > pieces << tiles.shift) ++tiles.shift;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t rows = std::min((piece + 1) << tiles.shift, most);
    tiles.numbers[static_cast<size_t>(piece / kInANumber)] |= uint64_t{at(rows)}
                                                              << piece % kInANumber * 4;
  }
  return tiles;
}

std::string tile_key(const std::string& card, const TileChoice& choice, int64_t rows) {
  return without_rows(card, choice) + std::to_string(rows);
}

TileTables tile_tables(const Plan& plan, const Backend& backend) {
  TileTables tables;
  for (const Bucket& bucket : plan.buckets) {
    for (const Launch& launch : bucket.launches) {
      if (!launch.kernel || !launch.kernel->tiles) continue;
      const TileChoice& choice = *launch.kernel->tiles;
      const int64_t blocks = std::max<int64_t>(launch.kernel->resident, 1) * backend.processors();
      const auto [it, added] = tables.try_emplace(choice.what, choice, blocks);
      if (added && backend.timings() != nullptr)
        it->second.read(*backend.timings(), backend.device_name());
    }
  }
  return tables;
}

}  // namespace tfcc::runtime

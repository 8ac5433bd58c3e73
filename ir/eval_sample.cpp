// SPDX-License-Identifier: Apache-2.0
// The definition of sample (ir/ops.md), by sorting.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "ir/eval_ops.h"

namespace tfcc::ir {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity(), kUnits = 0x1p40;

/// 32 bits of Philox4x32-10: ten rounds over a counter of 128 bits, of which 64 are used.
uint64_t random_bits(uint64_t key, uint64_t counter) {
  uint64_t c[4] = {counter & 0xffffffff, counter >> 32, 0, 0}, low = key & 0xffffffff,
           high = key >> 32;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xd2511f53 * c[0], b = 0xcd9e8d57 * c[2];
    const uint64_t next[4] = {(b >> 32) ^ c[1] ^ low, b & 0xffffffff, (a >> 32) ^ c[3] ^ high,
                              a & 0xffffffff};
    std::copy(next, next + 4, c);
    low = (low + 0x9e3779b9) & 0xffffffff;
    high = (high + 0xbb67ae85) & 0xffffffff;
  }
  return c[0];
}

// The options as they are meant (ir/ops.md).
double temperature_of(double given) {
  const auto single = static_cast<float>(given);
  return single > 0 && std::isfinite(1 / single) && 1 / single > 0 ? given : 0;
}
double share_of(double given, double otherwise) {
  return std::isnan(given) ? otherwise : std::clamp(given, 0.0, 1.0);
}
double penalty_of(double given) { return given > 0 && std::isfinite(given) ? given : 1; }

struct Row {
  std::vector<double> logits;
  double temperature, top_p, min_p, penalty;
  int64_t top_k, position;
  uint64_t seed;
  std::vector<bool> seen;
};

struct Candidate {
  int64_t token;
  double p;
  uint64_t units;
};

// Steps 3 and 4: what is left, by index.
std::vector<Candidate> candidates(const Row& row, const std::vector<double>& y, double best) {
  std::vector<Candidate> left;
  for (size_t i = 0; i < y.size(); ++i) {
    const double p = std::exp((y[i] - best) / row.temperature);
    const auto units = static_cast<uint64_t>(p * kUnits);
    if (units > 0) left.push_back({static_cast<int64_t>(i), p, units});
  }
  std::stable_sort(left.begin(), left.end(),
                   [](const Candidate& a, const Candidate& b) { return a.p > b.p; });
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < left.size())
    left.resize(static_cast<size_t>(row.top_k));
  const auto add = [](uint64_t sum, const Candidate& c) { return sum + c.units; };
  const uint64_t sum = std::accumulate(left.begin(), left.end(), uint64_t{0}, add);
  const double target = row.top_p * static_cast<double>(sum);
  size_t n = 0;
  for (uint64_t before = 0; n < left.size(); before += left[n++].units) {
    if (n > 0 && (static_cast<double>(before) >= target || left[n].p < row.min_p)) break;
  }
  left.resize(n);
  std::sort(left.begin(), left.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  return left;
}

int64_t chosen(const Row& row) {
  std::vector<double> y = row.logits;
  for (size_t i = 0; i < y.size(); ++i) {
    if (row.penalty != 1 && row.seen[i]) y[i] = y[i] > 0 ? y[i] / row.penalty : y[i] * row.penalty;
  }
  const auto best = std::max_element(y.begin(), y.end());
  if (best == y.end() || *best == kNever) return -1;
  if (row.temperature == 0 || std::isinf(*best)) return best - y.begin();
  const std::vector<Candidate> left = candidates(row, y, *best);
  uint64_t sum = 0;
  for (const Candidate& c : left) sum += c.units;
  const uint64_t bits = random_bits(row.seed, static_cast<uint64_t>(row.position));
  const auto at =
      static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * sum) >> 32);  // below sum
  uint64_t running = 0;
  for (const Candidate& c : left) {
    running += c.units;
    if (running > at) return c.token;
  }
  return -1;
}

// Of the logits before penalty and temperature.
double log_probability(const std::vector<double>& x, int64_t token) {
  if (token < 0) return std::numeric_limits<double>::quiet_NaN();
  const double best = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double each : x) sum += std::exp(each - best);
  return x[static_cast<size_t>(token)] - best - std::log(sum);
}

// What was seen, by words of 32 tokens and the token itself.
std::vector<bool> seen_of(const HostTensor& words, size_t row, size_t count, int64_t own) {
  std::vector<bool> seen(count);
  const auto width = static_cast<size_t>(words.dims[1]);
  for (size_t i = 0; i < count; ++i) {
    const bool marked =
        i / 32 < width &&
        (static_cast<uint32_t>(words.ints[row * width + i / 32]) >> (i % 32) & 1) != 0;
    seen[i] = marked || static_cast<int64_t>(i) == own;
  }
  return seen;
}

}  // namespace

void eval_sample(OpRun& run) {
  const HostTensor &logits = *run.operands[0], &ids = *run.operands[1], &wanted = *run.operands[2],
                   &positions = *run.operands[3], &sampling = *run.operands[4],
                   &draw = *run.operands[5];
  const auto rows = static_cast<size_t>(logits.dims[1]),
             width = static_cast<size_t>(logits.dims[2]);
  for (size_t r = 0; r < rows; ++r) {
    const auto tokens = static_cast<int64_t>(positions.ints.size());
    const auto at = static_cast<size_t>(
        std::clamp<int64_t>(wanted.ints[r], 0, std::max<int64_t>(tokens - 1, 0)));
    const auto first = logits.reals.begin() + static_cast<std::ptrdiff_t>(r * width);
    const auto word = [&](size_t k) { return static_cast<uint32_t>(draw.ints[4 * r + k]); };
    const double* s = &sampling.reals[4 * r];
    Row row{{first, first + static_cast<std::ptrdiff_t>(width)},
            temperature_of(s[0]),
            share_of(s[1], 1),
            share_of(s[2], 0),
            penalty_of(s[3]),
            draw.ints[4 * r],
            tokens > 0 ? positions.ints[at] + 1 : 0,
            word(1) | static_cast<uint64_t>(word(2)) << 32,
            seen_of(*run.operands[6], r, width, tokens > 0 ? ids.ints[at] : -1)};
    for (double& x : row.logits) x = std::isnan(x) ? kNever : x;
    const int64_t token = chosen(row);
    run.results[0].ints[r] = token;
    run.results[1].reals[r] = word(3) != 0 ? log_probability(row.logits, token) : 0.0;
  }
}

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

namespace tfcc::generate {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

Error out_of_range(const char* what, const std::string& range, float value) {
  return {ErrorCode::invalid_argument,
          std::string(what) + " must be " + range + ", got " + std::to_string(value)};
}

void penalise(std::span<float> logits, std::span<const int32_t> history, float penalty) {
  std::vector<int32_t> seen(history.begin(), history.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  const float inverse = 1 / penalty;
  for (const int32_t id : seen)
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) {
      float& l = logits[static_cast<size_t>(id)];
      l *= l > 0 ? inverse : penalty;
    }
}

struct Candidate {
  float p;  // 1 of the likeliest
  int32_t id;
  uint64_t units;  // p in whole units of 2^-40, whose sums have one value in any order
};

constexpr double kUnitsOfOne = 0x1p40;

uint64_t sum_of(const std::vector<Candidate>& all) {
  return std::accumulate(all.begin(), all.end(), uint64_t{0},
                         [](uint64_t sum, const Candidate& c) { return sum + c.units; });
}

// What may be chosen, by id.
std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& s, float best) {
  std::vector<Candidate> out;
  const float inverse = 1 / s.temperature;  // finite
  for (size_t i = 0; i < logits.size(); ++i) {
    const float p = std::exp((logits[i] - best) * inverse);
    if (const auto units = static_cast<uint64_t>(p * kUnitsOfOne); units > 0)
      out.push_back({p, static_cast<int32_t>(i), units});
  }
  if (s.top_k == 0 && s.top_p == 1 && s.min_p == 0) return out;
  std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) {
    return a.p != b.p ? a.p > b.p : a.id < b.id;
  });
  if (s.top_k > 0) out.resize(std::min(out.size(), static_cast<size_t>(s.top_k)));
  const double target = static_cast<double>(s.top_p) * static_cast<double>(sum_of(out));
  size_t n = 0;
  for (uint64_t before = 0; n < out.size(); before += out[n++].units)
    if (n > 0 && (static_cast<double>(before) >= target || out[n].p < s.min_p)) break;
  out.resize(n);
  std::sort(out.begin(), out.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return out;
}

// By lanes, which compilers make vectors of: a vocabulary is scanned for every token.
float largest(std::span<const float> values) {
  std::array<float, 16> lanes;
  lanes.fill(kNever);
  size_t i = 0;
  for (; i + lanes.size() <= values.size(); i += lanes.size()) {
    for (size_t k = 0; k < lanes.size(); ++k)
      lanes[k] = values[i + k] > lanes[k] ? values[i + k] : lanes[k];
  }
  for (; i < values.size(); ++i) lanes[0] = std::max(lanes[0], values[i]);
  return *std::max_element(lanes.begin(), lanes.end());
}

}  // namespace

uint32_t philox(uint64_t key, uint64_t counter) {
  constexpr uint32_t kMul0 = 0xd2511f53, kMul1 = 0xcd9e8d57, kWeyl0 = 0x9e3779b9,
                     kWeyl1 = 0xbb67ae85;
  uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(kMul0) * c[0], b = static_cast<uint64_t>(kMul1) * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    std::copy(next, next + 4, c);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c[0];
}

Result<void> check(const Sampling& s) {
  if (!(s.repetition_penalty > 0) || !std::isfinite(s.repetition_penalty))
    return out_of_range("repetition_penalty", "more than 0", s.repetition_penalty);
  if (!(s.temperature >= 0) || !std::isfinite(s.temperature))
    return out_of_range("temperature", "0 or more", s.temperature);
  if (s.top_k < 0) return out_of_range("top_k", "0 or more", static_cast<float>(s.top_k));
  if (!(s.top_p > 0 && s.top_p <= 1))
    return out_of_range("top_p", "more than 0 and at most 1", s.top_p);
  if (!(s.min_p >= 0 && s.min_p <= 1)) return out_of_range("min_p", "from 0 to 1", s.min_p);
  return {};
}

Result<int32_t> sample(std::span<float> logits, std::span<const int32_t> history, const Sampling& s,
                       uint64_t position) {
  for (float& l : logits) l = std::isnan(l) ? kNever : l;
  if (s.repetition_penalty != 1) penalise(logits, history, s.repetition_penalty);
  const auto best =
      std::find(logits.begin(), logits.end(), largest(logits));  // the first of equal ones
  if (best == logits.end() || *best == kNever) return no_number();
  const auto greedy = static_cast<int32_t>(best - logits.begin());
  if (!std::isfinite(1 / s.temperature) || std::isinf(*best)) return greedy;

  const std::vector<Candidate> from = candidates(logits, s, *best);
  const uint64_t sum = sum_of(from), bits = philox(s.seed, position);
  const uint64_t at = bits * (sum >> 32) + ((bits * (sum & 0xffffffff)) >> 32);  // bits sum / 2^32
  uint64_t running = 0;
  for (const Candidate& c : from)
    if ((running += c.units) > at) return c.id;
  return greedy;
}

float log_probability(std::span<const float> logits, int32_t id) {
  float best = kNever;
  for (const float l : logits) best = l > best ? l : best;
  double sum = 0;
  for (const float l : logits) sum += std::isnan(l) ? 0 : std::exp(static_cast<double>(l) - best);
  return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - best -
                            std::log(sum));
}

Error no_number() {
  return {ErrorCode::invalid_argument, "the model gave no logit that is a number"};
}

}  // namespace tfcc::generate

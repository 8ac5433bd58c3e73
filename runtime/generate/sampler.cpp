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
  for (const int32_t id : seen)
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) {
      float& l = logits[static_cast<size_t>(id)];
      l = l > 0 ? l / penalty : l * penalty;
    }
}

struct Candidate {
  float probability;  // not yet divided by the sum
  int32_t id;
};

// Likeliest first, equal ones by id; at most top_k.
std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& s, float best) {
  std::vector<Candidate> out;
  for (size_t i = 0; i < logits.size(); ++i)
    if (const float p = std::exp((logits[i] - best) / s.temperature); p > 0)
      out.push_back({p, static_cast<int32_t>(i)});
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  };
  const size_t kept = s.top_k > 0 ? std::min(out.size(), static_cast<size_t>(s.top_k)) : out.size();
  std::partial_sort(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(kept), out.end(),
                    before);
  out.resize(kept);
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
  if (best == logits.end() || *best == kNever)
    return Error{ErrorCode::invalid_argument, "the model gave no logit that is a number"};
  const auto greedy = static_cast<int32_t>(best - logits.begin());
  if (s.temperature == 0 || std::isinf(*best)) return greedy;

  std::vector<Candidate> from = candidates(logits, s, *best);
  double sum = 0;
  for (const Candidate& c : from) sum += c.probability;
  double kept = 0;
  size_t n = 0;
  while (n < from.size() &&
         (n == 0 || (kept < s.top_p * sum && from[n].probability >= s.min_p * from[0].probability)))
    kept += from[n++].probability;
  const double at = (philox(s.seed, position) + 0.5) / 4294967296.0 * kept;
  double below = 0;
  for (size_t i = 0; i + 1 < n; ++i)
    if ((below += from[i].probability) > at) return from[i].id;
  return from[n - 1].id;
}

}  // namespace tfcc::generate

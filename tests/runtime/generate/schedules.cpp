// SPDX-License-Identifier: Apache-2.0
// schedules SECONDS DEVICE FILE.tfcc...: random schedules of these decoders, in turns, for so long, other
// ones each time; tools/schedules runs it under sanitizers. Fails at the first answer that is
// not that of the sequence alone.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/runtime/generate/random_schedules.h"

using namespace tfcc;

namespace {

// For each page of a cache: sums, of which a sequence has two slots, have half of it.
size_t bytes_of_page(const Model& generation) {
  size_t bytes = 0;
  bool sums = false;
  for (const TensorInfo& in : generation.inputs()) {
    if (!in.state) continue;
    bytes +=
        size_of(in.dtype) * static_cast<size_t>(in.dims[1].max * in.dims[2].max * in.dims[3].max);
    sums |= in.name.starts_with("state.");
  }
  return sums ? 2 * bytes : bytes;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return std::fprintf(stderr, "usage: schedules SECONDS DEVICE FILE.tfcc...\n"), 2;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(words[1]));
  const auto seed =
      static_cast<uint32_t>(std::chrono::system_clock::now().time_since_epoch().count());
  std::vector<Model> models;
  for (int i = 3; i < count; ++i) {
    LoadOptions load;
    load.device = words[2];
    load.threads = 2;
    const auto model = Model::load(words[i], load);
    if (!model) return std::fprintf(stderr, "%s\n", model.error().message.c_str()), 1;
    models.push_back(*model);
  }
  constexpr int kRounds = 20;  // of the same prompts
  Schedules::Counts sum;
  for (uint32_t turn = 0; std::chrono::steady_clock::now() < end; ++turn) {
    const size_t i = turn % models.size();
    Schedules schedules(models[i], bytes_of_page(*models[i].generation()), seed + turn);
    for (int round = 0; round < kRounds; ++round) {
      const std::string wrong = schedules.run(round, false);
      if (wrong.empty()) continue;
      return std::fprintf(stderr, "%s, seed %u: %s\n", words[3 + i], seed + turn, wrong.c_str()), 1;
    }
    sum.answers += schedules.counts().answers;
    sum.steps += schedules.counts().steps;
    sum.preempted += schedules.counts().preempted;
    sum.swapped += schedules.counts().swapped;
  }
  std::printf("%lld answers as alone in %lld steps, %lld times pre-empted, %lld of them swapped\n",
              static_cast<long long>(sum.answers), static_cast<long long>(sum.steps),
              static_cast<long long>(sum.preempted), static_cast<long long>(sum.swapped));
  if (sum.preempted > sum.swapped && sum.swapped > 0) return 0;
  return std::fprintf(stderr, "too few were pre-empted for this to show anything\n"), 1;
}

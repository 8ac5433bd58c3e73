// SPDX-License-Identifier: Apache-2.0
// Prompts that are submitted, cancelled and pre-empted at random: what is generated for one does not
// depend on what else is computed, in what chunks, or on who cancels meanwhile.
#pragma once

#include <chrono>
#include <cmath>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "runtime/generate.h"

namespace tfcc {

class Schedules {
 public:
  struct Counts {
    int64_t preempted = 0, swapped = 0, shared_tokens = 0, steps_ahead = 0, steps = 0, answers = 0;
  };

  /// `unit`: bytes for each page of a cache of random size. Answers alone are made here.
  Schedules(Model model, size_t unit, uint32_t seed)
      : model_(std::move(model)), unit_(unit), random_(seed) {
    Generator reference = *Generator::make(model_);
    const auto tokens = static_cast<int>(reference.vocabulary_size());
    Ids shared;
    for (int i = 0; i < 90; ++i) shared.push_back(i * 31 % tokens);
    for (int n = 0; n < 12; ++n) {
      Request& r = requests_.emplace_back();
      if (below(3) == 0)
        r.prompt.assign(shared.begin(), shared.begin() + 60 + below(30));  // some begin alike
      for (int i = 1 + below(r.prompt.empty() ? 60 : 8); i > 0; --i)
        r.prompt.push_back(below(tokens));
      r.options.max_tokens = 1 + below(30);
      r.options.sampling.temperature = below(2) ? 1.5f : 0;
      r.options.sampling.seed = random_();
      r.options.sampling.repetition_penalty = below(3) == 0 ? 1.3f : 1;
      r.options.sampling.top_p = below(2) ? 0.8f : 1;
      r.options.log_probabilities = below(2) == 0;
      for (int i = below(4); i > 0; --i) r.options.stop_ids.push_back(below(tokens));
      const auto id = reference.submit(r.prompt, r.options);
      if (!id) throw std::runtime_error(id.error().message);
      r.alone = *reference.wait(*id);
    }
  }

  /// Ten prompts at once, a few of them cancelled. Empty, or what was wrong. `literal`: sometimes
  /// by the graph as it was exported.
  std::string run(int round, bool literal) {
    // Pools of two pages have place for one sequence; in all others the youngest may have to give
    // its place.
    const size_t pages = round % 3 == 0 ? 2 : 2 + static_cast<size_t>(below(8));
    // Room on the host for all, for some of them, for none.
    const std::optional<size_t> swaps[] = {std::nullopt, unit_, 0};
    const bool as_exported = round % 10 == 9 && literal;
    auto made = Generator::make(model_, {.max_sequences = 1 + below(5),
                                         .prompt_chunk = 1 + below(20),
                                         .cache_bytes = round % 5 == 4 ? 0 : pages * unit_,
                                         .swap_bytes = swaps[below(3)],
                                         .prefix_sharing = round % 2 == 0,
                                         .literal = as_exported,
                                         .run_ahead = round % 4 < 2});
    const std::string where = "round " + std::to_string(round) + ": ";
    if (!made) return where + made.error().message;
    Generator& g = *made;
    std::vector<std::pair<Generator::Id, const Request*>> ids;
    std::set<Generator::Id> cancelled;
    for (int i = 0; i < 10; ++i) {
      const Request& r = requests_[static_cast<size_t>(below(12))];
      const auto id = g.submit(r.prompt, r.options);
      if (!id) return where + id.error().message;
      ids.emplace_back(*id, &r);
      if (below(5) == 0) {
        cancelled.insert(ids[static_cast<size_t>(below(static_cast<int>(ids.size())))].first);
        g.cancel(*cancelled.rbegin());
      }
    }
    for (const auto& [id, r] : ids) {
      const auto got = g.wait(id);
      if (!got) return where + got.error().message;
      const std::string wrong = difference(*got, *r, cancelled.contains(id), as_exported);
      if (!wrong.empty()) return where + wrong;
      ++counts_.answers;
    }
    if (g.stats().running + g.stats().waiting != 0) return where + "something is left";
    for (int i = 0; i < 1000 && g.stats().pages_held > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // they come back after the end
    if (g.stats().pages_held != 0) return where + "pages are held";
    const GeneratorStats stats = g.stats();
    counts_.preempted += stats.preempted;
    counts_.swapped += stats.swapped;
    counts_.shared_tokens += stats.shared_tokens;
    counts_.steps_ahead += stats.steps_ahead;
    counts_.steps += stats.steps;
    return "";
  }

  const Counts& counts() const { return counts_; }

 private:
  using Ids = std::vector<int32_t>;
  struct Request {
    Ids prompt;
    GenerateOptions options;
    Generated alone;
  };
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  static std::string difference(const Generated& got, const Request& r, bool may_be_cancelled,
                                bool near) {
    const Ids &ids = got.tokens, &alone = r.alone.tokens;
    if (got.end == GenerateEnd::cancelled) {
      if (!may_be_cancelled) return "nobody cancelled it";
      const bool begins =
          ids.size() <= alone.size() && std::equal(ids.begin(), ids.end(), alone.begin());
      return begins ? "" : "a cancelled one has other tokens";
    }
    if (got.end != r.alone.end)
      return std::string("it ended by ") + to_string(got.end) + ", alone by " +
             to_string(r.alone.end) + " " + got.error.message;
    if (ids != alone) return "it has other tokens than alone";
    // The graph as it was exported has kernels of its own; elsewhere bits are the same.
    const auto &logs = got.log_probabilities, &wanted = r.alone.log_probabilities;
    const auto same = [&](float a, float b) { return near ? std::abs(a - b) < 1e-5f : a == b; };
    return std::equal(logs.begin(), logs.end(), wanted.begin(), wanted.end(), same)
               ? ""
               : "it has other log-probabilities";
  }

  Model model_;
  size_t unit_;
  std::mt19937 random_;
  std::vector<Request> requests_;
  Counts counts_;
};

}  // namespace tfcc

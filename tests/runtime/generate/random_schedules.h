// SPDX-License-Identifier: Apache-2.0
// Prompts that are submitted, cancelled and pre-empted at random, by several threads, with callbacks
// that sleep, throw, cancel and submit: what is generated for one does not depend on what else is
// computed, in what chunks, or on what others do meanwhile.
#pragma once

#include <chrono>
#include <cmath>
#include <deque>
#include <mutex>
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
      if (n < 3) r.prompt.resize(1), r.options.max_tokens = 100;  // longer than a callback may lag
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
    Round all;  // which callbacks use as long as the generator lives
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
    all.g = &g;
    for (int k = 0; k < 2; ++k) {
      std::vector<Choice> own;
      for (int i = 0; i < 5; ++i) {
        const auto manner = static_cast<Manner>(below(7));
        // The wait for a cancelled one may be over before its last callback is.
        own.push_back({&requests_[static_cast<size_t>(below(12))], manner,
                       1 + below(below(3) ? 12 : 90), manner != Manner::submits && below(5) == 0,
                       below(3000)});
      }
      all.threads.emplace_back([&all, own] {
        for (const Choice& c : own) all.submit(c);
      });
    }
    for (std::thread& t : all.threads) t.join();
    std::string wrong;
    for (size_t i = 0; i < all.count(); ++i) {  // callbacks submit more, none after its end
      Submitted& s = all.at(i);
      const auto got = g.wait(s.id);
      if (!got) {
        wrong = where + got.error().message;
        continue;
      }
      const std::string found = difference(*got, s, as_exported);
      if (wrong.empty() && !found.empty()) wrong = where + found;
      ++counts_.answers;
    }
    for (std::thread& t : all.cancelling) t.join();
    if (!wrong.empty()) return wrong;
    const auto busy = [&] {
      const GeneratorStats now = g.stats();
      return now.running + now.waiting + now.pages_held > 0;
    };
    for (int i = 0; i < 2000 && busy(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // it tidies up after the end
    if (g.stats().running + g.stats().waiting != 0) return where + "something is left";
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

  /// What the callback of an answer does. At token `at`: throws, cancels itself, submits another.
  enum class Manner { none, plain, counts, sleeps, throws, cancels, submits };
  struct Choice {
    const Request* request;
    Manner manner;
    int at;
    bool cancelled;  // by another thread ..
    int after_us;    // .. after so long
  };
  struct Submitted {
    Choice choice;
    Generator::Id id = 0;
    Ids delivered;
  };
  struct Round {
    Generator* g = nullptr;
    std::mutex mutex = {};
    std::deque<Submitted> submitted = {};
    std::vector<std::thread> threads = {}, cancelling = {};

    size_t count() {
      const std::lock_guard lock(mutex);
      return submitted.size();
    }
    Submitted& at(size_t i) {
      const std::lock_guard lock(mutex);
      return submitted[i];
    }
    void submit(const Choice& c) {
      const std::lock_guard lock(mutex);
      Submitted& s = submitted.emplace_back(Submitted{.choice = c});
      GenerateOptions options = c.request->options;
      if (c.manner > Manner::plain) options.on_token = [this, &s](int32_t id) { take(s, id); };
      s.id = *g->submit(c.request->prompt, options);
      if (!c.cancelled) return;
      if (c.after_us < 1000) return g->cancel(s.id);
      cancelling.emplace_back([this, id = s.id, us = c.after_us] {
        std::this_thread::sleep_for(std::chrono::microseconds(us));
        g->cancel(id);
      });
    }
    void take(Submitted& s, int32_t id) {
      const Choice& c = s.choice;
      s.delivered.push_back(id);
      if (c.manner == Manner::sleeps || c.manner == Manner::throws)
        std::this_thread::sleep_for(std::chrono::microseconds(c.after_us / 10));
      if (static_cast<int>(s.delivered.size()) != c.at) return;
      if (c.manner == Manner::throws) throw std::runtime_error("enough");
      if (c.manner == Manner::submits)
        submit({c.request, Manner::counts, c.at, false, 0});  // waits until its own is known
      if (c.manner != Manner::cancels) return;
      {
        const std::lock_guard lock(mutex);  // the id is known
      }
      g->cancel(s.id);
    }
  };

  static std::string difference(const Generated& got, const Submitted& s, bool near) {
    const Request& r = *s.choice.request;
    const Ids &ids = got.tokens, &alone = r.alone.tokens;
    const bool begins =
        ids.size() <= alone.size() && std::equal(ids.begin(), ids.end(), alone.begin());
    const bool calls = s.choice.manner > Manner::plain;
    if (calls && (s.delivered.size() > ids.size() ||
                  !std::equal(s.delivered.begin(), s.delivered.end(), ids.begin())))
      return "its callback was given other tokens";
    const bool reached = static_cast<int>(alone.size()) >= s.choice.at;
    if (got.end == GenerateEnd::cancelled) {
      if (!s.choice.cancelled && !(s.choice.manner == Manner::cancels && reached))
        return "nobody cancelled it";
      return begins ? "" : "a cancelled one has other tokens";
    }
    if (s.choice.manner == Manner::throws && reached) {
      if (got.end != GenerateEnd::failed || got.error.message != "the callback threw: enough")
        return "its callback threw, and nobody knows";
      return begins ? "" : "one whose callback threw has other tokens";
    }
    if (calls && s.delivered != ids) return "its callback was not given all tokens";
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

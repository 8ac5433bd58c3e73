// SPDX-License-Identifier: Apache-2.0
// Inside of a generator: the scheduler, whose one thread computes steps of many sequences; each
// sequence with a callback has a thread that calls it. scheduler.cpp computes, generator.cpp is what
// callers ask for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "runtime/generate.h"
#include "runtime/generate/engine.h"

namespace tfcc {
namespace generate {

using Clock = std::chrono::steady_clock;

inline constexpr size_t kMostUndelivered =
    64;  // tokens that a callback may lag behind before its sequence waits

/// Everything but `state` is guarded by the generator's mutex; `state` is the computing thread's.
struct Sequence {
  GenerateOptions options;
  std::vector<int32_t> tokens;           // of the prompt and the answer
  std::vector<float> log_probabilities;  // of the answer, if they are wanted
  size_t prompt_size = 0, computed = 0, delivered = 0;
  uint64_t number = 0;  // in the order of submission
  Generated result;     // its tokens are filled in on request
  Clock::time_point submitted = Clock::now();
  bool cancelled = false, waited_for = false, ended = false;
  bool stepped = false;  // in the step whose results are taken
  std::unique_ptr<Engine::Sequence> state;
  std::thread caller;
  std::condition_variable more;  // a token or the end, for the caller

  size_t answered() const { return tokens.size() - prompt_size; }
  /// With so many more that are on their way.
  bool lags(size_t more = 0) const {
    return options.on_token && answered() + more - delivered >= kMostUndelivered;
  }
};

}  // namespace generate

inline namespace v1 {

using generate::Engine;
using generate::Sequence;

struct Generator::Impl {
  using Entry = std::shared_ptr<Sequence>;

  GeneratorOptions options;
  int64_t vocabulary = 0;
  std::unique_ptr<Engine> engine;

  mutable std::mutex mutex;
  std::condition_variable changed;  // anything that somebody waits for, but for tokens
  std::map<Id, Entry> sequences;
  std::deque<Entry> waiting;
  std::vector<Entry> running, others;  // `others`: room to order them anew
  GeneratorStats counts;
  Id next_id = 1;
  bool stopping = false;
  std::thread computing;

  ~Impl();

  // ---- the computing thread

  void compute();
  Entry next_waiting() const;
  bool has_place(const Sequence& s) const;
  bool may_admit() const;
  bool make_place(std::unique_lock<std::mutex>& lock, const Sequence& s);
  std::vector<Entry>::iterator youngest();
  void preempt(std::unique_lock<std::mutex>& lock, std::vector<Entry>::iterator which);
  bool admit(std::unique_lock<std::mutex>& lock, const Entry& s);
  bool swap(std::unique_lock<std::mutex>& lock, Sequence& s,
            bool (Engine::*move)(Engine::Sequence&));
  bool has_work() const;
  void end_cancelled(std::unique_lock<std::mutex>& lock);
  static void end_state(std::unique_lock<std::mutex>& lock, Sequence& s);

  // What a sequence has in a step: its tokens from one on, which nobody changes meanwhile, or, of a
  // step that follows, the one that the step before chose.
  struct Part {
    Entry s;
    size_t from = 0, size = 0;
    int32_t chosen = -1;
    bool follows = false;
    Engine::Work work = {};
    Result<void> done = {};
    std::span<const int32_t> tokens() const {
      if (!follows) return std::span(s->tokens).subspan(from, size);
      return {&chosen, chosen < 0 ? 0u : 1u};
    }
  };
  using Parts = std::vector<Part>;
  Parts parts, next;                // of the step under way, and of the one that follows it
  std::vector<Engine::Work> works;  // of a step

  void choose_parts(std::unique_lock<std::mutex>& lock);
  static Part part_of(const Entry& s, size_t size);
  std::span<Engine::Work> works_of(const Parts& of);
  void begin(std::unique_lock<std::mutex>& lock, Parts& of, bool follows);
  void step(std::unique_lock<std::mutex>& lock);
  void follow();
  void reserve(std::unique_lock<std::mutex>& lock);

  // Keys and values may be gigabytes.
  template <class F> static Result<void> guarded(const F& f) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::memory, "no memory for the keys and values of a step"};
    }
  }

  Result<void> finish_works(Parts& of);
  void finish();
  void compute_alone(Parts& of);
  void apply(std::unique_lock<std::mutex>& lock, Parts& of, const Parts& after);
  void apply(const Part& part);
  void take(Sequence& s, int32_t id);
  void end(Sequence& s, GenerateEnd how, Error error = {});
  void measure(generate::Clock::time_point since);
  double waited_ms = 0;  // for steps, in this turn

  // ---- a sequence's thread

  void call(const Entry& s);

  // ---- everybody

  Result<Entry> find(Id id) const;
  static Generated result_of(const Sequence& s);
  Result<void> check(std::span<const int32_t> prompt, const GenerateOptions& o) const;
};

}  // namespace v1
}  // namespace tfcc

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
  std::unique_ptr<Engine::Sequence> state;
  std::thread caller;

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
  std::condition_variable changed;  // anything that somebody waits for
  std::map<Id, Entry> sequences;
  std::deque<Entry> waiting, running;
  GeneratorStats counts;
  Id next_id = 1;
  bool stopping = false;
  std::thread computing;

  ~Impl();

  // ---- the computing thread

  void compute();
  bool may_admit() const;
  bool admit(std::unique_lock<std::mutex>& lock, const Entry& s);
  bool swap(std::unique_lock<std::mutex>& lock, Sequence& s,
            bool (Engine::*move)(Engine::Sequence&));
  bool has_work() const;
  void end_cancelled(std::unique_lock<std::mutex>& lock);
  static void end_state(std::unique_lock<std::mutex>& lock, Sequence& s);

  // What a sequence has in a step, apart from what others may change meanwhile.
  struct Part {
    Entry s;
    std::vector<int32_t> tokens, history;
    Engine::Work work = {};
    Result<void> done = {};
  };
  using Parts = std::vector<Part>;
  Parts parts;  // of the step under way

  void choose_parts(std::unique_lock<std::mutex>& lock);
  static Part part_of(const Entry& s, size_t size);
  static std::vector<Engine::Work> works_of(const Parts& of);
  void begin(std::unique_lock<std::mutex>& lock, Parts& of, bool follows);
  void step(std::unique_lock<std::mutex>& lock);
  Parts following();
  void reserve(std::unique_lock<std::mutex>& lock);

  // Keys and values may be gigabytes.
  template <class F> static Result<void> guarded(const F& f) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::memory, "no memory for the keys and values of a step"};
    }
  }

  Result<void> finish_works(Parts& of) const;
  void finish(Parts& of, Parts& next) const;
  void compute_alone(Parts& of) const;
  void apply(std::unique_lock<std::mutex>& lock, Parts& of, const Parts& next);
  void apply(const Part& part);
  void take(Sequence& s, int32_t id);
  void end(Sequence& s, GenerateEnd how, Error error = {});
  void measure();

  // ---- a sequence's thread

  void call(const Entry& s);

  // ---- everybody

  Result<Entry> find(Id id) const;
  static Generated result_of(const Sequence& s);
  Result<void> check(std::span<const int32_t> prompt, const GenerateOptions& o) const;
};

}  // namespace v1
}  // namespace tfcc

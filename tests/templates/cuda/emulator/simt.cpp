// SPDX-License-Identifier: Apache-2.0
#include "tests/templates/cuda/emulator/simt.h"

namespace tfcc::test {
namespace {
constexpr size_t kStackBytes = 256 << 10;
}

void Simt::start() {
  Simt& s = *current_;
  (*s.thread_)();
  s.fibers_[static_cast<size_t>(s.running_)]->done = true;
  swapcontext(&s.fibers_[static_cast<size_t>(s.running_)]->context, &s.scheduler_);
}

bool Simt::run(int threads, Dim block, Dim grid, unsigned seed,
               const std::function<void()>& thread) {
  current_ = this;
  random_.seed(seed);
  block_ = block;
  grid_ = grid;
  thread_ = &thread;
  error_.clear();
  pending_.clear();
  meetings_.clear();
  exchanges_.clear();
  fibers_.clear();
  for (int t = 0; t < threads; ++t) {
    Fiber& f = *fibers_.emplace_back(std::make_unique<Fiber>());
    f.stack.resize(kStackBytes);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, &Simt::start, 0);
  }
  while (error_.empty() && step()) {}
  current_ = nullptr;
  return error_.empty();
}

// One thread that may go on runs until it waits; sometimes, and where none may, a copy happens
// instead. False when all have ended.
bool Simt::step() {
  const auto copy = [&] {
    std::swap(pending_[random_() % pending_.size()], pending_.back());
    const auto work = std::move(pending_.back());
    pending_.pop_back();
    work();
  };
  if (!pending_.empty() && random_() % 8 == 0) return copy(), true;
  const size_t n = fibers_.size(), first = random_() % n;
  bool all_done = true;
  for (size_t i = 0; i < n; ++i) {
    const size_t t = (first + i) % n;
    Fiber& f = *fibers_[t];
    all_done &= f.done;
    if (f.done || (f.ready && !f.ready())) continue;
    f.ready = nullptr;
    running_ = static_cast<int>(t);
    swapcontext(&scheduler_, &f.context);
    return true;
  }
  if (!pending_.empty()) return copy(), true;
  if (!all_done) error_ = "threads wait for ever";
  return false;
}

void Simt::yield_until(const std::function<bool()>& ready) {
  Fiber& f = *fibers_[static_cast<size_t>(running_)];
  f.ready = ready;
  swapcontext(&f.context, &scheduler_);
}

void Simt::fail(const std::string& message) {
  if (error_.empty()) error_ = message;
  yield_until([] { return false; });
}

bool Simt::arrive(int barrier, int count) {
  Meeting& m = meetings_[barrier];
  if (++m.arrived < count) return false;
  m.arrived = 0;
  ++m.generation;
  return true;
}

void Simt::meet(int barrier, int count) {
  Meeting& m = meetings_[barrier];
  const long generation = m.generation;
  if (arrive(barrier, count)) return;
  yield_until([&m, generation] { return m.generation != generation; });
}

const unsigned long long* Simt::exchange(unsigned long long value) {
  Exchange& e = exchanges_[warp()];
  const long generation = e.generation;
  e.values[generation % 2][lane()] = value;
  if (++e.arrived == 32) {
    e.arrived = 0;
    ++e.generation;
  } else {
    yield_until([&e, generation] { return e.generation != generation; });
  }
  return e.values[generation % 2];
}

unsigned Simt::ballot(bool vote) {
  const unsigned long long* votes = exchange(vote);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(votes[lane]) << lane;
  return bits;
}

}  // namespace tfcc::test

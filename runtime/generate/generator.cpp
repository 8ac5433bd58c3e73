// SPDX-License-Identifier: Apache-2.0
// The scheduler: one thread computes steps, sequences in turns; each sequence with a callback has a thread that calls it.
#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "runtime/generate/engine.h"
#include "runtime/generate/sampler.h"

namespace tfcc {
inline namespace v1 {

using Clock = std::chrono::steady_clock;
using generate::Engine;

const char* to_string(GenerateEnd end) {
  constexpr const char* kNames[] = {"running", "stop", "length", "context", "cancelled", "failed"};
  return kNames[static_cast<int>(end)];
}

namespace {

constexpr size_t kMostUndelivered = 64;  // tokens that a callback may lag behind before its sequence waits

double ms_since(Clock::time_point t) { return std::chrono::duration<double, std::milli>(Clock::now() - t).count(); }

/// Everything but `state` is guarded by the generator's mutex; `state` is the computing thread's.
struct Sequence {
  GenerateOptions options;
  std::vector<int32_t> tokens;       // of the prompt and the answer
  size_t prompt_size = 0, computed = 0, delivered = 0;
  Generated result;                  // its tokens are filled in on request
  Clock::time_point submitted = Clock::now();
  bool cancelled = false, waited_for = false, ended = false;
  std::unique_ptr<Engine::Sequence> state;
  std::thread caller;

  size_t answered() const { return tokens.size() - prompt_size; }
  bool lags() const { return options.on_token && answered() - delivered >= kMostUndelivered; }
};

}  // namespace

struct Generator::Impl {
  using Entry = std::shared_ptr<Sequence>;

  GeneratorOptions options;
  int64_t vocabulary = 0;
  std::unique_ptr<Engine> engine;

  mutable std::mutex mutex;
  std::condition_variable changed;   // anything that somebody waits for
  std::map<Id, Entry> sequences;
  std::deque<Entry> waiting, running;
  GeneratorStats counts;
  Id next_id = 1;
  bool stopping = false;
  std::thread computing;

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      for (auto& [id, s] : sequences) s->cancelled = true;
    }
    changed.notify_all();
    if (computing.joinable()) computing.join();
    std::vector<std::thread> callers;  // a callback may still change the map; it can submit no more
    {
      const std::lock_guard lock(mutex);
      for (auto& [id, s] : sequences)
        if (s->caller.joinable()) callers.push_back(std::move(s->caller));
    }
    for (std::thread& t : callers) t.join();
  }

  // ---- the computing thread

  void compute() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || has_work(); });
      end_cancelled(lock);
      if (stopping && running.empty() && waiting.empty()) return;
      while (!waiting.empty() && static_cast<int64_t>(running.size()) < options.max_sequences) {
        const Entry s = waiting.front();
        waiting.pop_front();
        if (admit(s)) running.push_back(s);
      }
      const auto next = std::find_if(running.begin(), running.end(), [](const Entry& s) { return !s->lags(); });
      if (next == running.end()) continue;
      const Entry s = *next;
      running.erase(next);
      step(lock, s);
      if (s->ended) end_state(lock, *s);
      else running.push_back(s);
      measure();
    }
  }

  // The thread of its callback begins with a sequence's turn: those that wait have none.
  bool admit(const Entry& s) {
    try {
      if (s->options.on_token) s->caller = std::thread([this, s] { call(s); });
      return true;
    } catch (const std::system_error& e) {
      end(*s, GenerateEnd::failed, {ErrorCode::memory, std::string("no thread for the sequence's callback: ") + e.what()});
      return false;
    }
  }

  bool has_work() const {
    const auto wants = [](const Entry& s) { return s->cancelled || !s->lags(); };
    return (!waiting.empty() && static_cast<int64_t>(running.size()) < options.max_sequences) || std::any_of(running.begin(), running.end(), wants) ||
           std::any_of(waiting.begin(), waiting.end(), [](const Entry& s) { return s->cancelled; });
  }

  void end_cancelled(std::unique_lock<std::mutex>& lock) {
    for (std::deque<Entry>* list : {&waiting, &running})
      for (size_t i = 0; i < list->size();) {
        const Entry s = (*list)[i];
        if (!s->cancelled) {
          ++i;
          continue;
        }
        list->erase(list->begin() + static_cast<std::ptrdiff_t>(i));
        end(*s, GenerateEnd::cancelled);
        end_state(lock, *s);
      }
  }

  // Keys and values may be gigabytes: they go without the lock held.
  static void end_state(std::unique_lock<std::mutex>& lock, Sequence& s) {
    auto state = std::move(s.state);
    lock.unlock();
    state.reset();
    lock.lock();
  }

  // A chunk of the prompt, or the next token. The lock is open while the model runs.
  void step(std::unique_lock<std::mutex>& lock, const Entry& s) {
    const size_t size = std::min(s->tokens.size() - s->computed, static_cast<size_t>(options.prompt_chunk));
    const std::vector<int32_t> tokens(s->tokens.begin() + static_cast<std::ptrdiff_t>(s->computed), s->tokens.begin() + static_cast<std::ptrdiff_t>(s->computed + size));
    const std::vector<int32_t> history = s->tokens;
    const bool chooses = s->computed + size == s->tokens.size();
    const Sampling sampling = s->options.sampling;
    lock.unlock();
    Result<int32_t> chosen = [&]() -> Result<int32_t> {
      try {
        if (!s->state) s->state = engine->start();
        TFCC_TRY(const std::span<float> logits, engine->advance(*s->state, tokens));
        return chooses ? generate::sample(logits, history, sampling, history.size()) : Result<int32_t>(0);
      } catch (const std::bad_alloc&) {  // keys and values may be gigabytes
        return Error{ErrorCode::memory, "no memory for the keys and values of " + std::to_string(history.size()) + " tokens"};
      }
    }();
    lock.lock();
    if (s->ended) return;
    if (!chosen) return end(*s, GenerateEnd::failed, chosen.error());
    (s->computed < s->prompt_size ? counts.prompt_tokens : counts.tokens) += static_cast<int64_t>(size);
    s->computed += size;
    if (chooses && !s->cancelled) take(*s, *chosen);
  }

  void take(Sequence& s, int32_t id) {
    if (s.answered() == 0) s.result.first_token_ms = ms_since(s.submitted);
    const std::vector<int32_t>& stops = s.options.stop_ids;
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) return end(s, GenerateEnd::stop);
    s.tokens.push_back(id);
    changed.notify_all();
    if (static_cast<int64_t>(s.answered()) >= s.options.max_tokens) end(s, GenerateEnd::length);
    else if (static_cast<int64_t>(s.tokens.size()) > options.max_context) end(s, GenerateEnd::context);
  }

  void end(Sequence& s, GenerateEnd how, Error error = {}) {
    if (s.ended) return;
    s.ended = true;
    s.result.end = how;
    s.result.error = std::move(error);
    s.result.total_ms = ms_since(s.submitted);
    changed.notify_all();
  }

  void measure() {
    counts.cache_bytes = 0;
    for (const Entry& s : running)
      if (s->state) counts.cache_bytes += s->state->bytes;
  }

  // ---- a sequence's thread

  void call(const Entry& s) {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return s->delivered < s->answered() || s->ended; });
      if (s->cancelled || s->delivered == s->answered()) return;
      const int32_t id = s->tokens[s->prompt_size + s->delivered];
      lock.unlock();
      std::string thrown;
      try {
        s->options.on_token(id);
      } catch (const std::exception& e) {
        thrown = std::string("the callback threw: ") + e.what();
      } catch (...) {
        thrown = "the callback threw something that is no std::exception";
      }
      lock.lock();
      ++s->delivered;
      if (!thrown.empty()) {
        s->cancelled = true;  // the computing thread takes it out of its lists
        s->ended = false;
        end(*s, GenerateEnd::failed, {ErrorCode::invalid_argument, thrown});
        changed.notify_all();
        return;
      }
      changed.notify_all();
    }
  }

  // ---- everybody

  Result<Entry> find(Id id) const {
    const auto found = sequences.find(id);
    if (found == sequences.end()) return Error{ErrorCode::invalid_argument, "there is no sequence " + std::to_string(id) + ", or its end was waited for"};
    return found->second;
  }

  static Generated result_of(const Sequence& s) {
    Generated out = s.result;
    out.tokens.assign(s.tokens.begin() + static_cast<std::ptrdiff_t>(s.prompt_size), s.tokens.end());
    return out;
  }

  Result<void> check(std::span<const int32_t> prompt, const GenerateOptions& o) const {
    if (prompt.empty()) return Error{ErrorCode::invalid_argument, "the prompt is empty; it needs at least one token"};
    for (size_t i = 0; i < prompt.size(); ++i)
      if (prompt[i] < 0 || prompt[i] >= vocabulary)
        return Error{ErrorCode::invalid_argument, "token " + std::to_string(i) + " of the prompt is " + std::to_string(prompt[i]) + ", outside the vocabulary [0, " +
                                                      std::to_string(vocabulary) + "); is the tokenizer that of another model?"};
    if (static_cast<int64_t>(prompt.size()) > options.max_context)
      return Error{ErrorCode::shape, "the prompt has " + std::to_string(prompt.size()) + " tokens, the context holds " + std::to_string(options.max_context)};
    if (o.max_tokens < 1) return Error{ErrorCode::invalid_argument, "max_tokens must be at least 1, got " + std::to_string(o.max_tokens)};
    return generate::check(o.sampling);
  }
};

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

Result<Generator> Generator::make(const Model& model, const GeneratorOptions& options) {
  const auto positive = [](const char* what, int64_t value) -> Result<void> {
    if (value >= 1) return {};
    return Error{ErrorCode::invalid_argument, std::string(what) + " must be at least 1, got " + std::to_string(value)};
  };
  TFCC_TRY_VOID(positive("max_sequences", options.max_sequences));
  TFCC_TRY_VOID(positive("prompt_chunk", options.prompt_chunk));
  TFCC_TRY(generate::Roles roles, generate::find_roles(model.inputs(), model.outputs(), options.roles));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  // The last token of a context needs no place in a past. Where no limit is known, the graph itself tells what is too far.
  const generate::Cache* cache = roles.caches.empty() ? nullptr : &roles.caches[0];
  const int64_t most_past = cache ? cache->past.dims[cache->past_axis].max : 0;
  const int64_t allowed = cache ? (most_past > 0 ? most_past + 1 : 0) : roles.ids.dims[1].max;
  if (options.max_context < 0) TFCC_TRY_VOID(positive("max_context", options.max_context));
  if (options.max_context > 0 && allowed > 0 && options.max_context > allowed)
    return Error{ErrorCode::shape, "max_context is " + std::to_string(options.max_context) + ", the model takes at most " + std::to_string(allowed) + " tokens"};
  if (options.max_context == 0) impl->options.max_context = allowed > 0 ? std::min(allowed, kDefaultContext) : kDefaultContext;
  if (const int64_t most = roles.ids.dims[1].max; cache && most > 0) impl->options.prompt_chunk = std::min(options.prompt_chunk, most);
  impl->vocabulary = roles.vocabulary;
  TFCC_TRY(impl->engine, generate::make_literal_engine(model, std::move(roles), impl->options.max_context));
  Impl* raw = impl.get();
  impl->computing = std::thread([raw] { raw->compute(); });
  return Generator(std::move(impl));
}

Result<Generator::Id> Generator::submit(std::span<const int32_t> prompt, const GenerateOptions& options) {
  TFCC_TRY_VOID(impl_->check(prompt, options));
  auto s = std::make_shared<Sequence>();
  s->options = options;
  s->tokens.assign(prompt.begin(), prompt.end());
  s->prompt_size = prompt.size();
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) return Error{ErrorCode::invalid_argument, "the generator is being destroyed"};
  const Id id = impl_->next_id++;
  impl_->sequences[id] = s;
  impl_->waiting.push_back(s);
  impl_->changed.notify_all();
  return id;
}

Result<Generated> Generator::poll(Id id) const {
  const std::lock_guard lock(impl_->mutex);
  TFCC_TRY(const auto s, impl_->find(id));
  return Impl::result_of(*s);
}

Result<Generated> Generator::wait(Id id) {
  std::unique_lock lock(impl_->mutex);
  TFCC_TRY(const auto s, impl_->find(id));
  if (s->caller.get_id() == std::this_thread::get_id())
    return Error{ErrorCode::invalid_argument, "a callback cannot wait for the end of its own sequence"};
  if (s->waited_for) return Error{ErrorCode::invalid_argument, "another thread waits for sequence " + std::to_string(id)};
  s->waited_for = true;
  impl_->changed.wait(lock, [&] { return s->ended; });
  if (s->caller.joinable()) {  // until its last token is delivered
    std::thread caller = std::move(s->caller);
    lock.unlock();
    caller.join();
    lock.lock();
  }
  impl_->sequences.erase(id);
  return Impl::result_of(*s);
}

void Generator::cancel(Id id) {
  const std::lock_guard lock(impl_->mutex);
  const auto s = impl_->find(id);
  if (!s || (*s)->ended) return;
  (*s)->cancelled = true;
  impl_->changed.notify_all();
}

GeneratorStats Generator::stats() const {
  const std::lock_guard lock(impl_->mutex);
  GeneratorStats out = impl_->counts;
  out.waiting = static_cast<int64_t>(impl_->waiting.size());
  out.running = static_cast<int64_t>(impl_->running.size());
  return out;
}

int64_t Generator::max_context() const { return impl_->options.max_context; }
int64_t Generator::vocabulary_size() const { return impl_->vocabulary; }
const std::string& Generator::engine() const { return impl_->engine->name(); }

}  // namespace v1
}  // namespace tfcc

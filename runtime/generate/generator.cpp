// SPDX-License-Identifier: Apache-2.0
// The scheduler: one thread computes steps, sequences in turns; each sequence with a callback has a
// thread that calls it.
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

constexpr size_t kMostUndelivered =
    64;  // tokens that a callback may lag behind before its sequence waits

double ms_since(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}

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

}  // namespace

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
      if (parts.empty()) {
        changed.wait(lock, [&] { return stopping || has_work(); });
        end_cancelled(lock);
        if (stopping && running.empty() && waiting.empty()) return;
        while (may_admit()) {
          const Entry s = waiting.front();
          waiting.pop_front();
          if (admit(s)) running.push_back(s);
        }
        choose_parts();
        begin(lock, parts, false);
      }
      if (!parts.empty()) step(lock);
      measure();
    }
  }

  // One that runs alone is tried in any case.
  bool may_admit() const {
    if (waiting.empty() || static_cast<int64_t>(running.size()) >= options.max_sequences)
      return false;
    return running.empty() ||
           engine->has_place(static_cast<int64_t>(waiting.front()->tokens.size()) + 1);
  }

  // The thread of its callback begins with a sequence's first turn: those that wait have none.
  // Where it begins: what was computed before, as others began so, is not computed again.
  bool admit(const Entry& s) {
    try {
      s->state = engine->start(s->tokens);
      s->computed = static_cast<size_t>(s->state->length);
      engine->reserve(*s->state, static_cast<int64_t>(s->tokens.size()));
      if (s->options.on_token && !s->caller.joinable())
        s->caller = std::thread([this, s] { call(s); });
      return true;
    } catch (const std::system_error& e) {
      s->state.reset();
      end(*s, GenerateEnd::failed,
          {ErrorCode::memory, std::string("no thread for the sequence's callback: ") + e.what()});
      return false;
    } catch (const std::bad_alloc&) {
      s->state.reset();
      end(*s, GenerateEnd::failed, {ErrorCode::memory, "no memory for the sequence"});
      return false;
    }
  }

  bool has_work() const {
    const auto wants = [](const Entry& s) { return s->cancelled || !s->lags(); };
    return may_admit() || std::any_of(running.begin(), running.end(), wants) ||
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

  // What a sequence has in a step, apart from what others may change meanwhile.
  struct Part {
    Entry s;
    std::vector<int32_t> tokens, history;
    Engine::Work work = {};
    Result<void> done = {};
  };
  using Parts = std::vector<Part>;
  Parts parts;  // of the step under way

  // The next token of each sequence that has one, then pieces of prompts, the oldest first.
  void choose_parts() {
    int64_t left = options.prompt_chunk;
    const auto add = [&](const Entry& s) {
      const auto open = static_cast<int64_t>(s->tokens.size() - s->computed);
      const bool prompt = open > 1;
      const auto size = static_cast<size_t>(std::min(open, prompt ? left : int64_t{1}));
      if (s->lags() || size == 0 || parts.size() == engine->most_at_once()) return;
      if (prompt) left -= static_cast<int64_t>(size);
      parts.push_back(part_of(s, size));
    };
    const auto has_one = [](const Entry& s) { return s->tokens.size() - s->computed == 1; };
    if (engine->most_at_once() == 1) {
      for (const Entry& s : running) add(s);  // in turns: those that had one stand last
    } else {
      for (const Entry& s : running) has_one(s) ? add(s) : void();
      std::vector<Entry> prompts;
      for (const Entry& s : running) has_one(s) ? void() : prompts.push_back(s);
      std::sort(prompts.begin(), prompts.end(),
                [](const Entry& a, const Entry& b) { return a->number < b->number; });
      for (const Entry& s : prompts) add(s);
    }
    reserve();
  }

  // The next tokens of a sequence, so many.
  static Part part_of(const Entry& s, size_t size) {
    const auto first = s->tokens.begin() + static_cast<std::ptrdiff_t>(s->computed);
    Part part{s, {first, first + static_cast<std::ptrdiff_t>(size)}, {}};
    if (s->computed + size == s->tokens.size()) part.history = s->tokens;
    part.work.sequence = s->state.get();
    part.work.wants_token = !part.history.empty();
    part.work.sampling = s->options.sampling;
    part.work.wants_log_probability = s->options.log_probabilities;
    return part;
  }

  static std::vector<Engine::Work> works_of(const Parts& of) {
    std::vector<Engine::Work> works;
    for (const Part& p : of) {
      works.push_back(p.work);
      works.back().tokens = p.tokens;
      works.back().history = p.history;
    }
    return works;
  }

  // Begins a step. One that cannot be begun is computed sequence by sequence.
  void begin(std::unique_lock<std::mutex>& lock, Parts& of, bool follows) {
    if (of.empty()) return;
    lock.unlock();
    const auto begun = guarded([&] { return engine->begin(works_of(of), follows); });
    if (!begun && follows) of.clear();  // another time
    else if (!begun) compute_alone(of);
    lock.lock();
    if (begun) {
      ++counts.steps;
      counts.steps_ahead += follows;
      return;
    }
    if (!follows) apply(lock, of, {});
    of.clear();
  }

  // Finishes the step that was begun, where it may be with the next one begun before. The lock is
  // open while the model runs.
  void step(std::unique_lock<std::mutex>& lock) {
    Parts next = following();
    begin(lock, next, true);
    lock.unlock();
    finish(parts, next);
    lock.lock();
    apply(lock, parts, next);
    for (size_t i = 0; i < next.size(); ++i) {  // what it computes is known now
      next[i].tokens = {parts[i].work.token};
      next[i].history = next[i].s->tokens;
    }
    parts = std::move(next);
  }

  // The step after one under way, if it is sure to be of the same sequences, each with one token;
  // else nothing.
  Parts following() {
    Parts next;
    if (!engine->may_follow() || stopping || may_admit()) return next;
    const auto cancelled = [](const Entry& s) { return s->cancelled; };
    if (std::any_of(waiting.begin(), waiting.end(), cancelled) ||
        std::any_of(running.begin(), running.end(), cancelled))
      return next;
    size_t lagging = 0;
    for (const Entry& s : running) lagging += s->lags();
    if (parts.size() + lagging != running.size()) return next;
    for (const Part& p : parts) {
      const Sequence& s = *p.s;
      const auto tokens = static_cast<int64_t>(s.tokens.size()) + 1;  // with the one under way
      const bool goes_on = p.work.wants_token && !s.ended && !s.lags(1) &&
                           static_cast<int64_t>(s.answered()) + 1 < s.options.max_tokens &&
                           tokens <= options.max_context && engine->reserve(*s.state, tokens);
      if (!goes_on) return {};
      next.push_back(part_of(p.s, 0));
      next.back().work.wants_token = true;
      if (s.options.sampling.repetition_penalty != 1) next.back().history = s.tokens;
    }
    return next;
  }

  // Place for what each is about to compute. Where there is none, the youngest of all gives its own
  // back and begins again later.
  void reserve() {
    for (size_t i = 0; i < parts.size();) {
      const Entry s = parts[i].s;
      const auto tokens = static_cast<int64_t>(s->computed + parts[i].tokens.size());
      if (engine->reserve(*s->state, tokens)) {
        ++i;
        continue;
      }
      const auto youngest =
          std::max_element(running.begin(), running.end(),
                           [](const Entry& a, const Entry& b) { return a->number < b->number; });
      const Entry loser = *youngest;
      const bool alone = running.size() == 1;
      running.erase(youngest);
      const auto part =
          std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.s == loser; });
      if (part != parts.end()) {
        if (part - parts.begin() < static_cast<std::ptrdiff_t>(i)) --i;
        parts.erase(part);
      }
      loser->state.reset();
      loser->computed = 0;
      if (alone) {
        end(*loser, GenerateEnd::failed,
            {ErrorCode::memory, "the cache has place for " + std::to_string(engine->most_tokens()) +
                                    " tokens, the sequence has come to " + std::to_string(tokens) +
                                    "; make it with more cache_bytes"});
        continue;
      }
      ++counts.preempted;
      waiting.push_front(loser);
    }
  }

  // Keys and values may be gigabytes.
  template <class F> static Result<void> guarded(const F& f) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::memory, "no memory for the keys and values of a step"};
    }
  }

  Result<void> finish_works(Parts& of) const {
    std::vector<Engine::Work> works;
    const auto done = guarded([&] {
      works = works_of(of);
      return engine->finish(works);
    });
    for (size_t i = 0; i < works.size(); ++i) {
      of[i].work.token = works[i].token;
      of[i].work.log_probability = works[i].log_probability;
    }
    return done;
  }

  // After an error, which may be that of the step that followed, that one is none.
  void finish(Parts& of, Parts& next) const {
    const auto done = finish_works(of);
    if (done) return;
    if (of.size() == 1 && next.empty()) of[0].done = done;
    else compute_alone(of);
    next.clear();
  }

  // What one of them does wrong, a position past a table's end say, is no reason to end the others.
  void compute_alone(Parts& of) const {
    for (Part& p : of) {
      Parts one;
      one.push_back(std::move(p));
      one[0].done = guarded([&] { return engine->begin(works_of(one), false); });
      if (one[0].done) one[0].done = finish_works(one);
      p = std::move(one[0]);
    }
  }

  // Those that have ended leave the lists at once, and what they hold when no step has it any more.
  void apply(std::unique_lock<std::mutex>& lock, Parts& of, const Parts& next) {
    for (Part& part : of) {
      const auto at = std::find(running.begin(), running.end(), part.s);
      if (at != running.end()) running.erase(at);
      apply(part);
      const auto has = [&](const Part& p) { return p.s == part.s; };
      if (!part.s->ended) running.push_back(part.s);
      else if (std::none_of(next.begin(), next.end(), has)) end_state(lock, *part.s);
    }
  }

  void apply(const Part& part) {
    Sequence& s = *part.s;
    if (s.ended) return;
    if (!part.done) return end(s, GenerateEnd::failed, part.done.error());
    (s.computed < s.prompt_size ? counts.prompt_tokens : counts.tokens) +=
        static_cast<int64_t>(part.tokens.size());
    s.computed += part.tokens.size();
    if (!part.work.wants_token || s.cancelled) return;
    if (part.work.token < 0) return end(s, GenerateEnd::failed, generate::no_number());
    if (s.options.log_probabilities) s.log_probabilities.push_back(part.work.log_probability);
    take(s, part.work.token);
  }

  void take(Sequence& s, int32_t id) {
    if (s.answered() == 0) s.result.first_token_ms = ms_since(s.submitted);
    const std::vector<int32_t>& stops = s.options.stop_ids;
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) return end(s, GenerateEnd::stop);
    s.tokens.push_back(id);
    changed.notify_all();
    if (static_cast<int64_t>(s.answered()) >= s.options.max_tokens) end(s, GenerateEnd::length);
    else if (static_cast<int64_t>(s.tokens.size()) > options.max_context)
      end(s, GenerateEnd::context);
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
    counts.pages = engine->pages();
    counts.pages_held = engine->pages_held();
    counts.shared_tokens = engine->shared_tokens();
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
    if (found == sequences.end())
      return Error{ErrorCode::invalid_argument,
                   "there is no sequence " + std::to_string(id) + ", or its end was waited for"};
    return found->second;
  }

  static Generated result_of(const Sequence& s) {
    Generated out = s.result;
    out.tokens.assign(s.tokens.begin() + static_cast<std::ptrdiff_t>(s.prompt_size),
                      s.tokens.end());
    out.log_probabilities = s.log_probabilities;
    out.log_probabilities.resize(
        std::min(out.log_probabilities.size(), out.tokens.size()));  // not of the id it stopped at
    return out;
  }

  Result<void> check(std::span<const int32_t> prompt, const GenerateOptions& o) const {
    if (prompt.empty())
      return Error{ErrorCode::invalid_argument, "the prompt is empty; it needs at least one token"};
    for (size_t i = 0; i < prompt.size(); ++i)
      if (prompt[i] < 0 || prompt[i] >= vocabulary)
        return Error{ErrorCode::invalid_argument,
                     "token " + std::to_string(i) + " of the prompt is " +
                         std::to_string(prompt[i]) + ", outside the vocabulary [0, " +
                         std::to_string(vocabulary) + "); is the tokenizer that of another model?"};
    if (static_cast<int64_t>(prompt.size()) > options.max_context)
      return Error{ErrorCode::shape, "the prompt has " + std::to_string(prompt.size()) +
                                         " tokens, the context holds " +
                                         std::to_string(options.max_context)};
    if (o.max_tokens < 1)
      return Error{ErrorCode::invalid_argument,
                   "max_tokens must be at least 1, got " + std::to_string(o.max_tokens)};
    return generate::check(o.sampling);
  }
};

namespace {

// As `tfcc compile --role` keeps them: NAME=ROLE in each line.
std::vector<std::pair<std::string, std::string>> kept_roles(const Model& model) {
  std::vector<std::pair<std::string, std::string>> out;
  const auto text = model.attachment("roles.txt");
  for (size_t at = 0; text && at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    const size_t sign = line.rfind('=');
    if (sign != line.npos) out.emplace_back(line.substr(0, sign), line.substr(sign + 1));
    at = end + 1;
  }
  return out;
}

}  // namespace

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

Result<Generator> Generator::make(const Model& model, const GeneratorOptions& options) {
  const auto positive = [](const char* what, int64_t value) -> Result<void> {
    if (value >= 1) return {};
    return Error{ErrorCode::invalid_argument,
                 std::string(what) + " must be at least 1, got " + std::to_string(value)};
  };
  TFCC_TRY_VOID(positive("max_sequences", options.max_sequences));
  TFCC_TRY_VOID(positive("prompt_chunk", options.prompt_chunk));
  if (options.max_context < 0) TFCC_TRY_VOID(positive("max_context", options.max_context));
  constexpr int64_t kMostSequences = 65535, kMostContext = int64_t{1} << 30;
  if (options.max_sequences > kMostSequences)
    return Error{ErrorCode::invalid_argument, "max_sequences must be at most " +
                                                  std::to_string(kMostSequences) + ", got " +
                                                  std::to_string(options.max_sequences)};
  if (options.max_context > kMostContext)
    return Error{ErrorCode::invalid_argument, "max_context must be at most " +
                                                  std::to_string(kMostContext) + ", got " +
                                                  std::to_string(options.max_context)};
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  auto generation =
      options.literal ? Result<Model>(Error{ErrorCode::unsupported, ""}) : model.generation();
  if (!generation && generation.error().code != ErrorCode::unsupported) return generation.error();
  // Roles are those of the graph as it was exported, which also knows how long a context may be. A
  // program for generation does without.
  const auto given = options.roles.empty() ? kept_roles(model) : options.roles;
  auto roles = generate::find_roles(model.inputs(), model.outputs(), given);
  if (!roles && (!generation || !options.roles.empty())) return roles.error();
  // The last token of a context needs no place in a past. Where no limit is known, the graph itself
  // tells what is too far.
  const generate::Cache* cache = roles && !roles->caches.empty() ? &roles->caches[0] : nullptr;
  const int64_t most_past = cache ? cache->past.dims[cache->past_axis].max : 0,
                most_ids = roles ? roles->ids.dims[1].max : 0;
  const int64_t allowed = cache ? (most_past > 0 ? most_past + 1 : 0) : most_ids;
  if (options.max_context > 0 && allowed > 0 && options.max_context > allowed)
    return Error{ErrorCode::shape, "max_context is " + std::to_string(options.max_context) +
                                       ", the model takes at most " + std::to_string(allowed) +
                                       " tokens"};
  if (options.max_context == 0)
    impl->options.max_context = allowed > 0 ? std::min(allowed, kDefaultContext) : kDefaultContext;
  impl->options.prompt_chunk =
      std::min(options.prompt_chunk,
               options.max_sequences * impl->options.max_context);  // that many there are
  impl->vocabulary = generation ? generate::vocabulary_of(*generation) : roles->vocabulary;
  if (generation) {
    const generate::PagedOptions paged{
        .max_context = impl->options.max_context,
        .max_sequences = options.max_sequences,
        .most_tokens = impl->options.prompt_chunk + options.max_sequences,
        .cache_bytes = options.cache_bytes,
        .prefix_sharing = options.prefix_sharing,
        .run_ahead = options.run_ahead};
    TFCC_TRY(impl->engine, generate::make_paged_engine(*generation, paged));
  } else {
    if (cache && most_ids > 0)
      impl->options.prompt_chunk = std::min(impl->options.prompt_chunk, most_ids);
    TFCC_TRY(impl->engine,
             generate::make_literal_engine(model, *std::move(roles), impl->options.max_context));
  }
  Impl* raw = impl.get();
  impl->computing = std::thread([raw] { raw->compute(); });
  return Generator(std::move(impl));
}

Result<Generator::Id> Generator::submit(std::span<const int32_t> prompt,
                                        const GenerateOptions& options) {
  TFCC_TRY_VOID(impl_->check(prompt, options));
  auto s = std::make_shared<Sequence>();
  s->options = options;
  s->tokens.assign(prompt.begin(), prompt.end());
  s->prompt_size = prompt.size();
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping)
    return Error{ErrorCode::invalid_argument, "the generator is being destroyed"};
  const Id id = impl_->next_id++;
  s->number = id;
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
    return Error{ErrorCode::invalid_argument,
                 "a callback cannot wait for the end of its own sequence"};
  if (s->waited_for)
    return Error{ErrorCode::invalid_argument,
                 "another thread waits for sequence " + std::to_string(id)};
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

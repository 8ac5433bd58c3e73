// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/scheduler.h"

#include <algorithm>
#include <exception>
#include <system_error>

#include "runtime/generate/sampler.h"

namespace tfcc {
inline namespace v1 {
namespace {

double ms_since(generate::Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(generate::Clock::now() - t).count();
}

}  // namespace

Generator::Impl::~Impl() {
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

void Generator::Impl::compute() {
  std::unique_lock lock(mutex);
  while (true) {
    if (parts.empty()) changed.wait(lock, [&] { return stopping || has_work(); });
    const auto since = generate::Clock::now();
    if (parts.empty()) {
      end_cancelled(lock);
      if (stopping && running.empty() && waiting.empty()) return;
      while (may_admit()) {
        const Entry s = next_waiting();
        if (!make_place(lock, *s)) continue;
        const bool admitted = admit(lock, s);
        waiting.erase(std::find(waiting.begin(), waiting.end(), s));
        if (admitted) running.push_back(s);
      }
      choose_parts(lock);
      begin(lock, parts, false);
    }
    if (!parts.empty()) step(lock);
    measure(since);
  }
}

// The first that waits, but those whose callbacks have too much to do: they hold nobody up.
Generator::Impl::Entry Generator::Impl::next_waiting() const {
  const auto found = std::find_if(waiting.begin(), waiting.end(), [](const Entry& s) {
    return !s->cancelled &&
           !s->lags(generate::kMostUndelivered / 2);  // else it would be back at the next token
  });
  return found == waiting.end() ? nullptr : *found;
}

bool Generator::Impl::has_place(const Sequence& s) const {
  return engine->has_place(static_cast<int64_t>(s.tokens.size()) + 1);
}

// One that runs alone is tried in any case, and those that lag give their place back.
bool Generator::Impl::may_admit() const {
  const Entry s = next_waiting();
  if (!s) return false;
  const auto lagging =
      std::count_if(running.begin(), running.end(), [](const Entry& r) { return r->lags(); });
  if (static_cast<int64_t>(running.size()) - lagging >= options.max_sequences) return false;
  return running.empty() || lagging > 0 || has_place(*s);
}

// False if somebody lagged, gave back what it had, and more is needed. No step is under way.
bool Generator::Impl::make_place(std::unique_lock<std::mutex>& lock, const Sequence& s) {
  const auto there_is = [&] {
    return running.empty() ||
           (static_cast<int64_t>(running.size()) < options.max_sequences && has_place(s));
  };
  if (there_is()) return true;
  const auto loser = youngest();
  if ((*loser)->lags()) preempt(lock, loser);
  return there_is();
}

// The one that gives its place back first: of those that lag, or else of all.
std::vector<Generator::Impl::Entry>::iterator Generator::Impl::youngest() {
  return std::max_element(running.begin(), running.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a->lags(), a->number) < std::pair(b->lags(), b->number);
  });
}

// It goes on later, with what it had if the host has memory for it.
void Generator::Impl::preempt(std::unique_lock<std::mutex>& lock,
                              std::vector<Entry>::iterator which) {
  const Entry s = *which;
  running.erase(which);
  const bool swapped = swap(lock, *s, &Engine::swap_out);
  if (!swapped) s->computed = 0;
  ++counts.preempted;
  counts.swapped += swapped;
  waiting.push_front(s);
}

// The thread of its callback begins with a sequence's first turn: those that wait have none.
// Where it begins: what it computed itself before, or others that began so, is not computed again.
bool Generator::Impl::admit(std::unique_lock<std::mutex>& lock, const Entry& s) {
  try {
    if (s->state) (void)swap(lock, *s, &Engine::swap_in);
    if (!s->state) s->state = engine->start(s->tokens);
    s->computed = static_cast<size_t>(s->state->length);
    engine->reserve(*s->state, static_cast<int64_t>(s->tokens.size()));
    if (s->options.on_token && !s->caller.joinable() && !s->ended)
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

bool Generator::Impl::has_work() const {
  const auto wants = [](const Entry& s) { return s->cancelled || !s->lags(); };
  return may_admit() || std::any_of(running.begin(), running.end(), wants) ||
         std::any_of(waiting.begin(), waiting.end(), [](const Entry& s) { return s->cancelled; });
}

void Generator::Impl::end_cancelled(std::unique_lock<std::mutex>& lock) {
  const auto end_those_of = [&](auto& list) {
    for (size_t i = 0; i < list.size();) {
      const Entry s = list[i];
      if (!s->cancelled) {
        ++i;
        continue;
      }
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      end(*s, GenerateEnd::cancelled);
      end_state(lock, *s);
    }
  };
  end_those_of(waiting);
  end_those_of(running);
}

// Keys and values may be gigabytes: they go without the lock held.
void Generator::Impl::end_state(std::unique_lock<std::mutex>& lock, Sequence& s) {
  auto state = std::move(s.state);
  lock.unlock();
  state.reset();
  lock.lock();
}

// Moves what a sequence holds, without the lock held. What could not be moved is gone.
bool Generator::Impl::swap(std::unique_lock<std::mutex>& lock, Sequence& s,
                           bool (Engine::*move)(Engine::Sequence&)) {
  lock.unlock();
  bool moved = false;
  try {
    moved = (engine.get()->*move)(*s.state);
  } catch (const std::bad_alloc&) {  // it is computed again
  }
  if (!moved) s.state.reset();
  lock.lock();
  return moved;
}

// The next token of each sequence that has one, then pieces of prompts, the oldest first.
void Generator::Impl::choose_parts(std::unique_lock<std::mutex>& lock) {
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
  reserve(lock);
}

// The next tokens of a sequence, so many.
Generator::Impl::Part Generator::Impl::part_of(const Entry& s, size_t size) {
  Part part{.s = s, .from = s->computed, .size = size};
  part.work.sequence = s->state.get();
  part.work.wants_token = part.from + size == s->tokens.size();
  part.work.sampling = s->options.sampling;
  part.work.wants_log_probability = s->options.log_probabilities;
  return part;
}

// Until the next call.
std::span<Engine::Work> Generator::Impl::works_of(const Parts& of) {
  works.clear();
  for (const Part& p : of) {
    works.push_back(p.work);
    works.back().tokens = p.tokens();
    works.back().history = p.s->tokens;
  }
  return works;
}

// Begins a step. One that cannot be begun is computed sequence by sequence.
void Generator::Impl::begin(std::unique_lock<std::mutex>& lock, Parts& of, bool follows) {
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
void Generator::Impl::step(std::unique_lock<std::mutex>& lock) {
  follow();
  begin(lock, next, true);
  lock.unlock();
  finish();
  lock.lock();
  apply(lock, parts, next);
  for (size_t i = 0; i < next.size(); ++i)
    next[i].chosen = parts[i].work.token;  // what it computes is known now
  parts.swap(next);
  next.clear();
}

// The step after one under way, if it is sure to be of the same sequences, each with one token;
// else nothing.
void Generator::Impl::follow() {
  next.clear();
  if (!engine->may_follow() || stopping || may_admit()) return;
  const auto cancelled = [](const Entry& s) { return s->cancelled; };
  if (std::any_of(waiting.begin(), waiting.end(), cancelled) ||
      std::any_of(running.begin(), running.end(), cancelled))
    return;
  size_t lagging = 0;
  for (const Entry& s : running) lagging += s->lags();
  if (parts.size() + lagging != running.size()) return;
  for (const Part& p : parts) {
    const Sequence& s = *p.s;
    const auto tokens = static_cast<int64_t>(s.tokens.size()) + 1;  // with the one under way
    const bool goes_on = p.work.wants_token && !s.ended && !s.lags(1) &&
                         static_cast<int64_t>(s.answered()) + 1 < s.options.max_tokens &&
                         tokens <= options.max_context && engine->reserve(*s.state, tokens);
    if (!goes_on) return next.clear();
    next.push_back(part_of(p.s, 0));
    next.back().size = 1;
    next.back().follows = next.back().work.wants_token = true;
  }
}

// Place for what each is about to compute. Where there is none, the youngest of all gives its own
// back and goes on later.
void Generator::Impl::reserve(std::unique_lock<std::mutex>& lock) {
  for (size_t i = 0; i < parts.size();) {
    const Entry s = parts[i].s;
    const auto tokens = static_cast<int64_t>(s->computed + parts[i].size);
    if (engine->reserve(*s->state, tokens)) {
      ++i;
      continue;
    }
    const auto which = youngest();
    const Entry loser = *which;
    const auto part =
        std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.s == loser; });
    if (part != parts.end()) {
      if (part - parts.begin() < static_cast<std::ptrdiff_t>(i)) --i;
      parts.erase(part);
    }
    if (running.size() == 1) {
      running.clear();
      loser->state.reset();
      end(*loser, GenerateEnd::failed,
          {ErrorCode::memory, "the cache has place for " + std::to_string(engine->most_tokens()) +
                                  " tokens, the sequence has come to " + std::to_string(tokens) +
                                  "; make it with more cache_bytes"});
      continue;
    }
    preempt(lock, which);
  }
}

Result<void> Generator::Impl::finish_works(Parts& of) {
  std::span<Engine::Work> done_works;
  const auto done = guarded([&] {
    done_works = works_of(of);
    const auto since = generate::Clock::now();
    auto finished = engine->finish(done_works);
    waited_ms += ms_since(since);
    return finished;
  });
  for (size_t i = 0; i < done_works.size(); ++i) {
    of[i].work.token = done_works[i].token;
    of[i].work.log_probability = done_works[i].log_probability;
  }
  return done;
}

// After an error, which may be that of the step that followed, that one is none.
void Generator::Impl::finish() {
  const auto done = finish_works(parts);
  if (done) return;
  if (parts.size() == 1 && next.empty()) parts[0].done = done;
  else compute_alone(parts);
  next.clear();
}

// What one of them does wrong, a position past a table's end say, is no reason to end the others.
void Generator::Impl::compute_alone(Parts& of) {
  for (Part& p : of) {
    Parts one;
    one.push_back(std::move(p));
    one[0].done = guarded([&] { return engine->begin(works_of(one), false); });
    if (one[0].done) one[0].done = finish_works(one);
    p = std::move(one[0]);
  }
}

// Those that have ended leave the list at once, and what they hold when no step has it any more.
// The others of a step stand last.
void Generator::Impl::apply(std::unique_lock<std::mutex>& lock, Parts& of, const Parts& after) {
  for (const Part& part : of) part.s->stepped = true;
  others.clear();
  for (Entry& s : running)
    if (!s->stepped) others.push_back(std::move(s));
  running.swap(others);
  others.clear();
  for (const Part& part : of) {
    part.s->stepped = false;
    apply(part);
    if (!part.s->ended) running.push_back(part.s);
  }
  for (const Part& part : of) {
    const auto has = [&](const Part& p) { return p.s == part.s; };
    if (part.s->ended && std::none_of(after.begin(), after.end(), has)) end_state(lock, *part.s);
  }
}

void Generator::Impl::apply(const Part& part) {
  Sequence& s = *part.s;
  if (s.ended) return;
  if (!part.done && s.cancelled) return;  // before it failed, and so it ends: end_cancelled()
  if (!part.done) return end(s, GenerateEnd::failed, part.done.error());
  (s.computed < s.prompt_size ? counts.prompt_tokens : counts.tokens) +=
      static_cast<int64_t>(part.size);
  s.computed += part.size;
  if (!part.work.wants_token || s.cancelled) return;
  if (part.work.token < 0) return end(s, GenerateEnd::failed, generate::no_number());
  if (s.options.log_probabilities) s.log_probabilities.push_back(part.work.log_probability);
  take(s, part.work.token);
}

void Generator::Impl::take(Sequence& s, int32_t id) {
  if (s.answered() == 0) s.result.first_token_ms = ms_since(s.submitted);
  const std::vector<int32_t>& stops = s.options.stop_ids;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) return end(s, GenerateEnd::stop);
  s.tokens.push_back(id);
  s.more.notify_one();
  if (static_cast<int64_t>(s.answered()) >= s.options.max_tokens) end(s, GenerateEnd::length);
  else if (static_cast<int64_t>(s.tokens.size()) > options.max_context)
    end(s, GenerateEnd::context);
}

void Generator::Impl::end(Sequence& s, GenerateEnd how, Error error) {
  if (s.ended) return;
  s.ended = true;
  s.result.end = how;
  s.result.error = std::move(error);
  s.result.total_ms = ms_since(s.submitted);
  s.more.notify_one();
  changed.notify_all();
}

void Generator::Impl::measure(generate::Clock::time_point since) {
  const double took = ms_since(since);
  counts.host_ms += took - waited_ms;
  counts.busy_ms += took;
  waited_ms = 0;
  counts.cache_bytes = 0;
  for (const Entry& s : running)
    if (s->state) counts.cache_bytes += s->state->bytes;
  counts.pages = engine->pages();
  counts.pages_held = engine->pages_held();
  counts.shared_tokens = engine->shared_tokens();
}

// ---- a sequence's thread

void Generator::Impl::call(const Entry& s) {
  std::unique_lock lock(mutex);
  while (true) {
    s->more.wait(lock, [&] { return s->delivered < s->answered() || s->ended; });
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
    // Who lagged may go on with this one, or come again (next_waiting).
    const size_t lag = s->answered() - s->delivered++;
    if (!thrown.empty()) {
      s->cancelled = true;  // the computing thread takes it out of its lists
      s->ended = false;
      end(*s, GenerateEnd::failed, {ErrorCode::invalid_argument, thrown});
      changed.notify_all();
      return;
    }
    if (lag == generate::kMostUndelivered || lag == generate::kMostUndelivered / 2)
      changed.notify_all();
  }
}

// ---- everybody

Result<Generator::Impl::Entry> Generator::Impl::find(Id id) const {
  const auto found = sequences.find(id);
  if (found == sequences.end())
    return Error{ErrorCode::invalid_argument,
                 "there is no sequence " + std::to_string(id) + ", or its end was waited for"};
  return found->second;
}

Generated Generator::Impl::result_of(const Sequence& s) {
  Generated out = s.result;
  out.tokens.assign(s.tokens.begin() + static_cast<std::ptrdiff_t>(s.prompt_size), s.tokens.end());
  out.log_probabilities = s.log_probabilities;
  out.log_probabilities.resize(
      std::min(out.log_probabilities.size(), out.tokens.size()));  // not of the id it stopped at
  return out;
}

Result<void> Generator::Impl::check(std::span<const int32_t> prompt,
                                    const GenerateOptions& o) const {
  if (prompt.empty())
    return Error{ErrorCode::invalid_argument, "the prompt is empty; it needs at least one token"};
  for (size_t i = 0; i < prompt.size(); ++i)
    if (prompt[i] < 0 || prompt[i] >= vocabulary)
      return Error{ErrorCode::invalid_argument,
                   "token " + std::to_string(i) + " of the prompt is " + std::to_string(prompt[i]) +
                       ", outside the vocabulary [0, " + std::to_string(vocabulary) +
                       "); is the tokenizer that of another model?"};
  if (static_cast<int64_t>(prompt.size()) > options.max_context)
    return Error{ErrorCode::shape, "the prompt has " + std::to_string(prompt.size()) +
                                       " tokens, the context holds " +
                                       std::to_string(options.max_context)};
  if (o.max_tokens < 1)
    return Error{ErrorCode::invalid_argument,
                 "max_tokens must be at least 1, got " + std::to_string(o.max_tokens)};
  return generate::check(o.sampling);
}

}  // namespace v1
}  // namespace tfcc

// SPDX-License-Identifier: Apache-2.0
// What callers ask of a generator; scheduler.cpp computes.
#include "runtime/generate.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/generate/engine.h"
#include "runtime/generate/scheduler.h"

namespace tfcc {
inline namespace v1 {

const char* to_string(GenerateEnd end) {
  constexpr const char* kNames[] = {"running", "stop", "length", "context", "cancelled", "failed"};
  return kNames[static_cast<int>(end)];
}

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

namespace {

Result<void> check_options(const Model& model, const GeneratorOptions& options) {
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
  if (options.literal && model.generation_alone())
    return Error{
        ErrorCode::unsupported,
        "it was compiled with --generate-only, without the graph as it was exported; leave --literal out or compile it again"};
  return {};
}

// The first past of a decoder that takes one, and that grows with the tokens.
const generate::Cache* past_of(const Result<generate::Roles>& roles) {
  if (!roles) return nullptr;
  const auto found = std::ranges::find_if(roles->caches, &generate::Cache::grows);
  return found == roles->caches.end() ? nullptr : &*found;
}

// The longest context that the model takes; 0: no limit is known, and the graph itself tells what is
// too far. The last token needs no place in a past.
int64_t longest_context(const Model& model, const Result<generate::Roles>& roles) {
  if (const auto kept = model.attachment("max_context.txt"))  // of a file without the graph
    return std::max(0LL, std::strtoll(kept->c_str(), nullptr, 10));
  const generate::Cache* cache = past_of(roles);
  if (!cache) return roles && roles->caches.empty() ? roles->ids.dims[1].max : 0;
  const int64_t most = cache->past.dims[cache->past_axis].max;
  return most > 0 ? most + 1 : 0;
}

}  // namespace

Result<Generator> Generator::make(const Model& model, const GeneratorOptions& options) {
  TFCC_TRY_VOID(check_options(model, options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  auto generation =
      options.literal ? Result<Model>(Error{ErrorCode::unsupported, ""}) : model.generation();
  if (!generation && generation.error().code != ErrorCode::unsupported) return generation.error();
  // Roles are those of the graph as it was exported, which also knows how long a context may be. A
  // program for generation does without.
  const auto given = options.roles.empty() ? kept_roles(model) : options.roles;
  auto roles = model.generation_alone()
                   ? Result<generate::Roles>(Error{ErrorCode::unsupported,
                                                   "roles are of the graph as it was exported, "
                                                   "which --generate-only left out"})
                   : generate::find_roles(model.inputs(), model.outputs(), given);
  if (!roles && (!generation || !options.roles.empty())) return roles.error();
  const int64_t allowed = longest_context(model, roles);
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
        .swap_bytes = options.swap_bytes,
        .prefix_sharing = options.prefix_sharing,
        .run_ahead = options.run_ahead};
    TFCC_TRY(impl->engine, generate::make_paged_engine(*generation, paged));
  } else {
    if (const int64_t most = roles->ids.dims[1].max; !roles->caches.empty() && most > 0)
      impl->options.prompt_chunk = std::min(impl->options.prompt_chunk, most);
    TFCC_TRY(impl->engine,
             generate::make_literal_engine(model, *std::move(roles), impl->options.max_context));
  }
  Impl* raw = impl.get();
  impl->computing = std::thread([raw] { raw->compute(); });
  return Generator(std::move(impl));
}

// Longer sequences grow, so that one that asks for very many takes no memory for them at once.
static constexpr int64_t kReservedTokens = 1 << 16;

Result<Generator::Id> Generator::submit(std::span<const int32_t> prompt,
                                        const GenerateOptions& options) {
  TFCC_TRY_VOID(impl_->check(prompt, options));
  auto s = std::make_shared<Sequence>();
  s->options = options;
  const auto most = std::min<int64_t>(impl_->options.max_context,
                                      static_cast<int64_t>(prompt.size()) + options.max_tokens);
  s->tokens.reserve(static_cast<size_t>(std::min(most + 1, kReservedTokens)));
  if (options.log_probabilities) s->log_probabilities.reserve(s->tokens.capacity());
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

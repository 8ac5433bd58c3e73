// SPDX-License-Identifier: Apache-2.0
// The generator's part of the C API.
#include "runtime/core/c_api.h"

#include <future>

#include "runtime/generate.h"

struct tfcc_generator {
  tfcc::Generator generator;
};

namespace {

using tfcc::GenerateEnd;
using tfcc::c_api::failed;
using tfcc::c_api::guarded;
using tfcc::c_api::misused;

static_assert(TFCC_RUNNING == static_cast<int>(GenerateEnd::running) &&
              TFCC_END_FAILED == static_cast<int>(GenerateEnd::failed));

// With what its pointers refer to.
struct Owned : tfcc_generated {
  tfcc::Generated from;
};

tfcc_status give(tfcc::Result<tfcc::Generated> found, tfcc_generated** out) {
  if (!found) return failed(found.error());
  auto owned = std::make_unique<Owned>();
  owned->from = *std::move(found);
  const tfcc::Generated& g = owned->from;
  static_cast<tfcc_generated&>(*owned) = {
      g.tokens.data(),
      g.tokens.size(),
      static_cast<tfcc_generate_end>(g.end),
      g.error.message.c_str(),
      g.first_token_ms,
      g.total_ms,
      g.log_probabilities.empty() ? nullptr : g.log_probabilities.data()};
  *out = owned.release();
  return TFCC_OK;
}

tfcc::GenerateOptions options_of(const tfcc_generate_options& all) {
  tfcc::GenerateOptions o;
  o.max_tokens = all.max_tokens;
  if (all.stop_count > 0) o.stop_ids.assign(all.stop_ids, all.stop_ids + all.stop_count);
  o.log_probabilities = all.log_probabilities != 0;
  o.sampling = {all.repetition_penalty, all.temperature, all.top_k, all.top_p, all.min_p, all.seed};
  return o;
}

}  // namespace

extern "C" {

void tfcc_generator_options_init(tfcc_generator_options* options) {
  if (options == nullptr) return;
  const tfcc::GeneratorOptions d;
  *options = {sizeof(tfcc_generator_options),
              d.max_context,
              d.max_sequences,
              d.prompt_chunk,
              d.cache_bytes,
              d.prefix_sharing,
              d.literal,
              -1,
              UINT64_MAX};
}

void tfcc_generate_options_init(tfcc_generate_options* options) {
  if (options == nullptr) return;
  const tfcc::GenerateOptions d;
  const tfcc::Sampling& s = d.sampling;
  *options = {sizeof(tfcc_generate_options),
              d.max_tokens,
              0,
              nullptr,
              s.repetition_penalty,
              s.temperature,
              s.top_k,
              s.top_p,
              s.min_p,
              s.seed,
              nullptr,
              nullptr,
              d.log_probabilities};
}

tfcc_status tfcc_generator_create(const tfcc_model* model, const tfcc_generator_options* options,
                                  tfcc_generator** generator) {
  if (model == nullptr || generator == nullptr) return misused("model or generator is NULL");
  return guarded([&] {
    const tfcc_generator_options all = tfcc::c_api::given(options, tfcc_generator_options_init);
    tfcc::GeneratorOptions o;
    o.max_context = all.max_context;
    o.max_sequences = all.max_sequences;
    o.prompt_chunk = all.prompt_chunk;
    o.cache_bytes = static_cast<size_t>(all.cache_bytes);
    o.prefix_sharing = all.prefix_sharing != 0;
    o.literal = all.literal != 0;
    if (all.run_ahead >= 0) o.run_ahead = all.run_ahead != 0;
    if (all.swap_bytes != UINT64_MAX) o.swap_bytes = all.swap_bytes;
    tfcc::Result<tfcc::Generator> made = tfcc::Generator::make(model->model, o);
    if (!made) return failed(made.error());
    *generator = new tfcc_generator{*std::move(made)};
    return TFCC_OK;
  });
}

void tfcc_generator_free(tfcc_generator* generator) { delete generator; }

tfcc_status tfcc_generator_submit(tfcc_generator* generator, const int32_t* prompt, size_t count,
                                  const tfcc_generate_options* options, uint64_t* id) {
  if (generator == nullptr || id == nullptr || (count > 0 && prompt == nullptr))
    return misused("generator, prompt or id is NULL");
  return guarded([&] {
    const tfcc_generate_options all = tfcc::c_api::given(options, tfcc_generate_options_init);
    if (all.stop_count > 0 && all.stop_ids == nullptr) return misused("stop_ids is NULL");
    tfcc::GenerateOptions o = options_of(all);
    // The sequence's number is known when submit() has returned, which a first token may not wait
    // for.
    std::promise<tfcc::Generator::Id> number;
    if (all.on_token != nullptr) {
      o.on_token = [call = all.on_token, user = all.user, of = &generator->generator,
                    known = number.get_future().share()](int32_t token) {
        if (call(token, user) != 0) of->cancel(known.get());
      };
    }
    const auto submitted = generator->generator.submit({prompt, count}, o);
    if (!submitted) return failed(submitted.error());
    number.set_value(*submitted);
    *id = *submitted;
    return TFCC_OK;
  });
}

tfcc_status tfcc_generator_poll(const tfcc_generator* generator, uint64_t id,
                                tfcc_generated** generated) {
  if (generator == nullptr || generated == nullptr)
    return misused("generator or generated is NULL");
  return guarded([&] { return give(generator->generator.poll(id), generated); });
}

tfcc_status tfcc_generator_wait(tfcc_generator* generator, uint64_t id,
                                tfcc_generated** generated) {
  if (generator == nullptr || generated == nullptr)
    return misused("generator or generated is NULL");
  return guarded([&] { return give(generator->generator.wait(id), generated); });
}

tfcc_status tfcc_generator_cancel(tfcc_generator* generator, uint64_t id) {
  if (generator == nullptr) return misused("generator is NULL");
  return guarded([&] { return generator->generator.cancel(id), TFCC_OK; });
}

void tfcc_generated_free(tfcc_generated* generated) { delete static_cast<Owned*>(generated); }

tfcc_status tfcc_generator_get_stats(const tfcc_generator* generator, tfcc_generator_stats* stats) {
  if (generator == nullptr || stats == nullptr) return misused("generator or stats is NULL");
  return guarded([&] {
    const tfcc::GeneratorStats s = generator->generator.stats();
    *stats = {s.waiting,     s.running,    s.prompt_tokens, s.tokens,    s.cache_bytes,
              s.pages,       s.pages_held, s.shared_tokens, s.preempted, s.steps,
              s.steps_ahead, s.swapped,    s.host_ms,       s.busy_ms};
    return TFCC_OK;
  });
}

int64_t tfcc_generator_max_context(const tfcc_generator* generator) {
  return generator == nullptr ? 0 : generator->generator.max_context();
}

int64_t tfcc_generator_vocabulary_size(const tfcc_generator* generator) {
  return generator == nullptr ? 0 : generator->generator.vocabulary_size();
}

}  // extern "C"

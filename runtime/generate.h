// SPDX-License-Identifier: Apache-2.0
// Text generation with a compiled decoder: many prompts at once, each answered as if it were alone.
//
//     auto model = *tfcc::Model::load("llama.tfcc");
//     auto generator = *tfcc::Generator::make(model);
//     tfcc::GenerateOptions options;
//     options.stop_ids = {2};
//     options.on_token = [](int32_t id) { std::cout << id << ' ' << std::flush; };
//     auto id = *generator.submit(prompt_ids, options);
//     tfcc::Generated answer = *generator.wait(id);
//
// Ids in and out; runtime/text/tokenizer.h turns text into ids. A library of its own
// (tfcc_generate) over the runtime.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/result.h"
#include "runtime/tfcc.h"

namespace tfcc {
inline namespace v1 {

/// How a token is chosen from the logits. The defaults take the likeliest, of equal ones that of
/// the lowest id. Applied in the order of the members. The choice at a position depends on logits,
/// seed and position alone.
struct Sampling {
  float repetition_penalty =
      1;  ///< logits of tokens that were there: divided by it if positive, else multiplied (Keskar et al., 2019)
  float temperature =
      0;              ///< logits are divided by it; 0 is greedy, and the members below do nothing
  int32_t top_k = 0;  ///< the k likeliest; 0 is all
  float top_p = 1;    ///< the fewest tokens whose probabilities reach p (Holtzman et al., 2020)
  float min_p = 0;    ///< tokens of at least this share of the largest probability
  uint64_t seed = 0;
};

struct GenerateOptions {
  int64_t max_tokens = 256;
  std::vector<int32_t> stop_ids = {};  ///< the answer ends before one of these
  Sampling sampling = {};
  bool log_probabilities = false;  ///< Generated::log_probabilities are wanted
  /// Called for each token, in order, from a thread of this sequence. While it blocks, its sequence
  /// alone waits. What it throws ends its sequence as failed. It may submit and cancel.
  std::function<void(int32_t)> on_token = {};
};

enum class GenerateEnd {
  running,
  stop,     ///< at one of stop_ids
  length,   ///< after max_tokens
  context,  ///< no place is left in the context
  cancelled,
  failed,  ///< Generated::error says why
};
const char* to_string(GenerateEnd end);

/// What has been generated for a prompt.
struct Generated {
  std::vector<int32_t> tokens;
  /// Of each, if they are wanted: the logarithm of its probability by the model alone, before
  /// penalty and temperature.
  std::vector<float> log_probabilities;
  GenerateEnd end = GenerateEnd::running;
  Error error;
  double first_token_ms = 0;  ///< from submit() to the first token
  double total_ms = 0;        ///< from submit() to the end
};

struct GeneratorOptions {
  int64_t max_context =
      0;  ///< most tokens of a prompt and its answer; 0: what the file allows, at most kDefaultContext
  int64_t max_sequences = 16;  ///< computed at a time; others wait, first come first served
  int64_t prompt_chunk = 512;  ///< most tokens of prompts in a step, which others wait for
  size_t cache_bytes =
      0;  ///< for keys, values and sums of linear attention; 0: for max_sequences of max_context, as far as half of the free memory goes
  /// Most memory of the host for what sequences hold that give their place in the cache to older
  /// ones; it is taken as it is needed. A sequence that has no place there is computed again, as all
  /// are with 0. By default as much as the cache has.
  std::optional<size_t> swap_bytes = {};
  bool prefix_sharing =
      true;  ///< prompts that begin as an earlier one are computed from where they differ; not with linear attention
  bool literal =
      false;  ///< run the graph as it was exported, though the file has a program for generation
  /// Begin a step before the tokens of the last one are known to the host, where all sequences go
  /// on, so that a GPU never waits for it. By default on a GPU. Sums of linear attention take half as much memory more then.
  std::optional<bool> run_ahead = {};
  /// What an input or output is, where its name and shape do not tell: {"tokens_in", "ids"}.
  /// Roles are ids, mask, positions, types, logits, and for a present the name of its past.
  std::vector<std::pair<std::string, std::string>> roles = {};
};

struct GeneratorStats {
  int64_t waiting = 0, running = 0;       ///< sequences now
  int64_t prompt_tokens = 0, tokens = 0;  ///< computed since it was made
  size_t cache_bytes = 0;                 ///< keys, values and sums held now
  int64_t pages = 0, pages_held = 0;      ///< of the cache; 0 where there are none
  int64_t shared_tokens = 0;  ///< of prompts that were not computed, as they began as others did
  int64_t preempted = 0;      ///< times that a sequence gave its place in the cache to another
  int64_t swapped =
      0;  ///< of these, with keys, values and sums kept in memory of the host; the others were computed again
  int64_t steps = 0;        ///< begun since it was made, of several sequences or one
  int64_t steps_ahead = 0;  ///< of these, begun before the tokens of the step before were known
  /// What the host took for steps, apart from waiting for a GPU; on a CPU also to compute them.
  double host_ms = 0;
  double busy_ms = 0;  ///< while there was something to compute, waiting for a GPU included

  /// New tokens, of all sequences, for each second of busy_ms; prompts are computed in it too.
  double tokens_per_second() const {
    return busy_ms > 0 ? static_cast<double>(tokens) * 1000 / busy_ms : 0;
  }
  /// The share of prompts' tokens that were not computed, as they began as others did.
  double hit_rate() const {
    const int64_t all = prompt_tokens + shared_tokens;
    return all > 0 ? static_cast<double>(shared_tokens) / static_cast<double>(all) : 0;
  }
};

inline constexpr int64_t kDefaultContext = 4096;

/// Safe to use from any thread. The destructor cancels what is under way and returns when no
/// callback runs any more.
class Generator {
 public:
  using Id = uint64_t;

  /// Errors: unsupported (the model is no decoder, or an input has no role: the message names it),
  /// memory, device.
  static Result<Generator> make(const Model& model, const GeneratorOptions& options = {});
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  /// Errors: invalid_argument (an empty prompt, an id outside the vocabulary, options out of
  /// range), shape (a prompt longer than the context).
  Result<Id> submit(std::span<const int32_t> prompt, const GenerateOptions& options = {});
  /// What there is so far. Errors: invalid_argument (no such sequence, or wait() has returned it).
  Result<Generated> poll(Id id) const;
  /// Waits for the end, and forgets the sequence. Not from its own callback. Errors: as poll().
  Result<Generated> wait(Id id);
  /// Ends a sequence soon; no more tokens are delivered. A sequence that has ended or is not known
  /// stays as it is.
  void cancel(Id id);

  GeneratorStats stats() const;
  int64_t max_context() const;
  int64_t vocabulary_size() const;
  /// How steps are computed: "pages", many sequences at a time; or "past and present" or "whole
  /// sequences", one.
  const std::string& engine() const;

 private:
  struct Impl;
  explicit Generator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace v1
}  // namespace tfcc

// SPDX-License-Identifier: Apache-2.0
// What computes the steps of a generator: tokens of sequences in, the token after the last of each
// out.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/generate.h"
#include "runtime/generate/roles.h"

namespace tfcc::generate {

/// Used by one thread at a time.
class Engine {
 public:
  /// A sequence that is being computed: its tokens, or keys and values of them.
  struct Sequence {
    virtual ~Sequence() = default;
    int64_t length = 0;  ///< tokens computed
    size_t bytes = 0;    ///< of memory held
  };
  /// The next tokens of a sequence, at least one.
  struct Work {
    Sequence* sequence = nullptr;
    std::span<const int32_t> tokens;
    bool wants_token = false;               ///< that which follows the last of them
    std::span<const int32_t> history = {};  ///< if it is wanted: all up to the last of them
    Sampling sampling = {};
    bool wants_log_probability = false;
    int32_t token = -1;                  ///< out; -1: no logit was a number
    float log_probability = 0;           ///< out
    std::span<const float> logits = {};  ///< out, if they are given: valid until the next step
  };
  virtual ~Engine() = default;
  /// A sequence that begins with these tokens. Its `length` may be more than 0 where they were
  /// computed before, and is less than theirs.
  virtual std::unique_ptr<Sequence> start(std::span<const int32_t> tokens) = 0;
  /// Whether there is place for so many tokens of one more sequence.
  virtual bool has_place(int64_t tokens) const = 0;
  /// Makes place for so many tokens of a sequence; false if there is none until others give theirs
  /// back.
  virtual bool reserve(Sequence& sequence, int64_t tokens) = 0;
  /// Keeps in memory of the host what the sequence holds, and gives its place to others: it may be
  /// given to no step until swap_in(). False, and nothing has changed, if that cannot be. No step of
  /// it is under way.
  virtual bool swap_out(Sequence& /*sequence*/) { return false; }
  /// Takes it back. False if there is no place, or it could not be copied: the sequence is of no use
  /// then.
  virtual bool swap_in(Sequence& /*sequence*/) { return false; }
  /// Begins to compute the next tokens of different sequences with place, at most most_at_once() of
  /// them. What a work refers to is read before it returns. With `follows` each work has one token,
  /// which is not known yet: that which the step begun before, of the same sequences in the same
  /// order, chooses; its history is without it. Errors: those of Executor::run().
  virtual Result<void> begin(std::span<const Work> works, bool follows) = 0;
  /// Waits for the step that began first, with its works, whose tokens are known by now. After an
  /// error nothing has changed, nor by a step that followed: they may be computed again, by
  /// themselves. Errors: those of Executor::run().
  virtual Result<void> finish(std::span<Work> works) = 0;
  /// Whether a step may begin before the one before it is finished.
  virtual bool may_follow() const { return false; }
  virtual size_t most_at_once() const = 0;
  /// The most tokens that a sequence can have place for.
  virtual int64_t most_tokens() const = 0;
  /// For GeneratorStats: pages there are and pages held, tokens that were not computed again.
  virtual int64_t pages() const { return 0; }
  virtual int64_t pages_held() const { return 0; }
  virtual int64_t shared_tokens() const { return 0; }
  virtual const std::string& name() const = 0;
};

/// Runs the graph as it was exported, a sequence at a time: with its past in and its present out,
/// or, for a graph without, all of its tokens in each step. Errors: those of Model::executor().
Result<std::unique_ptr<Engine>> make_literal_engine(const Model& model, Roles roles,
                                                    int64_t max_context);

struct PagedOptions {
  int64_t max_context = 0, max_sequences = 0;
  int64_t most_tokens = 0;  ///< of a step
  size_t cache_bytes =
      0;  ///< 0: for max_sequences of max_context, as far as half of the free memory goes
  std::optional<size_t> swap_bytes = {};  ///< GeneratorOptions::swap_bytes
  bool prefix_sharing = true;
  bool logits = false;                 ///< steps give them to the host
  std::optional<bool> run_ahead = {};  ///< GeneratorOptions::run_ahead
};

/// Runs the program for generation: tokens of many sequences in one step, keys and values in pages,
/// and sums of linear attention in slots, that stay on the device. With sums prefixes are not
/// shared.
/// Errors: memory (a cache of that size cannot be had, or has no place for one sequence), and those
/// of Model::executor().
Result<std::unique_ptr<Engine>> make_paged_engine(const Model& generation,
                                                  const PagedOptions& options);
/// The size of the vocabulary of such a program.
int64_t vocabulary_of(const Model& generation);

}  // namespace tfcc::generate

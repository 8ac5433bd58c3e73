// SPDX-License-Identifier: Apache-2.0
// What computes the steps of a generator: tokens of a sequence in, logits after the last of them out.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/generate/roles.h"

namespace tfcc::generate {

/// Used by one thread at a time.
class Engine {
 public:
  /// A sequence that is being computed: its tokens, or keys and values of them.
  struct Sequence {
    virtual ~Sequence() = default;
    int64_t length = 0;       ///< tokens computed
    size_t bytes = 0;         ///< of memory held
  };
  virtual ~Engine() = default;
  virtual std::unique_ptr<Sequence> start() = 0;
  /// Computes the next tokens, at least one, and gives the logits [vocabulary] after the last, valid until the next call.
  /// After an error the sequence is of no more use. Errors: those of Executor::run().
  virtual Result<std::span<float>> advance(Sequence& sequence, std::span<const int32_t> tokens) = 0;
  virtual const std::string& name() const = 0;
};

/// Runs the graph as it was exported, a sequence at a time: with its past in and its present out, or, for a graph without, all of its
/// tokens in each step. Errors: those of Model::executor().
Result<std::unique_ptr<Engine>> make_literal_engine(const Model& model, Roles roles, int64_t max_context);

}  // namespace tfcc::generate

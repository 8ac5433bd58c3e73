// SPDX-License-Identifier: Apache-2.0
// From logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/generate.h"

namespace tfcc::generate {

/// Errors: invalid_argument (a member out of its range; the message names it).
Result<void> check(const Sampling& sampling);

/// The token at `position` of a sequence whose earlier tokens are `history`. `logits` are changed.
/// A NaN counts as minus infinity.
/// Errors: invalid_argument (no logit is a number).
Result<int32_t> sample(std::span<float> logits, std::span<const int32_t> history,
                       const Sampling& sampling, uint64_t position);

/// The logarithm of the share that e to the logit of `id` has of all; a NaN counts as minus infinity.
float log_probability(std::span<const float> logits, int32_t id);
/// What is said where there is nothing to choose from.
Error no_number();

/// Philox4x32-10 (Salmon et al., 2011): 32 random bits, the same for the same key and counter on
/// every machine.
uint32_t philox(uint64_t key, uint64_t counter);

}  // namespace tfcc::generate

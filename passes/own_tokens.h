// SPDX-License-Identifier: Apache-2.0
// Tokens that are read in the flattened batch: row b S + n of [B * S, w], as TorchScript's exporter
// has h[arange(B), n]. Where n is one of S it is token n of sequence b; else it is one of another
// sequence, which no pass that knows sequences can follow. So such a pass asks a run for it, by a
// flag.
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

struct OwnToken {
  ExprRef number;  // whole numbers made of inputs, one for each sequence: a count of its mask, say
  ExprRef batch;   // index b
  ExprRef token;   // number + c, the place in sequence b if it is one of its tokens
};

/// Rows (batch, token) of a tensor [B, length, ..], free, that are token number + c of sequence b
/// wherever 0 <= number + c < length: by substitution. Nothing if that is not so.
std::optional<OwnToken> own_token(const Graph& graph, ExprRef batch, ExprRef token, ExprRef length);

/// Behind the reader, before the way out, in what the flag says.
inline constexpr const char* kNoOwnToken =
    " reads one token of each sequence by its place in the batch, and of one sequence that is none of its tokens; leave out sequences without tokens, or ";

/// The op reads the same, and raises the flag where the token is none of its sequence.
void ask_for_own_token(Graph& graph, OpId reader, const OwnToken& own, ExprRef length,
                       int64_t flag);

}  // namespace tfcc::passes

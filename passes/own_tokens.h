// SPDX-License-Identifier: Apache-2.0
// Tokens that are read in the flattened batch: row b S + n of [B * S, w], as TorchScript's exporter
// has h[arange(B), n]. Where n is one of S it is token n of sequence b; else it is one of another
// sequence, which no pass that knows sequences can follow. So such a pass asks a run for it, by a
// flag.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "passes/match.h"

namespace tfcc::passes {

struct OwnToken {
  ExprRef number;  // whole numbers made of inputs, one for each sequence: a count of its mask, say
  ExprRef batch;   // index b
  ExprRef token;   // number + c, the place in sequence b if it is one of its tokens
  ExprRef length;  // of sequences
};
/// What ops read so; each once.
using OwnTokens = std::map<OpId, std::vector<OwnToken>>;
void add_own_token(OwnTokens& all, OpId reader, const OwnToken& own);

/// An index made of others that elementwise ops compute, by these: (i n + place[i]) / n is i where
/// place is one in 0..n.
ExprRef spelled_out(const Graph& graph, ExprRef index);

/// Rows (batch, token) of a tensor [B, length, ..], free, that are token number + c of sequence b
/// wherever 0 <= number + c < length: by substitution. Nothing if that is not so.
std::optional<OwnToken> own_token(const Graph& graph, ExprRef batch, ExprRef token, ExprRef length);

/// Can the token be asked for at this index: is the question left in it when it is put?
bool can_ask(const Graph& graph, ExprRef index, const OwnToken& own);

/// The ops read the same, and raise a flag where a token is none of its sequence; `way_out` ends
/// what it says. It can be asked for in each of them.
void ask_for_own_tokens(Graph& graph, const OwnTokens& all, std::string_view way_out);

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// Who reads rows that a pass leaves undefined, for classify-mask. An attention that hides keys may
// differ from the graph in the rows of a sequence without any key and, with some masks, in those of
// padded queries. This follows such rows through the graph, op by op: each element of a value reads
// one row (a sequence and a token of it) of the attentions' results, or several, as expressions
// over its indices. Elementwise ops, views, products and norms compose them with the indices of
// loads.
// Problems are: an element that reads two sequences (a sum, product, softmax, roll or concatenation
// along the batch); an output at another place than its sequence's. Where rows of padded queries
// are undefined: an element that reads two tokens (a mean, a maximum, a convolution); an attention
// that reads the rows as keys or values; an output that is reversed or shifted.
// None are: an expression of which nothing is left if the row's own key is hidden (x * mask,
// select(mask, x, 0), a product with mask / sum(mask)); an attention that hides the same keys; the
// first token by itself, which a run must not have as padding; one that whole numbers made of inputs
// name (as a count of the mask names the last), which must see a key; another token that sees all
// keys that are no padding (the last under a triangle); an output with rows at their own place: an axis,
// a flattened one, or that of a cache which it continues.
#pragma once

#include <map>
#include <string>

#include "passes/mask_cases.h"
#include "passes/own_tokens.h"

namespace tfcc::passes {

/// The mask of an attention as conditions, all free. A key takes part where `keys` and `beyond`
/// hold, and no other key is read by a row whose own key is visible, or that may be undefined in no
/// other way than is said here.
struct MaskFacts {
  OpId attention;
  std::vector<Choice> keys;  // conditions on the key alone, over b = index 0 and j = index 3
  ExprRef beyond = nullptr;  // all others, over b, h, i, j = indices 0 to 3
  ExprRef own_key =
      nullptr;  // the key that is query i's own token, over index 2; null if there is none
  bool without_keys = false;  // rows of a sequence without any key are undefined
  bool padded_rows = false;   // rows of queries whose own key is hidden are undefined too
};

/// One token of each sequence that is read by itself.
struct TokenAlone {
  ExprRef token;       // its place: free, over b = index 0; 0 is the first token
  std::string reader;  // the first that reads it
};

/// Who reads rows that attentions leave undefined.
struct Readers {
  std::string
      problem;  // what reads such a row for another one, or for an output at another place than its own; empty: nothing
  std::vector<TokenAlone> alone;
  OwnTokens flattened;  // what reads a token in the flattened batch
  bool empty() const { return problem.empty() && alone.empty() && flattened.empty(); }
};

/// The readers of these attentions' rows. `all` has the facts of every attention that is known.
/// The attentions have the same keys, the same own_key and the same batch.
Readers readers_of_undefined(const Graph& graph, const std::vector<const MaskFacts*>& undefined,
                             const std::map<OpId, MaskFacts>& all);

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// Who reads rows that a pass leaves undefined, for classify-mask. An attention that hides keys may
// differ from the graph in the rows of a sequence without any key and, with some masks, in those of
// padded queries. This follows such rows through the graph, op by op: each element of a value reads
// one row (a sequence and a token of it) of the attentions' results, or several.
#pragma once

#include <map>
#include <string>

#include "passes/mask_cases.h"

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

/// Who reads rows that attentions leave undefined.
struct Readers {
  std::string
      problem;  // what reads such a row for another one, or for an output at another place than its own; empty: nothing
  std::string
      first;  // what reads the row of the first token by itself: that token may not be padding. Empty: nothing
  bool empty() const { return problem.empty() && first.empty(); }
};

/// The readers of these attentions' rows. `all` has the facts of every attention that is known.
/// The attentions have the same keys, the same own_key and the same batch.
Readers readers_of_undefined(const Graph& graph, const std::vector<const MaskFacts*>& undefined,
                             const std::map<OpId, MaskFacts>& all);

}  // namespace tfcc::passes

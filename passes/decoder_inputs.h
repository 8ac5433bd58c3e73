// SPDX-License-Identifier: Apache-2.0
// What the inputs of a decoder are, for lift-kv-cache: by their roles, or by what is done with them.
#pragma once

#include <string>
#include <vector>

#include "passes/given_inputs.h"
#include "passes/passes.h"

namespace tfcc::passes {

/// What the vectors of whole numbers of a graph may say, the first being what their names tell: what
/// a proof holds for is what they do.
std::vector<std::vector<Count>> counts_of(const Graph& graph);

class DecoderInputs : protected GivenInputs {
 protected:
  /// `counts`: what vectors of whole numbers say, in the order of the inputs.
  DecoderInputs(Graph& g, const std::vector<Count>& counts, PassReport& report);

  bool miss(OpId o, std::string reason) { return miss(label(g_, o), std::move(reason)); }
  bool miss(std::string what, std::string reason);

  /// Ids, mask, positions, token types. False with a miss if the role of an input is not clear.
  bool find_inputs();
  /// Batch, length, past and what is made of them. Needs the inputs.
  bool find_sizes();

  PassReport& report_;
  bool in_place_ = false;  // caches have room to spare, and new tokens go where a vector says
  bool states_alone_ =
      false;  // no attention has a past, and what was before is in states of one size

 private:
  ValueId* place_of(InputRole role);
  InputRole role_by_use(ValueId v) const;
  bool is_of_each_token(const std::vector<ExprRef>& dims) const;
  bool leads_to_attention(ValueId v) const;
  ExprRef fresh(std::string name);
  void find_capacities();
  void find_pasts();
};

}  // namespace tfcc::passes

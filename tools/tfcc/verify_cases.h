// SPDX-License-Identifier: Apache-2.0
// Inputs on which `tfcc verify` compares: several sizes, full, padded and scattered masks, ids that
// the model's tables hold.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/ir.h"
#include "tools/support/real_rows.h"
#include "tools/tfcc/padding_id.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {

enum class MaskKind { full, right_padded, left_padded, scattered };

using HostTensors = std::map<std::string, ir::HostTensor>;

/// Which elements of an output are defined, as the mask input [B,S] says: for [B,S,...] the tokens
/// that it keeps, for [B,...] the rows that have one, else all.
class Defined {
 public:
  Defined() = default;
  /// By the last of the inputs that are masks. `set_is_padding`: what is not 0 is padding, else what
  /// is 0.
  explicit Defined(const HostTensors& masks, bool set_is_padding = false);
  /// True if element `flat` of a tensor of these dims is defined.
  bool at(const std::vector<int64_t>& dims, int64_t flat) const;
  /// The tokens that the mask keeps, if there is one and in each row they are the first ones.
  std::optional<RealRows> first_tokens() const;

 private:
  std::vector<int64_t> dims_;  // of the mask; none without one
  std::vector<bool> token_, row_has_token_;
};

/// Those of the inputs that the graph says are masks.
HostTensors masks_of(const ir::Graph& graph, const HostTensors& inputs);

/// One set of inputs by name.
struct VerifyCase {
  std::string title;  // "batch_size 4, sequence_length 17, right-padded"
  HostTensors inputs;
  HostTensors expected;  // outputs of the graph in float64
  Defined defined;
};

/// What a case is made from; arrays and shapes of the user take precedence.
struct CaseOptions {
  std::vector<std::pair<std::string, Array>> given;  // by input name
  WantedSizes wanted;
  uint64_t seed = 1;
  std::optional<PaddingId> padding;  // of a graph without a mask
};

/// The cases for a graph as imported: one if every input is given, else one per size and mask kind.
/// Errors: invalid_argument (no such input, given ids outside their table), shape.
Result<std::vector<VerifyCase>> make_cases(const ir::Graph& graph, const CaseOptions& options);

/// Whether a set element of the graph's integer masks hides a position (True means padding), told
/// by what the outputs depend on; false where it cannot be told.
bool set_is_padding(const ir::Graph& graph);

ir::HostTensor to_host_tensor(const ArrayView& array);
Array to_array(const ir::HostTensor& tensor);

}  // namespace tfcc::tools

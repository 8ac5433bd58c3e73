// SPDX-License-Identifier: Apache-2.0
// The graph that a plan was made from, as ONNX: for viewers of ONNX graphs (Netron).
#pragma once

#include "tools/tfcc/inspect.h"

namespace tfcc::tools {

/// A serialised ModelProto. Ops are nodes of the domain "tfcc", named after their kind, with their
/// attributes as texts; sizes are symbolic dims. A weight that lies in the model's file as it is
/// read refers to it as external data; of one that is changed first a node `constant` has the
/// recipe. The plan is the first of the file.
/// Errors: invalid_argument (a file without texts), bad_file (no plan, or a text that makes no
/// sense).
struct OnnxView {
  std::string bytes;
  std::vector<std::string> weights;  ///< files that it refers to, as the model names them
};
Result<OnnxView> inspect_onnx(const InspectedFile& file);

}  // namespace tfcc::tools

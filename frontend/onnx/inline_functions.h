// SPDX-License-Identifier: Apache-2.0
// Functions of the model's own (FunctionProto): every call is replaced by the nodes of the
// function, so that the importer meets operators alone.
#pragma once

#include "frontend/onnx/onnx_reader.h"

namespace tfcc::frontend {

/// The model without calls. Errors: bad_file (a function that calls itself), unsupported (too many
/// nodes); with the path.
Result<Model> inline_functions(const Model& model);

}  // namespace tfcc::frontend

// SPDX-License-Identifier: Apache-2.0
// What `compile --report` writes and the C API returns (docs/report.md).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tools/compiler/compiler.h"

namespace tfcc::compiler {

/// Import and passes: what is kept in the file.
nlohmann::json report_of(const Optimised& optimised);
/// The same with plans and kernels.
nlohmann::json report_of(const Optimised& optimised, const codegen::CompileResult& code);

}  // namespace tfcc::compiler

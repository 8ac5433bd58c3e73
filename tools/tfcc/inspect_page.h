// SPDX-License-Identifier: Apache-2.0
// The page of `tfcc inspect --html` and the parts that it is put together from; each returns HTML
// with every name escaped.
#pragma once

#include <string>

#include "tools/tfcc/inspect_story.h"

namespace tfcc::tools {

/// The whole page. Errors: bad_file (a text of the file is damaged).
Result<std::string> inspect_page(const InspectedFile& file);

/// Graph before and after, part by part, and what became what.
std::string graph_section(const InspectedFile& file, const runtime::Plan& plan, const Story& story);
/// Kernels with their source where the file has it.
Result<std::string> kernels_section(const InspectedFile& file, const runtime::Plan& plan);
/// Launches of each bucket.
std::string launches_section(const InspectedFile& file, const runtime::Plan& plan);
/// The arena over the launches of the bucket that runs.
std::string memory_section(const InspectedFile& file, const runtime::Plan& plan);

/// CSS class that gives an op its colour.
std::string op_class(std::string_view op);
/// "batch_size = 16, sequence_length = 128".
std::string sizes_text(const InspectedFile& file);
/// The class of a launch, after its last op.
std::string launch_class(const runtime::Launch& launch);

}  // namespace tfcc::tools

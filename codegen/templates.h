// SPDX-License-Identifier: Apache-2.0
// The kernel templates, embedded at build time (templates/CMakeLists.txt generates the table).
#pragma once

#include <span>
#include <string_view>

namespace tfcc::codegen {

/// A template file: its path as kernels include it ("cuda/attention.cuh", "expr.h") and its text.
struct TemplateFile {
  std::string_view path;
  std::string_view text;
};

/// All templates, sorted by path.
std::span<const TemplateFile> template_files();

/// The part of the templates that can matter to kernels of a family ("cpu" or "cuda"): its folder and the shared files.
inline bool belongs_to(const TemplateFile& file, std::string_view family) {
  size_t slash = file.path.find('/');
  return slash == std::string_view::npos || file.path.substr(0, slash) == family;
}

}  // namespace tfcc::codegen

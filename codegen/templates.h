// SPDX-License-Identifier: Apache-2.0
// The kernel templates, embedded at build time (templates/CMakeLists.txt generates the table).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "runtime/core/family.h"

namespace tfcc::codegen {

/// A template file: its path as kernels include it ("cuda/attention.cuh", "expr.h") and its text.
struct TemplateFile {
  std::string_view path;
  std::string_view text;
};

/// All templates, sorted by path.
std::span<const TemplateFile> template_files();

/// The part of the templates that can matter to kernels of a family: its folder
/// and the shared files.
inline bool belongs_to(const TemplateFile& file, Family family) {
  size_t slash = file.path.find('/');
  return slash == std::string_view::npos || file.path.substr(0, slash) == to_string(family);
}

/// The templates of a family that a source includes, and those that they include, sorted by path.
/// Compilers are given no others, so that what a kernel is compiled from is known.
std::vector<const TemplateFile*> included_templates(Family family, std::string_view source);

}  // namespace tfcc::codegen

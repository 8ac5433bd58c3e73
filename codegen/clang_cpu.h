// SPDX-License-Identifier: Apache-2.0
// The CPU compiler: kernel sources to one shared object, by Clang and lld inside this process.
// Called by codegen once per CPU target. Without TFCC_CPU it only reports that.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace tfcc::codegen {

/// A translation unit; the text may include templates by path ("cpu/layer_norm.h").
struct CpuSource {
  std::string name;
  std::string text;
};

/// Compiles for `level`: x86-64-v2, x86-64-v3, x86-64-v4 or native. The shared object has no undefined symbol.
Result<std::vector<std::byte>> compile_cpu(const std::vector<CpuSource>& units, const std::string& level, int threads);

/// The object file of one unit, e.g. to be cached; link_cpu makes the shared object.
Result<std::vector<std::byte>> compile_cpu_object(const CpuSource& unit, const std::string& level);
Result<std::vector<std::byte>> link_cpu(const std::vector<std::vector<std::byte>>& objects);

/// "clang 19.1.7" and the flags that every unit gets, for cache keys; empty without TFCC_CPU.
std::string cpu_compiler_version();

/// The level that "native" means here: the highest of x86-64-v2, -v3, -v4 that this machine runs.
std::string native_cpu_level();

}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// The CPU compiler: kernel sources to one shared object, by Clang and lld inside this process.
// Called by codegen once per CPU target. Without TFCC_CPU it only reports that.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace tfcc::codegen {

/// A translation unit; the text may include templates by path ("cpu/norm.h").
struct CpuSource {
  std::string name;
  std::string text;
};

/// The object file of one unit for `level`: x86-64-v2, x86-64-v3, x86-64-v4 or native.
Result<std::vector<std::byte>> compile_cpu_object(const CpuSource& unit, const std::string& level);

/// The shared object of such objects, without an undefined symbol: what Clang calls for large
/// copies is added where an object needs it, for `level`.
Result<std::vector<std::byte>> link_cpu(const std::vector<std::vector<std::byte>>& objects,
                                        const std::string& level);

/// "clang 19.1.7" and the flags that every unit gets, for cache keys; empty without TFCC_CPU.
std::string cpu_compiler_version();

/// The level that "native" means here: the highest of x86-64-v2, -v3, -v4 that this machine runs.
std::string native_cpu_level();

}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// The translation units of a CPU target: a kernel each, or several where a plan has very many.
#pragma once

#include <vector>

#include "codegen/lower.h"

namespace tfcc::codegen {

/// What is compiled at once: its text and the names of its kernels.
struct Unit {
  KernelSource source;
  std::vector<std::string> kernels;
};

/// A unit per kernel.
std::vector<Unit> units_of(const std::vector<KernelSource>& kernels);

/// For Clang, which takes longer to start and to read the templates than for a short kernel: up to
/// 64 kernels have a unit each; of n more, n / 32 share one, at most 16. It depends on the kernels
/// alone, so that the file does not depend on the machine.
std::vector<Unit> cpu_units(const std::vector<KernelSource>& kernels);

}  // namespace tfcc::codegen

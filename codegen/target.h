// SPDX-License-Identifier: Apache-2.0
// What code generation knows of the machines that a plan is made for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/family.h"

namespace tfcc::codegen {

/// Machines that share one plan: the same kernels, launches and tiles. Code is still compiled for
/// each of them.
struct TargetClass {
  std::string_view name;  // as in the manifest and in dumps: "cpu", "sm_80", "sm_90a", "sm_100a"
  std::vector<std::string> targets = {};  // of GPUs: "sm_80", "sm_86", ..
  std::string_view variant = "";  // of the architecture that they are compiled for: "a" of sm_90a
  Family family = Family::cpu;
  uint32_t shared_bytes = 0;  // that a block may have on all of them
  bool has_tma = false;       // boxes of a matrix that come to shared memory by themselves
  bool has_clusters = false;  // blocks that reach each other's shared memory
  bool has_wgmma = false;     // products of a warpgroup from shared memory
  int64_t processors =
      0;  // multiprocessors of the largest, for blocks that take one tile after the other

  bool cuda() const { return family == Family::cuda; }
};

/// All classes: the CPU, then GPUs by capability.
const std::vector<TargetClass>& target_classes();
const TargetClass& cpu_class();
/// The class of a target ("sm_86", "compute_80", "x86-64-v3"); the CPU's for any name that is no
/// GPU's.
const TargetClass& class_of(std::string_view target);
/// What the CUDA compiler is told to make code for: the target's name and the variant of its class.
std::string compiler_arch(std::string_view target);

}  // namespace tfcc::codegen

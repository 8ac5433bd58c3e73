// SPDX-License-Identifier: Apache-2.0
#include "codegen/target.h"

namespace tfcc::codegen {

const std::vector<TargetClass>& target_classes() {
  static const std::vector<TargetClass> kClasses = {
      {"cpu", Family::cpu},
      // sm_80, sm_86, sm_89, PTX, and GPUs to come until they have kernels of their own: the shared
      // memory of the smallest.
      {"sm_80", Family::cuda, 99 << 10},
      {"sm_90a", Family::cuda, 227 << 10, true, 132},
  };
  return kClasses;
}

const TargetClass& cpu_class() { return target_classes()[0]; }

const TargetClass& class_of(std::string_view target) {
  if (target == "sm_90" || target == "sm_90a") return target_classes()[2];
  return target.starts_with("sm_") || target.starts_with("compute_") ? target_classes()[1]
                                                                     : cpu_class();
}

std::string compiler_arch(std::string_view target) {
  return target == "sm_90" ? "sm_90a" : std::string(target);
}

}  // namespace tfcc::codegen

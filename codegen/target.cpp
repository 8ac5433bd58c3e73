// SPDX-License-Identifier: Apache-2.0
#include "codegen/target.h"

namespace tfcc::codegen {

const std::vector<TargetClass>& target_classes() {
  static const std::vector<TargetClass> kClasses = {
      {"cpu"},
      // And PTX for GPUs to come: the shared memory of the smallest.
      {"sm_80", {"sm_80", "sm_86", "sm_89"}, "", Family::cuda, 99 << 10},
      {"sm_90a", {"sm_90"}, "a", Family::cuda, 227 << 10, true, true, true, 132},
      // The B100's kin, then the RTX 50 series': with the forms of sm_80, whose mma.sync they keep,
      // and their own shared memory.
      {"sm_100a", {"sm_100"}, "", Family::cuda, 227 << 10, true, true, false, 148},
      {"sm_120a", {"sm_120"}, "", Family::cuda, 99 << 10, true, true, false, 188},
  };
  return kClasses;
}

const TargetClass& cpu_class() { return target_classes()[0]; }

const TargetClass& class_of(std::string_view target) {
  // "sm_9" of sm_90 and sm_90a, "sm_10" of sm_103: machines of one generation have one class.
  const auto generation = [](std::string_view name) {
    return name.substr(0, name.find_last_of("0123456789"));
  };
  for (const TargetClass& c : target_classes()) {
    if (c.cuda() && generation(c.targets[0]) == generation(target)) return c;
  }
  return target.starts_with("sm_") || target.starts_with("compute_") ? target_classes()[1]
                                                                     : cpu_class();
}

std::string compiler_arch(std::string_view target) {
  return std::string(target) + std::string(class_of(target).variant);
}

}  // namespace tfcc::codegen

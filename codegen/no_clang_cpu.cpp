// SPDX-License-Identifier: Apache-2.0
// The CPU compiler of a build with TFCC_CPU=OFF: says so.
#include "codegen/clang_cpu.h"

namespace tfcc::codegen {
namespace {

Error unavailable() {
  return {
      ErrorCode::unsupported,
      "this build has no CPU target; configure with -DTFCC_CPU=ON (needs LLVM 19 with clang-cpp and lld)"};
}

}  // namespace

Result<std::vector<std::byte>> compile_cpu_object(const CpuSource&, const std::string&) {
  return unavailable();
}
Result<std::vector<std::byte>> link_cpu(const std::vector<std::vector<std::byte>>&,
                                        const std::string&) {
  return unavailable();
}
std::string cpu_compiler_version() { return {}; }
std::string native_cpu_level() { return {}; }

}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as an ONNX model, through the importer, all passes of every program and
// family of targets, but for the program without padding, and lowering for three classes of
// machines. No kernel is compiled. No pass may break a rule of the IR, and nothing may fail
// otherwise than by saying what is wrong with the model.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string>

#include "codegen/lower.h"
#include "tools/compiler/compiler.h"

namespace {

[[noreturn]] void broken(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

void check(const tfcc::Error& e) {
  if (e.code == tfcc::ErrorCode::internal) broken(e.message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const char* const kPrecisions[] = {"", "f16", "bf16", "tf32"};
  tfcc::compiler::Options options;
  options.targets = {"x86-64-v2", "sm_90"};
  options.precision = kPrecisions[size % std::size(kPrecisions)];
  options.strip = true;
  tfcc::tools::Files files;
  const auto optimised = tfcc::compiler::optimise(
      {"model.onnx", std::as_bytes(std::span(data, size))}, options, files);
  if (!optimised) {
    check(optimised.error());
    return 0;
  }
  for (const std::string& note : optimised->notes) {
    if (note.find(tfcc::passes::kUndone) != std::string::npos) broken(note);
  }
  tfcc::codegen::WeightPool weights;
  for (const auto& input : optimised->inputs) {
    for (const tfcc::codegen::TargetName& t : optimised->targets) {
      if (t.family != input.family) continue;
      const auto plan = tfcc::codegen::lower(input.graph, tfcc::codegen::class_of(t.name), weights,
                                             input.options);
      if (!plan) check(plan.error());
    }
  }
  return 0;
}

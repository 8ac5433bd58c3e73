// SPDX-License-Identifier: Apache-2.0
// The smallest program: loads a BERT-like model, runs two short sequences, prints one number.
//
//     minimal MODEL.tfcc
#include <cstdio>
#include <vector>

#include "runtime/tfcc.h"

namespace {

tfcc::Result<void> run(const char* path) {
  TFCC_TRY(tfcc::Model model, tfcc::Model::load(path));  // shared between threads
  TFCC_TRY(tfcc::Executor executor, model.executor());   // one per thread and stream

  std::vector<int64_t> ids = {1, 5, 2, 1, 2, 0};
  std::vector<int64_t> mask = {1, 1, 1, 1, 1, 0};
  std::vector<int64_t> types(6, 0);
  TFCC_TRY_VOID(executor.set("input_ids", {ids.data(), tfcc::DType::i64, {2, 3}}));
  TFCC_TRY_VOID(executor.set("attention_mask", {mask.data(), tfcc::DType::i64, {2, 3}}));
  TFCC_TRY_VOID(executor.set("token_type_ids", {types.data(), tfcc::DType::i64, {2, 3}}));
  TFCC_TRY_VOID(executor.run());

  TFCC_TRY(const tfcc::Tensor hidden, executor.output("last_hidden_state"));
  std::printf("%s: %s, first value %g\n", model.device().c_str(), tfcc::to_string(hidden.dtype),
              static_cast<double>(static_cast<const float*>(hidden.data)[0]));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: minimal MODEL.tfcc\n");
    return 2;
  }
  const tfcc::Result<void> done = run(argv[1]);
  if (!done) std::fprintf(stderr, "minimal: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}

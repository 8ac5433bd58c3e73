// SPDX-License-Identifier: Apache-2.0
// Changes ONNX files field by field, so that most of what libFuzzer tries is still a model. One
// time in eight bytes change instead.
#include <onnx_full.pb.h>

#include <algorithm>

#include "tests/fuzz/message_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  tfcc::fuzz::Mutator mutator(seed);
  onnx_full::ModelProto model;
  if (mutator.below(8) == 0 || !model.ParseFromArray(data, static_cast<int>(size)))
    return LLVMFuzzerMutate(data, size, max_size);
  for (size_t changes = 1 + mutator.below(3); changes > 0; --changes) mutator.change(model);
  std::string out;
  if (!model.SerializeToString(&out) || out.size() > max_size)
    return LLVMFuzzerMutate(data, size, max_size);
  std::copy(out.begin(), out.end(), data);
  return out.size();
}

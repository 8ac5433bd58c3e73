// SPDX-License-Identifier: Apache-2.0
#include "codegen/emit/linear_functors.h"

namespace tfcc::codegen {
namespace {

std::string index_of_token(int64_t k) {
  static constexpr const char* kNames[] = {"b", "h", "t", "c"};
  return kNames[k];
}

}  // namespace

std::vector<std::string> linear_functors(Stub& stub, const ir::LinearAttentionAttrs& attrs) {
  std::vector<std::string> objects;
  const auto add = [&](const char* name, const char* params, ExprRef body, Scalar type,
                       const char* none) {
    if (body) stub.functor(name, params, body, type, index_of_token);
    objects.push_back(body ? stub.object(name) : none);
  };
  add("QMap", "f32 s, idx b, idx h, idx t, idx c", attrs.q_map, Scalar::f32, "SameElement{}");
  add("KMap", "f32 s, idx b, idx h, idx t, idx c", attrs.k_map, Scalar::f32, "SameElement{}");
  add("Shown", "idx b, idx h, idx t", attrs.visible, Scalar::boolean, "AllTokens{}");
  add("Decay", "idx b, idx h, idx t", attrs.decay, Scalar::f32, "NoDecay{}");
  add("Epilogue", "f32 s, f32 z, idx b, idx h, idx t, idx c", attrs.epilogue, Scalar::f32,
      "SumAlone{}");
  add("Beta", "idx b, idx h, idx t", attrs.beta, Scalar::f32, "NoDelta{}");
  return objects;
}

}  // namespace tfcc::codegen

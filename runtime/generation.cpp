// SPDX-License-Identifier: Apache-2.0
#include "runtime/generation.h"

#include <algorithm>

namespace tfcc::runtime {
namespace {

constexpr int64_t kLargestExtent = 1 << 24;   // of a head, a page, a vocabulary
constexpr int64_t kLargestPage = 1LL << 31;    // elements, of all heads

bool fixed(const DimInfo& d) { return d.min == d.max && d.min >= 1 && d.min <= kLargestExtent; }

}  // namespace

std::string no_generation_program(const std::vector<TensorInfo>& inputs, const std::vector<TensorInfo>& outputs) {
  struct Port { const char* name; size_t rank; };
  for (const auto& [name, rank] : {Port{"ids", 2}, {"positions", 1}, {"slots", 1}, {"context", 1}, {"first", 1}, {"order", 1}, {"table", 2}, {"wanted", 1}}) {
    const auto in = std::find_if(inputs.begin(), inputs.end(), [&](const TensorInfo& t) { return t.name == name; });
    const std::string what = "its input '" + std::string(name) + "'";
    if (in == inputs.end()) return what + " is missing";
    if (in->state || in->dims.size() != rank) return what + " has other dims";
    if (in->dtype != DType::i32 && (in->dtype != DType::i64 || in->name != "ids")) return what + " has another type";
  }
  const TensorInfo* first = nullptr;
  for (const TensorInfo& t : inputs) {
    if (!t.state) continue;
    const bool good = t.dims.size() == 4 && fixed(t.dims[1]) && fixed(t.dims[2]) && fixed(t.dims[3]) && t.dims[1].max * t.dims[2].max <= kLargestExtent &&
                      t.dims[1].max * t.dims[2].max * t.dims[3].max <= kLargestPage;
    if (!good || (first && first->dims[2].max != t.dims[2].max)) return "its cache '" + t.name + "' has other dims";
    if (!first) first = &t;
  }
  if (!first) return "it has no cache";
  if (outputs.size() != 1 || outputs[0].dims.size() != 3 || !fixed(outputs[0].dims[2]) || !is_float(outputs[0].dtype)) return "its output is not the logits of a vocabulary";
  return "";
}

}  // namespace tfcc::runtime

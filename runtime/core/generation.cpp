// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/generation.h"

#include <algorithm>

namespace tfcc::runtime {
namespace {

constexpr int64_t kLargestExtent = 1 << 24;  // of a head, a page, a vocabulary
constexpr int64_t kLargestPage = 1LL << 31;  // elements, of all heads

bool fixed(const DimInfo& d) { return d.min == d.max && d.min >= 1 && d.min <= kLargestExtent; }

}  // namespace

std::string no_generation_program(const std::vector<TensorInfo>& inputs,
                                  const std::vector<TensorInfo>& outputs) {
  const auto has = [&](bool (*kind)(const TensorInfo&)) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const TensorInfo& t) { return t.state && kind(t); });
  };
  const bool cached = has(is_cache), sums = has(is_sums);
  if (!cached && !sums) return "it has no cache";
  struct Port {
    const char* name;
    size_t rank;
    bool needed;
    DType dtype = DType::i32;
  };
  for (const auto& [name, rank, needed, dtype] : {Port{"ids", 2, true},
                                                  {"positions", 1, true},
                                                  {"slots", 1, cached},
                                                  {"context", 1, true},
                                                  {"first", 1, true},
                                                  {"order", 1, cached},
                                                  {"table", 2, cached},
                                                  {"state_from", 1, sums},
                                                  {"state_to", 1, sums},
                                                  {"wanted", 1, true},
                                                  {"sampling", 2, true, DType::f32},
                                                  {"draw", 2, true},
                                                  {"seen", 2, true}}) {
    const auto in = std::find_if(inputs.begin(), inputs.end(),
                                 [&](const TensorInfo& t) { return t.name == name; });
    const std::string what = "its input '" + std::string(name) + "'";
    if (in == inputs.end() && !needed) continue;
    if (in == inputs.end()) return what + " is missing";
    if (!needed) return what + " is of a state that it has not";
    if (in->state || in->dims.size() != rank) return what + " has other dims";
    if (in->dtype != dtype && (in->dtype != DType::i64 || in->name != "ids"))
      return what + " has another type";
  }
  const TensorInfo* first = nullptr;  // of the caches
  for (const TensorInfo& t : inputs) {
    if (!t.state) continue;
    const bool good = is_cache(t) != is_sums(t) && t.dims.size() == 4 && fixed(t.dims[1]) &&
                      fixed(t.dims[2]) && fixed(t.dims[3]) &&
                      t.dims[1].max * t.dims[2].max <= kLargestExtent &&
                      t.dims[1].max * t.dims[2].max * t.dims[3].max <= kLargestPage;
    if (!good || (is_cache(t) && first && first->dims[2].max != t.dims[2].max))
      return std::string(is_cache(t) ? "its cache '" : "its state '") + t.name + "' has other dims";
    if (is_cache(t) && !first) first = &t;
  }
  if (outputs.empty() || outputs[0].dims.size() != 3 || !fixed(outputs[0].dims[2]) ||
      !is_float(outputs[0].dtype) || outputs[0].name != "logits")
    return "its first output is not the logits of a vocabulary";
  const auto ids = std::find_if(inputs.begin(), inputs.end(),
                                [](const TensorInfo& t) { return t.name == "ids"; });
  const bool sampled = outputs.size() == 3 && outputs[1].name == "tokens" &&
                       outputs[1].dtype == ids->dtype && outputs[1].dims.size() == 2 &&
                       outputs[2].name == "log_probabilities" && outputs[2].dtype == DType::f32 &&
                       outputs[2].dims.size() == 1;
  return sampled ? "" : "its outputs are not logits, tokens and log_probabilities";
}

}  // namespace tfcc::runtime

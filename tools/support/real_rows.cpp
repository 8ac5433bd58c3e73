// SPDX-License-Identifier: Apache-2.0
#include "tools/support/real_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ir/constant.h"
#include "tools/support/usage.h"

namespace tfcc::tools {

void RealRows::add_place(bool real, bool last_of_sequence) {
  if (real) rows.push_back(places);
  ++places;
  if (last_of_sequence) ends.push_back(static_cast<int64_t>(rows.size()));
}

Result<RealRows> real_rows(const std::vector<TensorInfo>& model,
                           const std::vector<std::pair<std::string, Array>>& inputs) {
  const auto info = std::ranges::find(model, InputRole::mask, &TensorInfo::role);
  const auto mask = std::find_if(inputs.begin(), inputs.end(), [&](const auto& in) {
    return info != model.end() && in.first == info->name;
  });
  if (mask == inputs.end() || mask->second.shape.size() != 2 || is_float(mask->second.dtype))
    return usage_error("--ragged: no input is a mask of whole numbers [batch, length]");
  const Array& m = mask->second;
  if (m.count() == 0) return usage_error("--ragged: the mask has no token");
  RealRows real;
  for (int64_t i = 0; i < m.count(); ++i)
    real.add_place(ir::read_int(m.dtype, m.bytes.data(), i) != 0, (i + 1) % m.shape[1] == 0);
  return real;
}

bool is_of_tokens(const TensorInfo& info) {
  return !info.dims.empty() && info.dims[0].role == SizeRole::tokens;
}

Result<std::vector<std::pair<std::string, Array>>> without_padding(
    const std::vector<TensorInfo>& ragged, const RealRows& real,
    std::vector<std::pair<std::string, Array>> inputs) {
  std::vector<std::pair<std::string, Array>> out;
  for (const TensorInfo& t : ragged) {
    if (t.role > InputRole::cu_seqlens) continue;  // follows from it
    if (t.role == InputRole::cu_seqlens) {
      Array cu = make_array(t.dtype, {static_cast<int64_t>(real.ends.size())});
      for (size_t i = 0; i < real.ends.size(); ++i)
        ir::write_int(t.dtype, cu.bytes.data(), static_cast<int64_t>(i), real.ends[i]);
      out.emplace_back(t.name, std::move(cu));
      continue;
    }
    const auto from = std::find_if(inputs.begin(), inputs.end(),
                                   [&](const auto& in) { return in.first == t.name; });
    if (from == inputs.end())
      return usage_error(fmt::format("--ragged: the padded program has no input '{}'", t.name));
    Array& padded = from->second;
    if (padded.dtype != t.dtype)
      return usage_error(fmt::format("--ragged: input '{}': dtype is {}, must be {}", t.name,
                                     to_string(padded.dtype), to_string(t.dtype)));
    if (is_of_tokens(t)) {
      const std::vector<int64_t> places{
          std::ssize(real.ends) - 1, real.places / std::max<int64_t>(std::ssize(real.ends) - 1, 1)};
      if (padded.shape.size() < 2 ||
          !std::equal(places.begin(), places.end(), padded.shape.begin()))
        return usage_error(fmt::format("--ragged: input '{}' is [{}], the mask [{}]", t.name,
                                       fmt::join(padded.shape, ","), fmt::join(places, ",")));
      std::vector<int64_t> shape(padded.shape.begin() + 1, padded.shape.end());
      shape[0] = static_cast<int64_t>(real.rows.size());
      Array rows = make_array(t.dtype, shape);
      const size_t width = padded.bytes.size() / static_cast<size_t>(real.places);
      for (size_t i = 0; i < real.rows.size(); ++i)
        std::memcpy(rows.bytes.data() + i * width,
                    padded.bytes.data() + static_cast<size_t>(real.rows[i]) * width, width);
      padded = std::move(rows);
    }
    out.emplace_back(t.name, std::move(padded));
  }
  return out;
}

}  // namespace tfcc::tools

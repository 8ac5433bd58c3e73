// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/tensors.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <sstream>

#include "ir/constant.h"
#include "ir/ir.h"
#include "tools/tfcc/command.h"
#include "tools/support/dim_text.h"
#include "tools/support/npz.h"
#include "tools/support/output_file.h"
#include "tools/support/real_rows.h"

namespace tfcc::tools {

namespace {

// An integer that such an input may hold.
int64_t random_integer(InputRole role, std::mt19937_64& rng) {
  if (role == InputRole::mask) return 1;
  return static_cast<int64_t>(rng() % (role == InputRole::types ? 2 : 100));
}

// Sizes may come from a file that promises anything: nothing is asked for that the machine does not
// have.
Result<void> check_memory(const TensorInfo& info, const std::vector<int64_t>& shape,
                          int64_t& total) {
  auto taken = take_memory(info.name, info.dtype, shape, total);
  for (size_t k = 0; !taken && k < shape.size(); ++k) {
    const int64_t most = info.dims[k].max;
    if (most == 0 || shape[k] <= most) continue;
    return Error{
        ErrorCode::shape,
        fmt::format(
            "input '{}': dim {} ({}) is {}, must be at most {}; use another shape or compile with other limits",
            info.name, k, info.dims[k].text, shape[k], most)};
  }
  return taken;
}

// The runtime gives the name of a size that stands alone as it is, which may look like an
// expression ("seq-len"): it is one only if all names in it are sizes.
std::vector<InputDims> dims_of(const std::vector<TensorInfo>& inputs) {
  const auto has_range = [](const DimInfo& d) {
    return d.min != 0 || d.max != 0;
  };  // expressions have none
  std::set<std::string> alone;
  for (const TensorInfo& info : inputs)
    for (const DimInfo& d : info.dims)
      if (const WantedDim dim = WantedDim::of(d.text); has_range(d) || !dim.size.empty()) {
        alone.insert(has_range(d) ? d.text : dim.size);
      } else if (const size_t at = d.text.find('*');
                 at != std::string::npos && at == d.text.find_first_not_of("0123456789")) {
        for (const std::string& part : sizes_in(d.text)) alone.insert(part);  // 64*chunks
      } else if (info.role == InputRole::cu_seqlens) {
        for (const std::string& part : sizes_in(d.text)) alone.insert(part);  // batch_size + 1
      }
  std::vector<InputDims> out;
  for (const TensorInfo& info : inputs) {
    out.emplace_back(info.name, std::vector<WantedDim>());
    for (const DimInfo& d : info.dims) {
      const std::vector<std::string> names = sizes_in(d.text);
      const bool sum =
          !has_range(d) && std::all_of(names.begin(), names.end(),
                                       [&](const std::string& n) { return alone.count(n) != 0; });
      if (d.min == d.max && d.max != 0) out.back().second.push_back({d.max, "", d.text});
      else out.back().second.push_back(sum ? WantedDim::of(d.text) : WantedDim::of_size(d.text));
    }
  }
  return out;
}

// 2 for a batch, or a first axis of which nothing is known, and 16 for others, within what the dim
// takes.
Usual usual_size(const std::vector<TensorInfo>& inputs, const std::vector<InputDims>& dims,
                 const std::string& size) {
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t k = 0; k < inputs[i].dims.size(); ++k) {
      const std::vector<std::string> names = sizes_in(inputs[i].dims[k].text);
      if (inputs[i].role == InputRole::cu_seqlens && std::ranges::count(names, size) > 0)
        return {2, SizeRole::batch};
      if (dims[i].second[k].size != size) continue;
      const DimInfo& d = inputs[i].dims[k];
      const bool few = d.role == SizeRole::batch || (k == 0 && d.role == SizeRole::none);
      const int64_t usual = few ? 2 : 16;
      return {std::max(d.max != 0 ? std::min(usual, d.max) : usual, d.min), d.role};
    }
  return {16};
}

// cu_seqlens of sequences that have as many tokens each as may be.
void split_evenly(const std::vector<TensorInfo>& inputs, const std::vector<InputDims>& dims,
                  const SizesByName& sizes, Array& cu) {
  int64_t tokens = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_of_tokens(inputs[i])) tokens = dims[i].second[0].value(sizes).value_or(0);
  }
  const int64_t batch = std::max<int64_t>(cu.count() - 1, 1);
  for (int64_t b = 0; b < cu.count(); ++b)
    ir::write_int(cu.dtype, cu.bytes.data(), b, tokens * b / batch);
}

}  // namespace

Result<NamedArrays> read_inputs(const std::string& npz, const std::vector<std::string>& texts) {
  NamedArrays out;
  for (const std::string& text : texts) {
    const size_t at = text.find('=');
    if (at == std::string::npos || at == 0)
      return usage_error(fmt::format("--input takes name=file.npy, not '{}'", text));
    TFCC_TRY_VOID(note_input(text.substr(at + 1)));
    TFCC_TRY(Array a, read_npy(text.substr(at + 1)));
    out.emplace_back(text.substr(0, at), std::move(a));
  }
  if (npz.empty()) return out;
  TFCC_TRY_VOID(note_input(npz));
  TFCC_TRY(auto arrays, read_npz(npz));
  for (auto& a : arrays) {
    if (std::none_of(out.begin(), out.end(), [&](const auto& o) { return o.first == a.first; }))
      out.push_back(std::move(a));
  }
  return out;
}

void add_inputs(CLI::App& command, std::string& npz, std::vector<std::string>& texts,
                const std::string& others) {
  command.add_option("--input", texts, "an input as name=file.npy; repeat for each" + others);
  command.add_option("--inputs", npz, "inputs by name in one .npz, as numpy.savez writes it");
}

Result<NamedArrays> random_inputs(const std::vector<TensorInfo>& inputs, const WantedSizes& wanted,
                                  uint64_t seed, NamedArrays given) {
  const std::vector<InputDims> dims = dims_of(inputs);
  auto given_for = [&](const TensorInfo& info) {
    return std::find_if(given.begin(), given.end(),
                        [&](const auto& g) { return g.first == info.name; });
  };
  WantedSizes all = wanted;
  for (const TensorInfo& info : inputs) {
    const auto it = given_for(info);
    if (it != given.end()) all.arrays[info.name] = it->second.shape;
  }
  TFCC_TRY(const SizesByName sizes, solve_sizes(dims, all, [&](const std::string& size) {
             return usual_size(inputs, dims, size);
           }));
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  int64_t total = 0;
  NamedArrays out;
  for (const TensorInfo& info : inputs) {
    if (auto it = given_for(info); it != given.end()) {
      out.push_back(std::move(*it));
      given.erase(it);
      continue;
    }
    std::vector<int64_t> shape;
    for (const WantedDim& d : dims[static_cast<size_t>(&info - inputs.data())].second)
      shape.push_back(std::max<int64_t>(0, d.value(sizes).value_or(0)));
    TFCC_TRY_VOID(check_memory(info, shape, total));
    Array a = make_array(info.dtype, shape);
    for (int64_t i = 0; i < a.count(); ++i) {
      if (info.role == InputRole::cu_seqlens) break;
      if (is_float(info.dtype)) ir::write_real(info.dtype, a.bytes.data(), i, normal(rng));
      else ir::write_int(info.dtype, a.bytes.data(), i, random_integer(info.role, rng));
    }
    if (info.role == InputRole::cu_seqlens) split_evenly(inputs, dims, sizes, a);
    out.emplace_back(info.name, std::move(a));
  }
  for (auto& g : given) out.push_back(std::move(g));
  return out;
}

std::string summary(const std::string& name, const ArrayView& array) {
  const auto count = static_cast<int64_t>(array.bytes() / size_of(array.dtype));
  std::string s =
      fmt::format("{} {}[{}]", name, to_string(array.dtype), fmt::join(array.shape, ","));
  if (count == 0) return s + ": empty";
  const auto* data = static_cast<const std::byte*>(array.data);
  auto at = [&](int64_t i) {
    return is_float(array.dtype) ? ir::read_real(array.dtype, data, i)
                                 : static_cast<double>(ir::read_int(array.dtype, data, i));
  };
  double low = at(0), high = at(0), sum = 0;
  int64_t nans = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double v = at(i);
    nans += std::isnan(v);
    low = std::min(low, v);
    high = std::max(high, v);
    sum += v;
  }
  s += fmt::format(": min {:.6g}, max {:.6g}, mean {:.6g}, first", low, high,
                   sum / static_cast<double>(count));
  for (int64_t i = 0; i < std::min<int64_t>(count, 4); ++i) s += fmt::format(" {:.6g}", at(i));
  if (nans) s += fmt::format(", {} NaN", nans);
  return s;
}

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "ir/constant.h"
#include "ir/ir.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/output_file.h"

namespace tfcc::tools {

Result<NamedShapes> parse_shapes(const std::string& text, const std::string& option) {
  NamedShapes out;
  for (const std::string& part : split(text)) {
    const size_t at = part.rfind(':');
    if (at == std::string::npos) return usage_error(fmt::format("{} takes name:4x32, not '{}'", option, part));
    std::vector<int64_t> dims;
    for (const std::string& d : split(part.substr(at + 1), 'x')) {
      if (d.empty() || d.size() > 12 || d.find_first_not_of("0123456789") != std::string::npos) {
        return usage_error(fmt::format("{}: '{}' is no size", option, d));
      }
      dims.push_back(std::stoll(d));
    }
    out[part.substr(0, at)] = dims;
  }
  return out;
}

namespace {

bool contains(const std::string& name, const char* word) { return name.find(word) != std::string::npos; }

// An integer that such an input may hold.
int64_t random_integer(const std::string& name, std::mt19937_64& rng) {
  if (contains(name, "mask")) return 1;
  return static_cast<int64_t>(rng() % (contains(name, "type") ? 2 : 100));
}

// Sizes may come from a file that promises anything: nothing is asked for that the machine does not have.
Result<void> check_memory(const TensorInfo& info, const std::vector<int64_t>& shape, int64_t& total) {
  auto taken = take_memory(info.name, info.dtype, shape, total);
  for (size_t k = 0; !taken && k < shape.size(); ++k) {
    const int64_t most = info.dims[k].max;
    if (most == 0 || shape[k] <= most) continue;
    return Error{ErrorCode::shape, fmt::format("input '{}': dim {} ({}) is {}, must be at most {}; use another shape or compile with other limits",
                                               info.name, k, info.dims[k].text, shape[k], most)};
  }
  return taken;
}

Result<std::map<std::string, int64_t>> known_sizes(const std::vector<TensorInfo>& inputs, const NamedShapes& shapes) {
  std::map<std::string, int64_t> sizes;
  for (const auto& [name, shape] : shapes) {
    auto it = std::find_if(inputs.begin(), inputs.end(), [&](const TensorInfo& i) { return i.name == name; });
    if (it == inputs.end()) return Error{ErrorCode::invalid_argument, fmt::format("--shapes: the model has no input '{}'", name)};
    if (it->dims.size() != shape.size()) {
      return Error{ErrorCode::shape, fmt::format("--shapes: '{}' has {} dims, not {}", name, it->dims.size(), shape.size())};
    }
    for (size_t k = 0; k < shape.size(); ++k) sizes[it->dims[k].text] = shape[k];
  }
  return sizes;
}

using SizesByName = std::map<std::string, int64_t>;

// A dim as an expression over names of sizes, each the number that `size` gives it, or a symbol; null if it is none.
ir::ExprRef dim_expression(const std::string& text, ir::ExprPool& pool, const SizesByName& sizes) {
  auto e = ir::parse_expr(
      text, pool,
      [&](std::string_view name) {
        const auto it = sizes.find(std::string(name));
        return it == sizes.end() ? pool.symbol(name) : pool.integer(it->second);
      },
      [](std::string_view) -> std::optional<std::pair<int64_t, DType>> { return std::nullopt; });
  return e ? *e : nullptr;
}

// The size of a made-up dim: what is known of it, or what follows from what is known of others, or a usual one.
int64_t size_of_dim(const DimInfo& d, size_t axis, const SizesByName& sizes) {
  if (d.min == d.max && d.max != 0) return d.min;
  if (const auto known = sizes.find(d.text); known != sizes.end()) return known->second;
  ir::ExprPool pool;
  const ir::ExprRef e = dim_expression(d.text, pool, sizes);
  if (const auto n = e ? ir::as_int(e) : std::nullopt; n && *n >= 0) return *n;
  const int64_t usual = axis == 0 ? 2 : 16;
  return std::max(d.max != 0 ? std::min(usual, d.max) : usual, d.min);
}

bool is_size_of_its_own(const DimInfo& d) {
  ir::ExprPool pool;
  const ir::ExprRef e = dim_expression(d.text, pool, {});
  return e != nullptr && e->kind == ir::ExprKind::symbol;
}

}  // namespace

Result<std::pair<std::string, Array>> read_input(const std::string& text) {
  const size_t at = text.find('=');
  if (at == std::string::npos || at == 0) return usage_error(fmt::format("--input takes name=file.npy, not '{}'", text));
  TFCC_TRY_VOID(note_input(text.substr(at + 1)));
  TFCC_TRY(Array a, read_npy(text.substr(at + 1)));
  return std::pair{text.substr(0, at), std::move(a)};
}

Result<std::vector<std::pair<std::string, Array>>> random_inputs(const std::vector<TensorInfo>& inputs, const NamedShapes& shapes, uint64_t seed,
                                                                 std::vector<std::pair<std::string, Array>> given) {
  TFCC_TRY(auto sizes, known_sizes(inputs, shapes));
  auto given_for = [&](const TensorInfo& info) {
    return std::find_if(given.begin(), given.end(), [&](const auto& g) { return g.first == info.name; });
  };
  for (const TensorInfo& info : inputs) {
    auto it = given_for(info);
    if (it == given.end() || it->second.shape.size() != info.dims.size()) continue;  // a wrong rank is for the executor to tell
    for (size_t k = 0; k < info.dims.size(); ++k) sizes[info.dims[k].text] = it->second.shape[k];
  }
  // Sizes that stand alone first: others, such as the length of a mask over a cache and the new tokens, follow from them.
  for (const bool own : {true, false}) {
    for (const TensorInfo& info : inputs) {
      if (given_for(info) != given.end()) continue;
      for (size_t k = 0; k < info.dims.size(); ++k) {
        if (is_size_of_its_own(info.dims[k]) == own) sizes.emplace(info.dims[k].text, size_of_dim(info.dims[k], k, sizes));
      }
    }
  }
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  int64_t total = 0;
  std::vector<std::pair<std::string, Array>> out;
  for (const TensorInfo& info : inputs) {
    if (auto it = given_for(info); it != given.end()) {
      out.push_back(std::move(*it));
      given.erase(it);
      continue;
    }
    std::vector<int64_t> shape;
    for (size_t k = 0; k < info.dims.size(); ++k) shape.push_back(size_of_dim(info.dims[k], k, sizes));
    TFCC_TRY_VOID(check_memory(info, shape, total));
    Array a = make_array(info.dtype, shape);
    for (int64_t i = 0; i < a.count(); ++i) {
      if (is_float(info.dtype)) ir::write_real(info.dtype, a.bytes.data(), i, normal(rng));
      else ir::write_int(info.dtype, a.bytes.data(), i, random_integer(info.name, rng));
    }
    out.emplace_back(info.name, std::move(a));
  }
  for (auto& g : given) out.push_back(std::move(g));
  return out;
}

std::string summary(const std::string& name, const ArrayView& array) {
  const auto count = static_cast<int64_t>(array.bytes() / size_of(array.dtype));
  std::string s = fmt::format("{} {}[{}]", name, to_string(array.dtype), fmt::join(array.shape, ","));
  if (count == 0) return s + ": empty";
  const auto* data = static_cast<const std::byte*>(array.data);
  auto at = [&](int64_t i) {
    return is_float(array.dtype) ? ir::read_real(array.dtype, data, i) : static_cast<double>(ir::read_int(array.dtype, data, i));
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
  s += fmt::format(": min {:.6g}, max {:.6g}, mean {:.6g}, first", low, high, sum / static_cast<double>(count));
  for (int64_t i = 0; i < std::min<int64_t>(count, 4); ++i) s += fmt::format(" {:.6g}", at(i));
  if (nans) s += fmt::format(", {} NaN", nans);
  return s;
}

}  // namespace tfcc::tools

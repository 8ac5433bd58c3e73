// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/wanted_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "ir/ir.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/dim_text.h"

namespace tfcc::tools {
namespace {

/// Names in a message: all, or the first few.
std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  if (names.empty()) return "none";
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<long>(std::min(names.size(), kMost)));
  return fmt::format("{}{}", fmt::join(first, ", "), names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "");
}

std::optional<int64_t> number(const std::string& text) {
  if (text.empty() || text.size() > 12 || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(text);
}

/// A dim of several sizes, and what it is wanted to be.
struct Equation {
  std::string dim;
  int64_t value;
};

class Resolver {
 public:
  Resolver(const std::vector<InputDims>& inputs, const std::string& option) : inputs_(inputs), option_(option) {
    for (const auto& [name, dims] : inputs) {
      for (const std::string& d : dims) {
        for (const std::string& size : sizes_in(d)) known_.insert(size);
      }
    }
  }

  Result<SizesByName> run(const WantedSizes& wanted) {
    for (const auto& [name, n] : wanted.sizes) {
      if (known_.count(name) == 0) {
        return usage_error(fmt::format("{}: the model has no size '{}'; its sizes are {}", option_, name, list_of({known_.begin(), known_.end()})));
      }
      TFCC_TRY_VOID(set(name, n, ""));
    }
    for (const auto& [name, shape] : wanted.shapes) TFCC_TRY_VOID(add_shape(name, shape));
    while (solve_one()) {
    }
    return std::move(sizes_);
  }

 private:
  Result<void> set(const std::string& size, int64_t n, const std::string& input) {
    const auto [it, added] = sizes_.emplace(size, n);
    if (!added && it->second != n) {
      return Error{ErrorCode::shape, fmt::format("{}: {} is {} and, for input '{}', {}", option_, size, it->second, input, n)};
    }
    return {};
  }

  Result<void> add_shape(const std::string& name, const std::vector<int64_t>& shape) {
    const auto input = std::find_if(inputs_.begin(), inputs_.end(), [&](const InputDims& i) { return i.first == name; });
    if (input == inputs_.end()) {
      std::vector<std::string> names;
      for (const InputDims& i : inputs_) names.push_back(i.first);
      return usage_error(fmt::format("{}: the model has no input '{}'; its inputs are {}", option_, name, list_of(names)));
    }
    const std::vector<std::string>& dims = input->second;
    if (dims.size() != shape.size()) return Error{ErrorCode::shape, fmt::format("{}: '{}' has {} dims, not {}", option_, name, dims.size(), shape.size())};
    for (size_t k = 0; k < shape.size(); ++k) {
      if (known_.count(dims[k]) != 0) {
        TFCC_TRY_VOID(set(dims[k], shape[k], name));
      } else if (!number(dims[k])) {
        equations_.push_back({dims[k], shape[k]});
        sizes_[dims[k]] = shape[k];
      }
    }
    return {};
  }

  // One size that a dim has as its only unknown, a whole number of times.
  bool solve_one() {
    for (const Equation& q : equations_) {
      ir::ExprPool pool;
      const ir::ExprRef e = parse_dim(q.dim, pool, sizes_);
      if (!e || e->kind != ir::ExprKind::poly || e->terms.size() != 1) continue;
      const ir::Term& term = e->terms[0];
      if (term.atoms.size() != 1 || term.atoms[0]->kind != ir::ExprKind::symbol || term.coefficient <= 0) continue;
      const int64_t left = q.value - e->value;
      if (left < 0 || left % term.coefficient != 0) continue;  // the run says what the dim must be
      sizes_.emplace(term.atoms[0]->name, left / term.coefficient);
      return true;
    }
    return false;
  }

  const std::vector<InputDims>& inputs_;
  const std::string& option_;
  std::set<std::string> known_;
  std::vector<Equation> equations_;
  SizesByName sizes_;
};

}  // namespace

Result<WantedSizes> parse_shapes(const std::string& text, const std::string& option) {
  WantedSizes out;
  for (const std::string& part : split(text)) {
    const size_t colon = part.rfind(':'), equals = part.rfind('=');
    if (colon == std::string::npos && equals == std::string::npos) {
      return usage_error(fmt::format("{} takes shapes of inputs, name:4x32, and sizes, name=4, not '{}'", option, part));
    }
    std::vector<int64_t> dims;
    const bool is_size = colon == std::string::npos;
    const size_t at = is_size ? equals : colon;
    for (const std::string& d : is_size ? std::vector<std::string>{part.substr(at + 1)} : split(part.substr(at + 1), 'x')) {
      const auto n = number(d);
      if (!n && is_size && d.find('x') != std::string::npos) {
        return usage_error(fmt::format("{}: '{}' is no size; the shape of an input is written {}:{}", option, d, part.substr(0, at), d));
      }
      if (!n) return usage_error(fmt::format("{}: '{}' is no size", option, d));
      dims.push_back(*n);
    }
    if (is_size && dims.size() == 1) out.sizes[part.substr(0, at)] = dims[0];
    else out.shapes[part.substr(0, at)] = dims;
  }
  return out;
}

Result<SizesByName> solve_sizes(const std::vector<InputDims>& inputs, const WantedSizes& wanted, const std::string& option) {
  return Resolver(inputs, option).run(wanted);
}

}  // namespace tfcc::tools

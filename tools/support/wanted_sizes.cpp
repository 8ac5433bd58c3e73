// SPDX-License-Identifier: Apache-2.0
#include "tools/support/wanted_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "ir/ir.h"
#include "tools/tfcc/command.h"
#include "tools/support/dim_text.h"

namespace tfcc::tools {
namespace {

/// Names in a message: all, or the first few.
std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  if (names.empty()) return "none";
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<long>(std::min(names.size(), kMost)));
  return fmt::format("{}{}", fmt::join(first, ", "),
                     names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "");
}

std::optional<int64_t> number(const std::string& text) {
  if (text.empty() || text.size() > 12 || text.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(text);
}

/// A dim of several sizes, and what it is wanted to be.
struct Equation {
  std::string option, input;
  size_t axis;
  WantedDim dim;
  int64_t wanted;
};

class Resolver {
 public:
  Resolver(const std::vector<InputDims>& inputs, const std::string& option)
      : inputs_(inputs), option_(option) {
    const auto learn = [&](const std::string& size) {
      if (std::find(known_.begin(), known_.end(), size) == known_.end()) known_.push_back(size);
    };
    // Sizes that stand alone first: others, such as the length of a mask over a cache and the new
    // tokens, follow from them.
    for (const auto& [name, dims] : inputs)
      for (const WantedDim& d : dims)
        if (!d.size.empty()) learn(d.size);
    for (const auto& [name, dims] : inputs)
      for (const WantedDim& d : dims)
        if (d.size.empty() && !d.fixed)
          for (const std::string& size : sizes_in(d.text)) learn(size);
  }

  Result<SizesByName> run(const WantedSizes& wanted, const UsualSize& usual) {
    for (const auto& [name, n] : wanted.sizes) {
      if (std::find(known_.begin(), known_.end(), name) == known_.end())
        return usage_error(fmt::format("{}: the model has no size '{}'; its sizes are {}", option_,
                                       name, list_of(known_)));
      TFCC_TRY_VOID(set(option_, name, n, ""));
    }
    for (const auto& [name, shape] : wanted.shapes) TFCC_TRY_VOID(add_shape(option_, name, shape));
    for (const auto& [name, shape] : wanted.arrays)
      TFCC_TRY_VOID(add_shape("--input", name, shape));
    while (solve_one()) {}
    TFCC_TRY_VOID(check_multiples());
    if (usual) assume(usual);
    TFCC_TRY_VOID(check_equations());
    return std::move(sizes_);
  }

 private:
  // What nothing tells. The context comes last: it is the past and the new tokens.
  void assume(const UsualSize& usual) {
    const auto is = [&](SizeRole role) {
      return [&usual, role](const std::string& size) { return usual(size).role == role; };
    };
    std::stable_partition(known_.begin(), known_.end(), std::not_fn(is(SizeRole::context)));
    const auto of = [&](SizeRole role) -> std::optional<int64_t> {
      const auto size = std::find_if(known_.begin(), known_.end(), is(role));
      if (size == known_.end()) return std::nullopt;
      const auto n = sizes_.find(*size);
      return n == sizes_.end() ? std::nullopt : std::optional(n->second);
    };
    for (const std::string& size : known_) {
      if (sizes_.count(size) != 0) continue;
      const Usual own = usual(size);
      const auto past = of(SizeRole::past), length = of(SizeRole::length);
      const bool both = own.role == SizeRole::context && past && length;
      sizes_.emplace(size, both ? *past + *length : own.n);
      while (solve_one()) {}
    }
  }

  Result<void> set(const std::string& option, const std::string& size, int64_t n,
                   const std::string& input) {
    const auto [it, added] = sizes_.emplace(size, n);
    if (added || it->second == n) return {};
    const std::string what =
        fmt::format("{}: {} is {} and, for input '{}', {}", option, size, it->second, input, n);
    return option == option_
               ? usage_error(what)
               : Error{ErrorCode::shape, what};  // a word of the command line, or a file
  }

  Result<void> add_shape(const std::string& option, const std::string& name,
                         const std::vector<int64_t>& shape) {
    const auto input = std::find_if(inputs_.begin(), inputs_.end(),
                                    [&](const InputDims& i) { return i.first == name; });
    if (input == inputs_.end()) {
      std::vector<std::string> names;
      for (const InputDims& i : inputs_) names.push_back(i.first);
      return usage_error(fmt::format("{}: the model has no input '{}'; its inputs are {}", option,
                                     name, list_of(names)));
    }
    const std::vector<WantedDim>& dims = input->second;
    if (dims.size() != shape.size())
      return Error{ErrorCode::shape, fmt::format("{}: '{}' has {} dims, not {}", option, name,
                                                 dims.size(), shape.size())};
    for (size_t k = 0; k < shape.size(); ++k) {
      if (dims[k].fixed && *dims[k].fixed != shape[k])
        return usage_error(fmt::format("{}: axis {} of '{}' is always {}, not {}", option, k, name,
                                       *dims[k].fixed, shape[k]));
      if (!dims[k].size.empty()) {
        TFCC_TRY_VOID(set(option, dims[k].size, shape[k], name));
      } else if (!dims[k].fixed) {
        equations_.push_back({option, name, k, dims[k], shape[k]});
      }
    }
    return {};
  }

  // One size that a dim has as its only unknown, a whole number of times.
  bool solve_one() {
    for (const Equation& q : equations_) {
      ir::ExprPool pool;
      const ir::ExprRef e = parse_dim(q.dim.text, pool, sizes_);
      if (!e || e->kind != ir::ExprKind::poly || e->terms.size() != 1) continue;
      const ir::Term& term = e->terms[0];
      if (term.atoms.size() != 1 || term.atoms[0]->kind != ir::ExprKind::symbol ||
          term.coefficient <= 0)
        continue;
      const int64_t left = q.wanted - e->value;
      if (left < 0 || left % term.coefficient != 0) continue;
      sizes_.emplace(term.atoms[0]->name, left / term.coefficient);
      return true;
    }
    return false;
  }

  // An axis that is a multiple of a size has no other lengths.
  Result<void> check_multiples() const {
    for (const Equation& q : equations_) {
      ir::ExprPool pool;
      const ir::ExprRef e = parse_dim(q.dim.text, pool, sizes_);
      if (!e || e->kind != ir::ExprKind::poly || e->terms.size() != 1 ||
          e->terms[0].atoms.size() != 1 || e->terms[0].coefficient <= 1)
        continue;
      if ((q.wanted - e->value) % e->terms[0].coefficient == 0) continue;
      return Error{ErrorCode::shape, fmt::format("{}: axis {} of '{}' is {}, which is never {}",
                                                 q.option, q.axis, q.input, q.dim.text, q.wanted)};
    }
    return {};
  }

  Result<void> check_equations() const {
    for (const Equation& q : equations_) {
      const auto value = q.dim.value(sizes_);
      if (!value || *value == q.wanted) continue;
      std::vector<std::string> parts;
      for (const std::string& size : sizes_in(q.dim.text))
        parts.push_back(fmt::format("{} = {}", size, sizes_.at(size)));
      return Error{
          ErrorCode::shape,
          fmt::format("{}: axis {} of '{}' is {}, which is {} and not {} where {}", q.option,
                      q.axis, q.input, q.dim.text, *value, q.wanted, fmt::join(parts, ", "))};
    }
    return {};
  }

  const std::vector<InputDims>& inputs_;
  const std::string& option_;
  std::vector<std::string> known_;
  std::vector<Equation> equations_;
  SizesByName sizes_;
};

}  // namespace

Result<WantedSizes> parse_shapes(const std::string& text, const std::string& option) {
  WantedSizes out;
  for (const std::string& part : split(text)) {
    const size_t colon = part.rfind(':'), equals = part.rfind('=');
    if (colon == std::string::npos && equals == std::string::npos) {
      return usage_error(fmt::format(
          "{} takes shapes of inputs, name:4x32, and sizes, name=4, not '{}'", option, part));
    }
    std::vector<int64_t> dims;
    const bool is_size = colon == std::string::npos;
    const size_t at = is_size ? equals : colon;
    for (const std::string& d : is_size ? std::vector<std::string>{part.substr(at + 1)}
                                        : split(part.substr(at + 1), 'x')) {
      const auto n = number(d);
      if (!n && is_size && d.find('x') != std::string::npos) {
        return usage_error(
            fmt::format("{}: '{}' is no size; the shape of an input is written {}:{}", option, d,
                        part.substr(0, at), d));
      }
      if (!n) return usage_error(fmt::format("{}: '{}' is no size", option, d));
      dims.push_back(*n);
    }
    const std::string name = part.substr(0, at);
    const bool twice = is_size ? !out.sizes.emplace(name, dims.empty() ? 0 : dims[0]).second
                               : !out.shapes.emplace(name, dims).second;
    if (twice) return usage_error(fmt::format("{}: '{}' is given twice", option, name));
  }
  return out;
}

WantedDim WantedDim::of(const std::string& text) {
  ir::ExprPool pool;
  const ir::ExprRef e = parse_dim(text, pool, {});
  if (!e) return of_size(text);  // a name that is no word of the language, such as "batch size"
  if (const auto n = ir::as_int(e)) return {*n, "", text};
  if (e->kind == ir::ExprKind::symbol) return of_size(e->name);
  return {std::nullopt, "", text};
}

std::optional<int64_t> WantedDim::value(const SizesByName& sizes) const {
  if (fixed) return fixed;
  if (!size.empty()) {
    const auto known = sizes.find(size);
    return known == sizes.end() ? std::nullopt : std::optional(known->second);
  }
  ir::ExprPool pool;
  const ir::ExprRef e = parse_dim(text, pool, sizes);
  return e ? ir::as_int(e) : std::nullopt;
}

Result<SizesByName> solve_sizes(const std::vector<InputDims>& inputs, const WantedSizes& wanted,
                                const UsualSize& usual, const std::string& option) {
  return Resolver(inputs, option).run(wanted, usual);
}

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
#include "tools/compiler/sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ir.h"
#include "runtime/core/manifest.h"
#include "tools/support/usage.h"
#include "tools/support/wanted_sizes.h"

namespace tfcc::compiler {
namespace {

using namespace tools;  // sizes as users write them

class Resolver {
 public:
  Resolver(const SizeOptions& given, const ir::Graph& graph) : given_(given), graph_(graph) {}

  Result<ResolvedSizes> run() {
    TFCC_TRY_VOID(shapes("--minShapes", given_.min_shapes,
                         [this](const std::string& s, int64_t n, const std::string& from) {
                           return at_least(s, n, from);
                         }));
    TFCC_TRY_VOID(shapes("--maxShapes", given_.max_shapes,
                         [this](const std::string& s, int64_t n, const std::string& from) {
                           return at_most(s, n, from);
                         }));
    if (given_.max_batch) TFCC_TRY_VOID(max_batch());
    if (!given_.seq_buckets.empty()) TFCC_TRY_VOID(seq_buckets());
    if (given_.max_tokens) TFCC_TRY_VOID(max_tokens());
    TFCC_TRY_VOID(shapes("--optShapes", given_.opt_shapes,
                         [this](const std::string& s, int64_t n, const std::string& from) {
                           return typical(s, n, from);
                         }));
    TFCC_TRY_VOID(settle());
    return std::move(out_);
  }

 private:
  Error empty_range(const std::string& symbol, const std::string& from, int64_t least,
                    int64_t most) const {
    return {ErrorCode::shape,
            fmt::format("{}: {} would have to be from {} to {}", from, symbol, least, most)};
  }

  ir::SymbolRange& range(const std::string& symbol) {
    return out_.ranges.try_emplace(symbol, graph_.pool().range(symbol)).first->second;
  }

  Result<void> at_least(const std::string& symbol, int64_t n, const std::string& from) {
    ir::SymbolRange& r = range(symbol);
    if (r.max && n > *r.max) return empty_range(symbol, from, n, *r.max);
    if (n <= r.min) return {};
    r.min = n;
    out_.options[symbol].min_from = from;
    return {};
  }

  Result<void> at_most(const std::string& symbol, int64_t n, const std::string& from) {
    ir::SymbolRange& r = range(symbol);
    if (n < r.min) return empty_range(symbol, from, r.min, n);
    if (r.max && n > *r.max && out_.options[symbol].max_from.empty()) {
      return Error{ErrorCode::shape,
                   fmt::format("{}: the model itself takes {} up to {}", from, symbol, *r.max)};
    }
    if (r.max && n >= *r.max) return {};
    r.max = n;
    out_.options[symbol].max_from = from;
    return {};
  }

  Result<void> typical(const std::string& symbol, int64_t n, const std::string& from) {
    const ir::SymbolRange& r = range(symbol);
    if (n < r.min || (r.max && n > *r.max))
      return Error{ErrorCode::shape,
                   fmt::format("{}: {} = {} lies outside its range", from, symbol, n)};
    out_.options[symbol].typical = n;
    return {};
  }

  // "input_ids:8x128,...": every dim that is a symbol of its own is passed on, a fixed one
  // compared.
  template <class F>
  Result<void> shapes(const std::string& option, const std::string& text, F take) {
    if (text.empty()) return {};
    TFCC_TRY(WantedSizes given, parse_shapes(text, option));
    TFCC_TRY(const SizesByName solved, solve_sizes(input_dims(), given, {}, option));
    std::map<std::string, int64_t> seen;
    for (const auto& [name, n] : given.sizes) {
      const auto size =
          std::find_if(graph_.symbols.begin(), graph_.symbols.end(),
                       [&](const ir::SizeSymbol& s) { return s.name == name && s.read(); });
      if (size == graph_.symbols.end())
        return usage_error(fmt::format("{}: the model has no size '{}'", option, name));
      seen.emplace(name, n);
      TFCC_TRY_VOID(take(name, n, fmt::format("{} {}={}", option, name, n)));
    }
    for (const auto& [name, shape] : given.shapes) {
      const auto& inputs = graph_.inputs();
      const auto input = std::find_if(inputs.begin(), inputs.end(),
                                      [&](ir::ValueId v) { return graph_.value(v).name == name; });
      if (input == inputs.end())
        return usage_error(fmt::format("{}: the model has no input '{}'", option, name));
      const auto& dims = graph_.value(*input).type.dims;
      if (dims.size() != shape.size())
        return usage_error(
            fmt::format("{}: '{}' has {} dims, not {}", option, name, dims.size(), shape.size()));
      for (size_t axis = 0; axis < dims.size(); ++axis) {
        const auto fixed = ir::as_int(dims[axis]);
        if (fixed && *fixed != shape[axis]) {
          return usage_error(fmt::format("{}: axis {} of '{}' is always {}, not {}", option, axis,
                                         name, *fixed, shape[axis]));
        }
        if (dims[axis]->kind != ir::ExprKind::symbol) continue;
        const std::string& symbol = dims[axis]->name;
        const auto [it, added] = seen.emplace(symbol, shape[axis]);
        if (it->second != shape[axis]) {
          return usage_error(fmt::format("{}: {} is {} for one input and {} for '{}'", option,
                                         symbol, it->second, shape[axis], name));
        }
        if (added)
          TFCC_TRY_VOID(take(symbol, shape[axis],
                             fmt::format("{} {}:{}", option, name, fmt::join(shape, "x"))));
      }
    }
    for (const auto& [name, n] : solved)  // by sums of them
      if (seen.emplace(name, n).second)
        TFCC_TRY_VOID(take(name, n, fmt::format("{} {}", option, text)));
    return {};
  }

  std::vector<InputDims> input_dims() const {
    std::vector<InputDims> out;
    for (ir::ValueId v : graph_.inputs()) {
      out.emplace_back(graph_.value(v).name, std::vector<WantedDim>());
      for (ir::ExprRef d : graph_.value(v).type.dims)
        out.back().second.push_back(WantedDim::of(ir::print(d)));
    }
    return out;
  }

  Result<void> max_batch() {
    const ir::SizeSymbol* batch = graph_.size_with(SizeRole::batch);
    if (!batch) return usage_error("--max-batch: no input of the model has a batch that varies");
    return at_most(batch->name, given_.max_batch, fmt::format("--max-batch {}", given_.max_batch));
  }

  Result<void> seq_buckets() {
    const ir::SizeSymbol* length = graph_.size_with(SizeRole::length);
    if (!length)
      return usage_error("--seq-buckets: no input of the model has a length that varies");
    for (const std::string& word : split(given_.seq_buckets)) {
      if (word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos ||
          std::stoll(word) < 1) {
        return usage_error(
            fmt::format("--seq-buckets takes lengths such as 64,128,512, not '{}'", word));
      }
      out_.lengths.push_back(std::stoll(word));
    }
    if (out_.lengths.empty()) return usage_error("--seq-buckets takes lengths such as 64,128,512");
    std::sort(out_.lengths.begin(), out_.lengths.end());
    out_.lengths.erase(std::unique(out_.lengths.begin(), out_.lengths.end()), out_.lengths.end());
    if (out_.lengths.size() > runtime::kMaxLengths) {
      return usage_error(fmt::format("--seq-buckets takes at most {} lengths, not {}",
                                     runtime::kMaxLengths, out_.lengths.size()));
    }
    return at_most(length->name, out_.lengths.back(), "--seq-buckets " + given_.seq_buckets);
  }

  // The number of tokens, and each size that it is made of: as much as is left where the others are
  // least.
  Result<void> max_tokens() {
    const std::string from = fmt::format("--max-tokens {}", given_.max_tokens);
    if (graph_.symbols.empty())
      return usage_error("--max-tokens: all sizes of the model are fixed");
    const ir::SizeSymbol *tokens = graph_.size_with(SizeRole::tokens),
                         *length = graph_.size_with(SizeRole::length);
    if (!tokens && !length) {
      return usage_error(
          "--max-tokens: no input has tokens that vary: ids [batch, length], or reals [batch, length, features] or "
          "[batch, channels, length]; bound its sizes with --max-batch or --maxShapes");
    }
    if (!tokens) {
      TFCC_TRY_VOID(at_most_of(length->name, given_.max_tokens, 1, from));
      out_.notes.push_back(
          fmt::format("{}: {} is at most {}", from, length->name, *range(length->name).max));
      return {};
    }
    if (!tokens->computed()) return at_most(tokens->name, given_.max_tokens, from);
    const std::vector<std::string> parts = symbols_of(tokens->formula);
    if (parts.size() > 1) {
      out_.notes.push_back(
          fmt::format("{}: {} is at most {}", from, ir::print(tokens->formula), given_.max_tokens));
      TFCC_TRY_VOID(at_most(tokens->name, given_.max_tokens, from));
    }
    for (const std::string& part : parts) {
      const int64_t each = ir::eval_size(tokens->formula, [&](std::string_view n) {
        return n == part ? 1 : range(std::string(n)).min;
      });
      TFCC_TRY_VOID(at_most_of(part, given_.max_tokens, each, from));
    }
    if (parts.size() == 1)
      out_.notes.push_back(
          fmt::format("{}: {} is at most {}", from, parts[0], *range(parts[0]).max));
    return {};
  }

  static std::vector<std::string> symbols_of(ir::ExprRef e) {
    std::vector<std::string> names;
    ir::for_each_node(e, [&](ir::ExprRef n) {
      if (n->kind == ir::ExprKind::symbol) names.push_back(n->name);
    });
    return names;
  }

  // A size of which so many tokens leave tokens / other; a narrower range stays.
  Result<void> at_most_of(const std::string& symbol, int64_t tokens, int64_t other,
                          const std::string& from) {
    const int64_t most = tokens / std::max<int64_t>(other, 1);
    const auto have = range(symbol).max;
    return have && *have <= most ? Result<void>() : at_most(symbol, most, from);
  }

  // Buckets above what another option allows, and sizes whose range is one value.
  Result<void> settle() {
    if (!out_.lengths.empty()) {
      const int64_t most = *range(graph_.size_with(SizeRole::length)->name).max;
      for (int64_t& n : out_.lengths) n = std::min(n, most);
      out_.lengths.erase(std::unique(out_.lengths.begin(), out_.lengths.end()), out_.lengths.end());
    }
    for (auto it = out_.ranges.begin(); it != out_.ranges.end();) {
      const ir::SymbolRange before = graph_.pool().range(it->first);
      const bool same = before.min == it->second.min && before.max == it->second.max;
      it = same ? out_.ranges.erase(it) : std::next(it);
    }
    return {};
  }

  const SizeOptions& given_;
  const ir::Graph& graph_;
  ResolvedSizes out_;
};

}  // namespace

Result<ResolvedSizes> resolve_sizes(const SizeOptions& given, const ir::Graph& graph) {
  if (!given.any()) return ResolvedSizes{};
  for (const auto& [option, n] :
       {std::pair("--max-batch", given.max_batch), std::pair("--max-tokens", given.max_tokens)}) {
    if (n < 0 || n > kMostOfSize)
      return usage_error(fmt::format("{}: {} is not in [1 - {}]", option, n, kMostOfSize));
  }
  return Resolver(given, graph).run();
}

}  // namespace tfcc::compiler

// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/size_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "codegen/emit_expr.h"
#include "ir/ir.h"
#include "runtime/manifest.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {
namespace {

class Resolver {
 public:
  Resolver(const SizeFlags& flags, const ir::Graph& graph) : flags_(flags), graph_(graph), names_(codegen::size_symbols(graph)) {}

  Result<ResolvedSizes> run() {
    TFCC_TRY_VOID(shapes("--minShapes", flags_.min_shapes, [this](const std::string& s, int64_t n, const std::string& from) { return at_least(s, n, from); }));
    TFCC_TRY_VOID(shapes("--maxShapes", flags_.max_shapes, [this](const std::string& s, int64_t n, const std::string& from) { return at_most(s, n, from); }));
    if (flags_.max_batch) TFCC_TRY_VOID(max_batch());
    if (!flags_.seq_buckets.empty()) TFCC_TRY_VOID(seq_buckets());
    if (flags_.max_tokens) TFCC_TRY_VOID(max_tokens());
    TFCC_TRY_VOID(shapes("--optShapes", flags_.opt_shapes, [this](const std::string& s, int64_t n, const std::string& from) { return typical(s, n, from); }));
    TFCC_TRY_VOID(settle());
    return std::move(out_);
  }

 private:
  Error empty_range(const std::string& symbol, const std::string& from, int64_t least, int64_t most) const {
    return {ErrorCode::shape, fmt::format("{}: {} would have to be from {} to {}", from, symbol, least, most)};
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
      return Error{ErrorCode::shape, fmt::format("{}: the model itself takes {} up to {}", from, symbol, *r.max)};
    }
    if (r.max && n >= *r.max) return {};
    r.max = n;
    out_.options[symbol].max_from = from;
    return {};
  }

  Result<void> typical(const std::string& symbol, int64_t n, const std::string& from) {
    const ir::SymbolRange& r = range(symbol);
    if (n < r.min || (r.max && n > *r.max)) return Error{ErrorCode::shape, fmt::format("{}: {} = {} lies outside its range", from, symbol, n)};
    out_.options[symbol].typical = n;
    return {};
  }

  // "input_ids:8x128,...": every dim that is a symbol of its own is passed on, a fixed one compared.
  template <class F>
  Result<void> shapes(const std::string& option, const std::string& text, F take) {
    if (text.empty()) return {};
    TFCC_TRY(NamedShapes given, parse_shapes(text, option));
    std::map<std::string, int64_t> seen;
    for (const auto& [name, shape] : given) {
      const auto& inputs = graph_.inputs();
      const auto input = std::find_if(inputs.begin(), inputs.end(), [&](ir::ValueId v) { return graph_.value(v).name == name; });
      if (input == inputs.end()) return usage_error(fmt::format("{}: the model has no input '{}'", option, name));
      const auto& dims = graph_.value(*input).type.dims;
      if (dims.size() != shape.size()) return usage_error(fmt::format("{}: '{}' has {} dims, not {}", option, name, dims.size(), shape.size()));
      for (size_t axis = 0; axis < dims.size(); ++axis) {
        const auto fixed = ir::as_int(dims[axis]);
        if (fixed && *fixed != shape[axis]) {
          return usage_error(fmt::format("{}: axis {} of '{}' is always {}, not {}", option, axis, name, *fixed, shape[axis]));
        }
        if (dims[axis]->kind != ir::ExprKind::symbol) continue;
        const std::string& symbol = dims[axis]->name;
        const auto [it, added] = seen.emplace(symbol, shape[axis]);
        if (it->second != shape[axis]) {
          return usage_error(fmt::format("{}: {} is {} for one input and {} for '{}'", option, symbol, it->second, shape[axis], name));
        }
        if (added) TFCC_TRY_VOID(take(symbol, shape[axis], fmt::format("{} {}:{}", option, name, fmt::join(shape, "x"))));
      }
    }
    return {};
  }

  Result<void> max_batch() {
    if (names_.batch.empty()) return usage_error("--max-batch: no input of the model has a batch that varies");
    return at_most(names_.batch, flags_.max_batch, fmt::format("--max-batch {}", flags_.max_batch));
  }

  Result<void> seq_buckets() {
    if (names_.length.empty()) return usage_error("--seq-buckets: no input of the model has a length that varies");
    for (const std::string& word : split(flags_.seq_buckets)) {
      if (word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos || std::stoll(word) < 1) {
        return usage_error(fmt::format("--seq-buckets takes lengths such as 64,128,512, not '{}'", word));
      }
      out_.lengths.push_back(std::stoll(word));
    }
    if (out_.lengths.empty()) return usage_error("--seq-buckets takes lengths such as 64,128,512");
    std::sort(out_.lengths.begin(), out_.lengths.end());
    out_.lengths.erase(std::unique(out_.lengths.begin(), out_.lengths.end()), out_.lengths.end());
    if (out_.lengths.size() > runtime::kMaxLengths) {
      return usage_error(fmt::format("--seq-buckets takes at most {} lengths, not {}", runtime::kMaxLengths, out_.lengths.size()));
    }
    return at_most(names_.length, out_.lengths.back(), "--seq-buckets " + flags_.seq_buckets);
  }

  // The axis that counts tokens: of ids and masks [batch, length] the second; of reals the second of [batch, length, features] and
  // the third of [batch, channels, length]. Features, channels, heads and the sides of an image are no tokens.
  static std::optional<size_t> token_axis(const ir::Type& type) {
    const auto fixed = [&](size_t axis) { return ir::as_int(type.dims[axis]).has_value(); };
    if (type.dims.size() == 2) return !is_float(type.dtype) || !fixed(1) ? std::optional<size_t>(1) : std::nullopt;
    if (type.dims.size() != 3 || !is_float(type.dtype)) return std::nullopt;
    return fixed(2) ? std::optional<size_t>(1) : fixed(1) ? std::optional<size_t>(2) : std::nullopt;
  }

  // The batch and the length of the first input that has both and not both fixed; ids and masks before reals.
  std::optional<std::pair<ir::ExprRef, ir::ExprRef>> batch_and_length() const {
    for (const bool reals : {false, true}) {
      for (ir::ValueId v : graph_.inputs()) {
        const ir::Type& type = graph_.value(v).type;
        const auto axis = is_float(type.dtype) == reals ? token_axis(type) : std::nullopt;
        if (!axis) continue;
        const ir::ExprRef batch = type.dims[0], length = type.dims[*axis];
        const auto plain = [](ir::ExprRef e) { return e->kind == ir::ExprKind::symbol || ir::as_int(e); };
        if (plain(batch) && plain(length) && !(ir::as_int(batch) && ir::as_int(length))) return std::pair(batch, length);
      }
    }
    return std::nullopt;
  }

  // Batch times length; where one of them is fixed, what is left for the other.
  Result<void> max_tokens() {
    const std::string from = fmt::format("--max-tokens {}", flags_.max_tokens);
    if (graph_.symbols.empty()) return usage_error("--max-tokens: all sizes of the model are fixed");
    const auto sizes = batch_and_length();
    if (!sizes) {
      return usage_error("--max-tokens: no input has tokens that vary: ids [batch, length], or reals [batch, length, features] or "
                         "[batch, channels, length]; bound its sizes with --max-batch or --maxShapes");
    }
    const auto [batch, length] = *sizes;
    const auto batch_size = ir::as_int(batch), length_size = ir::as_int(length);
    if (batch_size || length_size) {
      const std::string& symbol = batch_size ? length->name : batch->name;
      const int64_t other = batch_size ? *batch_size : *length_size;
      TFCC_TRY_VOID(at_most_of(symbol, flags_.max_tokens, other, from));
      out_.notes.push_back(fmt::format("{}: {} is at most {}", from, symbol, *range(symbol).max));
      return {};
    }
    const std::string product = fmt::format("{}*{}", batch->name, length->name);
    out_.notes.push_back(fmt::format("{}: {} is at most {}", from, product, flags_.max_tokens));
    if (names_.has_tokens && batch->name == names_.batch && length->name == names_.length) {
      out_.max_tokens = flags_.max_tokens;
    } else {  // no size of the file: a check of each run
      out_.check = ResolvedSizes::Product{batch->name, length->name, flags_.max_tokens, fmt::format("{} must be at most {}, for the file was compiled with {}", product, flags_.max_tokens, from)};
    }
    TFCC_TRY_VOID(at_most_of(batch->name, flags_.max_tokens, range(length->name).min, from));
    return at_most_of(length->name, flags_.max_tokens, range(batch->name).min, from);
  }

  // A size of which so many tokens leave tokens / other; a narrower range stays.
  Result<void> at_most_of(const std::string& symbol, int64_t tokens, int64_t other, const std::string& from) {
    const int64_t most = tokens / std::max<int64_t>(other, 1);
    const auto have = range(symbol).max;
    return have && *have <= most ? Result<void>() : at_most(symbol, most, from);
  }

  // Buckets above what another option allows, and sizes whose range is one value.
  Result<void> settle() {
    if (!out_.lengths.empty()) {
      const int64_t most = *range(names_.length).max;
      for (int64_t& n : out_.lengths) n = std::min(n, most);
      out_.lengths.erase(std::unique(out_.lengths.begin(), out_.lengths.end()), out_.lengths.end());
    if (out_.lengths.size() > runtime::kMaxLengths) {
      return usage_error(fmt::format("--seq-buckets takes at most {} lengths, not {}", runtime::kMaxLengths, out_.lengths.size()));
    }
    }
    for (auto it = out_.ranges.begin(); it != out_.ranges.end();) {
      const ir::SymbolRange before = graph_.pool().range(it->first);
      const bool same = before.min == it->second.min && before.max == it->second.max;
      it = same ? out_.ranges.erase(it) : std::next(it);
    }
    return {};
  }

  const SizeFlags& flags_;
  const ir::Graph& graph_;
  codegen::SizeSymbols names_;
  ResolvedSizes out_;
};

}  // namespace

void add_size_flags(CLI::App& command, SizeFlags& flags) {
  command.add_option("--seq-buckets", flags.seq_buckets, "lengths, such as 64,128,512: kernels and graphs are made for each; longer inputs are refused");
  command.add_option("--max-batch", flags.max_batch, "largest batch")->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  command.add_option("--max-tokens", flags.max_tokens, "largest batch times length")->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  command.add_option("--minShapes", flags.min_shapes, "least sizes: input_ids:1x8; equal to --maxShapes: fixed sizes");
  command.add_option("--optShapes", flags.opt_shapes, "usual sizes: memory is planned for them");
  command.add_option("--maxShapes", flags.max_shapes, "largest sizes: input_ids:32x512");
}

void ResolvedSizes::restrict(ir::Graph& graph) const {
  if (!check) return;
  const ir::ExprRef product = ir::mul(graph.pool().symbol(check->a), graph.pool().symbol(check->b));
  graph.checks.push_back({ir::le(product, graph.pool().integer(check->most)), check->message});
}

Result<ResolvedSizes> resolve_sizes(const SizeFlags& flags, const ir::Graph& graph) {
  if (!flags.any()) return ResolvedSizes{};
  return Resolver(flags, graph).run();
}

}  // namespace tfcc::tools

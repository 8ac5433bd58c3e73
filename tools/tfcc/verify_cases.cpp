// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/verify_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tfcc::tools {
namespace {

bool is_mask(const ir::Value& input) { return input.role == InputRole::mask; }

// By the name of an input.
bool is_mask(const ir::Graph& graph, const std::string& name) {
  const ir::ValueId v = graph.find_value(name);
  return v.valid() && is_mask(graph.value(v));
}

template <class F> struct ExprVisitor {
  F& f;
  void operator()(std::string_view, ir::ExprRef e) {
    if (e) f(e);
  }
  void operator()(std::string_view, const std::vector<ir::ExprRef>& list) {
    for (ir::ExprRef e : list) f(e);
  }
  void operator()(std::string_view name, const ir::OptionalExpr& e) { (*this)(name, e.expr); }
  void operator()(std::string_view name, const ir::OptionalDims& v) { (*this)(name, v.dims); }
  template <class T> void operator()(std::string_view, const T&) {}
};

// Calls f for each expression among the attributes of an op.
template <class F> void for_each_expr(const ir::Op& op, F f) {
  ir::Attrs attrs = op.attrs;
  std::visit([&](auto& a) { a.visit(ExprVisitor<F>{f}); }, attrs);
}

/// For an input that indexes a table: the number of rows of the smallest such table.
class IdLimits {
 public:
  explicit IdLimits(const ir::Graph& graph) {
    for (ir::OpId o : graph.order()) {
      for_each_expr(graph.op(o), [&](ir::ExprRef e) {
        ir::for_each_node(e, [&](ir::ExprRef n) {
          if (n->kind == ir::ExprKind::bounded)
            note(graph, graph.op(o), n->args[0], ir::as_int(n->args[1]));
        });
      });
    }
  }
  std::optional<int64_t> of(const std::string& input) const {
    const auto it = limits_.find(input);
    return it == limits_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  void note(const ir::Graph& graph, const ir::Op& op, ir::ExprRef index,
            std::optional<int64_t> rows) {
    if (!rows) return;
    ir::for_each_node(index, [&](ir::ExprRef n) {
      if (n->kind != ir::ExprKind::load || n->type != ir::Scalar::i64) return;
      const ir::ValueId v = op.operands[static_cast<size_t>(n->value)];
      if (graph.value(v).def.valid()) return;  // computed: evaluating tells whether the ids fit
      auto [it, fresh] = limits_.emplace(graph.value(v).name, *rows);
      if (!fresh) it->second = std::min(it->second, *rows);
    });
  }
  std::map<std::string, int64_t> limits_;
};

struct Size {
  int64_t batch, length;
  MaskKind mask;
};

const char* to_string(MaskKind kind) {
  constexpr const char* kNames[] = {"full", "right-padded", "left-padded", "scattered"};
  return kNames[static_cast<int>(kind)];
}

class CaseMaker {
 public:
  CaseMaker(const ir::Graph& graph, const CaseOptions& options, bool set_is_padding)
      : graph_(graph),
        options_(options),
        limits_(graph),
        set_is_padding_(set_is_padding),
        rng_(options.seed) {}

  Result<VerifyCase> make(const Size& size) {
    TFCC_TRY_VOID(bind(size));
    VerifyCase out;
    int64_t bytes = 0;
    for (const auto& [name, value] : symbols_) out.title += fmt::format("{} {}, ", name, value);
    for (ir::ValueId v : graph_.inputs()) {
      const ir::Value& value = graph_.value(v);
      const auto given = std::find_if(options_.given.begin(), options_.given.end(),
                                      [&](const auto& g) { return g.first == value.name; });
      if (given != options_.given.end()) {
        out.inputs[value.name] = to_host_tensor(given->second);
      } else {
        const std::vector<int64_t> dims = dims_of(value);
        TFCC_TRY_VOID(take_memory(value.name, DType::f64, dims, bytes));  // held as i64 or f64
        out.inputs[value.name] = fill(value, size.mask);
      }
    }
    out.title += all_masks_given() ? "given" : to_string(size.mask);
    out.defined = options_.padding ? defined_by_ids(out.inputs)
                                   : Defined(masks_of(graph_, out.inputs), set_is_padding_);
    return out;
  }

  /// Lowers the range of ids until none is flagged: tables may be reached through computed indices.
  Result<VerifyCase> make_valid(const Size& size) {
    for (cap_ = INT64_MAX;; cap_ = std::min<int64_t>(cap_, 1 << 16) / 4) {
      TFCC_TRY(VerifyCase made, make(size));
      auto expected = ir::eval(graph_, made.inputs);
      if (expected) {
        made.expected = *std::move(expected);
        return made;
      }
      const auto& flags = graph_.flags;
      const bool flagged =
          std::find(flags.begin(), flags.end(), expected.error().message) != flags.end();
      if (!flagged || cap_ <= 2) return expected.error();
    }
  }

 private:
  // Says which tokens are padding.
  bool says_padding(const ir::Value& input) const {
    return is_mask(input) || (options_.padding && options_.padding->input == input.name);
  }
  Defined defined_by_ids(const HostTensors& inputs) const {
    ir::HostTensor mask = inputs.at(options_.padding->input);
    for (int64_t& x : mask.ints) x = x != options_.padding->id;
    return Defined({{options_.padding->input, mask}});
  }

  bool all_masks_given() const {
    return std::all_of(graph_.inputs().begin(), graph_.inputs().end(), [&](ir::ValueId v) {
      const std::string& name = graph_.value(v).name;
      return !says_padding(graph_.value(v)) ||
             std::any_of(options_.given.begin(), options_.given.end(),
                         [&](const auto& g) { return g.first == name; });
    });
  }

  Result<void> bind(const Size& size) {
    symbols_.clear();
    for (const ir::SizeSymbol& s : graph_.symbols) {
      if (!s.read()) continue;
      const ir::SymbolRange range = graph_.pool().range(s.name);
      int64_t n = std::max(range.min, s.role == SizeRole::batch ? size.batch : size.length);
      symbols_[s.name] = range.max ? std::min(n, *range.max) : n;
    }
    WantedSizes wanted = options_.wanted;
    for (const auto& [name, array] : options_.given) wanted.arrays[name] = array.shape;
    std::vector<InputDims> inputs;
    for (ir::ValueId v : graph_.inputs()) {
      inputs.emplace_back(graph_.value(v).name, std::vector<WantedDim>());
      for (ir::ExprRef d : graph_.value(v).type.dims)
        inputs.back().second.push_back(WantedDim::of(ir::print(d)));
    }
    const auto usual = [&](const std::string& name) -> Usual {
      const auto n = symbols_.find(name);
      const auto symbol = std::ranges::find(graph_.symbols, name, &ir::SizeSymbol::name);
      return {n == symbols_.end() ? size.length : n->second,
              symbol == graph_.symbols.end() ? SizeRole::none : symbol->role};
    };
    TFCC_TRY(const SizesByName sizes, solve_sizes(inputs, wanted, usual));
    for (auto& [name, n] : symbols_) {
      if (const auto it = sizes.find(name); it != sizes.end()) n = it->second;
    }
    return {};
  }

  std::vector<int64_t> dims_of(const ir::Value& value) const {
    std::vector<int64_t> dims;
    for (ir::ExprRef d : value.type.dims) {
      dims.push_back(
          ir::eval_size(d, [&](std::string_view name) { return symbols_.at(std::string(name)); }));
    }
    return dims;
  }

  ir::HostTensor fill(const ir::Value& value, MaskKind kind) {
    ir::HostTensor t;
    t.dtype = value.type.dtype;
    t.dims = dims_of(value);
    const auto count = static_cast<size_t>(t.element_count());
    if (is_float(t.dtype)) {
      std::normal_distribution<double> normal;
      for (size_t i = 0; i < count; ++i) {
        // As the type holds it: a real that is rounded when it is handed over is another input.
        std::byte stored[sizeof(double)];
        ir::write_real(t.dtype, stored, 0, is_mask(value) ? 1 : normal(rng_));
        t.reals.push_back(ir::read_real(t.dtype, stored, 0));
      }
    } else if (is_mask(value)) {
      fill_mask(t, kind);
    } else {
      const bool type = value.role == InputRole::types;
      const int64_t limit = std::min(limits_.of(value.name).value_or(type ? 2 : 100), cap_);
      for (size_t i = 0; i < count; ++i)
        t.ints.push_back(
            static_cast<int64_t>(rng_() % static_cast<uint64_t>(std::max<int64_t>(limit, 1))));
      if (says_padding(value)) pad(t, kind, limit);
    }
    return t;
  }

  // Ids become the one that is padding where a mask would be 0, and others elsewhere.
  void pad(ir::HostTensor& ids, MaskKind kind, int64_t limit) {
    ir::HostTensor mask{ids.dtype, ids.dims, {}, {}};
    fill_mask(mask, kind);
    const int64_t id = options_.padding->id;
    for (size_t i = 0; i < ids.ints.size(); ++i) {
      int64_t& x = ids.ints[i];
      if (mask.ints[i] == 0) x = id;
      else if (x == id) x = id + 1 < limit ? id + 1 : 0;
    }
  }

  // Rows of the last axis, each with at least one position. Every mask input of a case gets the
  // same rows.
  void fill_mask(ir::HostTensor& t, MaskKind kind) {
    const int64_t length = t.dims.empty() ? 1 : t.dims.back();
    const int64_t rows = length > 0 ? t.element_count() / length : 0;
    std::mt19937_64 rng(options_.seed + 17);
    for (int64_t r = 0; r < rows; ++r) {
      // The first row is whole, so that every case has full length.
      const int64_t tokens = r == 0 || kind == MaskKind::full
                                 ? length
                                 : 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(length));
      const int64_t always = static_cast<int64_t>(rng() % static_cast<uint64_t>(length));
      for (int64_t i = 0; i < length; ++i) {
        bool on = true;
        if (kind == MaskKind::right_padded) on = i < tokens;
        if (kind == MaskKind::left_padded) on = i >= length - tokens;
        if (kind == MaskKind::scattered) on = i == always || rng() % 3 != 0;
        t.ints.push_back(on != set_is_padding_);
      }
    }
  }

  const ir::Graph& graph_;
  const CaseOptions& options_;
  IdLimits limits_;
  bool set_is_padding_;
  std::mt19937_64 rng_;
  std::map<std::string, int64_t> symbols_;
  int64_t cap_ = INT64_MAX;
};

// Elements of `tensor` at this place of this axis.
template <class F> void for_each_at(ir::HostTensor& tensor, size_t axis, int64_t place, F f) {
  int64_t inner = 1;
  for (size_t k = axis + 1; k < tensor.dims.size(); ++k) inner *= tensor.dims[k];
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    if (i / inner % tensor.dims[axis] == place) f(static_cast<size_t>(i));
  }
}

// Other numbers at one token of every input [B,S,...] that is no mask. False if there is none.
bool change_token(const ir::Graph& graph, HostTensors& inputs, int64_t length, int64_t place) {
  bool changed = false;
  for (auto& [name, t] : inputs) {
    if (is_mask(graph, name) || t.dims.size() < 2 || t.dims[1] != length) continue;
    changed = true;
    for_each_at(t, 1, place, [&](size_t i) {
      if (is_float(t.dtype)) t.reals[i] += 1;
      else t.ints[i] += t.ints[i] > 0 ? -1 : 1;
    });
  }
  return changed;
}

bool same(const ir::HostTensor& a, const ir::HostTensor& b, int64_t length, int64_t but) {
  int64_t inner = 1;
  for (size_t k = 2; k < a.dims.size(); ++k) inner *= a.dims[k];
  const bool tokens = a.dims.size() >= 2 && a.dims[1] == length;
  for (int64_t i = 0; i < a.element_count(); ++i) {
    if (tokens && i / inner % length == but) continue;
    const auto at = static_cast<size_t>(i);
    if (is_float(a.dtype) ? std::abs(a.reals[at] - b.reals[at]) > 1e-9 * std::abs(a.reals[at])
                          : a.ints[at] != b.ints[at])
      return false;
  }
  return true;
}

// Whether no output depends on the token of this place if its mask has this value while that of the
// others has not.
bool hides(const ir::Graph& graph, HostTensors inputs, int64_t value, int64_t length,
           int64_t place) {
  for (auto& [name, t] : inputs) {
    if (!is_mask(graph, name) || is_float(t.dtype) || t.dims.empty() || t.dims.back() != length)
      continue;
    t.ints.assign(t.ints.size(), 1 - value);
    for_each_at(t, t.dims.size() - 1, place, [&](size_t i) { t.ints[i] = value; });
  }
  HostTensors others = inputs;
  if (!change_token(graph, others, length, place)) return false;
  const auto a = ir::eval(graph, inputs), b = ir::eval(graph, others);
  if (!a || !b) return false;
  return std::all_of(a->begin(), a->end(), [&](const auto& output) {
    return same(output.second, b->at(output.first), length, place);
  });
}

}  // namespace

bool set_is_padding(const ir::Graph& graph) {
  const CaseOptions none;
  auto made = CaseMaker(graph, none, false).make_valid({1, 5, MaskKind::full});
  if (!made) return false;
  int64_t length = 0;  // 5, unless the graph has one of its own
  for (const auto& [name, t] : made->inputs) {
    if (is_mask(graph, name) && !is_float(t.dtype) && !t.dims.empty()) length = t.dims.back();
  }
  if (length < 2) return false;
  // At each place: a graph that counts its tokens by the mask hides those behind the count.
  const auto padding_at = [&](int64_t place) {
    return !hides(graph, made->inputs, 0, length, place) &&
           hides(graph, made->inputs, 1, length, place);
  };
  return padding_at(length / 2) && padding_at(length - 1);
}

Result<std::vector<VerifyCase>> make_cases(const ir::Graph& graph, const CaseOptions& options) {
  // Odd sizes and ones, so that the edges of tiles are met; small, because the reference is slow.
  std::vector<Size> sizes = {{1, 13, MaskKind::full},       {4, 17, MaskKind::right_padded},
                             {3, 9, MaskKind::left_padded}, {2, 16, MaskKind::scattered},
                             {2, 1, MaskKind::full},        {1, 33, MaskKind::scattered}};
  if (!options.given.empty()) {
    sizes = {{2, 16, MaskKind::full}};
  } else if (!options.wanted.empty()) {
    sizes = {{2, 16, MaskKind::full},
             {2, 16, MaskKind::right_padded},
             {2, 16, MaskKind::left_padded},
             {2, 16, MaskKind::scattered}};
  }
  const bool masked = std::any_of(graph.inputs().begin(), graph.inputs().end(),
                                  [&](ir::ValueId v) { return is_mask(graph.value(v)); });
  CaseMaker maker(graph, options, masked && set_is_padding(graph));
  std::vector<VerifyCase> out;
  // A model may take less than that, as a past and new tokens together within its positions.
  const auto is_of_sizes = [&](const Error& e) {
    return std::ranges::count(graph.checks, e.message, &ir::SizeCheck::message) +
               std::ranges::count(graph.flags, e.message) >
           0;
  };
  for (Size& s : sizes) {
    if (!masked && !options.padding) s.mask = MaskKind::full;
    auto one = maker.make_valid(s);
    while (!one && is_of_sizes(one.error()) && s.length > 1 && options.wanted.empty()) {
      s.length /= 2;
      one = maker.make_valid(s);
    }
    TFCC_TRY(VerifyCase made, std::move(one));
    const bool seen = std::any_of(out.begin(), out.end(),
                                  [&](const VerifyCase& c) { return c.title == made.title; });
    if (!seen) out.push_back(std::move(made));
  }
  return out;
}

HostTensors masks_of(const ir::Graph& graph, const HostTensors& inputs) {
  HostTensors masks;
  for (const auto& [name, tensor] : inputs) {
    if (is_mask(graph, name)) masks.emplace(name, tensor);
  }
  return masks;
}

std::optional<RealRows> Defined::first_tokens() const {
  if (dims_.size() != 2) return std::nullopt;
  RealRows real;
  for (int64_t i = 0; i < static_cast<int64_t>(token_.size()); ++i) {
    const bool first = i % dims_[1] == 0, is = token_[static_cast<size_t>(i)];
    if (is && !first && !token_[static_cast<size_t>(i) - 1]) return std::nullopt;
    if (!is && first) return std::nullopt;
    real.add_place(is, (i + 1) % dims_[1] == 0);
  }
  return real;
}

Defined::Defined(const HostTensors& masks, bool set_is_padding) {
  for (const auto& [name, tensor] : masks) {
    if (is_float(tensor.dtype) || tensor.dims.size() != 2) continue;
    dims_ = tensor.dims;
    row_has_token_.assign(static_cast<size_t>(dims_[0]), false);
    for (size_t i = 0; i < tensor.ints.size(); ++i) {
      token_.push_back((tensor.ints[i] != 0) != set_is_padding);
      if (token_.back()) row_has_token_[i / static_cast<size_t>(dims_[1])] = true;
    }
    return;
  }
}

bool Defined::at(const std::vector<int64_t>& dims, int64_t flat) const {
  if (dims_.empty() || dims.empty() || dims[0] != dims_[0]) return true;
  int64_t inner = 1;
  for (size_t k = 1; k < dims.size(); ++k) inner *= dims[k];
  const int64_t row = flat / inner;
  if (dims.size() < 2 || dims[1] != dims_[1]) return row_has_token_[static_cast<size_t>(row)];
  return token_[static_cast<size_t>(flat / (inner / dims[1]))];
}

ir::HostTensor to_host_tensor(const ArrayView& array) {
  ir::HostTensor t;
  t.dtype = array.dtype;
  t.dims = array.shape;
  const auto* data = static_cast<const std::byte*>(array.data);
  for (size_t i = 0; i < static_cast<size_t>(t.element_count()); ++i) {
    if (is_float(t.dtype)) t.reals.push_back(ir::read_real(t.dtype, data, i));
    else t.ints.push_back(ir::read_int(t.dtype, data, i));
  }
  return t;
}

Array to_array(const ir::HostTensor& tensor) {
  Array a = make_array(tensor.dtype, tensor.dims);
  for (size_t i = 0; i < tensor.reals.size(); ++i)
    ir::write_real(a.dtype, a.bytes.data(), i, tensor.reals[i]);
  for (size_t i = 0; i < tensor.ints.size(); ++i)
    ir::write_int(a.dtype, a.bytes.data(), i, tensor.ints[i]);
  return a;
}

}  // namespace tfcc::tools

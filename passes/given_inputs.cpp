// SPDX-License-Identifier: Apache-2.0
#include "passes/given_inputs.h"

#include <fmt/format.h>

#include <algorithm>

namespace tfcc::passes {

/// Computed from constants alone, as weights that are kept in few bits are.
bool GivenInputs::is_fixed(ValueId v) const {
  const auto known = fixed_.find(v.value);
  if (known != fixed_.end()) return known->second;
  const ir::Op* op = g_.def(v);
  const bool no_size = std::all_of(g_.value(v).type.dims.begin(), g_.value(v).type.dims.end(),
                                   [](ExprRef d) { return ir::as_int(d).has_value(); });
  const bool fixed =
      op && no_size && (op->kind == OpKind::constant || !op->operands.empty()) &&
      std::all_of(op->operands.begin(), op->operands.end(), [&](ValueId x) { return is_fixed(x); });
  return fixed_[v.value] = fixed;
}

GivenInputs::Row GivenInputs::row_of(bool wanted) const {
  Row row;
  row.own = pool_.index(1, wanted ? rows_ : tokens_);
  row.token =
      wanted ? ir::bounded(ir::load_of(g_, wanted_, {row.own}), tokens_, wanted_flag_) : row.own;
  row.place = ir::sub(ir::load_of(g_, positions_, {row.token}), past_);
  return row;
}

// A free expression with the inputs as a generator gives them. `row`, if given, stands for s. What
// it does not know stays.
ExprRef GivenInputs::given(ExprRef e, const Row* row) {
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    if (n == total_) return ir::add(past_, length_);
    if (pasts_.count(n)) return past_;
    if (capacities_.count(n)) return ir::add(ir::add(past_, length_), spare_);
    if (n == s_ && row) return row->place;
    return n->kind == ExprKind::load ? given_load(n, row) : nullptr;
  });
}

ExprRef GivenInputs::given_load(ExprRef n, const Row* row) {
  const ValueId v = *loaded(n);
  if (is_fixed(v)) return nullptr;
  if (v == in_.mask) return ir::convert(pool_.integer(1), n->type);
  if (v == in_.types) return ir::convert(pool_.integer(0), n->type);
  if (v == in_.positions) return ir::convert(ir::add(past_, n->args.back()), n->type);
  if (const auto it = counts_.find(v.value); it != counts_.end()) {
    const int64_t less = it->second == Count::last ? 1 : 0;
    ExprRef all = ir::sub(ir::add(past_, length_), pool_.integer(less));
    return ir::convert(it->second == Count::past ? past_ : all, n->type);
  }
  if (row && is_own_row(n, *row)) {
    if (v == in_.ids) return ir::load_of(g_, new_ids_, {pool_.integer(0), row->token});
    if (const auto it = lifted_.find(v.value); it != lifted_.end()) {
      Indices at = n->args;
      at[0] = pool_.integer(0);
      at[1] = is_wanted(v) ? row->own : row->token;
      return ir::load_of(g_, it->second, std::move(at));
    }
  }
  return of_sizes(v, n, row);
}

bool GivenInputs::is_own_row(ExprRef load, const Row& row) const {
  const auto& at = load->args;
  return at.size() >= 2 &&
         (at[0] == b_ ||
          (ir::is_int(at[0], 0) && ir::is_int(g_.value(*loaded(load)).type.dims[0], 1))) &&
         at[1] == row.place;
}

// The element of a value that follows from sizes and positions alone: masks, lengths counted from
// them, position ids.
ExprRef GivenInputs::of_sizes(ValueId v, ExprRef load, const Row* row) {
  const ir::Op* op = g_.def(v);
  if (!op) return nullptr;
  if (deep_ > 64) return nullptr;  // cost: no chain of operations on sizes is as long
  const auto memo = of_sizes_.find({load, row ? row->own : nullptr});
  if (memo != of_sizes_.end()) return memo->second;
  ++deep_;
  ExprRef e = nullptr;
  if (op->kind == OpKind::pointwise) e = given(ir::element_of(g_, v, load->args), row);
  if (op->kind == OpKind::reduce) e = reduced(g_.value(v).def, load->args, row);
  if (op->kind == OpKind::cumsum) e = summed(*op, load->args, row);
  --deep_;
  if (e && unknown(e).valid()) e = nullptr;
  return of_sizes_[{load, row ? row->own : nullptr}] = e;
}

// A reduction over what is the same everywhere.
ExprRef GivenInputs::reduced(OpId o, const Indices& at, const Row* row) {
  const auto& attrs = g_.op(o).as<ir::ReduceAttrs>();
  ExprRef each = given(ir::free_expr(g_, o, attrs.body, at), row);
  for (size_t k = 0; k < attrs.extents.size(); ++k) {
    if (ir::uses_index(each, static_cast<int64_t>(at.size() + k))) return nullptr;
  }
  if (attrs.kind == ir::ReduceKind::prod ||
      (attrs.kind == ir::ReduceKind::sum && each->type != Scalar::i64))
    return nullptr;
  if (attrs.kind == ir::ReduceKind::sum) {
    for (ExprRef n : attrs.extents) each = ir::mul(each, given(n, row));
  }
  return each;
}

// cumsum of c: c (k + 1), c k without the element itself, c (n - k) from the end.
ExprRef GivenInputs::summed(const ir::Op& op, const Indices& at, const Row* row) {
  const auto& attrs = op.as<ir::CumsumAttrs>();
  ExprRef each = given(ir::load_of(g_, op.operands[0], at), row);
  if (!ir::as_int(each)) return nullptr;
  const auto axis = static_cast<size_t>(attrs.axis);
  ExprRef n = given(g_.value(op.operands[0]).type.dims[axis], row);
  return ir::mul(each, ir::summed_count(attrs, at[axis], n));
}

// A value that a lifted expression may not read; invalid if there is none.
ValueId GivenInputs::unknown(ExprRef e) const {
  for (ValueId v : ir::loads_of(e)) {
    if (!is_made_.count(v.value) && !is_fixed(v)) return v;
  }
  return {};
}

// Why an expression does not speak of absolute positions alone; empty if it does.
std::string GivenInputs::left_over(ExprRef e) const {
  if (const ValueId v = unknown(e); v.valid())
    return fmt::format("it reads '{}' at other tokens, or in a way that is not known",
                       name_before(v));
  std::string found;
  ir::for_each_node(e, [&](ExprRef n) {
    const auto is_it = [&](const ir::SizeSymbol& s) { return s.name == n->name; };
    if (n->kind == ExprKind::symbol &&
        (n == past_ || n == spare_ || std::ranges::any_of(g_.symbols, is_it))) {
      found = fmt::format("'{}' is left in it: it is no function of absolute positions", n->name);
    }
    if (n == b_ && n->kind == ExprKind::index)
      found = "it differs by the place of a sequence in the batch";
  });
  return found;
}

// Loads at positions that the graph had proved, by its sizes, to be inside.
ExprRef GivenInputs::guarded(ExprRef e) {
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::load) return nullptr;
    const auto& dims = g_.value(*loaded(n)).type.dims;
    Indices at = n->args;
    for (size_t k = 0; k < at.size(); ++k) {
      if (!ir::prove_in(at[k], dims[k])) at[k] = ir::bounded(at[k], dims[k], flag_);
    }
    return at == n->args ? nullptr : ir::load_of(g_, *loaded(n), std::move(at));
  });
}

// As the graph before had it.
std::string GivenInputs::name_before(ValueId v) const {
  const std::string& name = g_.value(v).name;
  return !is_made_.count(v.value) && name.ends_with(kBefore)
             ? name.substr(0, name.size() - kBefore.size())
             : name;
}

}  // namespace tfcc::passes

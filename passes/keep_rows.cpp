// SPDX-License-Identifier: Apache-2.0
#include "passes/keep_rows.h"
#include "ir/matmul.h"
#include "ir/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tfcc::passes {
namespace {

constexpr size_t kLongestChain = 8;  // of views
constexpr size_t kLargestRank = 5;   // of the tensor: all orders of its leading axes are tried

using Dims = std::vector<ExprRef>;

// v[i.., c] = x[j.., c], where j are i in a tensor whose leading axes are those of x in this order.
// x has dims `dims`: its own, or with the last axis cut into rows as long as those of v.
struct Rows {
  ValueId x;
  Dims dims;
  std::vector<size_t> order;  // order[k]: the axis of x that is the k-th
};

Dims ordered(const Dims& dims, const std::vector<size_t>& order) {
  Dims out;
  for (size_t axis : order) out.push_back(dims[axis]);
  return out;
}

// Indices into a tensor with the leading dims of x, of the row of v (with dims `to`) at `own`.
Indices row_of_x(const Graph& g, const Rows& rows, const Indices& own, const Dims& to) {
  const Indices in_order =
      ir::reshape_indices(g.pool(), {own.begin(), own.end() - 1}, {to.begin(), to.end() - 1},
                          ordered(rows.dims, rows.order));
  Indices at(rows.dims.size(), own.back());
  for (size_t k = 0; k < in_order.size(); ++k) at[rows.order[k]] = in_order[k];
  return at;
}

// dims with the last of them cut into rows of `width`; as they are where it is as long.
std::optional<Dims> cut_rows(Dims dims, ExprRef width) {
  if (dims.back() == width) return dims;
  if (const auto parts = ir::exact_div(dims.back(), width)) {
    dims.back() = *parts;
    dims.push_back(width);
    return dims;
  }
  return std::nullopt;
}

// Whether `to`, which has more axes than `from`, has those and some of one row beside them.
bool adds_unit_axes(const Dims& from, const Dims& to) {
  const auto without = [](Dims dims) {
    std::erase_if(dims, [](ExprRef d) { return ir::is_int(d, 1); });
    return dims;
  };
  return without(from) == without(to);
}

// The rows that `e`, a load of x at the place of v's row `own`, lists or exchanges; nothing if x
// has them as v does.
std::optional<Rows> match_rows(const Graph& g, ExprRef e, const Indices& own, const ir::Type& to) {
  const ValueId x = *loaded(e);
  const ir::Type& from = g.value(x).type;
  if (std::min(from.rank(), to.rank()) < 2) return std::nullopt;  // cost: no such rows
  if (from.dtype != to.dtype) return std::nullopt;
  const auto dims = cut_rows(from.dims, to.dims.back());
  if (!dims || dims->size() > kLargestRank) return std::nullopt;  // cost: no such rows
  if (dims->size() < to.rank() && (from.rank() < 3 || !adds_unit_axes(*dims, to.dims)))
    return std::nullopt;
  if (ir::element_count(g.pool(), from.dims) != ir::element_count(g.pool(), to.dims))
    return std::nullopt;
  Rows rows{x, *dims, std::vector<size_t>(dims->size() - 1)};
  std::iota(rows.order.begin(), rows.order.end(), 0);
  do {
    const bool same = dims->size() == to.rank() && std::ranges::is_sorted(rows.order);
    Indices at = row_of_x(g, rows, own, to.dims);
    if (dims->size() > from.rank()) at = ir::reshape_indices(g.pool(), at, *dims, from.dims);
    if (at != e->args) continue;
    return same ? std::nullopt : std::optional(rows);
  } while (std::ranges::next_permutation(rows.order).found);
  return std::nullopt;
}

bool is_cut(const Graph& g, const Rows& rows) { return rows.dims != g.value(rows.x).type.dims; }

// x with the rows' dims, for op o.
ValueId as_rows(Graph& g, const Rows& rows, const ir::Op& o) {
  if (!is_cut(g, rows)) return rows.x;
  const ir::Type from = g.value(rows.x).type, to{from.dtype, rows.dims};
  const std::string name = g.value(rows.x).name;
  const Indices own = ir::indices_of(g.pool(), to.dims);
  ir::Captured c =
      ir::capture(ir::load_of(g, rows.x, ir::reshape_indices(g.pool(), own, to.dims, from.dims)));
  return g.add_pointwise(c.operands, c.body, to, name, o.origin);
}

// Through a chain of views, as far as it goes.
std::optional<Rows> rows_of(const Graph& g, ValueId v) {
  const Indices own = ir::indices_of(g, v);
  ExprRef e = ir::load_of(g, v, own);
  std::optional<Rows> found;
  for (size_t step = 0; e->kind == ExprKind::load && step < kLongestChain; ++step) {
    const ValueId x = *loaded(e);
    if (x != v) {
      const auto rows = match_rows(g, e, own, g.value(v).type);
      if (rows && !(found && is_cut(g, *rows))) found = rows;
    }
    const ir::Op* op = g.def(x);
    if (!op || op->kind != OpKind::pointwise) break;
    e = ir::element_of(g, x, e->args);
  }
  return found;
}

// Every use of v becomes a view of `wide`, which has the rows of v as x has them.
void view_instead(Graph& g, ValueId v, ValueId wide, const Rows& rows) {
  const ir::Type type = g.value(v).type;
  const std::string name = g.value(v).name, origin = g.op(g.value(v).def).origin;
  const Indices at = row_of_x(g, rows, ir::indices_of(g, v), type.dims);
  ir::Captured c = ir::capture(ir::load_of(g, wide, at));
  g.replace_uses(v, g.add_pointwise(c.operands, c.body, type, name, origin));
}

ir::Type wide_type(const Graph& g, ValueId v, const Rows& rows) {
  ir::Type type{g.value(v).type.dtype, rows.dims};
  type.dims.back() = g.value(v).type.dims.back();
  return type;
}

bool is_row_op(const Graph& g, const ir::Op& op) {
  switch (op.kind) {
    case OpKind::norm: return op.results.size() == 1;
    case OpKind::matmul:
      return !op.as<ir::MatmulAttrs>().trans_a && ir::second_factor(g, op).rank() == 2 &&
             ir::has_plain_epilogue(g, op);
    default: return false;
  }
}

// An op on each row of a value.
bool keep_in_row_op(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const auto x = op.kind == OpKind::norm ? ir::normed_value(g, o) : std::optional(op.operands[0]);
  const auto rows = x ? rows_of(g, *x) : std::nullopt;
  if (!rows) return false;
  if (op.kind == OpKind::matmul && is_cut(g, *rows)) return false;
  const ValueId v = op.results[0], of = as_rows(g, *rows, op);
  const ir::Type type = wide_type(g, v, *rows);
  if (op.kind == OpKind::matmul) {
    ExprRef epilogue = ir::bias_epilogue(g, type, ir::bias_of(g, op));
    view_instead(g, v,
                 ir::add_matmul(g, of, op.operands[1], ir::free_attrs(g, o), epilogue, type,
                                g.value(v).name, op.origin),
                 *rows);
  } else {
    view_instead(g, v, ir::add_norm(g, ir::norm_of(op), of, type, g.value(v).name, op.origin),
                 *rows);
  }
  return true;
}

bool same_leading(const ir::Type& a, const ir::Type& b) {
  return std::equal(a.dims.begin(), a.dims.end() - 1, b.dims.begin(), b.dims.end() - 1);
}

// A norm that is still in pieces needs its argument in one form: what a reduction reads stays.
bool is_reduced(const Graph& g, ValueId v) {
  return std::ranges::any_of(g.value(v).users,
                             [&](OpId u) { return g.op(u).kind == OpKind::reduce; });
}

// Whether all that reads v, whose rows x has as `rows` says, finds them there by indices alone: so
// the view behind v goes. It would stay as a copy where v is an output.
bool is_undone(const Graph& g, ValueId v, const Rows& rows) {
  if (g.is_output(v)) return false;
  const Dims& dims = g.value(v).type.dims;
  return std::ranges::all_of(g.value(v).users, [&](OpId u) {
    ir::Op op = g.op(u);
    if (op.kind == OpKind::matmul) return is_row_op(g, op) && op.operands[1] != v;
    bool found = false, all = true;
    for (const ExprRef* body : ir::expressions_of(op)) {
      ir::for_each_node(ir::free_expr(g, u, *body, {}), [&](ExprRef n) {
        if (loaded(n) != v) return;
        found = true;
        all &= std::ranges::all_of(row_of_x(g, rows, n->args, dims), [](ExprRef i) {
          return i->kind == ExprKind::index || ir::as_int(i);
        });
      });
    }
    return found && all;
  });
}

// An elementwise op of such views, all of one kind, read at its own place, and of what depends on
// the last axis alone.
bool keep_in_elementwise(Graph& g, OpId o) {
  const ValueId v = g.result(o);
  const ir::Type type = g.value(v).type;
  if (type.rank() < 2) return false;  // cost: no view of rows has such a type
  const Indices own = ir::indices_of(g, v);
  ExprRef body = ir::element_of(g, v, own);
  if (body->kind == ExprKind::load) return false;  // a view is moved by what reads it
  if (is_reduced(g, v)) return false;
  std::vector<std::pair<ExprRef, Rows>> read;  // what stands for a load in `rest`, and its rows
  bool ok = true, views = true;
  ExprRef rest = ir::rewrite(body, [&](ExprRef n) -> ExprRef {
    const auto x = loaded(n);
    if (!x) return nullptr;
    const ir::Type& from = g.value(*x).type;
    const bool here = n->args == own;
    const auto rows = here ? rows_of(g, *x) : match_rows(g, n, own, {from.dtype, type.dims});
    if (!here && !rows) return nullptr;  // what is left must not depend on rows
    views &= here;
    ok = ok && rows && rows->dims.size() >= type.rank() && !is_cut(g, *rows) &&
         !(here && is_reduced(g, *x)) && (!here || same_leading(from, type));
    if (!ok) return nullptr;
    if (!read.empty()) {
      const Rows& first = read[0].second;
      ok = first.order == rows->order && same_leading(g.value(first.x).type, g.value(rows->x).type);
    }
    // One value may be read as a view and as what a view is of.
    const std::string name = fmt::format("{}.{}", g.value(*x).name, read.size());
    read.push_back({g.pool().param(name, n->type), *rows});
    return read.back().first;
  });
  if (!ok || read.empty()) return false;
  if (!views && !is_undone(g, v, read[0].second)) return false;
  const int64_t last = static_cast<int64_t>(type.rank()) - 1;
  for (int64_t k = 0; k < last; ++k) {
    if (ir::uses_index(rest, k)) return false;
  }
  const ir::Type wide = wide_type(g, v, read[0].second);
  const Indices at = ir::indices_of(g.pool(), wide.dims);
  Indices by(last + 1, nullptr);
  by[last] = at.back();
  ExprRef element = ir::rewrite(ir::substitute_indices(rest, by), [&](ExprRef n) -> ExprRef {
    const auto it = std::ranges::find(read, n, &std::pair<ExprRef, Rows>::first);
    return it == read.end() ? nullptr : ir::load_of(g, it->second.x, at);
  });
  ir::Captured c = ir::capture(element);
  view_instead(g, v, g.add_pointwise(c.operands, c.body, wide, g.value(v).name, g.op(o).origin),
               read[0].second);
  return true;
}

}  // namespace

bool keep_axes_of_rows(Graph& g, OpId o) {
  const ir::Op& op = g.op(o);
  if (op.kind == OpKind::pointwise) return keep_in_elementwise(g, o);
  return is_row_op(g, op) && keep_in_row_op(g, o);
}

}  // namespace tfcc::passes

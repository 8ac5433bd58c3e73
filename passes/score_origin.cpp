// SPDX-License-Identifier: Apache-2.0
#include "passes/score_origin.h"

#include <algorithm>
#include <cmath>

#include "ir/ir.h"

namespace tfcc::passes {
namespace {

bool uses(ExprRef e, ExprRef what) {
  bool found = false;
  ir::for_each_node(e, [&](ExprRef n) { found |= n == what; });
  return found;
}

// e with a size replaced, but for what indices range over.
ExprRef replaced(ExprRef e, ExprRef size, ExprRef by) {
  return ir::rewrite(e, [&](ExprRef n) {
    return n->kind == ExprKind::index ? n : n == size ? by : nullptr;
  });
}

// Does a table rise by one number along the axis, in each line?
bool is_affine_along(const ir::Constant& c, size_t axis) {
  constexpr double kApart = 1e-6;        // of the largest
  const DType dtype = c.result_dtype();  // of reals, as a summand of a score is
  const auto bytes = ir::read_constant(c);
  if (!bytes) return false;  // cost: a file that cannot be read is an error later
  const std::vector<int64_t> dims = c.result_dims();
  int64_t inner = 1;
  for (size_t k = axis + 1; k < dims.size(); ++k) inner *= dims[k];
  const int64_t n = dims[axis], all = c.element_count();
  const auto at = [&](int64_t i) {
    return ir::read_real(dtype, bytes->span().data(), static_cast<size_t>(i));
  };
  double largest = 0, apart = 0;
  bool finite = true;
  for (int64_t i = 0; i < all; ++i) {
    const int64_t m = i / inner % n, first = i - m * inner, last = first + (n - 1) * inner;
    const double step = n > 1 ? (at(last) - at(first)) / static_cast<double>(n - 1) : 0;
    finite &= std::isfinite(at(i));  // a maximum does not see a NaN
    largest = std::max(largest, std::fabs(at(i)));
    apart = std::max(apart, std::fabs(at(i) - (at(first) + step * static_cast<double>(m))));
  }
  ir::let_go(c);
  return finite && apart <= kApart * largest;
}

class Counting {
 public:
  Counting(const Graph& g, ExprRef j, ExprRef length) : g_(g), j_(j), length_(length) {}

  // Is e a number for each query plus a multiple of j, which is the same for all lengths?
  bool is_affine(ExprRef e) const {
    const auto& a = e->args;
    if (has_product(e)) return false;
    if (!uses(e, j_)) return true;
    switch (e->kind) {
      case ExprKind::fadd:
      case ExprKind::fsub: return is_affine(a[0]) && is_affine(a[1]);
      case ExprKind::fneg: return is_affine(a[0]);
      case ExprKind::fmul:
        return (is_slope(a[0]) && is_affine(a[1])) || (is_slope(a[1]) && is_affine(a[0]));
      case ExprKind::i2f: return is_shifted(a[0]) || !uses(ir::add(a[0], j_), j_);
      case ExprKind::load: return is_affine_load(e);
      default: return false;
    }
  }

 private:
  // The product of query and key, which is another number for each key.
  static bool has_product(ExprRef e) {
    bool found = false;
    ir::for_each_node(e, [&](ExprRef n) { found |= n->kind == ExprKind::param; });
    return found;
  }

  bool is_slope(ExprRef e) const {
    return !uses(e, j_) && replaced(e, length_, e->pool->integer(1)) == e;
  }

  // j and what is no j.
  bool is_shifted(ExprRef e) const { return !uses(ir::sub(e, j_), j_); }

  bool is_affine_load(ExprRef load) const {
    const ir::Constant* table = g_.constant(*loaded(load));
    if (!table) return false;
    size_t axis = load->args.size();
    for (size_t k = 0; k < load->args.size(); ++k) {
      ExprRef x = load->args[k];
      if (is_slope(x)) continue;
      if (axis < load->args.size()) return false;  // two
      axis = k;
      if (!is_shifted(x->kind == ExprKind::bounded ? x->args[0] : x)) return false;
    }
    return is_affine_along(*table, axis);
  }

  const Graph& g_;
  ExprRef j_, length_;
};

}  // namespace

ExprRef counted_from_query(const Graph& g, ExprRef score, ExprRef i, ExprRef j, ExprRef length) {
  if (score->kind == ExprKind::fadd || score->kind == ExprKind::fsub) {
    ExprRef a = counted_from_query(g, score->args[0], i, j, length),
            b = counted_from_query(g, score->args[1], i, j, length);
    return score->kind == ExprKind::fadd ? ir::add(a, b) : ir::sub(a, b);
  }
  if (!Counting(g, j, length).is_affine(score)) return score;
  ExprRef one = g.pool().integer(1);
  return ir::rewrite(replaced(score, length, ir::add(i, one)), [&](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::load) return nullptr;
    Indices at = n->args;
    const std::vector<ExprRef>& dims = g.value(*loaded(n)).type.dims;
    for (size_t k = 0; k < at.size(); ++k) {
      if (!uses(at[k], j)) continue;  // cost: it is less anyway
      const bool asks = at[k]->kind == ExprKind::bounded;
      ExprRef last = ir::min(asks ? at[k]->args[0] : at[k], ir::sub(dims[k], one));
      at[k] = asks ? ir::bounded(last, dims[k], at[k]->value) : last;
    }
    return ir::load_of(g, *loaded(n), std::move(at));
  });
}

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// Operators that choose among elements: ArgMax, TopK, OneHot, NonZero, Compress. Order statistics
// are reductions of comparisons: the rank of an element is the number of elements before it.
#include <fmt/format.h>

#include <algorithm>

#include "frontend/operators/select.h"

namespace tfcc::frontend {
namespace {

constexpr int64_t kLargestListed = 4096;

bool is_real(ExprRef e) { return e->type != Scalar::i64; }

// NaN counts as the largest, as in numpy.
ExprRef greater(ExprRef a, ExprRef b) {
  if (!is_real(a)) return ir::lt(b, a);
  return ir::logical_or(ir::lt(b, a),
                        ir::logical_and(ir::is_nan(a), ir::logical_not(ir::is_nan(b))));
}

ExprRef same(ExprRef a, ExprRef b) {
  if (!is_real(a)) return ir::eq(a, b);
  return ir::logical_or(ir::eq(a, b), ir::logical_and(ir::is_nan(a), ir::is_nan(b)));
}

Result<void> arg_extreme(Importer& im, bool largest) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  if (im.type(x).dtype == DType::boolean)
    return im.fail(ErrorCode::bad_file, "input must be of a number type");
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", 0), d.size()));
  const bool last = im.attr_int("select_last_index", 0) != 0,
             keep = im.attr_int("keepdims", 1) != 0;
  Dims kept = d;
  kept[axis] = im.integer(1);
  Indices at = im.index_vars(kept);
  const Indices own = at;
  ExprRef j = im.pool().index(static_cast<int64_t>(d.size()), d[axis]);
  at[axis] = j;
  const ExprRef e = im.element(x, at);
  ValueId best = reduction(im, largest ? ir::ReduceKind::max : ir::ReduceKind::min, e, {d[axis]},
                           {im.type(x).dtype, kept}, ".best");
  // A NaN is its own best; of equal elements the first or the last one.
  ExprRef found = ir::eq(e, im.element(best, own));
  if (is_real(e)) found = ir::logical_or(found, ir::is_nan(e));
  ExprRef body = ir::select(found, j, last ? im.integer(-1) : d[axis]);
  ValueId place = reduction(im, last ? ir::ReduceKind::max : ir::ReduceKind::min, body, {d[axis]},
                            {DType::i64, kept}, ".place");
  Dims out = kept;
  if (!keep) out.erase(out.begin() + static_cast<std::ptrdiff_t>(axis));
  ExprRef y = im.element(place, ir::reshape_indices(im.pool(), im.index_vars(out), out, kept));
  // One of the elements is the best, if there are any: so that what it finds is proved to exist.
  ExprRef most = ir::sub(d[axis], im.integer(1));
  if (ir::prove_ge0(most)) y = ir::max(im.integer(0), ir::min(y, most));
  im.define(0, im.pointwise(y, DType::i64, out, ""));
  return {};
}

}  // namespace

// rank[i] = number of elements that come before element i; exactly one element has each rank, so a sum
// picks it.
Best best_of(Importer& im, ValueId x, size_t axis, ExprRef count, bool largest) {
  const Dims d = im.dims(x);
  const ExprRef n = d[axis], j = im.pool().index(static_cast<int64_t>(d.size()), n);
  const Indices at = im.index_vars(d);
  Indices other = at;
  other[axis] = j;
  const ExprRef mine = im.element(x, at), theirs = im.element(x, other);
  ExprRef tie = ir::logical_and(same(theirs, mine), ir::lt(j, at[axis]));
  ExprRef ahead = ir::logical_or(largest ? greater(theirs, mine) : greater(mine, theirs), tie);
  const auto sum = [&](ExprRef body, const Type& type, const std::string& suffix) {
    return reduction(im, ir::ReduceKind::sum, body, {n}, type, suffix);
  };
  ValueId rank = sum(ir::select(ahead, im.integer(1), im.integer(0)), {DType::i64, d}, ".rank");
  Dims to = d;
  to[axis] = count;
  const Indices out = im.index_vars(to);
  Indices from = out;
  from[axis] = j;
  const ExprRef chosen = ir::eq(im.element(rank, from), out[axis]), value = im.element(x, from);
  Best best;
  best.values =
      sum(ir::select(chosen, value, zero_of(im, value->type)), {im.type(x).dtype, to}, ".values");
  best.places = sum(ir::select(chosen, j, im.integer(0)), {DType::i64, to}, ".places");
  return best;
}

Result<void> import_arg_max(Importer& im) { return arg_extreme(im, true); }
Result<void> import_arg_min(Importer& im) { return arg_extreme(im, false); }

Result<void> import_top_k(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId count, im.input(1));
  const Dims d = im.dims(x);
  if (im.type(x).dtype == DType::boolean)
    return im.fail(ErrorCode::bad_file, "input must be of a number type");
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", -1), d.size()));
  TFCC_TRY(auto k, im.sizes(count, "K"));
  if (k.size() != 1) return im.fail(ErrorCode::bad_file, "K must be one number");
  TFCC_TRY_VOID(im.require_ge0(k[0], fmt::format("K = {} is negative", ir::print(k[0]))));
  TFCC_TRY_VOID(im.require_ge0(
      ir::sub(d[axis], k[0]),
      fmt::format("K = {} is more than the {} elements", ir::print(k[0]), ir::print(d[axis]))));
  const bool largest = im.attr_int("largest", 1) != 0;
  const Best best = best_of(im, x, axis, k[0], largest);
  if (im.node->outputs.size() > 0 && !im.node->outputs[0].empty()) im.define(0, best.values);
  if (im.node->outputs.size() > 1 && !im.node->outputs[1].empty()) im.define(1, best.places);
  return {};
}

Result<void> import_one_hot(Importer& im) {
  TFCC_TRY(ValueId indices, im.input(0));
  TFCC_TRY(ValueId depth, im.input(1));
  TFCC_TRY(ValueId values, im.input(2));
  const Dims di = im.dims(indices);
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", -1), di.size() + 1));
  TFCC_TRY(ExprRef n, im.scalar(depth, "depth"));
  n = im.resolved(n);
  if (n->type == Scalar::boolean || im.type(indices).dtype == DType::boolean)
    return im.fail(ErrorCode::bad_file, "depth and indices must be numbers");
  n = ir::convert(n, Scalar::i64);
  TFCC_TRY_VOID(im.require_size(n, depth, "depth"));
  TFCC_TRY_VOID(im.require_ge0(n, fmt::format("depth {} is negative", ir::print(n))));
  if (im.rank(values) != 1)
    return im.fail(ErrorCode::shape, "values must be two numbers, off and on");
  TFCC_TRY([[maybe_unused]] ExprRef two,
           im.unify(im.dims(values)[0], im.integer(2), "values must be two numbers, off and on"));
  Dims to = di;
  to.insert(to.begin() + static_cast<std::ptrdiff_t>(axis), n);
  const Indices at = im.index_vars(to);
  Indices from = at;
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(axis));
  ExprRef i = ir::convert(im.element(indices, from), Scalar::i64);
  i = ir::select(ir::lt(i, im.integer(0)), ir::add(i, n), i);
  im.define(0,
            ir::select(ir::eq(i, at[axis]), im.element(values, {im.integer(1)}),
                       im.element(values, {im.integer(0)})),
            im.type(values).dtype, to);
  return {};
}

namespace {

// Is the element certainly not zero (+1), certainly zero (-1), or unknown (0)?
int known_sign(Importer& im, ExprRef e) {
  ExprRef truth = ir::convert(e, Scalar::boolean);
  if (truth == im.pool().boolean(true)) return 1;
  if (truth == im.pool().boolean(false)) return -1;
  return 0;
}

ValueId integers(Importer& im, const std::vector<int64_t>& values, std::vector<int64_t> dims,
                 const std::string& name) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return im.graph.add_constant(
      name, ir::constant_from_bytes(DType::i64, std::move(dims),
                                    {first, first + values.size() * sizeof(int64_t)}));
}

// Positions, in row-major order, of the elements that are not zero; none if one of them depends on
// data or sizes.
std::optional<std::vector<int64_t>> positions_of_true(Importer& im, ValueId v) {
  std::vector<int64_t> sizes, out;
  int64_t count = 1;
  for (ExprRef n : im.dims(v)) {
    const auto known = ir::as_int(n);
    if (!known || *known > kLargestListed || (count *= *known) > kLargestListed)
      return std::nullopt;
    sizes.push_back(*known);
  }
  for (int64_t p = 0; p < count; ++p) {
    Indices at(sizes.size());
    int64_t rest = p;
    for (size_t k = sizes.size(); k-- > 0;) {
      at[k] = im.integer(rest % sizes[k]);
      rest /= sizes[k];
    }
    const int sign = known_sign(im, im.resolved(im.element(v, at)));
    if (sign == 0) return std::nullopt;
    if (sign > 0) out.push_back(p);
  }
  return out;
}

}  // namespace

Result<void> import_non_zero(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  const size_t rank = std::max<size_t>(d.size(), 1);  // a scalar counts as a vector of one
  const Dims shape = d.empty() ? Dims{im.integer(1)} : d;
  ExprRef position = nullptr, count = nullptr;
  if (known_sign(im, im.resolved(im.element(x, im.index_vars(d)))) > 0) {
    count = ir::element_count(im.pool(), shape);
    position = im.pool().index(1, count);
  } else if (auto list = positions_of_true(im, x)) {
    count = im.integer(static_cast<int64_t>(list->size()));
    ValueId v =
        integers(im, *list, {static_cast<int64_t>(list->size())}, im.value_name(0) + ".positions");
    position = im.element(v, {im.pool().index(1, count)});
  } else {
    return im.fail(
        ErrorCode::unsupported,
        "the number of non-zero elements depends on data; only masks made of sizes and constants are supported");
  }
  const Dims to{im.integer(static_cast<int64_t>(rank)), count};
  const Indices parts =
      ir::reshape_indices(im.pool(), {position}, {ir::element_count(im.pool(), shape)}, shape);
  ExprRef body = parts.back(), row = im.pool().index(0, to[0]);
  for (size_t k = rank - 1; k-- > 0;)
    body = ir::select(ir::eq(row, im.integer(static_cast<int64_t>(k))), parts[k], body);
  im.define(0, body, DType::i64, to);
  return {};
}

Result<void> import_compress(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId condition, im.input(1));
  const auto list = positions_of_true(im, condition);
  if (!list || im.rank(condition) != 1)
    return im.fail(ErrorCode::unsupported, "the condition must be known at compile time");
  Dims d = im.dims(x);
  const bool flat = !im.node->find("axis");
  if (flat) {
    x = reshape(im, x, {ir::element_count(im.pool(), d)}, ".flat");
    d = im.dims(x);
  }
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", 0), d.size()));
  if (!list->empty()) {
    TFCC_TRY_VOID(im.require_ge0(ir::sub(d[axis], im.integer(list->back() + 1)),
                                 "the condition is longer than the axis"));
  }
  Dims to = d;
  to[axis] = im.integer(static_cast<int64_t>(list->size()));
  ValueId v =
      integers(im, *list, {static_cast<int64_t>(list->size())}, im.value_name(0) + ".positions");
  Indices at = im.index_vars(to);
  const ExprRef i = im.element(v, {at[axis]});
  at[axis] = clamped(i, d[axis]);
  im.define(0, im.element(x, at), im.type(x).dtype, to);
  return {};
}

}  // namespace tfcc::frontend

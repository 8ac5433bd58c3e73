// SPDX-License-Identifier: Apache-2.0
// Softmax, reductions and running sums.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "frontend/operators/elementwise.h"

namespace tfcc::frontend {
namespace {

using ir::ExprKind;

// x with the axes from `axis` on merged into one; the same value if there is nothing to merge.
ValueId merge_from(Importer& im, ValueId x, size_t axis) {
  const Dims d = im.dims(x);
  if (axis + 1 == d.size()) return x;
  Dims to(d.begin(), d.begin() + axis);
  to.push_back(ir::element_count(im.pool(), Dims(d.begin() + axis, d.end())));
  return reshape(im, x, to, ".merged");
}

ValueId softmax_last(Importer& im, ValueId x, const std::string& name) {
  return im.graph.add(ir::OpKind::softmax, {x}, ir::SoftmaxAttrs{}, im.type(x), name,
                      im.node->name);
}

}  // namespace

ValueId softmax_along(Importer& im, ValueId x, size_t axis, bool coerced, const std::string& name) {
  const Dims d = im.dims(x);
  if (axis + 1 == d.size()) return softmax_last(im, x, name);
  if (coerced) return reshape(im, softmax_last(im, merge_from(im, x, axis), name + ".rows"), d, "");
  std::vector<size_t> perm;
  for (size_t k = 0; k < d.size(); ++k) perm.push_back(k);
  std::swap(perm[axis], perm.back());  // its own inverse
  return transpose(im, softmax_last(im, transpose(im, x, perm, ".last"), name + ".rows"), perm, "");
}

Result<void> import_softmax(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const bool coerced = im.opset < 13;
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", coerced ? 1 : -1), im.rank(x)));
  im.define(0, softmax_along(im, x, axis, coerced, im.value_name(0)));
  return {};
}

namespace {

constexpr int64_t kLargestUnrolled = 64;

// A reduction of sizes alone (the product of a shape) as one expression, so that no op of it stays;
// null if it is none.
ExprRef unrolled(Importer& im, ExprRef e, const ir::ReduceAttrs& attrs, int64_t first_index) {
  if (ir::has_loads(e) || e->type != Scalar::i64) return nullptr;
  std::vector<ExprRef> terms{e};
  for (size_t k = 0; k < attrs.extents.size(); ++k) {
    auto n = ir::as_int(attrs.extents[k]);
    if (!n || *n < 1 || *n * static_cast<int64_t>(terms.size()) > kLargestUnrolled) return nullptr;
    std::vector<ExprRef> next;
    for (ExprRef term : terms) {
      std::vector<ExprRef> by(first_index + k + 1);
      for (int64_t i = 0; i < *n; ++i) {
        by.back() = im.integer(i);
        next.push_back(ir::substitute_indices(term, by));
      }
    }
    terms = std::move(next);
  }
  ExprRef total = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    switch (attrs.kind) {
      case ir::ReduceKind::sum: total = ir::add(total, terms[i]); break;
      case ir::ReduceKind::prod: total = ir::mul(total, terms[i]); break;
      case ir::ReduceKind::max: total = ir::max(total, terms[i]); break;
      case ir::ReduceKind::min: total = ir::min(total, terms[i]); break;
      case ir::ReduceKind::mean: return nullptr;
    }
  }
  return total;
}

struct ReducedAxes {
  std::vector<bool> reduced;
  bool noop = false;
};

Result<ReducedAxes> axes_of_reduction(Importer& im, size_t rank, int64_t axes_input_from) {
  std::vector<int64_t> axes;
  if (im.opset >= axes_input_from && im.has_input(1)) {
    TFCC_TRY(ValueId v, im.input(1));
    TFCC_TRY(axes, im.numbers(v, "axes"));
  } else {
    axes = im.attr_ints("axes").value_or(std::vector<int64_t>{});
  }
  ReducedAxes out{std::vector<bool>(rank, axes.empty()),
                  axes.empty() && im.attr_int("noop_with_empty_axes", 0) != 0};
  if (out.noop) out.reduced.assign(rank, false);
  for (int64_t a : axes) {
    TFCC_TRY(size_t axis, im.axis_of(a, rank));
    if (out.reduced[axis])
      return im.fail(ErrorCode::bad_file, fmt::format("axes name axis {} twice", axis));
    out.reduced[axis] = true;
  }
  return out;
}

using Step = std::function<ExprRef(ExprRef)>;

// One reduction: where the result's and the reduced indices are.
struct Reduction {
  Dims kept, out;  // with and without sizes of 1 for the reduced axes
  Dims extents;
  Indices at;  // of the input: indices of `kept`, reduced ones numbered after them
};

Reduction plan_of(Importer& im, const Dims& d, const std::vector<bool>& reduced, bool keep) {
  Reduction p;
  for (size_t k = 0; k < d.size(); ++k) {
    p.kept.push_back(reduced[k] ? im.integer(1) : d[k]);
    if (reduced[k]) p.extents.push_back(d[k]);
    if (!reduced[k] || keep) p.out.push_back(p.kept.back());
  }
  size_t next_result = 0, next_reduced = p.out.size();
  for (size_t k = 0; k < d.size(); ++k) {
    if (reduced[k]) {
      p.at.push_back(im.pool().index(static_cast<int64_t>(next_reduced++), d[k]));
      next_result += keep;
    } else {
      p.at.push_back(im.pool().index(static_cast<int64_t>(next_result++), d[k]));
    }
  }
  return p;
}

ExprRef same(ExprRef e) { return e; }

// The largest or smallest of no integers is the end of 64 bits; in a narrower type its own end, and
// false or true of truth values.
ExprRef held_in_type(Importer& im, ExprRef e, ValueId x) {
  if (im.type(x).dtype == DType::boolean) return ir::max(im.integer(0), ir::min(e, im.integer(1)));
  const std::optional<ElementType> t = element_type(im.onnx_type(x));
  return t && t->is_integer() ? ir::max(im.integer(t->lowest), ir::min(e, im.integer(t->highest)))
                              : e;
}

// kind over `before` of the elements, then `after` of the result.
Result<void> reduce(Importer& im, ir::ReduceKind kind, int64_t axes_input_from,
                    const Step& before = same, const Step& after = nullptr) {
  TFCC_TRY(ValueId x, im.input(0));
  const Type type = im.type(x);
  TFCC_TRY(ReducedAxes axes, axes_of_reduction(im, type.rank(), axes_input_from));
  const bool keep = im.attr_int("keepdims", 1) != 0;
  const Reduction p = plan_of(im, type.dims, axes.reduced, keep);
  ExprRef e = before(im.element(x, p.at));
  const bool boolean = e->type == Scalar::boolean;
  if (boolean) {
    if (kind != ir::ReduceKind::max && kind != ir::ReduceKind::min)
      return im.fail(ErrorCode::bad_file, "input must be of a number type");
    e = ir::convert(e, Scalar::i64);
  }
  const bool integer_mean = kind == ir::ReduceKind::mean && e->type == Scalar::i64;
  if (p.extents.empty()) {
    if (!boolean && !after && e == im.element(x, p.at) && p.out == type.dims) {
      im.define(0, x);
      return {};
    }
    if (boolean) e = ir::convert(e, Scalar::boolean);
    im.define(0, narrowed(im, after ? after(e) : e, type.dtype), type.dtype, p.out);
    return {};
  }
  ir::ReduceAttrs attrs;
  attrs.kind = integer_mean ? ir::ReduceKind::sum : kind;
  attrs.extents = p.extents;
  if (ExprRef sizes = after || boolean || integer_mean
                          ? nullptr
                          : unrolled(im, e, attrs, static_cast<int64_t>(p.out.size()))) {
    im.define(0, sizes, type.dtype, p.out);
    return {};
  }
  ir::Captured c = ir::capture(e);
  attrs.body = c.body;
  ExprRef count = ir::element_count(im.pool(), p.extents);
  const bool extreme = kind == ir::ReduceKind::max || kind == ir::ReduceKind::min;
  const bool held = extreme && e->type == Scalar::i64 && type.dtype != DType::i64 &&
                    !ir::prove_ge0(ir::sub(count, im.integer(1)));
  const bool last = !after && !boolean && !integer_mean && !held;
  const DType dtype = boolean || integer_mean || held ? DType::i64
                      : type.dtype == DType::f16 || type.dtype == DType::bf16
                          ? (after ? DType::f32 : type.dtype)
                          : type.dtype;
  ValueId y = im.graph.add(ir::OpKind::reduce, c.operands, attrs, {dtype, p.out},
                           im.value_name(0) + (last ? "" : ".reduced"), im.node->name);
  if (last) {
    im.define(0, y);
    return {};
  }
  ExprRef r = im.element(y, im.index_vars(p.out));
  if (held) r = held_in_type(im, r, x);
  if (boolean) r = ir::convert(r, Scalar::boolean);
  if (integer_mean) r = truncating_divide(im, r, ir::max(count, im.integer(1)));
  im.define(0, narrowed(im, after ? after(r) : r, type.dtype), type.dtype, p.out);
  return {};
}

// Square root and logarithm of integers are taken in float and cut off.
ExprRef in_reals(ExprKind kind, ExprRef e) {
  if (e->type != Scalar::i64) return ir::unary(kind, e);
  return ir::convert(ir::unary(kind, ir::convert(e, Scalar::f64)), Scalar::i64);
}

ExprRef magnitude(ExprRef e) { return ir::abs(e); }
ExprRef square(ExprRef e) { return ir::mul(e, e); }
ExprRef logarithm(ExprRef e) { return in_reals(ExprKind::log, e); }
ExprRef root(ExprRef e) { return in_reals(ExprKind::sqrt, e); }

// The largest element along the reduced axes, 0 where it is infinite, so that x - shift is a
// number.
ExprRef shift_of(Importer& im, ValueId largest, const Indices& at) {
  ExprRef m = im.element(largest, at);
  ExprRef infinite =
      ir::eq(ir::abs(m), im.pool().real(std::numeric_limits<double>::infinity(), m->type));
  return ir::select(infinite, im.pool().real(0, m->type), m);
}

DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

struct LogSumExp {
  Reduction plan;
  ValueId largest, sum;  // over plan.kept
};

LogSumExp log_sum_exp(Importer& im, ValueId x, const std::vector<bool>& reduced) {
  LogSumExp s{plan_of(im, im.dims(x), reduced, true), {}, {}};
  const Type type{wide(im.type(x).dtype), s.plan.kept};
  const ExprRef e = im.element(x, s.plan.at);
  s.largest = reduction(im, ir::ReduceKind::max, e, s.plan.extents, type, ".largest");
  Indices own = im.index_vars(s.plan.kept);
  s.sum = reduction(im, ir::ReduceKind::sum,
                    ir::unary(ExprKind::exp, ir::sub(e, shift_of(im, s.largest, own))),
                    s.plan.extents, type, ".sum");
  return s;
}

}  // namespace

Result<void> import_reduce_mean(Importer& im) { return reduce(im, ir::ReduceKind::mean, 18); }
Result<void> import_reduce_max(Importer& im) { return reduce(im, ir::ReduceKind::max, 18); }
Result<void> import_reduce_min(Importer& im) { return reduce(im, ir::ReduceKind::min, 18); }
Result<void> import_reduce_prod(Importer& im) { return reduce(im, ir::ReduceKind::prod, 18); }
Result<void> import_reduce_sum(Importer& im) { return reduce(im, ir::ReduceKind::sum, 13); }
Result<void> import_reduce_l1(Importer& im) {
  return reduce(im, ir::ReduceKind::sum, 18, magnitude);
}
Result<void> import_reduce_l2(Importer& im) {
  return reduce(im, ir::ReduceKind::sum, 18, square, root);
}
Result<void> import_reduce_log_sum(Importer& im) {
  return reduce(im, ir::ReduceKind::sum, 18, same, logarithm);
}
Result<void> import_reduce_sum_square(Importer& im) {
  return reduce(im, ir::ReduceKind::sum, 18, square);
}

Result<void> import_reduce_log_sum_exp(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  TFCC_TRY(ReducedAxes axes, axes_of_reduction(im, im.rank(x), 18));
  const bool keep = im.attr_int("keepdims", 1) != 0;
  if (std::find(axes.reduced.begin(), axes.reduced.end(), true) == axes.reduced.end()) {
    im.define(0, x);  // log(exp(x))
    return {};
  }
  const LogSumExp s = log_sum_exp(im, x, axes.reduced);
  const Dims out = plan_of(im, im.dims(x), axes.reduced, keep).out;
  const Indices result = im.index_vars(out);
  Indices at;
  for (size_t k = 0, next = 0; k < axes.reduced.size(); ++k) {
    at.push_back(axes.reduced[k] ? im.integer(0) : result[next]);
    next += !axes.reduced[k] || keep;
  }
  im.define(0,
            ir::add(shift_of(im, s.largest, at), ir::unary(ExprKind::log, im.element(s.sum, at))),
            im.type(x).dtype, out);
  return {};
}

Result<void> import_log_softmax(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  const Dims d = im.dims(x);
  const bool coerced = im.opset < 13;  // before 13: over all axes from `axis` on
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", coerced ? 1 : -1), d.size()));
  std::vector<bool> reduced(d.size(), false);
  for (size_t k = axis; k < (coerced ? d.size() : axis + 1); ++k) reduced[k] = true;
  const LogSumExp s = log_sum_exp(im, x, reduced);
  const Indices at = im.index_vars(d);
  Indices row = at;
  for (size_t k = 0; k < d.size(); ++k) {
    if (reduced[k]) row[k] = im.integer(0);
  }
  ExprRef shifted = ir::sub(im.element(x, at), shift_of(im, s.largest, row));
  im.define(0, ir::sub(shifted, ir::unary(ExprKind::log, im.element(s.sum, row))), im.type(x).dtype,
            d);
  return {};
}

Result<void> import_cumsum(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId a, im.input(1));
  TFCC_TRY(auto axes, im.numbers(a, "axis"));
  if (axes.size() != 1) return im.fail(ErrorCode::bad_file, "axis must be a scalar");
  TFCC_TRY(size_t axis, im.axis_of(axes[0], im.rank(x)));
  ir::CumsumAttrs attrs;
  attrs.axis = static_cast<int64_t>(axis);
  attrs.exclusive = im.attr_int("exclusive", 0) != 0;
  attrs.reverse = im.attr_int("reverse", 0) != 0;
  im.define(
      0, im.graph.add(ir::OpKind::cumsum, {x}, attrs, im.type(x), im.value_name(0), im.node->name));
  return {};
}

}  // namespace tfcc::frontend

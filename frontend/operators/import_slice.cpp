// SPDX-License-Identifier: Apache-2.0
// Slice: bounds that depend on sizes, clamped as the operator says, and what they tell about the
// length that is left.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "frontend/import/importer.h"
#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

struct SliceRange {
  ExprRef start, length;
  int64_t step;
};

constexpr int64_t kFar = int64_t{1} << 40;  // INT64_MAX and friends mean "to the end"

// A slice bound counted from the end if negative, and clamped to [low, high].
ExprRef clamp_bound(Importer& im, ExprRef v, ExprRef size, ExprRef low, ExprRef high) {
  if (auto c = ir::as_int(v)) {
    if (*c >= kFar) return high;
    if (*c <= -kFar) return low;
  }
  ExprRef from_end = ir::select(ir::lt(v, im.integer(0)), ir::add(v, size), v);
  return ir::max(low, ir::min(from_end, high));
}

SliceRange slice_range(Importer& im, ExprRef start, ExprRef end, int64_t step, ExprRef size) {
  const ExprRef zero = im.integer(0), last = ir::sub(size, im.integer(1));
  if (step > 0) {
    ExprRef a = clamp_bound(im, start, size, zero, size),
            b = clamp_bound(im, end, size, zero, size);
    ExprRef n = ir::div(ir::add(ir::sub(b, a), im.integer(step - 1)), im.integer(step));
    return {a, ir::max(n, zero), step};
  }
  ExprRef a = clamp_bound(im, start, size, zero, last),
          b = clamp_bound(im, end, size, im.integer(-1), last);
  ExprRef n = ir::div(ir::add(ir::sub(a, b), im.integer(-step - 1)), im.integer(-step));
  return {a, ir::max(n, zero), step};
}

// The sum of sizes in a bound, P + S of P + S - 64: the one that several sizes make together.
ExprRef sum_of_sizes(Importer& im, ExprRef bound) {
  ExprRef found = nullptr;
  ir::for_each_node(bound, [&](ExprRef n) {
    if (n->kind != ir::ExprKind::poly || n->terms.size() < 2 || found) return;
    const int64_t sign = n->terms[0].coefficient;
    if (sign != 1 && sign != -1) return;
    ExprRef sum = im.integer(0);
    for (const ir::Term& t : n->terms) {
      if (t.coefficient != sign || t.atoms.size() != 1 || t.atoms[0]->kind != ir::ExprKind::symbol)
        return;
      sum = ir::add(sum, t.atoms[0]);
    }
    found = sum;
  });
  return found;
}

// What `e` is where `assume` >= 0: clamps that then never apply are gone.
ExprRef simplified(ExprRef e, ExprRef assume) {
  const std::vector<ExprRef> known{assume};
  const auto at_most = [&](ExprRef a, ExprRef b) { return ir::prove_ge0(ir::sub(b, a), known); };
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    if (n->kind != ir::ExprKind::imin && n->kind != ir::ExprKind::imax &&
        n->kind != ir::ExprKind::select)
      return nullptr;
    if (n->kind == ir::ExprKind::select) {
      const ExprRef condition = n->args[0];
      if (condition->kind != ir::ExprKind::ge0 || n->type != ir::Scalar::i64) return nullptr;
      const ExprRef p = condition->args[0];
      if (ir::prove_ge0(p, known)) return simplified(n->args[1], assume);
      if (at_most(p, p->pool->integer(-1))) return simplified(n->args[2], assume);
      return nullptr;
    }
    const ExprRef a = simplified(n->args[0], assume), b = simplified(n->args[1], assume);
    const bool least = n->kind == ir::ExprKind::imin;
    if (at_most(a, b)) return least ? a : b;
    if (at_most(b, a)) return least ? b : a;
    return nullptr;
  });
}

// A table of 64 rows cut to the keys, [P : P + S]: P and S have no bound of their own, so P + S <=
// 64 is neither proved nor a range. What the graph means is that it holds; where it does not, the
// read is flagged instead of the result being shorter. The sum, or null if that is not the case.
ExprRef cut_by_a_sum(Importer& im, SliceRange& r, ExprRef start, ExprRef end, ExprRef size) {
  if (!ir::as_int(size) || r.step != 1) return nullptr;
  ExprRef sum = sum_of_sizes(im, end);
  if (!sum) sum = sum_of_sizes(im, start);
  if (!sum || ir::prove_le(sum, size)) return nullptr;
  const ExprRef room = ir::sub(size, sum);
  const ExprRef from = simplified(r.start, room), length = simplified(r.length, room);
  if (length == r.length) return nullptr;
  r.start = from;
  r.length = length;
  return sum;
}

// Index `e` of an axis of `size`, in range as long as `sum` is at most that size.
ExprRef in_range_if(Importer& im, ExprRef e, ExprRef sum, ExprRef size) {
  auto& flags = im.graph.flags;
  const std::string message = fmt::format("{} must be at most {}", ir::print(sum), ir::print(size));
  auto it = std::find(flags.begin(), flags.end(), message);
  const int64_t flag = it - flags.begin();
  if (it == flags.end()) flags.push_back(message);
  return ir::bounded(e, size, flag);
}

}  // namespace

Result<void> import_slice(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId s, im.input(1));
  TFCC_TRY(ValueId e, im.input(2));
  TFCC_TRY(auto starts, im.sizes(s, "starts"));
  TFCC_TRY(auto ends, im.sizes(e, "ends"));
  std::vector<int64_t> axes, steps(starts.size(), 1);
  for (size_t k = 0; k < starts.size(); ++k) axes.push_back(static_cast<int64_t>(k));
  if (im.has_input(3)) {
    TFCC_TRY(ValueId v, im.input(3));
    TFCC_TRY(axes, im.numbers(v, "axes"));
  }
  if (im.has_input(4)) {
    TFCC_TRY(ValueId v, im.input(4));
    TFCC_TRY(steps, im.numbers(v, "steps"));
  }
  if (ends.size() != starts.size() || axes.size() != starts.size() ||
      steps.size() != starts.size()) {
    return im.fail(ErrorCode::shape, "starts, ends, axes and steps differ in length");
  }
  Dims to = im.dims(x);
  std::vector<std::optional<SliceRange>> ranges(to.size());
  Indices sums(to.size(), nullptr);
  for (size_t k = 0; k < starts.size(); ++k) {
    TFCC_TRY(size_t axis, im.axis_of(axes[k], to.size()));
    if (steps[k] == 0) return im.fail(ErrorCode::shape, "a step is 0");
    if (ranges[axis])
      return im.fail(ErrorCode::shape, fmt::format("axis {} is given twice", axes[k]));
    ranges[axis] = slice_range(im, starts[k], ends[k], steps[k], im.dims(x)[axis]);
    sums[axis] = cut_by_a_sum(im, *ranges[axis], starts[k], ends[k], im.dims(x)[axis]);
    to[axis] = ranges[axis]->length;
  }
  Indices at = im.index_vars(to);
  for (size_t k = 0; k < to.size(); ++k) {
    if (!ranges[k]) continue;
    at[k] = ir::add(ranges[k]->start, ir::mul(at[k], im.integer(ranges[k]->step)));
    if (sums[k]) at[k] = in_range_if(im, at[k], sums[k], im.dims(x)[k]);
  }
  im.define(0, im.element(x, at), im.type(x).dtype, to);
  return {};
}

}  // namespace tfcc::frontend

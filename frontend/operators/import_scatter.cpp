// SPDX-License-Identifier: Apache-2.0
// Gathers and scatters by index tensors. A scatter is written from the result's side: which update,
// if any, lands on this element. Where the indices are affine in the update's position (a slice, a
// triangle) that is solved here, and the result is a plain expression; where they are data, a
// reduction finds the last update that matches.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "frontend/import/importer.h"

namespace tfcc::frontend {
namespace {

Result<void> require_integers(Importer& im, ValueId v) {
  if (is_integer(im.type(v).dtype)) return {};
  return im.fail(ErrorCode::bad_file, "indices must be integers");
}

Indices joined(Indices a, const Indices& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

ExprRef wrapped(ExprRef e, ExprRef n) {
  return ir::select(ir::lt(e, e->pool->integer(0)), ir::add(e, n), e);
}

enum class Combine { none, add, mul, max, min };

Result<Combine> combine_of(Importer& im) {
  const std::string name = im.attr_string("reduction", "none");
  const std::pair<const char*, Combine> known[] = {{"none", Combine::none},
                                                   {"add", Combine::add},
                                                   {"mul", Combine::mul},
                                                   {"max", Combine::max},
                                                   {"min", Combine::min}};
  for (const auto& [text, kind] : known) {
    if (name == text) return kind;
  }
  return im.fail(ErrorCode::unsupported,
                 fmt::format("reduction \"{}\" is not supported", escaped(name)));
}

ExprRef combined(Combine kind, ExprRef a, ExprRef b) {
  switch (kind) {
    case Combine::add: return ir::add(a, b);
    case Combine::mul: return ir::mul(a, b);
    case Combine::max: return ir::max(a, b);
    case Combine::min: return ir::min(a, b);
    case Combine::none: return b;
  }
  return b;
}

// Update t lands where target[k](t) == place[k] for all k.
struct Scatter {
  ValueId data, updates;
  Combine combine = Combine::none;
  ExprRef before = nullptr;     // the element of data, over the result's index variables
  Indices place;                // of the result: the indices that `target` speaks of
  std::vector<ExprRef> target;  // free expressions over the variables of `extents`
  Dims extents;                 // of the updates
  ExprRef allowed = nullptr;    // further condition on the place; null: none
  std::function<Indices(const Indices& t)> update_at;  // indices into `updates`
};

// The t that puts `target` on `place`: null if it is not target = base + step * t_j with a known
// step, or base alone.
struct Solution {
  size_t variable = SIZE_MAX;  // none: only the condition matters
  ExprRef value = nullptr, condition = nullptr;
};

std::optional<Solution> solve(Importer& im, ExprRef target, ExprRef place, const Dims& extents,
                              size_t first) {
  Solution s;
  if (ir::has_loads(target)) return std::nullopt;
  for (size_t j = 0; j < extents.size(); ++j) {
    if (!ir::uses_index(target, static_cast<int64_t>(first + j))) continue;
    if (s.variable != SIZE_MAX) return std::nullopt;
    s.variable = j;
  }
  if (s.variable == SIZE_MAX) {
    s.condition = ir::eq(place, target);
    return s;
  }
  const auto at = [&](int64_t t) {
    std::vector<ExprRef> by(first + s.variable + 1);
    by.back() = im.integer(t);
    return ir::substitute_indices(target, by);
  };
  const ExprRef base = at(0), variable = im.pool().index(static_cast<int64_t>(first + s.variable),
                                                         extents[s.variable]);
  const auto step = ir::as_int(ir::sub(at(1), base));
  if (!step || *step == 0 || ir::add(base, ir::mul(im.integer(*step), variable)) != target)
    return std::nullopt;
  const ExprRef distance = *step > 0 ? ir::sub(place, base) : ir::sub(base, place);
  const ExprRef width = im.integer(*step > 0 ? *step : -*step);
  s.value = ir::div(distance, width);
  s.condition =
      ir::logical_and(ir::le(im.integer(0), s.value), ir::lt(s.value, extents[s.variable]));
  s.condition = ir::logical_and(s.condition, ir::eq(ir::mod(distance, width), im.integer(0)));
  return s;
}

// The result as one expression, if every target can be solved; null if not.
ExprRef solved(Importer& im, const Scatter& s, size_t first) {
  Indices t(s.extents.size(), nullptr);
  ExprRef hit = s.allowed ? s.allowed : im.pool().boolean(true);
  for (size_t k = 0; k < s.target.size(); ++k) {
    const auto one = solve(im, s.target[k], s.place[k], s.extents, first);
    if (!one || (one->variable != SIZE_MAX && t[one->variable])) return nullptr;
    if (one->variable != SIZE_MAX) t[one->variable] = one->value;
    hit = ir::logical_and(hit, one->condition);
  }
  for (size_t j = 0; j < t.size(); ++j) {
    if (t[j]) continue;
    // Several updates on one place: the last one counts, and only if nothing is accumulated.
    if (!ir::is_int(s.extents[j], 1) && s.combine != Combine::none) return nullptr;
    if (!ir::prove_ge0(ir::sub(s.extents[j], im.integer(1)))) return nullptr;
    t[j] = ir::sub(s.extents[j], im.integer(1));
  }
  return ir::select(hit, combined(s.combine, s.before, im.element(s.updates, s.update_at(t))),
                    s.before);
}

ExprRef matches(Importer& im, const Scatter& s) {
  ExprRef hit = im.pool().boolean(true);
  for (size_t k = 0; k < s.target.size(); ++k)
    hit = ir::logical_and(hit, ir::eq(s.target[k], s.place[k]));
  return hit;
}

// Finds the number of the last update that lands here, -1 if none does; then its value.
ExprRef replaced(Importer& im, const Scatter& s, const Indices& t, const Dims& dims) {
  ExprRef body =
      ir::select(matches(im, s), ir::linear_index(im.pool(), t, s.extents), im.integer(-1));
  if (s.allowed) body = ir::select(s.allowed, body, im.integer(-1));
  ValueId winner =
      reduction(im, ir::ReduceKind::max, body, s.extents, {DType::i64, dims}, ".update");
  const ExprRef count = ir::element_count(im.pool(), s.extents),
                number = im.element(winner, variables(im, dims, 0));
  const Indices from = ir::reshape_indices(im.pool(), {clamped(number, count)}, {count}, s.extents);
  ExprRef hit = ir::le(im.integer(0), number);
  if (s.allowed) hit = ir::logical_and(s.allowed, hit);
  return ir::select(hit, im.element(s.updates, s.update_at(from)), s.before);
}

}  // namespace

Result<void> import_gather_elements(Importer& im) {
  TFCC_TRY(ValueId data, im.input(0));
  TFCC_TRY(ValueId indices, im.input(1));
  TFCC_TRY_VOID(require_integers(im, indices));
  const Dims d = im.dims(data), to = im.dims(indices);
  if (d.size() != to.size() || d.empty())
    return im.fail(ErrorCode::shape, "data and indices must have one rank, at least 1");
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", 0), d.size()));
  const Indices at = im.index_vars(to);
  Indices from(d.size());
  for (size_t k = 0; k < d.size(); ++k) {
    TFCC_TRY(from[k], im.gather_index(k == axis ? im.element(indices, at) : at[k], d[k]));
  }
  im.define(0, im.element(data, from), im.type(data).dtype, to);
  return {};
}

Result<void> import_gather_nd(Importer& im) {
  TFCC_TRY(ValueId data, im.input(0));
  TFCC_TRY(ValueId indices, im.input(1));
  TFCC_TRY_VOID(require_integers(im, indices));
  const Dims d = im.dims(data), di = im.dims(indices);
  const int64_t batch_dims = im.attr_int("batch_dims", 0);
  const auto width = di.empty() ? std::nullopt : ir::as_int(di.back());
  if (!width)
    return im.fail(ErrorCode::unsupported,
                   "the last size of indices must be known at compile time");
  const int64_t r = static_cast<int64_t>(d.size()), q = static_cast<int64_t>(di.size());
  if (batch_dims < 0 || batch_dims >= q || *width < 1 || batch_dims + *width > r) {
    return im.fail(ErrorCode::shape,
                   fmt::format("indices of {} numbers do not fit data of rank {}", *width, r));
  }
  Dims to(di.begin(), di.end() - 1);
  for (int64_t k = 0; k < batch_dims; ++k) {
    TFCC_TRY(to[k],
             im.unify(d[k], di[k], fmt::format("data and indices differ in batch axis {}", k)));
  }
  to.insert(to.end(), d.begin() + batch_dims + *width, d.end());
  const Indices at = im.index_vars(to);
  const Indices prefix(at.begin(), at.begin() + q - 1);
  Indices from(at.begin(), at.begin() + batch_dims);
  for (int64_t k = 0; k < *width; ++k) {
    TFCC_TRY(ExprRef i, im.gather_index(im.element(indices, joined(prefix, {im.integer(k)})),
                                        d[batch_dims + k]));
    from.push_back(i);
  }
  from.insert(from.end(), at.begin() + q - 1, at.end());
  im.define(0, im.element(data, from), im.type(data).dtype, to);
  return {};
}

namespace {

// The common end of both scatters. `place_dims` are the dims of the result that decide which update
// lands.
Result<void> scatter(Importer& im, Scatter s, size_t first, const Dims& place_dims) {
  const Dims result = im.dims(s.data);
  const DType dtype = im.type(s.data).dtype;
  if (std::any_of(s.extents.begin(), s.extents.end(), [](ExprRef n) { return ir::is_int(n, 0); })) {
    im.define(0, s.data);
    return {};
  }
  if (ExprRef e = solved(im, s, first)) {
    im.define(0, e, dtype, result);
    return {};
  }
  if (s.combine != Combine::none && dtype == DType::boolean) {
    return im.fail(ErrorCode::unsupported, "reduction of bool is not supported");
  }
  const Indices t =
      variables(im, s.extents, s.combine == Combine::none ? place_dims.size() : result.size());
  // The targets speak of variables `first`...; renamed where the reduction numbers them otherwise.
  const auto renamed = [&](ExprRef e) {
    std::vector<ExprRef> by(first + t.size());
    for (size_t k = 0; k < t.size(); ++k) by[first + k] = t[k];
    return ir::substitute_indices(e, by);
  };
  for (ExprRef& e : s.target) e = renamed(e);
  if (s.combine == Combine::none) {
    im.define(0, replaced(im, s, t, place_dims), dtype, result);
    return {};
  }
  ExprRef hit = matches(im, s);
  ExprRef neutral = s.before;  // harmless to max and min
  const bool integers = s.before->type == Scalar::i64;
  if (s.combine == Combine::add)
    neutral = integers ? im.integer(0) : im.pool().real(0, neutral->type);
  if (s.combine == Combine::mul)
    neutral = integers ? im.integer(1) : im.pool().real(1, neutral->type);
  ExprRef body = ir::select(hit, im.element(s.updates, s.update_at(t)), neutral);
  if (s.allowed) body = ir::select(s.allowed, body, neutral);
  const ir::ReduceKind kinds[] = {ir::ReduceKind::sum, ir::ReduceKind::sum, ir::ReduceKind::prod,
                                  ir::ReduceKind::max, ir::ReduceKind::min};
  ValueId total = reduction(im, kinds[static_cast<int>(s.combine)], body, s.extents,
                            {dtype, result}, ".updates");
  im.define(0, combined(s.combine, s.before, im.element(total, im.index_vars(result))), dtype,
            result);
  return {};
}

}  // namespace

Result<void> import_scatter_nd(Importer& im) {
  Scatter s;
  TFCC_TRY(s.data, im.input(0));
  TFCC_TRY(ValueId indices, im.input(1));
  TFCC_TRY(s.updates, im.input(2));
  TFCC_TRY(s.combine, combine_of(im));
  TFCC_TRY_VOID(require_integers(im, indices));
  const Dims d = im.dims(s.data), di = im.dims(indices), du = im.dims(s.updates);
  const auto width = di.empty() ? std::nullopt : ir::as_int(di.back());
  if (!width)
    return im.fail(ErrorCode::unsupported,
                   "the last size of indices must be known at compile time");
  if (*width < 1 || *width > static_cast<int64_t>(d.size())) {
    return im.fail(ErrorCode::shape, fmt::format("indices of {} numbers do not fit data of rank {}",
                                                 *width, d.size()));
  }
  if (im.type(s.updates).dtype != im.type(s.data).dtype ||
      du.size() != di.size() - 1 + d.size() - *width) {
    return im.fail(ErrorCode::shape, "updates do not fit data and indices");
  }
  s.extents.assign(di.begin(), di.end() - 1);
  for (size_t k = 0; k < du.size(); ++k) {
    ExprRef want = k < s.extents.size() ? s.extents[k] : d[*width + k - s.extents.size()];
    TFCC_TRY([[maybe_unused]] ExprRef same,
             im.unify(want, du[k], fmt::format("updates do not fit in axis {}", k)));
  }
  const Indices at = im.index_vars(d);
  s.before = im.element(s.data, at);
  s.place.assign(at.begin(), at.begin() + *width);
  const size_t first = d.size();
  const Indices t = variables(im, s.extents, first);
  for (int64_t k = 0; k < *width; ++k)
    s.target.push_back(wrapped(im.element(indices, joined(t, {im.integer(k)})), d[k]));
  const Indices rest(at.begin() + *width, at.end());
  s.update_at = [rest](const Indices& u) { return joined(u, rest); };
  return scatter(im, std::move(s), first, Dims(d.begin(), d.begin() + *width));
}

Result<void> import_scatter_elements(Importer& im) {
  Scatter s;
  TFCC_TRY(s.data, im.input(0));
  TFCC_TRY(ValueId indices, im.input(1));
  TFCC_TRY(s.updates, im.input(2));
  TFCC_TRY(s.combine, combine_of(im));
  TFCC_TRY_VOID(require_integers(im, indices));
  const Dims d = im.dims(s.data), di = im.dims(indices), du = im.dims(s.updates);
  if (d.empty() || di.size() != d.size() || du.size() != d.size() ||
      im.type(s.updates).dtype != im.type(s.data).dtype) {
    return im.fail(
        ErrorCode::shape,
        "data, indices and updates must have one rank, at least 1, and updates the type of data");
  }
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", 0), d.size()));
  for (size_t k = 0; k < d.size(); ++k) {
    TFCC_TRY([[maybe_unused]] ExprRef same,
             im.unify(di[k], du[k], fmt::format("indices and updates differ in axis {}", k)));
  }
  const Indices at = im.index_vars(d);
  for (size_t k = 0; k < d.size(); ++k) {
    if (k == axis || di[k] == d[k]) continue;
    ExprRef inside = ir::lt(at[k], di[k]);
    s.allowed = s.allowed ? ir::logical_and(s.allowed, inside) : inside;
  }
  // Updates meet the result along the axis; their other indices are the result's own.
  const size_t first = d.size();
  s.extents = {di[axis]};
  Indices own = at;
  own[axis] = im.pool().index(static_cast<int64_t>(first), di[axis]);
  s.before = im.element(s.data, at);
  s.place = {at[axis]};
  s.target = {wrapped(im.element(indices, own), d[axis])};
  s.update_at = [at, axis](const Indices& t) {
    Indices from = at;
    from[axis] = t[0];
    return from;
  };
  return scatter(im, std::move(s), first, d);
}

// Part of a cache written in place: token t of the update lands at write_indices[b] + t along the
// axis, in circular mode beyond the end at the start again.
Result<void> import_tensor_scatter(Importer& im) {
  TFCC_TRY(ValueId past, im.input(0));
  TFCC_TRY(ValueId update, im.input(1));
  const Dims d = im.dims(past), du = im.dims(update);
  const std::string mode = im.attr_string("mode", "linear");
  if (mode != "linear" && mode != "circular")
    return im.fail(ErrorCode::bad_file, fmt::format("mode \"{}\" is not defined", escaped(mode)));
  TFCC_TRY(const size_t axis, im.axis_of(im.attr_int("axis", -2), d.size()));
  if (axis == 0 || du.size() != d.size() || im.type(past).dtype != im.type(update).dtype) {
    return im.fail(ErrorCode::shape,
                   fmt::format("cache {} and update {} do not go together along axis {}",
                               ir::to_string(im.type(past)), ir::to_string(im.type(update)), axis));
  }
  for (size_t k = 0; k < d.size(); ++k) {
    if (k != axis) {
      TFCC_TRY([[maybe_unused]] ExprRef n,
               im.unify(d[k], du[k], fmt::format("cache and update differ in axis {}", k)));
    }
  }
  TFCC_TRY_VOID(im.require_ge0(ir::sub(d[axis], du[axis]), "the update is longer than the cache"));
  const Indices at = im.index_vars(d);
  ExprRef place = at[axis];
  if (im.has_input(2)) {
    TFCC_TRY(ValueId starts, im.input(2));
    TFCC_TRY_VOID(require_integers(im, starts));
    if (im.rank(starts) != 1) return im.fail(ErrorCode::shape, "write_indices must be a vector");
    TFCC_TRY([[maybe_unused]] ExprRef n,
             im.unify(d[0], im.dims(starts)[0], "write_indices has not one index per batch row"));
    place = ir::sub(place, im.element(starts, {at[0]}));
    if (mode == "circular") place = ir::mod(place, d[axis]);
  }
  const ExprRef hit = ir::logical_and(ir::le(im.integer(0), place), ir::lt(place, du[axis]));
  Indices from = at;
  from[axis] = clamped(place, du[axis]);
  im.define(0, ir::select(hit, im.element(update, from), im.element(past, at)), im.type(past).dtype,
            d);
  return {};
}

}  // namespace tfcc::frontend

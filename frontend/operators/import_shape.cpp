// SPDX-License-Identifier: Apache-2.0
// Operators that move elements or produce sizes: each is a substitution on indices. Slice:
// import_slice.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "frontend/import/importer.h"
#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

// Axes from input `slot` (opset 13 on) or from the attribute; empty if neither is there.
Result<std::vector<int64_t>> axes_of(Importer& im, size_t slot) {
  if (im.has_input(slot)) {
    TFCC_TRY(ValueId v, im.input(slot));
    return im.numbers(v, "axes");
  }
  return im.attr_ints("axes").value_or(std::vector<int64_t>{});
}

// A view whose result index k is `at[k]`: from indices of the result to indices of the input.
Result<void> view(Importer& im, ValueId x, const Dims& to, const Indices& from) {
  im.define(0, im.element(x, from), im.type(x).dtype, to);
  return {};
}

Result<void> reshape_to(Importer& im, ValueId x, const Dims& to) {
  return view(im, x, to, ir::reshape_indices(im.pool(), im.index_vars(to), to, im.dims(x)));
}

constexpr int64_t kLargestRange = int64_t{1} << 31;

ExprRef product(Importer& im, const Dims& dims) { return ir::element_count(im.pool(), dims); }

// The first axis of an input [batch, length]: of whole numbers, as ids are, or of any type.
bool is_batch(const Importer& im, ExprRef size, bool of_ids) {
  return size->kind == ir::ExprKind::symbol &&
         std::ranges::any_of(im.graph.inputs(), [&](ValueId v) {
           const ir::Type& t = im.graph.value(v).type;
           return t.rank() == 2 && t.dims[0] == size && (!of_ids || is_integer(t.dtype));
         });
}

}  // namespace

Result<void> import_constant(Importer& im) {
  if (const Attribute* value = im.node->find("value"); value && value->packed) {
    im.define(0, unpack(im, *value->packed, im.value_name(0)));
    return {};
  }
  Result<ir::Constant> c = constant_of(*im.node);
  if (!c) return im.fail(c.error().code, c.error().message);
  im.define(0, im.graph.add_constant(im.value_name(0), *std::move(c)));
  return {};
}

Result<void> import_shape(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  const int64_t r = static_cast<int64_t>(d.size());
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + r : v, 0, r); };
  const int64_t start = clamp(im.attr_int("start", 0)), end = clamp(im.attr_int("end", r));
  const int64_t n = std::max<int64_t>(0, end - start);
  const Dims out{im.integer(n)};
  ExprRef k = im.index_vars(out)[0];
  ExprRef body = im.integer(0);
  for (int64_t i = n; i-- > 0;) body = ir::select(ir::eq(k, im.integer(i)), d[start + i], body);
  im.define(0, body, DType::i64, out);
  return {};
}

Result<void> import_size(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  im.define(0, product(im, im.dims(x)), DType::i64, {});
  return {};
}

Result<void> import_reshape(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId s, im.input(1));
  TFCC_TRY(Dims to, im.sizes(s, "shape"));
  const Dims from = im.dims(x);
  const bool allow_zero = im.attr_int("allowzero", 0) != 0;
  std::optional<size_t> open;
  for (size_t k = 0; k < to.size(); ++k) {
    if (ir::is_int(to[k], 0) && !allow_zero) {
      if (k >= from.size())
        return im.fail(ErrorCode::shape, "a 0 in the shape has no input size to copy");
      to[k] = from[k];
    } else if (ir::is_int(to[k], -1)) {
      if (open) return im.fail(ErrorCode::shape, "the shape has more than one -1");
      open = k;
    }
  }
  if (open) {
    to[*open] = im.integer(1);
    std::optional<ExprRef> q = ir::exact_div(product(im, from), product(im, to));
    if (!q) {
      // min(63, S) of a table of 63 rows against S: S <= 63 in every run, and known as that to the
      // next round.
      Result<void> bounded;
      ir::for_each_node(product(im, from), [&](ExprRef e) {
        if (!bounded || e->kind != ir::ExprKind::imin ||
            !ir::as_int(e->args[0]) == !ir::as_int(e->args[1]))
          return;
        const size_t limit = ir::as_int(e->args[0]) ? 0 : 1;
        bounded = im.require_ge0(ir::sub(e->args[limit], e->args[1 - limit]), "a table is shorter");
      });
      TFCC_TRY_VOID(std::move(bounded));
      // A mask [C, T] viewed as [B, -1], where ids are [B, S]: a run has one batch, under two names.
      if (!from.empty() && is_batch(im, to[0], true) && is_batch(im, from[0], false))
        TFCC_TRY_VOID(im.unify(to[0], from[0], "one batch"));
      im.expect_multiple(product(im, from), product(im, to));
      return im.fail(ErrorCode::shape,
                     fmt::format("{} elements do not split by {}", ir::print(product(im, from)),
                                 ir::print(product(im, to))));
    }
    to[*open] = *q;
  }
  const ExprRef have = product(im, from), want = product(im, to);
  TFCC_TRY([[maybe_unused]] ExprRef n,
           im.unify(have, want,
                    fmt::format("{} elements do not make {}", ir::print(have), ir::print(want))));
  return reshape_to(im, x, to);
}

Result<void> import_flatten(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  int64_t axis = im.attr_int("axis", 1);
  if (axis < 0) axis += static_cast<int64_t>(d.size());
  if (axis < 0 || axis > static_cast<int64_t>(d.size()))
    return im.fail(ErrorCode::shape, "axis is out of range");
  return reshape_to(im, x,
                    {product(im, Dims(d.begin(), d.begin() + axis)),
                     product(im, Dims(d.begin() + axis, d.end()))});
}

Result<void> import_transpose(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  std::vector<int64_t> perm;
  for (size_t k = d.size(); k-- > 0;) perm.push_back(static_cast<int64_t>(k));
  perm = im.attr_ints("perm").value_or(perm);
  std::vector<bool> seen(d.size());
  Dims to;
  for (int64_t p : perm) {
    if (p < 0 || p >= static_cast<int64_t>(d.size()) || seen[p])
      return im.fail(ErrorCode::shape, "perm is not a permutation of the axes");
    seen[p] = true;
    to.push_back(d[p]);
  }
  if (to.size() != d.size())
    return im.fail(ErrorCode::shape, "perm is not a permutation of the axes");
  const Indices at = im.index_vars(to);
  Indices from(d.size());
  for (size_t k = 0; k < perm.size(); ++k) from[perm[k]] = at[k];
  return view(im, x, to, from);
}

Result<void> import_unsqueeze(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(std::vector<int64_t> axes, axes_of(im, 1));
  const Dims d = im.dims(x);
  std::vector<bool> added(d.size() + axes.size());
  for (int64_t a : axes) {
    TFCC_TRY(size_t axis, im.axis_of(a, added.size()));
    if (added[axis]) return im.fail(ErrorCode::shape, fmt::format("axis {} is given twice", a));
    added[axis] = true;
  }
  Dims to;
  for (size_t k = 0, next = 0; k < added.size(); ++k)
    to.push_back(added[k] ? im.integer(1) : d[next++]);
  const Indices at = im.index_vars(to);
  Indices from;
  for (size_t k = 0; k < added.size(); ++k) {
    if (!added[k]) from.push_back(at[k]);
  }
  return view(im, x, to, from);
}

Result<void> import_squeeze(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(std::vector<int64_t> axes, axes_of(im, 1));
  const Dims d = im.dims(x);
  std::vector<bool> dropped(d.size());
  for (int64_t a : axes) {
    TFCC_TRY(size_t axis, im.axis_of(a, d.size()));
    TFCC_TRY([[maybe_unused]] ExprRef one,
             im.unify(d[axis], im.integer(1),
                      fmt::format("axis {} has size {}, not 1", a, ir::print(d[axis]))));
    dropped[axis] = true;
  }
  if (axes.empty()) {
    for (size_t k = 0; k < d.size(); ++k) dropped[k] = ir::is_int(d[k], 1);
  }
  Dims to;
  for (size_t k = 0; k < d.size(); ++k) {
    if (!dropped[k]) to.push_back(d[k]);
  }
  const Indices at = im.index_vars(to);
  Indices from;
  for (size_t k = 0, next = 0; k < d.size(); ++k)
    from.push_back(dropped[k] ? im.integer(0) : at[next++]);
  return view(im, x, to, from);
}

Result<void> import_expand(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId s, im.input(1));
  TFCC_TRY(Dims shape, im.sizes(s, "shape"));
  TFCC_TRY(Dims to, im.broadcast(im.dims(x), shape));
  im.define(0, im.broadcast_element(x, im.index_vars(to)), im.type(x).dtype, to);
  return {};
}

namespace {

// One body chooses among so many parts; more are joined in groups first, or its selects would nest
// too deep.
constexpr size_t kMostParts = 64;

struct Joined {
  ExprRef body;
  Dims dims;
};

// The parts one after another along `axis`; in the other axes they are like `like`.
Joined joined(Importer& im, std::span<const ValueId> parts, const Dims& like, size_t axis) {
  std::vector<ExprRef> ends;
  ExprRef total = im.integer(0);
  for (ValueId v : parts) ends.push_back(total = ir::add(total, im.dims(v)[axis]));
  Joined out{nullptr, like};
  out.dims[axis] = total;
  const Indices at = im.index_vars(out.dims);
  const Type& type = im.type(parts[0]);
  // With truth values the choice may become an "and" or "or", which evaluate both sides: indices
  // stay inside by themselves.
  const bool eager =
      type.dtype == DType::boolean &&
      std::any_of(parts.begin(), parts.end(), [&](ValueId v) { return im.graph.constant(v); });
  for (size_t i = parts.size(); i-- > 0;) {
    Indices own = at;
    if (i > 0) own[axis] = ir::sub(at[axis], ends[i - 1]);
    if (is_int(im.dims(parts[i])[axis], 0)) continue;
    if (is_int(im.dims(parts[i])[axis], 1)) own[axis] = im.integer(0);
    else if (eager) own[axis] = clamped(own[axis], im.dims(parts[i])[axis]);
    ExprRef e = im.element(parts[i], own);
    out.body = out.body ? ir::select(ir::lt(at[axis], ends[i]), e, out.body) : e;
  }
  if (!out.body) out.body = zero_of(im, ir::scalar_of(type.dtype));
  return out;
}

}  // namespace

Result<ValueId> concat(Importer& im, std::vector<ValueId> parts, size_t axis,
                       std::string_view suffix) {
  const Type first = im.type(parts[0]);
  Dims to = first.dims;
  for (ValueId v : parts) {
    if (im.rank(v) != to.size() || im.type(v).dtype != first.dtype) {
      return im.fail(ErrorCode::shape,
                     fmt::format("inputs {} and {} do not concatenate", ir::to_string(first),
                                 ir::to_string(im.type(v))));
    }
    for (size_t k = 0; k < to.size(); ++k) {
      if (k != axis) {
        TFCC_TRY(to[k], im.unify(to[k], im.dims(v)[k], fmt::format("inputs differ in axis {}", k)));
      }
    }
  }
  for (size_t level = 0; parts.size() > kMostParts; ++level) {
    std::vector<ValueId> groups;
    for (size_t i = 0; i < parts.size(); i += kMostParts) {
      const Joined j =
          joined(im, std::span(parts).subspan(i, std::min(kMostParts, parts.size() - i)), to, axis);
      groups.push_back(im.pointwise(j.body, first.dtype, j.dims,
                                    fmt::format(".part{}.{}", level, groups.size())));
    }
    parts = std::move(groups);
  }
  const Joined all = joined(im, parts, to, axis);
  return im.pointwise(all.body, first.dtype, all.dims, suffix);
}

Result<void> import_concat(Importer& im) {
  TFCC_TRY(ValueId first, im.input(0));
  if (!im.node->find("axis")) return im.fail(ErrorCode::bad_file, "attribute 'axis' is missing");
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", 0), im.rank(first)));
  std::vector<ValueId> parts;
  for (size_t i = 0; i < im.node->inputs.size(); ++i) {
    TFCC_TRY(ValueId v, im.input(i));
    parts.push_back(v);
  }
  TFCC_TRY(const ValueId y, concat(im, std::move(parts), axis, ""));
  im.define(0, y);
  return {};
}

namespace {

// Writes part [start, start + n) along an axis as output `out`.
void define_part(Importer& im, size_t out, ValueId x, size_t axis, ExprRef start, ExprRef n) {
  Dims to = im.dims(x);
  to[axis] = n;
  Indices at = im.index_vars(to);
  at[axis] = ir::add(at[axis], start);
  // A split that does not fit every size is a check of the run; until then the index must stay
  // inside by itself.
  if (!ir::prove_le(ir::add(start, n), im.dims(x)[axis]))
    at[axis] = clamped(at[axis], im.dims(x)[axis]);
  im.define(out, im.element(x, at), im.type(x).dtype, to);
}

}  // namespace

Result<void> import_split(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", 0), im.rank(x)));
  const ExprRef size = im.dims(x)[axis];
  const int64_t parts = static_cast<int64_t>(im.node->outputs.size());
  std::vector<ExprRef> lengths;
  if (im.has_input(1)) {
    TFCC_TRY(ValueId s, im.input(1));
    TFCC_TRY(lengths, im.sizes(s, "split"));
  } else if (auto given = im.attr_ints("split")) {
    for (int64_t n : *given) lengths.push_back(im.integer(n));
  } else {
    ExprRef each = ir::div(ir::add(size, im.integer(parts - 1)), im.integer(parts));
    for (int64_t i = 0; i + 1 < parts; ++i) lengths.push_back(each);
    lengths.push_back(ir::sub(size, ir::mul(each, im.integer(parts - 1))));
  }
  if (lengths.size() != static_cast<size_t>(parts))
    return im.fail(ErrorCode::shape, "split does not name one size per output");
  ExprRef start = im.integer(0);
  for (size_t i = 0; i < lengths.size(); ++i) {
    TFCC_TRY_VOID(im.require_ge0(
        lengths[i], fmt::format("size {} does not split into {} parts", ir::print(size), parts)));
    define_part(im, i, x, axis, start, lengths[i]);
    start = ir::add(start, lengths[i]);
  }
  TFCC_TRY(
      [[maybe_unused]] ExprRef total,
      im.unify(size, start,
               fmt::format("split sizes add up to {}, not {}", ir::print(start), ir::print(size))));
  return {};
}

Result<Gathered> gathered(Importer& im, const Dims& d, size_t axis, ValueId indices) {
  if (!is_integer(im.type(indices).dtype))
    return im.fail(ErrorCode::bad_file, "indices must be integers");
  const Dims di = im.dims(indices);
  Gathered g;
  g.dims.assign(d.begin(), d.begin() + axis);
  g.dims.insert(g.dims.end(), di.begin(), di.end());
  g.dims.insert(g.dims.end(), d.begin() + axis + 1, d.end());
  const Indices at = im.index_vars(g.dims);
  ExprRef raw = im.element(indices, Indices(at.begin() + axis, at.begin() + axis + di.size()));
  TFCC_TRY(ExprRef position, im.gather_index(raw, d[axis]));
  g.from.assign(at.begin(), at.begin() + axis);
  g.from.push_back(position);
  g.from.insert(g.from.end(), at.begin() + axis + di.size(), at.end());
  return g;
}

Result<void> import_gather(Importer& im) {
  TFCC_TRY(ValueId data, im.input(0));
  TFCC_TRY(ValueId indices, im.input(1));
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", 0), im.rank(data)));
  TFCC_TRY(const Gathered g, gathered(im, im.dims(data), axis, indices));
  im.define(0, im.element(data, g.from), im.type(data).dtype, g.dims);
  return {};
}

Result<void> import_constant_of_shape(Importer& im) {
  TFCC_TRY(ValueId s, im.input(0));
  TFCC_TRY(Dims to, im.sizes(s, "shape"));
  const Attribute* value = im.node->find("value");
  if (value && !value->tensor)
    return im.fail(ErrorCode::unsupported, fmt::format("value {}", value->unsupported));
  DType dtype = DType::f32;
  ExprRef e = im.pool().real(0);
  if (value) {
    if (value->tensor->element_count() != 1)
      return im.fail(ErrorCode::bad_file, "value must have one element");
    dtype = value->tensor->result_dtype();
    e = ir::constant_element(im.pool(), *value->tensor,
                             Indices(value->tensor->result_dims().size(), im.integer(0)));
  }
  im.define(0, e, dtype, to);
  return {};
}

namespace {

// The integer that a real expression is, if it is one: Cast(S) + 1.0.
ExprRef whole_number(ExprRef e) {
  ExprPool& pool = *e->pool;
  if (auto v = ir::as_real(e)) {
    const bool whole = std::floor(*v) == *v && std::fabs(*v) < 16777216.0;
    return whole ? pool.integer(static_cast<int64_t>(*v)) : nullptr;
  }
  if (e->kind == ir::ExprKind::i2f) return e->args[0];
  const bool sum = e->kind == ir::ExprKind::fadd, difference = e->kind == ir::ExprKind::fsub;
  if (!sum && !difference) return nullptr;
  ExprRef a = whole_number(e->args[0]), b = whole_number(e->args[1]);
  if (!a || !b) return nullptr;
  return sum ? ir::add(a, b) : ir::sub(a, b);
}

Result<void> range_of_integers(Importer& im, const std::vector<ExprRef>& v, DType dtype) {
  auto delta = ir::as_int(v[2]);
  if (!delta || *delta == 0 || *delta == INT64_MIN)
    return im.fail(ErrorCode::unsupported, "delta must be a non-zero constant");
  ExprRef span = *delta > 0 ? ir::sub(v[1], v[0]) : ir::sub(v[0], v[1]);
  const int64_t step = *delta > 0 ? *delta : -*delta;
  ExprRef n =
      ir::max(im.integer(0), ir::div(ir::add(span, im.integer(step - 1)), im.integer(step)));
  const Dims to{n};
  ExprRef k = im.index_vars(to)[0];
  im.define(0, ir::convert(ir::add(v[0], ir::mul(k, v[2])), ir::scalar_of(dtype)), dtype, to);
  return {};
}

Result<void> range_of_reals(Importer& im, const std::vector<ExprRef>& v, DType dtype) {
  const auto start = ir::as_real(v[0]), limit = ir::as_real(v[1]), delta = ir::as_real(v[2]);
  if (!start || !limit || !delta || *delta == 0) {
    return im.fail(
        ErrorCode::unsupported,
        "start, limit and delta of reals must be known at compile time, or whole numbers made of sizes");
  }
  const double count = std::ceil((*limit - *start) / *delta);
  if (!(count <= static_cast<double>(kLargestRange)))
    return im.fail(ErrorCode::unsupported, "the range is too long or endless");
  const Dims to{im.integer(static_cast<int64_t>(std::max(0.0, count)))};
  ExprRef k = ir::convert(im.index_vars(to)[0], ir::scalar_of(dtype));
  im.define(0, ir::add(v[0], ir::mul(k, v[2])), dtype, to);
  return {};
}

}  // namespace

Result<void> import_range(Importer& im) {
  std::vector<ExprRef> v, whole;
  const char* const roles[] = {"start", "limit", "delta"};
  TFCC_TRY(ValueId first, im.input(0));
  const DType dtype = im.type(first).dtype;
  for (size_t i = 0; i < 3; ++i) {
    TFCC_TRY(ValueId x, im.input(i));
    if (im.type(x).dtype != dtype || dtype == DType::boolean)
      return im.fail(ErrorCode::bad_file, "inputs must be numbers of one type");
    TFCC_TRY(ExprRef e, im.scalar(x, roles[i]));
    e = im.resolved(e);
    if (!is_size_expression(e)) TFCC_TRY_VOID(im.require_size(e, x, roles[i]));
    v.push_back(e);
    if (ExprRef n = is_float(dtype) ? whole_number(e) : e) {
      TFCC_TRY_VOID(im.require_size(n, x, roles[i]));
      whole.push_back(n);
    }
  }
  return whole.size() == 3 ? range_of_integers(im, whole, dtype) : range_of_reals(im, v, dtype);
}

}  // namespace tfcc::frontend

// SPDX-License-Identifier: Apache-2.0
// QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: pointwise bodies that round, clamp
// and cast, and reductions over a whole tensor for a scale that depends on data.
#include <fmt/format.h>

#include <limits>

#include "frontend/import/importer.h"

namespace tfcc::frontend {

bool is_single(Importer& im, ValueId v) {
  return im.rank(v) == 0 || (im.rank(v) == 1 && ir::is_int(im.dims(v)[0], 1));
}

namespace {

using ir::ExprKind;

// Where the scale of an element of x lies: one for all, one per index of an axis, or one per block
// along it.
struct Granularity {
  size_t axis = 0;
  int64_t block = 0;
};

Result<Granularity> granularity(Importer& im, ValueId x, ValueId scale) {
  Granularity g;
  const Dims &dx = im.dims(x), &ds = im.dims(scale);
  if (is_single(im, scale)) return g;
  TFCC_TRY(g.axis, im.axis_of(im.attr_int("axis", 1), dx.size()));
  g.block = im.attr_int("block_size", 0);
  const std::string what =
      fmt::format("a scale of shape {} does not fit {} along axis {}",
                  ir::to_string(im.type(scale)), ir::to_string(im.type(x)), g.axis);
  if (g.block < 0) return im.fail(ErrorCode::bad_file, fmt::format("block_size is {}", g.block));
  if (g.block == 0) {
    if (ds.size() != 1) return im.fail(ErrorCode::shape, what);
    TFCC_TRY_VOID(im.unify(dx[g.axis], ds[0], what));
    return g;
  }
  if (ds.size() != dx.size()) return im.fail(ErrorCode::shape, what);
  for (size_t k = 0; k < dx.size(); ++k) {
    ExprRef blocks =
        k == g.axis ? ir::div(ir::add(dx[k], im.integer(g.block - 1)), im.integer(g.block)) : dx[k];
    TFCC_TRY_VOID(im.unify(blocks, ds[k], what));
    // A known number of blocks bounds the axis, so that indices into the scale need no check.
    if (k == g.axis && ir::as_int(ds[k])) {
      TFCC_TRY_VOID(im.require_ge0(ir::sub(ir::mul(ds[k], im.integer(g.block)), dx[k]), what));
    }
  }
  return g;
}

// The element of a scale or zero point for the element of x at `at`.
Result<ExprRef> parameter(Importer& im, ValueId v, const Granularity& g, const Indices& at) {
  if (is_single(im, v)) return im.element(v, Indices(im.rank(v), im.integer(0)));
  if (g.block == 0) return im.element(v, {at[g.axis]});
  Indices own = at;
  TFCC_TRY(own[g.axis],
           im.gather_index(ir::div(at[g.axis], im.integer(g.block)), im.dims(v)[g.axis]));
  return im.element(v, own);
}

Result<void> check_like_scale(Importer& im, ValueId scale, ValueId zero) {
  if (!is_float(im.type(scale).dtype)) {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("the scale has type {}", to_string(im.type(scale).dtype)));
  }
  if (is_single(im, scale) && is_single(im, zero)) return {};
  bool same = im.rank(scale) == im.rank(zero);
  for (size_t k = 0; same && k < im.rank(scale); ++k) {
    TFCC_TRY_VOID(
        im.unify(im.dims(scale)[k], im.dims(zero)[k], "scale and zero point differ in shape"));
  }
  return same ? Result<void>() : im.fail(ErrorCode::shape, "scale and zero point differ in shape");
}

// The type that a graph names by number, by a zero point, or not at all.
Result<ElementType> type_numbered(Importer& im, int64_t onnx_type, std::string_view role) {
  std::optional<ElementType> t = element_type(static_cast<int>(onnx_type));
  if (!t) {
    const std::string name = onnx_type_name(static_cast<int>(onnx_type));
    return im.fail(ErrorCode::unsupported, fmt::format("{} {} is not supported", role, name));
  }
  return *t;
}

// A quotient in the precision of a type narrower than f32.
ExprRef in_precision(ExprRef e, DType t) {
  if (t == DType::f16) return ir::unary(ExprKind::round_f16, e);
  return t == DType::bf16 ? ir::unary(ExprKind::round_bf16, e) : e;
}

// saturate(round(quotient) + zero), zero an i64 or null. The sum is exact wherever it is not
// clamped.
ExprRef quantised(ExprRef quotient, ExprRef zero, const ElementType& t) {
  ir::ExprPool& pool = *quotient->pool;
  ExprRef r = ir::unary(ExprKind::rint, quotient);
  if (zero) r = ir::add(r, ir::convert(zero, r->type));
  r = ir::min(ir::max(r, pool.real(static_cast<double>(t.lowest), r->type)),
              pool.real(static_cast<double>(t.highest), r->type));
  return ir::convert(r, Scalar::i64);
}

}  // namespace

ExprRef requantised(ExprRef value, ExprRef zero, const ElementType& type) {
  return quantised(value, zero, type);
}

Result<void> import_quantize_linear(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId scale, im.input(1));
  int64_t number = im.attr_type("output_dtype");
  ValueId zero;
  const bool has_zero = im.has_input(2);
  if (has_zero) {
    TFCC_TRY(zero, im.input(2));
    TFCC_TRY_VOID(check_like_scale(im, scale, zero));
    const int own = im.onnx_type(zero);
    if (number != 0 && number != own)
      return im.fail(ErrorCode::bad_file, "output_dtype is not the type of the zero point");
    number = own;
  }
  TFCC_TRY(ElementType t,
           type_numbered(im, number ? number : onnx_type_of(DType::u8), "quantisation to"));
  if (!t.is_integer() && !t.small_float) {
    return im.fail(ErrorCode::unsupported,
                   fmt::format("quantisation to {} is not supported", onnx_type_name(t.onnx_type)));
  }
  if (!is_float(im.type(scale).dtype) || im.type(x).dtype == DType::boolean) {
    return im.fail(ErrorCode::bad_file, "input or scale has a type that cannot be quantised");
  }
  TFCC_TRY(Granularity g, granularity(im, x, scale));
  const Dims dims = im.dims(x);
  const Indices at = im.index_vars(dims);
  const int64_t precision = im.attr_type("precision");
  std::optional<DType> divide_in =
      precision ? dtype_of_onnx(static_cast<int>(precision)) : im.type(scale).dtype;
  if (!divide_in || !is_float(*divide_in)) {
    const std::string name = onnx_type_name(static_cast<int>(precision));
    return im.fail(ErrorCode::unsupported, fmt::format("precision {} is not supported", name));
  }
  const Scalar scalar = ir::scalar_of(*divide_in);
  TFCC_TRY(ExprRef divisor, parameter(im, scale, g, at));
  ExprRef q = ir::div(ir::convert(im.element(x, at), scalar), ir::convert(divisor, scalar));
  q = in_precision(q, *divide_in);
  ExprRef offset = nullptr;
  if (has_zero) {
    TFCC_TRY(offset, parameter(im, zero, g, at));
  }
  ExprRef body =
      t.small_float
          ? ir::convert(round_to_small_float(q, *t.small_float, im.attr_int("saturate", 1) != 0),
                        Scalar::f32)
          : quantised(q, offset, t);
  im.set_onnx_type(im.define(0, body, t.value, dims), t);
  return {};
}

Result<void> import_dequantize_linear(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId scale, im.input(1));
  TFCC_TRY(Granularity g, granularity(im, x, scale));
  const Dims dims = im.dims(x);
  const Indices at = im.index_vars(dims);
  ExprRef e = im.element(x, at);
  if (im.has_input(2)) {
    TFCC_TRY(ValueId zero, im.input(2));
    TFCC_TRY_VOID(check_like_scale(im, scale, zero));
    if (im.type(zero).dtype != im.type(x).dtype) {
      return im.fail(ErrorCode::bad_file,
                     fmt::format("input and zero point have types {} and {}, which must be equal",
                                 to_string(im.type(x).dtype), to_string(im.type(zero).dtype)));
    }
    TFCC_TRY(ExprRef offset, parameter(im, zero, g, at));
    e = ir::sub(e, offset);
  }
  const int64_t number = im.attr_type("output_dtype");
  const std::optional<DType> out =
      number ? dtype_of_onnx(static_cast<int>(number)) : im.type(scale).dtype;
  if (!out || !is_float(*out) || !is_float(im.type(scale).dtype)) {
    return im.fail(ErrorCode::bad_file, "scale or output_dtype is not a float type");
  }
  const Scalar scalar = ir::scalar_of(*out);
  TFCC_TRY(ExprRef factor, parameter(im, scale, g, at));
  e = ir::mul(ir::convert(e, scalar), ir::convert(factor, scalar));
  im.define(0, in_precision(e, *out), *out, dims);
  return {};
}

namespace {

// kind over all elements of x: along the last axis first, so that the work is spread.
ValueId reduce_all(Importer& im, ValueId x, ir::ReduceKind kind, std::string_view suffix) {
  ValueId v = x;
  const size_t rank = im.rank(x);
  for (const size_t first : {rank < 2 ? size_t{0} : rank - 1, size_t{0}}) {
    if (first >= im.rank(v)) continue;
    const Dims d = im.dims(v);
    const Dims out(d.begin(), d.begin() + static_cast<long>(first));
    ir::ReduceAttrs attrs;
    attrs.kind = kind;
    attrs.extents.assign(d.begin() + static_cast<long>(first), d.end());
    ir::Captured c = ir::capture(im.element(v, im.index_vars(d)));
    attrs.body = c.body;
    v = im.graph.add(ir::OpKind::reduce, c.operands, attrs, {im.type(x).dtype, out},
                     im.value_name(0) + std::string(suffix) + (first ? ".rows" : ""),
                     im.node->name);
  }
  return v;
}

}  // namespace

Result<DynamicallyQuantised> quantised_dynamically(Importer& im, ValueId x) {
  if (im.type(x).dtype != DType::f32) {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("input has type {}, not f32", to_string(im.type(x).dtype)));
  }
  const Dims dims = im.dims(x);
  auto extreme = [&](ir::ReduceKind kind, std::string_view suffix) {
    return im.rank(x) == 0 ? im.element(x, {})
                           : ir::load_of(im.graph, reduce_all(im, x, kind, suffix), {});
  };
  ExprRef zero = im.pool().real(0), steps = im.pool().real(255), one = im.pool().real(1);
  ExprRef high = ir::max(extreme(ir::ReduceKind::max, ".max"), zero),
          low = ir::min(extreme(ir::ReduceKind::min, ".min"), zero);
  ExprRef range = ir::sub(high, low);
  // A tensor of zeros has no scale of its own; as onnxruntime does, 1.
  const ValueId scale = im.pointwise(ir::select(ir::eq(range, zero), one, ir::div(range, steps)),
                                     DType::f32, {}, ".scale");
  ExprRef s = ir::load_of(im.graph, scale, {});
  const ElementType u8 = *element_type(onnx_type_of(DType::u8));
  const ValueId point = im.pointwise(quantised(ir::sub(zero, ir::div(low, s)), nullptr, u8),
                                     DType::u8, {}, ".zero_point");
  const Indices at = im.index_vars(dims);
  ExprRef body = quantised(ir::div(im.element(x, at), s), ir::load_of(im.graph, point, {}), u8);
  return DynamicallyQuantised{im.pointwise(body, DType::u8, dims, ".quantised"), scale, point};
}

Result<void> import_dynamic_quantize_linear(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(DynamicallyQuantised q, quantised_dynamically(im, x));
  const ValueId results[] = {q.values, q.scale, q.zero};
  for (size_t i = 0; i < std::size(results) && i < im.node->outputs.size(); ++i) {
    if (im.node->outputs[i].empty()) continue;
    im.graph.rename(results[i], im.value_name(i));
    im.define(i, results[i]);
  }
  return {};
}

}  // namespace tfcc::frontend

// SPDX-License-Identifier: Apache-2.0
// Matrix products: MatMul, Gemm and FusedGemm, MatMulInteger, QLinearMatMul and QGemm.
#include <fmt/format.h>

#include "frontend/import/importer.h"
#include "ir/matmul.h"

namespace tfcc::frontend {
namespace {

// Two operands of ONNX's MatMul as matrices: vectors have become a row and a column.
struct Matrices {
  ValueId a, b;
  bool row = false, column = false;
  Dims out;           // of the product of the matrices
  int64_t below = 0;  // by how much the elements of b are less than what the graph has
};

Result<Matrices> matrices(Importer& im, ValueId a, ValueId b) {
  if (im.rank(a) == 0 || im.rank(b) == 0)
    return im.fail(ErrorCode::shape, "inputs must not be scalars");
  Matrices m{a, b, im.rank(a) == 1, im.rank(b) == 1, {}};
  if (m.row) m.a = reshape(im, a, {im.integer(1), im.dims(a)[0]}, ".row");
  if (m.column) m.b = reshape(im, b, {im.dims(b)[0], im.integer(1)}, ".column");
  const Dims da = im.dims(m.a), db = im.dims(m.b);
  TFCC_TRY_VOID(im.unify(da.back(), db[db.size() - 2],
                         fmt::format("{} and {} do not multiply", ir::to_string(im.type(m.a)),
                                     ir::to_string(im.type(m.b)))));
  TFCC_TRY(m.out, im.broadcast(Dims(da.begin(), da.end() - 2), Dims(db.begin(), db.end() - 2)));
  m.out.push_back(da[da.size() - 2]);
  m.out.push_back(db.back());
  return m;
}

// The same of bytes. A weight of unsigned ones becomes one of signed ones, which is what CPUs
// multiply by (VNNI).
Result<Matrices> matrices_of_bytes(Importer& im, ValueId a, ValueId b) {
  TFCC_TRY(Matrices m, matrices(im, a, b));
  if (!im.graph.is_constant(m.b) || im.type(m.b).dtype != DType::u8) return m;
  m.below = 128;
  m.b = im.pointwise(ir::sub(im.element(m.b, im.index_vars(im.dims(m.b))), im.integer(m.below)),
                     DType::i8, im.dims(m.b), ".signed");
  return m;
}

ValueId product(Importer& im, const Matrices& m, DType dtype, std::string_view suffix) {
  return im.graph.add(ir::OpKind::matmul, {m.a, m.b}, ir::MatmulAttrs{}, {dtype, m.out},
                      im.value_name(0) + std::string(suffix), im.node->name);
}

// The product without the dims that vectors do not have.
ValueId without_vectors(Importer& im, const Matrices& m, ValueId y) {
  if (!m.row && !m.column) return y;
  Dims flat(m.out.begin(), m.out.end() - 2);
  if (!m.row) flat.push_back(m.out[m.out.size() - 2]);
  if (!m.column) flat.push_back(m.out.back());
  return reshape(im, y, flat, "");
}

// sum over k of the integers v[..., k] (or v[..., k, n]) as an i32 tensor without that dim.
ValueId sum_over(Importer& im, ValueId v, bool rows, std::string_view suffix) {
  Dims out = im.dims(v);
  const size_t axis = out.size() - (rows ? 1 : 2);
  ir::ReduceAttrs attrs;
  attrs.kind = ir::ReduceKind::sum;
  attrs.extents = {out[axis]};
  out.erase(out.begin() + static_cast<long>(axis));
  Indices at = im.index_vars(out);
  at.insert(at.begin() + static_cast<long>(axis),
            im.pool().index(static_cast<int64_t>(out.size()), attrs.extents[0]));
  ir::Captured c = ir::capture(im.element(v, at));
  attrs.body = c.body;
  return im.graph.add(ir::OpKind::reduce, c.operands, attrs, {DType::i32, out},
                      im.value_name(0) + std::string(suffix), im.node->name);
}

// A parameter of an operand at an index of the product: one for all, one per row of a (per column
// of b), or broadcast.
ExprRef operand_parameter(Importer& im, ValueId v, const Indices& at, bool of_a) {
  if (im.rank(v) != 1 || !of_a) return im.broadcast_element(v, at);
  return im.element(v, {ir::is_int(im.dims(v)[0], 1) ? im.integer(0) : at[at.size() - 2]});
}

Result<void> check_parameter(Importer& im, ValueId v, const Matrices& m, bool of_a,
                             std::string_view role) {
  const Dims d = im.dims(v);
  const std::string what =
      fmt::format("{} has shape {}, which does not fit", role, ir::to_string(im.type(v)));
  if (d.size() > m.out.size()) return im.fail(ErrorCode::shape, what);
  for (size_t k = 0; k < d.size(); ++k) {
    const size_t from_end = d.size() == 1 && of_a ? 2 : d.size() - k;
    const bool own = from_end != (of_a ? 1u : 2u);  // a has no columns, b no rows
    if (ir::is_int(d[k], 1)) continue;
    if (!own) return im.fail(ErrorCode::shape, what);
    TFCC_TRY_VOID(im.unify(m.out[m.out.size() - from_end], d[k], what));
  }
  return {};
}

// The most terms of 8 bits whose sum, and that of the corrections, fits 32 bits.
constexpr int64_t kSafeTerms = 8192;

// Zero points of a and b, where there are any.
struct ZeroPoints {
  std::optional<ValueId> a, b;
};

Result<ZeroPoints> zero_points(Importer& im, size_t a_input, size_t b_input) {
  ZeroPoints z;
  if (im.has_input(a_input)) {
    TFCC_TRY(z.a, im.input(a_input));
  }
  if (im.has_input(b_input)) {
    TFCC_TRY(z.b, im.input(b_input));
  }
  return z;
}

// sum over k of (a - za) (b - zb) at an index of the product; `whole` is sum a b.
Result<ExprRef> integer_product(Importer& im, const Matrices& m, ValueId whole,
                                const ZeroPoints& zeros, const Indices& at) {
  ExprRef sum = ir::load_of(im.graph, whole, at);
  ExprRef za = im.integer(0), zb = im.integer(0);
  const DType type_of_b = m.below ? DType::u8 : im.type(m.b).dtype;
  for (const bool of_a : {true, false}) {
    const std::optional<ValueId> given = of_a ? zeros.a : zeros.b;
    if (!given) continue;
    const ValueId zero = *given;
    TFCC_TRY_VOID(
        check_parameter(im, zero, m, of_a, of_a ? "the zero point of A" : "the zero point of B"));
    if (im.type(zero).dtype != (of_a ? im.type(m.a).dtype : type_of_b)) {
      return im.fail(ErrorCode::bad_file, "a zero point has another type than its matrix");
    }
    (of_a ? za : zb) = operand_parameter(im, zero, at, of_a);
  }
  zb = ir::sub(zb, im.integer(m.below));
  auto of_sum = [&](ValueId v, bool rows) {
    Indices own = at;
    own.erase(own.end() - (rows ? 1 : 2));
    return im.broadcast_element(sum_over(im, v, rows, rows ? ".row_sums" : ".column_sums"), own);
  };
  if (!ir::is_int(za, 0)) sum = ir::sub(sum, ir::mul(za, of_sum(m.b, false)));
  if (!ir::is_int(zb, 0)) sum = ir::sub(sum, ir::mul(zb, of_sum(m.a, true)));
  if (ir::is_int(za, 0) && ir::is_int(zb, 0)) return sum;
  ExprRef k = im.dims(m.a).back();
  sum = ir::add(sum, ir::mul(k, ir::mul(za, zb)));
  // Accumulators have 32 bits: what does not fit wraps, also where this expression is read before
  // it is stored.
  return ir::prove_le(k, im.integer(kSafeTerms))
             ? sum
             : wrap_to_integer(sum, *element_type(onnx_type_of(DType::i32)));
}

Result<void> check_bytes(Importer& im, ValueId a, ValueId b) {
  for (ValueId v : {a, b}) {
    const DType t = im.type(v).dtype;
    if (t == DType::u8 || t == DType::i8) continue;
    return im.fail(
        ErrorCode::unsupported,
        fmt::format("product of {} is not supported; 8-bit integers are needed", to_string(t)));
  }
  return {};
}

}  // namespace

Result<void> import_matmul(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  const DType dtype = im.type(a).dtype;
  if (dtype != im.type(b).dtype) return im.fail(ErrorCode::bad_file, "inputs have different types");
  if (!is_float(dtype) && dtype != DType::i32 && dtype != DType::i64) {
    return im.fail(ErrorCode::unsupported,
                   fmt::format("product of {} is not supported; a float type, i32 or i64 is needed",
                               to_string(dtype)));
  }
  TFCC_TRY(Matrices m, matrices(im, a, b));
  im.define(0, without_vectors(im, m, product(im, m, dtype, m.row || m.column ? ".matrix" : "")));
  return {};
}

Result<void> import_matmul_integer(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  TFCC_TRY_VOID(check_bytes(im, a, b));
  TFCC_TRY(Matrices m, matrices_of_bytes(im, a, b));
  const Indices at = im.index_vars(m.out);
  const ValueId whole = product(im, m, DType::i32, ".product");
  TFCC_TRY(ZeroPoints zeros, zero_points(im, 2, 3));
  TFCC_TRY(ExprRef sum, integer_product(im, m, whole, zeros, at));
  const bool plain = sum == ir::load_of(im.graph, whole, at);
  const ValueId y =
      plain ? whole : im.pointwise(sum, DType::i32, m.out, m.row || m.column ? ".matrix" : "");
  im.define(0, without_vectors(im, m, y));
  return {};
}

Result<void> import_qlinear_matmul(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId a_scale, im.input(1));
  TFCC_TRY(ValueId b, im.input(3));
  TFCC_TRY(ValueId b_scale, im.input(4));
  TFCC_TRY(ValueId y_scale, im.input(6));
  TFCC_TRY(ValueId y_zero, im.input(7));
  TFCC_TRY_VOID(check_bytes(im, a, b));
  TFCC_TRY(Matrices m, matrices_of_bytes(im, a, b));
  const std::optional<ElementType> to = element_type(im.onnx_type(y_zero));
  if (!to || !to->is_integer())
    return im.fail(ErrorCode::unsupported, "the result is of no integer type that tfcc has");
  for (ValueId v : {a_scale, b_scale, y_scale}) {
    if (!is_float(im.type(v).dtype))
      return im.fail(ErrorCode::bad_file, "a scale is not of a float type");
    TFCC_TRY_VOID(check_parameter(im, v, m, v != b_scale, "a scale"));
  }
  TFCC_TRY_VOID(check_parameter(im, y_zero, m, true, "the zero point of the result"));
  const Indices at = im.index_vars(m.out);
  TFCC_TRY(ZeroPoints zeros, zero_points(im, 2, 5));
  TFCC_TRY(ExprRef sum, integer_product(im, m, product(im, m, DType::i32, ".product"), zeros, at));
  auto scale = [&](ValueId v) {
    return ir::convert(operand_parameter(im, v, at, v != b_scale), Scalar::f32);
  };
  ExprRef factor = ir::div(ir::mul(scale(a_scale), scale(b_scale)), scale(y_scale));
  ExprRef body = requantised(ir::mul(ir::convert(sum, Scalar::f32), factor),
                             operand_parameter(im, y_zero, at, true), *to);
  const ValueId y = im.pointwise(body, to->value, m.out, m.row || m.column ? ".matrix" : "");
  im.define(0, without_vectors(im, m, y));
  return {};
}

namespace {

Result<void> check_scales(Importer& im, const Matrices& m, ValueId a_scale, ValueId b_scale) {
  for (ValueId v : {a_scale, b_scale}) {
    if (im.type(v).dtype != DType::f32) return im.fail(ErrorCode::bad_file, "a scale is not f32");
    TFCC_TRY_VOID(check_parameter(im, v, m, v == a_scale, "a scale"));
  }
  return {};
}

// The integer product of a and b as reals: times both scales, plus the bias of input `bias`.
Result<void> define_scaled(Importer& im, ValueId a, ValueId b, const ZeroPoints& zeros,
                           ValueId a_scale, ValueId b_scale, size_t bias) {
  TFCC_TRY_VOID(check_bytes(im, a, b));
  TFCC_TRY(Matrices m, matrices_of_bytes(im, a, b));
  TFCC_TRY_VOID(check_scales(im, m, a_scale, b_scale));
  const Indices at = im.index_vars(m.out);
  TFCC_TRY(ExprRef sum, integer_product(im, m, product(im, m, DType::i32, ".product"), zeros, at));
  ExprRef scale =
      ir::mul(operand_parameter(im, a_scale, at, true), operand_parameter(im, b_scale, at, false));
  ExprRef y = ir::mul(ir::convert(sum, Scalar::f32), scale);
  if (im.has_input(bias)) {
    TFCC_TRY(ValueId c, im.input(bias));
    if (im.type(c).dtype != DType::f32 || im.rank(c) != 1)
      return im.fail(ErrorCode::bad_file, "the bias is not a vector of f32");
    TFCC_TRY_VOID(im.unify(m.out.back(), im.dims(c)[0], "the bias does not fit the product"));
    y = ir::add(y, im.broadcast_element(c, at));
  }
  im.define(0, without_vectors(
                   im, m, im.pointwise(y, DType::f32, m.out, m.row || m.column ? ".matrix" : "")));
  return {};
}

}  // namespace

Result<void> import_microsoft_matmul_integer_to_float(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  TFCC_TRY(ValueId a_scale, im.input(2));
  TFCC_TRY(ValueId b_scale, im.input(3));
  TFCC_TRY(ZeroPoints zeros, zero_points(im, 4, 5));
  return define_scaled(im, a, b, zeros, a_scale, b_scale, 6);
}

Result<void> import_microsoft_dynamic_quantize_matmul(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  TFCC_TRY(ValueId b_scale, im.input(2));
  TFCC_TRY(DynamicallyQuantised q, quantised_dynamically(im, a));
  ZeroPoints zeros{q.zero, std::nullopt};
  if (im.has_input(3)) {
    TFCC_TRY(zeros.b, im.input(3));
  }
  return define_scaled(im, q.values, b, zeros, q.scale, b_scale, 4);
}

// alpha * a_scale * b_scale * (A B + C) with an i32 C, quantised if the result has a scale.
Result<void> import_microsoft_qgemm(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId a_scale, im.input(1));
  TFCC_TRY(ValueId b, im.input(3));
  TFCC_TRY(ValueId b_scale, im.input(4));
  TFCC_TRY_VOID(check_bytes(im, a, b));
  if (im.rank(a) != 2 || im.rank(b) != 2) return im.fail(ErrorCode::shape, "needs two matrices");
  if (im.attr_int("transA", 0) != 0) a = transpose(im, a, {1, 0}, ".a");
  if (im.attr_int("transB", 0) != 0) b = transpose(im, b, {1, 0}, ".b");
  TFCC_TRY(Matrices m, matrices_of_bytes(im, a, b));
  TFCC_TRY_VOID(check_scales(im, m, a_scale, b_scale));
  const Indices at = im.index_vars(m.out);
  TFCC_TRY(ZeroPoints zeros, zero_points(im, 2, 5));
  TFCC_TRY(ExprRef sum, integer_product(im, m, product(im, m, DType::i32, ".product"), zeros, at));
  if (im.has_input(6)) {
    TFCC_TRY(ValueId c, im.input(6));
    if (im.type(c).dtype != DType::i32) return im.fail(ErrorCode::bad_file, "C is not i32");
    TFCC_TRY(Dims dims, im.broadcast(m.out, im.dims(c)));
    if (dims != m.out) return im.fail(ErrorCode::shape, "C does not broadcast to the product");
    sum = ir::add(sum, im.broadcast_element(c, at));
  }
  ExprRef scale =
      ir::mul(operand_parameter(im, a_scale, at, true), operand_parameter(im, b_scale, at, false));
  scale = ir::mul(im.pool().real(im.attr_float("alpha", 1)), scale);
  ExprRef y = ir::mul(ir::convert(sum, Scalar::f32), scale);
  if (!im.has_input(7)) {
    im.define(0, y, DType::f32, m.out);
    return {};
  }
  TFCC_TRY(ValueId y_scale, im.input(7));
  TFCC_TRY(ValueId y_zero, im.input(8));
  const std::optional<ElementType> to = element_type(im.onnx_type(y_zero));
  if (!to || !to->is_integer())
    return im.fail(ErrorCode::unsupported, "the result is of no integer type that tfcc has");
  if (im.type(y_scale).dtype != DType::f32)
    return im.fail(ErrorCode::bad_file, "a scale is not f32");
  TFCC_TRY_VOID(check_parameter(im, y_scale, m, false, "the scale of the result"));
  TFCC_TRY_VOID(check_parameter(im, y_zero, m, false, "the zero point of the result"));
  ExprRef body = requantised(ir::div(y, operand_parameter(im, y_scale, at, false)),
                             operand_parameter(im, y_zero, at, false), *to);
  im.define(0, body, to->value, m.out);
  return {};
}

namespace {

/// The value is named for output 0, with this behind it.
Result<ValueId> gemm(Importer& im, const std::string& suffix) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  if (!is_float(im.type(a).dtype)) {
    return im.fail(ErrorCode::unsupported,
                   fmt::format("Gemm of {} is not supported; a float type is needed",
                               to_string(im.type(a).dtype)));
  }
  if (im.rank(a) != 2 || im.rank(b) != 2 || im.type(a).dtype != im.type(b).dtype) {
    return im.fail(ErrorCode::shape, "Gemm needs two matrices of one type");
  }
  ir::MatmulAttrs attrs;
  attrs.alpha = im.attr_float("alpha", 1);
  attrs.trans_a = im.attr_int("transA", 0) != 0;
  attrs.trans_b = im.attr_int("transB", 0) != 0;
  const Dims da = im.dims(a), db = im.dims(b);
  const Dims out{da[attrs.trans_a ? 1 : 0], db[attrs.trans_b ? 0 : 1]};
  TFCC_TRY([[maybe_unused]] ExprRef k,
           im.unify(da[attrs.trans_a ? 0 : 1], db[attrs.trans_b ? 1 : 0],
                    fmt::format("{} and {} do not multiply", ir::to_string(im.type(a)),
                                ir::to_string(im.type(b)))));
  const Type type{im.type(a).dtype, out};
  const std::string name = im.value_name(0) + suffix;
  const float beta = im.attr_float("beta", 1);
  if (!im.has_input(2) || beta == 0) {
    return im.graph.add(ir::OpKind::matmul, {a, b}, attrs, type, name, im.node->name);
  }
  TFCC_TRY(ValueId c, im.input(2));
  if (im.rank(c) == 1 && im.dims(c)[0] == out[1] && beta == 1) {
    return ir::add_matmul(im.graph, a, b, attrs, ir::bias_epilogue(im.graph, type, c), type, name,
                          im.node->name);
  }
  ValueId y =
      im.graph.add(ir::OpKind::matmul, {a, b}, attrs, type, name + ".product", im.node->name);
  TFCC_TRY(Dims sum, im.broadcast(out, im.dims(c)));
  if (sum != out) return im.fail(ErrorCode::shape, "C does not broadcast to the product");
  const Indices at = im.index_vars(out);
  ExprRef e = im.broadcast_element(c, at);
  return im.pointwise(ir::add(im.element(y, at), ir::mul(im.pool().real(beta, e->type), e)),
                      type.dtype, out, suffix);
}

/// What follows the product in FusedGemm; nothing if it is none of these.
std::optional<ExprRef> activated(Importer& im, ExprRef x) {
  const std::string name = im.attr_string("activation", "");
  ExprRef zero = im.pool().real(0, x->type), one = im.pool().real(1, x->type);
  if (name == "Relu") return ir::max(x, zero);
  if (name == "LeakyRelu") {
    ExprRef alpha = im.pool().real(im.attr_float("activation_alpha", 0.01f), x->type);
    return ir::select(ir::lt(x, zero), ir::mul(alpha, x), x);
  }
  if (name == "Tanh") return ir::unary(ir::ExprKind::tanh, x);
  if (name == "Sigmoid")
    return ir::div(one, ir::add(one, ir::unary(ir::ExprKind::exp, ir::neg(x))));
  return std::nullopt;
}

}  // namespace

Result<void> import_gemm(Importer& im) {
  TFCC_TRY(const ValueId y, gemm(im, ""));
  im.define(0, y);
  return {};
}

Result<void> import_microsoft_fused_gemm(Importer& im) {
  TFCC_TRY(const ValueId y, gemm(im, ".gemm"));
  const Type type = im.type(y);
  const auto body = activated(im, im.element(y, im.index_vars(type.dims)));
  if (!body)
    return im.fail(ErrorCode::unsupported,
                   fmt::format("the activation '{}' is none of Relu, LeakyRelu, Tanh and Sigmoid",
                               im.attr_string("activation", "")));
  im.define(0, *body, type.dtype, type.dims);
  return {};
}

}  // namespace tfcc::frontend

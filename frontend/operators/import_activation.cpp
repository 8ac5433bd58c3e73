// SPDX-License-Identifier: Apache-2.0
// Activations and the functions built on exp, log and atan that have no kind of their own. Each
// form is chosen so that nothing cancels and nothing overflows where the result does not.
#include <limits>

#include "frontend/operators/elementwise.h"

namespace tfcc::frontend {
namespace {

using ir::ExprKind;

constexpr double kInf = std::numeric_limits<double>::infinity();

// A constant of the type of an expression.
ExprRef c(ExprRef like, double v) { return like->pool->real(v, like->type); }
ExprRef exp(ExprRef x) { return ir::unary(ExprKind::exp, x); }
ExprRef log(ExprRef x) { return ir::unary(ExprKind::log, x); }
ExprRef sqrt(ExprRef x) { return ir::unary(ExprKind::sqrt, x); }
ExprRef atan(ExprRef x) { return ir::unary(ExprKind::atan, x); }
ExprRef tanh(ExprRef x) { return ir::unary(ExprKind::tanh, x); }

// log(1 + u): what 1 + u loses in rounding is put back by u / ((1 + u) - 1).
ExprRef log1p(ExprRef u) {
  ExprRef w = ir::add(c(u, 1), u);
  ExprRef lost = ir::select(ir::lt(u, c(u, 1e9)), ir::div(u, ir::sub(w, c(u, 1))), c(u, 1));
  return ir::select(ir::eq(w, c(u, 1)), u, ir::mul(log(w), lost));
}

// exp(x) - 1 for x <= 0, through tanh(x / 2), which is exact near 0.
ExprRef expm1_of_negative(ExprRef x) {
  ExprRef t = tanh(ir::mul(x, c(x, 0.5)));
  return ir::div(ir::mul(t, c(x, 2)), ir::sub(c(x, 1), t));
}

ExprRef is_negative(ExprRef x) { return ir::lt(x, c(x, 0)); }

ExprRef with_sign_of(ExprRef x, ExprRef magnitude) {
  return ir::select(is_negative(x), ir::neg(magnitude), magnitude);
}

ExprRef sinh(ExprRef x) {
  ExprRef t = tanh(ir::mul(x, c(x, 0.5)));
  ExprRef near = ir::div(ir::mul(t, c(x, 2)), ir::sub(c(x, 1), ir::mul(t, t)));
  ExprRef half =
      exp(ir::mul(ir::abs(x), c(x, 0.5)));  // e^|x| may overflow where e^|x| / 2 does not
  ExprRef far = ir::sub(ir::mul(half, ir::mul(half, c(x, 0.5))),
                        ir::mul(c(x, 0.5), exp(ir::neg(ir::abs(x)))));
  return ir::select(ir::lt(ir::abs(x), c(x, 1)), near, with_sign_of(x, far));
}

ExprRef cosh(ExprRef x) {
  ExprRef half = exp(ir::mul(ir::abs(x), c(x, 0.5)));
  return ir::add(ir::mul(half, ir::mul(half, c(x, 0.5))),
                 ir::mul(c(x, 0.5), exp(ir::neg(ir::abs(x)))));
}

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kSquareable = 1e6;  // beyond it x^2 + 1 is x^2

ExprRef asinh(ExprRef x) {
  ExprRef a = ir::abs(x), s = ir::mul(a, a);
  ExprRef near = log1p(ir::add(a, ir::div(s, ir::add(c(x, 1), sqrt(ir::add(s, c(x, 1)))))));
  return with_sign_of(x,
                      ir::select(ir::lt(a, c(x, kSquareable)), near, ir::add(log(a), c(x, kLn2))));
}

ExprRef acosh(ExprRef x) {
  ExprRef t = ir::sub(x, c(x, 1));
  ExprRef near = log1p(ir::add(t, sqrt(ir::mul(t, ir::add(t, c(x, 2))))));
  return ir::select(ir::lt(x, c(x, kSquareable)), near, ir::add(log(x), c(x, kLn2)));
}

ExprRef atanh(ExprRef x) {
  ExprRef a = ir::abs(x);
  return with_sign_of(x,
                      ir::mul(c(x, 0.5), log1p(ir::div(ir::mul(a, c(x, 2)), ir::sub(c(x, 1), a)))));
}

ExprRef asin(ExprRef x) {
  return atan(ir::div(x, sqrt(ir::mul(ir::sub(c(x, 1), x), ir::add(c(x, 1), x)))));
}
ExprRef acos(ExprRef x) {
  return ir::mul(c(x, 2), atan(sqrt(ir::div(ir::sub(c(x, 1), x), ir::add(c(x, 1), x)))));
}

}  // namespace

ExprRef sigmoid(ExprRef x) { return ir::div(c(x, 1), ir::add(c(x, 1), exp(ir::neg(x)))); }

ExprRef softplus(ExprRef x) {
  return ir::add(ir::max(x, c(x, 0)), log1p(exp(ir::neg(ir::abs(x)))));
}

Result<void> import_atan(Importer& im) { return float_op(im, atan); }
Result<void> import_asin(Importer& im) { return float_op(im, asin); }
Result<void> import_acos(Importer& im) { return float_op(im, acos); }
Result<void> import_sinh(Importer& im) { return float_op(im, sinh); }
Result<void> import_cosh(Importer& im) { return float_op(im, cosh); }
Result<void> import_asinh(Importer& im) { return float_op(im, asinh); }
Result<void> import_acosh(Importer& im) { return float_op(im, acosh); }
Result<void> import_atanh(Importer& im) { return float_op(im, atanh); }
Result<void> import_softplus(Importer& im) { return float_op(im, softplus); }

Result<void> import_tan(Importer& im) {
  return float_op(im, [](ExprRef x) {
    return ir::div(ir::unary(ExprKind::sin, x), ir::unary(ExprKind::cos, x));
  });
}

Result<void> import_softsign(Importer& im) {
  return float_op(im, [](ExprRef x) { return ir::div(x, ir::add(c(x, 1), ir::abs(x))); });
}

Result<void> import_mish(Importer& im) {
  return float_op(im, [](ExprRef x) { return ir::mul(x, tanh(softplus(x))); });
}

Result<void> import_swish(Importer& im) {
  const float alpha = im.attr_float("alpha", 1);
  return float_op(im, [&](ExprRef x) { return ir::mul(x, sigmoid(ir::mul(c(x, alpha), x))); });
}

// The Swish of a gate times what it gates, of one shape.
Result<void> import_swi_glu(Importer& im) {
  TFCC_TRY(ValueId gate, im.input(0));
  TFCC_TRY(ValueId value, im.input(1));
  TFCC_TRY_VOID(require_float(im, gate));
  const char* misfit = "the gate and what it gates differ in shape";
  if (im.rank(gate) != im.rank(value)) return im.fail(ErrorCode::shape, misfit);
  for (size_t k = 0; k < im.rank(gate); ++k) {
    TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(im.dims(gate)[k], im.dims(value)[k], misfit));
  }
  const float alpha = im.attr_float("alpha", 1);
  return binary_op(im, false, [&](ExprRef a, ExprRef b) {
    return ir::mul(ir::mul(a, sigmoid(ir::mul(c(a, alpha), a))), b);
  });
}

Result<void> import_elu(Importer& im) {
  const float alpha = im.attr_float("alpha", 1);
  return float_op(im, [&](ExprRef x) {
    return ir::select(is_negative(x), ir::mul(c(x, alpha), expm1_of_negative(x)), x);
  });
}

Result<void> import_celu(Importer& im) {
  const float alpha = im.attr_float("alpha", 1);
  if (alpha == 0) return im.fail(ErrorCode::bad_file, "alpha must not be 0");
  return float_op(im, [&](ExprRef x) {
    ExprRef scaled = ir::div(x, c(x, alpha));
    ExprRef e =
        alpha > 0 ? expm1_of_negative(ir::min(scaled, c(x, 0))) : ir::sub(exp(scaled), c(x, 1));
    return ir::add(ir::max(x, c(x, 0)), ir::min(c(x, 0), ir::mul(c(x, alpha), e)));
  });
}

Result<void> import_selu(Importer& im) {
  const float alpha = im.attr_float("alpha", 1.67326319217681884765625f);
  const float gamma = im.attr_float("gamma", 1.05070102214813232421875f);
  return float_op(im, [&](ExprRef x) {
    return ir::mul(c(x, gamma),
                   ir::select(ir::lt(c(x, 0), x), x, ir::mul(c(x, alpha), expm1_of_negative(x))));
  });
}

Result<void> import_leaky_relu(Importer& im) {
  const float alpha = im.attr_float("alpha", 0.01f);
  return float_op(
      im, [&](ExprRef x) { return ir::select(is_negative(x), ir::mul(c(x, alpha), x), x); });
}

Result<void> import_thresholded_relu(Importer& im) {
  const float alpha = im.attr_float("alpha", 1);
  return float_op(im, [&](ExprRef x) { return ir::select(ir::lt(c(x, alpha), x), x, c(x, 0)); });
}

Result<void> import_hard_sigmoid(Importer& im) {
  const float alpha = im.attr_float("alpha", 0.2f), beta = im.attr_float("beta", 0.5f);
  return float_op(im, [&](ExprRef x) {
    return ir::max(c(x, 0), ir::min(c(x, 1), ir::add(ir::mul(c(x, alpha), x), c(x, beta))));
  });
}

Result<void> import_hard_swish(Importer& im) {
  return float_op(im, [](ExprRef x) {
    ExprRef gate =
        ir::max(c(x, 0), ir::min(c(x, 1), ir::add(ir::mul(c(x, 1.0 / 6), x), c(x, 0.5))));
    return ir::mul(x, gate);
  });
}

Result<void> import_shrink(Importer& im) {
  const float bias = im.attr_float("bias", 0), limit = im.attr_float("lambd", 0.5f);
  return float_op(im, [&](ExprRef x) {
    ExprRef above = ir::select(ir::lt(c(x, limit), x), ir::sub(x, c(x, bias)), c(x, 0));
    return ir::select(ir::lt(x, c(x, -limit)), ir::add(x, c(x, bias)), above);
  });
}

Result<void> import_prelu(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId slope, im.input(1));
  TFCC_TRY(Dims dims, im.broadcast(im.dims(x), im.dims(slope)));
  if (dims != im.dims(x))
    return im.fail(ErrorCode::shape, "the slope does not broadcast to the input");
  return binary_op(im, false, [&](ExprRef a, ExprRef s) {
    ExprRef zero = a->type == Scalar::i64 ? im.integer(0) : c(a, 0);
    return ir::select(ir::lt(a, zero), ir::mul(s, a), a);
  });
}

Result<void> import_is_inf(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  const Dims dims = im.dims(x);
  ExprRef e = im.element(x, im.index_vars(dims));
  ExprRef found = im.pool().boolean(false);
  if (im.attr_int("detect_positive", 1)) found = ir::logical_or(found, ir::eq(e, c(e, kInf)));
  if (im.attr_int("detect_negative", 1)) found = ir::logical_or(found, ir::eq(e, c(e, -kInf)));
  im.define(0, found, DType::boolean, dims);
  return {};
}

}  // namespace tfcc::frontend

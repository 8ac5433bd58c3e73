// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: division, remainder, bits. The expression language divides downwards and by positive numbers only;
// everything else is spelled out here.
#include "frontend/elementwise.h"

namespace tfcc::frontend {
namespace {

struct Bits {
  int64_t least, most;
};

std::optional<Bits> narrow_range(DType dtype) {
  switch (dtype) {
    case DType::i8: return Bits{-128, 127};
    case DType::u8: return Bits{0, 255};
    case DType::i16: return Bits{-32768, 32767};
    default: return std::nullopt;
  }
}

bool is_positive(ExprRef e) { return ir::prove_ge0(ir::sub(e, e->pool->integer(1))); }

// 2^n for 0 <= n <= 62; doubles hold these exactly.
ExprRef power_of_two(Importer& im, ExprRef n) {
  ExprRef exponent = ir::max(im.integer(0), ir::min(n, im.integer(62)));
  if (auto k = ir::as_int(exponent)) return im.integer(int64_t{1} << *k);
  ExprRef p = ir::pow(im.pool().real(2, Scalar::f64), ir::convert(exponent, Scalar::f64));
  return ir::max(im.integer(1), ir::convert(ir::unary(ir::ExprKind::rint, p), Scalar::i64));
}

template <class F>
Result<void> bit_op(Importer& im, F f) {
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type != Scalar::i64) return im.fail(ErrorCode::bad_file, "inputs must be integers");
    return f(a, b);
  });
}

}  // namespace

ExprRef narrowed(Importer& im, ExprRef e, DType dtype) {
  const std::optional<Bits> bits = narrow_range(dtype);
  if (!bits) return e;
  ExprRef least = im.integer(bits->least);
  if (ir::prove_le(least, e) && ir::prove_le(e, im.integer(bits->most))) return e;
  if (e->kind == ir::ExprKind::load && im.type(ValueId{static_cast<uint32_t>(e->value)}).dtype == dtype) return e;
  return ir::add(least, ir::mod(ir::sub(e, least), im.integer(bits->most - bits->least + 1)));
}

namespace {

// The divisor without its sign, 1 for 0.
ExprRef divisor_of(Importer& im, ExprRef b) { return is_positive(b) ? b : ir::max(ir::abs(b), im.integer(1)); }

ExprRef is_negative(Importer& im, ExprRef e) { return ir::lt(e, im.integer(0)); }

// No need to adjust what was rounded down: the dividend is not negative, or nothing was lost.
ExprRef exact_below(Importer& im, ExprRef a, ExprRef remainder) {
  return ir::logical_or(ir::le(im.integer(0), a), ir::eq(remainder, im.integer(0)));
}

}  // namespace

ExprRef truncating_divide(Importer& im, ExprRef a, ExprRef b) {
  const ExprRef d = divisor_of(im, b);
  ExprRef q = ir::div(a, d);
  if (!ir::prove_ge0(a)) q = ir::select(exact_below(im, a, ir::mod(a, d)), q, ir::add(q, im.integer(1)));
  return is_positive(b) ? q : ir::select(is_negative(im, b), ir::neg(q), q);
}

Result<void> import_div(Importer& im) {
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type == Scalar::boolean) return im.fail(ErrorCode::bad_file, "inputs must be numbers");
    if (a->type == Scalar::i64 && ir::is_int(b, 0)) return im.fail(ErrorCode::bad_file, "integer division by zero");
    return a->type == Scalar::i64 ? truncating_divide(im, a, b) : ir::div(a, b);
  });
}

Result<void> import_mod(Importer& im) {
  const bool c_style = im.attr_int("fmod", 0) != 0;
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type != Scalar::i64) {
      if (!c_style) return im.fail(ErrorCode::bad_file, "Mod of floats needs fmod = 1");
      return ir::mod(a, b);
    }
    if (ir::is_int(b, 0)) return im.fail(ErrorCode::bad_file, "integer division by zero");
    const ExprRef d = divisor_of(im, b), r = ir::mod(a, d);
    if (c_style) return ir::prove_ge0(a) ? r : ir::select(exact_below(im, a, r), r, ir::sub(r, d));
    if (is_positive(b)) return r;
    ExprRef shifted = ir::logical_and(is_negative(im, b), ir::logical_not(ir::eq(r, im.integer(0))));
    return ir::select(shifted, ir::add(r, b), r);
  });
}

Result<void> import_bitwise_and(Importer& im) {
  return bit_op(im, [](ExprRef a, ExprRef b) { return ir::bit_and(a, b); });
}

Result<void> import_bitwise_or(Importer& im) {
  return bit_op(im, [](ExprRef a, ExprRef b) { return ir::sub(ir::add(a, b), ir::bit_and(a, b)); });
}

Result<void> import_bitwise_xor(Importer& im) {
  return bit_op(im, [&](ExprRef a, ExprRef b) {
    return ir::sub(ir::add(a, b), ir::mul(im.integer(2), ir::bit_and(a, b)));
  });
}

Result<void> import_bitwise_not(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  if (!is_integer(im.type(x).dtype)) return im.fail(ErrorCode::bad_file, "input must be of an integer type");
  return unary_op(im, [&](ExprRef e) { return ir::sub(im.integer(-1), e); });
}

Result<void> import_bit_shift(Importer& im) {
  const std::string direction = im.attr_string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") return im.fail(ErrorCode::bad_file, "direction must be LEFT or RIGHT");
  return bit_op(im, [&](ExprRef a, ExprRef n) {
    ExprRef p = power_of_two(im, n);
    return direction == "LEFT" ? ir::mul(a, p) : ir::div(a, p);
  });
}

}  // namespace tfcc::frontend

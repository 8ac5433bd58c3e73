// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: division, remainder, bits. The expression language divides downwards and by
// positive numbers only; everything else is spelled out here.
#include <algorithm>

#include "frontend/operators/elementwise.h"
#include "ir/ir.h"
#include "ir/range.h"

namespace tfcc::frontend {
namespace {

constexpr int64_t kLargestInt32 = INT32_MAX;
constexpr int64_t kUsualSize = 1024;

// An int32 made of sizes and indices alone stays as readable as they are: where it fits at usual
// sizes, the run checks that it fits at its own. Else it is meant to wrap.
bool fits_by_check(Importer& im, ExprRef e) {
  ExprRef m = e->has_load ? nullptr : ir::magnitude(e);
  if (!m || ir::eval_size(m, [](std::string_view) { return kUsualSize; }) > kLargestInt32)
    return false;
  ExprRef condition = ir::le(m, im.integer(kLargestInt32));
  if (condition == im.pool().boolean(false)) return false;
  const auto same = [&](const ir::SizeCheck& c) { return c.condition == condition; };
  if (condition == im.pool().boolean(true) ||
      std::any_of(im.graph.checks.begin(), im.graph.checks.end(), same))
    return true;
  im.graph.checks.push_back(
      {condition,
       fmt::format("node '{}' computes an int32 from sizes that may not fit: {} must be at most {}",
                   im.node->name, ir::print(m), kLargestInt32)});
  return true;
}

bool is_positive(ExprRef e) { return ir::prove_ge0(ir::sub(e, e->pool->integer(1))); }

// 2^n, n held to 0 to 62: the product of 2, 4, 16, 256, .. for the bits that n has.
ExprRef power_of_two(Importer& im, ExprRef n) {
  ExprRef exponent = ir::max(im.integer(0), ir::min(n, im.integer(62))), power = im.integer(1);
  for (int bit = 0; bit < 6; ++bit) {
    ExprRef is_set = ir::eq(
        ir::mod(ir::div(exponent, im.integer(int64_t{1} << bit)), im.integer(2)), im.integer(1));
    power = ir::mul(power, ir::select(is_set, im.integer(int64_t{1} << (1 << bit)), im.integer(1)));
  }
  return power;
}

// Of the type in ONNX, which may be narrower than the tensor's.
int64_t bits_of(Importer& im, ValueId v) {
  switch (im.onnx_type(v)) {
    case 4: return 16;   // uint16
    case 12: return 32;  // uint32
    default: return 8 * static_cast<int64_t>(size_of(im.type(v).dtype));
  }
}

template <class F> Result<void> bit_op(Importer& im, F f) {
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type != Scalar::i64) return im.fail(ErrorCode::bad_file, "inputs must be integers");
    return f(a, b);
  });
}

}  // namespace

ExprRef narrowed(Importer& im, ExprRef e, DType dtype) {
  if (!is_integer(dtype) || dtype == DType::i64) return e;
  const int bits = static_cast<int>(8 * size_of(dtype));
  const bool is_signed = dtype != DType::u8;
  const int64_t least = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
  if (ir::prove_le(im.integer(least), e) &&
      ir::prove_le(e, im.integer(least + (int64_t{1} << bits) - 1)))
    return e;
  if (dtype == DType::i32 && fits_by_check(im, e)) return e;
  return ir::wrap(e, bits, is_signed);
}

namespace {

// The divisor without its sign, 1 for 0.
ExprRef divisor_of(Importer& im, ExprRef b) {
  return is_positive(b) ? b : ir::max(ir::abs(b), im.integer(1));
}

ExprRef is_negative(Importer& im, ExprRef e) { return ir::lt(e, im.integer(0)); }

// No need to adjust what was rounded down: the dividend is not negative, or nothing was lost.
ExprRef exact_below(Importer& im, ExprRef a, ExprRef remainder) {
  return ir::logical_or(ir::le(im.integer(0), a), ir::eq(remainder, im.integer(0)));
}

}  // namespace

namespace {

// The one divisor without a magnitude; null where b is another.
ExprRef is_least(Importer& im, ExprRef b) {
  return ir::range_of(b).lo == INT64_MIN ? ir::eq(b, im.integer(INT64_MIN))
                                         : im.pool().boolean(false);
}

}  // namespace

ExprRef truncating_divide(Importer& im, ExprRef a, ExprRef b) {
  const ExprRef d = divisor_of(im, b);
  ExprRef q = ir::div(a, d);
  if (!ir::prove_ge0(a))
    q = ir::select(exact_below(im, a, ir::mod(a, d)), q, ir::add(q, im.integer(1)));
  if (is_positive(b)) return q;
  ExprRef by_least = ir::select(ir::eq(a, b), im.integer(1), im.integer(0));
  return ir::select(is_least(im, b), by_least, ir::select(is_negative(im, b), ir::neg(q), q));
}

Result<void> import_div(Importer& im) {
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type == Scalar::boolean) return im.fail(ErrorCode::bad_file, "inputs must be numbers");
    if (a->type == Scalar::i64 && ir::is_int(b, 0))
      return im.fail(ErrorCode::bad_file, "integer division by zero");
    return a->type == Scalar::i64 ? truncating_divide(im, a, b) : ir::div(a, b);
  });
}

namespace {

// a - floor(a / b) b of reals, with the sign of b.
ExprRef floored_mod(Importer& im, ExprRef a, ExprRef b) {
  const ExprRef r = ir::mod(a, b), zero = im.pool().real(0, a->type);
  const ExprRef below = ir::lt(b, zero), signed_zero = ir::select(below, ir::neg(zero), zero);
  const ExprRef other_sign = ir::select(below, ir::lt(zero, r), ir::lt(r, zero));
  return ir::select(ir::eq(r, zero), signed_zero, ir::select(other_sign, ir::add(r, b), r));
}

}  // namespace

Result<void> import_mod(Importer& im) {
  const bool c_style = im.attr_int("fmod", 0) != 0;
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type != Scalar::i64) {
      if (!c_style && im.opset < 28)
        return im.fail(ErrorCode::bad_file, "Mod of floats needs fmod = 1 before opset 28");
      return c_style ? ir::mod(a, b) : floored_mod(im, a, b);
    }
    if (ir::is_int(b, 0)) return im.fail(ErrorCode::bad_file, "integer division by zero");
    const ExprRef d = divisor_of(im, b), r = ir::mod(a, d);
    // By the least integer a number is its own remainder, but for 0 and that integer; below 0 where
    // the sign is the divisor's.
    ExprRef by_least = ir::select(ir::eq(a, b), im.integer(0), a);
    if (c_style) {
      ExprRef signed_r = ir::prove_ge0(a) ? r : ir::select(exact_below(im, a, r), r, ir::sub(r, d));
      return ir::select(is_least(im, b), by_least, signed_r);
    }
    if (is_positive(b)) return r;
    ExprRef shifted =
        ir::logical_and(is_negative(im, b), ir::logical_not(ir::eq(r, im.integer(0))));
    by_least = ir::select(ir::lt(im.integer(0), a), ir::add(a, b), by_least);
    return ir::select(is_least(im, b), by_least, ir::select(shifted, ir::add(r, b), r));
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
  if (!is_integer(im.type(x).dtype))
    return im.fail(ErrorCode::bad_file, "input must be of an integer type");
  return unary_op(im, [&](ExprRef e) { return ir::sub(im.integer(-1), e); });
}

Result<void> import_bit_shift(Importer& im) {
  const std::string direction = im.attr_string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    return im.fail(ErrorCode::bad_file, "direction must be LEFT or RIGHT");
  TFCC_TRY(ValueId x, im.input(0));
  const int64_t bits = bits_of(im, x);
  return bit_op(im, [&](ExprRef a, ExprRef n) {
    const ExprRef zero = im.integer(0), p = power_of_two(im, n);
    const ExprRef last = ir::select(ir::eq(n, im.integer(63)), im.integer(2), im.integer(1));
    ExprRef moved = direction == "LEFT" ? ir::mul(a, p) : ir::div(a, p);
    if (bits == 64) moved = direction == "LEFT" ? ir::mul(moved, last) : ir::div(moved, last);
    ExprRef gone = zero;  // what all bits are that come in from outside
    if (direction == "RIGHT") gone = ir::select(ir::lt(a, zero), im.integer(-1), zero);
    const ExprRef inside = ir::logical_and(ir::le(zero, n), ir::lt(n, im.integer(bits)));
    return ir::select(inside, moved, gone);
  });
}

}  // namespace tfcc::frontend

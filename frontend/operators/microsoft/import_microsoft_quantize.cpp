// SPDX-License-Identifier: Apache-2.0
// Weights of 2, 4 and 8 bits of com.microsoft: dequantised by an expression, multiplied in the type
// of the activations, or gathered by rows as an embedding is.
#include <fmt/format.h>

#include "frontend/import/importer.h"
#include "ir/matmul.h"

namespace tfcc::frontend {
namespace {

// A weight of N columns of K values in blocks along K, each block with a scale and a zero point.
struct Blocks {
  int64_t k = 0, n = 0, bits = 4, size = 0;
  int64_t count() const { return (k + size - 1) / size; }  // of a column
  int64_t bytes() const { return size * bits / 8; }        // of a block
};

Result<Blocks> blocks_of(Importer& im) {
  Blocks b{im.attr_int("K", 0), im.attr_int("N", 0), im.attr_int("bits", 4),
           im.attr_int("block_size", 0)};
  if (b.bits != 2 && b.bits != 4 && b.bits != 8) {
    return im.fail(ErrorCode::unsupported,
                   fmt::format("{} bits are not supported; 2, 4 and 8 are", b.bits));
  }
  constexpr int64_t kMost = int64_t{1} << 31;
  const bool sane =
      b.k > 0 && b.n > 0 && b.k < kMost && b.n < kMost && b.size >= 8 && b.size < kMost;
  if (!sane || (b.size & (b.size - 1)) != 0) {
    return im.fail(
        ErrorCode::bad_file,
        fmt::format(
            "K = {}, N = {}, block_size = {}: sizes must be positive, and a block a power of two",
            b.k, b.n, b.size));
  }
  return b;
}

// A parameter laid out as rows of `width` values, one row per column of the weight; files have it
// flat or not.
Result<ValueId> rows_of(Importer& im, size_t input, int64_t rows, int64_t width,
                        std::string_view role) {
  TFCC_TRY(ValueId v, im.input(input));
  const ExprRef count = ir::element_count(im.pool(), im.dims(v));
  if (!ir::is_int(count, rows * width)) {
    return im.fail(ErrorCode::shape, fmt::format("{} has shape {}, which is not {} rows of {}",
                                                 role, ir::to_string(im.type(v)), rows, width));
  }
  if (im.rank(v) == 2 && ir::is_int(im.dims(v)[0], rows)) return v;
  return reshape(im, v, {im.integer(rows), im.integer(width)}, fmt::format(".input{}", input));
}

// The zero point of block `block` of column `n`, in the scalar type of the weight's values.
Result<ExprRef> zero_point(Importer& im, const Blocks& b, ExprRef n, ExprRef block, ExprRef value) {
  if (!im.has_input(3)) return ir::convert(im.integer(int64_t{1} << (b.bits - 1)), value->type);
  TFCC_TRY(ValueId given, im.input(3));
  if (is_float(im.type(given).dtype)) {
    TFCC_TRY(ValueId rows, rows_of(im, 3, b.n, b.count(), "zero_points"));
    return ir::convert(im.element(rows, {n, block}), value->type);
  }
  if (im.type(given).dtype != DType::u8)
    return im.fail(ErrorCode::bad_file, "zero_points are neither bytes nor reals");
  TFCC_TRY(ValueId rows, rows_of(im, 3, b.n, (b.count() * b.bits + 7) / 8, "zero_points"));
  return ir::convert(packed_bits(im, rows, {n, block}, static_cast<int>(b.bits)), value->type);
}

// A table in blocks along one axis, of bytes that hold several values along the last axis, or of
// integers of 4 bits.
struct QuantisedTable {
  ValueId data, scales, zeros;  // zeros: invalid if there are none
  Dims dims;                    // of values
  size_t axis = 0;
  int64_t bits = 4, block = 128;
  bool packed = false;
};

// Values of a packed tensor along its last axis.
Dims unpacked(Importer& im, ValueId v, const QuantisedTable& t) {
  Dims d = im.dims(v);
  if (t.packed && !d.empty()) d.back() = ir::mul(d.back(), im.integer(8 / t.bits));
  return d;
}

Result<QuantisedTable> quantised_table(Importer& im) {
  QuantisedTable t;
  TFCC_TRY(t.data, im.input(0));
  TFCC_TRY(t.scales, im.input(2));
  t.bits = im.attr_int("bits", 4);
  t.block = im.attr_int("block_size", 128);
  t.packed = im.onnx_type(t.data) == onnx_type_of(DType::u8);
  if (t.packed && t.bits != 2 && t.bits != 4 && t.bits != 8)
    return im.fail(ErrorCode::unsupported,
                   fmt::format("{} bits are not supported; 2, 4 and 8 are", t.bits));
  if (!is_integer(im.type(t.data).dtype) || !is_float(im.type(t.scales).dtype))
    return im.fail(ErrorCode::unsupported, "data must be integers, and scales of a float type");
  if (t.block < 1) return im.fail(ErrorCode::bad_file, fmt::format("block_size is {}", t.block));
  t.dims = unpacked(im, t.data, t);
  TFCC_TRY(t.axis, im.axis_of(im.attr_int("quantize_axis", 1), t.dims.size()));
  const auto check = [&](Dims given, std::string_view role, int64_t more) -> Result<void> {
    const std::string what = fmt::format("{} do not fit data of shape {} in blocks of {}", role,
                                         ir::to_string(im.type(t.data)), t.block);
    if (given.size() != t.dims.size()) return im.fail(ErrorCode::shape, what);
    for (size_t k = 0; k < given.size(); ++k) {
      ExprRef n = t.dims[k];
      if (k == t.axis) n = ir::div(ir::add(n, im.integer(t.block - 1)), im.integer(t.block));
      if (k + 1 == given.size()) {
        n = ir::div(ir::add(n, im.integer(more)), im.integer(more + 1));
        n = ir::mul(n, im.integer(more + 1));
      }
      TFCC_TRY_VOID(im.unify(n, given[k], what));
    }
    return {};
  };
  TFCC_TRY_VOID(check(im.dims(t.scales), "scales", 0));
  if (!im.has_input(3)) return t;
  TFCC_TRY(t.zeros, im.input(3));
  if (im.onnx_type(t.zeros) != im.onnx_type(t.data))
    return im.fail(ErrorCode::bad_file, "zero_points and data differ in type");
  TFCC_TRY_VOID(check(unpacked(im, t.zeros, t), "zero_points", t.packed ? 8 / t.bits - 1 : 0));
  return t;
}

}  // namespace

Result<void> import_microsoft_gather_block_quantized(Importer& im) {
  TFCC_TRY(const QuantisedTable t, quantised_table(im));
  TFCC_TRY(ValueId indices, im.input(1));
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("gather_axis", 0), t.dims.size()));
  if (axis == t.axis) return im.fail(ErrorCode::bad_file, "gather_axis and quantize_axis are one");
  TFCC_TRY(const Gathered g, gathered(im, t.dims, axis, indices));
  const DType dtype = im.type(t.scales).dtype;
  const Scalar scalar = ir::scalar_of(dtype);
  const auto value = [&](ValueId v, const Indices& at) {
    ExprRef e = t.packed ? packed_bits(im, v, at, static_cast<int>(t.bits)) : im.element(v, at);
    return ir::convert(e, scalar);
  };
  Indices block = g.from;
  block[t.axis] = ir::div(block[t.axis], im.integer(t.block));
  ExprRef e = value(t.data, g.from);
  if (t.zeros.valid()) e = ir::sub(e, value(t.zeros, block));
  else if (t.packed) e = ir::sub(e, ir::convert(im.integer(int64_t{1} << (t.bits - 1)), scalar));
  im.define(0, ir::mul(e, im.element(t.scales, block)), dtype, g.dims);
  return {};
}

Result<void> import_microsoft_matmul_n_bits(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(Blocks b, blocks_of(im));
  TFCC_TRY(ValueId packed, im.input(1));
  TFCC_TRY(ValueId scales, rows_of(im, 2, b.n, b.count(), "scales"));
  const DType dtype = im.type(a).dtype;
  if (!is_float(dtype) || !is_float(im.type(scales).dtype))
    return im.fail(ErrorCode::bad_file, "A and scales must be of a float type");
  if (im.type(packed).dtype != DType::u8) {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("B has type {}, not u8", to_string(im.type(packed).dtype)));
  }
  if (im.rank(a) < 2) return im.fail(ErrorCode::unsupported, "A needs at least two dims");
  TFCC_TRY_VOID(
      im.unify(im.dims(a).back(), im.integer(b.k),
               fmt::format("A of shape {} has no rows of K = {}", ir::to_string(im.type(a)), b.k)));
  TFCC_TRY(ValueId bytes, rows_of(im, 1, b.n, b.count() * b.bytes(), "B"));
  const Dims dims{im.integer(b.n), im.integer(b.k)};
  const Indices at = im.index_vars(dims);
  // Blocks are whole bytes and follow each other, so that k counts the values of a row of bytes.
  const Scalar scalar = ir::scalar_of(dtype);
  ExprRef value = ir::convert(packed_bits(im, bytes, at, static_cast<int>(b.bits)), scalar);
  ExprRef block = ir::div(at[1], im.integer(b.size));
  if (im.has_input(4)) {
    TFCC_TRY(ValueId group, im.input(4));
    if (is_float(im.type(group).dtype) || im.rank(group) != 1)
      return im.fail(ErrorCode::bad_file, "g_idx is not a vector of integers");
    TFCC_TRY_VOID(
        im.require_ge0(ir::sub(im.dims(group)[0], im.integer(b.k)), "g_idx is shorter than K"));
    TFCC_TRY(block, im.gather_index(im.element(group, {at[1]}), im.integer(b.count())));
  }
  TFCC_TRY(ExprRef zero, zero_point(im, b, at[0], block, value));
  ExprRef scale = ir::convert(im.element(scales, {at[0], block}), scalar);
  const ValueId weight = im.pointwise(ir::mul(ir::sub(value, zero), scale), dtype, dims, ".weight");
  std::optional<ValueId> bias;
  if (im.has_input(5)) {
    TFCC_TRY(bias, im.input(5));
    if (im.type(*bias).dtype != dtype || im.rank(*bias) != 1)
      return im.fail(ErrorCode::bad_file, "the bias is not a vector of A's type");
    TFCC_TRY_VOID(im.unify(im.dims(*bias)[0], im.integer(b.n), "the bias does not have N values"));
  }
  ir::MatmulAttrs attrs;
  attrs.trans_b = true;
  Dims out = im.dims(a);
  out.back() = im.integer(b.n);
  const Type type{dtype, out};
  im.define(0, ir::add_matmul(im.graph, a, weight, attrs, ir::bias_epilogue(im.graph, type, bias),
                              type, im.value_name(0), im.node->name));
  return {};
}

}  // namespace tfcc::frontend

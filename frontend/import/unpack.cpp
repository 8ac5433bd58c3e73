// SPDX-License-Identifier: Apache-2.0
// Packed weights: bytes in the file and in the artifact, unpacked by an expression where they are
// read.
#include <algorithm>
#include <map>

#include "frontend/import/importer.h"

namespace tfcc::frontend {
namespace {

struct SmallFloatTables {
  std::map<int, ValueId> by_type;
};

// The value of every bit pattern of a small float.
ValueId table_of(Importer& im, const ElementType& type) {
  auto [it, added] = im.notes<SmallFloatTables>().by_type.emplace(type.onnx_type, ValueId{});
  if (!added) return it->second;
  const size_t count = size_t{1} << type.bits;
  std::vector<std::byte> bytes(count * size_of(type.value));
  for (size_t i = 0; i < count; ++i) {
    ir::write_real(type.value, bytes.data(), i,
                   small_float_value(*type.small_float, type.bits, static_cast<unsigned>(i)));
  }
  it->second = im.graph.add_constant(
      onnx_type_name(type.onnx_type) + ".values",
      ir::constant_from_bytes(type.value, {static_cast<int64_t>(count)}, std::move(bytes)));
  return it->second;
}

}  // namespace

ExprRef packed_bits(Importer& im, ValueId bytes, Indices at, int bits) {
  const int64_t per_byte = 8 / bits, patterns = int64_t{1} << bits;
  if (per_byte == 1) return im.element(bytes, at);
  ExprRef place = ir::mod(at.back(), im.integer(per_byte));
  at.back() = ir::div(at.back(), im.integer(per_byte));
  ExprRef byte = im.element(bytes, at), value = byte;
  // The quotient by a power of two that depends on the place: a divisor is a literal.
  for (int64_t k = 1; k < per_byte; ++k) {
    value = ir::select(ir::eq(place, im.integer(k)),
                       ir::div(byte, im.integer(int64_t{1} << (k * bits))), value);
  }
  return ir::mod(value, im.integer(patterns));
}

ValueId unpack(Importer& im, const PackedTensor& packed, const std::string& name) {
  const ElementType type = *element_type(packed.onnx_type);
  const ValueId bytes = im.graph.add_constant(name + ".packed", packed.bytes);
  Dims dims;
  for (int64_t d : packed.dims) dims.push_back(im.integer(d));
  const Indices at = im.index_vars(dims);
  const bool rows = packed.bytes.dims.size() == dims.size() && !dims.empty() &&
                    packed.dims.back() % type.per_byte() == 0;
  const Indices stored =
      rows || type.per_byte() == 1 ? at : Indices{ir::linear_index(im.pool(), at, dims)};
  ExprRef e =
      type.bits < 16 ? packed_bits(im, bytes, stored, type.bits) : im.element(bytes, stored);
  if (type.small_float)
    e = ir::load_of(im.graph, table_of(im, type),
                    {ir::mod(e, im.integer(int64_t{1} << type.bits))});
  else e = wrap_to_integer(e, type);
  ir::Captured c = ir::capture(e);
  const ValueId v = im.graph.add_pointwise(c.operands, c.body, {type.value, dims}, name);
  im.set_onnx_type(v, type);
  return v;
}

namespace {

// Their outputs have types of their own.
constexpr std::string_view kOwnTypes[] = {"Cast",
                                          "CastLike",
                                          "Shape",
                                          "Size",
                                          "NonZero",
                                          "ArgMax",
                                          "ArgMin",
                                          "QuantizeLinear",
                                          "DequantizeLinear",
                                          "MatMulInteger",
                                          "QLinearMatMul",
                                          "OneHot",
                                          "EyeLike",
                                          "ConstantOfShape",
                                          "Constant",
                                          "If"};
constexpr std::string_view kWrap[] = {
    "Add",        "Sub",    "Mul",    "Neg",    "Pow",       "Sum",        "BitShift",
    "BitwiseNot", "CumSum", "MatMul", "Einsum", "ReduceSum", "ReduceProd", "ReduceSumSquare",
    "ReduceL1"};

template <size_t N> bool is_one_of(const std::string& op, const std::string_view (&list)[N]) {
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

}  // namespace

void keep_narrow_type(Importer& im) {
  const std::string& op = im.node->op_type;
  const size_t from = op == "Where" ? 1 : 0;
  if (!im.node->domain.empty() || !im.has_input(from) || is_one_of(op, kOwnTypes)) return;
  const auto source = im.input(from);
  const std::optional<ElementType> type =
      source ? element_type(im.onnx_type(*source)) : std::nullopt;
  if (!type || !type->is_packed()) return;
  const size_t outputs = op == "Split" ? im.node->outputs.size() : 1;
  for (size_t i = 0; i < outputs && i < im.node->outputs.size(); ++i) {
    const auto it = im.values.find(im.node->outputs[i]);
    if (it == im.values.end() || im.type(it->second).dtype != type->value) continue;
    if (type->is_integer() && is_one_of(op, kWrap)) {
      const ValueId wide = it->second;
      im.graph.rename(wide, im.value_name(i) + ".wide");
      const Dims dims = im.dims(wide);
      im.define(i, wrap_to_integer(im.element(wide, im.index_vars(dims)), *type), type->value,
                dims);
    }
    im.set_onnx_type(im.values.at(im.node->outputs[i]), *type);
  }
}

}  // namespace tfcc::frontend

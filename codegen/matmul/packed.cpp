// SPDX-License-Identifier: Apache-2.0
// Weights of few bits: which expressions (ir/attrs.h, weight) arms compute where they read them.
#include <algorithm>
#include <cmath>

#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {

namespace {

// The constant of 16 bits of this type's dims that `weight` is, element for element.
std::optional<NarrowFactor> narrow(const Graph& g, const ir::Op& product, ExprRef weight,
                                   const ir::Type& type) {
  if (!weight || weight->kind != ir::ExprKind::load) return std::nullopt;
  const auto slot = static_cast<size_t>(weight->value);
  const ValueId v = product.operands[slot];
  const ir::Type& stored = g.value(v).type;
  const bool own = weight->args == ir::indices_of(g.pool(), type.dims) && stored.dims == type.dims;
  if (!own || !g.is_constant(v) || (stored.dtype != DType::f16 && stored.dtype != DType::bf16))
    return std::nullopt;
  return NarrowFactor{slot, stored.dtype};
}

}  // namespace

std::optional<NarrowFactor> narrow_factor(const Graph& g, const ir::Op& product) {
  return narrow(g, product, product.as<ir::MatmulAttrs>().weight, ir::second_factor(g, product));
}

std::optional<NarrowFactor> narrow_matrices(const Graph& g, const ir::Op& grouped) {
  return narrow(g, grouped, grouped.as<ir::GroupedMatmulAttrs>().weight,
                ir::matrices_type(g, grouped));
}

namespace {

constexpr int64_t kCodes = 256;
enum Place : int64_t { kColumn, kChunk, kInChunk, kCode, kOfPlaces };

// Values in one element of `stored`, whose matrix has these dims, the last of them k: [.., k / per]
// of bytes.
std::optional<int64_t> values_in(const ir::Type& stored, const std::vector<ExprRef>& dims) {
  if (stored.dtype != DType::u8 && stored.dtype != DType::i8) return std::nullopt;
  if (stored.rank() != dims.size() ||
      !std::equal(dims.begin(), dims.end() - 1, stored.dims.begin()))
    return std::nullopt;
  const int64_t k = *ir::as_int(dims.back());
  for (int64_t per : {1, 2, 4}) {
    if (k % per == 0 && ir::is_int(stored.dims.back(), k / per)) return per;
  }
  return std::nullopt;
}

// What stands in the place of what a chunk shares: the maximal parts of e that load and need neither
// the place in the chunk nor the code.
ExprRef share(ExprRef e, std::vector<ExprRef>& shared) {
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    if (!n->has_load || ir::uses_index(n, kInChunk) || ir::uses_index(n, kCode)) return nullptr;
    const auto known = std::find(shared.begin(), shared.end(), n);
    const auto k = known - shared.begin();
    if (known == shared.end()) shared.push_back(n);
    return n->pool->param("v" + std::to_string(k), n->type);
  });
}

ExprRef with_index(ExprRef e, int64_t number, ExprRef by) {
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    return n->kind == ir::ExprKind::index && n->value == number ? by : nullptr;
  });
}

// Is e the digit of a code of four bits at an even or odd place, or the code itself, at every place of a
// chunk?
bool is_digit(ExprRef e, int64_t per) {
  ir::ExprPool& pool = *e->pool;
  const int64_t bits = 8 / per, most = (1 << bits) - 1;
  for (int64_t place = 0; place < per; ++place) {
    ExprRef at =
        ir::add(ir::mul(pool.index(kOfPlaces, pool.integer(kPackedBytes)), pool.integer(per)),
                pool.integer(place));
    ExprRef there = with_index(e, kInChunk, at);
    if (ir::uses_index(there, kOfPlaces)) return false;
    for (int64_t code = 0; code < kCodes; ++code) {
      ExprRef digit = with_index(there, kCode, pool.integer(code));
      if (!ir::is_int(digit, code >> bits * place & most)) return false;
    }
  }
  return true;
}

// A whole number that is a digit: a constant, or digits that are shared.
bool is_small_whole(const PackedFactor& packed, ExprRef e) {
  const int64_t digits = int64_t{1} << 8 / packed.per;
  if (e->kind == ir::ExprKind::fconst)
    return e->real >= 0 && e->real < static_cast<double>(digits) && e->real == std::floor(e->real);
  for (size_t k = 0; k < packed.shared.size(); ++k) {
    ExprRef part = packed.shared[k];
    if (e->kind == ir::ExprKind::param && e->name == "v" + std::to_string(k))
      return part->kind == ir::ExprKind::i2f &&
             ir::prove_in(part->args[0], e->pool->integer(digits));
  }
  return false;
}

// Is e what is loaded from halves?
bool is_half(const Graph& g, const ir::Op& product, const PackedFactor& packed, ExprRef e) {
  for (size_t k = 0; k < packed.shared.size(); ++k) {
    ExprRef part = packed.shared[k];
    if (e->kind == ir::ExprKind::param && e->name == "v" + std::to_string(k))
      return part->kind == ir::ExprKind::load &&
             g.value(product.operands[static_cast<size_t>(part->value)]).type.dtype == DType::f16;
  }
  return false;
}

// scale * (digit - zero) or scale * digit, in any order.
void find_digits(const Graph& g, const ir::Op& product, PackedFactor& packed) {
  ExprRef e = packed.value;
  if (packed.per > 2 || packed.stored != DType::u8 || e->kind != ir::ExprKind::fmul ||
      e->args.size() != 2)
    return;
  for (const auto& [s, d] : {std::pair(e->args[0], e->args[1]), {e->args[1], e->args[0]}}) {
    if (!is_half(g, product, packed, s)) continue;
    ExprRef zero = e->pool->real(0), digit = d;
    if (d->kind == ir::ExprKind::fsub) digit = d->args[0], zero = d->args[1];
    const bool exact = digit->kind == ir::ExprKind::i2f && digit->type == Scalar::f32 &&
                       is_small_whole(packed, zero);
    if (exact && is_digit(digit->args[0], packed.per)) packed.scale = s, packed.zero = zero;
  }
}

// Are codes read anywhere but as the value at hand, or is a shared part made of others?
bool reads_elsewhere(const ir::Op& product, ExprRef weight, ValueId slot,
                     const PackedFactor& packed) {
  std::vector<ExprRef> others = packed.shared;
  ir::Op op = product;
  for (ExprRef* e : ir::expressions_of(op))
    if (*e != weight) others.push_back(*e);
  bool found = false;
  for (ExprRef e : others) {
    for (ValueId v : ir::loads_of(e))
      found |= product.operands[v.value] == product.operands[slot.value];
  }
  for (ExprRef part : packed.shared)
    ir::for_each_node(part, [&](ExprRef n) { found |= n->kind == ir::ExprKind::param; });
  return found;
}

// A weight of these dims, the last of them k. The others are one, the column, of which they are
// digits.
std::optional<PackedFactor> packed_weight(const Graph& g, const ir::Op& product, ExprRef weight,
                                          const std::vector<ExprRef>& dims) {
  ir::ExprPool& pool = g.pool();
  const std::vector<ExprRef> rows(dims.begin(), dims.end() - 1);
  const int64_t k = *ir::as_int(dims.back()), n = *ir::as_int(ir::element_count(pool, rows));
  for (ValueId slot : ir::loads_of(weight)) {
    const ir::Type& stored = g.value(product.operands[slot.value]).type;
    const auto per = values_in(stored, dims);
    if (!per) continue;
    const auto index = [&](Place p, int64_t extent) { return pool.index(p, pool.integer(extent)); };
    PackedFactor packed{slot.value, stored.dtype, *per, kPackedBytes * *per, {}};
    if (k % packed.chunk != 0) continue;
    ExprRef column = index(kColumn, n), place = index(kInChunk, packed.chunk),
            at = ir::add(ir::mul(index(kChunk, k / packed.chunk), pool.integer(packed.chunk)),
                         place),
            code = index(kCode, kCodes);
    if (stored.dtype == DType::i8) code = ir::sub(code, pool.integer(kCodes / 2));
    std::vector<ExprRef> own = ir::reshape_indices(pool, {column}, {pool.integer(n)}, rows),
                         whole = own;
    whole.push_back(at);
    own.push_back(ir::div(at, pool.integer(*per)));
    ExprRef e = ir::substitute_indices(weight, whole);
    e = ir::rewrite(e, [&](ExprRef x) -> ExprRef {
      const bool it = x->kind == ir::ExprKind::load && x->value == slot.value && x->args == own;
      return it ? code : nullptr;
    });
    packed.value = share(e, packed.shared);
    const auto stays = [&](Place p) { return ir::uses_index(packed.value, p); };
    if (packed.value->has_load || stays(kColumn) || stays(kChunk)) continue;
    if (packed.shared.size() > kMostShared || reads_elsewhere(product, weight, slot, packed))
      continue;
    find_digits(g, product, packed);
    return packed;
  }
  return std::nullopt;
}

}  // namespace

std::optional<PackedFactor> packed_factor(const Graph& g, const ir::Op& product) {
  const auto& attrs = product.as<ir::MatmulAttrs>();
  if (!attrs.weight || !attrs.trans_b) return std::nullopt;
  return packed_weight(g, product, attrs.weight, ir::second_factor(g, product).dims);
}

std::optional<PackedFactor> packed_matrices(const Graph& g, const ir::Op& grouped) {
  ExprRef weight = grouped.as<ir::GroupedMatmulAttrs>().weight;
  if (!weight) return std::nullopt;
  return packed_weight(g, grouped, weight, ir::matrices_type(g, grouped).dims);
}

int64_t PackedFactor::shared_bytes() const {
  int64_t bytes = 0, most = 1;
  for (ExprRef part : shared) {
    const int64_t size = part->type == Scalar::boolean ? 1 : part->type == Scalar::f32 ? 4 : 8;
    bytes = (bytes + size - 1) / size * size + size;
    most = std::max(most, size);
  }
  return std::max<int64_t>(1, (bytes + most - 1) / most * most);
}

void add_weight(Stub& stub, const PackedFactor& packed) {
  stub.type("Code", packed.stored);
  stub.field("per_code", packed.per);
  stub.field("shared_size", packed.shared_bytes());
  stub.field("digits", packed.scale != nullptr);
  std::vector<std::pair<std::string, ExprRef>> parts;
  if (packed.scale) parts = {{"scale", packed.scale}, {"zero", packed.zero}};
  stub.shared_functor("Weight", packed.shared, packed.value, parts);
}

}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// Weights of few bits: which expressions (ir/attrs.h, weight) arms compute where they read them.
#include <algorithm>

#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kCodes = 256;
enum Place : int64_t { kColumn, kChunk, kInChunk, kCode };

// Values in one element of `stored`, whose matrix has n rows by k: [n, k / per] of bytes.
std::optional<int64_t> values_in(const ir::Type& stored, int64_t n, int64_t k) {
  if (stored.dtype != DType::u8 && stored.dtype != DType::i8) return std::nullopt;
  if (stored.rank() != 2 || !ir::is_int(stored.dims[0], n)) return std::nullopt;
  for (int64_t per : {1, 2, 4}) {
    if (k % per == 0 && ir::is_int(stored.dims[1], k / per)) return per;
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

}  // namespace

std::optional<PackedFactor> packed_factor(const Graph& g, const ir::Op& product) {
  const auto& attrs = product.as<ir::MatmulAttrs>();
  const ir::Type b = ir::second_factor(g, product);
  if (!attrs.weight || !attrs.trans_b) return std::nullopt;
  const int64_t n = *ir::as_int(b.dims[0]), k = *ir::as_int(b.dims[1]);
  for (ValueId slot : ir::loads_of(attrs.weight)) {
    const ir::Type& stored = g.value(product.operands[slot.value]).type;
    const auto per = values_in(stored, n, k);
    if (!per) continue;
    ir::ExprPool& pool = g.pool();
    const auto index = [&](Place p, int64_t extent) { return pool.index(p, pool.integer(extent)); };
    PackedFactor packed{slot.value, stored.dtype, *per, kPackedBytes * *per, {}, nullptr};
    if (k % packed.chunk != 0) continue;
    ExprRef column = index(kColumn, n), place = index(kInChunk, packed.chunk),
            at = ir::add(ir::mul(index(kChunk, k / packed.chunk), pool.integer(packed.chunk)),
                         place),
            code = index(kCode, kCodes);
    if (stored.dtype == DType::i8) code = ir::sub(code, pool.integer(kCodes / 2));
    const std::vector<ExprRef> own{column, ir::div(at, pool.integer(*per))};
    ExprRef e = ir::substitute_indices(attrs.weight, {column, at});
    e = ir::rewrite(e, [&](ExprRef x) -> ExprRef {
      const bool it = x->kind == ir::ExprKind::load && x->value == slot.value && x->args == own;
      return it ? code : nullptr;
    });
    packed.value = share(e, packed.shared);
    if (!packed.value->has_load && packed.shared.size() <= kMostShared) return packed;
  }
  return std::nullopt;
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
  stub.shared_functor("Weight", packed.shared, packed.value);
}

}  // namespace tfcc::codegen

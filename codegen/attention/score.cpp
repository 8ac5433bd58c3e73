// SPDX-License-Identifier: Apache-2.0
// A score as a sum: what comes of the product of q and k, and what is added to it, which a kernel
// can have before the product has ended. Often that depends on the distance j - i alone: then a tile
// of 64 x 64 pairs has 127 of them.
#include <cmath>

#include "codegen/attention/attention.h"

namespace tfcc::codegen {
namespace {

struct Sum {
  ExprRef of_product = nullptr, added = nullptr;  // null: it has none
};

Sum split_sum(ExprRef e) {
  bool product = false;
  ir::for_each_node(e, [&](ExprRef n) { product |= n->kind == ir::ExprKind::param; });
  if (!product) return {nullptr, e};
  const bool difference = e->kind == ir::ExprKind::fsub;
  if (e->kind != ir::ExprKind::fadd && !difference) return {e, nullptr};
  const Sum a = split_sum(e->args[0]), b = split_sum(e->args[1]);
  if (difference && (b.of_product || !a.added))
    return b.of_product ? Sum{e, nullptr} : Sum{a.of_product, ir::neg(b.added)};
  const auto join = [&](ExprRef x, ExprRef y) {
    return !x || !y ? (x ? x : y) : difference ? ir::sub(x, y) : ir::add(x, y);
  };
  return {join(a.of_product, b.of_product), join(a.added, b.added)};
}

// Sets by_distance where `added` depends on batch, head and j - i alone.
void find_distance(ScoreParts& parts) {
  ExprRef queries = nullptr, keys = nullptr, e = parts.added;
  ir::for_each_node(e, [&](ExprRef n) {
    if (n->kind == ir::ExprKind::index && n->value == ir::kQuery) queries = n->args[0];
    if (n->kind == ir::ExprKind::index && n->value == ir::kKey) keys = n->args[0];
  });
  if (!queries || !keys) return;
  ExprRef most = ir::sub(queries, e->pool->integer(1)),
          distance = ir::sub(e->pool->index(ir::kKey, ir::add(keys, most)), most);
  ExprRef body = ir::substitute_indices(
      e, {nullptr, nullptr, nullptr, ir::add(e->pool->index(ir::kQuery, queries), distance)});
  if (!ir::uses_index(body, ir::kQuery)) parts.by_distance = body, parts.most_before = most;
}

}  // namespace

std::optional<double> plain_scale(ExprRef score) {
  if (score->kind == ir::ExprKind::param) return 1;
  if (score->kind != ir::ExprKind::fmul) return std::nullopt;
  for (size_t k : {0, 1}) {
    if (score->args[k]->kind != ir::ExprKind::param) continue;
    const auto scale = ir::as_real(score->args[1 - k]);
    if (scale && *scale > 0 && std::isfinite(*scale)) return scale;
  }
  return std::nullopt;
}

ScoreParts split_score(ExprRef score) {
  const Sum sum = split_sum(score);
  if (!sum.of_product || !sum.added ||
      !(ir::uses_index(sum.added, ir::kQuery) || ir::uses_index(sum.added, ir::kKey)))
    return {};
  ScoreParts parts{sum.of_product, plain_scale(sum.of_product), sum.added};
  find_distance(parts);
  return parts;
}

}  // namespace tfcc::codegen

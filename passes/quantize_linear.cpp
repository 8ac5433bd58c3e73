// SPDX-License-Identifier: Apache-2.0
// quantize-linear: a product of dequantised values multiplies the integers, and the scales come
// after it.
//   before: %x = pointwise(%q) {body = (i,j) => 0.5 * f32(%q[i,j] - 128)} : f32[B,K]                   %q : u8
//           %w = pointwise(@s, @p) {body = (i,j) => @s[j] * f32(@p[i,j])} : f32[K,N]                   @p : i8
//           %y = matmul(%x, %w) {alpha = 1.0, ...} : f32[B,N]
//   after:  %y.a = pointwise(%q) {body = (i,j) => f32(%q[i,j] - 128)};  %y.b = pointwise(@p) {body = (i,j) => f32(@p[i,j])}
//           %y.sum = matmul(%y.a, %y.b) {alpha = 0.5 / 4096, ...};  %y = pointwise(%y.sum, @s) {body = (i,j) => 4096.0 * %y.sum[i,j] * @s[j]}
// Integers of 9 bits are exact in every real type, and so are their sums in f32 up to 2^24: what
// the operators define is what 16 bits compute too, and a weight is converted once, at compile
// time; one over 64 KiB whose zero point is not folded with it is converted in each run. A scale
// alone becomes alpha.
// Requires: both operands are integers of 8 bits or less (minus such a zero point) times a literal
// scale, for a matrix of weights also times scales along its columns.
#include <algorithm>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// Sums of products reach 255 * 255 * K; scaled down by a power of two they fit f16 too.
constexpr double kRoom = 4096;
constexpr int64_t kLargest = 256;  // what bf16 holds exactly

bool is_byte(DType t) { return t == DType::u8 || t == DType::i8; }

// The largest magnitude of c0 + sum c_k * load_k of bytes, if e is such a sum.
std::optional<int64_t> magnitude(const Graph& g, ExprRef e) {
  int64_t low = e->kind == ExprKind::poly ? e->value : 0, high = low;
  const auto add = [&](ExprRef atom, int64_t times) {
    const auto v = loaded(atom);
    if (!v || !is_byte(g.value(*v).type.dtype) || std::abs(times) > kLargest) return false;
    const int64_t least = g.value(*v).type.dtype == DType::u8 ? 0 : -128, most = least + 255;
    low += times * (times > 0 ? least : most);
    high += times * (times > 0 ? most : least);
    return true;
  };
  if (e->kind != ExprKind::poly) {
    if (!add(e, 1)) return std::nullopt;
  } else {
    for (const ir::Term& t : e->terms) {
      if (t.atoms.size() != 1 || !add(t.atoms[0], t.coefficient)) return std::nullopt;
    }
  }
  return std::max(std::abs(low), std::abs(high));
}

struct Dequantised {
  ExprRef integers = nullptr;  // i2f of an integer of few bits, over the operand's indices
  double scale = 1;
  std::vector<ExprRef> columns;  // scales that are loaded
};

std::optional<Dequantised> dequantised(const Graph& g, ValueId v) {
  const ExprRef e = expanded(
      g, v, ir::indices_of(g, v), [&](ValueId x) { return is_byte(g.value(x).type.dtype); },
      kNearby);
  Dequantised d;
  for (ExprRef f : factors(e)) {
    if (const auto real = ir::as_real(f)) {
      d.scale *= *real;
    } else if (f->kind == ExprKind::i2f && !d.integers) {
      d.integers = f;
    } else if (f->kind == ExprKind::load) {
      d.columns.push_back(f);
    } else {
      return std::nullopt;
    }
  }
  if (!d.integers) return std::nullopt;
  const auto most = magnitude(g, d.integers->args[0]);
  if (!most || *most > kLargest) return std::nullopt;
  return d;
}

// Scales of a matrix, over the columns of the product: `inner` is the index that the product sums
// over.
bool along_columns(const Dequantised& d, int64_t inner) {
  return std::ranges::none_of(d.columns, [&](ExprRef s) { return ir::uses_index(s, inner); });
}

bool rewrite_product(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const ValueId y = op.results[0];
  const auto attrs = op.as<ir::MatmulAttrs>();
  if (g.value(op.operands[0]).type.dtype != DType::f32 || g.value(y).type.dtype != DType::f32)
    return false;
  auto a = dequantised(g, op.operands[0]), b = dequantised(g, op.operands[1]);
  if (!a || !b || !a->columns.empty()) return false;
  const bool scaled = !b->columns.empty();
  const size_t inner = attrs.trans_b ? 1 : 0;
  if (scaled &&
      (g.value(op.operands[1]).type.rank() != 2 || !along_columns(*b, static_cast<int64_t>(inner))))
    return false;

  const auto integers = [&](const Dequantised& d, ValueId old, const char* suffix) {
    ir::Captured c = ir::capture(d.integers);
    return g.add_pointwise(c.operands, c.body, g.value(old).type, g.value(y).name + suffix,
                           op.origin);
  };
  const ValueId left = integers(*a, op.operands[0], ".a"),
                right = integers(*b, op.operands[1], ".b");
  const Indices at = ir::indices_of(g, y);
  ExprRef epilogue = ir::free_epilogue(g, o, at);
  ir::MatmulAttrs with = attrs;
  with.alpha *= a->scale * b->scale;
  if (!scaled) {
    g.replace_uses(y, ir::add_matmul(g, left, right, with, epilogue, g.value(y).type,
                                     g.value(y).name, op.origin));
    return true;
  }
  with.alpha /= kRoom;
  with.epilogue = nullptr;
  const ValueId sum = g.add(OpKind::matmul, {left, right}, with, g.value(y).type,
                            g.value(y).name + ".sum", op.origin);
  ExprRef e = ir::mul(ir::load_of(g, sum, at), g.pool().real(kRoom));
  std::vector<ExprRef> by(2);
  by[1 - inner] = at.back();
  for (ExprRef s : b->columns) e = ir::mul(e, ir::substitute_indices(s, by));
  ir::Captured c = ir::capture(ir::with_sum(epilogue, e));
  g.replace_uses(y,
                 g.add_pointwise(c.operands, c.body, g.value(y).type, g.value(y).name, op.origin));
  return true;
}

}  // namespace

PassReport quantize_linear(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (ir::is_plain_product(graph.op(o)) && rewrite_product(graph, o)) ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes

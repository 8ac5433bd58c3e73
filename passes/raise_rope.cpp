// SPDX-License-Identifier: Apache-2.0
// raise-rope: a spelled-out rotary embedding as one op on the tokens' rows, its angles as tables
// that all layers share.
//   before: %y = pointwise(%x, %cos, %sin) {body = (b,h,s,d) => %x[b,h,s,d] * %cos[b,0,s,d] +
//             select(d <= 3, -%x[b,h,s,d + 4], %x[b,h,s,d - 4]) * %sin[b,0,s,d]} : f32[B,2,S,8]
//   after:  %r = rope(%x2, %cos2, %sin2) {heads = 2, interleaved = false, rotary = 8} : f32[B,S,16]; %y = a view of %r
// By substitution: the element is looked at in the first and in the second member of a pair (d and
// d + half, or 2e and 2e + 1), where conditions fold and a rotation is x*c - y*s and y*c + x*s.
// Channels past the rotary ones must be x itself. So rotate-half, joined halves, strided slices,
// complex numbers, partial rotary and angles from positions, tables or caches are one case. A
// constant that all four products share becomes a factor of the view. The tables are
// [B or 1, S, rotary / 2], or [.., rotary] where the members of a pair have different values.
// It is an op on rows, not a part of the attention's score: a cache stores the rotated key, no
// element is rotated again for each block of queries, and after packing it is the same over tokens.
// Its x is read in place, as a slice of the product of q, k and v.
// Requires: rank 4 with known heads, a real type but f64, an even head size of at most 512; each
// member has two products; angles that do not depend on the head.
#include <algorithm>

#include "ir/ir.h"
#include "passes/heads.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kLargestHead = 512;

// One summand: factors in structural order, negations and constants taken out.
struct Product {
  bool negative = false;
  double scale = 1;
  std::vector<ExprRef> factors;
};

ExprRef without_sign(ExprRef e, bool& negative) {
  while (e->kind == ExprKind::fneg) {
    negative = !negative;
    e = e->args[0];
  }
  return e;
}

void sum_of_products(ExprRef e, bool negative, std::vector<Product>& out) {
  e = without_sign(e, negative);
  if (e->kind == ExprKind::fadd || e->kind == ExprKind::fsub) {
    sum_of_products(e->args[0], negative, out);
    sum_of_products(e->args[1], negative != (e->kind == ExprKind::fsub), out);
    return;
  }
  Product p{negative, 1, {}};
  for (ExprRef f : factors(e)) {
    f = without_sign(f, p.negative);
    for (ExprRef g : factors(f)) {  // -(0.25 * x)
      const auto c = ir::as_real(g);
      if (c) p.scale *= *c;
      else p.factors.push_back(without_sign(g, p.negative));
    }
  }
  out.push_back(std::move(p));
}

// The other factors, as one product; null if x is none of them.
ExprRef quotient(const Product& p, ExprRef x) {
  ExprRef rest = nullptr;
  bool found = false;
  for (ExprRef f : p.factors) {
    if (f == x && !found) found = true;
    else rest = rest ? ir::mul(rest, f) : f;
  }
  return found ? rest : nullptr;
}

// A rotation of pairs: tables over (b, h, s, e) for the first and the second member of pair e.
struct Rotation {
  bool interleaved = false;
  int64_t rotary = 0;
  ExprRef x = nullptr;  // over (b, h, s, d)
  ExprRef cos[2] = {}, sin[2] = {};
  double scale = 1;  // of all of the result
};

class Raiser {
 public:
  Raiser(Graph& g, ValueId v, PassReport& report) : g_(g), v_(v), report_(report) {}

  bool run() {
    const auto& dims = type().dims;
    if (dims.size() != 4 || type().dtype == DType::f64) return false;
    if (!is_float(type().dtype)) return false;  // cost: integers are no sums of real products
    const auto size = ir::as_int(dims[3]);
    const ExprKind kind = g_.def(v_)->as<ir::PointwiseAttrs>().body->kind;
    const bool sum = kind == ExprKind::fadd || kind == ExprKind::fsub || kind == ExprKind::select;
    if (!size || *size % 2 != 0 || *size > kLargestHead || !sum)
      return false;  // cost: no such element is a rotation
    size_ = *size;
    e_ = expanded(g_, v_, ir::indices_of(g_, v_),
                  [&](ValueId x) { return is_biased_product(g_, x); });
    for (int64_t rotary : candidates()) {
      for (bool interleaved : {false, true}) {
        if (rotation(interleaved, rotary)) return raise();
      }
    }
    return false;
  }

 private:
  ExprPool& pool() { return g_.pool(); }
  const ir::Type& type() const { return g_.value(v_).type; }
  ExprRef integer(int64_t n) { return pool().integer(n); }
  // Index variable 3 over n channels or pairs; a single one is 0.
  ExprRef channel(int64_t n) { return n == 1 ? integer(0) : pool().index(3, integer(n)); }
  static ExprRef at_channel(ExprRef e, ExprRef d) {
    return ir::substitute_indices(e, {nullptr, nullptr, nullptr, d});
  }

  bool miss(const std::string& reason) {
    report_.misses.push_back({label(g_, g_.value(v_).def), reason});
    return false;
  }

  // How many channels may be rotated: all of them, or what a condition on the channel says, as a
  // whole or as a half.
  std::vector<int64_t> candidates() {
    std::vector<int64_t> out{size_};
    ir::for_each_node(e_, [&](ExprRef n) {
      if (n->kind != ExprKind::ge0) return;
      ExprRef p = n->args[0];
      int64_t k = 0;
      if (p->kind == ExprKind::poly && p->terms.size() == 1 &&
          p->terms[0].atoms == std::vector<ExprRef>{channel(size_)}) {
        k = p->terms[0].coefficient == 1 ? -p->value : p->value + 1;
      }
      for (int64_t r : {k, 2 * k}) {
        if (r >= 2 && r % 2 == 0 && r < size_) out.push_back(r);
      }
    });
    std::sort(out.rbegin(), out.rend());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  ExprRef member(bool interleaved, int64_t rotary, int which) {
    ExprRef e = channel(rotary / 2);
    return interleaved ? ir::add(ir::mul(integer(2), e), integer(which))
                       : ir::add(e, integer(which * (rotary / 2)));
  }

  // first = x*c - y*s, second = y*c + x*s, with the sign of s free.
  bool rotation(bool interleaved, int64_t rotary) {
    const ExprRef places[2] = {member(interleaved, rotary, 0), member(interleaved, rotary, 1)};
    std::vector<Product> first, second;
    sum_of_products(at_channel(e_, places[0]), false, first);
    sum_of_products(at_channel(e_, places[1]), false, second);
    if (first.size() != 2 || second.size() != 2) return false;
    for (int t = 0; t < 2; ++t) {
      for (ExprRef x : first[t].factors) {
        for (ExprRef y : first[1 - t].factors) {
          for (int u = 0; u < 2; ++u) {
            const Product &xc = first[t], &ys = first[1 - t], &yc = second[u], &xs = second[1 - u];
            Rotation r{interleaved,
                       rotary,
                       nullptr,
                       {quotient(xc, x), quotient(yc, y)},
                       {quotient(ys, y), quotient(xs, x)}};
            if (!r.cos[0] || !r.cos[1] || !r.sin[0] || !r.sin[1]) continue;
            if (xc.negative || yc.negative || ys.negative == xs.negative) continue;
            r.x = whole(interleaved, rotary, x);
            if (at_channel(r.x, places[0]) != x || at_channel(r.x, places[1]) != y) continue;
            const double scales[] = {xc.scale, yc.scale, ys.scale, xs.scale};
            if (std::ranges::count(scales, scales[0]) != 4) continue;
            r.scale = scales[0];
            if (!ys.negative) r.sin[0] = ir::neg(r.sin[0]), r.sin[1] = ir::neg(r.sin[1]);
            r_ = r;
            return keeps_rest();
          }
        }
      }
    }
    return false;
  }

  // x over all channels from x at the first members of pairs.
  ExprRef whole(bool interleaved, int64_t rotary, ExprRef x) {
    ExprRef e = channel(rotary / 2), d = channel(size_);
    if (!interleaved) return at_channel(x, d);
    // 2*e is d: in every index that has it; the caller looks whether this was all of e.
    ExprRef marked = pool().index(5, integer(size_));
    ExprRef r = ir::rewrite(x, [&](ExprRef n) -> ExprRef {
      for (const ir::Term& t : n->terms) {
        if (t.atoms != std::vector<ExprRef>{e}) continue;
        ExprRef rest = ir::sub(n, ir::mul(integer(t.coefficient), e));
        return ir::add(rest, ir::mul(integer(t.coefficient / 2), marked));
      }
      return nullptr;
    });
    return ir::substitute_indices(r, {nullptr, nullptr, nullptr, nullptr, nullptr, d});
  }

  bool keeps_rest() {
    if (r_.rotary == size_) return true;
    ExprRef d = ir::add(channel(size_ - r_.rotary), integer(r_.rotary));
    ExprRef rest = at_channel(e_, d);
    if (r_.scale != 1 && peel_scale(rest) != r_.scale) return false;
    return rest == at_channel(r_.x, d);
  }

  bool uses(int64_t index) const {
    return std::ranges::any_of(r_.cos, [&](ExprRef e) { return ir::uses_index(e, index); }) ||
           std::ranges::any_of(r_.sin, [&](ExprRef e) { return ir::uses_index(e, index); });
  }

  // The table of the members' values over (b, s, pair), or over (b, s, channel) where they differ.
  ExprRef table(const ExprRef (&values)[2], ExprRef batch, ExprRef tokens, bool wide,
                ir::Type& type) {
    type = {DType::f32,
            {uses(0) ? batch : integer(1), tokens, integer(wide ? r_.rotary : r_.rotary / 2)}};
    const Indices at = ir::indices_of(pool(), type.dims);
    auto by_pair = [&](ExprRef e, ExprRef pair) {
      return ir::substitute_indices(e, {at[0], nullptr, at[1], pair});
    };
    if (!wide) return by_pair(values[0], at[2]);
    ExprRef half = integer(r_.rotary / 2), two = integer(2);
    if (r_.interleaved) {
      ExprRef pair = ir::div(at[2], two);
      return ir::select(ir::eq(ir::mod(at[2], two), integer(0)), by_pair(values[0], pair),
                        by_pair(values[1], pair));
    }
    return ir::select(ir::lt(at[2], half), by_pair(values[0], at[2]),
                      by_pair(values[1], ir::sub(at[2], half)));
  }

  bool raise() {
    const auto dims = type().dims;
    const bool heads_first = !uses(1) && ir::as_int(dims[1]);
    if (!heads_first && (uses(2) || !ir::as_int(dims[2])))
      return miss("the angles depend on the head, or the number of heads is not known");
    if (!heads_first) {
      const Indices swapped{nullptr, ir::indices_of(pool(), {dims[0], dims[0], dims[1]})[2],
                            ir::indices_of(pool(), {dims[0], dims[2]})[1]};
      for (ExprRef* e : {&r_.x, &r_.cos[0], &r_.cos[1], &r_.sin[0], &r_.sin[1]})
        *e = ir::substitute_indices(*e, swapped);
    }
    ExprRef heads = dims[heads_first ? 1 : 2], tokens = dims[heads_first ? 2 : 1];
    const TokenMajor x = token_major(g_, r_.x, {dims[0], heads, tokens, dims[3]}, type().dtype);
    const bool wide = r_.cos[0] != r_.cos[1] || r_.sin[0] != r_.sin[1];
    ir::Type tables;
    ExprRef cos = table(r_.cos, dims[0], tokens, wide, tables),
            sin = table(r_.sin, dims[0], tokens, wide, tables);
    for (const auto& [body, extents] :
         {std::pair{x.body, x.type.dims}, {cos, tables.dims}, {sin, tables.dims}}) {
      const std::string problem = ir::body_problem(g_, body, extents);
      if (!problem.empty())
        return miss("x or the angles by token: " +
                    problem);  // cost: the verifier would undo the pass
    }
    rewrite(x, cos, sin, tables, heads_first);
    return true;
  }

  void rewrite(const TokenMajor& x, ExprRef cos, ExprRef sin, const ir::Type& tables,
               bool heads_first) {
    const std::string base = g_.value(v_).name, origin = g_.op(g_.value(v_).def).origin;
    auto value_of = [&](ExprRef body, const char* suffix) {
      if (auto v = loaded_at(body, ir::indices_of(pool(), tables.dims));
          v && g_.value(*v).type == tables)
        return *v;
      ir::Captured c = ir::capture(body);
      return g_.add_pointwise(c.operands, c.body, tables, base + suffix, origin);
    };
    const ir::Type to = type();
    ir::RopeAttrs attrs;
    attrs.heads = *ir::as_int(to.dims[heads_first ? 1 : 2]);
    attrs.interleaved = r_.interleaved;
    attrs.rotary = r_.rotary;
    const std::vector<ValueId> operands{add_token_major(g_, x, base + ".x", origin),
                                        value_of(cos, ".cos"), value_of(sin, ".sin")};
    const ValueId y = g_.add(OpKind::rope, operands, attrs, x.type, base + ".rope", origin);
    const Indices at = ir::indices_of(pool(), to.dims);
    ExprRef h = at[heads_first ? 1 : 2], s = at[heads_first ? 2 : 1];
    ExprRef element = ir::load_of(g_, y, {at[0], s, ir::add(ir::mul(h, to.dims[3]), at[3])});
    if (r_.scale != 1) element = ir::mul(element, pool().real(r_.scale, element->type));
    ir::Captured c = ir::capture(element);
    g_.replace_uses(v_, g_.add_pointwise(c.operands, c.body, to, base, origin));
    g_.set_operands(g_.value(v_).def, {});  // dead: what it alone read need not be raised too
  }

  Graph& g_;
  ValueId v_;
  PassReport& report_;
  int64_t size_ = 0;
  ExprRef e_ = nullptr;
  Rotation r_;
};

}  // namespace

PassReport raise_rope(Graph& graph) {
  PassReport report;
  std::vector<OpId> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (graph.op(*it).kind != OpKind::pointwise || graph.use_count(graph.result(*it)) == 0)
      continue;
    report.rewrites += Raiser(graph, graph.result(*it), report).run();
  }
  return report;
}

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// Walking and rebuilding expressions. Rebuilding goes through the builders, so the result is
// simplified again.
#include <algorithm>

#include "ir/expr_poly.h"
#include "ir/pointer_map.h"
#include "runtime/result.h"

namespace tfcc::ir {
namespace {

class Rewriter {
 public:
  Rewriter(ExprPool& pool, const Rewrite& leaf) : pool_(pool), leaf_(leaf) {}

  ExprRef run(ExprRef e) {
    if (const ExprRef* known = memo_.find(e)) return *known;
    ExprRef r = compute(e);
    memo_.insert(e, r);
    return r;
  }

 private:
  ExprRef compute(ExprRef e) {
    if (e->kind == ExprKind::load) {
      std::vector<ExprRef> at;
      for (ExprRef a : e->args) at.push_back(run(a));
      ExprRef load = pool_.load(e->value, e->dtype, std::move(at));
      ExprRef r = leaf_ ? leaf_(load) : nullptr;
      return r ? r : load;
    }
    if (leaf_) {
      if (ExprRef r = leaf_(e)) return r;
    }
    return rebuild(e);
  }

  ExprRef rebuild(ExprRef e) {
    auto arg = [&](size_t i) { return run(e->args[i]); };
    switch (e->kind) {
      case ExprKind::poly: return rebuild_poly(e);
      case ExprKind::index: return pool_.index(e->value, arg(0));
      case ExprKind::symbol: return pool_.symbol(e->name);
      case ExprKind::param: return pool_.param(e->name, e->type);
      case ExprKind::fconst: return pool_.real(e->real, e->type);
      case ExprKind::btrue: return pool_.boolean(true);
      case ExprKind::bfalse: return pool_.boolean(false);
      case ExprKind::floordiv: return div(arg(0), arg(1));
      case ExprKind::imin:
      case ExprKind::fmin: return min(arg(0), arg(1));
      case ExprKind::bitand_: return bit_and(arg(0), arg(1));
      case ExprKind::wrap: return wrap(arg(0), static_cast<int>(std::abs(e->value)), e->value > 0);
      case ExprKind::imax:
      case ExprKind::fmax: return max(arg(0), arg(1));
      case ExprKind::iabs: return abs(arg(0));
      case ExprKind::bounded: return bounded(arg(0), arg(1), e->value);
      case ExprKind::f2i: return convert(arg(0), Scalar::i64);
      case ExprKind::i2f:
      case ExprKind::f2f: return convert(arg(0), e->type);
      case ExprKind::select: return rebuild_select(e);
      case ExprKind::ge0: {
        const auto [large, small] = sides(e->args[0]);
        return le(run(small), run(large));
      }
      case ExprKind::eq0: return eq(arg(0), pool_.integer(0));
      case ExprKind::band:
      case ExprKind::bor: return rebuild_junction(e);
      case ExprKind::bnot: return logical_not(arg(0));
      case ExprKind::flt: return lt(arg(0), arg(1));
      case ExprKind::fle: return le(arg(0), arg(1));
      case ExprKind::feq: return eq(arg(0), arg(1));
      case ExprKind::isnan: return is_nan(arg(0));
      case ExprKind::fadd: return add(arg(0), arg(1));
      case ExprKind::fsub: return sub(arg(0), arg(1));
      case ExprKind::fmul: return mul(arg(0), arg(1));
      case ExprKind::fdiv: return div(arg(0), arg(1));
      case ExprKind::fpow: return pow(arg(0), arg(1));
      case ExprKind::fmod: return mod(arg(0), arg(1));
      case ExprKind::poison: return pool_.poison(poison_of(e), e->type);
      case ExprKind::load: break;
      default: return unary(e->kind, arg(0));
    }
    TFCC_CHECK(false && "unreachable kind");
  }

  // A condition that folds leaves only one arm to look at; the other may not even make sense.
  ExprRef rebuild_select(ExprRef e) {
    ExprRef c = run(e->args[0]);
    if (c->kind == ExprKind::btrue) return run(e->args[1]);
    if (c->kind == ExprKind::bfalse) return run(e->args[2]);
    return select(c, run(e->args[1]), run(e->args[2]));
  }

  ExprRef rebuild_junction(ExprRef e) {
    ExprRef r = run(e->args[0]);
    for (size_t i = 1; i < e->args.size(); ++i) {
      r = e->kind == ExprKind::band ? logical_and(r, run(e->args[i]))
                                    : logical_or(r, run(e->args[i]));
    }
    return r;
  }

  ExprRef rebuild_poly(ExprRef e) {
    bool same = e->pool == &pool_;
    for (const Term& t : e->terms) {
      for (ExprRef a : t.atoms) same = (run(a) == a) && same;
    }
    if (same) return e;
    Poly sum{{}, e->value};
    for (const Term& t : e->terms) {
      Poly product{{}, t.coefficient};
      for (ExprRef a : t.atoms) product = multiply(product, to_poly(run(a)));
      append(sum, product);
    }
    normalise(sum);
    return from_poly(pool_, std::move(sum));
  }

  ExprPool& pool_;
  const Rewrite& leaf_;
  PointerMap<Node, ExprRef> memo_;
};

template <class F> void children(ExprRef e, F f) {
  for (ExprRef a : e->args) f(a);
  for (const Term& t : e->terms) {
    for (ExprRef a : t.atoms) f(a);
  }
}

}  // namespace

ExprRef rewrite(ExprRef e, const Rewrite& leaf) { return Rewriter(*e->pool, leaf).run(e); }

ExprRef transfer(ExprRef e, ExprPool& pool, const Rewrite& replacement) {
  return Rewriter(pool, replacement).run(e);
}

void for_each_node(ExprRef e, const std::function<void(ExprRef)>& f) {
  PointerSet<Node> seen;
  std::vector<std::pair<ExprRef, bool>> stack{{e, false}};
  while (!stack.empty()) {
    auto [n, done] = stack.back();
    stack.pop_back();
    if (done) {
      f(n);
      continue;
    }
    if (!seen.insert(n)) continue;
    stack.push_back({n, true});
    const size_t first = stack.size();
    children(n, [&](ExprRef c) {
      if (!seen.contains(c)) stack.push_back({c, false});
    });
    std::reverse(stack.begin() + static_cast<long>(first),
                 stack.end());  // the first child is looked at first
  }
}

size_t node_count(ExprRef e) {
  size_t n = 0;
  for_each_node(e, [&](ExprRef) { ++n; });
  return n;
}

size_t tree_size(ExprRef e, size_t limit) {
  PointerMap<Node, size_t> sizes;
  for_each_node(e, [&](ExprRef n) {
    size_t sum = 1;
    children(n, [&](ExprRef a) { sum = std::min(limit, sum + *sizes.find(a)); });
    sizes.insert(n, sum);
  });
  return *sizes.find(e);
}

ExprRef substitute_indices(ExprRef e, const std::vector<ExprRef>& by) {
  return rewrite(e, [&](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::index || static_cast<size_t>(n->value) >= by.size()) return nullptr;
    return by[n->value];
  });
}

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// The prover of p >= 0: replaces one atom at a time by the bound that the sign of its coefficient
// asks for. Deepest atoms go first (a floordiv before the index inside it, an index before the
// symbols of its extent). It has a step budget, because min and max split into cases; running out
// means "not proved", never "false". The claim is one about mathematical integers, of which the
// atoms are those that a machine computes. What defines an atom (floor(a / d) <= a / d) may be used
// where its arguments cannot wrap; elsewhere the atom has its range and no more.
#include <algorithm>
#include <numeric>
#include <optional>

#include "ir/range.h"

namespace tfcc::ir {
namespace {

constexpr int kSteps = 400;
constexpr int kTerms = 1 << 14;  // looked at in all steps together

struct Prover {
  ExprPool& pool;
  int steps = kSteps;
  int terms = kTerms;

  bool ge0(const Poly& claim) {
    if (claim.lost()) return false;  // it did not fit: this attempt fails, others may not
    if (claim.is_constant()) return claim.constant >= 0;
    if (--steps <= 0) return false;
    const Poly p = reduced(claim);
    std::vector<ExprRef> atoms;
    for (const Term& t : p.terms) atoms.insert(atoms.end(), t.atoms.begin(), t.atoms.end());
    // Terms of one atom each are in the order of compare(): a sort by depth is all that most claims
    // need.
    const auto before = [](ExprRef a, ExprRef b) {
      return a->depth != b->depth ? a->depth > b->depth : compare(a, b) < 0;
    };
    std::stable_sort(atoms.begin(), atoms.end(),
                     [](ExprRef a, ExprRef b) { return a->depth > b->depth; });
    if (!std::is_sorted(atoms.begin(), atoms.end(), before))
      std::sort(atoms.begin(), atoms.end(), before);
    atoms.erase(std::unique(atoms.begin(), atoms.end()), atoms.end());
    for (ExprRef x : atoms) {
      if (auto same = without_floor(x, p)) return ge0(*same);
    }
    for (ExprRef x : atoms) {
      terms -= static_cast<int>(p.terms.size());
      if (steps <= 0 || terms <= 0) return false;
      Poly q, r;
      split_by_atom(p, x, q, r);
      const int sign = sign_of(q);
      if (sign != 0 && eliminate(x, q, r, sign > 0)) return true;
    }
    return false;
  }

  // Divided by what all coefficients share: over integers 48 - 16*f >= -15 and 3 - f >= 0 are one
  // claim, and with a coefficient of 1 the floor in f costs nothing.
  static Poly reduced(Poly p) {
    int64_t g = 0;
    for (const Term& t : p.terms) {
      if (t.coefficient == INT64_MIN) return p;  // its magnitude does not fit
      g = std::gcd(g, t.coefficient);
    }
    if (g <= 1) return p;
    for (Term& t : p.terms) t.coefficient /= g;
    p.constant = floor_div(p.constant, g);
    return p;
  }

  // 1: q >= 0 always; -1: q <= 0 always; 0: not known.
  int sign_of(const Poly& q) {
    if (q.lost()) return 0;
    if (q.is_constant()) return q.constant >= 0 ? 1 : -1;
    if (ge0(q)) return 1;
    return ge0(scale(q, -1)) ? -1 : 0;
  }

  // Is x*q + r >= 0, with x at its lower bound (low) or its upper bound?
  bool at(const Poly& bound, const Poly& q, const Poly& r) {
    return ge0(add(multiply(q, bound), r));
  }

  // An argument as a bound: itself, or where it may wrap the end of its range.
  static Poly bound_of(ExprRef a, bool low) {
    if (fits(a)) return to_poly(a);
    const Interval range = range_of(a);
    return {{}, low ? range.lo : range.hi};
  }

  bool at_range(ExprRef x, const Poly& q, const Poly& r, bool low) {
    const Interval range = range_of(x);
    return at(Poly{{}, low ? range.lo : range.hi}, q, r);
  }

  bool eliminate(ExprRef x, const Poly& q, const Poly& r, bool low) {
    switch (x->kind) {
      case ExprKind::index:
        return low ? ge0(r) : at(add(to_poly(x->args[0]), Poly{{}, 1}, -1), q, r);
      case ExprKind::bounded: {  // 0 where n is
        if (low) return ge0(r);
        ExprRef n = x->args[1];
        return fits(n)
                   ? at(add(to_poly(n), Poly{{}, 1}, -1), q, r) && (range_of(n).lo >= 1 || ge0(r))
                   : at_range(x, q, r, low);
      }
      case ExprKind::symbol: {
        const SymbolRange range = pool.range(x->name);
        if (low) return at(Poly{{}, range.min}, q, r);
        return at(Poly{{}, range.max.value_or(kLargestSize)}, q, r);
      }
      case ExprKind::floordiv: return eliminate_floordiv(x, q, r, low);
      case ExprKind::imin:
      case ExprKind::imax: {
        // min is below both and equals one of them: as a lower bound both must do, as an upper
        // bound either does.
        const bool both = (x->kind == ExprKind::imin) == low;
        const bool first = at(bound_of(x->args[0], low), q, r);
        if (first != both) return first;
        return at(bound_of(x->args[1], low), q, r);
      }
      case ExprKind::iabs: {
        if (!fits(x->args[0]) || range_of(x->args[0]).lo == INT64_MIN)
          return at_range(x, q, r, low);
        if (low && ge0(r)) return true;
        const Poly a = to_poly(x->args[0]);
        const bool first = at(a, q, r);
        return low ? first || at(scale(a, -1), q, r) : first && at(scale(a, -1), q, r);
      }
      case ExprKind::select:
        return at(bound_of(x->args[1], low), q, r) && at(bound_of(x->args[2], low), q, r);
      default: return at_range(x, q, r, low);
    }
  }

  // f + r >= 0 is a + d*r >= 0, and r - f >= 0 is a <= d*r + d - 1, for f = floor(a/d), d > 0: an
  // equal claim, so that nothing else needs to be tried.
  std::optional<Poly> without_floor(ExprRef x, const Poly& p) {
    if (x->kind != ExprKind::floordiv || !fits(x->args[0]) || !fits(x->args[1]))
      return std::nullopt;
    Poly q, r;
    split_by_atom(p, x, q, r);
    if (q.lost() || !q.is_constant() || (q.constant != 1 && q.constant != -1)) return std::nullopt;
    const Poly a = to_poly(x->args[0]), d = to_poly(x->args[1]);
    if (!ge0(add(d, Poly{{}, 1}, -1))) return std::nullopt;
    const Poly scaled = multiply(d, r);
    if (scaled.lost()) return std::nullopt;
    if (q.constant == 1) return add(a, scaled);
    return add(add(add(scaled, d), a, -1), Poly{{}, 1}, -1);
  }

  // d*f >= a - d + 1 and d*f <= a for f = floor(a/d), d > 0: multiply the claim by d.
  bool eliminate_floordiv(ExprRef x, const Poly& q, const Poly& r, bool low) {
    if (!fits(x->args[0]) || !fits(x->args[1])) return at_range(x, q, r, low);
    const Poly a = to_poly(x->args[0]), d = to_poly(x->args[1]);
    if (!ge0(add(d, Poly{{}, 1}, -1))) return false;
    const Poly scaled = multiply(d, r);
    if (scaled.lost()) return low && ge0(a) && ge0(r);
    if (!low) return ge0(add(scaled, multiply(q, a)));
    if (ge0(a) && ge0(r)) return true;
    return ge0(add(scaled, multiply(q, add(add(a, d, -1), Poly{{}, 1}))));
  }
};

}  // namespace

namespace {

// The same claim without the floors that cost nothing, so that it has the atoms of the assumptions.
Poly without_floors(ExprRef p) {
  Poly poly = to_poly(p);
  bool more = true;
  while (more) {
    more = false;
    for (const Term& t : Poly(poly).terms) {
      if (more || t.atoms.size() != 1) continue;
      auto same = Prover{*p->pool}.without_floor(t.atoms[0], poly);
      if (same) poly = *std::move(same), more = true;
    }
  }
  return poly;
}

// How often an assumption may be used: once, or as often as takes a term out of the claim.
std::vector<int64_t> multiples(const Poly& claim, const Poly& assumption) {
  std::vector<int64_t> out{1};
  for (const Term& t : claim.terms) {
    for (const Term& a : assumption.terms) {
      if (a.atoms != t.atoms || (a.coefficient == -1 && t.coefficient == INT64_MIN) ||
          t.coefficient % a.coefficient != 0)
        continue;
      const int64_t m = t.coefficient / a.coefficient;
      if (m > 1 && std::find(out.begin(), out.end(), m) == out.end()) out.push_back(m);
    }
  }
  return out;
}

}  // namespace

namespace {

// By one assumption or two.
bool proved_by(ExprRef p, const std::vector<ExprRef>& assume) {
  bool found = false;
  auto attempt = [&](const Poly& claim) { return found = Prover{*p->pool}.ge0(claim); };
  const Poly poly = without_floors(p);
  for (size_t i = 0; i < assume.size() && !found; ++i) {
    const Poly first = to_poly(assume[i]);
    for (int64_t m : multiples(poly, first)) {
      const Poly one = add(poly, first, -m);
      if (attempt(one)) break;
      // Two assumptions together, for a guard on each side.
      for (size_t j = i + 1; j < assume.size() && !found; ++j)
        attempt(add(one, to_poly(assume[j]), -1));
      if (found) break;
    }
  }
  return found;
}

// b - a - less >= 0.
bool never_less(ExprRef b, ExprRef a, int64_t less, const std::vector<ExprRef>& assume) {
  const Poly difference = add(add(to_poly(b), to_poly(a), -1), Poly{{}, less}, -1);
  return !difference.lost() && claim_ge0(from_poly(*a->pool, difference), assume);
}

}  // namespace

bool claim_ge0(ExprRef p, const std::vector<ExprRef>& assume) {
  ExprPool& pool = *p->pool;
  std::vector<ExprRef> claim{p};
  std::optional<bool> alone = pool.proof(claim);
  if (!alone) pool.keep_proof(claim, *(alone = Prover{pool}.ge0(to_poly(p))));
  if (*alone || assume.empty()) return *alone;
  claim.insert(claim.end(), assume.begin(), assume.end());
  std::optional<bool> found = pool.proof(claim);
  if (!found) pool.keep_proof(claim, *(found = proved_by(p, assume)));
  return *found;
}

bool prove_ge0(ExprRef p, const std::vector<ExprRef>& assume) {
  return range_of(p).lo >= 0 || (claim_ge0(p, assume) && fits(p));
}

bool prove_le(ExprRef a, ExprRef b, const std::vector<ExprRef>& assume) {
  if (range_of(a).hi <= range_of(b).lo) return true;
  return never_less(b, a, 0, assume) && fits(a) && fits(b);
}

bool prove_in(ExprRef e, ExprRef n, const std::vector<ExprRef>& assume) {
  const Interval range = range_of(e);
  if (range.lo >= 0 && range.hi < range_of(n).lo) return true;
  // What lies between two numbers of 64 bits does not wrap.
  return claim_ge0(e, assume) && fits(n) && never_less(n, e, 1, assume);
}

}  // namespace tfcc::ir

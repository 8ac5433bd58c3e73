// SPDX-License-Identifier: Apache-2.0
// Integer polynomials over atoms: the working form behind ExprKind::poly. Internal to ir/.
#pragma once

#include <utility>
#include <vector>

#include "ir/expr.h"

namespace tfcc::ir {

/// sum of terms + constant. Terms are sorted and non-zero; see normalise().
struct Poly {
  std::vector<Term> terms;
  int64_t constant = 0;
  /// A number did not fit 64 bits. Where data is in the sum, what is left modulo 2^64 is what a
  /// machine computes; among sizes alone it is an error, and in a proof it proves nothing.
  bool wrapped = false;
  Poison poison = Poison::none;  // terms and constant mean nothing
  bool is_constant() const { return terms.empty(); }
  bool lost() const { return wrapped || poison != Poison::none; }
};

/// The polynomial of any i64 expression; an atom is 1 * itself.
Poly to_poly(ExprRef e);
/// The canonical node: a constant, an atom alone, a poly, or a poison.
ExprRef from_poly(ExprPool& pool, Poly p);
Poly add(const Poly& a, const Poly& b, int64_t scale_b = 1);
Poly multiply(const Poly& a, const Poly& b);
/// Adds without putting in order: after a series of these comes normalise().
void append(Poly& sum, const Poly& more);
Poly scale(const Poly& a, int64_t k);
/// Term / divisor if it divides exactly.
bool divide_term(const Term& t, const Term& divisor, Term& quotient);
/// p = x * q + r with q collecting one factor x of each term that has it.
void split_by_atom(const Poly& p, ExprRef x, Poly& q, Poly& r);
/// Sorts terms, merges equal monomials, drops zeros.
void normalise(Poly& p);

/// p >= 0 as it is evaluated: the sum of the terms above zero is at least that of those below
/// without their signs. The constant is on the side where it is not negative, unless a side would
/// wrap with it there and neither does with it on the other.
std::pair<ExprRef, ExprRef> sides(ExprRef p);
/// Does neither of them wrap?
bool sides_fit(ExprRef p);

/// i64(real) in integers, or null: for sums, products and at most one division of sizes, with
/// floor, ceil or neither, as long as what is added and multiplied stays below 2^24 (where reals
/// are exact).
ExprRef whole_of(ExprRef real);

/// True if the mathematical value of p, over what its atoms evaluate to, is proved to be >= 0; p
/// itself may wrap.
bool claim_ge0(ExprRef p, const std::vector<ExprRef>& assume = {});

/// A poly written with modulo again: p = rest + sum factor * (dividend mod divisor). For print and
/// emission.
struct ModPart {
  Term factor;
  ExprRef dividend;
  ExprRef divisor;
};
std::vector<ModPart> extract_mods(Poly& p);

/// a / b to minus infinity; b is not 0, and not -1 where a is the least integer.
inline int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && ((a < 0) != (b < 0)));
}

/// What a floordiv evaluates to: 0 outside of its contract, that a divisor is positive.
inline int64_t evaluated_floordiv(int64_t a, int64_t b) { return b <= 0 ? 0 : floor_div(a, b); }

/// What a wrap of so many bits (negative: unsigned) keeps of v.
inline int64_t low_bits(int64_t v, int64_t bits) {
  const int unused = static_cast<int>(64 - (bits < 0 ? -bits : bits));
  const uint64_t shifted = static_cast<uint64_t>(v) << unused;
  return bits < 0 ? static_cast<int64_t>(shifted >> unused)
                  : static_cast<int64_t>(shifted) >> unused;
}

/// Evaluates a unary or binary real operation on numbers, in double.
double fold_unary(ExprKind kind, double a);
double fold_binary(ExprKind kind, double a, double b);
/// Rounds to f16 / bf16, ties to even.
double round_to_f16(double v);
double round_to_bf16(double v);

}  // namespace tfcc::ir

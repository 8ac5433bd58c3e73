// SPDX-License-Identifier: Apache-2.0
// Sums of products, taken apart for raise-linear-attention: what a contraction sums, and which of
// its factors are query, key, value, mask and decay. Expressions are free.
#pragma once

#include <set>
#include <string>

#include "passes/match.h"

namespace tfcc::passes {

/// Numbers of index variables in canonical expressions: batch, head, token of the query, channel of
/// v, feature, token of the key.
enum LinearIndex : int64_t { kB = 0, kH = 1, kT = 2, kC = 3, kE = 4, kJ = 5 };

/// The numbers of the index variables of e.
std::set<int64_t> numbers_of(ExprRef e);

/// What the sum at this load adds up: the product as an element over the summed index, whose number
/// is `number`; null if the value is no product without an epilogue and no sum over one index.
ExprRef summand(const Graph& g, ExprRef load, int64_t number);

/// The element of what a running sum at this load adds, at index `number` of the summed axis; null
/// if it is none from the first token on to its own, or with `any_direction` no running sum at all.
/// `end` is its own.
ExprRef running_summand(const Graph& g, ExprRef load, int64_t number, ExprRef* end,
                        bool any_direction = false);

/// A product as factors, in order, without its constants.
struct Factors {
  double scale = 1;
  std::vector<ExprRef> up, down;
};
Factors factors_of(ExprRef e);
/// The product of all of them; null for none.
ExprRef product_of(const std::vector<ExprRef>& factors);

/// One sum as a linear attention spells it, over the index x. With a state: x is a feature, and the
/// sum over tokens stands inside.
/// Without: x is the token of the key, and the sum over features stands inside.
struct LinearForm {
  bool state = false, running = false;  // running: a cumsum over tokens up to `end`
  ExprRef inner = nullptr;              // the load of the state, or of the product of q and k
  ExprRef end = nullptr;                // of a running sum
  double scale = 1;
  std::vector<ExprRef> q, inside,
      rows;  // factors: of the query; inside of the state (k and v) or of the weights (all but q k); of neither
  std::vector<ExprRef> row_divisors;
  std::vector<ExprRef> k;           // without a state: factors of the key
  std::vector<ExprRef> conditions;  // without a state: of the weights
  std::vector<ExprRef> exponents;   // and what e is raised to in them
  std::string problem;              // why it is none; empty if it is one
};

/// Takes a sum over x apart; `j` and `e` are the numbers that token and feature get where they
/// stand inside.
LinearForm linear_form(const Graph& g, ExprRef product, int64_t x, int64_t inside);

/// A condition on reals that are differences of indices as one on integers: exact while indices are
/// below 2^24.
ExprRef over_integers(ExprRef condition);

/// The decay of each token that an exponent over the tokens t and j spells: D (t - j), or a running
/// sum at t less that at j. Null if none.
ExprRef decay_of(const Graph& g, ExprRef exponent, ExprRef t, ExprRef j);

}  // namespace tfcc::passes

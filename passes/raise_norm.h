// SPDX-License-Identifier: Apache-2.0
// What raise-layer-norm and raise-rms-norm share: finding the mean, and matching scale and shift.
// Internal to passes/.
#pragma once

#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {

/// The length of the rows of a tensor, where it is known; a number has none.
std::optional<int64_t> row_width(const ir::Type& type);

/// If v, a reduction, is the mean of some expression over the last axis (kept as size 1 or
/// dropped): that expression, free, at `row` for the leading axes and `last` for the reduced one.
std::optional<ExprRef> mean_over_last(const Graph& g, ValueId v, const Indices& row, ExprRef last);

/// A load of a mean that belongs to the row of `at`.
std::optional<ValueId> row_statistic(const Graph& g, ExprRef e, const Indices& at);

/// The body of a reduction of this kind over the last axis of `at`, which e loads for its row; free,
/// at `at`.
std::optional<ExprRef> reduced_body(const Graph& g, ExprRef e, ir::ReduceKind kind,
                                    const Indices& at);

/// Values whose mean (or, with `squares`, mean of squares) is taken: where expansion has to stop.
std::vector<ValueId> normalised_candidates(const Graph& g, bool squares);

/// core * gamma + beta in any order of factors; gamma and beta may be absent.
struct Affine {
  ExprRef core;
  std::optional<ValueId> gamma, beta;
};
/// Every way to read e as such; the caller tries to match each core.
std::vector<Affine> affine_forms(const Graph& g, ExprRef e, const Indices& at);

/// eps of sqrt(statistic + eps), or nothing.
struct RootTerm {
  ExprRef statistic;
  double eps;
};
std::optional<RootTerm> root_of(ExprRef e);
/// numerator / sqrt(statistic + eps), written as a division or as a product with 1 / sqrt or sqrt(1
/// / ...).
struct Normalised {
  ExprRef numerator;
  RootTerm root;
};
std::vector<Normalised> normalised_forms(ExprRef e);

/// The expression of a value of this type as f32 computes it, without casts to the type on the way:
/// of a norm in f32 between casts of a 16-bit graph the result alone is rounded.
ExprRef rounded_once(ExprRef e, DType result);
/// What the f32 copy of a 16-bit value was made from; any other value is its own source.
ValueId before_widening(const Graph& g, ValueId v);

/// gamma, or a constant of ones if there was none.
ValueId gamma_or_ones(Graph& g, const Affine& a, ValueId x);

/// Tries `raise` on every op, last first, so that scale and shift are taken along and what they
/// covered is then dead. `squares` as in normalised_candidates.
using RaiseNorm = bool (*)(Graph& g, OpId o, const std::vector<ValueId>& candidates,
                           PassReport& report);
PassReport raise_norms(Graph& g, bool squares, RaiseNorm raise);

}  // namespace tfcc::passes

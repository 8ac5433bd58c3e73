// SPDX-License-Identifier: Apache-2.0
// pointwise: out[i...] = body(i0, ...)(j), out row-major with dims d0 ... d(rank-1). A work item is a
// row (all dims but the last), for which body computes what is the same for all of it; the loop
// along j is vectorised where the function that it returns allows.
#pragma once

#include "expr.h"

/// Spec: Out, rank >= 1. Body: rank - 1 indices -> (j -> Compute<Out>).
template <class Spec, class Body>
TFCC_FN void pointwise(typename Spec::Out* __restrict out, const Dims<Spec::rank>& dims,
                       const Body& body, i64 begin, i64 end) {
  constexpr int axes = Spec::rank - 1;
  const idx cols = dims[axes];
  if (cols == 0) return;  // there is no row that body could read of
  idx i[Spec::rank] = {};
  unravel<axes>(begin, dims, i);
  for (i64 row = begin; row < end; ++row) {
    typename Spec::Out* __restrict to = out + row * cols;
    const auto value = apply<axes>(body, i);
#pragma clang loop vectorize(assume_safety)
    for (idx j = 0; j < cols; ++j) store(to, j, value(j));
    for (int k = axes - 1; k >= 0 && ++i[k] == dims[k]; --k) i[k] = 0;
  }
}

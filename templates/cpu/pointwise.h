// SPDX-License-Identifier: Apache-2.0
// pointwise: out[i...] = body(i...), out row-major with dims d0 ... d(rank-1). A work item is a row
// (all dims but the last); the loop along it is vectorised where the body allows.
#pragma once

#include "expr.h"

/// Spec: Out, rank. Body: rank indices -> Compute<Out>.
template <class Spec, class Body>
TFCC_FN void pointwise(typename Spec::Out* __restrict out, const Dims<Spec::rank>& dims,
                       const Body& body, i64 begin, i64 end) {
  constexpr int rank = Spec::rank;
  if constexpr (rank == 0) {
    if (begin < end) store(out, 0, body());
  } else {
    const idx cols = dims[rank - 1];
    idx i[rank] = {};
    unravel<rank - 1>(begin, dims, i);
    for (i64 row = begin; row < end; ++row) {
      typename Spec::Out* __restrict to = out + row * cols;
#pragma clang loop vectorize(assume_safety)
      for (idx j = 0; j < cols; ++j) {
        idx at[rank];
        for (int k = 0; k < rank - 1; ++k) at[k] = i[k];
        at[rank - 1] = j;
        store(to, j, apply<rank>(body, at));
      }
      for (int k = rank - 2; k >= 0 && ++i[k] == dims[k]; --k) i[k] = 0;
    }
  }
}

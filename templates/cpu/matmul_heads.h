// SPDX-License-Identifier: Apache-2.0
// matmul_heads: out[i, h n + j] = alpha sum_p a[i, h k + p] b[h k + p, j] for the heads h, which stand
// side by side in rows of a [m, heads k] and out [m, heads n], and one behind the other in b [heads k,
// n]. All f32 and row-major.
//
// A work item is (block of kBlockRows rows, head), heads first. In an item a few rows times a few
// vectors of columns are summed over p in registers; those columns of b stay in the first cache from
// rows to rows. A row's sum does not depend on the rows around it: it is a chain of
// multiply-adds over p in order.
// Spec: heads, k. Bound: multiply-adds.
#pragma once

#include "cpu/vectors.h"
#include "expr.h"

namespace matmul_heads_detail {

inline constexpr int kBlockRows = 32;

/// Registers: 32 vectors with AVX-512, else 16; sums take most of them.
inline constexpr int kVectors = kLanes == 16 ? 4 : 2, kRows = 6, kColumns = kVectors * kLanes;

/// rows x (vectors * kLanes) sums of one head.
template <class Spec, int rows, int vectors>
TFCC_FN void tile(f32* out, const f32* a, const f32* b, idx n, f32 alpha) {
  Vector sum[rows][vectors] = {};
#pragma clang loop unroll_count(4)
  for (int p = 0; p < Spec::k; ++p) {
    Vector y[vectors];
    for (int v = 0; v < vectors; ++v) y[v] = load_vector(b + p * n + v * kLanes);
    for (int r = 0; r < rows; ++r) {
      const f32 x = a[r * (Spec::heads * Spec::k) + p];
      for (int v = 0; v < vectors; ++v) sum[r][v] += y[v] * x;
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v)
      store_vector(out + r * (Spec::heads * n) + v * kLanes, sum[r][v] * alpha);
  }
}

/// The same of any number of rows.
template <class Spec, int vectors>
TFCC_FN void columns(int rows, f32* out, const f32* a, const f32* b, idx n, f32 alpha) {
  const idx out_row = Spec::heads * n;
  for (; rows >= kRows; rows -= kRows, out += kRows * out_row, a += kRows * Spec::heads * Spec::k)
    tile<Spec, kRows, vectors>(out, a, b, n, alpha);
  for (; rows > 0; --rows, out += out_row, a += Spec::heads * Spec::k)
    tile<Spec, 1, vectors>(out, a, b, n, alpha);
}

}  // namespace matmul_heads_detail

template <class Spec>
TFCC_FN void matmul_heads(f32* __restrict out, const f32* __restrict a, const f32* __restrict b,
                          idx m, idx n, f32 alpha, i64 begin, i64 end) {
  using namespace matmul_heads_detail;
  for (; begin < end; ++begin) {
    const idx row = begin / Spec::heads * kBlockRows, h = begin % Spec::heads;
    const int rows = (int)imin(kBlockRows, m - row);
    f32* to = out + (row * Spec::heads + h) * n;
    const f32 *x = a + (row * Spec::heads + h) * Spec::k, *y = b + h * Spec::k * n;
    idx j = 0;
    for (; j + kColumns <= n; j += kColumns)
      columns<Spec, kVectors>(rows, to + j, x, y + j, n, alpha);
    for (; j + kLanes <= n; j += kLanes) columns<Spec, 1>(rows, to + j, x, y + j, n, alpha);
    for (int r = 0; r < rows; ++r) {
      for (idx last = j; last < n; ++last) {
        f32 sum = 0.0f;
        for (int p = 0; p < Spec::k; ++p)
          sum += x[r * (Spec::heads * Spec::k) + p] * y[p * n + last];
        to[r * (Spec::heads * n) + last] = sum * alpha;
      }
    }
  }
}

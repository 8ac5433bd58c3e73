// SPDX-License-Identifier: Apache-2.0
// Products of matrices for the evaluator: four rows at a time over blocks of k and n, so that BERT-sized layers
// take seconds. Each sum runs over k in ascending order.
#include <algorithm>

#include "ir/eval_ops.h"

namespace tfcc::ir {
namespace {

constexpr int64_t kRows = 4, kColumns = 512, kDepth = 64;

void rows4(const double* a, int64_t lda, const double* b, double* c, int64_t n, int64_t width,
           int64_t depth) {
  double* __restrict c0 = c;
  double* __restrict c1 = c + n;
  double* __restrict c2 = c + 2 * n;
  double* __restrict c3 = c + 3 * n;
  for (int64_t p = 0; p < depth; ++p) {
    const double a0 = a[p], a1 = a[lda + p], a2 = a[2 * lda + p], a3 = a[3 * lda + p];
    const double* __restrict row = b + p * n;
    for (int64_t j = 0; j < width; ++j) {
      c0[j] += a0 * row[j];
      c1[j] += a1 * row[j];
      c2[j] += a2 * row[j];
      c3[j] += a3 * row[j];
    }
  }
}

void row1(const double* a, const double* b, double* __restrict c, int64_t n, int64_t width,
          int64_t depth) {
  for (int64_t p = 0; p < depth; ++p) {
    const double* __restrict row = b + p * n;
    for (int64_t j = 0; j < width; ++j) c[j] += a[p] * row[j];
  }
}

}  // namespace

void multiply(const double* a, const double* b, double* c, int64_t m, int64_t n, int64_t k,
              double alpha) {
  std::fill_n(c, m * n, 0.0);
  for (int64_t j = 0; j < n; j += kColumns) {
    const int64_t width = std::min(kColumns, n - j);
    for (int64_t p = 0; p < k; p += kDepth) {
      const int64_t depth = std::min(kDepth, k - p);
      int64_t i = 0;
      for (; i + kRows <= m; i += kRows)
        rows4(a + i * k + p, k, b + p * n + j, c + i * n + j, n, width, depth);
      for (; i < m; ++i) row1(a + i * k + p, b + p * n + j, c + i * n + j, n, width, depth);
    }
  }
  if (alpha != 1) {
    for (int64_t i = 0; i < m * n; ++i) c[i] *= alpha;
  }
}

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// The evaluator's matmul: products of batches, norms that are parts of them, epilogues.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/eval_blocks.h"
#include "ir/matmul.h"

namespace tfcc::ir {
namespace {

/// Offset, in matrices, of the matrix that output batch `at` reads from a tensor with these dims.
int64_t batch_offset(const std::vector<int64_t>& dims, const std::vector<int64_t>& out_dims,
                     int64_t at) {
  int64_t offset = 0, stride = 1;
  for (size_t k = 3; k <= out_dims.size(); ++k) {
    const int64_t i = at % out_dims[out_dims.size() - k];
    at /= out_dims[out_dims.size() - k];
    if (k > dims.size()) continue;
    const int64_t d = dims[dims.size() - k];
    if (d != 1) offset += i * stride;
    stride *= d;
  }
  return offset;
}

/// The matrix as [rows, columns], transposed into `buffer` if it lies the other way.
template <class T>
const T* oriented(const T* data, bool transposed, int64_t rows, int64_t columns,
                  std::vector<T>& buffer) {
  if (!transposed) return data;
  buffer.resize(static_cast<size_t>(rows * columns));
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r)
      buffer[static_cast<size_t>(r * columns + c)] = data[c * rows + r];
  }
  return buffer.data();
}

/// Integers: exact modulo 2^64; the store keeps the low bits.
void multiply_integers(const int64_t* a, const int64_t* b, int64_t* c, int64_t m, int64_t n,
                       int64_t k, double) {
  std::fill_n(c, m * n, 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t j = 0; j < n; ++j)
        c[i * n + j] = plus(c[i * n + j], times(a[i * k + p], b[p * n + j]));
    }
  }
}

/// Every matrix of the batch, by `multiply_one`; `values` says which values of a tensor take part.
template <class T, class F>
void eval_product(OpRun& run, const HostTensor& second, std::vector<T> HostTensor::*values,
                  F multiply_one) {
  const auto& attrs = run.op.as<MatmulAttrs>();
  const HostTensor &a = *run.operands[0], &b = second;
  HostTensor& out = run.results[0];
  const int64_t m = out.dims[out.dims.size() - 2], n = out.dims.back();
  const int64_t k = a.dims[a.dims.size() - (attrs.trans_a ? 2 : 1)];
  int64_t batches = 1;
  for (size_t d = 0; d + 2 < out.dims.size(); ++d) batches *= out.dims[d];
  std::vector<T> a_buffer, b_buffer;
  const T* right = nullptr;
  int64_t right_at = -1;
  for (int64_t z = 0; z < batches; ++z) {
    const T* left = oriented((a.*values).data() + batch_offset(a.dims, out.dims, z) * m * k,
                             attrs.trans_a, m, k, a_buffer);
    if (const int64_t at = batch_offset(b.dims, out.dims, z); at != right_at) {
      right = oriented((b.*values).data() + at * k * n, attrs.trans_b, k, n, b_buffer);
      right_at = at;
    }
    multiply_one(left, right, (out.*values).data() + z * m * n, m, n, k, attrs.alpha);
  }
}

/// A factor that is an expression, of the type of operand 0.
HostTensor made_factor(OpRun& run, ExprRef weight, std::vector<int64_t> dims) {
  HostTensor b;
  b.dtype = run.operands[0]->dtype;
  b.dims = std::move(dims);
  b.reals.resize(static_cast<size_t>(b.element_count()));
  for_each_block(run, weight, b.dims, [&](int64_t first, size_t count, BlockResult block) {
    std::copy_n(block.reals, count, b.reals.begin() + first);
  });
  return b;
}

/// The second factor of a product that has it as an expression; without dims where it is stored.
HostTensor made_factor(OpRun& run) {
  const auto& attrs = run.op.as<MatmulAttrs>();
  if (!attrs.weight) return {};
  const HostTensor& a = *run.operands[0];
  const int64_t n = run.results[0].dims.back(), k = a.dims[a.dims.size() - (attrs.trans_a ? 2 : 1)];
  return made_factor(run, attrs.weight, attrs.trans_b ? std::vector{n, k} : std::vector{k, n});
}

/// Of every kMomentColumns elements of each row their mean, and the sum of the squares of what they
/// differ from it by: [columns / 32, rows, 2].
std::vector<double> moments_of(const std::vector<double>& v, size_t columns) {
  const size_t groups = columns / kMomentColumns, rows = v.size() / columns;
  std::vector<double> moments(groups * rows * 2);
  for (size_t i = 0; i < rows * groups; ++i) {
    const auto at = v.begin() + static_cast<std::ptrdiff_t>(i * kMomentColumns),
               end = at + kMomentColumns;
    const double mean = std::accumulate(at, end, 0.0) / kMomentColumns;
    double* of = moments.data() + (i % groups * rows + i / groups) * 2;
    of[0] = mean;
    of[1] = std::accumulate(at, end, 0.0,
                            [&](double sum, double x) { return sum + (x - mean) * (x - mean); });
  }
  return moments;
}

/// Of each row, for each of `columns` elements that stand in it: what its moments say.
struct RowStatistics {
  std::vector<double> mean, rstd;
};
RowStatistics row_statistics(const HostTensor& moments, NormKind kind, double eps,
                             int64_t columns) {
  RowStatistics all;
  const auto groups = static_cast<size_t>(moments.dims[0]);
  const size_t rows = groups == 0 ? 0 : moments.reals.size() / 2 / groups;
  const double width = static_cast<double>(groups * kMomentColumns);
  for (size_t row = 0; row < rows; ++row) {
    double mean = 0, squares = 0;
    const auto number = [&](size_t g, size_t which) {
      return moments.reals[(g * rows + row) * 2 + which];
    };
    for (size_t g = 0; g < groups; ++g) mean += number(g, 0) / static_cast<double>(groups);
    if (kind == NormKind::rms) mean = 0;
    for (size_t g = 0; g < groups; ++g)
      squares += number(g, 1) + kMomentColumns * (number(g, 0) - mean) * (number(g, 0) - mean);
    all.mean.insert(all.mean.end(), static_cast<size_t>(columns), mean);
    all.rstd.insert(all.rstd.end(), static_cast<size_t>(columns),
                    1 / std::sqrt(squares / width + eps));
  }
  return all;
}

// Sums of twice the columns, then one value of each pair of eights.
void eval_gated(OpRun& run, const HostTensor& b) {
  HostTensor& out = run.results[0];
  const auto dims = out.dims;
  const size_t count = out.reals.size();
  out.dims.back() *= 2;
  out.reals.resize(2 * count);
  eval_product(run, b, &HostTensor::reals, multiply);
  std::vector<double> s(count), t(count);
  for (size_t i = 0; i < count; ++i) {
    s[i] = out.reals[i / kGated * 2 * kGated + i % kGated];
    t[i] = out.reals[i / kGated * 2 * kGated + i % kGated + kGated];
  }
  out.dims = dims;
  out.reals.resize(count);
  BlockParams params;
  params.s = s.data();
  params.t = t.data();
  for_each_block(
      run, run.op.as<MatmulAttrs>().gate, dims,
      [&](int64_t first, size_t n, BlockResult block) {
        std::copy_n(block.reals, n, out.reals.begin() + first);
      },
      params);
}

// Products of heads, side by side.
void eval_heads(OpRun& run) {
  const auto& attrs = run.op.as<MatmulAttrs>();
  const HostTensor &a = *run.operands[0], &b = *run.operands[1];
  HostTensor& out = run.results[0];
  const int64_t heads = *attrs.heads, width = a.dims.back(), n = b.dims[1], k = width / heads;
  const int64_t rows = width == 0 ? 0 : std::ssize(a.reals) / width;
  for (int64_t i = 0; i < rows * heads; ++i)  // a row of a head
    multiply(a.reals.data() + i * k, b.reals.data() + i % heads * k * n, out.reals.data() + i * n,
             1, n, k, attrs.alpha);
}

}  // namespace

void eval_matmul(OpRun& run) {
  if (run.op.as<MatmulAttrs>().heads) return eval_heads(run);
  HostTensor& out = run.results[0];
  const HostTensor made = made_factor(run), &b = made.dims.empty() ? *run.operands[1] : made;
  if (run.op.as<MatmulAttrs>().gate) return eval_gated(run, b);
  if (!is_float(out.dtype)) return eval_product(run, b, &HostTensor::ints, multiply_integers);
  if (is_integer(run.operands[0]->dtype)) {
    out.ints.resize(out.reals.size());
    eval_product(run, b, &HostTensor::ints, multiply_integers);
    std::transform(out.ints.begin(), out.ints.end(), out.reals.begin(),
                   [](int64_t x) { return static_cast<int32_t>(x); });
    out.ints.clear();
  } else {
    eval_product(run, b, &HostTensor::reals, multiply);
  }
  const auto& attrs = run.op.as<MatmulAttrs>();
  const auto apply = [&](ExprRef e, BlockParams params) {
    params.s = out.reals.data();
    for_each_block(
        run, e, out.dims,
        [&](int64_t first, size_t n, BlockResult block) {
          std::copy_n(block.reals, n, out.reals.begin() + first);
        },
        params);
  };
  const RowStatistics of_rows =
      attrs.norm ? row_statistics(*run.operands.back(), *attrs.norm, *attrs.eps, out.dims.back())
                 : RowStatistics();
  if (attrs.epilogue) apply(attrs.epilogue, {nullptr, of_rows.mean.data(), of_rows.rstd.data()});
  if (!attrs.scaled) return;
  run.results[1].reals = moments_of(out.reals, static_cast<size_t>(out.dims.back()));
  if (run.results.size() > 2) run.results[2].reals = out.reals;
  apply(attrs.scaled, {});
}

void eval_grouped_matmul(OpRun& run) {
  const auto& attrs = run.op.as<GroupedMatmulAttrs>();
  const HostTensor& x = *run.operands[0];
  HostTensor& out = run.results[0];
  HostTensor made;
  if (attrs.weight)
    made = made_factor(run, attrs.weight, {*attrs.groups, out.dims.back(), x.dims.back()});
  const HostTensor& w = attrs.weight ? made : *run.operands[1];
  const std::vector<int64_t> rows(out.dims.begin(), out.dims.end() - 1);
  const auto n = static_cast<size_t>(w.dims[1]), k = static_cast<size_t>(w.dims[2]);
  const int64_t share = std::accumulate(rows.begin() + std::ssize(x.dims) - 1, rows.end(),
                                        int64_t{1}, std::multiplies<>());  // a row of x
  for_each_block(run, attrs.which, rows, [&](int64_t first, size_t count, BlockResult block) {
    for (size_t i = 0; i < count; ++i) {
      const int64_t at = first + static_cast<int64_t>(i);
      const double* row = x.reals.data() + at / share * w.dims[2];
      const double* matrix = w.reals.data() + block.ints[i] * w.dims[1] * w.dims[2];
      double* y = out.reals.data() + at * w.dims[1];
      for (size_t j = 0; j < n; ++j) y[j] = std::inner_product(row, row + k, matrix + j * k, 0.0);
    }
  });
}

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// Host references of the ops, one function each. Straight from the formulas of ir/ops.md.
#include "ir/eval_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tfcc::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Walks a box of dims in row-major order, a block of lanes at a time.
class Odometer {
 public:
  explicit Odometer(std::vector<int64_t> dims)
      : dims_(std::move(dims)), at_(dims_.size(), 0), lanes_(dims_.size()) {
    for (auto& l : lanes_) l.resize(kBlock);
    for (int64_t d : dims_) total_ *= d;
  }
  int64_t total() const { return total_; }

  /// The next n positions; lane k of dim d is result[d][k].
  const std::vector<std::vector<int64_t>>& take(size_t n) {
    for (size_t lane = 0; lane < n; ++lane) {
      for (size_t d = 0; d < dims_.size(); ++d) lanes_[d][lane] = at_[d];
      for (size_t d = dims_.size(); d-- > 0;) {
        if (++at_[d] < dims_[d]) break;
        at_[d] = 0;
      }
    }
    return lanes_;
  }

 private:
  std::vector<int64_t> dims_, at_;
  std::vector<std::vector<int64_t>> lanes_;
  int64_t total_ = 1;
};

/// Calls f(first, n, block) for all elements of `body` over `dims`; `params` have the parameters of each.
template <class F>
void for_each_block(OpRun& run, ExprRef body, std::vector<int64_t> dims, F f, const BlockParams& params = {}) {
  BlockProgram program(body, run.operands, run.symbol);
  Odometer odometer(std::move(dims));
  for (int64_t first = 0; first < odometer.total(); first += kBlock) {
    const size_t n = static_cast<size_t>(std::min<int64_t>(kBlock, odometer.total() - first));
    const auto from = [&](const double* p) { return p ? p + first : nullptr; };
    f(first, n, program.run(n, odometer.take(n), {from(params.s), from(params.mean), from(params.rstd)}));
  }
  collect(run, program);
}

void eval_pointwise(OpRun& run) {
  HostTensor& out = run.results[0];
  for_each_block(run, run.op.as<PointwiseAttrs>().body, out.dims,
                 [&](int64_t first, size_t n, BlockResult block) {
                   if (is_float(out.dtype)) {
                     std::copy_n(block.reals, n, out.reals.begin() + first);
                   } else {
                     std::copy_n(block.ints, n, out.ints.begin() + first);
                   }
                 });
}

template <class T>
T start_of(ReduceKind kind) {
  using Limits = std::numeric_limits<T>;
  switch (kind) {
    case ReduceKind::max:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceKind::min:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceKind::prod:
      return 1;
    default:
      return 0;
  }
}

// Integers wrap like the machine's; C++ would call that undefined for signed types.
double plus(double a, double b) { return a + b; }
double times(double a, double b) { return a * b; }
int64_t plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

template <class T>
T reduce_step(ReduceKind kind, T sum, T v) {
  switch (kind) {
    case ReduceKind::max:
      return v != v || v > sum ? v : sum;  // NaN wins
    case ReduceKind::min:
      return v != v || v < sum ? v : sum;
    case ReduceKind::prod:
      return times(sum, v);
    default:
      return plus(sum, v);
  }
}

template <class T>
void reduce_into(OpRun& run, std::vector<T>& out, const T* BlockResult::*values) {
  const auto& a = run.op.as<ReduceAttrs>();
  std::vector<int64_t> dims = run.results[0].dims;
  int64_t count = 1;
  for (ExprRef e : a.extents) {
    dims.push_back(eval_size(e, run.symbol));
    count *= dims.back();
  }
  std::fill(out.begin(), out.end(), start_of<T>(a.kind));
  for_each_block(run, a.body, dims, [&](int64_t first, size_t n, BlockResult block) {
    for (size_t l = 0; l < n; ++l) {
      T& sum = out[static_cast<size_t>((first + static_cast<int64_t>(l)) / count)];
      sum = reduce_step(a.kind, sum, (block.*values)[l]);
    }
  });
  if (a.kind == ReduceKind::mean) {
    for (T& v : out) v /= static_cast<T>(count);
  }
}

void eval_reduce(OpRun& run) {
  HostTensor& out = run.results[0];
  if (is_float(out.dtype)) {
    reduce_into<double>(run, out.reals, &BlockResult::reals);
  } else {
    reduce_into<int64_t>(run, out.ints, &BlockResult::ints);
  }
}

template <class T>
void cumsum_into(const CumsumAttrs& a, const std::vector<int64_t>& dims, const std::vector<T>& in,
                 std::vector<T>& out) {
  const auto axis = static_cast<size_t>(a.axis);
  int64_t inner = 1, outer = 1;
  for (size_t d = 0; d < dims.size(); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : dims[d];
  const int64_t length = dims[axis];
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      T sum = 0;
      for (int64_t k = 0; k < length; ++k) {
        const auto at =
            static_cast<size_t>((o * length + (a.reverse ? length - 1 - k : k)) * inner + i);
        out[at] = a.exclusive ? sum : plus(sum, in[at]);
        sum = plus(sum, in[at]);
      }
    }
  }
}

void eval_cumsum(OpRun& run) {
  const auto& a = run.op.as<CumsumAttrs>();
  const HostTensor& in = *run.operands[0];
  HostTensor& out = run.results[0];
  if (is_float(in.dtype)) {
    cumsum_into(a, in.dims, in.reals, out.reals);
  } else {
    cumsum_into(a, in.dims, in.ints, out.ints);
  }
}

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
void eval_product(OpRun& run, std::vector<T> HostTensor::*values, F multiply_one) {
  const auto& attrs = run.op.as<MatmulAttrs>();
  const HostTensor &a = *run.operands[0], &b = *run.operands[1];
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

/// Of every kMomentColumns elements of each row their mean, and the sum of the squares of what they differ from it by: [columns / 32, rows, 2].
std::vector<double> moments_of(const std::vector<double>& v, size_t columns) {
  const size_t groups = columns / kMomentColumns, rows = v.size() / columns;
  std::vector<double> moments(groups * rows * 2);
  for (size_t i = 0; i < rows * groups; ++i) {
    const auto at = v.begin() + static_cast<std::ptrdiff_t>(i * kMomentColumns), end = at + kMomentColumns;
    const double mean = std::accumulate(at, end, 0.0) / kMomentColumns;
    double* of = moments.data() + (i % groups * rows + i / groups) * 2;
    of[0] = mean;
    of[1] = std::accumulate(at, end, 0.0, [&](double sum, double x) { return sum + (x - mean) * (x - mean); });
  }
  return moments;
}

/// Of each row, for each of `columns` elements that stand in it: what its moments say.
struct RowStatistics {
  std::vector<double> mean, rstd;
};
RowStatistics row_statistics(const HostTensor& moments, NormKind kind, double eps, int64_t columns) {
  RowStatistics all;
  const auto groups = static_cast<size_t>(moments.dims[0]);
  const size_t rows = groups == 0 ? 0 : moments.reals.size() / 2 / groups;
  const double width = static_cast<double>(groups * kMomentColumns);
  for (size_t row = 0; row < rows; ++row) {
    double mean = 0, squares = 0;
    const auto number = [&](size_t g, size_t which) { return moments.reals[(g * rows + row) * 2 + which]; };
    for (size_t g = 0; g < groups; ++g) mean += number(g, 0) / static_cast<double>(groups);
    if (kind == NormKind::rms) mean = 0;
    for (size_t g = 0; g < groups; ++g) squares += number(g, 1) + kMomentColumns * (number(g, 0) - mean) * (number(g, 0) - mean);
    all.mean.insert(all.mean.end(), static_cast<size_t>(columns), mean);
    all.rstd.insert(all.rstd.end(), static_cast<size_t>(columns), 1 / std::sqrt(squares / width + eps));
  }
  return all;
}

void eval_matmul(OpRun& run) {
  HostTensor& out = run.results[0];
  if (!is_float(out.dtype)) return eval_product(run, &HostTensor::ints, multiply_integers);
  eval_product(run, &HostTensor::reals, multiply);
  const auto& attrs = run.op.as<MatmulAttrs>();
  const auto apply = [&](ExprRef e, BlockParams params) {
    params.s = out.reals.data();
    for_each_block(run, e, out.dims, [&](int64_t first, size_t n, BlockResult block) {
      std::copy_n(block.reals, n, out.reals.begin() + first);
    }, params);
  };
  const RowStatistics of_rows = attrs.norm ? row_statistics(*run.operands.back(), *attrs.norm, *attrs.eps, out.dims.back()) : RowStatistics();
  if (attrs.epilogue) apply(attrs.epilogue, {nullptr, of_rows.mean.data(), of_rows.rstd.data()});
  if (!attrs.scaled) return;
  run.results[1].reals = moments_of(out.reals, static_cast<size_t>(out.dims.back()));
  if (run.results.size() > 2) run.results[2].reals = out.reals;
  apply(attrs.scaled, {});
}

/// Calls f(in, out, width) for each row of operand 0 and result `r`.
template <class F>
void for_each_row(OpRun& run, F f, size_t r = 0) {
  const HostTensor& x = *run.operands[0];
  const auto width = static_cast<size_t>(x.dims.back());
  for (size_t at = 0; width > 0 && at < x.reals.size(); at += width)
    f(x.reals.data() + at, run.results[r].reals.data() + at, width);
}

void softmax_row(const double* x, double* y, size_t n) {
  double top = -kInf, sum = 0;
  for (size_t i = 0; i < n; ++i) top = reduce_step(ReduceKind::max, top, x[i]);
  for (size_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - top);
  for (size_t i = 0; i < n; ++i) y[i] /= sum;
}

void norm_row(const double* x, double* y, size_t n, NormKind kind, double eps, const double* gamma,
              const double* beta) {
  double mean = 0, square = 0;
  if (kind == NormKind::layer) {
    for (size_t i = 0; i < n; ++i) mean += x[i];
    mean /= static_cast<double>(n);
  }
  for (size_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
  const double scale = 1 / std::sqrt(square / static_cast<double>(n) + eps);
  for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * gamma[i] + (beta ? beta[i] : 0);
}

void eval_norm(OpRun& run, NormKind kind) {
  const double* gamma = run.operands[1]->reals.data();
  const double* beta = run.operands.size() > 2 ? run.operands[2]->reals.data() : nullptr;
  const double eps = run.op.as<NormAttrs>().eps;
  for_each_row(run, [&](const double* x, double* y, size_t n) {
    norm_row(x, y, n, kind, eps, gamma, beta);
  });
}

void eval_residual_norm(OpRun& run) {
  const auto& a = run.op.as<ResidualNormAttrs>();
  HostTensor sum = *run.operands[0];
  const double* bias = a.has_bias ? run.operands.back()->reals.data() : nullptr;
  const auto width = static_cast<size_t>(sum.dims.back());
  for (size_t i = 0; i < sum.reals.size(); ++i)
    sum.reals[i] += run.operands[1]->reals[i] + (bias ? bias[i % width] : 0);
  const double* gamma = run.operands[2]->reals.data();
  const double* beta = a.has_beta ? run.operands[3]->reals.data() : nullptr;
  for (size_t at = 0; width > 0 && at < sum.reals.size(); at += width) {
    norm_row(sum.reals.data() + at, run.results[0].reals.data() + at, width, a.kind, a.eps, gamma,
             beta);
  }
  if (run.results.size() > 1) run.results[1].reals = std::move(sum.reals);
}

void eval_pointwise_norm(OpRun& run) {
  const auto& a = run.op.as<PointwiseNormAttrs>();
  HostTensor x = run.results[0];
  for_each_block(run, a.body, x.dims, [&](int64_t first, size_t n, BlockResult block) {
    std::copy_n(block.reals, n, x.reals.begin() + first);
  });
  const auto width = static_cast<size_t>(x.dims.back());
  const double* gamma = run.operands[0]->reals.data();
  const double* beta = a.has_beta ? run.operands[1]->reals.data() : nullptr;
  for (size_t at = 0; width > 0 && at < x.reals.size(); at += width) {
    norm_row(x.reals.data() + at, run.results[0].reals.data() + at, width, a.kind, a.eps, gamma,
             beta);
  }
  if (run.results.size() > 1) run.results[1].reals = std::move(x.reals);
}

double gelu(GeluKind kind, double x) {
  if (kind == GeluKind::erf) return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

void eval_gelu(OpRun& run) {
  const GeluKind kind = run.op.as<GeluAttrs>().approx;
  const double* bias = run.operands.size() > 1 ? run.operands[1]->reals.data() : nullptr;
  for_each_row(run, [&](const double* x, double* y, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] = gelu(kind, bias ? x[i] + bias[i] : x[i]);
  });
}

// The rows x [rows, heads * d] with the channels of each head rotated as `a` says.
std::vector<double> rotated(const RopeAttrs& a, const HostTensor& x, int64_t d, const HostTensor& cos, const HostTensor& sin) {
  const int64_t tokens = x.dims[1], width = x.dims[2], w = cos.dims[2];
  std::vector<double> out = x.reals;
  for (int64_t row = 0; row < x.dims[0] * tokens; ++row) {
    const int64_t table = (cos.dims[0] == 1 ? row % tokens : row) * w;
    for (int64_t k = 0; k < width; ++k) {
      const int64_t c = k % d, at = row * width + k;
      double& y = out[static_cast<size_t>(at)];
      if (c >= a.rotary) continue;
      const int64_t half = a.rotary / 2;
      const bool first = a.interleaved ? c % 2 == 0 : c < half;
      const int64_t step = a.interleaved ? 1 : half, pair = a.interleaved ? c / 2 : c % half;
      const auto t = static_cast<size_t>(table + (w == half ? pair : c));
      const double other = x.reals[static_cast<size_t>(first ? at + step : at - step)];
      y = y * cos.reals[t] + (first ? -other : other) * sin.reals[t];
    }
  }
  return out;
}

void eval_rope(OpRun& run) {
  const auto& a = run.op.as<RopeAttrs>();
  const HostTensor& x = *run.operands[0];
  run.results[0].reals = rotated(a, x, x.dims[2] / a.heads, *run.operands[1], *run.operands[2]);
}

/// live and kept of every (b,s) in order.
struct PackedFlags {
  std::vector<char> live, kept;
};

PackedFlags packed_flags(OpRun& run, int64_t batch, int64_t length) {
  const auto& a = run.op.as<PackAttrs>();
  PackedFlags f;
  const auto all = [&](ExprRef e) {
    std::vector<char> out(static_cast<size_t>(batch * length));
    for_each_block(run, e, {batch, length}, [&](int64_t first, size_t n, BlockResult block) {
      for (size_t l = 0; l < n; ++l) out[static_cast<size_t>(first) + l] = block.ints[l] != 0;
    });
    return out;
  };
  f.live = all(a.live);
  f.kept = a.kept ? all(a.kept) : std::vector<char>(f.live.size());
  return f;
}

void eval_pack(OpRun& run) {
  const int64_t batch = run.results[0].dims[0], length = run.results[0].dims[1];
  const PackedFlags f = packed_flags(run, batch, length);
  auto &row = run.results[0].ints, &cu = run.results[1].ints, &keys = run.results[2].ints, &order = run.results[3].ints;
  auto &seq = run.results[4].ints, &pos = run.results[5].ints;
  int64_t next = 0;
  for (int64_t b = 0; b < batch; ++b) {
    cu[static_cast<size_t>(b)] = next;
    for (const bool live : {true, false}) {
      for (int64_t s = 0; s < length; ++s) {
        const auto at = static_cast<size_t>(b * length + s);
        if (live) row[at] = -1;
        if (live ? !f.live[at] : f.live[at] || !f.kept[at]) continue;
        row[at] = next;
        seq[static_cast<size_t>(next)] = b;
        pos[static_cast<size_t>(next)] = s;
        ++next;
      }
      if (live) keys[static_cast<size_t>(b)] = next - cu[static_cast<size_t>(b)];
    }
  }
  cu[static_cast<size_t>(batch)] = next;
  for (int64_t b = 0; b < batch; ++b) order[static_cast<size_t>(b)] = b;
  const auto rows = [&](int64_t b) { return cu[static_cast<size_t>(b) + 1] - cu[static_cast<size_t>(b)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rows(a) > rows(b); });
}

void eval_append(OpRun& run) {
  const bool rotates = run.op.kind == OpKind::rope_append;
  HostTensor k = *run.operands[2];
  if (rotates) {
    const auto& a = run.op.as<RopeAttrs>();
    const HostTensor &q = *run.operands[5], &cos = *run.operands[6], &sin = *run.operands[7];
    const int64_t d = run.operands[0]->dims[3];
    run.results[2].reals = rotated(a, q, d, cos, sin);
    k.reals = rotated(a, k, d, cos, sin);
  }
  for (size_t i : {0, 1}) {
    const HostTensor &state = *run.operands[i], &x = i == 0 ? k : *run.operands[3];
    const int64_t heads = state.dims[1], page = state.dims[2], d = state.dims[3];
    std::vector<double>& out = run.results[i].reals;
    out = state.reals;
    for (int64_t t = 0; t < x.dims[1]; ++t) {
      const int64_t slot = run.operands[4]->ints[static_cast<size_t>(t)];
      if (slot < 0 || slot >= state.dims[0] * page) continue;
      for (int64_t h = 0; h < heads; ++h) {
        const auto from = x.reals.begin() + (t * heads + h) * d;
        std::copy(from, from + d, out.begin() + ((slot / page * heads + h) * page + slot % page) * d);
      }
    }
  }
}

/// One query row of one head at a time: scores of all keys in blocks, softmax over the visible
/// ones, weighted sum.
class Attention {
 public:
  explicit Attention(OpRun& run)
      : run_(run),
        attrs_(run.op.as<AttentionAttrs>()),
        q_(*run.operands[0]),
        k_(*run.operands[1]),
        v_(*run.operands[2]),
        score_(attrs_.score, run.operands, run.symbol),
        visible_(attrs_.visible ? attrs_.visible : attrs_.score->pool->boolean(true), run.operands,
                 run.symbol),
        at_(4, std::vector<int64_t>(kBlock)) {}

  void run() {
    const bool packed = !attrs_.packed.empty();
    const int64_t batch = packed ? run_.operands[4]->dims[0] : q_.dims[0];
    for (int64_t b = 0; b < batch; ++b) {
      const Sequence s = packed ? packed_sequence(b) : Sequence{b, b * q_.dims[1], q_.dims[1], b * k_.dims[1], k_.dims[1], nullptr};
      weights_.resize(static_cast<size_t>(s.keys));
      for (int64_t h = 0; h < attrs_.heads; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) row(s, h, i);
      }
    }
    collect(run_, score_);
    collect(run_, visible_);
  }

 private:
  /// Rows of a sequence in q and k, and where they stand in the padded tensors: where they are, if positions is null.
  struct Sequence {
    int64_t number, first_query, queries, first_key, keys;
    const int64_t* positions;
    int64_t position(int64_t row) const { return positions ? positions[row] : row; }
  };

  Sequence packed_sequence(int64_t b) const {
    const auto &cu = run_.operands[3]->ints, &keys = run_.operands[4]->ints, &pos = run_.operands[6]->ints;
    const auto at = static_cast<size_t>(b);
    return {b, cu[at], cu[at + 1] - cu[at], cu[at], keys[at], pos.data() + cu[at]};
  }

  /// The row of key j in k or v.
  const double* key_row(const HostTensor& of, const Sequence& s, int64_t group, int64_t j, int64_t width) const {
    if (!attrs_.page) return of.reals.data() + (s.first_key + j) * of.dims[2] + group * width;
    const HostTensor& table = *run_.operands[7];
    const int64_t entry = table.ints[static_cast<size_t>(s.number * table.dims[1] + j / *attrs_.page)];
    const int64_t page = std::clamp<int64_t>(entry, 0, of.dims[0] - 1);  // as kernels do
    return of.reals.data() + ((page * of.dims[1] + group) * *attrs_.page + j % *attrs_.page) * width;
  }

  void row(const Sequence& s, int64_t h, int64_t i) {
    const int64_t keys = s.keys, group = h / (attrs_.heads / attrs_.kv_heads);
    const int64_t width = q_.dims[2] / attrs_.heads, out_width = attrs_.page ? v_.dims[3] : v_.dims[2] / attrs_.kv_heads;
    const double* query = q_.reals.data() + (s.first_query + i) * q_.dims[2] + h * width;
    for (int64_t first = 0; first < keys; first += kBlock) {
      const size_t n = static_cast<size_t>(std::min<int64_t>(kBlock, keys - first));
      double dot[kBlock];
      for (size_t l = 0; l < n; ++l) {
        const int64_t j = first + static_cast<int64_t>(l);
        const double* key = key_row(k_, s, group, j, width);
        at_[kBatch][l] = s.number;
        at_[kHead][l] = h;
        at_[kQuery][l] = s.position(i);
        at_[kKey][l] = attrs_.page ? j : s.position(j);
        dot[l] = 0;
        for (int64_t d = 0; d < width; ++d) dot[l] += query[d] * key[d];
      }
      const BlockResult scores = score_.run(n, at_, {dot}), visible = visible_.run(n, at_, {dot});
      for (size_t l = 0; l < n; ++l) {
        weights_[static_cast<size_t>(first) + l] = {scores.reals[l], visible.ints[l] != 0};
      }
    }
    soften();
    double* out = run_.results[0].reals.data() + (s.first_query + i) * attrs_.heads * out_width +
                  h * out_width;
    std::fill_n(out, out_width, 0.0);
    for (int64_t j = 0; j < keys; ++j) {
      const Weight& w = weights_[static_cast<size_t>(j)];
      const double* value = key_row(v_, s, group, j, out_width);
      for (int64_t d = 0; w.visible && d < out_width; ++d) out[d] += w.value * value[d];
    }
  }

  void soften() {
    double top = -kInf, sum = 0;
    for (const Weight& w : weights_) {
      if (w.visible) top = reduce_step(ReduceKind::max, top, w.value);
    }
    if (top == -kInf) top = 0;  // no key, or none above -inf: all weights are 0, as in the kernels
    for (Weight& w : weights_) {
      if (w.visible) sum += w.value = std::exp(w.value - top);
    }
    for (Weight& w : weights_) w.value = sum == 0 ? 0 : w.value / sum;
  }

  struct Weight {
    double value;
    bool visible;
  };
  OpRun& run_;
  const AttentionAttrs& attrs_;
  const HostTensor &q_, &k_, &v_;
  BlockProgram score_, visible_;
  std::vector<std::vector<int64_t>> at_;  // of each index, the values of a block
  std::vector<Weight> weights_;
};

}  // namespace

void collect(OpRun& run, const BlockProgram& program) {
  run.flags.insert(program.flags().begin(), program.flags().end());
  if (run.problem.empty()) run.problem = program.problem();
}

int64_t count_packed(OpRun& run, int64_t batch, int64_t length) {
  const PackedFlags f = packed_flags(run, batch, length);
  int64_t n = 0;
  for (size_t i = 0; i < f.live.size(); ++i) n += f.live[i] || f.kept[i];
  return n;
}

void eval_op(OpRun& run) {
  switch (run.op.kind) {
    case OpKind::constant:
      TFCC_CHECK(false && "constants are materialized");
      return;
    case OpKind::pointwise:
      return eval_pointwise(run);
    case OpKind::reduce:
      return eval_reduce(run);
    case OpKind::cumsum:
      return eval_cumsum(run);
    case OpKind::matmul:
      return eval_matmul(run);
    case OpKind::softmax:
      return for_each_row(run, softmax_row);
    case OpKind::layer_norm:
      return eval_norm(run, NormKind::layer);
    case OpKind::rms_norm:
      return eval_norm(run, NormKind::rms);
    case OpKind::gelu:
    case OpKind::bias_gelu:
      return eval_gelu(run);
    case OpKind::rope:
      return eval_rope(run);
    case OpKind::residual_norm:
      return eval_residual_norm(run);
    case OpKind::pointwise_norm:
      return eval_pointwise_norm(run);
    case OpKind::pack:
      return eval_pack(run);
    case OpKind::kv_append:
    case OpKind::rope_append:
      return eval_append(run);
    case OpKind::linear_attention:
      return eval_linear_attention(run);
    case OpKind::linear_attention_step:
      return eval_linear_attention_step(run);
    case OpKind::attention:
      return Attention(run).run();
  }
}

}  // namespace tfcc::ir

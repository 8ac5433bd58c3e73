// SPDX-License-Identifier: Apache-2.0
// Host references of the ops, one function each. Straight from the formulas of ir/ops.md.
#include "ir/eval_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tfcc::ir {

constexpr double kInf = std::numeric_limits<double>::infinity();

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

template <class T> static T start_of(ReduceKind kind) {
  using Limits = std::numeric_limits<T>;
  switch (kind) {
    case ReduceKind::max: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceKind::min: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceKind::prod: return 1;
    default: return 0;
  }
}

template <class T> static T reduce_step(ReduceKind kind, T sum, T v) {
  switch (kind) {
    case ReduceKind::max: return v != v || v > sum ? v : sum;  // NaN wins
    case ReduceKind::min: return v != v || v < sum ? v : sum;
    case ReduceKind::prod: return times(sum, v);
    default: return plus(sum, v);
  }
}

template <class T>
static void reduce_into(OpRun& run, std::vector<T>& out, const T* BlockResult::*values) {
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
static void cumsum_into(const CumsumAttrs& a, const std::vector<int64_t>& dims,
                        const std::vector<T>& in, std::vector<T>& out) {
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

/// Calls f(in, out, width) for each row of operand 0 and result `r`.
template <class F> static void for_each_row(OpRun& run, F f, size_t r = 0) {
  const HostTensor& x = *run.operands[0];
  const auto width = static_cast<size_t>(x.dims.back());
  for (size_t at = 0; width > 0 && at < x.reals.size(); at += width)
    f(x.reals.data() + at, run.results[r].reals.data() + at, width);
}

static void softmax_row(const double* x, double* y, size_t n) {
  double top = -kInf, sum = 0;
  for (size_t i = 0; i < n; ++i) top = reduce_step(ReduceKind::max, top, x[i]);
  for (size_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - top);
  for (size_t i = 0; i < n; ++i) y[i] /= sum;
}

static void norm_row(const double* x, double* y, size_t n, NormKind kind, double eps,
                     const double* gamma, const double* beta) {
  double mean = 0, square = 0;
  if (kind == NormKind::layer) {
    for (size_t i = 0; i < n; ++i) mean += x[i];
    mean /= static_cast<double>(n);
  }
  for (size_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
  const double scale = 1 / std::sqrt(square / static_cast<double>(n) + eps);
  for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * gamma[i] + (beta ? beta[i] : 0);
}

void eval_softmax(OpRun& run) { for_each_row(run, softmax_row); }

void eval_norm(OpRun& run) {
  const auto& a = run.op.as<NormAttrs>();
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

// The rows x [rows, heads * d] with the channels of each head rotated as `a` says, after they were
// normalised where there is a gamma.
static std::vector<double> rotated(const RopeAttrs& a, const HostTensor& x, int64_t d,
                                   const HostTensor& cos, const HostTensor& sin,
                                   const HostTensor* gamma) {
  const int64_t tokens = x.dims[1], width = x.dims[2], w = cos.dims[2];
  std::vector<double> from = x.reals;
  for (int64_t at = 0; gamma && at < std::ssize(from); at += d)
    norm_row(x.reals.data() + at, from.data() + at, static_cast<size_t>(d), NormKind::rms, *a.eps,
             gamma->reals.data(), nullptr);
  std::vector<double> out = from;
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
      const double other = from[static_cast<size_t>(first ? at + step : at - step)];
      y = y * cos.reals[t] + (first ? -other : other) * sin.reals[t];
    }
  }
  return out;
}

void eval_rope(OpRun& run) {
  const auto& a = run.op.as<RopeAttrs>();
  const HostTensor& x = *run.operands[0];
  run.results[0].reals = rotated(a, x, x.dims[2] / a.heads, *run.operands[1], *run.operands[2],
                                 a.eps ? run.operands[3] : nullptr);
}

/// live and kept of every (b,s) in order.
struct PackedFlags {
  std::vector<char> live, kept;
};

static PackedFlags packed_flags(OpRun& run, int64_t batch, int64_t length) {
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
  auto &row = run.results[0].ints, &cu = run.results[1].ints, &keys = run.results[2].ints,
       &order = run.results[3].ints;
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
  const auto rows = [&](int64_t b) {
    return cu[static_cast<size_t>(b) + 1] - cu[static_cast<size_t>(b)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return rows(a) > rows(b); });
}

// Of both appends.
static void eval_append(OpRun& run) {
  const bool rotates = run.op.kind == OpKind::rope_append;
  HostTensor k = *run.operands[2];
  if (rotates) {
    const auto& a = run.op.as<RopeAttrs>();
    const HostTensor &q = *run.operands[5], &cos = *run.operands[6], &sin = *run.operands[7];
    const int64_t d = run.operands[0]->dims[3];
    run.results[2].reals = rotated(a, q, d, cos, sin, a.eps ? run.operands[8] : nullptr);
    k.reals = rotated(a, k, d, cos, sin, a.eps ? run.operands[9] : nullptr);
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
        std::copy(from, from + d,
                  out.begin() + ((slot / page * heads + h) * page + slot % page) * d);
      }
    }
  }
}

void eval_kv_append(OpRun& run) { eval_append(run); }
void eval_rope_append(OpRun& run) { eval_append(run); }

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

void eval_constant(OpRun&) { TFCC_CHECK(false && "constants are materialized"); }

void eval_op(OpRun& run) {
  switch (run.op.kind) {
#define TFCC_OP(name, attrs, summary) \
  case OpKind::name:                  \
    return eval_##name(run);
#include "ir/ops.def"
#undef TFCC_OP
  }
}

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// Block interpreter. Both arms of a select are computed with clamped loads; only if something went
// wrong in a lane does a second pass, from the root down, find out whether that lane was wanted.
#include "ir/block_eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "ir/expr_poly.h"

namespace tfcc::ir {
namespace {

bool is_real(ExprRef e) { return e->type == Scalar::f32 || e->type == Scalar::f64; }
uint64_t u(int64_t v) { return static_cast<uint64_t>(v); }

template <class To, class From, class F> void map(To* out, const From* a, size_t n, F f) {
  for (size_t l = 0; l < n; ++l) out[l] = static_cast<To>(f(a[l]));
}

template <class To, class From, class F>
void zip(To* out, const From* a, const From* b, size_t n, F f) {
  for (size_t l = 0; l < n; ++l) out[l] = static_cast<To>(f(a[l], b[l]));
}

int64_t truncate(double v) {
  if (std::isnan(v)) return 0;
  if (v >= 0x1p63) return INT64_MAX;
  if (v < -0x1p63) return INT64_MIN;
  return static_cast<int64_t>(v);
}

// What a comparison or a rounding to an integer looks at: a real as its type holds it.
double as_f32(double v) { return static_cast<float>(v); }

bool decides(ExprKind kind) {
  switch (kind) {
    case ExprKind::f2i:
    case ExprKind::flt:
    case ExprKind::fle:
    case ExprKind::feq:
    case ExprKind::floor:
    case ExprKind::ceil:
    case ExprKind::rint: return true;
    default: return false;
  }
}

}  // namespace

BlockProgram::BlockProgram(ExprRef e, std::vector<const HostTensor*> operands,
                           const SymbolValue& symbol)
    : operands_(std::move(operands)), symbol_(symbol) {
  std::unordered_map<ExprRef, size_t> regs;
  for_each_node(e, [&](ExprRef n) {
    Step s{n,
           {},
           n->kind != ExprKind::index && n->kind != ExprKind::load && n->kind != ExprKind::param &&
               n->kind != ExprKind::bounded};
    const auto use = [&](ExprRef a) {
      s.args.push_back(regs.at(a));
      s.uniform = s.uniform && steps_[s.args.back()].uniform;
    };
    if (n->kind != ExprKind::index) {
      for (ExprRef a : n->args) use(a);
    }
    for (const Term& t : n->terms) {
      for (ExprRef a : t.atoms) use(a);
    }
    regs[n] = steps_.size();
    steps_.push_back(std::move(s));
  });
  ints_.resize(steps_.size() * kBlock);
  reals_.resize(steps_.size() * kBlock);
}

BlockResult BlockProgram::run(size_t n, std::span<const std::vector<int64_t>> indices,
                              const BlockParams& params) {
  marks_.clear();
  for (const Step& s : steps_) {
    if (s.uniform && uniform_done_) continue;
    compute(s, s.uniform ? kBlock : n, indices, params);
  }
  uniform_done_ = true;
  if (!marks_.empty()) blame(n);
  const size_t root = steps_.size() - 1;
  return {ints(root), reals(root)};
}

void BlockProgram::mark(const Step& s, size_t lane) { marks_.emplace_back(reg_of(s), lane); }

void BlockProgram::compute(const Step& s, size_t n, std::span<const std::vector<int64_t>> indices,
                           const BlockParams& params) {
  ExprRef e = s.node;
  int64_t* io = ints(reg_of(s));
  double* ro = reals(reg_of(s));
  switch (e->kind) {
    case ExprKind::index: std::copy_n(indices[static_cast<size_t>(e->value)].data(), n, io); return;
    case ExprKind::symbol: std::fill_n(io, n, symbol_(e->name)); return;
    case ExprKind::fconst: std::fill_n(ro, n, e->real); return;
    case ExprKind::btrue: std::fill_n(io, n, 1); return;
    case ExprKind::bfalse: std::fill_n(io, n, 0); return;
    case ExprKind::param:
      if (e->type == Scalar::i64) std::copy_n(params.s, n, io);  // an i32, which a double holds
      else
        std::copy_n(e->name == "mean"   ? params.mean
                    : e->name == "rstd" ? params.rstd
                    : e->name == "z"    ? params.z
                    : e->name == "t"    ? params.t
                                        : params.s,
                    n, ro);
      return;
    case ExprKind::load: return load(s, n);
    case ExprKind::poison: TFCC_CHECK(false && "a poison has no value");
    default: return compute_from_parts(s, n);
  }
}

void BlockProgram::compute_from_parts(const Step& s, size_t n) {
  ExprRef e = s.node;
  int64_t* io = ints(reg_of(s));
  double* ro = reals(reg_of(s));
  const auto ia = [&](size_t k) { return ints(s.args[k]); };
  const auto ra = [&](size_t k) { return reals(s.args[k]); };
  if (decides(e->kind) && e->args[0]->type == Scalar::f32) return decide(s, n);
  switch (e->kind) {
    case ExprKind::poly: return poly(s, n);
    case ExprKind::floordiv: return zip(io, ia(0), ia(1), n, evaluated_floordiv);
    case ExprKind::imin:
      return zip(io, ia(0), ia(1), n, [](int64_t a, int64_t b) { return std::min(a, b); });
    case ExprKind::imax:
      return zip(io, ia(0), ia(1), n, [](int64_t a, int64_t b) { return std::max(a, b); });
    case ExprKind::bitand_:
      return zip(io, ia(0), ia(1), n, [](int64_t a, int64_t b) { return a & b; });
    case ExprKind::wrap: return map(io, ia(0), n, [e](int64_t a) { return low_bits(a, e->value); });
    case ExprKind::iabs:
      return map(io, ia(0), n, [](int64_t a) { return a < 0 ? 0 - u(a) : u(a); });
    case ExprKind::bounded: return bounded(s, n);
    case ExprKind::f2i: return map(io, ra(0), n, truncate);
    case ExprKind::select:
      for (size_t l = 0; l < n; ++l) {
        io[l] = ia(0)[l] ? ia(1)[l] : ia(2)[l];
        ro[l] = ia(0)[l] ? ra(1)[l] : ra(2)[l];
      }
      return;
    case ExprKind::ge0: return at_least(s, n);
    case ExprKind::eq0: return map(io, ia(0), n, [](int64_t a) { return a == 0; });
    case ExprKind::bnot: return map(io, ia(0), n, [](int64_t a) { return a == 0; });
    case ExprKind::band:
    case ExprKind::bor:
      std::copy_n(ia(0), n, io);
      for (size_t k = 1; k < s.args.size(); ++k) {
        if (e->kind == ExprKind::band)
          zip(io, io, ia(k), n, [](int64_t a, int64_t b) { return a & b; });
        if (e->kind == ExprKind::bor)
          zip(io, io, ia(k), n, [](int64_t a, int64_t b) { return a | b; });
      }
      return;
    case ExprKind::flt: return zip(io, ra(0), ra(1), n, [](double a, double b) { return a < b; });
    case ExprKind::fle: return zip(io, ra(0), ra(1), n, [](double a, double b) { return a <= b; });
    case ExprKind::feq: return zip(io, ra(0), ra(1), n, [](double a, double b) { return a == b; });
    case ExprKind::isnan: return map(io, ra(0), n, [](double a) { return std::isnan(a); });
    case ExprKind::i2f: return map(ro, ia(0), n, [](int64_t a) { return a; });
    case ExprKind::f2f: std::copy_n(ra(0), n, ro); return;
    case ExprKind::fadd:
    case ExprKind::fsub:
    case ExprKind::fmul:
    case ExprKind::fdiv:
    case ExprKind::fpow:
    case ExprKind::fmin:
    case ExprKind::fmax:
    case ExprKind::fmod: return real_binary(s, n);
    default: return real_unary(s, n);
  }
}

void BlockProgram::decide(const Step& s, size_t n) {
  double a[kBlock], b[kBlock];
  map(a, reals(s.args[0]), n, as_f32);
  if (s.args.size() > 1) map(b, reals(s.args[1]), n, as_f32);
  int64_t* io = ints(reg_of(s));
  const ExprKind kind = s.node->kind;
  switch (kind) {
    case ExprKind::f2i: return map(io, a, n, truncate);
    case ExprKind::flt: return zip(io, a, b, n, [](double x, double y) { return x < y; });
    case ExprKind::fle: return zip(io, a, b, n, [](double x, double y) { return x <= y; });
    case ExprKind::feq: return zip(io, a, b, n, [](double x, double y) { return x == y; });
    default: return map(reals(reg_of(s)), a, n, [kind](double x) { return fold_unary(kind, x); });
  }
}

void BlockProgram::poly(const Step& s, size_t n) {
  int64_t* out = ints(reg_of(s));
  std::fill_n(out, n, s.node->value);
  size_t arg = 0;
  for (const Term& t : s.node->terms) {
    int64_t product[kBlock];
    std::fill_n(product, n, t.coefficient);
    for (size_t k = 0; k < t.atoms.size(); ++k) {
      zip(product, product, ints(s.args[arg++]), n,
          [](int64_t a, int64_t b) { return u(a) * u(b); });
    }
    zip(out, out, product, n, [](int64_t a, int64_t b) { return u(a) + u(b); });
  }
}

// In 128 bits, which what a comparison is built of does not leave: a difference may not fit 64.
void BlockProgram::at_least(const Step& s, size_t n) {
  int64_t* out = ints(reg_of(s));
  const Step& p = steps_[s.args[0]];
  if (!p.node->has_load || p.node->kind != ExprKind::poly) {
    return map(out, ints(s.args[0]), n, [](int64_t a) { return a >= 0; });
  }
  __int128 sum[kBlock];
  std::fill_n(sum, n, p.node->value);
  size_t arg = 0;
  for (const Term& t : p.node->terms) {
    __int128 product[kBlock];
    std::fill_n(product, n, t.coefficient);
    for (size_t k = 0; k < t.atoms.size(); ++k) {
      const int64_t* x = ints(p.args[arg++]);
      for (size_t l = 0; l < n; ++l) product[l] *= x[l];
    }
    for (size_t l = 0; l < n; ++l) sum[l] += product[l];
  }
  for (size_t l = 0; l < n; ++l) out[l] = sum[l] >= 0;
}

void BlockProgram::load(const Step& s, size_t n) {
  const HostTensor& t = *operands_[static_cast<size_t>(s.node->value)];
  int64_t offset[kBlock] = {};
  for (size_t d = 0; d < s.args.size(); ++d) {
    const int64_t dim = t.dims[d];
    const int64_t* at = ints(s.args[d]);
    for (size_t l = 0; l < n; ++l) {
      int64_t i = at[l];
      if (i < 0 || i >= dim) {
        mark(s, l);
        i = 0;
      }
      offset[l] = offset[l] * dim + i;
    }
  }
  const size_t reg = reg_of(s);
  if (t.element_count() == 0) {
    for (size_t l = 0; l < n; ++l) {
      mark(s, l);
      ints(reg)[l] = 0;
      reals(reg)[l] = 0;
    }
  } else if (is_real(s.node)) {
    for (size_t l = 0; l < n; ++l) reals(reg)[l] = t.reals[static_cast<size_t>(offset[l])];
  } else {
    for (size_t l = 0; l < n; ++l) ints(reg)[l] = t.ints[static_cast<size_t>(offset[l])];
  }
}

void BlockProgram::bounded(const Step& s, size_t n) {
  const int64_t *e = ints(s.args[0]), *limit = ints(s.args[1]);
  int64_t* out = ints(reg_of(s));
  for (size_t l = 0; l < n; ++l) {
    out[l] = e[l];
    if (e[l] >= 0 && e[l] < limit[l]) continue;
    mark(s, l);
    out[l] = e[l] < 0 || limit[l] <= 0 ? 0 : limit[l] - 1;
  }
}

void BlockProgram::real_binary(const Step& s, size_t n) {
  double* out = reals(reg_of(s));
  const double *a = reals(s.args[0]), *b = reals(s.args[1]);
  switch (s.node->kind) {
    case ExprKind::fadd: return zip(out, a, b, n, [](double x, double y) { return x + y; });
    case ExprKind::fsub: return zip(out, a, b, n, [](double x, double y) { return x - y; });
    case ExprKind::fmul: return zip(out, a, b, n, [](double x, double y) { return x * y; });
    case ExprKind::fdiv: return zip(out, a, b, n, [](double x, double y) { return x / y; });
    default: {
      const ExprKind kind = s.node->kind;
      return zip(out, a, b, n, [kind](double x, double y) { return fold_binary(kind, x, y); });
    }
  }
}

void BlockProgram::real_unary(const Step& s, size_t n) {
  const ExprKind kind = s.node->kind;
  map(reals(reg_of(s)), reals(s.args[0]), n, [kind](double x) { return fold_unary(kind, x); });
}

void BlockProgram::blame(size_t n) {
  std::vector<uint8_t> wanted(steps_.size() * kBlock, 0);
  std::fill_n(wanted.end() - kBlock, n, 1);
  for (size_t reg = steps_.size(); reg-- > 0;) {
    const Step& s = steps_[reg];
    const uint8_t* mine = wanted.data() + reg * kBlock;
    for (size_t k = 0; k < s.args.size(); ++k) {
      uint8_t* theirs = wanted.data() + s.args[k] * kBlock;
      const int64_t* taken = s.node->kind == ExprKind::select && k > 0 ? ints(s.args[0]) : nullptr;
      for (size_t l = 0; l < n; ++l)
        theirs[l] |= mine[l] && (!taken || (taken[l] != 0) == (k == 1));
    }
  }
  for (const auto& [reg, lane] : marks_) {
    if (!wanted[reg * kBlock + lane]) continue;
    ExprRef e = steps_[reg].node;
    if (e->kind == ExprKind::bounded) {
      const auto it = std::lower_bound(flags_.begin(), flags_.end(), e->value);
      if (it == flags_.end() || *it != e->value) flags_.insert(it, e->value);
    } else if (problem_.empty()) {
      problem_ = fmt::format("{} lies outside a tensor of dims [{}]", ir::print(e),
                             fmt::join(operands_[static_cast<size_t>(e->value)]->dims, ","));
    }
  }
}

}  // namespace tfcc::ir

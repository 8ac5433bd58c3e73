// SPDX-License-Identifier: Apache-2.0
// Meaning and rules of each op; tools/make_operators.py makes ir/ops.md of the comments.
#include "ir/computed.h"
#include "ir/matmul.h"
#include "ir/verify_rules.h"

#include <algorithm>
#include <utility>

namespace tfcc::ir {

namespace {

void check_computed(Rules r, const Constant& c) {
  if (!r.require(c.computed != nullptr, "K3", "computes nothing")) return;
  const Graph& graph = c.computed->graph();
  const std::string problem = ComputedConstant::problem(graph);
  if (!r.require(problem.empty(), "K3", "is computed by a graph that " + problem)) return;
  const Constant made = constant_of(c.computed);
  r.require(made.dtype == c.dtype && made.dims == c.dims, "K3", "is computed in another type");
  for (const Violation& v : verify(graph)) r.require(false, "K3", to_string(v));
}

void check_source(Rules r, const Constant& c);

void check_parts(Rules r, const Constant& c) {
  if (!r.require(!c.parts.empty(), "K3", "joins nothing")) return;
  const auto axis = static_cast<size_t>(c.axis);
  if (!r.require(c.axis >= 0 && axis < c.dims.size(), "K3",
                 "joins along an axis that is not there"))
    return;
  int64_t joined = 0;
  for (const Constant& part : c.parts) {
    check_source(r, part);
    std::vector<int64_t> dims = part.result_dims();
    if (dims.size() == c.dims.size()) joined += std::exchange(dims[axis], c.dims[axis]);
    r.require(part.result_dtype() == c.dtype && dims == c.dims, "K3", "joins what does not fit");
  }
  r.require(joined == c.dims[axis], "K3", "joins parts of another length");
}

void check_source(Rules r, const Constant& c) {
  const uint64_t size = static_cast<uint64_t>(c.element_count()) * size_of(c.dtype);
  switch (c.source) {
    case Constant::Source::bytes:
      r.require(c.bytes && c.bytes->size() == size, "K3", "has not the bytes of its type");
      break;
    case Constant::Source::file: r.require(c.file != nullptr, "K3", "names no file"); break;
    case Constant::Source::concat: check_parts(r, c); break;
    case Constant::Source::graph: check_computed(r, c); break;
    case Constant::Source::random:
      r.require(is_float(c.dtype), "K3", "only reals can be random");
      break;
  }
}

}  // namespace

/// A tensor known at compile time. Its recipe is a source and steps that apply in order. A source
/// is bytes, a file, a random stream, other constants joined along an axis, or a graph. The output
/// of a graph of constants is evaluated in float64 and rounded to its type. A step is a transpose, a
/// cast, a reshape, or a number added to each integer.
///
/// - **K1** No operand, one result.
/// - **K2** The result has the type that the recipe gives.
/// - **K3** A source of bytes has as many as its type needs. A file source names a file. A random
///   source is real. Joined parts keep these rules, and agree in type and in all dims but one. A
///   graph keeps all rules. It has one output, which is of the type of the source, and no inputs,
///   symbols, checks, flags, or constants that are graphs. It has elementwise ops, reductions, norms,
///   softmax and products of stored factors alone. Its values have at most 2^28 elements together,
///   and evaluating it takes no more than a minute or two.
void check_constant(Rules r) {
  if (!r.require(r.op.operands.empty() && r.op.results.size() == 1, "K1",
                 "has one result and no operand"))
    return;
  const Constant& c = r.op.as<ConstantAttrs>().constant;
  Dims dims;
  for (int64_t d : c.result_dims()) dims.push_back(r.graph.pool().integer(d));
  r.require(r.out() == Type{c.result_dtype(), dims}, "K2", "the recipe gives another type");
  check_source(r, c);
}

/// `y[i,j,...] = body(i, j, ...)`. Every view, gather, broadcast, cast and elementwise op is one of
/// these. A body that makes an integer is stored with its low bits (a cast to i8 wraps).
///
/// - **P1** One result, one body.
/// - **P2** The body has the scalar type of the result: f32 for f32, f16, bf16; f64; i64 for all
///   integers; boolean for bool.
void check_pointwise(Rules r) {
  ExprRef body = r.op.as<PointwiseAttrs>().body;
  if (!r.require(r.op.results.size() == 1 && body, "P1", "has one result and a body")) return;
  r.require(body->type == scalar_of(r.out().dtype), "P2",
            "the type of the body is not that of the result");
  check_expr(r.graph, r.op, "body", body, r.problems);
}

/// `y[i...] = kind over r... of body(i..., r...)`; reduction index *k* is index variable rank+*k*
/// over `extents[k]`. Kinds: sum, mean, max, min, prod. Over nothing: sum 0, prod 1, max -inf, min
/// inf (the ends of i64 for integers), mean NaN. NaN wins max and min.
///
/// - **R1** One result, a body, at least one extent.
/// - **R2** The body has the scalar type of the result and is not boolean.
/// - **R3** A mean is real.
void check_reduce(Rules r) {
  const auto& a = r.op.as<ReduceAttrs>();
  if (!r.require(r.op.results.size() == 1 && a.body && !a.extents.empty(), "R1",
                 "has one result, a body and extents"))
    return;
  r.require(a.body->type == scalar_of(r.out().dtype) && a.body->type != Scalar::boolean, "R2",
            "the type of the body is not that of the result, or boolean");
  r.require(a.kind != ReduceKind::mean || is_float(r.out().dtype), "R3", "a mean needs reals");
  for (ExprRef e : a.extents)
    check_size(r.graph, read_sizes(r.graph), e, Scalar::i64, "extents", r.problems);
  check_expr(r.graph, r.op, "body", a.body, r.problems);
}

/// `y[.., i, ..] = sum of x[.., k, ..] for k <= i` along `axis`; `k < i` if exclusive; from the end
/// if reverse.
///
/// - **U1** One operand, one result.
/// - **U2** They have one type, not bool; or the types of two kinds of real numbers, and one shape.
/// - **U3** The axis exists.
void check_cumsum(Rules r) {
  if (!r.counts(1, 1, "U1")) return;
  const int64_t axis = r.op.as<CumsumAttrs>().axis;
  const Type &x = r.in(0), &y = r.out();
  const bool reals = is_float(x.dtype) && is_float(y.dtype);
  r.require((x == y || (reals && x.dims == y.dims)) && y.dtype != DType::boolean, "U2",
            "operand and result differ, or are boolean");
  r.require(axis >= 0 && axis < static_cast<int64_t>(r.out().rank()), "U3", "no such axis");
}

/// Leading dims of a product: equal, or 1 on one side.
bool broadcasts(const Dims& a, const Dims& b, const Dims& out) {
  const size_t ra = a.size() - 2, rb = b.size() - 2, ro = out.size() - 2;
  if (ro != std::max(ra, rb)) return false;
  for (size_t k = 1; k <= ro; ++k) {
    ExprRef x = k <= ra ? a[ra - k] : nullptr, y = k <= rb ? b[rb - k] : nullptr;
    if (x && (is_int(x, 1) || x == y)) x = y ? y : x;
    if (!x) x = y;
    if (out[ro - k] != x || (y && x != y && !is_int(y, 1))) return false;
  }
  return true;
}

/// What a product has of the norms before and after it.
static void check_norms_of_matmul(Rules& r) {
  const auto& attrs = r.op.as<MatmulAttrs>();
  const Type& out = r.out();
  const Dims rows(out.dims.begin(), out.dims.end() - 1);
  const auto moments = [&](const Type& t, ExprRef groups) {
    Dims dims = {groups};
    dims.insert(dims.end(), rows.begin(), rows.end());
    dims.push_back(r.graph.pool().integer(2));
    return t.dtype == DType::f32 && t.dims == dims;
  };
  if (attrs.scaled) {
    const auto columns = as_int(out.dims.back());
    const bool whole = columns && *columns % kMomentColumns == 0;
    r.require(
        whole && moments(r.out(1), r.graph.pool().integer(*columns / kMomentColumns)) &&
            (r.op.results.size() == 2 || r.out(2) == out),
        "C9",
        fmt::format(
            "the results after the first are not the moments of each {} columns, and what has the type of the first",
            kMomentColumns));
    r.require(attrs.scaled->type == scalar_of(out.dtype), "C7",
              "the type of scaled is not that of the result");
    check_expr(r.graph, r.op, "scaled", attrs.scaled, r.problems);
  }
  if (attrs.norm) {
    const Type& of = r.in(r.op.operands.size() - 1);
    r.require(of.rank() == rows.size() + 2 && moments(of, of.dims[0]), "C10",
              "the last operand does not have the moments of the rows");
  }
}

static void check_gate_of_matmul(Rules& r, ExprRef n) {
  const auto& attrs = r.op.as<MatmulAttrs>();
  const bool alone = !attrs.epilogue && !attrs.scaled && !attrs.norm && !attrs.weight;
  r.require(is_float(r.in(0).dtype) && r.out().dtype != DType::f64 && alone &&
                r.op.operands.size() == 2 && as_int(n).value_or(1) % 16 == 0,
            "C12", "a gate stands alone, in a product of reals of 16 columns at a time, not f64");
  r.require(attrs.gate->type == scalar_of(r.out().dtype) && !attrs.gate->has_load &&
                !attrs.gate->has_index,
            "C12", "a gate is of the type of the result, over two sums alone");
  check_expr(r.graph, r.op, "gate", attrs.gate, r.problems);
}

static bool loads_constants(const Rules& r, ExprRef weight) {
  return std::ranges::all_of(loads_of(weight), [&](ValueId slot) {
    return slot.value < r.op.operands.size() && r.graph.is_constant(r.op.operands[slot.value]);
  });
}

static void check_weight_of_matmul(Rules& r, const Type& b) {
  ExprRef weight = r.op.as<MatmulAttrs>().weight;
  const bool constants = loads_constants(r, weight);
  const bool known = as_int(b.dims[0]) && as_int(b.dims[1]);
  r.require(is_float(b.dtype) && weight->type == scalar_of(b.dtype) && constants && known, "C11",
            "a weight is a real of the type of the first factor, over constants, of known dims");
  check_expr(r.graph, r.op, "weight", weight, r.problems);
}

void check_heads_of_matmul(Rules& r, bool reals) {
  const auto& attrs = r.op.as<MatmulAttrs>();
  const Type &a = r.in(0), &b = r.in(1), &out = r.out();
  const bool alone = r.op.operands.size() == 2 && !attrs.trans_a && !attrs.trans_b &&
                     !attrs.epilogue && !attrs.gate && !attrs.norm && !attrs.scaled &&
                     !attrs.weight;
  if (!r.require(reals && alone && size_of(a.dtype) <= 4 && size_of(out.dtype) <= 4, "C13",
                 "products of heads are of reals of at most 32 bits, with alpha alone"))
    return;
  const std::optional<int64_t> width = as_int(a.dims.back());
  std::vector<ExprRef> dims = a.dims;
  if (b.rank() == 2) dims.back() = mul(r.graph.pool().integer(*attrs.heads), b.dims[1]);
  r.require(*attrs.heads >= 1 && width && *width % *attrs.heads == 0 && b.rank() == 2 &&
                b.dims[0] == a.dims.back() && out.dims == dims,
            "C13", "factors or result are not [.., m, H*k], [H*k, n] and [.., m, H*n]");
}

/// `y[.., i, j] = epilogue(s, .., i, j)` with `s = alpha * sum over k of a[.., i, k] b[.., k, j]`;
/// without an epilogue `y = s`. Where an arm of execution computes both, the sum is not rounded
/// before the epilogue. Where code generation splits the epilogue off, the sum is stored in the
/// type of `y`; a sum of integers is stored as an i32. Operands are `a`, `b`, then what the
/// epilogue loads. `a` is `[..., m, k]` (`[..., k, m]` with `trans_a`), `b` is `[..., k, n]`
/// (`[..., n, k]` with `trans_b`). Leading dims broadcast as in ONNX MatMul: equal, or 1. Products
/// of integers are exact modulo 2^32 or 2^64, whatever the widths and signs of `a` and `b`. With an
/// epilogue, which makes them real, `s` is the sum as an i32 has it. Products with zero points are
/// written out: `(a - za) (b - zb) = a b - za sum b - zb sum a + k za zb`.
///
/// A norm between two products may be a part of both, so that it needs no launch. With `scaled` the
/// product before it has two or three results:
///
/// - `y = scaled(v, .., i, j)` with `v = epilogue(s, .., i, j)`;
/// - the moments `f32[n / 32, .., m, 2]` of v: of each 32 columns their mean, and the sum of the
///   squares of their differences from it;
/// - v itself, if wanted.
///
/// A product after it has `norm` and `eps`, and its last operand has the moments of m rows. Beside
/// s its epilogue has the parameters `mean` (0 for rms) and `rstd = 1 / sqrt(variance + eps)` of
/// row i, over all columns of the moments.
///
/// With `gate` the product is `[.., m, 2n]` of which pairs of columns make one:
/// `y[.., i, j] = gate(s, t)` with the sums `s` of column `16 (j / 8) + j % 8` and `t` of the column
/// eight behind it. So a unit that computes sums of eight columns at a time has both.
///
/// With `weight` the second factor is not stored: its element `[i, j]`, of the type of `a`, is
/// `weight(i, j)`, over constants that stand in the place of `b`. Code generation computes it where
/// the product reads it, or splits it off as an op of its own.
///
/// With `heads` = H it is a product for each head, and these stand side by side: `y[.., i, h*n + j]
/// = alpha * sum over p < k of a[.., i, h*k + p] b[h*k + p, j]` for the heads h < H.
///
/// - **C1** Two factors, and more operands only for an epilogue or a norm; one result, or with
///   `scaled` two or three.
/// - **C2** Either `a` and `b` are real and of one type, and the result is real. Or `a` and `b` are
///   integers, and the result is i32 or i64; with an epilogue it is real.
/// - **C3** All ranks are at least 2.
/// - **C4** The two k are equal.
/// - **C5** The result ends in `[m, n]`, with a gate in `[m, n / 2]`.
/// - **C6** Leading dims broadcast to those of the result.
/// - **C7** The epilogue, and `scaled`, have the scalar type of the result.
/// - **C8** A product of integers has no alpha and no norm.
/// - **C9** With `scaled`, n is known and a multiple of 32. The second result is f32 with the dims
///   n / 32, those of the first but the last, and 2. A third has the type of the first.
/// - **C10** `norm` and `eps` stand together, beside an epilogue. The last operand is f32; its dims
///   are any number of groups, the dims of the result but the last, and 2.
/// - **C11** `weight` stands in a product of reals and has the scalar type of `a`; it loads constants
///   alone, and n and k are known.
/// - **C12** A gate stands alone, in a product of reals of at most 32 bits and of two operands. n is
///   known and a multiple of 16. The gate has the scalar type of the result, and neither loads nor
///   indices.
/// - **C13** `heads` stands with alpha alone, in a product of reals of at most 32 bits. It is 1 at
///   least and divides the last dim of `a`, a number, which is the first of `b [H*k, n]`. The result
///   has the dims of `a`, but H*n at the end.
void check_matmul(Rules r) {
  const auto& attrs = r.op.as<MatmulAttrs>();
  const size_t results = r.op.results.size(), operands = r.op.operands.size();
  if (!r.require((attrs.scaled ? results == 2 || results == 3 : results == 1) && operands >= 2 &&
                     (operands == 2 || attrs.epilogue || attrs.scaled || attrs.weight),
                 "C1",
                 "has two factors, one result, and more of either only for an epilogue or a norm"))
    return;
  if (!r.require(attrs.norm.has_value() == attrs.eps.has_value() &&
                     (!attrs.norm || (attrs.epilogue && operands > 2)),
                 "C10", "norm, eps, an epilogue and moments go together"))
    return;
  if (attrs.weight && (r.in(0).rank() < 2 || r.out().rank() < 2)) {
    r.require(false, "C3", "ranks must be at least 2");
    return;
  }
  const Type &a = r.in(0), &out = r.out(), b = second_factor(r.graph, r.op);
  const bool reals = is_float(a.dtype) && a.dtype == b.dtype && is_float(out.dtype);
  const bool integers =
      is_integer(a.dtype) && is_integer(b.dtype) &&
      (attrs.epilogue ? is_float(out.dtype) : out.dtype == DType::i32 || out.dtype == DType::i64);
  r.require(
      reals || integers, "C2",
      "operands must be reals of one type, or integers whose result is one, or real by an epilogue");
  r.require(!integers || (attrs.alpha == 1 && !attrs.norm && !attrs.scaled), "C8",
            "a product of integers has no alpha and no norm");
  if (!r.require(a.rank() >= 2 && b.rank() >= 2 && out.rank() >= 2, "C3",
                 "ranks must be at least 2"))
    return;
  if (attrs.heads) return check_heads_of_matmul(r, reals);
  ExprRef m = a.dims[a.rank() - (attrs.trans_a ? 1 : 2)],
          ka = a.dims[a.rank() - (attrs.trans_a ? 2 : 1)];
  ExprRef n = b.dims[b.rank() - (attrs.trans_b ? 2 : 1)],
          kb = b.dims[b.rank() - (attrs.trans_b ? 1 : 2)];
  r.require(ka == kb, "C4", fmt::format("inner dims {} and {} differ", print(ka), print(kb)));
  ExprRef columns = attrs.gate ? div(n, r.graph.pool().integer(2)) : n;
  r.require(out.dims[out.rank() - 2] == m && out.dims.back() == columns, "C5",
            attrs.gate ? "the result is not [..., m, n / 2]" : "the result is not [..., m, n]");
  r.require(broadcasts(a.dims, b.dims, out.dims), "C6",
            "leading dims do not broadcast to the result's");
  if ((reals || integers) && attrs.epilogue) {
    r.require(attrs.epilogue->type == scalar_of(out.dtype), "C7",
              "the type of the epilogue is not that of the result");
    check_expr(r.graph, r.op, "epilogue", attrs.epilogue, r.problems);
  }
  if (reals) check_norms_of_matmul(r);
  if (attrs.weight) check_weight_of_matmul(r, b);
  if (attrs.gate) check_gate_of_matmul(r, n);
}

/// Rules shared by ops that keep the shape of operand 0: reals, rank at least 1, same dims.
bool keeps_shape(Rules& r, std::string_view label) {
  return r.require(is_float(r.in(0).dtype) && is_float(r.out().dtype) && r.in(0).rank() >= 1 &&
                       r.in(0).dims == r.out().dims,
                   label, "operand 0 and the result must be reals of one shape");
}

/// `y[i.., j] = sum over k of x[i.., k] w[which(i..), j, k]`: a product of each row by the matrix that
/// the row chooses, as in a mixture of experts (a grouped GEMM). Operands are `x`, `w [groups, n, k]`,
/// then what `which` loads. Where the result has more dims than `x`, rows along those share a row of
/// `x`, as the experts of one token do: `y[b,s,u,j]` of `x[b,s,k]`.
///
/// With `weight` and `groups` the matrices are not stored: element `[g, j, k]` of `w` is `weight(g, j,
/// k)`, over constants that stand in its place, as the codes of quantised experts do.
///
/// - **M1** Two factors at least, one result, and `which`.
/// - **M2** x, w and the result are real; x and w have one type, of at most 32 bits.
/// - **M3** w is `[groups, n, k]`, of known numbers; x ends in k and the result in n.
/// - **M4** The result has as many dims as x at least, and two. The dims of x but the last are the
///   first of the result.
/// - **M5** `which` is a whole number of 0 to groups - 1: by proof, or because it is `bounded`.
/// - **M6** A weight comes with `groups`, of 1 at least. It is a real of the type of `x`, and loads
///   constants alone.
void check_grouped_matmul(Rules r) {
  const auto& a = r.op.as<GroupedMatmulAttrs>();
  if (!r.require(r.op.operands.size() >= 2 && r.op.results.size() == 1 && a.which, "M1",
                 "has two factors, one result and a choice"))
    return;
  if (!r.require(a.groups.has_value() == (a.weight != nullptr) && a.groups.value_or(1) >= 1, "M6",
                 "a weight comes with the number of matrices, which is positive"))
    return;
  const Type &x = r.in(0), &y = r.out();
  if (!r.require(y.rank() >= 1, "M4", "the result has no rows")) return;
  const Type w = matrices_type(r.graph, r.op);
  r.require(is_float(x.dtype) && is_float(y.dtype) && x.dtype == w.dtype && size_of(x.dtype) <= 4 &&
                size_of(y.dtype) <= 4,
            "M2", "the factors have two types, or one that is not real");
  const bool matrices =
      w.rank() == 3 && std::ranges::all_of(w.dims, [](ExprRef d) { return as_int(d).has_value(); });
  if (!r.require(matrices && x.rank() >= 1 && y.rank() >= 2 && r.last(x) == w.dims[2] &&
                     r.last(y) == w.dims[1],
                 "M3", "the factors do not fit"))
    return;
  if (!r.require(
          x.rank() <= y.rank() && std::equal(x.dims.begin(), x.dims.end() - 1, y.dims.begin()),
          "M4", "the rows of x are not those of the result"))
    return;
  check_expr(r.graph, r.op, "which", a.which, r.problems);
  r.require(a.which->type == Scalar::i64 && prove_in(a.which, w.dims[0]), "M5",
            "the choice may be a matrix that is not there");
  if (!a.weight) return;
  r.require(a.weight->type == scalar_of(x.dtype) && loads_constants(r, a.weight), "M6",
            "a weight is a real of the type of x, over constants");
  check_expr(r.graph, r.op, "weight", a.weight, r.problems);
}

/// `y = exp(x - max x) / sum exp(x - max x)` over the last axis.
///
/// - **S1** One operand, one result.
/// - **S2** Both are real and of one shape, of rank 1 at least.
void check_softmax(Rules r) {
  if (r.counts(1, 1, "S1")) keeps_shape(r, "S2");
}

void check_head_gamma(Rules r, size_t x, size_t gamma) {
  const auto& dims = r.in(x).dims;
  const Type& t = r.in(gamma);
  const auto width = dims.size() == 3 ? as_int(dims[2]) : std::nullopt;
  const int64_t heads = r.op.as<RopeAttrs>().heads;
  r.require(
      is_float(t.dtype) && t.rank() == 1 && width && heads > 0 && is_int(t.dims[0], *width / heads),
      "O5", fmt::format("gamma is {}, not a vector of reals of a head", to_string(t)));
}

// Operand `first` is rotated, by the two tables behind it.
void check_rotation(Rules r, size_t first) {
  const auto& a = r.op.as<RopeAttrs>();
  const auto& x = r.in(first).dims;
  const int64_t width = x.size() == 3 ? as_int(x[2]).value_or(-1) : -1;
  if (!r.require(width >= 0 && a.heads > 0 && width % a.heads == 0, "O2",
                 "x is not [B, S, heads * d]"))
    return;
  const bool fits = a.rotary > 0 && a.rotary % 2 == 0 && a.rotary <= width / a.heads;
  if (!r.require(fits, "O3", "rotary is odd or larger than a head")) return;
  for (size_t i = first + 1; i < first + 3; ++i) {
    const auto& t = r.in(i).dims;
    const bool shape = t.size() == 3 && (t[0] == x[0] || is_int(t[0], 1)) && t[1] == x[1] &&
                       (is_int(t[2], a.rotary) || is_int(t[2], a.rotary / 2));
    r.require(shape && is_float(r.in(i).dtype) && t == r.in(first + 1).dims, "O4",
              "cos and sin are not real tables of [B, S, rotary / 2] or [B, S, rotary]");
  }
}

/// `y[b, s, h*d + c]` with a pair `(u, v)` of `x` rotated: `y_u = x_u cos_u - x_v sin_u`, `y_v =
/// x_v cos_v + x_u sin_v`. Pair *e* of a head is channels `(e, e + rotary/2)`, or `(2e, 2e + 1)` if
/// `interleaved`; channels from `rotary` on are `x`. Operands `x [B,S,heads*d]` and tables `cos`,
/// `sin` of `[B,S,w]` or `[1,S,w]`: `w = rotary/2` has a value for each pair, `w = rotary` one for
/// each channel. It works on a token's row as products make it: after packing it is the same op
/// over tokens, and a key is rotated before it goes to a cache. With `eps` a head `x` is first
/// divided by its root mean square: `x / sqrt(mean(x^2) + eps) * gamma`, as an rms norm of the head
/// does; the operand `gamma [d]` comes last.
///
/// - **O1** Three operands, with `eps` four, one result.
/// - **O2** `x` and the result are real, of rank 3 and of one shape, whose width is a constant
///   multiple of `heads`.
/// - **O3** `rotary` is even, positive and at most a head's size.
/// - **O4** `cos` and `sin` are real and of one shape, `[B or 1, S, rotary/2 or rotary]`.
/// - **O5** `gamma` is a vector of reals of the size of a head.
void check_rope(Rules r) {
  const size_t operands = r.op.as<RopeAttrs>().eps ? 4 : 3;
  if (!r.counts(operands, operands, "O1") || !keeps_shape(r, "O2")) return;
  check_rotation(r, 0);
  if (operands == 4) check_head_gamma(r, 0, 3);
}

/// `x[i,j,...] = body(i, j, ...)`, `y = norm(x)` over the last axis. Of kind `layer` it is `(x -
/// mean) / sqrt(var + eps) * gamma + beta`, with the variance over n; of kind `rms` `x /
/// sqrt(mean(x^2) + eps) * gamma`. Operands are `gamma`, then beta if `has_beta`, then what the
/// body loads. Results are `y` and, if wanted, `x`. The body is a value, a sum with a residual and
/// a bias, the embeddings of a model, or any other expression. `ir/norm.h` tells which. The sum is
/// not rounded before the norm.
///
/// - **N1** Gamma, and beta where the attributes say so; one result or two.
/// - **N2** The results are real and of one shape, of rank 1 at least. There is a body, of scalar
///   type f32 (f64 if a result is f64).
/// - **N3** gamma and beta are vectors of reals over the last axis.
/// - **N4** An rms norm has no beta.
void check_norm(Rules r) {
  const auto& a = r.op.as<NormAttrs>();
  const bool ok = r.op.operands.size() >= 1u + a.has_beta &&
                  (r.op.results.size() == 1 || r.op.results.size() == 2);
  if (!r.require(ok, "N1", "the number of operands or results does not match its attributes"))
    return;
  bool wide = false;
  for (size_t i = 0; i < r.op.results.size(); ++i) {
    const Type& t = r.out(i);
    wide = wide || t.dtype == DType::f64;
    if (!r.require(is_float(t.dtype) && t.rank() >= 1 && t.dims == r.out().dims, "N2",
                   "the results must be reals of one shape"))
      return;
  }
  for (size_t i = 0; i < 1u + a.has_beta; ++i) r.vector_operand(i, "N3");
  r.require(a.kind == NormKind::layer || !a.has_beta, "N4", "an rms norm has no beta");
  if (!r.require(a.body, "N2", "a body is missing")) return;
  r.require(a.body->type == (wide ? Scalar::f64 : Scalar::f32), "N2",
            "the body has another scalar type than the results");
  check_expr(r.graph, r.op, "body", a.body, r.problems);
}

void check_op(const Graph& graph, const Op& op, std::vector<Violation>& problems) {
  switch (op.kind) {
#define TFCC_OP(name, attrs, summary) \
  case OpKind::name:                  \
    return check_##name({graph, op, problems});
#include "ir/ops.def"
#undef TFCC_OP
  }
}

}  // namespace tfcc::ir

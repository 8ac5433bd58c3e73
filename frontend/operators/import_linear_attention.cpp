// SPDX-License-Identifier: Apache-2.0
// LinearAttention (opset 27, and of com.microsoft): a running sum S of k v^T that the queries read.
// With a delta rule, or a state from before, it is the op linear_attention. Else tokens are weighed
// under a triangle, which raise-linear-attention takes for that op. A decay of each channel (GLA,
// RWKV-6, KDA) is no factor of a product of rows, and the op has none: such weights are summed pair
// by pair, and a state is what one more product reads. With a delta rule what is added depends on S:
// the values are those that solve a triangle of equations (the WY form of Yang et al., 2024), or
// those of one step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "frontend/operators/elementwise.h"
#include "frontend/operators/norm.h"
#include "ir/range.h"

namespace tfcc::frontend {
namespace {

constexpr int64_t kWidestHead = 512;   // of the op; wider ones are products
constexpr int64_t kMostTokens = 4096;  // of a delta rule, whose products grow with their cube
constexpr double kForgotten = -110;    // as a decay

struct Recurrence {
  bool gated = false, delta = false;
  ExprRef heads, kv_heads, group;  // of the result, and of the state; group: heads that share one
  ExprRef q_heads;                 // of com.microsoft there may be fewer
  ExprRef batch, tokens, d, dv;
  ValueId q, k,
      v;  // [B,T,heads*d], [B,T,key heads*d], [B,T,kv_heads*dv]; by split_heads() f32 [B,heads,T,..]
  ExprRef key_heads;
  std::optional<ValueId> past, decay, beta;  // [B,kv_heads,d,dv], f32 [B,T,.], [B,T,.]
  bool of_channels = false;                  // the decay is [B,T,kv_heads*d], not [B,T,kv_heads]
  double scale = 1;
};

ValueId product(Importer& im, ValueId a, ValueId b, bool trans_b, const Dims& to,
                std::string_view suffix) {
  ir::MatmulAttrs attrs;
  attrs.trans_b = trans_b;
  return im.graph.add(ir::OpKind::matmul, {a, b}, attrs, {DType::f32, to},
                      im.value_name(0) + std::string(suffix), im.node->name);
}

Result<void> require_real(Importer& im, ValueId v, std::string_view role) {
  TFCC_TRY_VOID(require_float(im, v));
  if (im.type(v).dtype != DType::f64) return {};
  return im.fail(ErrorCode::unsupported,
                 fmt::format("{} is f64; f32, f16 and bf16 are supported", role));
}

// An input [B,T,n*w], and w.
Result<ValueId> rows_of(Importer& im, size_t input, ExprRef n, ExprRef& width, Recurrence& r) {
  static constexpr std::string_view kNames[] = {"query", "key", "value"};
  TFCC_TRY(ValueId x, im.input(input));
  const Dims d = im.dims(x);
  const auto misfit = [&] {
    return im.fail(ErrorCode::shape,
                   fmt::format("{} {} is no [batch, tokens, {} heads]", kNames[input],
                               ir::to_string(im.type(x)), ir::print(n)));
  };
  TFCC_TRY_VOID(require_real(im, x, kNames[input]));
  if (d.size() != 3) return misfit();
  const auto all = ir::as_int(d[2]), count = ir::as_int(n);
  if (!all || !count || *all < *count || *all % *count != 0) return misfit();
  width = im.integer(*all / *count);
  if (input == 0) r.batch = d[0], r.tokens = d[1];
  TFCC_TRY(r.batch, im.unify(r.batch, d[0], "query, key and value have different batches"));
  TFCC_TRY(r.tokens, im.unify(r.tokens, d[1], "query, key and value have different lengths"));
  return x;
}

// [B,T,n*w] as f32 [B,n,T,w].
ValueId split(Importer& im, ValueId x, ExprRef n, std::string_view name) {
  const Dims d = im.dims(x);
  const std::string base(name);
  const ValueId heads =
      reshape(im, wide(im, x, base), {d[0], d[1], n, ir::div(d[2], n)}, base + "_heads");
  return transpose(im, heads, {0, 2, 1, 3}, base + "_by_head");
}

// Of a decay, or of sums of decays: what channel e of head h of k has.
ExprRef of_channel(Importer& im, const Recurrence& r, ValueId v, Indices lead, ExprRef h,
                   ExprRef e) {
  lead.push_back(r.of_channels ? ir::add(ir::mul(h, r.d), e) : h);
  return im.element(v, lead);
}

ExprRef fade(ExprRef decay) { return ir::unary(ir::ExprKind::exp, decay); }

// Heads of x [B,n,..] side by side, each as often as makes `heads` of them.
ValueId repeated(Importer& im, ValueId x, ExprRef heads, std::string_view suffix) {
  Dims d = im.dims(x);
  if (d[1] == heads) return x;
  const ExprRef times = ir::div(heads, d[1]);
  d[1] = heads;
  Indices at = im.index_vars(d);
  at[1] = ir::div(at[1], times);
  return im.pointwise(im.element(x, at), DType::f32, d, suffix);
}

// For each head of the result the head of k, v or a state that it reads.
ValueId shared(Importer& im, const Recurrence& r, ValueId x, std::string_view suffix) {
  return repeated(im, x, r.heads, suffix);
}

bool is_microsoft(const Importer& im) { return im.node->domain == "com.microsoft"; }

Result<void> read_rule(Importer& im, Recurrence& r) {
  const std::string rule = im.attr_string("update_rule", "gated_delta");
  if (rule != "linear" && rule != "gated" && rule != "delta" && rule != "gated_delta") {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("update_rule \"{}\" is not known", escaped(rule)));
  }
  r.gated = rule.starts_with("gated");
  r.delta = rule.ends_with("delta");
  const int64_t heads = im.attr_int("q_num_heads", 0), kv = im.attr_int("kv_num_heads", 0);
  const bool fewer = is_microsoft(im) && heads > 0 && kv % heads == 0;
  if (kv < 1 || (!fewer && (heads < kv || heads % kv != 0))) {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("q_num_heads {} is no multiple of kv_num_heads {}", heads, kv));
  }
  const int64_t all = std::max(heads, kv);
  r.heads = im.integer(all), r.kv_heads = im.integer(kv), r.group = im.integer(all / kv);
  r.q_heads = im.integer(heads);
  const int64_t window = im.attr_int("state_window", 0);
  if (window != 0)
    return im.fail(ErrorCode::unsupported,
                   fmt::format("state_window {} is not supported, only 0", window));
  return {};
}

// The heads of k: those of the state, but of com.microsoft keys may have fewer, as the queries.
Result<ExprRef> key_heads(Importer& im, const Recurrence& r) {
  TFCC_TRY(ValueId k, im.input(1));
  if (!is_microsoft(im) || im.rank(k) != 3) return r.kv_heads;
  const auto all = ir::as_int(im.dims(k)[2]), d = ir::as_int(r.d), kv = ir::as_int(r.kv_heads);
  if (!all || *all < *d || *all % *d != 0 || *kv % (*all / *d) != 0) return r.kv_heads;
  return im.integer(*all / *d);
}

Result<void> read_gates(Importer& im, Recurrence& r) {
  if (r.gated) {
    if (!im.has_input(4)) return im.fail(ErrorCode::bad_file, "the rule needs a decay");
    TFCC_TRY(ValueId decay, im.input(4));
    const Dims d = im.dims(decay);
    TFCC_TRY_VOID(require_real(im, decay, "decay"));
    r.of_channels = d.size() == 3 && d[2] != r.kv_heads;
    if (d.size() != 3 || (r.of_channels && d[2] != ir::mul(r.kv_heads, r.d)))
      return im.fail(ErrorCode::shape, "decay is no [batch, tokens, heads or channels of keys]");
    // exp of less is 0 in f32. So a state that is forgotten (minus infinity) leaves sums finite, and
    // exact for the tokens behind it.
    r.decay = im.pointwise(ir::max(im.element(decay, im.index_vars(d)), im.pool().real(kForgotten)),
                           DType::f32, d, ".decay");
  }
  if (r.delta) {
    if (!im.has_input(5)) return im.fail(ErrorCode::bad_file, "the rule needs a beta");
    TFCC_TRY(ValueId beta, im.input(5));
    const Dims d = im.dims(beta);
    TFCC_TRY_VOID(require_real(im, beta, "beta"));
    if (d.size() != 3 || (d[2] != r.kv_heads && !ir::is_int(d[2], 1)))
      return im.fail(ErrorCode::shape, "beta is no [batch, tokens, heads or 1]");
    r.beta = wide(im, beta, ".beta");
  }
  for (const auto& gate : {r.decay, r.beta}) {
    if (!gate) continue;
    TFCC_TRY([[maybe_unused]] ExprRef b,
             im.unify(im.dims(*gate)[0], r.batch, "decay or beta has another batch"));
    TFCC_TRY([[maybe_unused]] ExprRef t,
             im.unify(im.dims(*gate)[1], r.tokens, "decay or beta has another length"));
  }
  return {};
}

Result<Recurrence> read_recurrence(Importer& im) {
  Recurrence r;
  TFCC_TRY_VOID(read_rule(im, r));
  ExprRef dk = nullptr;
  TFCC_TRY(r.q, rows_of(im, 0, r.q_heads, r.d, r));
  TFCC_TRY(r.key_heads, key_heads(im, r));
  TFCC_TRY(r.k, rows_of(im, 1, r.key_heads, dk, r));
  TFCC_TRY(r.v, rows_of(im, 2, r.kv_heads, r.dv, r));
  if (dk != r.d) return im.fail(ErrorCode::shape, "heads of query and key differ in size");
  TFCC_TRY_VOID(read_gates(im, r));
  r.scale = im.attr_float("scale", 0);
  if (r.scale == 0) r.scale = 1 / std::sqrt(static_cast<double>(*ir::as_int(r.d)));
  if (im.has_input(3)) {
    TFCC_TRY(ValueId past, im.input(3));
    const Dims d = im.dims(past), wanted{r.batch, r.kv_heads, r.d, r.dv};
    TFCC_TRY_VOID(require_real(im, past, "past_state"));
    const std::string misfit =
        fmt::format("past_state {} is no [batch, {}, {}, {}]", ir::to_string(im.type(past)),
                    ir::print(r.kv_heads), ir::print(r.d), ir::print(r.dv));
    if (d.size() != 4) return im.fail(ErrorCode::shape, misfit);
    for (size_t k = 0; k < 4; ++k) {
      TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(d[k], wanted[k], misfit));
    }
    r.past = past;
  }
  return r;
}

// f32 [B,heads,T,dv] as output 0.
void define_output(Importer& im, const Recurrence& r, ValueId y) {
  const Dims to{r.batch, r.tokens, ir::mul(r.heads, r.dv)};
  const Indices at = im.index_vars(to);
  im.define(0, im.element(y, {at[0], ir::div(at[2], r.dv), at[1], ir::mod(at[2], r.dv)}),
            im.type(*im.input(0)).dtype, to);
}

// f32 [B,kv_heads,d,dv] as output 1.
void define_state(Importer& im, const Recurrence& r, ExprRef e) {
  const DType dtype = im.type(im.has_input(3) ? *im.input(3) : *im.input(0)).dtype;
  im.define(1, e, dtype, {r.batch, r.kv_heads, r.d, r.dv});
}

// Of each token the decay of all up to it, or of all behind it.
ValueId running(Importer& im, const Recurrence& r, bool behind) {
  ir::CumsumAttrs attrs;
  attrs.axis = 1;
  attrs.reverse = attrs.exclusive = behind;
  return im.graph.add(ir::OpKind::cumsum, {*r.decay}, attrs, im.type(*r.decay),
                      im.value_name(0) + (behind ? ".decays_behind" : ".decays"), im.node->name);
}

// What rows (queries or keys) are told of earlier keys: sum over e of row_i[e] k_j[e] exp(decay of
// j + 1..i), 0 for j > i, or with `strict` for j >= i. f32 [B,heads of the rows,T,T].
struct Rows {
  ValueId rows;
  ExprRef heads, group;
  bool strict = false;
  std::string_view name;
};

ValueId weights(Importer& im, const Recurrence& r, std::optional<ValueId> decays, const Rows& of) {
  const Dims dims{r.batch, of.heads, r.tokens, r.tokens};
  const Indices at = im.index_vars(dims);
  const ExprRef head = ir::div(at[1], of.group);
  const ExprRef seen = of.strict ? ir::lt(at[3], at[2]) : ir::le(at[3], at[2]);
  const auto faded = [&](ExprRef s, ExprRef e) {
    if (!decays) return ir::select(seen, s, im.pool().real(0));
    const ExprRef grown = ir::sub(of_channel(im, r, *decays, {at[0], at[2]}, head, e),
                                  of_channel(im, r, *decays, {at[0], at[3]}, head, e));
    const ExprRef never = im.pool().real(-std::numeric_limits<double>::infinity());
    return ir::mul(s, fade(ir::select(seen, grown, never)));
  };
  const auto name = [&](std::string_view what) { return fmt::format(".{}_{}", of.name, what); };
  if (r.of_channels) {
    const ExprRef e = variables(im, {r.d}, dims.size())[0];
    const ExprRef term = ir::mul(im.element(of.rows, {at[0], at[1], at[2], e}),
                                 im.element(r.k, {at[0], head, at[3], e}));
    return reduction(im, ir::ReduceKind::sum, faded(term, e), {r.d}, {DType::f32, dims},
                     name("weights"));
  }
  const ValueId keys = repeated(im, r.k, of.heads, name("keys"));
  ValueId scores = product(im, of.rows, keys, true, dims, name("scores"));
  return im.pointwise(faded(im.element(scores, at), im.integer(0)), DType::f32, dims,
                      name("weights"));
}

// What rows read of the state from before: exp(decay of 1..i) row_i S.
ValueId read_past(Importer& im, const Recurrence& r, std::optional<ValueId> decays,
                  const Rows& of) {
  const Dims dims{r.batch, of.heads, r.tokens, r.d};
  const Indices at = im.index_vars(dims);
  ExprRef row = im.element(of.rows, at);
  if (decays) {
    row = ir::mul(
        row, fade(of_channel(im, r, *decays, {at[0], at[2]}, ir::div(at[1], of.group), at[3])));
  }
  const auto name = [&](std::string_view what) { return fmt::format(".{}_{}", of.name, what); };
  ValueId faded = im.pointwise(row, DType::f32, dims, name("faded"));
  const ValueId states = repeated(im, *r.past, of.heads, name("states"));
  return product(im, faded, states, false, {r.batch, of.heads, r.tokens, r.dv}, name("past"));
}

// sum over j <= i of (q_i k_j) exp(decay of j + 1..i) v_j, and what is read of the past.
ValueId read_by_queries(Importer& im, const Recurrence& r, std::optional<ValueId> decays) {
  const Dims queries = im.dims(r.q);
  const Indices q = im.index_vars(queries);
  const ValueId scaled = im.pointwise(ir::mul(im.element(r.q, q), im.pool().real(r.scale)),
                                      DType::f32, queries, ".scaled");
  const Rows rows{scaled, r.heads, r.group, false, "query"};
  const Dims dims{r.batch, r.heads, r.tokens, r.dv};
  ValueId y = product(im, weights(im, r, decays, rows), shared(im, r, r.v, ".values"), false, dims,
                      ".context");
  if (!r.past) return y;
  const ValueId past = read_past(im, r, decays, rows);
  const Indices at = im.index_vars(dims);
  return im.pointwise(ir::add(im.element(y, at), im.element(past, at)), DType::f32, dims,
                      ".with_past");
}

// The inverse of I + M for M [.,T,T] that is 0 on the diagonal and above. Blocks of twice the size at
// each level: of [[A, 0], [C, B]] it is [[A', 0], [-B' C A', B']], as stable as a substitution.
ValueId inverse_of_unit_triangle(Importer& im, ValueId m, int64_t most) {
  const Dims dims = im.dims(m);
  const Indices at = im.index_vars(dims);
  const ExprRef zero = im.pool().real(0), one = im.pool().real(1);
  const auto between = [&](int64_t block) {  // C of each pair of blocks
    const ExprRef i = ir::div(at[2], im.integer(block)), j = ir::div(at[3], im.integer(block));
    const ExprRef first = ir::eq(ir::mod(j, im.integer(2)), im.integer(0));
    return ir::select(ir::logical_and(first, ir::eq(i, ir::add(j, im.integer(1)))),
                      im.element(m, at), zero);
  };
  const ExprRef diagonal = ir::select(ir::eq(at[2], at[3]), one, zero);
  ValueId x = im.pointwise(ir::sub(diagonal, between(1)), DType::f32, dims, ".inverse2");
  for (int64_t block = 2; block < most; block *= 2) {
    const auto name = [&](std::string_view what) { return fmt::format(".{}{}", what, 2 * block); };
    ValueId c = im.pointwise(between(block), DType::f32, dims, name("between"));
    ValueId left = product(im, x, c, false, dims, name("left"));
    ValueId both = product(im, left, x, false, dims, name("both"));
    x = im.pointwise(ir::sub(im.element(x, at), im.element(both, at)), DType::f32, dims,
                     name("inverse"));
  }
  return x;
}

// With a delta rule the sum is that of k_j u_j^T, where u_i + sum over j < i of beta_i (k_i k_j)
// exp(decay of j + 1..i) u_j = beta_i (v_i - exp(decay of 1..i) k_i S): u in place of v.
ValueId changes(Importer& im, const Recurrence& r, std::optional<ValueId> decays, int64_t most) {
  const Dims dims{r.batch, r.kv_heads, r.tokens, r.d};
  const auto beta = [&](const Indices& at) {
    const ExprRef head = ir::is_int(im.dims(*r.beta)[2], 1) ? im.integer(0) : at[1];
    return im.element(*r.beta, {at[0], at[2], head});
  };
  const Indices k = im.index_vars(dims);
  const ValueId keys =
      im.pointwise(ir::mul(beta(k), im.element(r.k, k)), DType::f32, dims, ".rated_keys");
  const Rows rows{keys, r.kv_heads, im.integer(1), true, "key"};
  ValueId inverse = inverse_of_unit_triangle(im, weights(im, r, decays, rows), most);
  const Dims values = im.dims(r.v);
  const Indices at = im.index_vars(values);
  ExprRef wanted = ir::mul(beta(at), im.element(r.v, at));
  if (r.past) wanted = ir::sub(wanted, im.element(read_past(im, r, decays, rows), at));
  ValueId errors = im.pointwise(wanted, DType::f32, values, ".errors");
  return product(im, inverse, errors, false, values, ".changes");
}

// exp(decay of all) S + sum over j of exp(decay of those after j) k_j v_j^T.
void define_sum(Importer& im, const Recurrence& r) {
  const Dims turned{r.batch, r.kv_heads, r.d, r.tokens}, state{r.batch, r.kv_heads, r.d, r.dv};
  const Indices at = im.index_vars(turned), s = im.index_vars(state);
  ExprRef key = im.element(r.k, {at[0], at[1], at[3], at[2]}), kept = nullptr;
  if (r.decay) {
    const Dims rows{r.batch, im.dims(*r.decay)[2]};
    const Indices h = im.index_vars(rows);
    const ExprRef t = variables(im, {r.tokens}, rows.size())[0];
    ValueId all = reduction(im, ir::ReduceKind::sum, im.element(*r.decay, {h[0], t, h[1]}),
                            {r.tokens}, {DType::f32, rows}, ".decay_of_all");
    const ValueId behind = running(im, r, true);
    key = ir::mul(key, fade(of_channel(im, r, behind, {at[0], at[3]}, at[1], at[2])));
    kept = fade(of_channel(im, r, all, {s[0]}, s[1], s[2]));
  }
  ValueId keys = im.pointwise(key, DType::f32, turned, ".faded_keys");
  ExprRef sum = im.element(product(im, keys, r.v, false, state, ".sum"), s);
  if (r.past) {
    const ExprRef before = im.element(*r.past, s);
    sum = ir::add(sum, kept ? ir::mul(kept, before) : before);
  }
  define_state(im, r, sum);
}

// One token: S' = S exp(decay) + beta k (v - k^T S exp(decay))^T, and it is read.
void define_step(Importer& im, const Recurrence& r) {
  ExprPool& pool = im.pool();
  const ExprRef zero = im.integer(0);
  const auto faded = [&](ExprRef b, ExprRef h, ExprRef e, ExprRef m) {
    if (!r.past) return pool.real(0);
    const ExprRef before = im.element(*r.past, {b, h, e, m});
    if (!r.decay) return before;
    return ir::mul(before, fade(of_channel(im, r, *r.decay, {b, zero}, h, e)));
  };
  const Dims state{r.batch, r.kv_heads, r.d, r.dv}, row{r.batch, r.kv_heads, r.dv},
      out{r.batch, r.heads, r.tokens, r.dv};
  const Indices a = im.index_vars(row), s = im.index_vars(state), o = im.index_vars(out);
  const ExprRef e = variables(im, {r.d}, row.size())[0];
  ValueId known =
      reduction(im, ir::ReduceKind::sum,
                ir::mul(faded(a[0], a[1], e, a[2]), im.element(r.k, {a[0], a[1], zero, e})), {r.d},
                {DType::f32, row}, ".known");
  const ExprRef of_all = ir::is_int(im.dims(*r.beta)[2], 1) ? zero : s[1];
  const ExprRef error = ir::mul(
      im.element(*r.beta, {s[0], zero, of_all}),
      ir::sub(im.element(r.v, {s[0], s[1], zero, s[3]}), im.element(known, {s[0], s[1], s[3]})));
  ValueId next = im.pointwise(ir::add(faded(s[0], s[1], s[2], s[3]),
                                      ir::mul(im.element(r.k, {s[0], s[1], zero, s[2]}), error)),
                              DType::f32, state, ".state");
  const ExprRef c = variables(im, {r.d}, out.size())[0];
  const ExprRef read = ir::mul(ir::mul(im.element(r.q, {o[0], o[1], zero, c}), pool.real(r.scale)),
                               im.element(next, {o[0], ir::div(o[1], r.group), c, o[3]}));
  define_output(im, r, reduction(im, ir::ReduceKind::sum, read, {r.d}, {DType::f32, out}, ".read"));
  if (wants_output(im, 1)) define_state(im, r, im.element(next, s));
}

// Rows of `from` heads as those of `to`, each as often as makes so many.
ValueId repeated_rows(Importer& im, const Recurrence& r, ValueId x, ExprRef from, ExprRef to,
                      std::string_view suffix) {
  const ExprRef width = ir::div(im.dims(x)[2], from), times = ir::div(to, from);
  const Dims d{r.batch, r.tokens, ir::mul(to, width)};
  if (im.dims(x) == d) return x;
  Indices at = im.index_vars(d);
  const ExprRef head = ir::div(ir::div(at[2], width), times);
  at[2] = ir::add(ir::mul(head, width), ir::mod(at[2], width));
  return im.pointwise(im.element(x, at), im.type(x).dtype, d, suffix);
}

// Sums before the first token as the op has them, f32 [B,kv_heads,dv,d]: those of past_state or none.
ValueId sums_before(Importer& im, const Recurrence& r) {
  const Dims dims{r.batch, r.kv_heads, r.dv, r.d};
  const Indices at = im.index_vars(dims);
  ExprRef e = r.past ? im.element(*r.past, {at[0], at[1], at[3], at[2]}) : im.pool().real(0);
  return im.pointwise(ir::convert(e, Scalar::f32), DType::f32, dims, ".sums_before");
}

// The op linear_attention, for a decay of each head.
void define_op(Importer& im, const Recurrence& r) {
  ir::LinearAttentionAttrs attrs;
  attrs.causal = true;
  attrs.heads = *ir::as_int(r.heads), attrs.kv_heads = *ir::as_int(r.kv_heads);
  const DType dtype = im.type(r.q).dtype;
  const bool one_type = im.type(r.k).dtype == dtype && im.type(r.v).dtype == dtype;
  const auto row = [&](ValueId x, ExprRef n, ExprRef to, std::string_view name) {
    return repeated_rows(im, r, one_type ? x : wide(im, x, name), n, to, name);
  };
  std::vector<ValueId> operands = {row(r.q, r.q_heads, r.heads, ".queries"),
                                   row(r.k, r.key_heads, r.kv_heads, ".keys"),
                                   row(r.v, r.kv_heads, r.kv_heads, ".values")};
  attrs.state = r.past || wants_output(im, 1);
  if (attrs.state) operands.push_back(sums_before(im, r));
  const ExprRef b = im.pool().index(ir::kOfBatch, r.batch),
                t = im.pool().index(ir::kOfToken, r.tokens),
                h = im.pool().index(ir::kOfHead, r.heads),
                g = im.pool().index(ir::kOfHead, r.kv_heads);
  std::vector<ExprRef> free = {ir::mul(im.pool().param("s", Scalar::f32), im.pool().real(r.scale)),
                               nullptr, nullptr};
  if (r.decay) free[1] = im.element(*r.decay, {b, t, ir::div(h, r.group)});
  if (r.beta)
    free[2] = im.element(*r.beta, {b, t, ir::is_int(im.dims(*r.beta)[2], 1) ? im.integer(0) : g});
  free = ir::capture(free, operands);
  attrs.q_map = free[0], attrs.decay = free[1], attrs.beta = free[2];
  const ir::Type y{dtype, {r.batch, r.tokens, ir::mul(r.heads, r.dv)}};
  if (!attrs.state) {
    im.define(0, im.graph.add(ir::OpKind::linear_attention, operands, attrs, y, im.value_name(0),
                              im.node->name));
    return;
  }
  const std::string name = im.value_name(0);
  const ir::OpId o =
      im.graph.add_op(ir::OpKind::linear_attention, operands, attrs, {y, im.type(operands[3])},
                      {name, name + ".sums"}, im.node->name);
  im.define(0, im.graph.result(o));
  if (!wants_output(im, 1)) return;
  const Dims state{r.batch, r.kv_heads, r.d, r.dv};
  const Indices s = im.index_vars(state);
  define_state(im, r, im.element(im.graph.result(o, 1), {s[0], s[1], s[3], s[2]}));
}

// f32 rows by head, for products and sums of them.
void split_heads(Importer& im, Recurrence& r) {
  r.q = repeated(im, split(im, r.q, r.q_heads, ".query"), r.heads, ".query_of_each");
  r.k = repeated(im, split(im, r.k, r.key_heads, ".key"), r.kv_heads, ".key_of_each");
  r.v = split(im, r.v, r.kv_heads, ".value");
  if (r.past) r.past = wide(im, *r.past, ".past");
}

}  // namespace

Result<void> import_linear_attention(Importer& im) {
  TFCC_TRY(Recurrence r, read_recurrence(im));
  if ((r.delta || r.past) && !r.of_channels && *ir::as_int(r.d) <= kWidestHead) {
    define_op(im, r);
    return {};
  }
  split_heads(im, r);
  if (r.delta && ir::is_int(r.tokens, 1)) {
    define_step(im, r);
    return {};
  }
  const int64_t most = ir::range_of(r.tokens).hi;
  if (r.delta && most > kMostTokens) {
    return im.fail(
        ErrorCode::unsupported,
        fmt::format("a delta rule with {} over {} tokens is supported for at most {}; say so with "
                    "--maxShapes",
                    r.of_channels ? "a decay of each channel" : "such wide heads",
                    ir::print(r.tokens), kMostTokens));
  }
  std::optional<ValueId> decays;
  if (r.gated) decays = running(im, r, false);
  if (r.delta) r.v = changes(im, r, decays, most);
  const ValueId y = read_by_queries(im, r, decays);
  define_output(im, r, y);
  if (wants_output(im, 1)) define_sum(im, r);
  return {};
}

}  // namespace tfcc::frontend

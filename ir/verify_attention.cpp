// SPDX-License-Identifier: Apache-2.0
// Rules of what attends: packing, caches, attention with a softmax and without; labelled as in
// ir/ops.md.
#include "ir/verify_rules.h"

#include <algorithm>

namespace tfcc::ir {

namespace {

/// Does a conjunct of `visible` depend on b and j alone?
bool has_key_padding(ExprRef visible) {
  const auto over_keys = [](ExprRef e) {
    bool ok = true, any = false;
    for_each_node(e, [&](ExprRef n) {
      any = any || n->kind == ExprKind::load;
      ok = ok && !(n->kind == ExprKind::index && (n->value == kHead || n->value == kQuery));
    });
    return ok && any;
  };
  if (visible->kind != ExprKind::band) return over_keys(visible);
  return std::any_of(visible->args.begin(), visible->args.end(), over_keys);
}

/// The slots of a cache: pages of so many tokens, [pages, heads, page, d] with all but the number
/// of pages known.
bool is_pool(const Type& t) {
  return t.rank() == 4 && is_float(t.dtype) && t.dtype != DType::f64 &&
         std::all_of(t.dims.begin() + 1, t.dims.end(),
                     [](ExprRef d) { return as_int(d).value_or(0) > 0; });
}

}  // namespace

void check_states(Rules r) {
  for (const StateOf s : states_of(r.op)) {
    const ValueId before = r.op.operands[s.operand];
    r.require(!r.graph.def(before) && r.graph.use_count(before) == 1, "V4",
              "a state is no input of the graph, or is read elsewhere too");
    const auto out =
        std::find_if(r.graph.outputs.begin(), r.graph.outputs.end(),
                     [&](const Graph::Output& o) { return o.value == r.op.results[s.result]; });
    const bool named = out != r.graph.outputs.end() && out->name == r.graph.value(before).name;
    r.require(
        named && std::all_of(out, r.graph.outputs.end(),
                             [&](const Graph::Output& o) { return is_state(r.graph, o.value); }),
        "V4",
        "a new state is no output with the name of the state, behind the outputs that are none");
  }
}

// Of both appends.
static void check_append(Rules r) {
  const bool rotates = r.op.kind == OpKind::rope_append;
  const bool normalises = rotates && r.op.as<RopeAttrs>().eps;
  if (!r.require(
          r.op.operands.size() == (normalises ? 10
                                   : rotates  ? 8
                                              : 5) &&
              r.op.results.size() == (rotates ? 3 : 2),
          "V1",
          "needs two states, rows for each, slots, and two results; to rotate, q, cos, sin and a result more, and two gammas with eps"))
    return;
  for (size_t i : {0, 1}) {
    const Type &state = r.in(i), &x = r.in(2 + i);
    if (!r.require(
            is_pool(state) && r.out(i) == state, "V2",
            "a state is not f32, f16 or bf16 [pages, heads, page, d], or its result is of another type"))
      return;
    ExprRef width = mul(state.dims[1], state.dims[3]);
    const bool rows =
        x.dtype == state.dtype && x.rank() == 3 && is_int(x.dims[0], 1) && x.dims[2] == width;
    r.require(rows && r.in(4) == Type{DType::i32, {x.dims[1]}}, "V3",
              "rows are not [1, T, heads * d] in the type of their state, or slots not i32[T]");
  }
  check_states(r);
  const Type &keys = r.in(0), &values = r.in(1);
  r.require(keys.dtype == values.dtype &&
                std::equal(keys.dims.begin(), keys.dims.end() - 1, values.dims.begin()),
            "V2", "keys and values differ in more than the size of a head");
  if (!rotates) return;
  check_rotation(r, 5);
  const Type& q = r.in(5);
  const bool beside = q.rank() == 3 && q == r.out(2) && q.dtype == keys.dtype &&
                      is_int(q.dims[0], 1) && q.dims[1] == r.in(2).dims[1];
  r.require(beside && as_int(q.dims[2]) == r.op.as<RopeAttrs>().heads * *as_int(keys.dims[3]), "V5",
            "q and its result are not [1, T, heads * d] in the type of the keys and with their d");
  if (!normalises) return;
  for (size_t gamma : {8, 9}) check_head_gamma(r, 5, gamma);
}

/// `keys', values' = kv_append(keys, values, k, v, slots)` writes row t of `k [1,T,heads*d]` into
/// slot `slots[t]` of a cache `keys [pages, heads, page, d]`: row `slots[t] % page` of page
/// `slots[t] / page`, `keys'[p, h, r, c] = k[0, t, h*d + c]`; and so `v` with its own head size
/// into `values`. Everything else is as it was. A slot outside of the pages keeps nothing. Slots
/// are different; of equal ones one wins.
///
/// It works in place: on targets `keys` and `keys'` are one memory, which the caller owns, and the
/// runtime takes the address of one for the other. So nobody else reads `keys`: what reads the
/// cache reads `keys'`.
///
/// - **V1** Five operands, two results.
/// - **V2** The states are `[pages, heads, page, d]` in f32, f16 or bf16, and all dims but the
///   first are constants. They are alike but for d. The results are of their types.
/// - **V3** `k` and `v` are `[1, T, heads*d]` in that type, `slots` i32[T].
/// - **V4** A state is an input of the graph that nobody else reads. A result is an output with the
///   name of its state, behind the outputs that are no states.
void check_kv_append(Rules r) { check_append(r); }

/// `keys', values', q' = rope_append(keys, values, k, v, slots, q, cos, sin)`: `q' = rope(q, cos,
/// sin)` with `heads` heads, and kv_append of `rope(k, cos, sin)`, whose heads are those of the
/// cache, and of `v`. With `eps` the gammas of q and of k come last.
///
/// - **V1** to **V4** as for kv_append, with three operands and one result more, or five operands
///   with `eps`. **O2** to **O5** hold for q, the tables and both gammas.
/// - **V5** `q` and its result are `[1, T, heads*d]` in the type of the keys and with their d.
void check_rope_append(Rules r) { check_append(r); }

namespace {

/// The operands of a packed attention: one batch of rows, and what pack says of them.
template <class A> bool check_packing(Rules r, const A& a, std::string_view rule) {
  if (!r.require(a.packed.size() == 2 && r.op.operands.size() >= a.own_operands(), rule,
                 "packed needs batch, length and four results of pack, and pages a table"))
    return false;
  ExprPool& pool = r.graph.pool();
  const Type& q = r.in(0);
  ExprRef batch = a.packed[0];
  const Dims wanted[] = {{add(batch, pool.integer(1))}, {batch}, {batch}, {q.dims[1]}};
  for (size_t i = 0; i < 4; ++i) {
    if (!r.require(r.in(3 + i) == Type{DType::i32, wanted[i]}, rule,
                   fmt::format("operand {} is {}, not a result of pack for these rows", 3 + i,
                               to_string(r.in(3 + i)))))
      return false;
  }
  return r.require(is_int(q.dims[0], 1), rule, "packed rows have no batch of their own");
}

/// The widths of the rows of k and v, and whether the operands of an attention over pages fit each
/// other.
bool check_pages(Rules r, const AttentionAttrs& a, Dims& widths) {
  const Type &k = r.in(1), &v = r.in(2), &table = r.in(7);
  if (!r.require(!a.packed.empty() && is_pool(k) && is_pool(v), "A9",
                 "k and v are no states of pages, or the queries are not packed"))
    return false;
  ExprRef kv_heads = r.graph.pool().integer(a.kv_heads), page = r.graph.pool().integer(*a.page);
  r.require(k.dims[0] == v.dims[0] && k.dims[1] == kv_heads && v.dims[1] == kv_heads &&
                k.dims[2] == page && v.dims[2] == page,
            "A9",
            "k and v have not kv_heads heads in pages of this size, one as many as the other");
  const bool is_table = table.dtype == DType::i32 && table.rank() == 2 &&
                        table.dims[0] == a.packed[0] && mul(table.dims[1], page) == a.packed[1];
  widths = {mul(k.dims[1], k.dims[3]), mul(v.dims[1], v.dims[3])};
  return r.require(is_table, "A9", "the table is not i32[B, W], where W pages are the length");
}

}  // namespace

/// `row, cu, keys, order, seq, pos = pack(what live and kept load) {live = (b,s) => .., kept =
/// (b,s) => ..}` numbers the rows of a padded `[B,S]` that are left without padding: sequence by
/// sequence, first those of which `live(b,s)` holds, in order, then those of which `kept(b,s)`
/// alone holds. So the live rows of a sequence are one run. Rows that are kept though nobody
/// attends to them (a pooler's token 0 under left padding) lie behind it. `T`, the number of packed
/// rows, is a size that this op makes; it has the role `packed` and the bound `B*S`. It may be 0,
/// although proofs take it to be 1 at least, as with any size: where there is no row, `row` is -1
/// everywhere and nothing is loaded.
///
/// | result | type | what it is |
/// |---|---|---|
/// | `row` | i32[B,S] | the packed row of (b,s), -1 if there is none |
/// | `cu` | i32[B+1] | the first packed row of each sequence, and `T` at the end |
/// | `keys` | i32[B] | live rows of each sequence: what attention attends to |
/// | `order` | i32[B] | sequences by their number of rows, most first; equal ones in order |
/// | `seq`, `pos` | i32[T] | the (b,s) that a packed row stands for |
///
/// A packed tensor is `[1,T,w]`: ops on rows are the ops that they are on `[B,S,w]`, with one
/// sequence of `T` rows. Whoever needs (b,s) of a packed row loads `seq` and `pos`. Whoever needs a
/// padded tensor again loads through `row`, and takes 0 where it is -1. Positions, masks and tables
/// stay functions of (b,s).
///
/// - **T1** Six results, `i32`, of these shapes.
/// - **T2** `T` is a size that an op makes, with the bound `B*S`.
/// - **T3** `live` is a condition over (b,s); `kept`, if there is one, too.
void check_pack(Rules r) {
  const auto& a = r.op.as<PackAttrs>();
  if (!r.require(r.op.results.size() == 6 && r.out().rank() == 2 && r.out(5).rank() == 1, "T1",
                 "has six results, row of rank 2 and pos of rank 1"))
    return;
  ExprPool& pool = r.graph.pool();
  const Dims padded = r.out().dims;
  ExprRef batch = padded[0], rows = r.out(5).dims[0];
  const Dims wanted[] = {padded, {add(batch, pool.integer(1))}, {batch}, {batch}, {rows}, {rows}};
  for (size_t i = 0; i < 6; ++i) {
    r.require(r.out(i) == Type{DType::i32, wanted[i]}, "T1",
              fmt::format("result {} is {}", i, to_string(r.out(i))));
  }
  const auto it = std::find_if(r.graph.symbols.begin(), r.graph.symbols.end(),
                               [&](const SizeSymbol& s) { return pool.symbol(s.name) == rows; });
  r.require(it != r.graph.symbols.end() && it->made() && it->bound == mul(batch, padded[1]), "T2",
            "the number of rows is no size with the bound B*S that an op makes");
  if (r.require(a.live && a.live->type == Scalar::boolean, "T3",
                "live is missing or not a condition"))
    check_expr(r.graph, r.op, "live", a.live, r.problems);
  if (a.kept && r.require(a.kept->type == Scalar::boolean, "T3", "kept is not a condition"))
    check_expr(r.graph, r.op, "kept", a.kept, r.problems);
}

/// `y[b, i, h*dv + d] = sum over j of w[j] v[b, j, g*dv + d]` with `w = softmax over visible j of
/// score(s, b, h, i, j)`, `s = sum over e of q[b, i, h*d + e] k[b, j, g*d + e]` and `g = h / (heads
/// / kv_heads)`. Operands `q [B,Sq,heads*d]`, `k [B,Sk,kv_heads*d]`, `v [B,Sk,kv_heads*dv]`, then
/// what `score`, `sink` and `visible` load. Index variables 0 to 3 are b, h, i, j. A key whose
/// score is -inf takes no part either. A row without a key gives zeros. `causal`, `window_left`,
/// `window_right` and `key_padding` are facts about `visible` that let kernels skip blocks: a
/// window of `left` and `right` means `i + Sk - Sq - left <= j <= i + Sk - Sq + right`; causal is a
/// `right` of 0.
///
/// A `sink(b, h)` is the score of one more key, whose value is 0 (attention sinks: Xiao et al.,
/// 2023; learned ones: gpt-oss): the sum that the weights are divided by has `exp(sink)` in it.
/// Beside a sink of plus infinity a row gives zeros.
///
/// With `packed = [B,S]` the rows are those that a `pack` of `[B,S]` left: `q`, `k` and `v` are
/// `[1,T,..]`, and `cu`, `keys`, `order` and `pos` follow them. The keys of a sequence are its
/// first `keys[b]` rows, its queries all of them. The indices b, i and j are still those of the
/// padded tensors (`i = pos` of the row). So scores, masks and windows mean what they meant.
///
/// With `page = n` too, keys and values are in a cache: `k [P,kv_heads,n,d]` and `v
/// [P,kv_heads,n,dv]` are results of `kv_append`, and behind `pos` comes `table i32[B,W]`, the
/// pages of each sequence: key j of sequence b is row `j % n` of page `table[b, j / n]`, clamped to
/// the pages that there are. `packed = [B, W*n]`, and the `keys[b]` keys of a sequence have
/// positions 0, 1, ..: i and j are absolute positions, so that a prompt as a whole, a piece of it
/// and a single token are one form. `keys[b]` is at most `W*n`; `pos` may be any positions below
/// that.
///
/// - **A1** At least three operands, one result.
/// - **A2** q, k, v are of rank 3 (pages of rank 4) and of one type: f32, f16 or bf16. The result
///   is real, of rank 3.
/// - **A3** B and Sk agree.
/// - **A4** `kv_heads` divides `heads`; the widths of q, k, v are constants that fit them.
/// - **A5** The result is `[B, Sq, heads*dv]`.
/// - **A6** `score` is f32; `sink` is none or f32; `visible` is none or a condition.
/// - **A7** `causal` and windows need a `visible` that implies them, and windows are not negative.
///   `key_padding` needs a conjunct of `visible` that loads and does not use h or i.
/// - **A8** Packed rows come with `cu` i32[B+1], `keys` and `order` i32[B] and `pos` i32[T], have
///   one batch, and no `key_padding`.
/// - **A9** Pages come with packed queries. k and v have kv_heads heads each, in equally many pages
///   of that size. The table is i32[B,W], where W pages are the length.
void check_attention(Rules r) {
  const auto& a = r.op.as<AttentionAttrs>();
  if (!r.require(r.op.operands.size() >= 3 && r.op.results.size() == 1, "A1",
                 "needs q, k, v and one result"))
    return;
  const Type &q = r.in(0), &k = r.in(1), &v = r.in(2), &out = r.out();
  const size_t kv_rank = a.page ? 4 : 3;
  const bool ranks = q.rank() == 3 && k.rank() == kv_rank && v.rank() == kv_rank && out.rank() == 3;
  const bool reals = is_float(q.dtype) && q.dtype != DType::f64 && q.dtype == k.dtype &&
                     q.dtype == v.dtype && is_float(out.dtype);
  if (!r.require(ranks && reals, "A2",
                 "q, k, v must be of rank 3 (pages of rank 4) and of one type, f32, f16 or bf16"))
    return;
  const bool packed = !a.packed.empty();
  if (packed && !(check_packing(r, a, "A8") &&
                  r.require(!a.key_padding, "A8", "packed rows have no padding")))
    return;
  Dims rows = {k.dims[2], v.dims[2]};  // widths
  if (a.page) {
    if (!check_pages(r, a, rows)) return;
  } else {
    r.require(q.dims[0] == k.dims[0] && q.dims[0] == v.dims[0] && k.dims[1] == v.dims[1] &&
                  (!packed || q.dims[1] == k.dims[1]),
              "A3", "batch or key counts differ");
  }
  const auto q_width = as_int(q.dims[2]), k_width = as_int(rows[0]), v_width = as_int(rows[1]);
  const bool heads = a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0;
  const bool widths = heads && q_width && k_width && v_width && *q_width % a.heads == 0 &&
                      *q_width / a.heads * a.kv_heads == *k_width && *v_width % a.kv_heads == 0;
  if (!r.require(widths, "A4", "heads, kv_heads and the widths of q, k, v do not fit")) return;
  ExprRef width = r.graph.pool().integer(*v_width / a.kv_heads * a.heads);
  r.require(out.dims == Dims{q.dims[0], q.dims[1], width}, "A5",
            "the result is not [B, Sq, heads * dv]");
  if (r.require(a.score && a.score->type == Scalar::f32, "A6", "the score is missing or not f32")) {
    check_expr(r.graph, r.op, "score", a.score, r.problems);
  }
  if (a.visible &&
      r.require(a.visible->type == Scalar::boolean, "A6", "visible is not a condition")) {
    check_expr(r.graph, r.op, "visible", a.visible, r.problems);
  }
  if (a.sink && r.require(a.sink->type == Scalar::f32, "A6", "sink is not f32"))
    check_expr(r.graph, r.op, "sink", a.sink, r.problems);
  r.require(!a.causal || a.visible, "A7", "causal needs a visible that implies it");
  const bool windows = a.window_left || a.window_right;
  r.require(
      !windows || (a.visible && a.window_left.value_or(0) >= 0 && a.window_right.value_or(0) >= 0),
      "A7", "a window is negative or has no visible that implies it");
  r.require(!a.key_padding || (a.visible && has_key_padding(a.visible)), "A7",
            "key_padding needs a conjunct of visible over b and j alone");
}

namespace {

/// q, k, v, the result and the expressions of a linear attention or its step; false if they do not
/// fit each other.
bool check_linear(Rules r) {
  const auto& a = r.op.as<LinearAttentionAttrs>();
  const Type &q = r.in(0), &k = r.in(1), &v = r.in(2), &out = r.out();
  const bool ranks = q.rank() == 3 && k.rank() == 3 && v.rank() == 3 && out.rank() == 3;
  const bool reals = is_float(q.dtype) && q.dtype != DType::f64 && q.dtype == k.dtype &&
                     q.dtype == v.dtype && is_float(out.dtype) && out.dtype != DType::f64;
  if (!r.require(ranks && reals, "F2",
                 "q, k, v must be of rank 3 and of one type, f32, f16 or bf16"))
    return false;
  if (!a.packed.empty() && !check_packing(r, a, "F7")) return false;
  const bool one_length = q.dims[1] == k.dims[1] || (!a.causal && a.packed.empty());
  if (!r.require(
          q.dims[0] == k.dims[0] && q.dims[0] == v.dims[0] && k.dims[1] == v.dims[1] && one_length,
          "F3", "batches or lengths differ"))
    return false;
  const auto q_width = as_int(q.dims[2]), k_width = as_int(k.dims[2]), v_width = as_int(v.dims[2]);
  const bool heads = a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0;
  const bool widths = heads && q_width && k_width && v_width && *q_width % a.heads == 0 &&
                      *q_width / a.heads * a.kv_heads == *k_width && *v_width % a.kv_heads == 0;
  if (!r.require(widths, "F4", "heads, kv_heads and the widths of q, k, v do not fit"))
    return false;
  r.require(out.dims ==
                Dims{q.dims[0], q.dims[1], r.graph.pool().integer(*v_width / a.kv_heads * a.heads)},
            "F4", "the result is not [B, Sq, heads * dv]");
  const auto check = [&](std::string_view key, ExprRef e, Scalar type) {
    if (e &&
        r.require(e->type == type, "F5",
                  fmt::format("{} is not {}", key, type == Scalar::f32 ? "f32" : "a condition")))
      check_expr(r.graph, r.op, key, e, r.problems);
  };
  check("q_map", a.q_map, Scalar::f32);
  check("k_map", a.k_map, Scalar::f32);
  check("visible", a.visible, Scalar::boolean);
  check("decay", a.decay, Scalar::f32);
  check("beta", a.beta, Scalar::f32);
  check("epilogue", a.epilogue, Scalar::f32);
  r.require(!a.visible || !uses_index(a.visible, kOfHead), "F5", "visible depends on the head");
  r.require(!a.decay || (a.causal && a.packed.empty()), "F6",
            "a decay needs causal, and every token, so that it is not packed");
  r.require(!a.beta || (a.causal && a.packed.empty() && !a.visible && !normalises(a)), "F8",
            "a beta needs causal, every token, and an epilogue without z");
  r.require(!a.beta || !decays_apart(r.graph, a), "F8", "heads that share keys decay apart");
  return true;
}

// Sums of `count` sequences, or of slots.
bool check_sums(Rules r, size_t operand, ExprRef count, std::string_view rule) {
  const auto& a = r.op.as<LinearAttentionAttrs>();
  const auto number = [&](int64_t n) { return r.graph.pool().integer(n); };
  const int64_t d = *as_int(r.in(1).dims[2]) / a.kv_heads,
                dv = *as_int(r.in(2).dims[2]) / a.kv_heads;
  const Type wanted{DType::f32, {count, number(a.kv_heads), number(dv + normalises(a)), number(d)}};
  return r.require(
      r.in(operand) == wanted && r.out(1) == wanted, rule,
      fmt::format("the state is not f32 [{}, kv_heads, dv, d], with dv + 1 where the epilogue uses "
                  "z, or its result is of another type",
                  print(count)));
}

}  // namespace

/// `y[b, i, h*dv + m] = epilogue(s, z, b, h, i, m)` with `s = sum over j of w(i,j) v[b, j, g*dv +
/// m]`, `z = sum over j of w(i,j)`, `g = h / (heads / kv_heads)` and `w(i,j) = sum over e of q'[e]
/// k'[e]`, where `q' = q_map(q[b, i, h*d + e], b, h, i, e)` and `k' = k_map(k[b, j, g*d + e], b, g,
/// j, e)`. With `softmax` (q, k or both) the map is given the element of the softmax over e instead
/// of that of q or k. j runs over the visible tokens of `visible(b, g, j)`, with `causal` over those of `j <=
/// i`. With `decay` w has the factor `exp(sum of decay(b, h, t) for j < t <= i)`: what came before
/// token t is multiplied by `exp(decay(b, h, t))`. Without an expression q' is q, k' is k, all
/// tokens are visible, nothing decays and `y = s`. A token that is not visible is not read: its k
/// and v may be NaN. Without a visible token s and z are 0.
///
/// With `beta` it is the delta rule: what token j adds is `k' u^T` in place of `k' v^T`, where `u =
/// beta(b, g, j) (v - what k' reads of the sums before it)`. These have decayed to token j.
///
/// There is no softmax over tokens, so that `s` is `q'` times a sum over tokens of `k'
/// v^T`, `[d, dv]` a head: time and memory grow with the number of tokens, not with its square.
/// Kernels take the factor from the difference of two running sums, as graphs write it: a decay of
/// -inf gives NaN from its token on.
/// Operands `q [B,Sq,heads*d]`, `k [B,Sk,kv_heads*d]`, `v [B,Sk,kv_heads*dv]`, then what the
/// expressions load. Index variables 0 to 3 are b, h, t (a token) and c (a channel of a head).
///
/// With `packed = [B,S]` the rows are those that a `pack` of `[B,S]` left, and `cu`, `keys`,
/// `order` and `pos` follow v, as in an attention. Rows behind the live ones of a sequence see all
/// of these; so with `causal` a pack has none in front of a live one. b and t are still those of
/// the padded tensors.
///
/// With `state` it is `y, sums' = linear_attention(q, k, v, sums, loads..)`. `sums` are those before
/// the first token, as in a slot of linear_attention_step, and `sums'` those after the last.
///
/// - **F1** At least three operands, one result; with `state` four and two.
/// - **F2** q, k, v are of rank 3 and of one type: f32, f16 or bf16. The result is one of these
///   types, of rank 3.
/// - **F3** Batches agree, k and v have one length, and so has q if causal or packed.
/// - **F4** `kv_heads` divides `heads`; the widths of q, k, v are constants that fit them. The
///   result is `[B, Sq, heads*dv]`.
/// - **F5** `q_map`, `k_map`, `decay`, `beta` and `epilogue` are f32, and `visible` is a condition
///   that does not use h. The maps have the parameter `s`, the epilogue `s` and `z`.
/// - **F6** A decay is of a causal op that is not packed.
/// - **F7** Packed rows come with `cu` i32[B+1], `keys` and `order` i32[B] and `pos` i32[T], have
///   one batch, and no `visible`.
/// - **F8** A beta is of a causal op that is not packed, without `visible`, and whose epilogue does
///   not use z. A decay beside it is as in S5.
/// - **F9** So is a state, but for z. It is f32 `[B, kv_heads, dv, d]`, or `dv + 1` where the
///   epilogue uses z, and so is its result. A decay is as in S5.
void check_linear_attention(Rules r) {
  const auto& a = r.op.as<LinearAttentionAttrs>();
  if (!r.require(r.op.operands.size() >= 3u + a.state && r.op.results.size() == 1u + a.state, "F1",
                 "needs q, k, v and one result, with a state this too and two") ||
      !check_linear(r))
    return;
  r.require(a.packed.empty() || !a.visible, "F7", "packed rows are visible");
  if (!a.state) return;
  r.require(!decays_apart(r.graph, a), "F9", "heads that share keys decay apart");
  r.require(a.causal && a.packed.empty() && !a.visible, "F9",
            "a state needs causal, and every token, so that it is not packed");
  check_sums(r, 3, r.in(0).dims[0], "F9");
}

/// `y, state' = linear_attention_step(q, k, v, first, from, to, state, loads..)` computes a causal
/// linear_attention of new tokens, which goes on from the sums of earlier ones. Rows `first[n]` to
/// `first[n + 1] - 1` of `q`, `k` and `v` `[1,T,..]` are the new tokens of sequence n, in order.
/// Before them the sums of a head are those in slot `from[n]` of `state`, and 0 where `from[n]` is
/// no slot. Each token t multiplies them by `exp(decay(0, h, t))` and adds `k' v^T` and `k'`. `y`
/// of t is what `q'` sees of the sums with t. The sums after the last token go to slot `to[n]` of
/// `state'`, if that is a slot. Every other slot is as it was. In the expressions b is 0 and t is a
/// row, so what they load is by rows too.
///
/// `state f32 [C, kv_heads, dv, d]`, or `dv + 1` where the epilogue uses z: row m < dv of a head is
/// the sum of `k' v[m]`, row dv that of `k'`. As for kv_append, `state` and `state'` are one memory
/// on targets. Slots of `to` differ, and none is one of `from`, which may name one slot for several
/// sequences: a run that failed has changed no state that it began from.
///
/// - **S1** Seven operands at least, two results.
/// - **S2** It is `causal`, not `packed`, without `visible` and `state`, and has one batch.
/// - **S3** `first` i32[N+1], `from` and `to` i32[N].
/// - **S4** The state is of that type, and the second result too.
/// - **S5** A decay is the same for heads that share keys.
/// - **F2** to **F5** and **F8** as for linear_attention, and **V4**.
void check_linear_attention_step(Rules r) {
  const auto& a = r.op.as<LinearAttentionAttrs>();
  if (!r.require(r.op.operands.size() >= 7 && r.op.results.size() == 2, "S1",
                 "needs q, k, v, first, from, to, a state and two results") ||
      !check_linear(r))
    return;
  ExprPool& pool = r.graph.pool();
  const Type &first = r.in(3), &from = r.in(4), &to = r.in(5), &state = r.in(6);
  r.require(a.causal && a.packed.empty() && !a.visible && !a.state && is_int(r.in(0).dims[0], 1),
            "S2", "it is causal, every row is seen, and rows are [1, T, ..]");
  r.require(from.dtype == DType::i32 && from.rank() == 1 && to == from &&
                first == Type{DType::i32, {add(from.dims[0], pool.integer(1))}},
            "S3", "first, from and to are not i32[N + 1], i32[N] and i32[N]");
  ExprRef slots = state.rank() == 4 ? state.dims[0] : pool.integer(0);
  check_sums(r, 6, slots, "S4");
  r.require(!decays_apart(r.graph, a), "S5", "heads that share keys decay apart");
  check_states(r);
}

}  // namespace tfcc::ir

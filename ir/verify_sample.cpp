// SPDX-License-Identifier: Apache-2.0
// Rules of sample, labelled as in ir/ops.md.
#include "ir/verify_rules.h"

namespace tfcc::ir {

/// `tokens, log_probabilities = sample(logits, ids, wanted, positions, sampling, draw, seen)`
/// chooses the token that follows row *r* of `logits [1,R,V]`. That row belongs to token
/// `wanted[r]` of the run, `w` for short: its id is `ids[0,w]`, its position `positions[w]`.
///
/// A row's options are `sampling[r] = (temperature, top_p, min_p, penalty)` and `draw[r] = (top_k,
/// low and high half of the seed, whether the logarithm is wanted)`. Token *i* was seen if bit `i %
/// 32` of `seen[r, i / 32]` is set, where there is such a word, or if it is `ids[0,w]`. Whatever the
/// options are, they mean something: a temperature without a positive finite inverse in f32 is 0,
/// `top_p` and `min_p` are the nearest number of 0 to 1 (NaN: 1 and 0), a penalty that is not
/// positive and finite is 1. The order of choice:
///
/// 1. A logit `x` that is NaN counts as minus infinity. With a penalty other than 1 what was seen
///    is divided by it where positive, else multiplied (Keskar et al., 2019). So `x` becomes `y`.
/// 2. `best` is the lowest index of the largest `y`. If that is minus infinity, the token is -1. If
///    it is plus infinity, or the temperature is 0, the token is `best`.
/// 3. `p_i = exp((y_i - y_best) / temperature)`, in whole units of 2^-40: sums of these have one
///    value in any order. What has less than one is not chosen.
/// 4. Tokens stand by falling `p`, equal ones by index. Of these the first `top_k` are left (0:
///    all), then the fewest first ones that reach `top_p` times the sum of those left (Holtzman et
///    al., 2020), then those with `p >= min_p`.
/// 5. The token is the first, by index, with which the running sum of what is left is more than
///    `bits * sum / 2^32`, rounded down. `bits` are 32 of Philox4x32-10 (Salmon et al., 2011) with
///    the seed as key and the position of the new token, `positions[w] + 1`, as counter.
///
/// The logarithm is that of the token's share of `exp(x)`, before penalty and temperature. It is 0
/// where it is not wanted, NaN where the token is -1. A row outside of the tokens is taken as the
/// nearest; where there are no tokens it has no id, and position -1.
///
/// - **Q1** Seven operands, two results.
/// - **Q2** `logits` are reals [1, R, V], V less than 2^24, `ids` i64 or i32 [1, T], `wanted` i32[R], `positions`
///   i32[T].
/// - **Q3** `sampling` is f32[R,4], `draw` i32[R,4], `seen` i32[R,W].
/// - **Q4** `tokens` are [1, R] in the type of `ids`, `log_probabilities` f32[R].
void check_sample(Rules r) {
  if (!r.require(r.op.operands.size() == 7 && r.op.results.size() == 2, "Q1",
                 "needs seven operands and two results"))
    return;
  const Type &logits = r.in(0), &ids = r.in(1);
  const bool rows = is_float(logits.dtype) && logits.rank() == 3 && is_int(logits.dims[0], 1) &&
                    (ids.dtype == DType::i64 || ids.dtype == DType::i32) && ids.rank() == 2 &&
                    is_int(ids.dims[0], 1);
  if (!r.require(rows, "Q2", "logits are not reals [1, R, V], or ids not whole numbers [1, T]"))
    return;
  constexpr int64_t kLargestVocabulary = (1 << 24) - 1;  // sums of so many units have 64 bits
  r.require(as_int(logits.dims[2]).value_or(0) <= kLargestVocabulary, "Q2",
            "there are 2^24 logits or more");
  ExprRef count = logits.dims[1], tokens = ids.dims[1], four = r.graph.pool().integer(4);
  r.require(r.in(2) == Type{DType::i32, {count}} && r.in(3) == Type{DType::i32, {tokens}}, "Q2",
            "wanted are not i32[R], or positions not i32[T]");
  const Type& seen = r.in(6);
  r.require(r.in(4) == Type{DType::f32, {count, four}} &&
                r.in(5) == Type{DType::i32, {count, four}} && seen.dtype == DType::i32 &&
                seen.rank() == 2 && seen.dims[0] == count,
            "Q3", "sampling is not f32[R,4], draw not i32[R,4], or seen not i32[R,W]");
  r.require(r.out(0) == Type{ids.dtype, {r.graph.pool().integer(1), count}} &&
                r.out(1) == Type{DType::f32, {count}},
            "Q4", "tokens are not [1, R] in the type of ids, or log-probabilities not f32[R]");
}

}  // namespace tfcc::ir

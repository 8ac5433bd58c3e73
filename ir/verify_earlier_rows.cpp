// SPDX-License-Identifier: Apache-2.0
// Rules of earlier_rows, labelled as in ir/ops.md.
#include "ir/verify_rules.h"

namespace tfcc::ir {

/// `y, state' = earlier_rows(x, first, from, to, state)` gives each token the rows of those before
/// it. Rows `first[n]` to `first[n + 1] - 1` of `x [1,T,C]` are the new tokens of sequence n, in
/// order. `y[0,t,l,c]` is `x[0, t - 1 - l, c]` where that row is of the same sequence. Row i before
/// the first of them is row i of slot `from[n]` of `state`, counted from 0, and 0 where `from[n]`
/// is no slot. So a short causal convolution is a sum over l, whatever tokens come in one run.
///
/// `state [slots, 1, L, C]` holds the last L rows of a sequence, the last one first. Those after
/// the last new token go to slot `to[n]` of `state'`, if that is a slot. Every other slot is as it
/// was. As for linear_attention_step, `state` and `state'` are one memory on targets, slots of `to`
/// differ, and none is one of `from`.
///
/// - **R1** Five operands, two results.
/// - **R2** `x` is `[1,T,C]` in f32, f16 or bf16, and C a constant.
/// - **R3** `first` i32[N+1], `from` and `to` i32[N].
/// - **R4** The state is `[slots, 1, L, C]` in the type of x, L a constant from 1 on, and so is the
///   second result. The first is `[1, T, L, C]`.
/// - **V4** as for kv_append.
void check_earlier_rows(Rules r) {
  if (!r.require(r.op.operands.size() == 5 && r.op.results.size() == 2, "R1",
                 "needs x, first, from, to, a state and two results"))
    return;
  ExprPool& pool = r.graph.pool();
  const Type &x = r.in(0), &first = r.in(1), &from = r.in(2), &to = r.in(3), &state = r.in(4);
  if (!r.require(x.rank() == 3 && is_float(x.dtype) && x.dtype != DType::f64 &&
                     is_int(x.dims[0], 1) && as_int(x.dims[2]),
                 "R2", "x is not f32, f16 or bf16 [1, T, C]"))
    return;
  r.require(from.dtype == DType::i32 && from.rank() == 1 && to == from &&
                first == Type{DType::i32, {add(from.dims[0], pool.integer(1))}},
            "R3", "first, from and to are not i32[N + 1], i32[N] and i32[N]");
  const bool rows = state.rank() == 4 && state.dtype == x.dtype && is_int(state.dims[1], 1) &&
                    as_int(state.dims[2]).value_or(0) > 0 && state.dims[3] == x.dims[2];
  r.require(
      rows && r.out(1) == state &&
          r.out(0) == Type{x.dtype, {x.dims[0], x.dims[1], state.dims[2], x.dims[2]}},
      "R4",
      "the state or its result is not [slots, 1, L, C] in the type of x, or y not [1, T, L, C]");
  check_states(r);
}

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// kv_append: row t of k [rows, heads*d] and of v [rows, heads*dv] goes to slot slots[t] of a cache:
// row slot % page of page slot / page of keys [pages, heads, page, d] and of values, which has dv.
// A slot outside of the pages keeps nothing.
//
// Rows of k are k_stride elements apart, of v v_stride. A thread copies vec elements of k or of v;
// the pools may be larger than 32 bits count. No shared memory. Spec: T; heads, page, d, dv,
// k_stride, v_stride, vec (it divides d, dv and the strides).
// Grid: ceil(rows * units, threads) with units = heads * (d + dv) / vec. Bound: the bytes of k and
// v, twice.
#pragma once
#include "cuda/prelude.cuh"

template <class Spec>
TFCC_FN void kv_append(typename Spec::T* keys, typename Spec::T* values, const typename Spec::T* k,
                       const typename Spec::T* v, const i32* slots, idx pages, idx rows) {
  constexpr int vec = Spec::vec;
  static_assert(Spec::d % vec == 0 && Spec::dv % vec == 0 && Spec::k_stride % vec == 0 &&
                    Spec::v_stride % vec == 0,
                "vec divides d, dv and the strides");
  constexpr u32 of_keys = Spec::heads * Spec::d / vec,
                units = of_keys + Spec::heads * Spec::dv / vec;
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 t = at / units;
  if (t >= (u32)rows) return;
  const i64 slot = slots[t];
  if (slot < 0 || slot >= (i64)pages * Spec::page) return;
  const bool is_key = at % units < of_keys;
  const u32 unit = is_key ? at % units : at % units - of_keys;
  const u32 width = is_key ? Spec::d : Spec::dv, head = unit * vec / width, c = unit * vec % width;
  const i64 row = (slot / Spec::page * Spec::heads + head) * Spec::page + slot % Spec::page;
  const auto* from =
      is_key ? k + (i64)t * Spec::k_stride + unit * vec : v + (i64)t * Spec::v_stride + unit * vec;
  f32 x[vec];
  load_pack(from, x);
  store_pack((is_key ? keys : values) + row * width + c, x);
}

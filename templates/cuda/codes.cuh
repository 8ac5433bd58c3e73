// SPDX-License-Identifier: Apache-2.0
// Building block: values of 16 bits computed from codes of 8, 4 or 2 bits, which products read from
// shared memory.
#pragma once
#include "cuda/sm80.cuh"

/// The values of 16 bytes of codes, Spec::per_code of each, in their order: eight at a time to place(v),
/// where v is the number of the first, 16-byte aligned. Spec: T (f16, bf16), Code (u8, i8), per_code;
/// digits: values are (digit - zero(shared)) * scale(shared), exact in halves up to that product.
template <class Spec, class Weight, class Place>
TFCC_FN void store_values(const uint4& codes, const typename Weight::Shared& shared,
                          const Weight& weight, const Place& place) {
  using T = typename Spec::T;
  using Code = typename Spec::Code;
  constexpr int per = Spec::per_code;
  union {
    uint4 all;
    Code one[16];
  } of;
  of.all = codes;
  if constexpr (Spec::digits && kSame<T, f16>) {
    const f32 zero = 1024.0f + weight.zero(shared), scale = weight.scale(shared);
    const u32 zeros = pack2<T>(per == 1 ? -zero : zero, per == 1 ? -zero : zero),
              scales = pack2<T>(scale, scale);
#pragma unroll
    for (int v = 0; v < 16 * per; v += 8) {
      uint4 values;
      u32* const pair = &values.x;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const u32 word = (&of.all.x)[v / 4 % 4 + k / 2];  // of bytes
        pair[k] = per == 1 ? pair_of_bytes(word, word, select_two_bytes(k % 2 * 2), zeros, scales)
                           : pair_of_digits(of.one[(v / 2 + k) % 16], zeros, scales);
      }
      *(uint4*)place(v) = values;
    }
  } else {
#pragma unroll
    for (int v = 0; v < 16 * per; v += 8) {
      f32 values[8];
#pragma unroll
      for (int k = 0; k < 8; ++k)
        values[k] =
            weight.value(shared, v + k, (idx)of.one[(v + k) / per] + ((Code)-1 < 0 ? 128 : 0));
      store_pack<8, T>((T*)place(v), values);
    }
  }
}

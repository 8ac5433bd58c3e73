// SPDX-License-Identifier: Apache-2.0
// A vector of kLanes f32, and how kernels load one from stored f32, f16 or bf16, wherever they are.
#pragma once

#include "cpu/prelude.h"

typedef f32 Vector __attribute__((vector_size(kLanes * 4)));
/// The same where it is aligned as its elements are.
typedef f32 UnalignedVector __attribute__((vector_size(kLanes * 4), aligned(4)));

TFCC_FN Vector load_vector(const f32* from) { return *(const UnalignedVector*)from; }
TFCC_FN void store_vector(f32* to, Vector v) { *(UnalignedVector*)to = v; }

namespace vectors_detail {
typedef u32 Words __attribute__((vector_size(kLanes * 4)));
typedef u16 Halves __attribute__((vector_size(kLanes * 2), aligned(2)));
#if defined(__F16C__)
typedef _Float16 Reals __attribute__((vector_size(kLanes * 2), aligned(2)));
#endif
}  // namespace vectors_detail

TFCC_FN Vector load_vector(const bf16* from) {
  using namespace vectors_detail;
  return (Vector)(__builtin_convertvector(*(const Halves*)from, Words) << 16);
}
TFCC_FN Vector load_vector(const f16* from) {
  using namespace vectors_detail;
#if defined(__F16C__)
  return __builtin_convertvector(*(const Reals*)from, Vector);
#else  // as f16_to_f32
  const Words bits = __builtin_convertvector(*(const Halves*)from, Words);
  const Words magnitude = (Words)((Vector)((bits & 0x7fff) << 13) * 0x1p112f),
              special = (Words)((bits & 0x7c00) == 0x7c00) & 0x7f800000u;
  return (Vector)(magnitude | special | (bits & 0x8000) << 16);
#endif
}

// SPDX-License-Identifier: Apache-2.0
// Building block: what GPUs have from capability 8.0 on. Copies to shared memory that go on while a
// thread computes (cp.async), matrices of 8 x 8 elements of 16 bits that a warp loads together
// (ldmatrix), and their products (mma.sync).
#pragma once
// Inline PTX and tables of registers are laid out by hand.
// clang-format off
#include "cuda/prelude.cuh"

TFCC_FN u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

/// 16 bytes to shared memory, zeros if not `valid`; `from` is not read then.
TFCC_FN void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
/// The same of 4, 8 or 16 bytes.
template <int bytes> TFCC_FN void copy_async(void* to, const void* from, bool valid) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "bytes: 4, 8 or 16");
  if constexpr (bytes == 16) copy_async(to, from, valid);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(bytes), "r"(valid ? bytes : 0)
                 : "memory");
}
TFCC_FN void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left> TFCC_FN void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory"); }

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
TFCC_FN void load_matrices(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
TFCC_FN void load_matrices_transposed(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

/// Two digits of four bits of a byte, the lower first, as halves: (digit - zero) * scale, rounded
/// once. `zero_and_1024` and `scale` are pairs.
TFCC_FN u32 pair_of_digits(u32 byte, u32 zero_and_1024, u32 scale) {
  u32 pair;
  asm("{\n\t.reg .b32 t;\n\tmul.lo.u32 t, %1, 0x1001;\n\tlop3.b32 t, t, %4, %5, 0xea;\n\tsub.rn.f16x2 t, t, %2;\n\tmul.rn.f16x2 %0, t, %3;\n\t}" : "=r"(pair)
      : "r"(byte), "r"(zero_and_1024), "r"(scale), "r"(0x000f000f), "r"(0x64006400));  // 1024 + digit, whose last bits the digit is
  return pair;
}

/// The same of byte t of four, `selector` is select_byte(t): pairs `zeros` are -1024 - zero and -64 -
/// zero, the places that digits have in a byte beside 1024.
TFCC_FN u32 select_byte(int t) { return 0x4040u | (u32)t | (u32)t << 8; }
TFCC_FN u32 pair_of_digits(u32 bytes, u32 selector, u32 zeros, u32 scale) {
  u32 pair;
  asm("{\n\t.reg .b32 t;\n\tprmt.b32 t, %1, %5, %2;\n\tand.b32 t, t, %6;\n\tfma.rn.f16x2 t, t, %7, %3;\n\tmul.rn.f16x2 %0, t, %4;\n\t}" : "=r"(pair)
      : "r"(bytes), "r"(selector), "r"(zeros), "r"(scale), "r"(0x64646464), "r"(0xfff0ff0f), "r"(0x2c003c00));  // 1 and 1 / 16
  return pair;
}

/// The same of two bytes of eight, which are the digits; `zeros` are -1024 - zero.
TFCC_FN u32 select_two_bytes(int first) { return (u32)first | (u32)(first + 1) << 8; }
TFCC_FN u32 pair_of_bytes(u32 low, u32 high, u32 selector, u32 zeros, u32 scale) {
  u32 pair;
  asm("{\n\t.reg .b32 t;\n\tprmt.b32 t, %1, %2, %3;\n\tlop3.b32 t, t, %6, %7, 0xea;\n\tadd.rn.f16x2 t, t, %4;\n\tmul.rn.f16x2 %0, t, %5;\n\t}" : "=r"(pair)
      : "r"(low), "r"(high), "r"(selector), "r"(zeros), "r"(scale), "r"(0x00ff00ff), "r"(0x64006400));
  return pair;
}

/// The nearest number with 10 bits of fraction, of four that are f32.
TFCC_FN void round_to_tf32(u32 (&x)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[r]) : "f"(__uint_as_float(x[r])));
}

/// What is left of a number without its nearest with 10 bits of fraction, in `low`, and that one in
/// its place: together they have 22 bits or more.
/// Of an infinite one NaN is left.
TFCC_FN void split_to_tf32(u32 (&x)[4], u32 (&low)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const f32 whole = __uint_as_float(x[r]);
    x[r] = (x[r] + 0x1000u) & 0xffffe000u;
    low[r] = __float_as_uint(whole - __uint_as_float(x[r])) & 0xffffe000u;
  }
}

/// c += a b: a 16x16, b 16x8, c 16x8; of f32, which have to be TF32, a 16x8, b 8x8.
template <class T>
TFCC_FN void multiply_add(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kSame<T, f32>) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else if constexpr (kSame<T, f16>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

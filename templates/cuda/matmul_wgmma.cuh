// SPDX-License-Identifier: Apache-2.0
// matmul_wgmma: out[i, j] = epilogue(sum over p of a[i, p] b[p, j], i, j), sums in f32 with p in order: a row's bits depend neither
// on the other rows nor on the tile.
//
// a [rows, k], b [k, columns] or with trans_b [columns, k], out [rows, columns], all row-major of 16 bits; out may be f32.
// A block computes block_m x block_n of out. One warp asks TMA for tiles of 64 of p, `stages` ahead; the others are warpgroups of 64
// rows each, which multiply from shared memory (wgmma) and give a slot back when the next product has begun. What is asked for first
// are tiles of b, before the launches before this one have ended: it is a weight, which nobody writes.
// The epilogue works in registers; four lanes exchange 16-bit pairs so that each stores 16 bytes.
//
// Spec: T (f16, bf16), Out; block_m (64, 128), block_n (64, 128), stages; trans_b. columns and k are multiples of 8.
// Block: 2 block_m + 32 threads. Grid: (ceil(columns, block_n), ceil(rows, block_m)). Shared: MatmulWgmmaShape<Spec>::shared_bytes.
// Bound: at few rows the bytes of b, and how long they take to arrive; else 2 rows columns k FLOP at the rate of dense tensor cores.
// Measured on an H200 (docs/performance.md): in BERT-base at 128 tokens 6% of a run less than cuBLASLt and a GELU of its own; at 1024
// tokens and more slower than cuBLASLt, since a block neither overlaps its epilogue with the next tile nor asks for that early.
#pragma once
#include "cuda/sm90.cuh"

template <class Spec> struct MatmulWgmmaShape {
  static constexpr int block_k = 64;                       // a row of 128 bytes
  static constexpr int groups = Spec::block_m / 64, threads = groups * 128 + 32;
  static constexpr int a_bytes = Spec::block_m * block_k * 2, b_bytes = Spec::block_n * block_k * 2;
  static constexpr int shared_bytes = Spec::stages * (a_bytes + b_bytes) + 1024;  // the tiles are aligned within it
  static_assert(Spec::block_m == 64 || Spec::block_m == 128, "block_m: 64 or 128");
  static_assert(Spec::block_n == 64 || Spec::block_n == 128, "block_n: 64 or 128");
  static_assert(Spec::stages >= 2, "stages: at least 2");
};

#if __CUDA_ARCH__ >= 900

namespace matmul_wgmma_detail {

/// Lane q of each four gives p[i] to lane i, and gets from lane i its p[q].
TFCC_FN void exchange_in_fours(u32 (&p)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(kAllLanes, odd ? p[i] : p[i + 1], 1);
    (odd ? p[i] : p[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 got = __shfl_xor_sync(kAllLanes, high ? p[i] : p[i + 2], 2);
    (high ? p[i] : p[i + 2]) = got;
  }
}

/// Stores the sums of a warpgroup, whose first row and column these are. All of the epilogue comes before the first store, so that
/// what it loads is under way at once.
template <class Spec, class Epilogue>
TFCC_FN void store_sums(typename Spec::Out* out, f32 (&sums)[Spec::block_n / 2], idx first_row, idx first_column, idx rows, idx columns,
                        const Epilogue& epilogue) {
  using Out = typename Spec::Out;
  const idx lane = threadIdx.x % kWarp;
  const idx row = first_row + threadIdx.x / kWarp % 4 * 16 + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Spec::block_n / 2; ++i) {
    const idx r = row + i % 4 / 2 * 8, c = column + i / 4 * 8 + i % 2;
    if (r < rows && c < columns) sums[i] = epilogue(sums[i], r, c);
  }
#pragma unroll
  for (int j = 0; j < Spec::block_n / 8; j += 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const idx r = row + half * 8;
      if constexpr (sizeof(Out) == 2) {
        u32 p[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) p[q] = pack2<Out>(sums[(j + q) * 4 + half * 2], sums[(j + q) * 4 + half * 2 + 1]);
        exchange_in_fours(p);
        const idx c = first_column + (j + lane % 4) * 8;
        if (r < rows && c < columns) *(uint4*)(out + r * columns + c) = make_uint4(p[0], p[1], p[2], p[3]);
      } else {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const f32 v[2] = {sums[(j + q) * 4 + half * 2], sums[(j + q) * 4 + half * 2 + 1]};
          const idx c = column + (j + q) * 8;
          if (r < rows && c < columns) store_pack(out + r * columns + c, v);
        }
      }
    }
  }
}

}  // namespace matmul_wgmma_detail

/// rows() is read when the launches before this one have ended.
template <class Spec, class Rows, class Epilogue>
TFCC_FN void matmul_wgmma(typename Spec::Out* out, const TensorMap& a, const TensorMap& b, const Rows& rows, idx columns, idx k,
                          const Epilogue& epilogue) {
  using namespace sm90;
  using T = typename Spec::T;
  using S = MatmulWgmmaShape<Spec>;
  extern __shared__ unsigned char memory[];
  __shared__ u64 full[Spec::stages], empty[Spec::stages];
  unsigned char* const tiles = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const auto tile_a = [&](int slot) { return tiles + slot * (S::a_bytes + S::b_bytes); };
  const auto tile_b = [&](int slot) { return tile_a(slot) + S::a_bytes; };
  const idx first_row = blockIdx.y * Spec::block_m, first_column = blockIdx.x * Spec::block_n;
  const int steps = (int)((k + S::block_k - 1) / S::block_k);
  const int warp = (int)uniform(threadIdx.x / kWarp);
  if (threadIdx.x == 0) {
    for (int s = 0; s < Spec::stages; ++s) {
      init_barrier(&full[s], 1);
      init_barrier(&empty[s], S::groups * 4);
    }
    publish_barriers();
  }
  __syncthreads();

  if (warp == S::groups * 4) {
    if (threadIdx.x % kWarp != 0) return;
    prefetch_map(a);
    const auto ask_for_b = [&](int step, int slot) {
      if constexpr (Spec::trans_b) {
        copy_box(tile_b(slot), b, (i32)first_column, step * S::block_k, &full[slot]);
      } else {
#pragma unroll
        for (int c = 0; c < Spec::block_n; c += 64) copy_box(tile_b(slot) + c * 128, b, step * S::block_k, (i32)first_column + c, &full[slot]);
      }
    };
    const int ahead = steps < Spec::stages ? steps : Spec::stages;
    for (int s = 0; s < ahead; ++s) {
      announce(&full[s], S::b_bytes);
      ask_for_b(s, s);
    }
    wait_for_predecessor();
    if (first_row >= rows()) {  // shared memory must stay until what was asked for is there
      for (int s = 0; s < ahead; ++s) arrive(&full[s]);
      for (int s = 0; s < ahead; ++s) wait(&full[s], 0);
      return;
    }
    for (int step = 0; step < steps; ++step) {
      const int slot = step % Spec::stages;
      if (step < ahead) {
        arrive_and_announce(&full[slot], S::a_bytes);
      } else {
        wait(&empty[slot], step / Spec::stages - 1 & 1);
        arrive_and_announce(&full[slot], S::a_bytes + S::b_bytes);
        ask_for_b(step, slot);
      }
      copy_box(tile_a(slot), a, (i32)first_row, step * S::block_k, &full[slot]);
    }
    return;
  }

  wait_for_predecessor();
  const idx row_count = rows();
  if (first_row >= row_count) return;
  const int group = warp / 4;
  f32 sums[Spec::block_n / 2] = {};
  const u32 base_a = uniform(shared_address(tile_a(0)) + group * 64 * 128), base_b = uniform(shared_address(tile_b(0)));
  hold(sums);
  for (int step = 0; step < steps; ++step) {
    const int slot = step % Spec::stages;
    const u32 offset = slot * (S::a_bytes + S::b_bytes);
    wait(&full[slot], step / Spec::stages & 1);
    begin_products();
#pragma unroll
    for (int p = 0; p < S::block_k / 16; ++p) {
      const u64 left = rows_of_k(base_a + offset + p * 32);
      const u64 right = Spec::trans_b ? rows_of_k(base_b + offset + p * 32) : rows_of_n(base_b + offset + p * 2048, 64 * 128);
      multiply<T, Spec::block_n, !Spec::trans_b>(sums, left, right, step + p > 0);
    }
    end_products();
    if (step > 0) {
      wait_for_products<1>();
      if (threadIdx.x % kWarp == 0) arrive(&empty[(step - 1) % Spec::stages]);
    }
  }
  wait_for_products<0>();
  hold(sums);
  matmul_wgmma_detail::store_sums<Spec>(out, sums, first_row + group * 64, first_column, row_count, columns, epilogue);
}

#endif

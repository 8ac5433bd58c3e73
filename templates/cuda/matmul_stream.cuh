// SPDX-License-Identifier: Apache-2.0
// matmul_stream, a GEMM: out[i, j] = epilogue(sum over p of a[i, p] b[j, p], i, j) for at most 16 rows i,
// or gated out[i, j] = epilogue(s, t, i, j) with the sums of columns 16 (j / 8) + j % 8 and eight
// behind it, which a thread of a warpgroup has side by side; sums in f32 with p in order: the bits
// of a row are those of matmul_wgmma, and depend neither on the other rows nor on the tile.
//
// a [rows, k], b [columns, k], a weight, out [rows, columns], all row-major of 16 bits; out may be
// f32.
// The weight is what streams: rows of b are the m of the products (wgmma m64 n8 or n16 k16), rows
// of a their n. A tile is block_n rows of b, of which a product reads 64: what lies behind them in
// shared memory gives sums that nobody stores. One warp asks TMA for boxes of block_n x block_k,
// the first of them before the launches before this one have ended, and four warps multiply. The
// launch after this one may start as soon as all blocks of this one run: two rings fit a
// multiprocessor, so that weights arrive while the launch before ends.
//
// Spec: T (f16, bf16), Out; block_n, a multiple of 8 of 16 to 64; block_k, 128 or 256; stages; gated,
// with block_n a multiple of 16 and out [rows, columns / 2].
// columns is a multiple of 8, k one of 64. Boxes of b have block_n rows, those of a 8, both block_k
// columns (TensorMap in manifest.proto).
// Block: MatmulStreamShape<Spec>::threads, 160. Grid: as many as there are multiprocessors,
// at most one for each tile. Shared: MatmulStreamShape<Spec>::shared_bytes.
// Bound: the bytes of b; and k / 16 products that wait for each other, of 18 cycles at 8 rows and 20
// at 16.
#pragma once
#include "cuda/sm90.cuh"

template <class Spec> struct MatmulStreamShape {
  static constexpr int most_rows = 16, threads = 128 + 32, parts = Spec::block_k / 64;
  static constexpr int b_bytes = Spec::block_n * Spec::block_k * 2,
                       a_bytes = most_rows * Spec::block_k * 2;
  static constexpr int slot_bytes = b_bytes + a_bytes;
  static constexpr int read_behind = (64 - Spec::block_n) * 128 - a_bytes;  // of the last slot
  static constexpr int ring_bytes = Spec::stages * slot_bytes + (read_behind > 0 ? read_behind : 0),
                       barrier_bytes = 2 * Spec::stages * 8;
  // The tiles are aligned within it, the barriers stand before or behind them. A ring of 112 KiB is
  // more than half of a multiprocessor's memory with it, on purpose: with two blocks on each a step
  // of TinyLlama's shape takes 10% longer at 4 and 16 sequences.
  static constexpr int shared_bytes = ring_bytes + 2048;
  static_assert(barrier_bytes <= 512, "the barriers fit where the alignment leaves more");
  static_assert(Spec::block_n % 8 == 0 && Spec::block_n >= 16 && Spec::block_n <= 64,
                "block_n: a multiple of 8 of 16 to 64");
  static_assert(!Spec::gated || Spec::block_n % 16 == 0,
                "block_n: a multiple of 16 where columns are pairs of eights");
  static_assert(Spec::block_k % 64 == 0 && Spec::block_k <= 512, "block_k: a multiple of 64");
  static_assert(Spec::stages >= 2, "stages: at least 2");
};

#if __CUDA_ARCH__ >= 900

namespace matmul_stream_detail {

/// What a block knows of its launch, and its ring. `wide`: there are more than 8 rows.
template <class Spec> struct Stream {
  using Shape = MatmulStreamShape<Spec>;
  static constexpr int block_n = Spec::block_n, block_k = Spec::block_k, stages = Spec::stages;
  unsigned char* ring;
  u64 *full, *empty;
  idx rows, columns;
  int steps, tiles;
  bool wide;

  TFCC_FN unsigned char* tile_b(int slot) const { return ring + slot * Shape::slot_bytes; }
  TFCC_FN unsigned char* tile_a(int slot) const { return tile_b(slot) + Shape::b_bytes; }
  TFCC_FN void announce(int slot) const {
    sm90::arrive_and_announce_once(&full[slot],
                                   Shape::b_bytes + (wide ? Shape::a_bytes : Shape::a_bytes / 2));
  }
  TFCC_FN void ask_for_b(const TensorMap& b, int tile, int step, int slot) const {
    sm90::copy_deep_box_once(tile_b(slot), b, tile * block_n, step * Shape::parts, &full[slot]);
  }
  TFCC_FN void ask_for_a(const TensorMap& a, int step, int slot) const {
    sm90::copy_deep_box_once(tile_a(slot), a, 0, step * Shape::parts, &full[slot]);
    if (wide)
      sm90::copy_deep_box_once(tile_a(slot) + Shape::a_bytes / 2, a, 8, step * Shape::parts,
                               &full[slot]);
  }

  /// By one warp: asks for all tiles of this block, at first for parts of b alone.
  TFCC_FN void ask(const TensorMap& a, const TensorMap& b) const {
    int tile = blockIdx.x, step = steps < stages ? steps : stages;
    sm90::RingPlace<stages> at;
    for (int s = 0; s < step; ++s) {
      announce(s);
      ask_for_b(b, tile, s, s);
    }
    wait_for_predecessor();
    for (int s = 0; s < step; ++s) ask_for_a(a, s, s);
    if (step == stages) at.parity = 1;
    else at.slot = step;
    for (; tile < tiles; tile += gridDim.x, step = 0) {
      for (; step < steps; ++step) {
        sm90::wait(&empty[at.slot], at.parity ^ 1);
        announce(at.slot);
        ask_for_b(b, tile, step, at.slot);
        ask_for_a(a, step, at.slot);
        at.next();
      }
    }
  }

  /// By the warpgroup: stores what it has of a tile.
  template <int n, class Epilogue>
  TFCC_FN void finish(typename Spec::Out* out, const f32 (&sums)[n / 2], int tile,
                      const Epilogue& epilogue) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2,
                second = i / 2 % 2;  // the thread has two rows of b, eight apart
      if constexpr (Spec::gated) {
        const int own = warp * 8 + lane / 4;
        const idx width = columns / 2, column = (idx)tile * (block_n / 2) + own;
        if (!second && own < block_n / 2 && row < rows && column < width)
          store(out, row * width + column, epilogue(sums[i], sums[i + 2], (idx)row, column));
      } else {
        const int own = warp * 16 + lane / 4 + second * 8;
        const idx column = (idx)tile * block_n + own;
        if (own < block_n && row < rows && column < columns)
          store(out, row * columns + column, epilogue(sums[i], (idx)row, column));
      }
    }
  }

  /// By the warpgroup: products of n rows of a, 8 or 16.
  template <int n, class Epilogue>
  TFCC_FN void multiply(typename Spec::Out* out, const Epilogue& epilogue) const {
    using namespace sm90;
    const u64 left = rows_of_k(uniform(sm90::shared_address(tile_b(0))));
    const u64 right = rows_of_k(uniform(sm90::shared_address(tile_a(0))), Shape::a_bytes / 2);
    const int lane = threadIdx.x % kWarp;
    RingPlace<stages> at;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      f32 sums[n / 2] = {};
      hold(sums);
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        const u32 slot = at.slot * Shape::slot_bytes;
        wait(&full[at.slot], at.parity);
        begin_products();
#pragma unroll
        for (int p = 0; p < block_k / 16; ++p) {
          sm90::multiply<typename Spec::T, n, false>(
              sums, advance(advance(left, slot), p / 4 * block_n * 128 + p % 4 * 32),
              advance(advance(right, slot), p / 4 * 1024 + p % 4 * 32), step + p > 0);
        }
        end_products();
        if (step > 0) {
          wait_for_products<1>();
          if (lane == 0) arrive(&empty[before]);
        }
        before = at.slot;
        at.next();
      }
      wait_for_products<0>();
      if (lane == 0) arrive(&empty[before]);
      hold(sums);
      finish<n>(out, sums, tile, epilogue);
    }
  }
};

}  // namespace matmul_stream_detail

/// rows() is read before the launches before this one have ended, none of which makes it
/// (docs/kernel-abi.md).
template <class Spec, class Rows, class Epilogue>
TFCC_FN void matmul_stream(typename Spec::Out* out, const TensorMap& a, const TensorMap& b,
                           const Rows& rows, idx columns, idx k, const Epilogue& epilogue) {
  using Shape = MatmulStreamShape<Spec>;
  TFCC_DYNAMIC_SHARED(memory);
  const u32 before = (1024 - sm90::shared_address(memory) % 1024) % 1024;
  unsigned char* const ring = memory + before;
  u64* const full = (u64*)(before >= 512 ? memory : ring + Shape::ring_bytes);
  u64* const empty = full + Spec::stages;
  let_successor_start();
  if (threadIdx.x == 0) {
    sm90::prefetch_map(a);
    sm90::prefetch_map(b);
    for (int s = 0; s < Spec::stages; ++s) {
      sm90::init_barrier(&full[s], 1);
      sm90::init_barrier(&empty[s], 4);
    }
    sm90::publish_barriers();
  }
  __syncthreads();
  const idx now = rows();
  const matmul_stream_detail::Stream<Spec> stream{
      ring,
      full,
      empty,
      now,
      columns,
      (int)((k + Spec::block_k - 1) / Spec::block_k),
      (int)((columns + Spec::block_n - 1) / Spec::block_n),
      now > 8};
  const int warp = sm90::uniform(threadIdx.x / kWarp);
  if (warp == Shape::threads / kWarp - 1) {
    stream.ask(a, b);
    return;
  }
  wait_for_predecessor();
  if (now > 8) stream.template multiply<16>(out, epilogue);
  else stream.template multiply<8>(out, epilogue);
}

#endif

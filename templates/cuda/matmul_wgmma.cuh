// SPDX-License-Identifier: Apache-2.0
// matmul_wgmma: out[i, j] = epilogue(sum over p of a[i, p] b[p, j], i, j), sums in f32 with p in order: a row's bits depend neither
// on the other rows nor on the tile.
//
// a [rows, k], b [k, columns] or with trans_b [columns, k], out [rows, columns], all row-major of 16 bits; out may be f32.
// A block computes tiles of block_m x block_n of out, one after the other. One warp asks TMA for tiles of 64 of p, `stages` ahead, also
// while the end of a tile is computed; the others are warpgroups of 64 rows each, which multiply from shared memory (wgmma) and give a
// slot back when the next product has begun. What is asked for first are tiles of b, before the launches before this one have ended:
// it is a weight, which nobody writes. With wide_n the width of tiles follows from the rows that the run has: the one whose rounds over
// all blocks take the shorter time; then nothing is asked for early.
// The epilogue works in registers; four lanes exchange 16-bit pairs so that each stores 16 bytes.
//
// Spec: T (f16, bf16), Out; block_m (64, 128), block_n (64, 128, 192, 256), stages; wide_n (0: one width), wide_stages; trans_b.
// columns and k are multiples of 8. Boxes of a have block_m rows, those of b 64 rows and columns.
// Block: 2 block_m + 32 threads. Grid: as many as run at once, at most one for each tile. Shared: MatmulWgmmaShape<Spec>::shared_bytes.
// Bound: at few rows the bytes of b, and how long they take to arrive; else 2 rows columns k FLOP at the rate of dense tensor cores.
// Measured on an H200 (docs/performance.md): in BERT-base at 128 tokens 6% of a run less than cuBLASLt and a GELU of its own; at 4202
// tokens 0.92 to 1.0 of cuBLASLt's rate with the bias computed, and 41 us for `up` with its GELU, which takes cuBLASLt 34 without.
#pragma once
#include "cuda/sm90.cuh"

/// Tiles of block_m x block_n of the result, and a ring of so many of their parts of a and b.
template <int block_m, int block_n, int stages> struct WgmmaTiles {
  static constexpr int block_k = 64;                       // a row of 128 bytes
  static constexpr int a_bytes = block_m * block_k * 2, b_bytes = block_n * block_k * 2;
  static constexpr int ring_bytes = stages * (a_bytes + b_bytes);
  static_assert(block_m == 64 || block_m == 128, "block_m: 64 or 128");
  static_assert(block_n % 64 == 0 && block_n > 0 && block_n <= 256, "block_n: 64, 128, 192 or 256");
  static_assert(stages >= 2, "stages: at least 2");
};

template <class Spec> struct MatmulWgmmaShape {
  static constexpr int groups = Spec::block_m / 64, threads = groups * 128 + 32;
  static constexpr bool two_widths = Spec::wide_n > 0;
  using Tiles = WgmmaTiles<Spec::block_m, Spec::block_n, Spec::stages>;
  using WideTiles = WgmmaTiles<Spec::block_m, two_widths ? Spec::wide_n : Spec::block_n, two_widths ? Spec::wide_stages : Spec::stages>;
  static constexpr int ring_bytes = Tiles::ring_bytes > WideTiles::ring_bytes ? Tiles::ring_bytes : WideTiles::ring_bytes;
  static constexpr int shared_bytes = ring_bytes + 1024;   // the tiles are aligned within it
  static constexpr int stages = Spec::stages > Spec::wide_stages ? Spec::stages : Spec::wide_stages;
};

#if __CUDA_ARCH__ >= 900

namespace matmul_wgmma_detail {

/// Stores the sums of a warpgroup, whose first row and column these are; `whole` if all of them lie in the result. All of the
/// epilogue comes before the first store, so that what it loads is under way at once.
template <int block_n, bool whole, class Out, class Epilogue>
TFCC_FN void store_sums(Out* out, f32 (&sums)[block_n / 2], idx first_row, idx first_column, idx rows, idx columns,
                        const Epilogue& epilogue) {
  const idx lane = threadIdx.x % kWarp;
  const idx row = first_row + threadIdx.x / kWarp % 4 * 16 + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < block_n / 2; ++i) {
    const idx r = row + i % 4 / 2 * 8, c = column + i / 4 * 8 + i % 2;
    if (whole || (r < rows && c < columns)) sums[i] = epilogue(sums[i], r, c);
  }
#pragma unroll
  for (int j = 0; j < block_n / 8; j += 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const idx r = row + half * 8;
      if constexpr (sizeof(Out) == 2) {
        u32 p[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) p[q] = pack2<Out>(sums[(j + q) * 4 + half * 2], sums[(j + q) * 4 + half * 2 + 1]);
        sm90::exchange_in_fours(p);
        const idx c = first_column + (j + lane % 4) * 8;
        if (whole || (r < rows && c < columns)) *(uint4*)(out + r * columns + c) = make_uint4(p[0], p[1], p[2], p[3]);
      } else {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const f32 v[2] = {sums[(j + q) * 4 + half * 2], sums[(j + q) * 4 + half * 2 + 1]};
          const idx c = column + (j + q) * 8;
          if (whole || (r < rows && c < columns)) store_pack(out + r * columns + c, v);
        }
      }
    }
  }
}

/// What a block knows of its launch. Tiles are taken row by row, columns first, each block's gridDim.x after the one before.
struct Place {
  unsigned char* ring;
  u64 *full, *empty;
  idx rows, columns, k;
};

template <int block_m, int block_n, int stages, bool trans_b> struct Tiling : WgmmaTiles<block_m, block_n, stages> {
  using S = WgmmaTiles<block_m, block_n, stages>;
  Place at;
  idx across;
  int steps;
  TFCC_FN Tiling(const Place& place)
      : at(place), across((place.columns + block_n - 1) / block_n), steps((int)((place.k + S::block_k - 1) / S::block_k)) {}
  TFCC_FN idx count() const { return (at.rows + block_m - 1) / block_m * across; }
  TFCC_FN idx row(idx tile) const { return tile / across * block_m; }
  TFCC_FN idx column(idx tile) const { return tile % across * block_n; }
  TFCC_FN unsigned char* tile_a(int slot) const { return at.ring + slot * (S::a_bytes + S::b_bytes); }
  TFCC_FN unsigned char* tile_b(int slot) const { return tile_a(slot) + S::a_bytes; }

  TFCC_FN void ask_for_b(const TensorMap& b, idx first_column, int step, int slot) const {
    if constexpr (trans_b) {
      // Boxes have at most 64 rows where tiles of two widths read one map.
#pragma unroll
      for (int c = 0; c < block_n; c += 64) sm90::copy_box(tile_b(slot) + c * 128, b, (i32)first_column + c, step * S::block_k, &at.full[slot]);
    } else {
#pragma unroll
      for (int c = 0; c < block_n; c += 64) sm90::copy_box(tile_b(slot) + c * 128, b, step * S::block_k, (i32)first_column + c, &at.full[slot]);
    }
  }

  /// By one thread: asks for all tiles of this block, whose first `early` parts of b were asked for before.
  TFCC_FN void ask(const TensorMap& a, const TensorMap& b, int early) const {
    sm90::RingPlace<stages> ring;
    for (idx tile = blockIdx.x; tile < count(); tile += gridDim.x) {
      for (int step = 0; step < steps; ++step) {
        sm90::wait(&at.empty[ring.slot], ring.parity ^ 1);  // the first time nobody has to release it
        if (early > 0) {
          --early;
          sm90::arrive_and_announce(&at.full[ring.slot], S::a_bytes);
        } else {
          sm90::arrive_and_announce(&at.full[ring.slot], S::a_bytes + S::b_bytes);
          ask_for_b(b, column(tile), step, ring.slot);
        }
        sm90::copy_box(tile_a(ring.slot), a, (i32)row(tile), step * S::block_k, &at.full[ring.slot]);
        ring.next();
      }
    }
  }

  /// By warpgroup `group` of a block.
  template <class T, class Out, class Epilogue> TFCC_FN void multiply_tiles(Out* out, int group, const Epilogue& epilogue) const {
    using namespace sm90;
    const u64 left = rows_of_k(uniform(shared_address(tile_a(0)) + group * 64 * 128));
    const u32 first_b = uniform(shared_address(tile_b(0)));
    const u64 right = trans_b ? rows_of_k(first_b) : rows_of_n(first_b, 64 * 128);
    sm90::RingPlace<stages> ring;
    for (idx tile = blockIdx.x; tile < count(); tile += gridDim.x) {
      f32 sums[block_n / 2] = {};
      hold(sums);
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        const u32 slot = ring.slot * (S::a_bytes + S::b_bytes);
        wait(&at.full[ring.slot], ring.parity);
        begin_products();
#pragma unroll
        for (int p = 0; p < S::block_k / 16; ++p) {
          multiply<T, block_n, !trans_b>(sums, advance(advance(left, slot), p * 32), advance(advance(right, slot), trans_b ? p * 32 : p * 2048), step + p > 0);
        }
        end_products();
        if (step > 0) {
          wait_for_products<1>();
          if (threadIdx.x % kWarp == 0) arrive(&at.empty[before]);
        }
        before = ring.slot;
        ring.next();
      }
      wait_for_products<0>();
      if (threadIdx.x % kWarp == 0) arrive(&at.empty[before]);
      hold(sums);
      const idx r = row(tile) + group * 64, c = column(tile);
      if (r + 64 <= at.rows && c + block_n <= at.columns) store_sums<block_n, true>(out, sums, r, c, at.rows, at.columns, epilogue);
      else store_sums<block_n, false>(out, sums, r, c, at.rows, at.columns, epilogue);
    }
  }
};

}  // namespace matmul_wgmma_detail

/// rows() is read when the launches before this one have ended.
template <class Spec, class Rows, class Epilogue>
TFCC_FN void matmul_wgmma(typename Spec::Out* out, const TensorMap& a, const TensorMap& b, const Rows& rows, idx columns, idx k,
                          const Epilogue& epilogue) {
  using namespace matmul_wgmma_detail;
  using T = typename Spec::T;
  using S = MatmulWgmmaShape<Spec>;
  using Narrow = Tiling<Spec::block_m, Spec::block_n, Spec::stages, Spec::trans_b>;
  extern __shared__ unsigned char memory[];
  __shared__ u64 full[S::stages], empty[S::stages];
  unsigned char* const ring = memory + (1024 - sm90::shared_address(memory) % 1024) % 1024;
  const int warp = (int)sm90::uniform(threadIdx.x / kWarp);
  const bool asks = warp == S::groups * 4;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::stages; ++s) {
      sm90::init_barrier(&full[s], 1);
      sm90::init_barrier(&empty[s], S::groups * 4);
    }
    sm90::publish_barriers();
  }
  __syncthreads();
  if (asks && threadIdx.x % kWarp != 0) return;

  if constexpr (S::two_widths) {
    using Wide = Tiling<Spec::block_m, Spec::wide_n, Spec::wide_stages, Spec::trans_b>;
    wait_for_predecessor();
    const Place place = {ring, full, empty, rows(), columns, k};
    const Narrow narrow(place);
    const Wide wide(place);
    // A round of tiles takes as long as they are wide.
    const auto rounds = [](idx tiles) { return (tiles + (idx)gridDim.x - 1) / (idx)gridDim.x; };
    if (rounds(wide.count()) * Spec::wide_n <= rounds(narrow.count()) * Spec::block_n) {
      if (asks) wide.ask(a, b, 0);
      else wide.template multiply_tiles<T>(out, warp / 4, epilogue);
    } else {
      if (asks) narrow.ask(a, b, 0);
      else narrow.template multiply_tiles<T>(out, warp / 4, epilogue);
    }
  } else if (asks) {
    sm90::prefetch_map(a);
    const Narrow unknown({ring, full, empty, 0, columns, k});
    const int early = unknown.steps < Spec::stages ? unknown.steps : Spec::stages;
    for (int s = 0; s < early; ++s) {
      sm90::announce(&full[s], S::Tiles::b_bytes);
      unknown.ask_for_b(b, unknown.column(blockIdx.x), s, s);
    }
    wait_for_predecessor();
    const Narrow tiling({ring, full, empty, rows(), columns, k});
    if ((idx)blockIdx.x >= tiling.count()) {  // shared memory must stay until what was asked for is there
      for (int s = 0; s < early; ++s) sm90::arrive(&full[s]);
      for (int s = 0; s < early; ++s) sm90::wait(&full[s], 0);
      return;
    }
    tiling.ask(a, b, early);
  } else {
    wait_for_predecessor();
    Narrow({ring, full, empty, rows(), columns, k}).template multiply_tiles<T>(out, warp / 4, epilogue);
  }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// matmul_tf32, a GEMM: out[i, j] = epilogue(sum over p of a[i, p] b[j, p], i, j) of f32 on tensor cores
// with nearly the accuracy of f32, or gated out[i, j] = epilogue(s, t, i, j) with the sums of
// columns 16 (j / 8) + j % 8 and eight behind it.
//
// An operand is the sum of two numbers of TF32, high with the nearest 10 bits of fraction and low
// with what is left; a product is a_low b_high + a_high b_low + a_high b_high. What is left out,
// a_low b_low, is at most 2^-22 of it. Tensor cores cut their sums off rather than round them, so
// only 32 p at a time are summed there, and those sums are added by f32 in order (Ootomo and
// Yokota, Recovering single precision accuracy from Tensor Cores, 2022). A row's bits depend
// neither on the other rows nor on the tile.
//
// a [rows, k], b [columns, k], out [rows, columns] or, gated, [rows, columns / 2], all row-major of
// f32. A block computes tiles of out one after the other. A warp asks TMA for their parts of 32 p,
// several ahead. A warpgroup splits those of b in shared memory; two others split those of a in
// registers, and multiply (wgmma). If `early`, parts of b are asked for before the launches before
// this one have ended: it is a weight.
//
// Spec: Tiles, a Tf32Tiles<Tf32Tile<block_m, block_n>, ..>: block_m 64 or 128, block_n 64 or 128;
// gated; early.
// columns is a multiple of 8, k of 4; boxes of both maps have 64 rows and 32 columns.
// Block: Tf32Shape::threads. Grid: as many as run at once, at most one for each tile. Shared:
// Tf32Shape::shared_bytes.
// Bound: three times 2 rows columns k FLOP at the rate of dense tensor cores in TF32, 494 TFLOP/s
// on an H100.
#pragma once
#include "cuda/sm80.cuh"
#include "cuda/sm90.cuh"

struct Tf32Shape {
  static constexpr int threads = 512, ring_bytes = 192 << 10,
                       shared_bytes = ring_bytes + 1024;  // the ring is aligned within it
};

/// Tiles of block_m x block_n of the result. Two warpgroups have 64 rows each or, of 64 rows, half
/// of the columns.
template <int block_m_, int block_n_> struct Tf32Tile {
  static constexpr int block_m = block_m_, block_n = block_n_, across = 128 / block_m,
                       own_n = block_n / across;
  static constexpr int a_bytes = block_m * 128, b_bytes = block_n * 128,
                       slot_bytes = a_bytes + 2 * b_bytes;  // b: high, or as it is, and low
  static constexpr int stages = Tf32Shape::ring_bytes / slot_bytes;
  static_assert(block_m == 64 || block_m == 128, "block_m: 64 or 128");
  static_assert(block_n == 64 || block_n == 128, "block_n: 64 or 128");
};

/// What a launch may choose from.
template <class... Ts> struct Tf32Tiles {
  static constexpr int larger(int a, int b) { return a > b ? a : b; }
  template <class First, class... Rest> static constexpr int most_stages() {
    if constexpr (sizeof...(Rest) == 0) return First::stages;
    else return larger(First::stages, most_stages<Rest...>());
  }
  static constexpr int stages = most_stages<Ts...>();
};

#if __CUDA_ARCH__ >= 900

namespace matmul_tf32_detail {

inline constexpr int kSlot = 32;  // of p

/// What a block knows of its launch.
struct Place {
  unsigned char* ring;
  u64 *full, *split, *empty;  // parts are there, those of b are split, all has been multiplied
  idx rows, columns, k;
};

/// Tiles are taken row by row, columns first, each block's gridDim.x after the one before.
template <class Spec, class Tile> struct Run : Tile {
  static constexpr int block_m = Tile::block_m, block_n = Tile::block_n, own_n = Tile::own_n,
                       stages = Tile::stages;
  static constexpr int a_bytes = Tile::a_bytes, b_bytes = Tile::b_bytes;
  Place at;
  idx beside, count;  // tiles that lie side by side, and all
  int steps;
  TFCC_FN Run(const Place& place)
      : at(place),
        beside(ceil_div(place.columns, block_n)),
        count(beside * ceil_div(place.rows, block_m)),
        steps((int)ceil_div(place.k, kSlot)) {}
  TFCC_FN idx row(idx tile) const { return tile / beside * block_m; }
  TFCC_FN idx column(idx tile) const { return tile % beside * block_n; }
  TFCC_FN unsigned char* tile_a(int slot) const { return at.ring + slot * Tile::slot_bytes; }
  TFCC_FN unsigned char* tile_b(int slot) const { return tile_a(slot) + a_bytes; }

  TFCC_FN void ask_for(unsigned char* to, int rows, const TensorMap& map, idx first, int step,
                       int slot) const {
#pragma unroll
    for (int r = 0; r < rows; r += 64)
      sm90::copy_box_once(to + r * 128, map, (i32)first + r, step * kSlot, &at.full[slot]);
  }
  /// By one warp.
  TFCC_FN void ask(const TensorMap& a, const TensorMap& b) const {
    sm90::RingPlace<stages> ring;
    int asked = 0;
    if constexpr (Spec::early) {
      if ((idx)blockIdx.x < count) asked = steps < stages ? steps : stages;
      for (int s = 0; s < asked; ++s) {
        sm90::arrive_and_announce_once(&at.full[s], a_bytes + b_bytes);
        ask_for(tile_b(s), block_n, b, column(blockIdx.x), s, s);
      }
      wait_for_predecessor();
    }
    for (idx tile = blockIdx.x; tile < count; tile += gridDim.x) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        if (step >= asked) {
          sm90::wait(&at.empty[ring.slot],
                     ring.parity ^ 1);  // the first time nobody has to release it
          sm90::arrive_and_announce_once(&at.full[ring.slot], a_bytes + b_bytes);
          ask_for(tile_b(ring.slot), block_n, b, column(tile), step, ring.slot);
        }
        ask_for(tile_a(ring.slot), block_m, a, row(tile), step, ring.slot);
        ring.next();
      }
      asked = 0;
    }
  }

  /// By thread `thread` of a warpgroup.
  TFCC_FN void split(int thread) const {
    if constexpr (Spec::early) wait_for_predecessor();
    sm90::RingPlace<stages> ring;
    for (idx tile = blockIdx.x; tile < count; tile += gridDim.x) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step, ring.next()) {
        sm90::wait(&at.full[ring.slot], ring.parity);
        unsigned char* const b = tile_b(ring.slot) + thread * 16;
#pragma unroll 4
        for (int c = 0; c < b_bytes; c += 128 * 16) {
          const uint4 v = *(const uint4*)(b + c);
          u32 high[4] = {v.x, v.y, v.z, v.w}, low[4];
          split_to_tf32(high, low);
          *(uint4*)(b + c) = make_uint4(high[0], high[1], high[2], high[3]);
          *(uint4*)(b + b_bytes + c) = make_uint4(low[0], low[1], low[2], low[3]);
        }
        sm90::publish_writes();
        sm90::arrive(&at.split[ring.slot]);
      }
    }
  }

  /// The sums of 32 columns from `column` on, and rows `row` and eight behind it, as wgmma leaves
  /// them.
  template <class Epilogue>
  TFCC_FN void finish(f32* out, const f32 (&v)[16], idx row, idx column,
                      const Epilogue& epilogue) const {
    const idx width = Spec::gated ? at.columns / 2 : at.columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const idx r = row + half * 8;
      if (r >= at.rows) continue;
#pragma unroll
      for (int q = 0; q < 4; q += Spec::gated ? 2 : 1) {
        const idx c = (Spec::gated ? (column + q * 8) / 2 : column + q * 8) + threadIdx.x % 4 * 2;
        if (c >= width) continue;
        f32 two[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if constexpr (Spec::gated)
            two[e] = epilogue(v[q * 4 + half * 2 + e], v[q * 4 + 4 + half * 2 + e], r, c + e);
          else two[e] = epilogue(v[q * 4 + half * 2 + e], r, c + e);
        }
        store_pack(out + r * width + c, two);
      }
    }
  }

  /// Adds the products of one step. `left`: this lane's row of a, whose chunks of 16 bytes TMA has
  /// permuted by the last bits of it, `line`.
  TFCC_FN void multiply_step(f32 (&sums)[own_n / 2], const unsigned char* left, int line, u64 right,
                             u64* split, u32 parity) const {
    using namespace sm90;
    u32 high[4][4], low[4][4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      load_matrices(high[q], left + (((q * 2 + (int)threadIdx.x % kWarp / 16) ^ line & 7) * 16));
      split_to_tf32(high[q], low[q]);
    }
    f32 part[own_n / 2];
    sm90::wait(split, parity);
    begin_products();
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      multiply_tf32<own_n>(part, low[q], advance(right, q * 32), q > 0);
      multiply_tf32<own_n>(part, high[q], advance(right, q * 32 + b_bytes), true);
      multiply_tf32<own_n>(part, high[q], advance(right, q * 32), true);
    }
    end_products();
    wait_for_products<0>();
    hold(part);
#pragma unroll
    for (int q = 0; q < 4; ++q) hold(high[q]), hold(low[q]);
#pragma unroll
    for (int i = 0; i < own_n / 2; ++i) sums[i] += part[i];
  }

  /// By warpgroup `group`.
  template <class Epilogue>
  TFCC_FN void multiply(f32* out, int group, const Epilogue& epilogue) const {
    if constexpr (Spec::early) wait_for_predecessor();
    const int lane = threadIdx.x % kWarp,
              own_row = (block_m == 128 ? group * 64 : 0) + threadIdx.x / kWarp % 4 * 16,
              own_column = block_m == 128 ? 0 : group * own_n;
    const int line = own_row + lane % 16;
    const u64 right =
        sm90::rows_of_k(sm90::uniform(sm90::shared_address(tile_b(0)) + own_column * 128));
    sm90::RingPlace<stages> ring;
    for (idx tile = blockIdx.x; tile < count; tile += gridDim.x) {
      f32 sums[own_n / 2] = {};
#pragma unroll 1
      for (int step = 0; step < steps; ++step, ring.next()) {
        sm90::wait(&at.full[ring.slot], ring.parity);
        multiply_step(sums, tile_a(ring.slot) + line * 128, line,
                      sm90::advance(right, ring.slot * Tile::slot_bytes), &at.split[ring.slot],
                      ring.parity);
        if (lane == 0) sm90::arrive(&at.empty[ring.slot]);
      }
#pragma unroll 1
      for (int c = 0; c < own_n; c += 32) {
        f32 v[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) v[i] = sums[i];
        finish(out, v, row(tile) + own_row + lane / 4, column(tile) + own_column + c, epilogue);
#pragma unroll
        for (int i = 16; i < own_n / 2; ++i) sums[i - 16] = sums[i];
      }
    }
  }
};

/// Rounds of tiles over the blocks, each as long as a product of wgmma takes with a in registers,
/// in half cycles: its columns and 26, at least 66 (measured on an H100 at k = 3072,
/// docs/performance.md).
template <class Tile> TFCC_FN idx cost(idx rows, idx columns) {
  constexpr idx product = (Tile::own_n > 40 ? Tile::own_n : 40) + 26;
  return ceil_div(ceil_div(rows, Tile::block_m) * ceil_div(columns, Tile::block_n),
                  (idx)gridDim.x) *
         product;
}

/// f(its Run) of the tile that costs least.
template <class Spec, class F, class First, class... Rest>
TFCC_FN void with_cheapest(Tf32Tiles<First, Rest...>, const Place& at, const F& f) {
  if constexpr (sizeof...(Rest) > 0) {
    const idx own = cost<First>(at.rows, at.columns);
    if (((cost<Rest>(at.rows, at.columns) < own) || ...))
      return with_cheapest<Spec>(Tf32Tiles<Rest...>{}, at, f);
  }
  f(Run<Spec, First>(at));
}

}  // namespace matmul_tf32_detail

/// rows() is read when the launches before this one have ended; if Spec::early before that, for
/// none of them makes it.
template <class Spec, class Rows, class Epilogue>
TFCC_FN void matmul_tf32(f32* out, const TensorMap& a, const TensorMap& b, const Rows& rows,
                         idx columns, idx k, const Epilogue& epilogue) {
  using namespace matmul_tf32_detail;
  constexpr int stages = Spec::Tiles::stages;
  TFCC_DYNAMIC_SHARED(memory);
  __shared__ u64 full[stages], split[stages], empty[stages];
  if (threadIdx.x == 0) {
    sm90::prefetch_map(a);
    sm90::prefetch_map(b);
    for (int s = 0; s < stages; ++s) {
      sm90::init_barrier(&full[s], 1);
      sm90::init_barrier(&split[s], 128);
      sm90::init_barrier(&empty[s], 8);
    }
    sm90::publish_barriers();
  }
  __syncthreads();
  if constexpr (!Spec::early) wait_for_predecessor();
  const Place at{memory + (1024 - sm90::shared_address(memory) % 1024) % 1024,
                 full,
                 split,
                 empty,
                 rows(),
                 columns,
                 k};
  const int group = (int)sm90::uniform(threadIdx.x / 128);
  if (group < 2) {
    sm90::take_registers<200>();
    with_cheapest<Spec>(typename Spec::Tiles{}, at,
                        [&](const auto& run) { run.multiply(out, group, epilogue); });
  } else if (group == 2) {
    sm90::give_registers<72>();
    with_cheapest<Spec>(typename Spec::Tiles{}, at,
                        [&](const auto& run) { run.split((int)threadIdx.x % 128); });
  } else {
    sm90::give_registers<40>();
    if (sm90::uniform(threadIdx.x / kWarp) == 12)
      with_cheapest<Spec>(typename Spec::Tiles{}, at, [&](const auto& run) { run.ask(a, b); });
  }
}

#endif

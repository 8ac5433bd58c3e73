// SPDX-License-Identifier: Apache-2.0
// matmul_stream, a GEMM: out[i, j] = epilogue(sum over p of a[i, p] b[j, p], i, j) for at most 16 rows i,
// or gated out[i, j] = epilogue(s, t, i, j) with the sums of columns 16 (j / 8) + j % 8 and eight
// behind it, which a thread of a warpgroup has side by side; sums in f32 with p in order: the bits
// of a row are those of matmul_wgmma, and depend neither on the other rows nor on the tile.
//
// a [rows, k], b [columns, k], a weight, stored or computed from codes of 8, 4 or 2 bits, out
// [rows, columns], all row-major of 16 bits; out may be f32.
// The weight is what streams: rows of b are the m of the products (wgmma m64 n8 or n16 k16), rows
// of a their n. A tile is block_n rows of b, of which a product reads 64: what lies behind them in
// shared memory gives sums that nobody stores. One warp asks TMA for boxes of block_n x block_k,
// the first of them before the launches before this one have ended, and four warps multiply. The
// launch after this one may start as soon as all blocks of this one run: two rings fit a
// multiprocessor, so that weights arrive while the launch before ends.
//
// Codes are bytes [columns, k / per_code]. What streams is a line of 128 of them for each row of a
// tile. Up to three warps, in turns, load what chunks of 16 codes share, for all of a line at once,
// so that they wait for memory and nobody else does. Eight warps, in turns of four, turn codes into
// values: units of at most 64 x 64 or 16 x 256, stored as T in a ring of four, from where they are
// multiplied.
//
// Spec: T (f16, bf16), Out; block_n, a multiple of 8 of 16 to 64; block_k, 128 or 256, of codes a
// line; stages; per_code, 0 if b is stored, else also Code (u8, i8); gated, with block_n a multiple
// of 16 and out [rows, columns / 2];
// shared_size, the bytes of Weight::Shared, and digits: values are (digit - zero(shared)) *
// scale(shared), exact in halves up to that product.
// columns is a multiple of 8, k one of 64. Boxes of b have block_n rows, those of a 8, both block_k
// columns, of codes 128 (TensorMap in manifest.proto).
// Block: MatmulStreamShape<Spec>::threads, 160 or 512. Grid: as many as there are multiprocessors,
// at most one for each tile. Shared: MatmulStreamShape<Spec>::shared_bytes.
// Bound: the bytes of b; of codes the instructions that turn them into values, some six for each,
// of digits half of that, which two groups of warps take turns at; and k / 16 products that wait
// for each other, of 18 cycles at 8 rows and 20 at 16.
#pragma once
#include "cuda/codes.cuh"
#include "cuda/sm90.cuh"

template <class Spec> struct MatmulStreamShape {
  static constexpr bool packed = Spec::per_code > 0;
  static constexpr int groups = packed ? 2 : 0,
                       units =
                           packed ? 4
                                  : 0;  // of four warps that compute, and what these have under way
  // Warps that load what chunks share: no more than there are slots, for each waits for the phase
  // after that of its turn before.
  static constexpr int loaders = Spec::stages < 3 ? Spec::stages : 3;
  static constexpr int most_rows = 16, threads = packed ? 128 * (groups + 2) : 128 + 32,
                       parts = Spec::block_k / 64;
  static constexpr int b_bytes = Spec::block_n * (packed ? 128 : Spec::block_k * 2),
                       a_bytes = most_rows * Spec::block_k * 2;
  static constexpr int slot_bytes = b_bytes + a_bytes;
  static constexpr int share_bytes =
      packed ? Spec::block_n * 9 * Spec::shared_size
             : 0;  // of a slot: what its chunks share, and a gap behind each eight
  static constexpr int most_values = Spec::block_n <= 16 ? 256 : Spec::block_n <= 32 ? 128 : 64;
  static constexpr int unit =
      packed && Spec::block_k > most_values ? most_values : Spec::block_k;  // values of a row
  static constexpr bool stages_are_in_turn = Spec::stages % 2 == 0 || Spec::stages >= 5;
  static constexpr int unit_bytes = packed ? Spec::block_n * unit * 2 : 0;
  static constexpr int read_behind =
      (64 - Spec::block_n) * 128 - (packed ? 0 : a_bytes);  // of the last slot, or the last unit
  static constexpr int ring_bytes = Spec::stages * (slot_bytes + share_bytes) + units * unit_bytes +
                                    (read_behind > 0 ? read_behind : 0),
                       barrier_bytes = 2 * (Spec::stages + units) * 8;
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
  // A group that takes every second step waits for the phase after that of its turn before only if
  // it has the same slots.
  static_assert(!packed || unit < Spec::block_k || stages_are_in_turn,
                "stages: an even number, or at least 5, where a unit is a line");
  static_assert(!packed || Spec::block_k == 128 * Spec::per_code, "block_k: the values of a line");
};

/// In the place of a Weight where b is stored.
struct StoredWeight {};

#if __CUDA_ARCH__ >= 900

namespace matmul_stream_detail {

/// What a block knows of its launch, and its ring. `wide`: there are more than 8 rows.
template <class Spec> struct Stream {
  using Shape = MatmulStreamShape<Spec>;
  static constexpr int block_n = Spec::block_n, block_k = Spec::block_k, stages = Spec::stages;
  unsigned char* ring;
  u64 *full, *empty;
  idx rows, columns;
  int steps, tiles, chunks;  // of 16 codes in a row
  bool wide;

  TFCC_FN unsigned char* units() const { return ring + stages * Shape::slot_bytes; }
  /// Of a slot: [row][chunk of the line, and a gap, so that rows lie in different banks], behind
  /// the units and what is read behind them.
  TFCC_FN unsigned char* shared_of(int slot) const {
    return ring + Shape::ring_bytes - (stages - slot) * Shape::share_bytes;
  }
  TFCC_FN u64* unit_full() const { return empty + stages; }
  TFCC_FN u64* unit_empty() const { return unit_full() + Shape::units; }
  TFCC_FN unsigned char* tile_b(int slot) const { return ring + slot * Shape::slot_bytes; }
  TFCC_FN unsigned char* tile_a(int slot) const { return tile_b(slot) + Shape::b_bytes; }
  TFCC_FN void announce(int slot) const {
    sm90::arrive_and_announce_once(&full[slot],
                                   Shape::b_bytes + (wide ? Shape::a_bytes : Shape::a_bytes / 2));
  }
  TFCC_FN void ask_for_b(const TensorMap& b, int tile, int step, int slot) const {
    if constexpr (Shape::packed)
      sm90::copy_box_once(tile_b(slot), b, tile * block_n, step * 128, &full[slot]);
    else
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

  static constexpr int chunk = 16 * (Spec::per_code > 0 ? Spec::per_code : 1),
                       across = Shape::unit / chunk, pieces = block_n * across;

  /// Where one is in the steps of this block's tiles, and in the ring.
  struct Walk {
    sm90::RingPlace<stages> at;
    int tile = blockIdx.x, step = 0;
    TFCC_FN void next(int steps) {
      at.next();
      if (++step < steps) return;
      step = 0;
      tile += gridDim.x;
    }
  };

  /// By one of the loading warps: what chunks share, of every Shape::loaders-th step from `first`
  /// on.
  template <class Weight> TFCC_FN void load_shared(int first, const Weight& weight) const {
    static_assert(sizeof(typename Weight::Shared) == Spec::shared_size,
                  "shared_size: as Weight has it");
    const int lane = threadIdx.x % kWarp;
    Walk now;
    for (int s = 0; s < first; ++s) now.next(steps);
    while (now.tile < tiles) {
      typename Weight::Shared part[block_n * 8 / kWarp];
      // What lies outside of the matrix is multiplied by zeros of a, or not stored.
#pragma unroll
      for (int i = 0; i < block_n * 8 / kWarp; ++i) {
        const int id = i * kWarp + lane;
        part[i] = weight.shared(imin((idx)now.tile * block_n + id / 8, columns - 1),
                                imin((idx)now.step * 8 + id % 8, (idx)chunks - 1));
      }
      sm90::wait(&empty[now.at.slot], now.at.parity ^ 1);
      auto* const to = (typename Weight::Shared*)shared_of(now.at.slot);
#pragma unroll
      for (int i = 0; i < block_n * 8 / kWarp; ++i)
        to[(i * kWarp + lane) / 8 * 9 + lane % 8] = part[i];
      __syncwarp();
      if (lane == 0) sm90::arrive(&full[now.at.slot]);
      for (int s = 0; s < Shape::loaders; ++s) now.next(steps);
    }
  }

  /// By a group of four warps: the values of every Shape::groups-th unit, from `part` on.
  template <class Weight> TFCC_FN void compute(int part, const Weight& weight) const {
    constexpr int of_step = block_k / Shape::unit;
    const int id = threadIdx.x % 128, lane = threadIdx.x % kWarp;
    Walk now;
    sm90::RingPlace<Shape::units> unit;
    for (int u = 0; u < part; ++u) unit.next();
    for (; part >= of_step; part -= of_step) now.next(steps);
    while (now.tile < tiles) {
      sm90::wait(&full[now.at.slot], now.at.parity);
      sm90::wait(&unit_empty()[unit.slot], unit.parity ^ 1);
#pragma unroll
      for (int first = 0; first < pieces; first += 128) {
        const int piece = first + id, row = piece % block_n, of_unit = piece / block_n,
                  of_line = part * across + of_unit;
        if (piece >= pieces) break;
        const auto shared =
            ((const typename Weight::Shared*)shared_of(now.at.slot))[row * 9 + of_line];
        compute_piece(tile_b(now.at.slot) + row * 128 + ((of_line ^ row % 8) << 4),
                      units() + unit.slot * Shape::unit_bytes + row * 128, of_unit * chunk, row % 8,
                      shared, weight);
      }
      sm90::publish_writes();
      __syncwarp();
      if (lane == 0) {
        sm90::arrive(
            &empty[now.at.slot]);  // before its products can be, so that slots come free in order
        sm90::arrive(&unit_full()[unit.slot]);
      }
      for (part += Shape::groups; part >= of_step; part -= of_step) now.next(steps);
      for (int u = 0; u < Shape::groups; ++u) unit.next();
    }
  }

  /// The values of 16 codes, `at` and on of a row of a unit, as products read it.
  template <class Weight>
  TFCC_FN void compute_piece(const unsigned char* from, unsigned char* row, int at, int swizzle,
                             const typename Weight::Shared& shared, const Weight& weight) const {
    store_values<Spec>(sm90::load_16_bytes(from), shared, weight, [&](int v) {
      const int to = at + v;
      return row + to / 64 * block_n * 128 + ((to % 64 / 8 ^ swizzle) << 4);
    });
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
    constexpr int of_step = block_k / Shape::unit;
    const u64 left = rows_of_k(uniform(sm90::shared_address(Shape::packed ? units() : tile_b(0))));
    const u64 right = rows_of_k(uniform(sm90::shared_address(tile_a(0))), Shape::a_bytes / 2);
    const int lane = threadIdx.x % kWarp;
    RingPlace<stages> at;
    RingPlace<Shape::packed ? Shape::units : 1> unit;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      f32 sums[n / 2] = {};
      hold(sums);
      int before = 0, unit_before = -1;
      for (int step = 0; step < steps; ++step) {
        const u32 slot = at.slot * Shape::slot_bytes;
        wait(&full[at.slot], at.parity);
        for (int part = 0; part < of_step; ++part) {
          if constexpr (Shape::packed) wait(&unit_full()[unit.slot], unit.parity);
          const u32 from = Shape::packed ? unit.slot * Shape::unit_bytes : slot;
          begin_products();
#pragma unroll
          for (int p = 0; p < Shape::unit / 16; ++p) {
            sm90::multiply<typename Spec::T, n, false>(
                sums, advance(advance(left, from), p / 4 * block_n * 128 + p % 4 * 32),
                advance(advance(right, slot),
                        (part * Shape::unit / 64 + p / 4) * 1024 + p % 4 * 32),
                step + part + p > 0);
          }
          end_products();
          if (step + part > 0) {
            wait_for_products<1>();
            if (Shape::packed && lane == 0) arrive(&unit_empty()[unit_before]);
            if (part == 0 && lane == 0) arrive(&empty[before]);
          }
          if constexpr (Shape::packed) {
            unit_before = unit.slot;
            unit.next();
          }
        }
        before = at.slot;
        at.next();
      }
      wait_for_products<0>();
      if (Shape::packed && lane == 0) arrive(&unit_empty()[unit_before]);
      if (lane == 0) arrive(&empty[before]);
      hold(sums);
      finish<n>(out, sums, tile, epilogue);
    }
  }
};

}  // namespace matmul_stream_detail

/// rows() is read before the launches before this one have ended, none of which makes it
/// (docs/kernel-abi.md).
template <class Spec, class Rows, class Epilogue, class Weight>
TFCC_FN void matmul_stream(typename Spec::Out* out, const TensorMap& a, const TensorMap& b,
                           const Rows& rows, idx columns, idx k, const Epilogue& epilogue,
                           const Weight& weight) {
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
      sm90::init_barrier(&full[s], Shape::packed ? 2 : 1);
      sm90::init_barrier(&empty[s], 4 + (Shape::packed ? 4 * Spec::block_k / Shape::unit : 0));
    }
    for (int u = 0; u < Shape::units; ++u) {
      sm90::init_barrier(&empty[Spec::stages + u], 4);
      sm90::init_barrier(&empty[Spec::stages + Shape::units + u], 4);
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
      Shape::packed ? (int)(k / (16 * Spec::per_code)) : 0,
      now > 8};
  const int warp = sm90::uniform(threadIdx.x / kWarp), group = warp / 4;
  if (warp == Shape::threads / kWarp - 1) {
    stream.ask(a, b);
    return;
  }
  if constexpr (Shape::packed) {
    if (group > Shape::groups) {
      if (warp % 4 < Shape::loaders) stream.load_shared(warp % 4, weight);
      return;
    }
    if (group > 0) return stream.compute(group - 1, weight);
  }
  wait_for_predecessor();
  if (now > 8) stream.template multiply<16>(out, epilogue);
  else stream.template multiply<8>(out, epilogue);
}

#endif

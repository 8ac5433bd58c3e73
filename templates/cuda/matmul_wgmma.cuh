// SPDX-License-Identifier: Apache-2.0
// matmul_wgmma, a GEMM: out[i, j] = epilogue(sum over p of a[i, p] b[p, j], i, j), sums in f32 with p in
// order: a row's bits depend neither on the other rows nor on the tile.
//
// a [rows, k], b [k, columns] or with trans_b [columns, k], out [rows, columns], all row-major of
// 16 bits; out may be f32.
// A block computes tiles of out, one after the other. One warp asks TMA for their parts of block_k
// of p, several ahead, also while the end of a tile is computed; two prepare that end; the others
// are warpgroups of 64 rows each, which multiply from shared memory (wgmma) and give a slot back
// when the next product has begun. If it is `early`, what is asked for first are parts of b, before
// the launches before this one have ended: it is a weight, which nobody writes. Where there are
// several tiles, a table says which is the fastest for the rows that the run has
// (runtime/core/tile_table.h), or of at most 128 rows Spec does.
// The epilogue, and norms before and after the product, are those of cuda/matmul_end.cuh.
//
// Spec: T (f16, bf16), Out; Tiles, a WgmmaTiles<WgmmaTile<block_m, block_n, stages, block_k>, ..>:
// block_m 64 or 128, block_n any that wgmma has (sm90::multiply), without trans_b a multiple of 64;
// early; trans_b; costly, of the epilogue; tiles_of_few, of several tiles: the numbers of those for at most 64 rows and for
// at most 128, 4 bits each from the lowest on, or below 0 where there is a table; what
// cuda/matmul_end.cuh has.
// columns and k are multiples of 8. Boxes of a have Tiles::box_m rows, those of b for each tile its
// block_n, of 64 columns; without trans_b 64 rows.
// Block: Tiles::groups warpgroups, a warp that asks, and two that prepare. Grid: as many as run at
// once, at most one for each tile. Shared: MatmulWgmmaShape<Spec>::shared_bytes.
// Bound: at few rows the bytes of b, and how long they take to arrive; else 2 rows columns k FLOP
// at the rate of dense tensor cores.
// Measured on an H200 (docs/performance.md): BERT-base at 128 tokens in 291 us, where cuBLASLt and
// launches for norms and GELU took 404 another day;
// at 4433 rows, each launch timed alone, 434 TFLOP/s for `up` with its GELU, 544 for `down`, 507
// for qkv.
#pragma once
#include "cuda/matmul_end.cuh"

/// Tiles of block_m x block_n of the result, and a ring of so many of their parts of a and b, each
/// of block_k of p.
template <int block_m_, int block_n_, int stages_, int block_k_ = 64> struct WgmmaTile {
  static constexpr int block_m = block_m_, block_n = block_n_, stages = stages_, block_k = block_k_;
  static constexpr int a_bytes = block_m * block_k * 2, b_bytes = block_n * block_k * 2;
  static constexpr int ring_bytes = stages * (a_bytes + b_bytes);
  template <class Spec> static constexpr int bytes = ring_bytes + end_bytes<Spec>(block_m, block_n);
  static_assert(block_m == 64 || block_m == 128, "block_m: 64 or 128");
  static_assert(block_n % (block_n > 128 ? 16 : 8) == 0 && block_n >= 32 && block_n <= 256,
                "block_n: a multiple of 8 from 32 to 128, of 16 to 256");
  static_assert(stages >= 2, "stages: at least 2");
  static_assert(block_k % 64 == 0, "block_k: a multiple of 64, of which a row has 128 bytes");
};

/// What a launch may choose from. `whole`: all widths are multiples of so many columns, up to 64.
template <class First, class... Rest> struct WgmmaTiles {
  using Next = WgmmaTiles<Rest...>;
  static TFCC_FN constexpr int larger(int a, int b) { return a > b ? a : b; }
  static TFCC_FN constexpr int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr int count = 1 + sizeof...(Rest);
  static constexpr int block_n = larger(First::block_n, Next::block_n),
                       whole = smaller(WgmmaTiles<First>::whole, Next::whole);
  static constexpr int groups = larger(First::block_m / 64, Next::groups),
                       stages = larger(First::stages, Next::stages);
  template <class Spec>
  static constexpr int bytes = larger(First::template bytes<Spec>, Next::template bytes<Spec>);
  static constexpr int box_m = smaller(First::block_m, Next::box_m);
};
template <class Only> struct WgmmaTiles<Only> {
  static constexpr int count = 1, groups = Only::block_m / 64, stages = Only::stages,
                       box_m = Only::block_m;
  template <class Spec> static constexpr int bytes = Only::template bytes<Spec>;
  static constexpr int block_n = Only::block_n, whole = block_n % 64 == 0   ? 64
                                                        : block_n % 32 == 0 ? 32
                                                        : block_n % 16 == 0 ? 16
                                                                            : 8;
};

/// Which tile to take, by the rows of a run: 4 bits for each 2^shift that are begun, from the lowest
/// on. runtime/core/tile_table.h fills it, and says by what. Of at most 1024 rows one number is
/// enough, and shift is 6.
template <int words> struct TilesByRows {
  u64 numbers[words];
  i32 shift;
};
template <> struct TilesByRows<1> { u64 numbers[1]; };
/// Of a kernel that needs none.
struct NoTable {};

template <class Spec> struct MatmulWgmmaShape {
  using Tiles = typename Spec::Tiles;
  static constexpr int groups = Tiles::groups, threads = groups * 128 + 32 + kPreparing,
                       stages = Tiles::stages;
  static constexpr int shared_bytes =
      Tiles::template bytes<Spec> + 1024;  // the tiles are aligned within it
};

#if __CUDA_ARCH__ >= 900

namespace matmul_wgmma_detail {

/// What a block knows of its launch. Tiles are taken row by row, columns first, each block's
/// gridDim.x after the one before.
template <class Spec> struct Place {
  unsigned char* ring;
  u64 *full, *empty;
  idx rows, columns, k;
  EndMemory<Spec, Spec::Tiles::groups * 64, end_room(Spec::Tiles::block_n)>* memory;
};

template <class Tile, class Spec> struct Tiling : Tile {
  static constexpr int block_m = Tile::block_m, block_n = Tile::block_n, stages = Tile::stages,
                       block_k = Tile::block_k;
  static constexpr int a_part = block_m * 128, b_part = block_n * 128;  // bytes of 64 of p
  static constexpr int a_bytes = Tile::a_bytes, b_bytes = Tile::b_bytes,
                       ring_bytes = Tile::ring_bytes, box_m = Spec::Tiles::box_m;
  static constexpr bool trans_b = Spec::trans_b;
  static constexpr int box_n = trans_b ? block_n : 64;
  static_assert(trans_b || block_n % 64 == 0, "block_n: a multiple of 64 without trans_b");
  Place<Spec> at;
  idx across;
  int steps;
  TFCC_FN Tiling(const Place<Spec>& place)
      : at(place),
        across((place.columns + block_n - 1) / block_n),
        steps((int)((place.k + block_k - 1) / block_k)) {}
  TFCC_FN idx count() const { return (at.rows + block_m - 1) / block_m * across; }
  TFCC_FN idx row(idx tile) const { return tile / across * block_m; }
  TFCC_FN idx column(idx tile) const { return tile % across * block_n; }
  TFCC_FN unsigned char* tile_a(int slot) const { return at.ring + slot * (a_bytes + b_bytes); }
  TFCC_FN unsigned char* tile_b(int slot) const { return tile_a(slot) + a_bytes; }

  TFCC_FN void ask_for_b(const TensorMap& b, idx first_column, int step, int slot) const {
#pragma unroll
    for (int p = 0; p < block_k; p += 64) {
#pragma unroll
      for (int c = 0; c < block_n; c += box_n) {
        const i32 column = (i32)first_column + c, first = step * block_k + p;
        sm90::copy_box_once(tile_b(slot) + p / 64 * b_part + c * 128, b, trans_b ? column : first,
                            trans_b ? first : column, &at.full[slot]);
      }
    }
  }

  TFCC_FN void ask_for_a(const TensorMap& a, idx first_row, int step, int slot) const {
#pragma unroll
    for (int p = 0; p < block_k; p += 64) {
#pragma unroll
      for (int m = 0; m < block_m; m += box_m)
        sm90::copy_box_once(tile_a(slot) + p / 64 * a_part + m * 128, a, (i32)first_row + m,
                            step * block_k + p, &at.full[slot]);
    }
  }

  /// By one warp: asks for all tiles of this block. If `early`, for the first parts of b before the
  /// launches before this one have ended. Only a few: what is asked for first comes first, and the
  /// products wait for a part of a. The other warps begin behind those.
  template <bool early> TFCC_FN void ask(const TensorMap& a, const TensorMap& b) const {
    constexpr int ahead = 2;  // of at least two stages
    sm90::RingPlace<stages> ring;
    int step = 0;
    if (early && (idx)blockIdx.x < count()) {
      step = steps < ahead ? steps : ahead;
#pragma unroll
      for (int s = 0; s < ahead; ++s) {
        if (s >= step) break;
        sm90::arrive_and_announce_once(&at.full[s], a_bytes + b_bytes);
        ask_for_b(b, column(blockIdx.x), s, s);
      }
    }
    sm90::arrive<1>(MatmulWgmmaShape<Spec>::threads);
    wait_for_predecessor();
    if constexpr (early) {
#pragma unroll
      for (int s = 0; s < ahead; ++s) {
        if (s >= step) break;
        ask_for_a(a, row(blockIdx.x), s, s);
      }
      if (step == stages) ring.parity = 1;
      else ring.slot = step;
    }
    for (idx tile = blockIdx.x; tile < count(); tile += gridDim.x, step = 0) {
#pragma unroll 1
      for (; step < steps; ++step) {
        sm90::wait(&at.empty[ring.slot],
                   ring.parity ^ 1);  // the first time nobody has to release it
        sm90::arrive_and_announce_once(&at.full[ring.slot], a_bytes + b_bytes);
        ask_for_b(b, column(tile), step, ring.slot);
        ask_for_a(a, row(tile), step, ring.slot);
        ring.next();
      }
    }
  }

  /// The sums of one tile for warpgroup `group` of a block, in the first block_n / 2 of `sums`;
  /// `slot` and `parity` say where its first part will be, and then that of the next tile.
  TFCC_FN void multiply_tile(int group, int& slot, u32& parity,
                             f32 (&all_sums)[end_room(Spec::Tiles::block_n) / 2]) const {
    using namespace sm90;
    const u64 left = rows_of_k(uniform(shared_address(tile_a(0)) + group * 64 * 128));
    const u32 first_b = uniform(shared_address(tile_b(0)));
    const u64 right = trans_b ? rows_of_k(first_b) : rows_of_n(first_b, 64 * 128);
    const bool releases = threadIdx.x % kWarp == 0;
    sm90::RingPlace<stages> ring{slot, parity};
    auto& sums = reinterpret_cast<f32(&)[block_n / 2]>(all_sums);
    const Barriers full(at.full), empty(at.empty);
    const int count = held(steps);  // of one or two steps the compiler would make code that has no
                                    // loop, which ptxas then serialises
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      const int slot_now = ring.slot;
      const u32 parity_now = ring.parity, at_slot = slot_now * (a_bytes + b_bytes);
      ring.next();  // computed while products run
      full.wait(slot_now, parity_now);
      begin_products();
#pragma unroll
      for (int p = 0; p < block_k / 16; ++p) {
        const u32 at_a = p / 4 * a_part + p % 4 * 32,
                  at_b = p / 4 * b_part + p % 4 * (trans_b ? 32 : 2048);
        multiply<typename Spec::T, block_n, !trans_b>(sums, advance(advance(left, at_slot), at_a),
                                                      advance(advance(right, at_slot), at_b),
                                                      step + p > 0);
      }
      end_products();
      if (step > 0) {
        wait_for_products<1>();
        if (releases) empty.arrive(before);
      }
      before = slot_now;
    }
    wait_for_products<0>();
    if (releases) empty.arrive(before);
    hold(sums);
    slot = ring.slot, parity = ring.parity;
  }
};

/// The tensor maps of b, one for each of the tiles.
template <class Spec> using MapsOfB = const TensorMap* const (&)[Spec::Tiles::count];
template <int i> struct Number {};

template <class Spec> struct Ask {
  const TensorMap& a;
  MapsOfB<Spec> b;
  template <class T, int i> TFCC_FN void operator()(const T& tiling, Number<i>) const {
    tiling.template ask<Spec::early>(a, *b[i]);
  }
};
/// Where a tile begins is divided here, by what the compiler knows.
template <class Spec> struct MultiplyTile {
  int group;
  idx tile;
  int& slot;
  u32& parity;
  f32 (&sums)[end_room(Spec::Tiles::block_n) / 2];
  idx &row, &column;
  template <class T, int i> TFCC_FN void operator()(const T& tiling, Number<i>) const {
    row = tiling.row(tile), column = tiling.column(tile);
    tiling.multiply_tile(group, slot, parity, sums);
  }
};

/// Whether the tile is told by a table.
template <class Spec>
inline constexpr bool has_table = Spec::Tiles::count > 1 && Spec::tiles_of_few < 0;

/// The number of the tile for these rows; `numbers` are those of the table.
template <class Spec, int words>
TFCC_FN int tile_for(const u64* numbers, const TilesByRows<words>& table, idx rows) {
  i32 shift = 6;
  if constexpr (words > 1) shift = table.shift;
  const u32 begun = (u32)(rows - 1) >> shift, last = words * 16 - 1;
  const u32 step = begun < last ? begun : last;  // of no rows: any
  return (int)(numbers[step / 16] >> step % 16 * 4 & 15);
}
template <class Spec> TFCC_FN int tile_for(const u64*, const NoTable&, idx rows) {
  return Spec::Tiles::count > 1 ? Spec::tiles_of_few >> (rows > 64 ? 4 : 0) & 15 : 0;
}

/// f(tiling, its number) of the tile of this number, from the i-th on.
template <class Spec, int i = 0, class First, class... Rest, class F>
TFCC_FN void with_tiling(WgmmaTiles<First, Rest...>, int number, const Place<Spec>& place,
                         const F& f) {
  if constexpr (sizeof...(Rest) > 0) {
    if (number > i) return with_tiling<Spec, i + 1>(WgmmaTiles<Rest...>{}, number, place, f);
  }
  f(Tiling<First, Spec>(place), Number<i>{});
}

/// What is the same for all tiles but for numbers is compiled once: all that is not asking and
/// multiplying.
template <class Spec> struct Chosen {
  using Tiles = typename Spec::Tiles;
  static constexpr int room = end_room(Tiles::block_n);
  using Memory = EndMemory<Spec, Tiles::groups * 64, room>;
  Place<Spec> at;
  int number, block_m, block_n, stages, ring_bytes;
  idx across;
  int steps;

  struct Take {
    Chosen& to;
    template <class T, int i> TFCC_FN void operator()(const T& t, Number<i>) const {
      to.block_m = T::block_m, to.block_n = T::block_n, to.stages = T::stages,
      to.ring_bytes = T::ring_bytes, to.across = t.across, to.steps = t.steps;
    }
  };
  TFCC_FN Chosen(const Place<Spec>& place, int number_) : at(place), number(number_) {
    with_tiling<Spec>(Tiles{}, number, at, Take{*this});
  }

  TFCC_FN idx count() const { return (at.rows + block_m - 1) / block_m * across; }

  /// By the warps that prepare the ends of all tiles of this block. If `early`, the vectors along
  /// the columns of the first before the launches before this one have ended: they are constants.
  template <class End> TFCC_FN void prepare(const End& end, int thread) const {
    u32 parity = 1;  // the first time nobody has to use what was there before
    for (idx tile = blockIdx.x; tile < count(); tile += gridDim.x, parity ^= 1) {
      const idx row = tile / across * block_m, column = tile % across * block_n;
      sm90::wait(&at.memory->empty, parity);
      end.columns.template copy<room>(at.memory->columns, column, at.columns, block_n, thread);
      if constexpr (Spec::early) wait_for_predecessor();
      prepare_end<Spec>(end, at.ring + ring_bytes, *at.memory, at.rows, at.columns, row, column,
                        block_m, block_n, thread);
      sm90::arrive(&at.memory->full);
    }
  }

  /// By warpgroup `group` of a block. One for whom the tiles have no rows gives their slots back.
  template <class End> TFCC_FN void multiply(int group, const End& end) const {
    if constexpr (Spec::early) wait_for_predecessor();
    const bool works = group * 64 < block_m, releases = threadIdx.x % kWarp == 0;
    int slot = 0;
    u32 parity = 0, end_parity = 1;
    for (idx tile = blockIdx.x; tile < count(); tile += gridDim.x) {
      end_parity ^= 1;
      f32 sums[room / 2] = {};
      sm90::hold(sums);  // zeros are made here, not in each branch
      idx first_row = 0, first_column = 0;
      if (works)
        with_tiling<Spec>(
            Tiles{}, number, at,
            MultiplyTile<Spec>{group, tile, slot, parity, sums, first_row, first_column});
      else give_back(slot, parity);
      sm90::wait(&at.memory->full, end_parity);
      if (works)
        EndOfTile<Spec, End, Memory>(end, at.ring + ring_bytes, *at.memory, group, at.rows,
                                     at.columns, first_row, first_column, block_n)
            .finish(sums);
      __syncwarp();  // all lanes have read what was prepared
      if (releases) sm90::arrive(&at.memory->empty);
    }
  }

  TFCC_FN void give_back(int& slot, u32& parity) const {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      sm90::wait(&at.full[slot], parity);
      __syncwarp();  // all lanes have seen this phase: the slot's next may follow at once
      if (threadIdx.x % kWarp == 0) sm90::arrive(&at.empty[slot]);
      if (++slot == stages) slot = 0, parity ^= 1;
    }
  }
};

}  // namespace matmul_wgmma_detail

/// rows() is read before the launches before this one have ended; what makes it has ended by then
/// (docs/kernel-abi.md).
template <class Spec, class Rows, class End, class Table = NoTable>
TFCC_FN void matmul_wgmma(const TensorMap& a, matmul_wgmma_detail::MapsOfB<Spec> b,
                          const Rows& rows, idx columns, idx k, const End& end,
                          const Table& table = {}) {
  using namespace matmul_wgmma_detail;
  using S = MatmulWgmmaShape<Spec>;
  using Tiles = typename Spec::Tiles;
  TFCC_DYNAMIC_SHARED(memory);
  __shared__ u64 full[S::stages], empty[S::stages];
  __shared__ EndMemory<Spec, S::groups * 64, end_room(Tiles::block_n)> end_memory;
  if (threadIdx.x == S::groups * 128) {
    sm90::prefetch_map(a);
#pragma unroll
    for (int i = 0; i < Tiles::count; ++i) sm90::prefetch_map(*b[i]);
  }
  const idx rows_now = rows();
  const int warp = (int)sm90::uniform(threadIdx.x / kWarp);
  // Parameters of a kernel are far when the rows are known, shared memory is near. blockIdx.y is 0:
  // the way of an index that the compiler does not know is that of the address of the sizes.
  static_assert(has_table<Spec> == (sizeof(Table) > sizeof(NoTable)), "which tile is not told");
  __shared__ u64 near[4];
  static_assert(
      sizeof full + sizeof empty + sizeof end_memory + sizeof near + S::shared_bytes <= 227 << 10,
      "more shared memory than a block can have");
  const auto place = [&] {
    return Place<Spec>{memory + (1024 - sm90::shared_address(memory) % 1024) % 1024,
                       full,
                       empty,
                       rows_now,
                       columns,
                       k,
                       &end_memory};
  };
  // The warp that asks makes what it needs by itself; the others wait until it has begun to ask.
  if (warp == S::groups * 4) {
    const int lane = (int)threadIdx.x % kWarp;
    if constexpr (has_table<Spec>) {
      if (lane < (int)(sizeof table.numbers / sizeof(u64)))
        near[lane] = table.numbers[lane + blockIdx.y];
    }
    if (lane == 0) {
      for (int s = 0; s < S::stages; ++s) {
        sm90::init_barrier(&full[s], 1);
        sm90::init_barrier(&empty[s], S::groups * 4);
      }
      sm90::init_barrier(&end_memory.full, kPreparing);
      sm90::init_barrier(&end_memory.empty, S::groups * 4);
      sm90::publish_barriers();
    }
    __syncwarp();
    with_tiling<Spec>(Tiles{}, tile_for<Spec>(near, table, rows_now), place(), Ask<Spec>{a, b});
    return;
  }
  sm90::meet<1>(S::threads);
  const Chosen<Spec> tile(place(), tile_for<Spec>(near, table, rows_now));
  if constexpr (!Spec::early) wait_for_predecessor();
  if (warp < S::groups * 4) tile.multiply(warp / 4, end);
  else tile.prepare(end, (int)threadIdx.x - (S::groups * 128 + 32));
}

#endif

// SPDX-License-Identifier: Apache-2.0
// matmul_ordered, a GEMM: out[i, j] = epilogue(sum over p of a[i, p] b[j, p], i, j), or gated out[i, j] =
// epilogue(s, t, i, j) with the sums of columns 16 (j / 8) + j % 8 and eight behind it. All sums
// are made in one order, so that the bits of a row depend neither on the other rows nor on the
// tile: k is cut into Spec::parts of one length, a multiple of 32; the sum of a part is one f32
// accumulator that takes p in order, of f32 by fused multiply-adds, of 16 bits by
// mma.sync.m16n8k16, sixteen p at a time; and then s = (s0 + s1) + (s2 + s3).
//
// Of f32 where tf32 is not 0 it is mma.sync.m16n8k8. With 1 the operands are rounded to 10 bits of
// fraction. With 3 each is the sum of two such numbers, high and low, and a product is a_low b_high
// + a_high b_low + a_high b_high: what is left out, a_low b_low, is at most 2^-22 of it. Tensor
// cores cut their sums off rather than round them, so only 32 p at a time are summed there, and
// those sums are added by f32 (Ootomo and Yokota, Recovering single precision accuracy from Tensor
// Cores, 2022).
//
// a [rows, k], b [columns, k], both row-major of T; out [rows, columns] or, gated, [rows, columns /
// 2]. Tiles of block_m rows and block_n columns pass through a ring in shared memory, block_k of p
// of each part at a time, filled by cp.async; what lies behind k there is zero. The first of b are
// asked for before the launches before this one have ended, if `early`, where b is a constant and
// no launch makes the number of rows. A part of f32 has warps of its own, for multiply-adds that
// wait for each other take 4 cycles each. A warp has sums of own_m x own_n units: of f32 4 x 8, one
// for each lane, of tensor cores 16 x 8. Where large_m is not 0 there is a second tile, for runs in
// which it fills the multiprocessors.
//
// Spec: T (f32, f16, bf16), Out; tf32 (0, of f32 also 1 or 3); gated; early; threads; parts, 4 of
// multiply-adds and else 1; block_m, block_n, own_m, own_n, block_k, stages;
// large_m, large_n, large_own_m, large_own_n; processors, multiprocessors to fill; copy, bytes of
// one copy, which divide a row of a and b:
// 2 (of 16 bits), 4, 8 or 16.
// Block: threads. Grid: ceil(rows, block_m) * ceil(columns, block_n). Shared:
// MatmulOrderedShape<Spec>::shared_bytes.
// Bound: few rows: the bytes of b. Many: multiply-adds of f32, 128 a clock and multiprocessor, for
// which f32 reads shared memory at half of its rate.
#pragma once
#include "cuda/sm80.cuh"

template <class Spec> struct MatmulOrderedShape {
  static constexpr int larger(int a, int b) { return a > b ? a : b; }
  static constexpr int pitch = Spec::block_k * (int)sizeof(typename Spec::T) +
                               16;  // of a row; eight neighbours meet no bank twice
  static constexpr int rows = larger(Spec::block_m + Spec::block_n, Spec::large_m + Spec::large_n);
  static constexpr int shared_bytes = Spec::stages * Spec::parts * rows * pitch;
};

namespace matmul_ordered_detail {

/// Parts of k begin at multiples of it.
inline constexpr int kPart = 32;

/// Where rows stand: row i of a tile's rows is row i of a and of out.
struct SameRows {
  /// How many rows there are, asked when the first of b is on its way; by all threads.
  TFCC_FN idx count(idx rows) const { return rows; }
  TFCC_FN idx of_a(idx i) const { return i; }
  TFCC_FN idx of_out(idx i) const { return i; }
};

/// A b that is stored: its rows are copied past the registers.
template <class T> struct StoredRows {
  static constexpr bool computed = false;
  static constexpr int ahead = 1;
  const T* values;
  struct Pieces {};
  struct Shares {};
};

/// By a warp: stores its sums, of units from row m and column n on.
template <class Spec, int unit_m, int own_m, int own_n, int each, class Rows, class Epilogue>
TFCC_FN void store_sums(typename Spec::Out* out, const f32 (&sums)[own_m][own_n][each], idx m,
                        idx n, idx rows, idx columns, const Rows& place, const Epilogue& epilogue) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < own_m; ++i) {
#pragma unroll
    for (int e = 0; e < each; ++e) {
      const idx i_m = m + i * unit_m + lane / 4 + e / 2 * 8;
      const int own = lane % 4 * 2 + e % 2;
      if (i_m >= rows) continue;
      const idx row = place.of_out(i_m);
#pragma unroll
      for (int j = 0; j < own_n; j += Spec::gated ? 2 : 1) {
        if constexpr (Spec::gated) {
          const idx width = columns / 2, column = (n + j * 8) / 2 + own;
          if (column < width)
            store(out, row * width + column,
                  epilogue(sums[i][j][e], sums[i][j + 1][e], row, column));
        } else {
          const idx column = n + j * 8 + own;
          if (column < columns)
            store(out, row * columns + column, epilogue(sums[i][j][e], row, column));
        }
      }
    }
  }
}

/// b is StoredRows, or computed: compute(pieces, shares, tile, pitch, first_n, step, part_k) makes rows
/// of the tile of what ask(pieces, first_n, step) asked for `ahead` steps before, which is in
/// registers, and of share(shares, first_n, step), of as many steps together.
template <class Spec, int block_m, int block_n, int own_m, int own_n, class Rows = SameRows>
struct Tile {
  using T = typename Spec::T;
  using Shape = MatmulOrderedShape<Spec>;
  static constexpr bool tensor_cores = sizeof(T) == 2 || Spec::tf32 > 0, splits = Spec::tf32 == 3;
  static constexpr int block_k = Spec::block_k, stages = Spec::stages, parts = Spec::parts,
                       pitch = Shape::pitch;
  static constexpr int group = tensor_cores ? 32 / (int)sizeof(T) : 4;  // of p
  static constexpr int unit_m = tensor_cores ? 16 : 4, unit_n = 8,
                       each = tensor_cores ? 4 : 1;  // sums of a unit in a lane
  static constexpr int warps_m = block_m / (unit_m * own_m), warps_n = block_n / (unit_n * own_n),
                       warps = warps_m * warps_n * parts;
  static constexpr int apart =
      block_n + 8;  // of rows of sums in shared memory: four of eight columns meet no bank twice
  static_assert(warps_m * unit_m * own_m == block_m && warps_n * unit_n * own_n == block_n,
                "own_m, own_n: warps share the tile evenly");
  static_assert(warps * kWarp <= Spec::threads, "threads: enough for the tile");
  static_assert(own_n % 2 == 0, "own_n: even, for a lane has both columns of a gate");
  static_assert(Spec::tf32 == 0 || (sizeof(T) == 4 && (Spec::tf32 == 1 || splits)),
                "tf32: 0, of f32 also 1 or 3");
  static_assert(stages >= 2 && block_k % (splits ? kPart : group) == 0 &&
                    (tensor_cores || kPart % block_k == 0),
                "block_k: whole groups, and of parts");
  static_assert(parts == (tensor_cores ? 1 : 4), "parts: 4 of multiply-adds, 1 of tensor cores");
  static_assert(parts == 1 || parts * block_m * apart * 4 <= Shape::shared_bytes,
                "the ring holds the sums of all parts");

  unsigned char* ring;
  idx rows, columns, k, first_m, first_n, part_k;
  Rows place;
  f32 sums[own_m][own_n][each];

  /// Of part 0; those of the others lie behind it.
  TFCC_FN unsigned char* tile_a(int slot) const {
    return ring + slot * parts * (block_m + block_n) * pitch;
  }
  TFCC_FN unsigned char* tile_b(int slot) const { return tile_a(slot) + parts * block_m * pitch; }

  /// By all threads: `step` of all parts of `count` rows of a matrix from row `first` on, each at
  /// at_row(row). What lies behind the last row stays as it is, for its sums are not stored.
  template <int count, class At>
  TFCC_FN void copy(unsigned char* to, const T* matrix, idx first, idx limit, int step,
                    const At& at_row) const {
    constexpr int chunk = Spec::copy / sizeof(T), chunks = block_k / chunk,
                  all = parts * count * chunks, each = ceil_div(all, Spec::threads);
#pragma unroll(each <= 8 ? each : 2)
    for (int i = 0; i < each; ++i) {
      const int id = i * Spec::threads + threadIdx.x, c = id % chunks, row = id / chunks,
                r = row % count;
      if ((all % Spec::threads != 0 && id >= all) || first + r >= limit) continue;
      const idx p = row / count * part_k + step * block_k + c * chunk;
      const T* const from = matrix + (i64)at_row(first + r) * k + p;
      unsigned char* const at = to + row * pitch + c * Spec::copy;
      if constexpr (Spec::copy >= 4) copy_async<Spec::copy>(at, p < k ? from : matrix, p < k);
      else *(T*)at = p < k ? *from : T{};
    }
  }
  TFCC_FN void copy_a(const T* a, int step, int slot) const {
    copy<block_m>(tile_a(slot), a, first_m, rows, step, [&](idx i) { return place.of_a(i); });
  }
  TFCC_FN void copy_b(const T* b, int step, int slot) const {
    copy<block_n>(tile_b(slot), b, first_n, columns, step, [](idx i) { return i; });
  }

  /// The products of group q of a step, by rows of a and b.
  TFCC_FN void multiply(const unsigned char* a, const unsigned char* b, int q,
                        f32 (&sums)[own_m][own_n][each]) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (tensor_cores) {
      u32 left[own_m][4], left_low[splits ? own_m : 1][4];
#pragma unroll
      for (int i = 0; i < own_m; ++i) {
        load_matrices(left[i], a + (i * 16 + lane % 16) * pitch + q * 32 + lane / 16 * 16);
        if constexpr (splits) split_to_tf32(left[i], left_low[i]);
        else if constexpr (Spec::tf32 == 1) round_to_tf32(left[i]);
      }
#pragma unroll
      for (int j = 0; j < own_n; j += 2) {
        u32 right[4], right_low[4];
        load_matrices(right,
                      b + (j * 8 + lane / 16 * 8 + lane % 8) * pitch + q * 32 + lane / 8 % 2 * 16);
        if constexpr (splits) split_to_tf32(right, right_low);
        else if constexpr (Spec::tf32 == 1) round_to_tf32(right);
        const auto add = [&](const auto& l, const u32(&r)[4]) {
#pragma unroll
          for (int i = 0; i < own_m; ++i) {
            multiply_add<T>(sums[i][j], l[i], r[0], r[1]);
            multiply_add<T>(sums[i][j + 1], l[i], r[2], r[3]);
          }
        };
        if constexpr (splits) {
          add(left_low, right);
          add(left, right_low);
        }
        add(left, right);
      }
    } else {
      constexpr int width = own_n > 4 ? 2 : 4;  // more would not fit the registers
#pragma unroll
      for (int w = 0; w < 4; w += width) {
        f32 right[own_n][width];
#pragma unroll
        for (int j = 0; j < own_n; ++j)
          load_pack((const f32*)(b + (j * 8 + lane % 8) * pitch) + q * 4 + w, right[j]);
#pragma unroll
        for (int i = 0; i < own_m; ++i) {
          f32 left[width];
          load_pack((const f32*)(a + (i * 4 + lane / 8) * pitch) + q * 4 + w, left);
#pragma unroll
          for (int e = 0; e < width; ++e) {
#pragma unroll
            for (int j = 0; j < own_n; ++j)
              sums[i][j][0] = fmaf(left[e], right[j][e], sums[i][j][0]);
          }
        }
      }
    }
  }

  /// The products of the first `count` groups of a step.
  TFCC_FN void multiply_step(const unsigned char* a, const unsigned char* b, int count) {
    constexpr int all = block_k / group;
    if constexpr (splits) {
#pragma unroll 1
      for (int first = 0; first < all && first < count; first += kPart / group) {
        f32 some[own_m][own_n][each] = {};
#pragma unroll
        for (int q = 0; q < kPart / group; ++q) multiply(a, b, first + q, some);
#pragma unroll
        for (int i = 0; i < own_m; ++i) {
#pragma unroll
          for (int j = 0; j < own_n; ++j) {
#pragma unroll
            for (int e = 0; e < each; ++e) sums[i][j][e] += some[i][j][e];
          }
        }
      }
    } else if (count >= all) {
#pragma unroll(own_n > 4 ? 1 : all <= 4 ? all : 4)
      for (int q = 0; q < all; ++q) multiply(a, b, q, sums);
    } else {
#pragma unroll 1
      for (int q = 0; q < count; ++q) multiply(a, b, q, sums);
    }
  }

  /// The sums of all parts, through shared memory, and then by all threads.
  template <class Epilogue>
  TFCC_FN void finish_parts(typename Spec::Out* out, bool computes, int part, int m, int n,
                            const Epilogue& epilogue) const {
    const int lane = threadIdx.x % kWarp;
    f32* const all = (f32*)ring;
    wait_copies<0>();
    __syncthreads();
    if (computes) {
#pragma unroll
      for (int i = 0; i < own_m; ++i) {
#pragma unroll
        for (int j = 0; j < own_n; ++j)
          all[(part * block_m + m + i * unit_m + lane / 8) * apart + n + j * 8 + lane % 8] =
              sums[i][j][0];
      }
    }
    __syncthreads();
    const auto sum = [&](int r, int c) {
      const f32* const s = all + r * apart + c;
      return (s[0] + s[block_m * apart]) + (s[2 * block_m * apart] + s[3 * block_m * apart]);
    };
    constexpr int wide = Spec::gated ? block_n / 2 : block_n;
    const idx width = Spec::gated ? columns / 2 : columns,
              first = Spec::gated ? first_n / 2 : first_n;
#pragma unroll 4
    for (int e = threadIdx.x; e < block_m * wide; e += Spec::threads) {
      const int r = e / wide, c = e % wide;
      const idx column = first + c;
      if (first_m + r >= rows || column >= width) continue;
      const idx row = place.of_out(first_m + r);
      if constexpr (Spec::gated)
        store(out, row * width + column,
              epilogue(sum(r, c / 8 * 16 + c % 8), sum(r, c / 8 * 16 + c % 8 + 8), row, column));
      else store(out, row * width + column, epilogue(sum(r, c), row, column));
    }
  }

  TFCC_FN void clear() {
#pragma unroll
    for (int i = 0; i < own_m; ++i) {
#pragma unroll
      for (int j = 0; j < own_n; ++j) {
#pragma unroll
        for (int e = 0; e < each; ++e) sums[i][j][e] = 0;
      }
    }
  }

  template <class Epilogue>
  TFCC_FN void run(typename Spec::Out* out, const T* a, const T* b, const Epilogue& epilogue) {
    run(out, a, StoredRows<T>{b}, epilogue);
  }
  template <class B, class Epilogue>
  TFCC_FN void run(typename Spec::Out* out, const T* a, const B& b, const Epilogue& epilogue) {
    const int steps = (int)ceil_div(part_k, block_k), warp = threadIdx.x / kWarp,
              own = warp % (warps_m * warps_n), part = warp / (warps_m * warps_n);
    const int m = own / warps_n * own_m * unit_m, n = own % warps_n * own_n * unit_n;
    clear();
    typename B::Pieces asked[B::ahead];  // of the step at hand, and of those behind it
    if constexpr (B::computed) {
#pragma unroll
      for (int s = 0; s < B::ahead; ++s) b.ask(asked[s], first_n, s);
    } else {
      for (int s = 0; s < stages - 1 && s < steps; ++s) copy_b(b.values, s, s);
    }
    if constexpr (Spec::early) wait_for_predecessor();
    rows = place.count(rows);
    for (int s = 0; s < stages - 1; ++s) {
      if (s < steps) copy_a(a, s, s);
      commit_copies();
    }
    const idx own_k = k - part * part_k < part_k ? k - part * part_k : part_k;
    int slot = 0;
    const auto pass = [&](int step, typename B::Pieces& pieces, const typename B::Shares& shares) {
      if constexpr (B::computed) {  // nobody reads this slot since the step before
        b.compute(pieces, shares, tile_b(slot), pitch, first_n, step, part_k);
        b.ask(pieces, first_n, step + B::ahead);
      }
      wait_copies<stages - 2>();
      __syncthreads();
      if (const int next = step + stages - 1; next < steps) {
        const int to = slot == 0 ? stages - 1 : slot - 1;
        copy_a(a, next, to);
        if constexpr (!B::computed) copy_b(b.values, next, to);
      }
      commit_copies();
      if (warp < warps) {
        const unsigned char *const left = tile_a(slot) + (part * block_m + m) * pitch,
                                   *const right = tile_b(slot) + (part * block_n + n) * pitch;
        multiply_step(left, right,
                      (int)((own_k - step * block_k + group - 1) /
                            group));  // what is zero adds nothing, not even to -0
      }
      slot = slot + 1 == stages ? 0 : slot + 1;
    };
    // Registers that wait for memory may not be moved: each step has its own.
    for (int first = 0; first < steps; first += B::ahead) {
      typename B::Shares shares[B::ahead];
      if constexpr (B::computed) {
#pragma unroll
        for (int s = 0; s < B::ahead; ++s) b.share(shares[s], first_n, first + s);
      }
#pragma unroll
      for (int s = 0; s < B::ahead; ++s) {
        if (first + s < steps) pass(first + s, asked[s], shares[s]);
      }
    }
    if constexpr (parts > 1) finish_parts(out, warp < warps, part, m, n, epilogue);
    else if (warp < warps)
      store_sums<Spec, unit_m>(out, sums, first_m + m, first_n + n, rows, columns, place, epilogue);
  }
};

/// How much of k a part has.
template <class Spec> TFCC_FN idx part_of(idx k) {
  return Spec::parts == 1 ? k : (idx)round_up(ceil_div(k, Spec::parts), kPart);
}

/// This block's tile, if there is one; columns that lie side by side read the same rows of a.
template <class Spec, int block_m, int block_n, int own_m, int own_n, class Epilogue>
TFCC_FN void run(typename Spec::Out* out, const typename Spec::T* a, const typename Spec::T* b,
                 unsigned char* ring, idx rows, idx columns, idx k, const Epilogue& epilogue) {
  const idx down = ceil_div(rows, block_m), block = (idx)blockIdx.x;
  if (block >= down * ceil_div(columns, block_n)) {
    if constexpr (Spec::early) wait_for_predecessor();
    return;
  }
  Tile<Spec, block_m, block_n, own_m, own_n> tile{
      ring, rows, columns, k, block % down * block_m, block / down * block_n, part_of<Spec>(k)};
  tile.run(out, a, b, epilogue);
}

}  // namespace matmul_ordered_detail

/// rows() is read before the launches before this one have ended if Spec::early.
template <class Spec, class Rows, class Epilogue>
TFCC_FN void matmul_ordered(typename Spec::Out* out, const typename Spec::T* a,
                            const typename Spec::T* b, const Rows& rows, idx columns, idx k,
                            const Epilogue& epilogue) {
  using namespace matmul_ordered_detail;
  TFCC_DYNAMIC_SHARED(ring);
  if constexpr (!Spec::early) wait_for_predecessor();
  const idx now = rows();
  if constexpr (Spec::large_m > 0) {
    if (ceil_div(now, Spec::large_m) * ceil_div(columns, Spec::large_n) >= Spec::processors)
      return run<Spec, Spec::large_m, Spec::large_n, Spec::large_own_m, Spec::large_own_n>(
          out, a, b, ring, now, columns, k, epilogue);
  }
  run<Spec, Spec::block_m, Spec::block_n, Spec::own_m, Spec::own_n>(out, a, b, ring, now, columns,
                                                                    k, epilogue);
}

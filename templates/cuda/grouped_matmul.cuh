// SPDX-License-Identifier: Apache-2.0
// grouped_matmul, a grouped GEMM: out[i, j] = sum over p of x[i / share, p] w[which(i), j, p], each row i by
// the matrix that it chooses, as the tokens of a mixture of experts are. Sums are those of
// matmul_ordered: one order, so that the bits of a row depend neither on the other rows nor on the
// tile.
//
// x [.., k], w [groups, columns, k], out [rows, columns], all row-major. A block has block_n columns of
// one matrix: it goes through all rows, and multiplies those that chose the matrix, a tile of
// block_m at a time, in order. Where there are fewer rows than matrices the block's matrix is that of
// row number `slot`, unless a row before it chose the same; so blocks are no more than rows.
//
// w is StoredMatrices, or is computed while the products of the step before are made: CodedMatrices from
// codes, 16 bytes of them by a thread, asked for `ahead` steps before, or ComputedMatrices, by one call
// for each value. Of FewRowsOfCodes values pass through no memory.
//
// Spec: as of matmul_ordered, without a gate or a large tile, or of CodedTile with block_m = 16; groups; of codes ahead, and
// per_code, Code, shared_size and digits as of CodedTile; block_k is a multiple of 16 per_code then. which(i), of 0 to
// groups - 1, may be asked for any row, many times.
// Block: threads. Grid: min(rows, groups) * ceil(columns, block_n). Shared:
// GroupedMatmulShape<Spec, Matrices>::shared_bytes.
// Bound: few rows: the bytes of the matrices that are chosen. Many: as matmul_ordered. Measured on an H200 in
// f16: eight of 128 matrices of 1536 x 2048 at 69% of 4.23 TB/s, two of eight of 28672 x 4096 at 82%.
#pragma once
#include "cuda/coded_tile.cuh"
#include "cuda/codes.cuh"

namespace grouped_matmul_detail {

/// What a block has in shared memory behind the ring.
template <class Spec> struct Rows {
  static constexpr int warps = Spec::threads / kWarp;
  idx list[Spec::block_m + Spec::threads];  // rows that chose its matrix
  int found[warps];                         // by each warp, of rows that are looked at together
  i32 choice[Spec::groups];                 // of all rows, where they are no more than matrices
};

/// The sum stays as it is.
struct Sum {
  TFCC_FN f32 operator()(f32 s, idx, idx) const { return s; }
};

/// Adds the rows from `first` on for which chosen(i) holds, one a thread, to the `count` of the list,
/// in order; how many there are then.
template <class Spec, class Chosen>
TFCC_FN int add_rows(Rows<Spec>& rows, int count, idx first, idx all, const Chosen& chosen) {
  const idx i = first + (idx)threadIdx.x;
  const bool found = i < all && chosen(i);
  const u32 vote = __ballot_sync(kAllLanes, found);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) rows.found[warp] = __popc(vote);
  __syncthreads();
  int at = count, total = count;
#pragma unroll
  for (int w = 0; w < Rows<Spec>::warps; ++w) {
    if (w < warp) at += rows.found[w];
    total += rows.found[w];
  }
  if (found) rows.list[at + __popc(vote & ((1u << lane) - 1))] = i;
  __syncthreads();
  return total;
}

/// The rows of a block: those that chose its matrix, a tile of them at a time, in a list.
template <class Spec, class Which> struct Choosers {
  Rows<Spec>& rows;
  const Which& which;
  idx share, all;
  bool few;  // no more rows than matrices
  i64 group;
  idx first;               // that was not looked at
  int begin = 0, end = 0;  // of the list; the tile begins there

  TFCC_FN bool chose(idx i) const { return (few ? rows.choice[i] : which(i)) == group; }
  /// How many rows the tile has, behind the tiles before it.
  TFCC_FN int fill() {
    if (end - begin < Spec::block_m && first < all) {
      static_assert(Spec::block_m <= Spec::threads, "threads: enough to move what is left");
      const bool moves = begin + (int)threadIdx.x < end;
      const idx i = moves ? rows.list[begin + threadIdx.x] : 0;
      __syncthreads();
      if (moves) rows.list[threadIdx.x] = i;
      end -= begin;
      begin = 0;
      __syncthreads();
      for (; end < Spec::block_m && first < all; first += Spec::threads)
        end = add_rows<Spec>(rows, end, first, all, [&](idx i) { return chose(i); });
    }
    return end - begin < Spec::block_m ? end - begin : Spec::block_m;
  }
};

/// Where they stand, for a tile that fills the list itself where it has no number of rows.
template <class Spec, class Which> struct ListedRows {
  Choosers<Spec, Which>* from;
  TFCC_FN idx count(idx rows) { return rows ? rows : from->fill(); }
  TFCC_FN idx of_a(idx i) const { return of_out(i) / from->share; }
  TFCC_FN idx of_out(idx i) const { return from->rows.list[from->begin + i]; }
};

}  // namespace grouped_matmul_detail

/// `Matrices`: what the kernel is called with.
template <class Spec, class Matrices> struct GroupedMatmulShape {
  static constexpr int ring_bytes = Matrices::template ring_bytes<Spec>,
                       shared_bytes = ring_bytes + (int)sizeof(grouped_matmul_detail::Rows<Spec>);
};

/// Matrices of values.
template <class T> struct StoredMatrices {
  template <class Spec> static constexpr int ring_bytes = MatmulOrderedShape<Spec>::shared_bytes;
  const T* values;
  template <class Spec> TFCC_FN const T* of(i64 group, idx columns, idx k) const {
    return values + group * (i64)columns * k;
  }
};
template <class T> StoredMatrices(const T*) -> StoredMatrices<T>;

/// Of codes, bytes [groups, columns, k / per_code]: weight.value(..) of each value in a code. All but
/// the code is shared by `chunk` neighbours along k, of a column counted through all matrices
/// (codegen/matmul/matmul.h).
template <class Spec, class Weight> struct CodedMatrices {
  template <class S> static constexpr int ring_bytes = MatmulOrderedShape<S>::shared_bytes;
  const typename Spec::Code* codes;
  Weight weight;

  struct Matrix {
    static constexpr bool computed = true;
    static constexpr int ahead = Spec::ahead;
    static constexpr int per = Spec::per_code, chunk = 16 * per, of_row = Spec::block_k / chunk,
                         all = Spec::block_n * of_row, each = ceil_div(all, Spec::threads);
    static_assert(Spec::block_k % chunk == 0 && Spec::parts == 1, "block_k: whole chunks of a row");
    const typename Spec::Code* codes;  // of its first column
    const Weight& weight;
    idx before, columns, k;  // before: columns of the matrices before it

    /// What a thread has of a step: asked for before, and what is converted as soon as it is loaded.
    struct Pieces {
      uint4 codes[each];
    };
    struct Shares {
      typename Weight::Shared of[each];
    };
    /// Calls f(i, row of the tile, chunk of the row) for the pieces of this thread that are there.
    template <class F> TFCC_FN void for_each(idx first_n, int step, const F& f) const {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int id = i * Spec::threads + (int)threadIdx.x, row = id / of_row, c = id % of_row;
        if (all % Spec::threads != 0 && id >= all) break;
        if (first_n + row < columns && (step * of_row + c) * chunk < k) f(i, row, c);
      }
    }
    TFCC_FN void ask(Pieces& pieces, idx first_n, int step) const {
      for_each(first_n, step, [&](int i, int row, int c) {
        const idx at = step * of_row + c;
        pieces.codes[i] =
            *(const uint4*)(codes + (i64)(first_n + row) * (k / per) + at * (chunk / per));
      });
    }
    /// Without a branch, so that loads of several steps are on their way together; of what is not
    /// there something that is.
    TFCC_FN void share(Shares& shares, idx first_n, int step) const {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int id = i * Spec::threads + (int)threadIdx.x, row = id / of_row, c = id % of_row;
        shares.of[i] = weight.shared(before + imin(first_n + row, columns - 1),
                                     imin((idx)(step * of_row + c), k / chunk - 1));
      }
    }
    TFCC_FN void compute(const Pieces& pieces, const Shares& shares, unsigned char* tile, int pitch,
                         idx first_n, int step, idx) const {
      for_each(first_n, step, [&](int i, int row, int c) {
        store_values<Spec>(pieces.codes[i], shares.of[i], weight,
                           [&](int v) { return tile + row * pitch + (c * chunk + v) * 2; });
      });
    }
  };
  template <class S> TFCC_FN Matrix of(i64 group, idx columns, idx k) const {
    static_assert(kSame<S, Spec>, "of the same kernel");
    return {codes + group * (i64)columns * (k / Spec::per_code), weight, (idx)group * columns,
            columns, k};
  }
};

/// The same for few rows, whose products compute the values where they need them (CodedTile).
template <class Spec, class Weight> struct FewRowsOfCodes {
  template <class S> static constexpr int ring_bytes = CodedTileShape<S>::shared_bytes;
  const typename Spec::Code* codes;
  Weight weight;
  template <class S> TFCC_FN CodedRows<Spec, Weight> of(i64 group, idx columns, idx k) const {
    static_assert(kSame<S, Spec>, "of the same kernel");
    return {codes + group * (i64)columns * (k / Spec::per_code), weight, (idx)group * columns};
  }
};

/// Of whatever weight(group, column, p) is.
template <class Weight> struct ComputedMatrices {
  template <class Spec> static constexpr int ring_bytes = MatmulOrderedShape<Spec>::shared_bytes;
  Weight weight;
  template <class Spec> struct Matrix {
    static constexpr bool computed = true;
    static constexpr int ahead = 1;
    const Weight& weight;
    idx group, columns, k;
    struct Pieces {};
    struct Shares {};
    TFCC_FN void ask(Pieces&, idx, int) const {}
    TFCC_FN void share(Shares&, idx, int) const {}
    TFCC_FN void compute(const Pieces&, const Shares&, unsigned char* tile, int pitch, idx first_n,
                         int step, idx part_k) const {
      constexpr int all = Spec::parts * Spec::block_n * Spec::block_k;
      for (int id = threadIdx.x; id < all; id += Spec::threads) {
        const int row = id / Spec::block_k, c = id % Spec::block_k, j = row % Spec::block_n;
        const idx p = row / Spec::block_n * part_k + step * Spec::block_k + c;
        if (first_n + j >= columns) continue;
        store((typename Spec::T*)(tile + row * pitch), c,
              p < k ? weight(group, first_n + j, p) : 0.0f);
      }
    }
  };
  template <class Spec> TFCC_FN Matrix<Spec> of(i64 group, idx columns, idx k) const {
    return {weight, (idx)group, columns, k};
  }
};

namespace grouped_matmul_detail {

template <class Matrix> inline constexpr bool kInCodes = false;
template <class Spec, class Weight> inline constexpr bool kInCodes<CodedRows<Spec, Weight>> = true;

/// The products of a tile by a matrix; returns how many rows it had.
template <class Spec, class Rows, class Matrix>
TFCC_FN idx multiply(unsigned char* ring, typename Spec::Out* out, const typename Spec::T* x,
                     const Matrix& matrix, idx now, idx columns, idx k, idx first_n,
                     const Rows& place) {
  const auto run = [&](auto tile) {
    tile.run(out, x, matrix, Sum{});
    return tile.rows;
  };
  if constexpr (kInCodes<Matrix>)
    return run(CodedTile<Spec, Rows>{ring, now, columns, k, first_n, place});
  else
    return run(matmul_ordered_detail::Tile<Spec, Spec::block_m, Spec::block_n, Spec::own_m,
                                           Spec::own_n, Rows>{
        ring, now, columns, k, 0, first_n, matmul_ordered_detail::part_of<Spec>(k), place, {}});
}

}  // namespace grouped_matmul_detail

template <class Spec, class Matrices, class Which>
TFCC_FN void grouped_matmul(typename Spec::Out* out, const typename Spec::T* x, const Matrices& w,
                            idx rows, idx columns, idx k, idx share, const Which& which) {
  using namespace grouped_matmul_detail;
  TFCC_DYNAMIC_SHARED(ring);
  Rows<Spec>& chosen = *(Rows<Spec>*)(ring + GroupedMatmulShape<Spec, Matrices>::ring_bytes);
  const idx slots = rows < Spec::groups ? rows : (idx)Spec::groups;
  if (slots == 0) return;
  const idx slot = (idx)blockIdx.x % slots, first_n = (idx)blockIdx.x / slots * Spec::block_n;
  if (first_n >= columns) return;
  Choosers<Spec, Which> choosers{chosen, which, share, rows, slots == rows, slot, 0};
  if (choosers.few) {
    for (idx i = threadIdx.x; i < rows; i += Spec::threads) chosen.choice[i] = (i32)which(i);
    __syncthreads();
    choosers.group = chosen.choice[slot];
    bool earlier = false;
    for (idx i = threadIdx.x; i < slot; i += Spec::threads) earlier |= choosers.chose(i);
    if (__syncthreads_or(earlier)) return;
    choosers.first = slot;
  }
  const auto matrix = w.template of<Spec>(choosers.group, columns, k);
  // Of few rows there is one at least, which need not be known when the matrix is asked for.
  int now = choosers.few ? 0 : choosers.fill();
  while (now > 0 || choosers.few) {
    const idx rows_of_tile = grouped_matmul_detail::multiply<Spec, ListedRows<Spec, Which>>(
        ring, out, x, matrix, now, columns, k, first_n, {&choosers});
    __syncthreads();  // the ring and the list are free
    choosers.begin += (int)rows_of_tile;
    now = choosers.fill();
    if (now == 0) return;
  }
}

// SPDX-License-Identifier: Apache-2.0
// Building blocks of attention: the launch shape, copies of tiles to shared memory, which keys a
// tile has, masking.
#pragma once
#include "cuda/sm80.cuh"

/// Nothing is hidden; every key is live; the score is s * Spec::score_scale.
struct AllVisible {
  TFCC_FN bool operator()(idx, idx, idx, idx) const { return true; }
};
struct AllLive {
  TFCC_FN bool operator()(idx, idx) const { return true; }
};
struct NoScore {
  TFCC_FN f32 operator()(f32 s, idx, idx, idx, idx) const { return s; }
};
/// No score takes part beside those of the keys.
struct NoSink {
  TFCC_FN f32 operator()(idx, idx) const { return -kInf; }
};

/// What comes of the product of q and k, plus what is added, in operations that compilers fuse with
/// no others: so it has the same bits whether `added` was computed long before or just now.
struct ScaledProduct {
  f32 scale;
  TFCC_FN f32 plus(f32 s, f32 added, idx, idx, idx, idx) const {
    return __fmaf_rn(s, scale, added);
  }
};
template <class F> struct AnyProduct {
  F of;
  TFCC_FN f32 plus(f32 s, f32 added, idx b, idx h, idx i, idx j) const {
    return __fadd_rn(of(s, b, h, i, j), added);
  }
};
/// A score that is a sum: what is added needs no product, added(b, h, i, j). cuda/attention_wgmma.cuh
/// has it while the product is under way.
template <class Added, class Product> struct SumScore {
  Added added;
  Product product;
  TFCC_FN f32 operator()(f32 s, idx b, idx h, idx i, idx j) const {
    return product.plus(s, added(b, h, i, j), b, h, i, j);
  }
};
/// The same for that template alone, where what is added depends on d = j - i: added(b, h, d).
template <class Added, class Product> struct DiagonalScore {
  Added added;
  Product product;
};

/// What a row is multiplied by whose weights come to `total`; 0 without a visible key.
TFCC_FN f32 row_scale(f32 total) { return total == 0.0f ? 0.0f : 1.0f / total; }
/// The same of a row whose largest score is `top`, before it is scaled, with the weight of a sink.
/// Where that is beyond all floats the keys count for nothing.
template <class Spec, class Sink> TFCC_FN f32 row_scale(f32 total, f32 top, f32 sink) {
  if constexpr (!kSame<Sink, NoSink>) {
    if (top == -kInf) return 0.0f;
    total = __fadd_rn(total, expf(__fsub_rn(sink, Spec::scaled ? top * Spec::score_scale : top)));
  }
  return row_scale(total);
}

/// Rows of a tile in shared memory, in chunks of 16 bytes. A row of 16-bit elements whose length is
/// a multiple of 64 is permuted (chunk XOR row), any other padded: ldmatrix and the f32 reads then
/// meet no bank twice.
template <class T, int columns> struct TileRows {
  static constexpr int chunk = 16 / (int)sizeof(T);    // elements
  static constexpr int width = round_up(columns, 16);  // with zero columns
  static constexpr bool permuted = sizeof(T) == 2 && width % 64 == 0;
  static constexpr int stride = permuted ? width : width + chunk;
  static TFCC_FN int at(int row, int c) {
    return row * stride + (permuted ? c ^ (row & 7) : c) * chunk;
  }
};
/// The same without padding, for tiles that are read along rows only.
template <class T, int columns> struct PlainRows {
  static constexpr int chunk = 16 / (int)sizeof(T);
  static constexpr int width = round_up(columns, 16);
  static constexpr int stride = width;
  static TFCC_FN int at(int row, int c) { return row * stride + c * chunk; }
};

/// Rows of 16-byte chunks: cp.async may copy them.
template <class Spec> struct AttentionChunks {
  static TFCC_FN constexpr bool chunked(int columns, int stride) {
    constexpr int size = (int)sizeof(typename Spec::T);
    return Spec::aligned && columns * size % 16 == 0 && stride * size % 16 == 0;
  }
};

/// Whether products are those of tensor cores: of 16 bits, and of f32 where they are in TF32, one
/// (tf32 = 1) or three for each.
template <class Spec> TFCC_FN constexpr bool on_tensor_cores() {
  if constexpr (sizeof(typename Spec::T) == 2) return true;
  else return Spec::tf32 > 0;
}

/// Whether an operand of f32 is two numbers in TF32.
template <class Spec> TFCC_FN constexpr bool splits_f32() {
  if constexpr (sizeof(typename Spec::T) == 2) return false;
  else return Spec::tf32 == 3;
}

/// What codegen needs for the launch, and the layout of shared memory.
template <class Spec> struct AttentionShape : AttentionChunks<Spec> {
  using T = typename Spec::T;
  static constexpr bool tensor_cores = on_tensor_cores<Spec>();
  static constexpr int block_m = Spec::block_m, block_n = Spec::block_n;
  using QkRows = TileRows<T, Spec::head_dim>;
  static constexpr int v_width = round_up(Spec::v_dim, 16);
  static constexpr int v_stride = tensor_cores ? TileRows<T, Spec::v_dim>::stride : v_width;
  static constexpr int threads = tensor_cores ? 2 * block_m : 4 * block_m;
  static constexpr int q_elements =
      block_m * (tensor_cores && v_stride > QkRows::stride ? v_stride : QkRows::stride);
  static constexpr int k_elements = block_n * QkRows::stride;
  static constexpr int v_elements = block_n * v_stride;
  static constexpr int p_elements = tensor_cores ? 0 : block_m * (block_n + 4);
  static constexpr int stages = tensor_cores ? 2 : 1;
  static constexpr int shared_bytes =
      (int)sizeof(T) * (q_elements + stages * (k_elements + v_elements) + p_elements);

  static_assert(kSame<T, f16> || kSame<T, bf16> || kSame<T, f32>, "T: f16, bf16 or f32");
  static_assert(Spec::head_dim >= 1 && Spec::head_dim <= 256 && Spec::v_dim >= 1 &&
                    Spec::v_dim <= 256,
                "head_dim, v_dim: 1..256");
  static_assert(Spec::kv_heads >= 1 && Spec::heads % Spec::kv_heads == 0,
                "heads: a multiple of kv_heads");
  static_assert(is_power_of_two(block_m) && block_m >= 16 && block_m <= (tensor_cores ? 128 : 64),
                "block_m: 16, 32, 64, with 16-bit types 128");
  static_assert(is_power_of_two(block_n) && block_n >= 16 && block_n <= (tensor_cores ? 128 : 64),
                "block_n: 16, 32, 64, with 16-bit types 128");
  static_assert(!Spec::scaled || Spec::score_scale > 0, "score_scale: positive");
};

// ---- asynchronous copies ----

/// All rows of a tile are copied.
struct AllRows {
  TFCC_FN bool operator()(int) const { return true; }
};
/// Copies `rows` rows of `columns` elements to shared memory by all threads, or by those of which
/// `thread` is one; zeros for rows that `valid` denies and for columns up to Rows::width. Complete
/// after commit_copies, wait_copies and a barrier.
template <class Rows, int rows, int columns, bool chunked, int threads, class T, class Valid>
TFCC_FN void copy_tile(T* to, const T* from, i64 stride, const Valid& valid,
                       int thread = (int)threadIdx.x) {
  constexpr int per_row = Rows::width / Rows::chunk;
  constexpr int total = rows * per_row, steps = ceil_div(total, threads);
#pragma unroll(steps > 8 && !kSame <Valid, AllRows> ? 4 : steps)
  for (int first = 0; first < total; first += threads) {
    const int e = first + thread;
    if (total % threads != 0 && e >= total) break;
    const int row = e / per_row, c = e % per_row;
    const bool live = valid(row);
    T* place = to + Rows::at(row, c);
    const T* source = from + row * stride + c * Rows::chunk;
    if constexpr (chunked) {
      const bool inside = live && c * Rows::chunk < columns;
      copy_async(place, inside ? source : from, inside);
    } else {
      union {
        uint4 word;
        T e[Rows::chunk];
      } u;
      u.word = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int k = 0; k < Rows::chunk; ++k) {
        if (live && c * Rows::chunk + k < columns) u.e[k] = source[k];
      }
      *(uint4*)place = u.word;
    }
  }
}

/// Tile `tile` of Spec::block_n keys of the sequence of `block`, `width` elements each, tokens of
/// `from` `stride` apart; as copy_tile.
template <class Spec, class Rows, int width, int stride, int threads, class Block, class Bits>
TFCC_FN void copy_key_tile(typename Spec::T* to, const typename Spec::T* from, const Block& block,
                           idx tile, const Bits& bits, int thread = (int)threadIdx.x) {
  copy_tile<Rows, Spec::block_n, width, AttentionChunks<Spec>::chunked(width, stride), threads>(
      to, from + block.key_row(tile * Spec::block_n, stride, width), stride, bits, thread);
}
/// The queries of `block`, whose first is `first_row` of q; zeros where it has none.
template <class Spec, class Rows, int threads, class Block>
TFCC_FN void copy_query_tile(typename Spec::T* to, const typename Spec::T* q, const Block& block,
                             i64 first_row) {
  const int left = block.queries - block.first;
  copy_tile<Rows, Spec::block_m, Spec::head_dim,
            AttentionChunks<Spec>::chunked(Spec::head_dim, Spec::q_stride), threads>(
      to, q + first_row * Spec::q_stride + block.h * Spec::head_dim, Spec::q_stride,
      [&](int row) { return row < left; });
}

// ---- keys ----

/// The live keys of one tile as bits; the same in every lane of every warp.
template <int block_n> struct KeyBits {
  static constexpr int words = ceil_div(block_n, kWarp);
  static constexpr u32 full = block_n < kWarp ? (1u << (block_n % kWarp)) - 1 : kAllLanes;
  u32 word[words];

  TFCC_FN bool all() const {
    bool r = true;
#pragma unroll
    for (int w = 0; w < words; ++w) r = r && word[w] == full;
    return r;
  }
  /// Shifts instead of indexing, which would put the words into local memory.
  TFCC_FN bool operator()(int key) const {
    u64 bits = word[0];
    if constexpr (words > 1) bits |= (u64)word[1] << 32;
    if constexpr (words > 2) bits = key < 64 ? bits : word[2] | (u64)word[3] << 32;
    return (bits >> (key % 64)) & 1;
  }
};

/// The first tile from `tile` on with a live key below `limit`, and its bits; `tiles` if there is
/// none. Every warp finds out for itself: the reads are shared through L1, and no barrier is needed
/// to agree.
template <int block_n, class Live>
TFCC_FN idx next_tile(idx tile, idx tiles, idx limit, idx b, const Live& live,
                      KeyBits<block_n>& bits) {
  if constexpr (kSame<Live, AllLive>) {
#pragma unroll
    for (int w = 0; w < KeyBits<block_n>::words; ++w) {
      const idx left = limit - tile * block_n - w * kWarp;
      bits.word[w] = left >= kWarp ? KeyBits<block_n>::full
                     : left <= 0   ? 0
                                   : KeyBits<block_n>::full & ((1u << left) - 1);
    }
    return tile < tiles ? tile : tiles;
  }
  const int lane = threadIdx.x % kWarp;
  for (; tile < tiles; ++tile) {
    u32 any = 0;
#pragma unroll
    for (int w = 0; w < KeyBits<block_n>::words; ++w) {
      const idx j = tile * block_n + w * kWarp + lane;
      const bool alive = lane < block_n && j < limit && live(b, j);
      bits.word[w] = __ballot_sync(kAllLanes, alive);
      any |= bits.word[w];
    }
    if (any != 0) break;
  }
  return tile;
}

/// Where the rows of a sequence lie: all have as many, one sequence behind the other.
struct PaddedRows {
  static constexpr bool packed = false, paged = false, listed = false, held = false;
  idx queries, keys;
  TFCC_FN idx sequence(idx place) const { return place; }
  TFCC_FN idx query_count(idx) const { return queries; }
  TFCC_FN idx key_count(idx) const { return keys; }
  TFCC_FN i64 first_query(idx b) const { return (i64)b * queries; }
  TFCC_FN i64 first_key(idx b) const { return (i64)b * keys; }
  /// Where the row of key j of a key head begins, of `width` elements; tokens are `stride` apart.
  TFCC_FN i64 key_row(idx b, idx head, idx j, int stride, int width) const {
    return (first_key(b) + j) * stride + head * width;
  }
  TFCC_FN idx diagonal() const { return keys - queries; }
  TFCC_FN idx position(idx, idx row) const { return row; }
  TFCC_FN idx key_position(idx, idx j) const { return j; }
  TFCC_FN idx first_of_run(idx, idx, idx) const { return 0; }
};
/// A number of a table; `early`: where all multiprocessors see the same, before the launches before
/// this one have ended.
template <bool early> TFCC_FN i32 read_table(const i32* p) {
  if constexpr (early) return fresh(p);
  else return *p;
}

/// Rows that a pack left (ir/ops.md): each sequence has its own number, keys first, in order; `pos`
/// is where a row stood. If `early`, what says which rows a sequence has is read before the
/// launches before this one have ended; positions are not.
template <bool early> struct PackedRowsAt {
  static constexpr bool packed = true, paged = false, listed = false, held = early;
  const i32 *cu, *keys, *order, *pos;
  TFCC_FN static idx at(const i32* p) { return read_table<early>(p); }
  TFCC_FN idx sequence(idx place) const { return at(order + place); }
  TFCC_FN idx query_count(idx b) const { return at(cu + b + 1) - at(cu + b); }
  TFCC_FN idx key_count(idx b) const { return at(keys + b); }
  TFCC_FN i64 first_query(idx b) const { return at(cu + b); }
  TFCC_FN i64 first_key(idx b) const { return first_query(b); }
  TFCC_FN i64 key_row(idx b, idx head, idx j, int stride, int width) const {
    return (first_key(b) + j) * stride + head * width;
  }
  TFCC_FN idx diagonal() const { return 0; }
  TFCC_FN idx position(idx b, idx row) const { return pos[cu[b] + row]; }
  TFCC_FN idx key_position(idx b, idx j) const { return position(b, j); }
  /// Positions of keys rise.
  TFCC_FN idx first_of_run(idx b, idx queries_, idx keys_) const {
    if (queries_ != keys_ || keys_ == 0) return -1;
    const idx at = position(b, 0);
    return position(b, keys_ - 1) - at == keys_ - 1 ? at : -1;
  }
};
using PackedRows = PackedRowsAt<false>;
using EarlyPackedRows = PackedRowsAt<true>;

/// Queries as PackedRows, their positions rising in a sequence; keys in pages of a cache [pages,
/// heads, page, width], where key j has position j. `table` has `most` pages for each sequence.
/// Keys of one tile lie in one page. If `early` they are read before the launches before this one
/// have ended, where all multiprocessors see the same.
template <int page, int heads, bool early = false> struct PagedRows {
  static constexpr bool packed = true, paged = true, listed = false, held = false;
  static constexpr int page_size = page, most_queries = 0;
  const i32 *cu, *keys, *order, *pos, *table;
  idx most, pages;
  TFCC_FN static i32 at(const i32* p) { return read_table<early>(p); }
  TFCC_FN idx sequence(idx place) const { return at(order + place); }
  TFCC_FN idx query_count(idx b) const { return at(cu + b + 1) - at(cu + b); }
  TFCC_FN idx key_count(idx b) const { return imin(at(keys + b), most * page); }
  TFCC_FN i64 first_query(idx b) const { return at(cu + b); }
  TFCC_FN i64 key_row(idx b, idx head, idx j, int, int width) const {
    const i64 own = imax(0, imin(at(table + (i64)b * most + j / page), pages - 1));
    return ((own * heads + head) * page + j % page) * width;
  }
  TFCC_FN idx diagonal() const { return 0; }
  TFCC_FN idx position(idx b, idx row) const { return at(pos + at(cu + b) + row); }
  TFCC_FN idx position_of(i64 query) const { return at(pos + query); }
  TFCC_FN idx key_position(idx, idx j) const { return j; }
};

struct TilePlace {
  idx sequence, tile;  // -1: there is no such tile
};
/// Tile `place` of those of all sequences, one behind the other, of which sequence b has
/// tiles_of(b). All lanes of a warp ask for the same; what they read of several sequences is on its
/// way at once.
template <class Tiles>
TFCC_FN TilePlace tile_place(idx place, idx sequences, const Tiles& tiles_of) {
  constexpr int ways = 4;
  const int lane = threadIdx.x % kWarp;
  for (idx from = 0; from < sequences; from += ways * kWarp) {
    idx own[ways];
#pragma unroll
    for (int w = 0; w < ways; ++w) {
      const idx mine = from + w * kWarp + lane;
      own[w] = mine < sequences ? tiles_of(mine) : 0;
    }
#pragma unroll
    for (int w = 0; w < ways; ++w) {
      idx up_to = own[w];
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const idx before = __shfl_up_sync(kAllLanes, up_to, step);
        up_to += lane >= step ? before : 0;
      }
      const u32 behind = __ballot_sync(kAllLanes, up_to > place);
      if (behind != 0) {
        const int at = __ffs(behind) - 1;
        return {from + w * kWarp + at,
                place - (__shfl_sync(kAllLanes, up_to, at) - __shfl_sync(kAllLanes, own[w], at))};
      }
      place -= __shfl_sync(kAllLanes, up_to, kWarp - 1);
    }
  }
  return {-1, 0};
}

/// Of those sequences alone that have at most so many queries: the others have none.
template <int most_, class Rows> struct FewQueries : Rows {
  static constexpr int most_queries = most_;
  TFCC_FN idx query_count(idx b) const {
    const idx n = Rows::query_count(b);
    return n <= most_ ? n : 0;
  }
};
/// Of the others. A block looks for its tile among those of all.
template <int most, class Rows> struct ManyQueries : Rows {
  static constexpr bool listed = true;
  idx sequences;
  TFCC_FN idx query_count(idx b) const {
    const idx n = Rows::query_count(b);
    return n > most ? n : 0;
  }
};
template <int most, class Rows> TFCC_FN FewQueries<most, Rows> few_queries(const Rows& rows) {
  return {rows};
}
template <int most, class Rows>
TFCC_FN ManyQueries<most, Rows> many_queries(const Rows& rows, idx sequences) {
  return {rows, sequences};
}

/// What a block works on. Rows are counted in their sequence; scores and conditions are told
/// positions.
template <class Spec, class Rows> struct AttentionBlock {
  static constexpr bool packed = Rows::packed, paged = Rows::paged;
  Rows rows;
  idx b, h, kv_head, first, queries, keys;
  idx limit;  // keys below it are seen by some query of the block
  idx first_tile, tiles;
  idx held_first;  // of Rows::held: the sequence's first row
  static constexpr int right = Spec::causal ? 0 : Spec::window_right,
                       left = Spec::window_left;  // -1: no end

  /// `place`: among the blocks of its sequence and head; of a list those of its head. Without a
  /// place, or a sequence, there are no queries.
  TFCC_FN AttentionBlock(const Rows& rows_, idx place, idx sequences) : rows(rows_) {
    h = (idx)blockIdx.y;
    kv_head = h / (Spec::heads / Spec::kv_heads);
    queries = first = 0;
    if ((idx)blockIdx.z >= sequences) return;
    if constexpr (Rows::listed) {
      const TilePlace at = tile_place(place, rows.sequences, [&](idx s) {
        return ceil_div(rows.query_count(s), Spec::block_m);
      });
      b = at.sequence;
      if (b < 0) return;
      first = at.tile * Spec::block_m;
    } else {
      b = rows.sequence((idx)blockIdx.z);
      first = place * Spec::block_m;
    }
    queries = rows.query_count(b);
    keys = rows.key_count(b);
    if constexpr (Rows::held) held_first = (idx)rows.first_query(b);
    if constexpr (Rows::paged) {
      static_assert(Rows::page_size % Spec::block_n == 0, "the keys of a tile lie in one page");
      const idx last = imin(first + Spec::block_m, queries) - 1;
      limit = right < 0 || first >= queries
                  ? keys
                  : imax(0, imin(keys, rows.position(b, last) + 1 + right));
      first_tile = left < 0 || first >= queries
                       ? 0
                       : imax(0, rows.position(b, first) - left) / Spec::block_n;
      tiles = (limit + Spec::block_n - 1) / Spec::block_n;
      return;
    }
    // Packing brings rows nearer to each other, so that a window of packed rows holds that of
    // positions; rows behind the keys stand anywhere.
    const bool in_order = !Rows::packed || first + Spec::block_m <= keys;
    limit = keys;
    if (right >= 0 && in_order)
      limit = imax(0, imin(keys, imin(first + Spec::block_m, queries) + rows.diagonal() + right));
    first_tile =
        left < 0 || !in_order ? 0 : imax(0, first + rows.diagonal() - left) / Spec::block_n;
    tiles = (limit + Spec::block_n - 1) / Spec::block_n;
  }

  /// The score of (i, j), -inf where the key is hidden. i and j may lie past the ends. `cut`: the
  /// tile has keys that `bit` denies or that causality or a window hides.
  template <class Score, class Visible>
  TFCC_FN f32 masked(f32 s, idx i, idx j, bool bit, bool cut, const Score& score,
                     const Visible& visible) const {
    const idx row = query_position(i), col = key_position(j);
    if constexpr (!Spec::scaled) s = score(s, b, h, row, col);
    if constexpr (!kSame<Visible, AllVisible>) s = visible(b, h, row, col) ? s : -kInf;
    if (cut) {
      const idx to = Rows::packed ? row : i + rows.diagonal(), from = Rows::packed ? col : j;
      if (right >= 0) bit = bit && from <= to + right;
      if (left >= 0) bit = bit && from >= to - left;
      s = bit ? s : -kInf;
    }
    return s;
  }
  /// Rows of the sequence's first query and key, which are not in pages.
  TFCC_FN i64 first_query() const {
    if constexpr (Rows::held) return held_first;
    else return rows.first_query(b);
  }
  TFCC_FN i64 first_key() const {
    if constexpr (Rows::held) return held_first;
    else return rows.first_key(b);
  }
  /// Where the row of key j begins.
  TFCC_FN i64 key_row(idx j, int stride, int width) const {
    if constexpr (Rows::held) return (first_key() + j) * stride + kv_head * width;
    else return rows.key_row(b, kv_head, j, stride, width);
  }
  /// Positions of a query and of a key, which may lie past the ends.
  TFCC_FN idx query_position(idx i) const { return rows.position(b, imin(i, queries - 1)); }
  TFCC_FN idx key_position(idx j) const { return rows.key_position(b, imin(j, keys - 1)); }
  /// The position of the first row, if the others follow it one by one, keys as queries; else -1.
  TFCC_FN idx first_of_run() const { return rows.first_of_run(b, queries, keys); }
  /// All of the block's queries and the tile's keys are there.
  TFCC_FN bool whole(idx tile) const {
    return (tile + 1) * Spec::block_n <= keys && first + Spec::block_m <= queries;
  }
  /// Some key of the tile is hidden from some of the `count` queries from `i` on, by `bits`, by
  /// causality or by a window.
  template <class Bits> TFCC_FN bool cuts(const Bits& bits, idx tile, idx i, int count) const {
    if constexpr (Rows::paged) {  // positions rise
      const idx lowest = rows.position(b, imin(i, queries - 1)),
                highest = rows.position(b, imin(i + count, queries) - 1);
      return !bits.all() || (right >= 0 && (tile + 1) * Spec::block_n - 1 > lowest + right) ||
             (left >= 0 && tile * Spec::block_n < highest - left);
    }
    if (Rows::packed && (right >= 0 || left >= 0)) return true;
    return !bits.all() ||
           (right >= 0 && (tile + 1) * Spec::block_n - 1 > i + rows.diagonal() + right) ||
           (left >= 0 && tile * Spec::block_n < i + count - 1 + rows.diagonal() - left);
  }
};

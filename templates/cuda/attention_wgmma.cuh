// SPDX-License-Identifier: Apache-2.0
// attention_wgmma: attention (cuda/attention.cuh has the formula) by warpgroups, on capability
// 9.0a.
//
// A block owns block_m queries of one head of one sequence, a warpgroup 64 of them. Scores, weights
// and results stay in registers:
// S = Q K^T reads q and k from shared memory, O += P V takes P from registers. A tile of keys and
// its values have one of two slots, which the first warp has TMA fill: the next tile is asked for
// while the scores of this one are computed. The others wait for that warp at each product, so it
// asks once a tile, and slots and descriptors are in uniform registers.
// A warpgroup alone does one thing after the other; several on a multiprocessor (five with heads of
// 64, four with what is added by distance, three with other functors; four or two with heads of
// 128), in different places, run the softmax of one beside the products of others. Keys and head_dim
// are taken in the order of the mma.sync form, in tiles of the same block_n: the results have the
// same bits; tiles in which a row sees no key change none.
// What a score adds to the product is computed while that is under way. If it depends on j - i alone
// a tile has 127 values, which threads exchange through shared memory.
// A box of keys may reach into the rows of the next sequence, or past the last: scores there are
// -inf, and values of dead keys are set to zero in shared memory, for 0 times NaN would be NaN.
//
// q, k and v are tensor maps of row-major 16-bit matrices in boxes of 64 columns, of block_m rows
// for q and block_n for k and v; heads of q begin at column q_offset, and so on.
// Spec: T (f16, bf16); early (sizes, and rows that rows() tells, are read before the launches before
// this one have ended); heads, kv_heads, head_dim, v_dim (64, 128); q_offset, k_offset, v_offset,
// out_stride; block_m (64, 128);
// block_n (64); causal; window_left, window_right (-1: none); scaled, score_scale.
// Block: 2 block_m threads. Grid: {ceil(queries, block_m), heads, batch}. Shared:
// AttentionWgmmaShape<Spec>::shared_bytes.
// Bound: 4 * queries * keys * head_dim FLOP a head; at head_dim 64 as many cycles of exp2.
// Measured on an H200 (docs/performance.md), 12 heads of 64: 35.5 us at 16 x 512 (363 TFLOP/s, 46%
// of what products of 8192 reach), 1.92 ms at 16 x 4096 (429 TFLOP/s, 54%).
#pragma once
#include "cuda/attention_additions.cuh"
#include "cuda/attention_softmax.cuh"
#include "cuda/sm90.cuh"

template <class Spec> struct AttentionWgmmaShape {
  static constexpr int groups = Spec::block_m / 64, threads = groups * 128, slots = 2;
  static constexpr int q_bytes = Spec::block_m * Spec::head_dim * 2;
  static constexpr int k_bytes = Spec::block_n * Spec::head_dim * 2,
                       v_bytes = Spec::block_n * Spec::v_dim * 2;
  static constexpr int shared_bytes =
      q_bytes + slots * (k_bytes + v_bytes) + 1024;  // the tiles are aligned within it
  static_assert(Spec::block_m == 64 || Spec::block_m == 128, "block_m: 64 or 128");
  static_assert(Spec::block_n == 64, "block_n: 64");
  static_assert((Spec::head_dim == 64 || Spec::head_dim == 128) &&
                    (Spec::v_dim == 64 || Spec::v_dim == 128),
                "head_dim, v_dim: 64 or 128");
  static_assert(Spec::kv_heads >= 1 && Spec::heads % Spec::kv_heads == 0,
                "heads: a multiple of kv_heads");
};

#if __CUDA_ARCH__ >= 900

namespace attention_wgmma_detail {

/// Tiles of a block in shared memory, and the barriers of their arrival and their release.
template <class Spec> struct Memory {
  using S = AttentionWgmmaShape<Spec>;
  struct Barriers {
    u64 q, full[S::slots], empty[S::slots];
    // What is needed now and then, so that no register has it.
    idx first_query, first_key, left;
  };
  unsigned char* base;
  Barriers* barriers;

  TFCC_FN unsigned char* q() const { return base; }
  TFCC_FN unsigned char* k(int slot) const { return base + S::q_bytes + slot * S::k_bytes; }
  TFCC_FN unsigned char* v(int slot) const {
    return base + S::q_bytes + S::slots * S::k_bytes + slot * S::v_bytes;
  }

  /// By one thread, for so many warpgroups that work.
  TFCC_FN void init(int groups) const {
    sm90::init_barrier(&barriers->q, 1);
    for (int s = 0; s < S::slots; ++s) {
      sm90::init_barrier(&barriers->full[s], 1);
      sm90::init_barrier(&barriers->empty[s], groups * 4);
    }
    sm90::publish_barriers();
  }
};

/// By one warp: a tile of `rows` rows and `columns` columns, 64 columns a box. Who asks has announced
/// its bytes.
template <int rows, int columns>
TFCC_FN void ask_for_tile(unsigned char* to, const TensorMap& map, idx row, int column, u64* full) {
#pragma unroll
  for (int c = 0; c < columns; c += 64)
    sm90::copy_box_once(to + c * rows * 2, map, row, column + c, full);
}

using Ring = sm90::RingPlace<2>;

/// What the first warp asks TMA for.
template <class Spec, class Block> struct Loader {
  const Memory<Spec>& at;
  const TensorMap &q, &k, &v;
  const Block& block;

  TFCC_FN void ask_for_queries() const {
    sm90::arrive_and_announce_once(&at.barriers->q, AttentionWgmmaShape<Spec>::q_bytes);
    ask_for_tile<Spec::block_m, Spec::head_dim>(at.q(), q, at.barriers->first_query,
                                                Spec::q_offset + block.h * Spec::head_dim,
                                                &at.barriers->q);
  }
  /// Keys and values, when all have released the slot; the first time nobody has to.
  TFCC_FN void ask_for(idx tile, const Ring& to) const {
    using S = AttentionWgmmaShape<Spec>;
    u64* const full = &at.barriers->full[to.slot];
    const idx row = at.barriers->first_key + tile * Spec::block_n;
    sm90::wait(&at.barriers->empty[to.slot], to.parity ^ 1);
    sm90::arrive_and_announce_once(full, S::k_bytes + S::v_bytes);
    ask_for_tile<Spec::block_n, Spec::head_dim>(
        at.k(to.slot), k, row, Spec::k_offset + block.kv_head * Spec::head_dim, full);
    ask_for_tile<Spec::block_n, Spec::v_dim>(at.v(to.slot), v, row,
                                             Spec::v_offset + block.kv_head * Spec::v_dim, full);
  }
};

/// One warpgroup: 64 queries.
template <class Spec> struct Group {
  using T = typename Spec::T;
  static constexpr int n = Spec::block_n, d = Spec::head_dim, dv = Spec::v_dim;
  f32 s[n / 8][4], o[dv / 8][4];
  u32 p[n / 16][4];
  OnlineSoftmax<Spec> softmax;

  TFCC_FN Group() {
#pragma unroll
    for (int t = 0; t < dv / 8; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[t][c] = 0.0f;
    }
  }
  TFCC_FN f32 (&scores())[n / 2] { return *(f32(*)[n / 2]) & s[0][0]; }
  TFCC_FN f32 (&results())[dv / 2] { return *(f32(*)[dv / 2]) & o[0][0]; }

  /// s = q k^T. Parts of 64 columns are boxes.
  TFCC_FN void begin_scores(u64 q, u64 k) {
    sm90::hold(scores());
    sm90::begin_products();
#pragma unroll
    for (int e = 0; e < d; e += 16) {
      const int part = e / 64, within = e % 64 * 2;
      sm90::multiply<T, n, false>(scores(), sm90::advance(q, part * Spec::block_m * 128 + within),
                                  sm90::advance(k, part * n * 128 + within), e > 0);
    }
    sm90::end_products();
  }
  TFCC_FN void wait_for_scores() {
    sm90::wait_for_products<0>();
    sm90::hold(scores());
  }
  TFCC_FN void pack_weights() {
#pragma unroll
    for (int t = 0; t < n / 16; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        p[t][c] = pack2<T>(s[2 * t + c / 2][c % 2 * 2], s[2 * t + c / 2][c % 2 * 2 + 1]);
    }
  }
  /// o += p v.
  TFCC_FN void begin_results(u64 v) {
    hold_results();
    sm90::begin_products();
#pragma unroll
    for (int t = 0; t < n / 16; ++t)
      sm90::multiply<T, dv, true>(results(), p[t], sm90::advance(v, t * 2048));
    sm90::end_products();
  }
  TFCC_FN void wait_for_results() {
    sm90::wait_for_products<0>();
    hold_results();
  }
  /// What wgmma reads and writes in registers is touched before and after, not beside.
  TFCC_FN void hold_results() {
    sm90::hold(results());
#pragma unroll
    for (int t = 0; t < n / 16; ++t) sm90::hold(p[t]);
  }

  /// o / sum of the first `count` rows; rows without a visible key are 0.
  template <class Sink> TFCC_FN void store_results(T* out, int count, f32 sink) {
    const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp % 4 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const f32 scale = softmax.template scale<Sink>(r, sink);
      const int row = first + 8 * r;
#pragma unroll
      for (int t = 0; t < dv / 8; t += 4) {
        u32 pairs[4];
#pragma unroll
        for (int q = 0; q < 4; ++q)
          pairs[q] = pack2<T>(o[t + q][2 * r] * scale, o[t + q][2 * r + 1] * scale);
        sm90::exchange_in_fours(pairs);
        if (row < count)
          *(uint4*)(out + (i64)row * Spec::out_stride + (t + lane % 4) * 8) =
              make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
};

/// Values of dead keys become 0; two threads of warpgroup `index` have a row.
template <class Spec>
TFCC_FN void clear_dead(unsigned char* v, const KeyBits<Spec::block_n>& bits, int index) {
  constexpr int n = Spec::block_n;
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int key = thread / 2; key < n; key += 64) {
    if (bits(key)) continue;
#pragma unroll
    for (int c = 0; c < Spec::v_dim; c += 64) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        *(uint4*)(v + c * n * 2 + key * 128 + thread % 2 * 64 + e * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  sm90::publish_writes();
  if (index == 0) sm90::meet<1>(128);
  else sm90::meet<2>(128);
}

/// Whether all keys of a tile are alive, of bits that nobody has looked at.
struct AllOrSome {
  bool live;
  TFCC_FN bool all() const { return live; }
};

/// Scores of a warp, whose first row is `row`, against the tile that `keys` is at; what is hidden
/// becomes -inf.
template <class Spec, int n, class Block, class Score, class Keys, class Visible>
TFCC_FN void finish_scores(f32 (&s)[n][4], const Block& block,
                           const Additions<Spec, Score, Block>& additions, const Keys& keys,
                           idx row, const Visible& visible) {
  const bool cut = block.cuts(AllOrSome{keys.all()}, keys.now, row, 16);
  if (Spec::scaled && kSame<Visible, AllVisible> && !cut) return;
  const int lane = (int)threadIdx.x % kWarp;
  mask_each_score<16>(
      s, block, lane, row + lane / 4, keys.now, keys.bits(), cut,
      [&](int t, int c) -> decltype(auto) { return additions.of(t, c); }, visible);
}

/// The live keys of a block's tiles, one after the other. Without dead keys within a sequence they
/// are computed where they are needed: no register has them.
template <class Spec, class Block, class Live> class LiveTiles {
  static constexpr int n = Spec::block_n;
  static constexpr bool counted = kSame<Live, AllLive>;

 public:
  const idx
      tiles;  // the same in all lanes, which the compiler sees, so that places in rings are, too
  idx now;    // `tiles`: there is none any more
  TFCC_FN LiveTiles(const Block& block, const Live& live)
      : tiles((idx)sm90::uniform((u32)block.tiles)), block_(block), live_(live) {
    now = find(block.first_tile, bits_);
  }
  TFCC_FN idx next() { return find(now + 1, next_bits_); }
  TFCC_FN void go_on(idx next) { now = next, bits_ = next_bits_; }
  TFCC_FN bool all() const {
    if constexpr (counted) return (now + 1) * n <= block_.limit;
    else return bits_.all();
  }
  TFCC_FN KeyBits<n> bits() const {
    KeyBits<n> found = bits_;
    if constexpr (counted) find(now, found);
    return found;
  }

 private:
  TFCC_FN idx find(idx tile, KeyBits<n>& bits) const {
    return next_tile<n>(tile, tiles, block_.limit, block_.b, live_, bits);
  }
  const Block& block_;
  const Live& live_;
  KeyBits<n> bits_, next_bits_;
};

/// By warpgroup `index` of a block; one warp of the block `asks`.
template <class Spec, class Block, class Score, class Visible, class Live, class Sink>
TFCC_FN void attend(typename Spec::T* out, const Memory<Spec>& at, const Block& block, int index,
                    const Loader<Spec, Block>& loader, bool asks, f32* of_distances,
                    const Score& score, const Visible& visible, const Live& live,
                    const Sink& sink) {
  using S = AttentionWgmmaShape<Spec>;
  constexpr int n = Spec::block_n;
  auto& barriers = *at.barriers;
  const u64 q = sm90::rows_of_k(sm90::uniform(sm90::shared_address(at.q()) + index * 64 * 128));
  const u64 k = sm90::rows_of_k(sm90::uniform(sm90::shared_address(at.k(0))));
  const u64 v = sm90::rows_of_n(sm90::uniform(sm90::shared_address(at.v(0))), n * 128);
  const bool releases = threadIdx.x % kWarp == 0;
  const idx warp_row = block.first + index * 64 + threadIdx.x / kWarp % 4 * 16;
  Additions<Spec, Score, Block> additions(score, block, of_distances);
  Group<Spec> group;
  LiveTiles<Spec, Block, Live> keys(block, live);
  const bool any = keys.now < keys.tiles;
  Ring ring;
  if (asks) {
    loader.ask_for_queries();
    if (any) loader.ask_for(keys.now, ring);
  }
  sm90::wait(&barriers.q, 0);  // what TMA writes must be there before the block ends
  if (any) {
    additions.begin(keys.now);
    sm90::wait(&barriers.full[0], 0);
    group.hold_results();
    group.begin_scores(q, k);
    while (true) {
      const idx next = keys.next();
      Ring ahead = ring;
      ahead.next();
      if (asks && next < keys.tiles) loader.ask_for(next, ahead);
      additions.take(keys.now, next);
      group.wait_for_scores();
      finish_scores<Spec>(group.s, block, additions, keys, warp_row, visible);
      group.softmax.update(group.s, group.o);
      group.pack_weights();
      if (!keys.all()) clear_dead<Spec>(at.v(ring.slot), keys.bits(), index);
      group.begin_results(sm90::advance(v, ring.slot * S::v_bytes));
      group.wait_for_results();
      if (next >= keys.tiles) break;
      if (releases) sm90::arrive(&barriers.empty[ring.slot]);
      sm90::wait(&barriers.full[ahead.slot], ahead.parity);
      group.begin_scores(q, sm90::advance(k, ahead.slot * S::k_bytes));
      ring = ahead;
      keys.go_on(next);
    }
  }
  const int row = index * 64;
  group.template store_results<Sink>(
      out + (i64)(barriers.first_query + row) * Spec::out_stride + block.h * Spec::v_dim,
      barriers.left - row, sink(block.b, block.h));
}

}  // namespace attention_wgmma_detail

/// batch() and rows() are read when the launches before this one have ended, or before that if
/// Spec::early; rows() is a PaddedRows, a PackedRows or, if early, an EarlyPackedRows.
template <class Spec, class Batch, class Rows, class Score, class Visible, class Live, class Sink>
TFCC_FN void attention_wgmma(typename Spec::T* out, const TensorMap& q, const TensorMap& k,
                             const TensorMap& v, const Batch& batch, const Rows& rows,
                             const Score& score, const Visible& visible, const Live& live,
                             const Sink& sink) {
  using namespace attention_wgmma_detail;
  using S = AttentionWgmmaShape<Spec>;
  TFCC_DYNAMIC_SHARED(memory);
  __shared__ typename Memory<Spec>::Barriers barriers;
  const Memory<Spec> at = {memory + (1024 - sm90::shared_address(memory) % 1024) % 1024, &barriers};
  const int group = (int)sm90::uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    sm90::prefetch_map(q);
    sm90::prefetch_map(k);
    sm90::prefetch_map(v);
  }
  if constexpr (!Spec::early) wait_for_predecessor();
  const idx sequences = batch();
  if (!Spec::early && (idx)blockIdx.z >= sequences) return;
  using Block = AttentionBlock<Spec, decltype(rows())>;
  __shared__ alignas(8) f32 of_distances[Additions<Spec, Score, Block>::words];
  // Where later queries see more keys they come first, so that no long block is left for the end.
  const Block block(rows(), (idx)(Block::right == 0 ? gridDim.x - 1 - blockIdx.x : blockIdx.x),
                    sequences);
  const int left = block.queries - block.first, groups = left <= 0 ? 0 : left <= 64 ? 1 : S::groups;
  if (threadIdx.x == 0 && groups > 0) {
    barriers.first_query = (idx)block.first_query() + block.first;
    barriers.first_key = (idx)block.first_key();
    barriers.left = left;
    at.init(groups);
  }
  if constexpr (Spec::early) wait_for_predecessor();
  if (groups == 0) return;
  __syncthreads();
  if (group >= groups) return;
  const Loader<Spec, Block> loader{at, q, k, v, block};
  const bool asks = sm90::uniform(threadIdx.x / kWarp) == 0;
  attend(out, at, block, group, loader, asks, of_distances, score, visible, live, sink);
}

#endif

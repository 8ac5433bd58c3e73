// SPDX-License-Identifier: Apache-2.0
// linear_attention_wgmma: the warpgroup that brings chunks to shared memory and applies the maps.
#pragma once
#include "cuda/linear_attention_memory.cuh"

#if __CUDA_ARCH__ >= 900

namespace linear_wgmma_detail {

/// The warpgroup that brings chunks.
template <class Spec, class Head> struct Loader {
  using S = LinearWgmmaShape<Spec>;
  using T = typename Spec::T;
  using Tile = typename S::QkTile;
  static constexpr bool adds = false, maps_k = Head::maps_k || Spec::k_softmax;
  const Memory<Spec>& at;
  const Head& head;
  const RowMaps& source;
  sm90::RingPlace<S::stages> brought;

  /// Which tokens of a chunk are keys: bits, the same in all lanes.
  TFCC_FN u64 live(idx from) const {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;"
                 : "=r"(lane));  // not held from chunk to chunk: registers are few
    const u32 low = __ballot_sync(kAllLanes, head.live(from + lane)),
              high = __ballot_sync(kAllLanes, head.live(from + kWarp + lane));
    return low | (u64)high << 32;
  }
  /// Calls f(row, column, place, number) for this thread's pieces of 16 bytes of a tile, four of a
  /// part of 64 columns. What the thread alone decides is worked out again each time.
  template <class Tile, int unrolled = Tile::width / 64, class F>
  static TFCC_FN void for_each_piece(const F& f) {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    const int row = thread / 8, c = thread % 8, place = Tile::at(row, c);
#pragma unroll(unrolled)
    for (int part = 0; part < Tile::width / 64; ++part) {
#pragma unroll
      for (int first = 0; first < S::chunk; first += 16)
        f(row + first, part * 64 + c * 8, place + part * (Tile::part_bytes / 2) + first * 64,
          first / 16);
    }
  }
  /// Elements become map(element, row, column) in the rows up to `last` that `there` admits; others
  /// stay as they are, and what the map makes of them is dropped: it is asked at places up to
  /// `last` alone. Several pieces are on their way at once, as registers allow.
  template <class There, class Map>
  static TFCC_FN void map_tile(T* tile, idx last, const There& there, const Map& map) {
    constexpr int several = S::d == 64 ? 4 : S::d == 128 ? 2 : 1;
    uint4 piece[several];
    for_each_piece<Tile, 1>([&](int row, int column, int place, int number) {
      if (number % several == 0) {
#pragma unroll
        for (int x = 0; x < several; ++x) piece[x] = *(const uint4*)(tile + place + x * 1024);
      }
      const uint4 from = piece[number % several];
      const u32 pairs[4] = {from.x, from.y, from.z, from.w};
      const int mapped = (int)imin(row, last);
      u32 y[4];
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        f32 low, high;
        unpack2<T>(pairs[e / 2], low, high);
        y[e / 2] = pack2<T>(map(low, mapped, column + e), map(high, mapped, column + e + 1));
      }
      if (there(row)) *(uint4*)(tile + place) = make_uint4(y[0], y[1], y[2], y[3]);
      if (number % several == several - 1) asm volatile("" ::: "memory");  // no more than that
    });
  }
  /// The same of the softmax of a row over its columns.
  template <class There, class Map>
  static TFCC_FN void soften_tile(T* tile, idx last, const There& there, const Map& map) {
    constexpr bool held = S::d == 64 || (S::d == 128 && S::loader_registers >= 64);  // 32 of them
    constexpr int several = !held ? 1 : S::d == 64 ? 4 : 2;
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    T* const first_place = tile + Tile::at(thread / 8, thread % 8);
#pragma unroll 1
    for (int first = 0; first < S::chunk; first += 16 * several) {
      const auto row = [&](int n) { return thread / 8 + first + 16 * n; };
      soften_pieces<T, several, Tile::width / 64, Tile::width, held>(
          [&](int n, int part) {
            return first_place + part * (Tile::part_bytes / 2) + (first + 16 * n) * 64;
          },
          [&](int n) { return there(row(n)); },
          [&](int n, f32 x, int e) { return map(x, (int)imin(row(n), last), e); });
    }
  }
  template <bool softmax, bool maps, class There, class Map>
  static TFCC_FN void map_rows(T* tile, idx last, const There& there, const Map& map) {
    if constexpr (softmax) soften_tile(tile, last, there, map);
    else if constexpr (maps) map_tile(tile, last, there, map);
  }
  /// A tile by one warp; boxes have 64 columns.
  template <class Tile>
  TFCC_FN void ask_for_boxes(T* to, const TensorMap& map, i64 row, int column, u64* landed) const {
#pragma unroll
    for (int c = 0; c < Tile::width; c += 64)
      sm90::copy_box_once(to + c * S::chunk, map, (i32)row, column + c, landed);
  }
  /// By the first warp, when the slot is empty.
  template <Part part> TFCC_FN void ask_for_chunk(idx from, int slot) const {
    u64* const landed = &at.barriers->landed[slot];
    sm90::arrive_and_announce_once(
        landed, 2 * ((part != Part::keys ? Tile::elements : 0) +
                     (part != Part::queries ? Tile::elements + S::VTile::elements : 0)));
    if constexpr (part != Part::keys)
      ask_for_boxes<Tile>(at.q(slot), source.q, head.rows.first_query(head.b) + from,
                          Spec::q_offset + head.h * Spec::head_dim + first_feature<Spec>(), landed);
    if constexpr (part != Part::queries) {
      const i64 row = head.rows.first_key(head.b) + from;
      ask_for_boxes<Tile>(at.k(slot), source.k, row,
                          Spec::k_offset + head.g * Spec::head_dim + first_feature<Spec>(), landed);
      ask_for_boxes<typename S::VTile>(at.v(slot), source.v, row,
                                       Spec::v_offset + head.g * Spec::v_dim + head.first, landed);
    }
  }
  /// The chunks from `next` on for which there are slots, that of `now` in any case.
  template <Part part> TFCC_FN void ask(idx& next, idx now, idx last) const {
    if (threadIdx.x >= kWarp) return;
    for (; next < imin(last, now + S::stages * S::chunk); next += S::chunk) {
      const auto to = brought.ahead((int)((next - now) / S::chunk));
      u64* const empty = &at.barriers->empty[to.slot];
      if (next == now) sm90::wait(empty, to.parity ^ 1);
      else if (!__all_sync(kAllLanes, sm90::ended(empty, to.parity ^ 1))) return;
      ask_for_chunk<part>(next, to.slot);
    }
  }
  template <class Tile> static TFCC_FN void clear_dead(T* tile, u64 bits) {
    for_each_piece<Tile>([&](int row, int, int place, int) {
      if (!(bits >> row & 1)) *(uint4*)(tile + place) = make_uint4(0, 0, 0, 0);
    });
  }
  /// The chunk at the ring's place has landed; tokens that are no keys become zero. Returns whether
  /// there were any.
  template <Part part> TFCC_FN bool settle(idx from) const {
    const int slot = brought.slot;
    sm90::wait(&at.barriers->landed[slot], brought.parity);
    if (part == Part::queries) return false;
    const u64 bits = live(from);
    if (bits == ~0ull) return false;
    clear_dead<Tile>(at.k(slot), bits);
    clear_dead<typename S::VTile>(at.v(slot), bits);
    return true;
  }
  template <Part part> TFCC_FN void map(idx from, int slot) const {
    if constexpr (part != Part::keys) {
      map_rows<Spec::q_softmax, Head::maps_q>(
          at.q(slot), head.queries - 1 - from, [&](int row) { return from + row < head.queries; },
          [&](f32 x, int row, int e) {
            return head.query(x, from + row, first_feature<Spec>() + e);
          });
    }
    if constexpr (maps_k && part != Part::queries) {
      const u64 bits = live(from);
      if (bits != 0)
        map_rows<Spec::k_softmax, Head::maps_k>(
            at.k(slot), head.keys - 1 - from, [&](int row) { return (bool)(bits >> row & 1); },
            [&](f32 x, int row, int e) {
              return head.key(x, from + row, first_feature<Spec>() + e);
            });
    }
    if (Spec::decays && threadIdx.x < kWarp)
      running_sums([&](int j) { return head.decay(from + j); }, at.grown(slot));
  }
  template <Part part> TFCC_FN void bring(idx from, idx last) {
    idx next = from;  // to ask for
#pragma unroll 1
    for (; from < last; from += S::chunk) {
      ask<part>(next, from, last);
      const bool cleared = settle<part>(from);
      map<part>(from, brought.slot);
      if (Head::maps_q || Spec::q_softmax || maps_k || cleared) sm90::publish_writes();
      arrive_as_warp(&at.barriers->full[brought.slot]);
      brought.next();
    }
  }
  TFCC_FN void add(idx first, idx last) { bring<Part::keys>(first, last); }
  TFCC_FN void answer(idx first, idx last) {
    bring<Spec::causal ? Part::both : Part::queries>(first, last);
  }
  TFCC_FN void show(f32*) const {}
  TFCC_FN void take(const f32*) const {}
  TFCC_FN void end_span() const {}
};

}  // namespace linear_wgmma_detail

#endif

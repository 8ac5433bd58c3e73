// SPDX-License-Identifier: Apache-2.0
// Building block: a tile of a GEMM of few rows by a weight in codes of 8, 4 or 2 bits, which each warp
// turns into the fragments of its products: values pass through no memory. Sums are those of
// matmul_ordered: one f32 accumulator that takes k in order, sixteen at a time.
//
// A warp that multiplies has 16 columns, the m of mma.sync, and all rows, of which eight are its n: up to
// eight rows take half of the products that up to 16 do. Of `turns` 2 two warps have the same columns.
// Behind them stand `loaders` warps. They copy rows of a and lines of codes to a ring, a step of block_k at a time, and
// load what 16 bytes of codes share. That goes through registers to shared memory, `ahead` steps at
// a time, while the products of those before are made: so nobody waits for memory but loaders.
//
// Of four or eight bits in f16, where Spec::digits, a pair of values is four instructions
// (pair_of_digits, pair_of_bytes) of bytes that a lane takes from words, which are as products need them:
// lane t of a column has codes 2 t and 2 t + 1 of each eight. All else is by weight.value(shared,
// place, code), in f32.
//
// Spec: T (f16, bf16), Out; gated; early; threads, loaders; block_n, turns, 1 or 2; block_k, a multiple
// of 16 per_code; stages, at least 3; ahead, at least 2; copy, bytes of one copy of a (2, 4, 8 or 16);
// Code (u8, i8); per_code, values in one, 1, 2 or 4; shared_size, the bytes of Weight::Shared; digits:
// values are (digit - zero(shared)) * scale(shared), exact in halves up to that product.
#pragma once
#include "cuda/matmul_ordered.cuh"

template <class Spec> struct CodedTileShape {
  static constexpr bool digits = Spec::digits && kSame<typename Spec::T, f16>;
  static constexpr int most_rows = 16, sharers = Spec::block_n / 16, warps = sharers * Spec::turns;
  static constexpr int chunk = 16 * Spec::per_code, chunks = Spec::block_k / chunk;  // of a step
  static constexpr int a_pitch = Spec::block_k * 2 + 16, b_pitch = chunks * 16 + 16;
  static constexpr int a_bytes = most_rows * a_pitch,
                       slot_bytes = a_bytes + Spec::block_n * b_pitch;
  // Shared by chunks, [chunk][column] of two regions; a column more, for threads that write chunks.
  static constexpr int share_size = digits ? 8 : Spec::shared_size,
                       share_pitch = (Spec::block_n + 1) * share_size,
                       region_bytes = Spec::ahead * chunks * share_pitch;
  // A warp reads a chunk ahead of the last.
  static constexpr int share_bytes = round_up(2 * region_bytes + share_pitch, 16);
  // Sums on their way from one warp to the other.
  static constexpr int sum_bytes = Spec::turns == 2 ? most_rows / 8 * sharers * kWarp * 16 : 0;
  static constexpr int shared_bytes = share_bytes + sum_bytes + Spec::stages * slot_bytes;
  static_assert(sharers * 16 == Spec::block_n, "block_n: 16 for each warp");
  static_assert((warps + Spec::loaders) * kWarp == Spec::threads, "threads: of all warps");
  static_assert(Spec::block_k % chunk == 0, "block_k: whole chunks");
  static_assert(Spec::stages >= 3 && Spec::ahead >= 2 && Spec::loaders >= 1, "a step on its way");
};

/// What a chunk of digits shares, as pair_of_digits takes it.
struct alignas(8) PairOfHalves {
  u32 zeros, scales;
};

/// What a lane has of 16 columns and eight rows.
struct alignas(16) SumsOfLane {
  f32 s[4];
};

/// Codes of a matrix, [columns, k / per_code]; `before`: columns of those before it, by which
/// weight.shared counts.
template <class Spec, class Weight> struct CodedRows {
  const typename Spec::Code* codes;
  const Weight& weight;
  idx before;
};

template <class Spec, class Rows = matmul_ordered_detail::SameRows> struct CodedTile {
  using T = typename Spec::T;
  using Shape = CodedTileShape<Spec>;
  static constexpr int block_k = Spec::block_k, block_n = Spec::block_n, stages = Spec::stages,
                       ahead = Spec::ahead, per = Spec::per_code, chunk = Shape::chunk,
                       chunks = Shape::chunks;
  static constexpr int loading = Spec::loaders * kWarp;  // threads

  unsigned char* memory;
  idx rows, columns, k, first_n;
  Rows place;

  TFCC_FN unsigned char* tile_a(int slot) const {
    return memory + Shape::share_bytes + Shape::sum_bytes + slot * Shape::slot_bytes;
  }
  TFCC_FN unsigned char* tile_b(int slot) const { return tile_a(slot) + Shape::a_bytes; }
  TFCC_FN unsigned char* shares(int step) const {
    return memory + (step / ahead % 2 * Shape::region_bytes) +
           step % ahead * chunks * Shape::share_pitch;
  }

  // ---- by loaders ----

  TFCC_FN int loader() const { return (int)threadIdx.x - Shape::warps * kWarp; }

  TFCC_FN void copy_a(const T* a, int step, int slot) const {
    constexpr int piece = Spec::copy / (int)sizeof(T), pieces = block_k / piece;
    const int lane = loader() % kWarp;
    for (int row = loader() / kWarp; row < (int)rows; row += Spec::loaders) {
      const T* const from = a + (i64)place.of_a(row) * k + step * block_k;
      unsigned char* const to = tile_a(slot) + row * Shape::a_pitch;
#pragma unroll
      for (int i = 0; i < ceil_div(pieces, kWarp); ++i) {
        const int c = i * kWarp + lane;
        if (pieces % kWarp != 0 && c >= pieces) break;
        const bool valid = (idx)step * block_k + c * piece < k;
        if constexpr (Spec::copy >= 4)
          copy_async<Spec::copy>(to + c * Spec::copy, valid ? from + c * piece : a, valid);
        else *((T*)to + c) = valid ? from[c] : T{};
      }
    }
  }
  /// Each loader has one place in a line, of rows that stand evenly apart.
  template <class B> TFCC_FN void copy_b(const B& b, int step, int slot) const {
    static_assert(loading % chunks == 0, "loaders: whole lines at a time");
    constexpr int apart = loading / chunks, count = ceil_div(block_n, apart);
    const int c = loader() % chunks, first = loader() / chunks;
    if ((idx)step * chunks + c >= k / chunk) return;
    const idx pitch = k / per;
    const auto* const from =
        b.codes + (i64)(first_n + first) * pitch + ((idx)step * chunks + c) * 16;
    unsigned char* const to = tile_b(slot) + first * Shape::b_pitch + c * 16;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int row = first + i * apart;
      if (first_n + row >= columns || (block_n % apart != 0 && row >= block_n)) break;
      copy_async<16>(to + i * apart * Shape::b_pitch, from + (i64)i * apart * pitch, true);
    }
  }

  // A loader has one chunk of `ahead` steps, of columns that stand evenly apart.
  static constexpr int of_row = ahead * chunks, apart = loading / of_row,
                       each = ceil_div(block_n, apart);
  static_assert(loading % of_row == 0, "ahead: at most as many chunks as loaders");
  TFCC_FN idx chunk_at(int first) const {
    return imin((idx)(first * chunks + loader() % of_row), k / chunk - 1);
  }
  TFCC_FN idx column_at(int i) const {
    return imin(first_n + loader() / of_row + i * apart, columns - 1);
  }
  /// As loaded, of `ahead` steps from `first` on: nothing is done with it, which would wait for it. Of
  /// what is not there something that is.
  template <class B, class Raw> TFCC_FN void ask(Raw (&raw)[each], const B& b, int first) const {
    const idx at = chunk_at(first);
#pragma unroll
    for (int i = 0; i < each; ++i) raw[i] = b.weight.raw(b.before + column_at(i), at);
  }
  template <class B, class Raw>
  TFCC_FN void give(const Raw (&raw)[each], const B& b, int first) const {
    const idx at = chunk_at(first);
    const int c = loader() % of_row, row = loader() / of_row;
    unsigned char* const to = shares(first) + c * Shape::share_pitch + row * Shape::share_size;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (block_n % apart != 0 && row + i * apart >= block_n) break;
      const auto shared = b.weight.shared(b.before + column_at(i), at, raw[i]);
      unsigned char* const own = to + i * apart * Shape::share_size;
      if constexpr (Shape::digits) {
        const f32 zero = b.weight.zero(shared), scale = b.weight.scale(shared);
        const f32 second = per == 1 ? -1024.0f - zero : -64.0f - zero;
        *(PairOfHalves*)own = {pack2<T>(-1024.0f - zero, second), pack2<T>(scale, scale)};
      } else {
        static_assert(sizeof(shared) == Spec::shared_size, "shared_size: as Weight has it");
        *(decltype(b.weight.shared(0, 0))*)own = shared;
      }
    }
  }

  /// What products of a step and of the first chunk of the next one need is there at its barrier.
  template <class B> TFCC_FN void load(const T* a, const B& b, int steps) {
    using Raw = decltype(b.weight.raw(0, 0));
    Raw raw[each];
    ask(raw, b, 0);
    for (int s = 0; s < stages - 1 && s < steps; ++s) copy_b(b, s, s);
    if constexpr (Spec::early) wait_for_predecessor();
    rows = place.count(rows);
    for (int s = 0; s < stages - 1; ++s) {
      if (s < steps) copy_a(a, s, s);
      commit_copies();
    }
    give(raw, b, 0);
    ask(raw, b, ahead);
    int slot = stages - 1;
    for (int step = 0; step < steps; ++step) {
      if (step % ahead == ahead - 1) {
        give(raw, b, step + 1);
        ask(raw, b, step + 1 + ahead);
      }
      wait_copies<stages - 3>();
      __syncthreads();
      if (const int next = step + stages - 1; next < steps) {
        copy_b(b, next, slot);
        copy_a(a, next, slot);
      }
      commit_copies();
      slot = slot + 1 == stages ? 0 : slot + 1;
    }
  }

  // ---- by warps that multiply ----

  /// Codes of a chunk and what they share, of columns g and g + 8 of lane 4 g and on.
  struct Codes {
    uint4 codes[2];
    PairOfHalves share[2];
  };
  /// Rows of a for a chunk, eight at a time.
  template <int eights> struct Right { u32 a[eights][(per + 1) / 2][4]; };
  /// Where a lane reads: of a, of codes and of what is shared, of chunk 0.
  struct Places {
    const unsigned char *a, *codes, *share;
  };
  /// Of which columns this warp has the sums, alone or in turns with another.
  TFCC_FN int own_column() const { return (int)threadIdx.x / kWarp % Shape::sharers * 16; }
  TFCC_FN Places places(int step, int slot) const {
    const int lane = threadIdx.x % kWarp, n = own_column() + lane / 4;
    return {tile_a(slot) + lane % 8 * Shape::a_pitch + lane / 8 * 16,
            tile_b(slot) + n * Shape::b_pitch, shares(step) + n * Shape::share_size};
  }
  template <int eights> TFCC_FN void read(Right<eights>& o, const Places& at, int c) const {
#pragma unroll
    for (int r = 0; r < eights; ++r) {
#pragma unroll
      for (int q = 0; q < per; q += 2)
        load_matrices(o.a[r][q / 2], at.a + r * 8 * Shape::a_pitch + (c * per + q) * 32);
    }
  }
  TFCC_FN void read(Codes& o, const Places& at, int c) const {
    if constexpr (Shape::digits) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        o.codes[h] = *(const uint4*)(at.codes + h * 8 * Shape::b_pitch + c * 16);
        o.share[h] =
            *(const PairOfHalves*)(at.share + c * Shape::share_pitch + h * 8 * Shape::share_size);
      }
    }
  }
  /// Values of k 16 q and on of a chunk: the fragment of a lane.
  template <class B>
  TFCC_FN void values(u32 (&value)[4], const Codes& o, const B& b, const Places& at, int c,
                      int q) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = i % 2, eight = i / 2;
      if constexpr (Shape::digits) {
        const u32* const words = &o.codes[column].x;
        const PairOfHalves& share = o.share[column];
        value[i] = per == 1 ? pair_of_bytes(words[2 * eight], words[2 * eight + 1],
                                            select_two_bytes(2 * t), share.zeros, share.scales)
                            : pair_of_digits(words[(2 * q + eight) % 4], select_byte(t),
                                             share.zeros, share.scales);
      } else {
        using Shared = decltype(b.weight.shared(0, 0));
        using Code = typename Spec::Code;
        const int n = column * 8;
        const Code* const own = (const Code*)(at.codes + n * Shape::b_pitch + c * 16);
        const Shared& shared =
            *(const Shared*)(at.share + c * Shape::share_pitch + n * Shape::share_size);
        f32 two[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int v = q * 16 + eight * 8 + 2 * t + e;
          two[e] = b.weight.value(shared, v, (idx)own[v / per] + ((Code)-1 < 0 ? 128 : 0));
        }
        value[i] = pack2<T>(two[0], two[1]);
      }
    }
  }
  template <int eights>
  TFCC_FN void add(f32 (&sums)[eights][4], const u32 (&value)[4], const Right<eights>& right,
                   int q) const {
#pragma unroll
    for (int r = 0; r < eights; ++r) {
      const u32* const pair = &right.a[r][q / 2][q % 2 * 2];
      multiply_add<T>(sums[r], value, pair[0], pair[1]);
    }
  }
  template <int eights, class B>
  TFCC_FN void multiply_chunk(f32 (&sums)[eights][4], const Codes& codes,
                              const Right<eights>& right, const B& b, const Places& at,
                              int c) const {
#pragma unroll
    for (int q = 0; q < per; ++q) {
      u32 value[4];
      values(value, codes, b, at, c, q);
      add(sums, value, right, q);
    }
  }
  /// How many chunks of a step there are.
  TFCC_FN int chunks_of(int step) const {
    const idx there = k / chunk - (idx)step * chunks;
    return there < chunks ? (int)there : chunks;
  }

  /// The products of a step, of whose first chunk `codes` and `right` are the operands, and then those
  /// of the next.
  template <int eights, class B>
  TFCC_FN void multiply_step(f32 (&sums)[eights][4], Codes& codes, Right<eights>& right, const B& b,
                             int step, int slot, int next_slot) const {
    const Places at = places(step, slot);
    Codes next;
    Right<eights> next_right;
    const auto pass = [&](const Places& from, int c, int next_c) {
      read(next, from, next_c);
      read(next_right, from, next_c);
      multiply_chunk(sums, codes, right, b, at, c);
      codes = next;
      right = next_right;
    };
    if (const int count = chunks_of(step); count == chunks) {
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        if (c + 1 < chunks) pass(at, c, c + 1);
        else pass(places(step + 1, next_slot), c, 0);
      }
    } else {
#pragma unroll 1
      for (int c = 0; c < count; ++c) pass(at, c, c + 1);  // behind the last what is there
    }
  }

  /// A lane has columns g and g + 8, of two rows of each eight.
  template <int eights, class Epilogue>
  TFCC_FN void finish(typename Spec::Out* out, const f32 (&sums)[eights][4],
                      const Epilogue& epilogue) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4;
    const idx n = first_n + own_column();
#pragma unroll
    for (int r = 0; r < eights; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int own = r * 8 + lane % 4 * 2 + e;
        if (own >= rows) continue;
        const idx row = place.of_out(own);
        const f32 s = sums[r][e], t = sums[r][e + 2];
        if constexpr (Spec::gated) {
          const idx width = columns / 2, column = n / 2 + g;
          if (column < width) store(out, row * width + column, epilogue(s, t, row, column));
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const idx column = n + h * 8 + g;
            if (column < columns)
              store(out, row * columns + column, epilogue(h ? t : s, row, column));
          }
        }
      }
    }
  }

  template <int eights, class Epilogue, class B>
  TFCC_FN void multiply(typename Spec::Out* out, const B& b, int steps,
                        const Epilogue& epilogue) const {
    f32 sums[eights][4] = {};
    Codes codes;
    Right<eights> right;
    int slot = 0;
    for (int step = 0; step < steps; ++step) {
      const int next = slot + 1 == stages ? 0 : slot + 1;
      __syncthreads();
      if (step == 0) {
        read(codes, places(0, 0), 0);
        read(right, places(0, 0), 0);
      }
      multiply_step(sums, codes, right, b, step, slot, next);
      slot = next;
    }
    finish(out, sums, epilogue);
  }

  // ---- by two warps in turns ----

  /// The values of a step, as fragments of its products.
  struct Values {
    u32 of[chunks * per][4];
  };
  template <class B> TFCC_FN void compute(Values& v, const B& b, const Places& at) const {
    Codes codes;
    read(codes, at, 0);
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      Codes next;
      read(next, at, c + 1);
#pragma unroll
      for (int q = 0; q < per; ++q) values(v.of[c * per + q], codes, b, at, c, q);
      codes = next;
    }
  }
  template <int eights>
  TFCC_FN void add_step(f32 (&sums)[eights][4], const Values& v, const Places& at,
                        int count) const {
    Right<eights> right[2];
    read(right[0], at, 0);
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      if (c >= count) break;
      if (c + 1 < chunks) read(right[(c + 1) % 2], at, c + 1);
#pragma unroll
      for (int q = 0; q < per; ++q) add(sums, v.of[c * per + q], right[c % 2], q);
    }
  }
  /// Calls f(sums of eight rows of this lane, where they pass from one warp to the other).
  template <int eights, class F> TFCC_FN void for_passed(f32 (&sums)[eights][4], const F& f) const {
    SumsOfLane* const passed = (SumsOfLane*)(memory + Shape::share_bytes) +
                               own_column() / 16 * eights * kWarp + threadIdx.x % kWarp;
#pragma unroll
    for (int r = 0; r < eights; ++r) f(sums[r], passed[r * kWarp]);
  }

  /// While one adds the products of a step to the sums, the other computes the values of the next one.
  template <int eights, class Epilogue, class B>
  TFCC_FN void multiply_in_turns(typename Spec::Out* out, const B& b, int steps,
                                 const Epilogue& epilogue) const {
    const int turn = (int)threadIdx.x / kWarp / Shape::sharers;
    f32 sums[eights][4] = {};
    Values v;
    int slot = 0;
    __syncthreads();
    if (turn == 0) compute(v, b, places(0, 0));
    for (int step = 0; step < steps; ++step) {
      const int next = slot + 1 == stages ? 0 : slot + 1;
      if (step % 2 == turn) {
        if (step > 0)
          for_passed(sums, [](f32(&own)[4], const SumsOfLane& passed) {
            const SumsOfLane of = passed;
#pragma unroll
            for (int e = 0; e < 4; ++e) own[e] = of.s[e];
          });
        add_step(sums, v, places(step, slot), chunks_of(step));
        if (step + 1 == steps) return finish(out, sums, epilogue);
        for_passed(sums, [](const f32(&own)[4], SumsOfLane& passed) {
          passed = {{own[0], own[1], own[2], own[3]}};
        });
      } else if (step + 1 < steps) {
        compute(v, b, places(step + 1, next));
      } else {
        return;
      }
      __syncthreads();
      slot = next;
    }
  }

  /// By all threads. Rows that place counts are 16 at most.
  template <class B, class Epilogue>
  TFCC_FN void run(typename Spec::Out* out, const T* a, const B& b, const Epilogue& epilogue) {
    const int steps = (int)ceil_div(k, block_k);
    if (loader() >= 0) return load(a, b, steps);
    if constexpr (Spec::early) wait_for_predecessor();
    rows = place.count(rows);
    if constexpr (Spec::turns == 2) {
      if (rows > 8) multiply_in_turns<2>(out, b, steps, epilogue);
      else multiply_in_turns<1>(out, b, steps, epilogue);
    } else {
      if (rows > 8) multiply<2>(out, b, steps, epilogue);
      else multiply<1>(out, b, steps, epilogue);
    }
  }
};

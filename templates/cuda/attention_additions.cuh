// SPDX-License-Identifier: Apache-2.0
// What a score adds to the product of q and k, for attention by warpgroups: computed a tile at a
// time, while the product is under way.
#pragma once
#include "cuda/attention_tile.cuh"
#include "cuda/sm90.cuh"

#if __CUDA_ARCH__ >= 900

namespace attention_wgmma_detail {

/// What a score adds for all of a tile's keys, of a lane of the block's only warpgroup if it adds
/// anything. Element [t][c] is as that of scores (cuda/attention_softmax.cuh).
template <class Spec, class Score, class Block> class Additions {
 public:
  static constexpr int words = 1;  // of shared memory
  TFCC_FN Additions(const Score& score, const Block&, f32*) : score_(score) {}
  TFCC_FN void begin(idx) {}
  TFCC_FN void take(idx, idx) {}
  TFCC_FN const Score& of(int, int) const { return score_; }

 private:
  const Score& score_;
};

/// By one call for each element.
template <class Spec, class Score, class Block> class EachAddition {
 public:
  TFCC_FN EachAddition(const Score& score, const Block& block) : score_(score), block_(block) {
    static_assert(Spec::block_m == 64, "a score that adds something: block_m: 64");
  }

  struct One {
    const Score& score;
    f32 added;
    TFCC_FN f32 operator()(f32 s, idx b, idx h, idx i, idx j) const {
      return score.product.plus(s, added, b, h, i, j);
    }
  };
  TFCC_FN One of(int t, int c) const { return {score_, of_key_[t][c]}; }

 protected:
  /// added(i, j) for places in the sequence, which may lie past its ends.
  template <class F> TFCC_FN void take_each(idx tile, const F& added) {
    const int lane = threadIdx.x % kWarp;
    const idx row = block_.first + threadIdx.x / kWarp * 16 + lane / 4,
              key = tile * Spec::block_n + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < Spec::block_n / 8; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) of_key_[t][c] = added(row + c / 2 * 8, key + t * 8 + c % 2);
    }
  }
  TFCC_FN void hold() { sm90::hold(*(f32(*)[Spec::block_n / 2]) & of_key_[0][0]); }

  const Score& score_;
  const Block& block_;
  f32 of_key_[Spec::block_n / 8][4];
};

template <class Spec, class Added, class Product, class Block>
class Additions<Spec, SumScore<Added, Product>, Block>
    : public EachAddition<Spec, SumScore<Added, Product>, Block> {
  using Each = EachAddition<Spec, SumScore<Added, Product>, Block>;

 public:
  static constexpr int words = 1;
  TFCC_FN Additions(const SumScore<Added, Product>& score, const Block& block, f32*)
      : Each(score, block), start_(block.first_of_run()) {}
  TFCC_FN void begin(idx) {}
  /// While the product of `tile` is under way.
  TFCC_FN void take(idx tile, idx) {
    const Block& block = this->block_;
    const Added& added = this->score_.added;
    // Without ends to look for, addresses differ by what is known.
    if (start_ >= 0 && block.whole(tile))
      this->take_each(
          tile, [&](idx i, idx j) { return added(block.b, block.h, start_ + i, start_ + j); });
    else
      this->take_each(tile, [&](idx i, idx j) {
        return added(block.b, block.h, block.query_position(i), block.key_position(j));
      });
    this->hold();
  }

 private:
  const idx start_;
};

/// One value for each distance that a tile has, computed by a thread, through shared memory. Lanes
/// need neighbours, which begin at odd places for every second row: so each value stands twice.
template <class Spec, class Added, class Product, class Block>
class Additions<Spec, DiagonalScore<Added, Product>, Block>
    : public EachAddition<Spec, DiagonalScore<Added, Product>, Block> {
  using Each = EachAddition<Spec, DiagonalScore<Added, Product>, Block>;
  static constexpr int copy = 144;  // floats: the copies do not share banks

 public:
  static constexpr int words = 4 * copy;  // two tiles
  TFCC_FN Additions(const DiagonalScore<Added, Product>& score, const Block& block, f32* shared)
      : Each(score, block), shared_(shared), run_(block.first_of_run() >= 0) {}
  TFCC_FN void begin(idx tile) {
    if (run_) mine_ = value(tile);
  }
  /// While the product of `tile` is under way; `next` is the one after it.
  TFCC_FN void take(idx tile, idx next) {
    const Block& block = this->block_;
    if (run_) {
      take_diagonals();
      mine_ = value(next);
    } else {
      this->take_each(tile, [&](idx i, idx j) {
        return this->score_.added(block.b, block.h,
                                  block.key_position(j) - block.query_position(i));
      });
    }
    this->hold();
  }

 private:
  /// Of the distance from row 63 to the thread's key, counted from -63 on.
  TFCC_FN f32 value(idx tile) const {
    const Block& block = this->block_;
    const idx d = tile * Spec::block_n - block.first + (int)threadIdx.x - 63;
    return this->score_.added(block.b, block.h, imax(imin(d, block.keys - 1), 1 - block.queries));
  }
  TFCC_FN void take_diagonals() {
    f32* even = shared_ + parity_ * 2 * copy;
    const int x = (int)threadIdx.x, lane = x % kWarp;
    even[x] = mine_;
    if (x > 0) even[copy + x - 1] = mine_;
    sm90::meet<3>(128);  // those of the tile before are read by then: two tiles later they may go
    const int first = 63 - x / kWarp * 16 - lane / 4 + lane % 4 * 2;
    const f32* from = even + (first % 2 == 0 ? first : copy + first - 1);
    float2 before = *(const float2*)(from - 8);  // of row + 8, a tile of 8 columns back
#pragma unroll
    for (int t = 0; t < Spec::block_n / 8; ++t) {
      const float2 now = *(const float2*)(from + t * 8);
      this->of_key_[t][0] = now.x, this->of_key_[t][1] = now.y;
      this->of_key_[t][2] = before.x, this->of_key_[t][3] = before.y;
      before = now;
    }
    parity_ ^= 1;
  }

  f32* const shared_;
  const bool run_;  // positions follow one another, so distances are those of places
  f32 mine_ = 0.0f;
  int parity_ = 0;
};

}  // namespace attention_wgmma_detail

#endif

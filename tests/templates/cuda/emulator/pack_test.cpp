// SPDX-License-Identifier: Apache-2.0
// templates/cuda/pack.cuh, as it stands, on an emulated block: few and many sequences, short and
// long ones, rows that are kept though not live, sequences without any.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/pack.cuh"

namespace tfcc::test {
namespace {

template <bool Keeps, int Threads> struct SpecOf {
  static constexpr bool keeps = Keeps;
  static constexpr int threads = Threads;
};

struct Grid {
  const std::vector<int>& at;
  int batch, length;
  bool operator()(idx b, idx s) const {
    if (b < 0 || b >= batch || s < 0 || s >= length)
      simt().fail(fmt::format("({}, {}) is read", b, s));
    return at[static_cast<size_t>(b * length + s)] != 0;
  }
};

struct Packed {
  std::vector<i32> row, cu, keys, order, seq, pos;
  i64 rows = -7;
  bool operator==(const Packed&) const = default;
};

Packed by_definition(const Grid& live, const Grid& kept, bool keeps) {
  Packed p;
  p.row.assign(static_cast<size_t>(live.batch * live.length), -1);
  p.cu = {0};
  for (int b = 0; b < live.batch; ++b) {
    const auto take = [&](bool lives) {
      for (int s = 0; s < live.length; ++s) {
        const size_t at = static_cast<size_t>(b * live.length + s);
        const bool is_live = live.at[at] != 0, stays = keeps && !is_live && kept.at[at] != 0;
        if (lives ? !is_live : !stays) continue;
        p.row[at] = static_cast<i32>(p.seq.size());
        p.seq.push_back(b);
        p.pos.push_back(s);
      }
    };
    take(true);
    p.keys.push_back(static_cast<i32>(p.seq.size()) - p.cu.back());
    take(false);
    p.cu.push_back(static_cast<i32>(p.seq.size()));
  }
  p.rows = static_cast<i64>(p.seq.size());
  p.order.resize(static_cast<size_t>(live.batch));
  std::iota(p.order.begin(), p.order.end(), 0);
  const auto size = [&](i32 b) {
    return p.cu[static_cast<size_t>(b) + 1] - p.cu[static_cast<size_t>(b)];
  };
  std::stable_sort(p.order.begin(), p.order.end(), [&](i32 a, i32 b) { return size(a) > size(b); });
  return p;
}

template <class Spec> void check(int batch, int length, double share, unsigned seed) {
  SCOPED_TRACE(fmt::format("{} x {}, {} of them live, seed {}", batch, length, share, seed));
  std::mt19937 random(seed);
  std::bernoulli_distribution lives(share), stays(0.1);
  std::vector<int> live(static_cast<size_t>(batch * length)), kept(live.size());
  for (int& x : live) x = lives(random);
  for (int& x : kept) x = stays(random);
  for (int b = 0; b < batch; b += 5)
    std::fill_n(live.begin() + b * length, length, b % 2);  // all, or none
  const Grid is_live{live, batch, length}, is_kept{kept, batch, length};
  const Packed want = by_definition(is_live, is_kept, Spec::keeps);
  Packed got;
  const size_t n = live.size();
  got.row.assign(n, -5), got.seq.assign(n, -5), got.pos.assign(n, -5),
      got.cu.assign(static_cast<size_t>(batch) + 1, -5);
  got.keys.assign(static_cast<size_t>(batch), -5), got.order.assign(static_cast<size_t>(batch), -5);
  block_threads = Spec::threads;
  Simt block;
  const bool done = block.run(Spec::threads, {0, 0, 0}, {1, 1, 1}, seed, [&] {
    pack<Spec>(got.row.data(), got.cu.data(), got.keys.data(), got.order.data(), got.seq.data(),
               got.pos.data(), &got.rows, batch, length, is_live, is_kept);
  });
  ASSERT_TRUE(done) << block.error();
  for (std::vector<i32>* v : {&got.seq, &got.pos}) {  // beyond the rows nothing is written
    EXPECT_TRUE(std::all_of(v->begin() + want.rows, v->end(), [](i32 x) { return x == -5; }));
    v->resize(static_cast<size_t>(want.rows));
  }
  EXPECT_EQ(got.rows, want.rows);
  EXPECT_EQ(got.cu, want.cu);
  EXPECT_EQ(got.keys, want.keys);
  EXPECT_EQ(got.order, want.order);
  EXPECT_EQ(got.row, want.row);
  EXPECT_EQ(got.seq, want.seq);
  EXPECT_EQ(got.pos, want.pos);
}

TEST(Pack, NumbersRowsSequenceBySequence) {
  for (const auto& [batch, length] : {std::pair(1, 1),
                                      {1, 128},
                                      {2, 33},
                                      {3, 700},
                                      {5, 31},
                                      {7, 300},
                                      {6, 257},
                                      {13, 64},
                                      {40, 5}}) {
    check<SpecOf<true, 128>>(batch, length, 0.6, 1);
    check<SpecOf<false, 96>>(batch, length, 0.3, 2);
  }
  check<SpecOf<false, 128>>(2, 512, 1.0, 5);
  check<SpecOf<true, 64>>(2, 1100, 0.5, 7);
  // More sequences, or more places, than shared memory has room for.
  check<SpecOf<true, 128>>(513, 3, 0.5, 3);
  check<SpecOf<false, 128>>(512, 9, 0.5, 3);
  check<SpecOf<true, 128>>(3, 45000, 0.5, 4);
  check<SpecOf<true, 128>>(4, 96, 0.0, 6);
}

}  // namespace
}  // namespace tfcc::test

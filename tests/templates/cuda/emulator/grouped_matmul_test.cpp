// SPDX-License-Identifier: Apache-2.0
// templates/cuda/grouped_matmul.cuh, as it stands, on an emulated block: rows that are fewer than
// matrices and many more, matrices that are stored, in codes, or computed one value at a time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/prelude.cuh"
#include "cuda/grouped_matmul.cuh"
#include "tests/templates/cuda/emulator/matmul_values.h"

namespace tfcc::test {
namespace {

constexpr int kUntouched = 12345;

enum class Kind { stored, coded, computed };

template <Kind Of, int M, int N, int OwnM, int OwnN, int Threads, int K, int Stages, int Ahead = 1,
          int Per = 2, int Groups = 5>
struct Spec {
  using T = f16;
  using Out = f32;
  using Code = u8;
  static constexpr Kind kind = Of;
  static constexpr int groups = Groups, block_m = M, block_n = N, own_m = OwnM, own_n = OwnN,
                       threads = Threads, block_k = K, stages = Stages, ahead = Ahead,
                       per_code = Per, parts = 1, tf32 = 0, large_m = 0, large_n = 0,
                       large_own_m = 0, large_own_n = 0, processors = 132, copy = 16,
                       shared_size = 4;
  static constexpr bool gated = false, early = false, digits = false;
};

struct Shape {
  int rows, columns, k, share;
};

/// Value `at % per` of a code, less what a chunk of 16 codes has; columns and chunks must lie inside.
template <int per> struct Weight {
  int columns, chunks;
  struct Shared {
    int shift;
  };
  Shared shared(idx column, idx chunk) const {
    if (column < 0 || column >= columns || chunk < 0 || chunk >= chunks)
      simt().fail(fmt::format("the weight is asked for chunk {} of column {}", chunk, column));
    return {static_cast<int>(chunk % 3 + column % 2)};
  }
  f32 zero(const Shared&) const { return 0; }
  f32 scale(const Shared&) const { return 1; }
  f32 value(const Shared& s, int at, int code) const {
    constexpr int bits = 8 / per;
    return static_cast<f32>((code >> at % per * bits & ((1 << bits) - 1)) % 8 - s.shift);
  }
};

/// A value by where it is, which must be inside.
struct Anywhere {
  int groups, columns, k;
  f32 operator()(idx g, idx j, idx p) const {
    if (g < 0 || g >= groups || j < 0 || j >= columns || p < 0 || p >= k)
      simt().fail(fmt::format("the weight is asked for ({}, {}, {})", g, j, p));
    return static_cast<f32>((g * 3 + j * 5 + p * 7) % 5 - 2);
  }
};

template <class S> void check(const Shape& s, unsigned seed) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, a row of x for {}, seed {}", s.rows, s.columns, s.k,
                           s.share, seed));
  const int all = S::groups * s.columns, chunk = 16 * S::per_code;
  const auto x = filled<f16>(seed, ceil_div(s.rows, s.share) * s.k + 8),
             w = filled<f16>(seed + 1, all * s.k + 8);
  std::mt19937 random(seed);
  std::vector<u8> codes(static_cast<size_t>(all * s.k / S::per_code) + 16);
  for (u8& c : codes) c = static_cast<u8>(random());
  std::vector<int> choice(static_cast<size_t>(s.rows));
  for (int& c : choice) c = static_cast<int>(random() % S::groups) % (seed % 3 ? S::groups : 2);
  std::vector<f32> out(static_cast<size_t>(s.rows * s.columns + 64), kUntouched);
  const Weight<S::per_code> weight{all, std::max(1, s.k / chunk)};
  const Anywhere anywhere{S::groups, s.columns, s.k};
  const auto which = [&](idx i) -> i64 {
    if (i < 0 || i >= s.rows) simt().fail(fmt::format("row {} chooses", i));
    return choice[static_cast<size_t>(i)];
  };
  const int blocks = std::min(s.rows, S::groups) * ceil_div(s.columns, S::block_n);
  block_threads = S::threads;
  Simt block;
  for (int b = 0; b <= blocks; ++b) {  // one more than it has tiles
    emulated::state = {};
    emulated::copies = {};
    emulated::copies.late = (seed + static_cast<unsigned>(b)) % 2 != 0;
    std::memset(shared_memory, 0x7f, sizeof shared_memory);
    const auto run = [&](const auto& matrices) {
      return block.run(S::threads, {b, 0, 0}, {blocks + 1, 1, 1}, seed + static_cast<unsigned>(b),
                       [&] {
                         grouped_matmul<S>(out.data(), x.data(), matrices, s.rows, s.columns, s.k,
                                           s.share, which);
                       });
    };
    bool ok;
    if constexpr (S::kind == Kind::stored) ok = run(StoredMatrices{w.data()});
    else if constexpr (S::kind == Kind::coded)
      ok = run(CodedMatrices<S, Weight<S::per_code>>{codes.data(), weight});
    else ok = run(ComputedMatrices<Anywhere>{anywhere});
    ASSERT_TRUE(ok) << "block " << b << ": " << block.error();
  }
  const auto value = [&](int g, int j, int p) -> int {
    const int column = g * s.columns + j;
    if constexpr (S::kind == Kind::stored) return w[static_cast<size_t>(column * s.k + p)].whole;
    if constexpr (S::kind == Kind::computed) return static_cast<int>(anywhere(g, j, p));
    return static_cast<int>(
        weight.value(weight.shared(column, p / chunk), p % chunk,
                     codes[static_cast<size_t>((column * s.k + p) / S::per_code)]));
  };
  for (int i = 0; i < s.rows; ++i) {
    for (int j = 0; j < s.columns; ++j) {
      int want = 0;
      for (int p = 0; p < s.k; ++p)
        want += x[static_cast<size_t>(i / s.share * s.k + p)].whole *
                value(choice[static_cast<size_t>(i)], j, p);
      ASSERT_EQ(out[static_cast<size_t>(i * s.columns + j)], static_cast<f32>(want))
          << "row " << i << ", column " << j;
    }
  }
  for (size_t i = static_cast<size_t>(s.rows * s.columns); i < out.size(); ++i)
    ASSERT_EQ(out[i], kUntouched) << "behind the last row";
}

template <class S> void check_all(int unit) {
  unsigned seed = 1;
  for (const auto& [rows, k] : {std::pair{1, 7 * S::block_k},
                                {3, unit},
                                {S::groups, 3 * S::block_k + unit},
                                {S::block_m + 3, S::block_k}})
    check<S>({rows, S::block_n + 5, k, rows % 3 + 1}, ++seed);
}

template <Kind Of, int Ahead, int Per = 2>
using Few = Spec<Of, 16, 32, 1, 2, 128, 128, 3, Ahead, Per>;
TEST(EmulatedGroupedMatmul, Stored) { check_all<Spec<Kind::stored, 16, 64, 1, 4, 128, 64, 4>>(8); }
TEST(EmulatedGroupedMatmul, StoredOfManyRows) {
  check_all<Spec<Kind::stored, 32, 128, 1, 4, 256, 64, 3>>(16);
}
TEST(EmulatedGroupedMatmul, CodesOfFourBits) { check_all<Few<Kind::coded, 6>>(32); }
TEST(EmulatedGroupedMatmul, CodesOfTwoBits) { check_all<Few<Kind::coded, 6, 4>>(64); }
TEST(EmulatedGroupedMatmul, CodesOfEightBits) { check_all<Few<Kind::coded, 2, 1>>(16); }
TEST(EmulatedGroupedMatmul, CodesOfManyRows) {
  check_all<Spec<Kind::coded, 64, 128, 2, 4, 256, 64, 3, 2>>(32);
}
TEST(EmulatedGroupedMatmul, CodesOfSomeRows) {
  check_all<Spec<Kind::coded, 32, 128, 1, 4, 256, 64, 4, 4>>(32);
}
TEST(EmulatedGroupedMatmul, ComputedOneByOne) { check_all<Few<Kind::computed, 1>>(8); }

}  // namespace
}  // namespace tfcc::test

// SPDX-License-Identifier: Apache-2.0
// templates/cuda/matmul_coded.cuh, as it stands, on an emulated block: tiles as codegen chooses them,
// 0 to 16 rows, edges of columns and k, codes of 8, 4 and 2 bits, against sums of whole numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/matmul_coded.cuh"
#include "tests/templates/cuda/emulator/matmul_values.h"

namespace tfcc::test {
namespace {

constexpr int kUntouched = 12345;

/// `digits`: values are made in pairs of halves.
template <class C, int Per, bool Digits> struct Codes {
  using T = f16;
  using Code = C;
  static constexpr int per_code = Per, shared_size = 4;
  static constexpr bool digits = Digits;
};
template <class C, int BlockN, int Turns, int BlockK, int Stages, int Ahead, int Loaders>
struct Tile : C {
  static constexpr int block_n = BlockN, turns = Turns, block_k = BlockK, stages = Stages,
                       ahead = Ahead, loaders = Loaders,
                       threads = 32 * (BlockN / 16 * Turns + Loaders);
};
template <class Base, class O, int Copy, bool Gated> struct Spec : Base {
  using Out = O;
  static constexpr int copy = Copy;
  static constexpr bool gated = Gated, early = true;
};

struct Shape {
  int rows, columns, k;
};

/// Value `at % per` of a code, less a number of its chunk and column; both must lie inside.
template <int per> struct Weight {
  int columns, chunks;
  struct Raw {
    int of_chunk, of_column;
  };
  struct Shared {
    int shift;
  };
  Raw raw(idx column, idx chunk) const {
    if (column < 0 || column >= columns || chunk < 0 || chunk >= chunks)
      simt().fail(fmt::format("the weight is asked for chunk {} of column {}", chunk, column));
    return {static_cast<int>(chunk % 3), static_cast<int>(column % 2)};
  }
  Shared shared(idx, idx, const Raw& raw) const { return {raw.of_chunk + raw.of_column}; }
  Shared shared(idx column, idx chunk) const { return shared(column, chunk, raw(column, chunk)); }
  f32 zero(const Shared& s) const { return static_cast<f32>(s.shift); }
  f32 scale(const Shared&) const { return 1; }
  f32 value(const Shared& s, int at, int code) const {
    return static_cast<f32>((code >> at % per * (8 / per) & ((1 << (8 / per)) - 1)) - s.shift);
  }
};

int whole(f32 x) { return static_cast<int>(x); }

template <class S> void check(const Shape& s, unsigned seed) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, seed {}", s.rows, s.columns, s.k, seed));
  constexpr int per = S::per_code, chunk = 16 * per;
  const int width = S::gated ? s.columns / 2 : s.columns;
  // Rows behind the last are there, as behind the rows of a run in a bucket, and must not matter.
  auto a = filled<f16>(seed, 16 * s.k);
  for (size_t i = static_cast<size_t>(s.rows * s.k); i < a.size(); ++i) a[i].whole = 999;
  std::mt19937 random(seed + 1);
  alignas(16) std::vector<typename S::Code> codes(static_cast<size_t>(s.columns * s.k / per));
  for (auto& c : codes) c = static_cast<typename S::Code>(random() % 256);
  std::vector<typename S::Out> out(static_cast<size_t>(17 * width));
  for (auto& o : out) o = kUntouched;
  const Weight<per> weight{s.columns, s.k / chunk};
  const int blocks = ceil_div(s.columns, S::block_n);
  block_threads = S::threads;
  Simt block;
  for (int x = 0; x < blocks; ++x) {
    emulated::state = {};
    emulated::copies = {};
    emulated::copies.late = (seed + static_cast<unsigned>(x)) % 2 != 0;
    std::memset(shared_memory, 0x7f, sizeof shared_memory);
    const bool ok =
        block.run(S::threads, {x, 0, 0}, {blocks, 1, 1}, seed + static_cast<unsigned>(x), [&] {
          matmul_coded<S>(
              out.data(), a.data(), codes.data(), [&] { return s.rows; }, s.columns, s.k,
              Sum{s.rows, width}, weight);
        });
    ASSERT_TRUE(ok) << "block " << x << ": " << block.error();
    for (int t = 0; t < S::threads; ++t)
      ASSERT_TRUE(emulated::state.waited[t]) << "thread " << t << " of block " << x;
  }
  const auto sum = [&](int r, int c) {
    int of = 0;
    for (int p = 0; p < s.k; ++p) {
      const int code = codes[static_cast<size_t>((c * s.k + p) / per)] +
                       (std::is_signed_v<typename S::Code> ? 128 : 0);
      of += a[static_cast<size_t>(r * s.k + p)].whole *
            whole(weight.value(weight.shared(c, p / chunk), p % chunk, code));
    }
    return of;
  };
  for (int r = 0; r < s.rows; ++r) {
    for (int c = 0; c < width; ++c) {
      const int first = S::gated ? c / 8 * 16 + c % 8 : c,
                want = (S::gated ? sum(r, first) - 3 * sum(r, first + 8) : sum(r, first)) + c % 7 -
                       r % 5;
      ASSERT_EQ(whole(out[static_cast<size_t>(r * width + c)]), want)
          << "row " << r << ", column " << c;
    }
  }
  for (size_t i = static_cast<size_t>(s.rows * width); i < out.size(); ++i)
    ASSERT_EQ(whole(out[i]), kUntouched) << "behind the last row";
}

template <class Base> void check_all() {
  constexpr int chunk = 16 * Base::per_code, n = Base::block_n;
  unsigned seed = 1;
  check<Spec<Base, f32, 16, false>>({0, n, 2 * chunk}, ++seed);
  check<Spec<Base, f32, 2, false>>({1, n, chunk}, ++seed);
  check<Spec<Base, f32, 16, false>>({3, n + 8, 5 * chunk}, ++seed);
  check<Spec<Base, f32, 8, true>>({8, n, Base::block_k}, ++seed);
  check<Spec<Base, f32, 16, false>>({9, 16, 3 * Base::block_k + chunk}, ++seed);
  check<Spec<Base, f32, 16, true>>({16, n + 16, 2 * Base::block_k}, ++seed);
  check<Spec<Base, f32, 4, false>>({16, 8, 6 * Base::block_k + 3 * chunk}, ++seed);
}

using Digits = Codes<u8, 2, true>;
TEST(EmulatedMatmulCoded, InTurns) { check_all<Tile<Digits, 16, 2, 256, 8, 4, 4>>(); }
TEST(EmulatedMatmulCoded, TwoUnitsInTurns) { check_all<Tile<Digits, 32, 2, 256, 7, 4, 4>>(); }
TEST(EmulatedMatmulCoded, ManyUnits) { check_all<Tile<Digits, 96, 1, 256, 4, 2, 4>>(); }
TEST(EmulatedMatmulCoded, MoreLoaders) { check_all<Tile<Digits, 144, 1, 256, 3, 2, 8>>(); }
TEST(EmulatedMatmulCoded, Bytes) {
  check_all<Tile<Codes<u8, 1, true>, 32, 2, 128, 8, 4, 4>>();
  check_all<Tile<Codes<u8, 1, true>, 96, 1, 128, 4, 2, 4>>();
}
TEST(EmulatedMatmulCoded, SignedBytes) {
  check_all<Tile<Codes<i8, 1, false>, 32, 2, 128, 8, 4, 4>>();
}
TEST(EmulatedMatmulCoded, OtherCodes) {
  check_all<Tile<Codes<u8, 2, false>, 32, 2, 256, 5, 4, 4>>();
  check_all<Tile<Codes<u8, 4, false>, 96, 1, 256, 4, 2, 4>>();
  check_all<Tile<Codes<u8, 4, false>, 48, 2, 256, 4, 4, 4>>();
}

}  // namespace
}  // namespace tfcc::test

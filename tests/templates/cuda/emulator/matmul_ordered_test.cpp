// SPDX-License-Identifier: Apache-2.0
// templates/cuda/matmul_ordered.cuh, as it stands, on an emulated block: every tile that codegen
// chooses, edges of rows, columns and k, copies of every size, and the order of sums.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "cuda/matmul_ordered.cuh"
#include "tests/templates/cuda/emulator/matmul_values.h"

namespace tfcc::test {
namespace {

constexpr int kUntouched = 12345;

struct F32 {
  static constexpr int parts = 4, tf32 = 0;
  using T = f32;
  using Out = f32;
};
/// Each operand two numbers of TF32; or one, the nearest.
template <int products> struct Tf32 {
  static constexpr int parts = 1, tf32 = products;
  using T = f32;
  using Out = f32;
};
struct Half {
  static constexpr int parts = 1, tf32 = 0;
  using T = f16;
  using Out = f16;
};
template <class Types, int M, int N, int OwnM, int OwnN, int Threads, int K, int Stages>
struct Plain : Types {
  static constexpr int block_m = M, block_n = N, own_m = OwnM, own_n = OwnN, threads = Threads,
                       block_k = K, stages = Stages, large_m = 0, large_n = 0, large_own_m = 0,
                       large_own_n = 0, processors = 132;
};
template <class Base, int M, int N, int OwnM, int OwnN> struct Large : Base {
  static constexpr int large_m = M, large_n = N, large_own_m = OwnM, large_own_n = OwnN,
                       processors = 2;
};
template <class Base, int Copy, bool Gated, bool Early> struct Spec : Base {
  static constexpr int copy = Copy;
  static constexpr bool gated = Gated, early = Early;
};

struct Shape {
  int rows, columns, k;
};

f32 number(const f32& x) { return x; }
f32 number(const f16& x) { return x.whole; }

template <class S> void check(const Shape& s, unsigned seed) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, seed {}", s.rows, s.columns, s.k, seed));
  using T = typename S::T;
  const auto a = filled<T>(seed, s.rows * s.k), b = filled<T>(seed + 1, s.columns * s.k);
  const int width = S::gated ? s.columns / 2 : s.columns;
  std::vector<typename S::Out> out(static_cast<size_t>(s.rows * width + 64));
  for (auto& o : out) {
    if constexpr (sizeof(o) == 2) o.whole = kUntouched;
    else o = kUntouched;
  }
  const int blocks = ceil_div(s.rows, S::block_m) * ceil_div(s.columns, S::block_n);
  block_threads = S::threads;
  Simt block;
  for (int x = 0; x <= blocks; ++x) {  // one more than it has tiles, as at the caps of a bucket
    emulated::state = {};
    emulated::copies = {};
    emulated::copies.late = (seed + static_cast<unsigned>(x)) % 2 != 0;
    std::memset(shared_memory, 0x7f, sizeof shared_memory);
    const bool ok =
        block.run(S::threads, {x, 0, 0}, {blocks + 1, 1, 1}, seed + static_cast<unsigned>(x), [&] {
          matmul_ordered<S>(
              out.data(), a.data(), b.data(), [&] { return s.rows; }, s.columns, s.k,
              Sum{s.rows, width});
        });
    ASSERT_TRUE(ok) << "block " << x << ": " << block.error();
    for (int t = 0; t < S::threads; ++t)
      ASSERT_TRUE(emulated::state.waited[t]) << "thread " << t << " of block " << x;
  }
  const auto sum = [&](int r, int c) {
    const int part = S::parts == 1 ? s.k : round_up(ceil_div(s.k, S::parts), 32);
    f32 of[4] = {};
    for (int p = 0; p < s.k; ++p)
      of[p / part] = std::fmaf(number(a[static_cast<size_t>(r * s.k + p)]),
                               number(b[static_cast<size_t>(c * s.k + p)]), of[p / part]);
    return (of[0] + of[1]) + (of[2] + of[3]);
  };
  for (int r = 0; r < s.rows; ++r) {
    for (int c = 0; c < width; ++c) {
      const int first = S::gated ? c / 8 * 16 + c % 8 : c;
      const f32 want = (S::gated ? sum(r, first) - 3 * sum(r, first + 8) : sum(r, first)) +
                       static_cast<f32>(c % 7 - r % 5);
      const f32 got = number(out[static_cast<size_t>(r * width + c)]);
      if constexpr (S::tf32 == 0) ASSERT_EQ(got, want) << "row " << r << ", column " << c;
      else
        ASSERT_NEAR(got, want, (S::tf32 == 3 ? 2e-6 : 1e-3) * (1 + std::sqrt(s.k)))
            << "row " << r << ", column " << c;
    }
  }
  for (size_t i = static_cast<size_t>(s.rows * width); i < out.size(); ++i)
    ASSERT_EQ(number(out[i]), kUntouched) << "behind the last row";
}

template <class Base> void check_all() {
  constexpr int size = sizeof(typename Base::T), m = Base::block_m, n = Base::block_n;
  unsigned seed = 1;
  for (const auto& [rows, columns] : {std::pair{0, 32}, {1, n}, {m, n + 16}, {m + 1, 2 * n - 16}}) {
    for (int k : {0, 16, Base::block_k, Base::block_k + 48, 4 * Base::block_k + 16, 1200}) {
      check<Spec<Base, 16, false, true>>({rows, columns, k}, ++seed);
      check<Spec<Base, 16, true, false>>({rows, columns, k}, ++seed);
    }
    check<Spec<Base, 8, false, true>>({rows, columns - 3, 5 * 8 / size * 2 - 8 / size}, ++seed);
    check<Spec<Base, 4, false, true>>({rows, columns - 1, 2 * Base::block_k + 20 / size}, ++seed);
    if constexpr (size == 2) check<Spec<Base, 2, false, false>>({rows, columns + 1, 37}, ++seed);
  }
}

TEST(EmulatedMatmulOrdered, FewestRows) { check_all<Plain<F32, 4, 16, 1, 2, 128, 32, 4>>(); }
TEST(EmulatedMatmulOrdered, FewRows) { check_all<Plain<F32, 16, 16, 4, 2, 128, 32, 4>>(); }
TEST(EmulatedMatmulOrdered, SomeRows) { check_all<Plain<F32, 32, 32, 8, 4, 128, 16, 4>>(); }
TEST(EmulatedMatmulOrdered, ManyRows) { check_all<Plain<F32, 64, 64, 8, 8, 256, 8, 4>>(); }
// The tiles of f32 on tensor cores, with one and three products there.
TEST(EmulatedMatmulOrdered, FewRowsInTf32) {
  using One = Plain<Tf32<1>, 32, 32, 1, 2, 128, 64, 4>;
  using Three = Plain<Tf32<3>, 32, 32, 1, 2, 128, 64, 4>;
  check<Spec<One, 16, false, true>>({33, 40, 112}, 1);
  check<Spec<Three, 16, false, true>>({33, 40, 112}, 2);
  check<Spec<Three, 8, false, false>>({1, 29, 70}, 3);
  check<Spec<Three, 4, true, true>>({32, 48, 301}, 4);
}
using ManyInTf32 = Plain<Tf32<3>, 64, 64, 2, 2, 256, 32, 4>;
TEST(EmulatedMatmulOrdered, ManyRowsInTf32) {
  check<Spec<ManyInTf32, 16, true, false>>({65, 112, 144}, 3);
  check<Spec<Large<ManyInTf32, 128, 128, 4, 4>, 16, false, true>>({130, 200, 80}, 4);
  check<Spec<Large<Plain<Tf32<3>, 64, 64, 2, 2, 256, 32, 3>, 128, 64, 2, 4>, 16, true, true>>(
      {129, 272, 48}, 5);
}

TEST(EmulatedMatmulOrdered, FewRowsOf16Bits) {
  check_all<Plain<Half, 16, 16, 1, 2, 128, 256, 4>>();
}
TEST(EmulatedMatmulOrdered, SomeRowsOf16Bits) {
  check_all<Plain<Half, 32, 32, 1, 2, 128, 64, 6>>();
}

using ManyOf16Bits = Plain<Half, 64, 64, 1, 4, 256, 32, 4>;
TEST(EmulatedMatmulOrdered, ManyRowsOf16Bits) { check_all<ManyOf16Bits>(); }
// Two tiles fill the processors here, so that one does by the smaller and three do by the larger.
TEST(EmulatedMatmulOrdered, ManyMoreRowsOf16Bits) {
  using Two = Large<ManyOf16Bits, 128, 128, 4, 4>;
  check<Spec<Two, 16, false, true>>({100, 100, 96}, 3);
  check<Spec<Two, 16, false, true>>({130, 200, 80}, 4);
  check<Spec<Two, 16, true, true>>({129, 272, 48}, 5);
}

}  // namespace
}  // namespace tfcc::test

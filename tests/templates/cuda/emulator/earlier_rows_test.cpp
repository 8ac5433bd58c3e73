// SPDX-License-Identifier: Apache-2.0
// templates/cuda/earlier_rows.cuh, as it stands, on emulated blocks: sequences of no, one and many
// rows, with and without a slot before them or behind, widths of several blocks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/earlier_rows.cuh"

namespace tfcc::test {
namespace {

template <int Kept, int Width, int Vec> struct SpecOf {
  using T = f32;
  static constexpr int kept = Kept, width = Width, vec = Vec;
};

constexpr int kThreads = 64, kSlots = 9;

template <class Spec> struct Run {
  std::vector<i32> first{0}, from, to;
  std::vector<f32> x, state, out;

  explicit Run(const std::vector<int>& lengths) {
    for (size_t n = 0; n < lengths.size(); ++n) {
      first.push_back(first.back() + lengths[n]);
      from.push_back(n % 3 == 2 ? -1 : static_cast<i32>(n % 4));
      to.push_back(n % 4 == 3 || n > 4 ? kSlots : static_cast<i32>(4 + n));
    }
    x.resize(static_cast<size_t>(first.back() * Spec::width));
    out.assign(x.size() * Spec::kept, -1.0f);
    state.resize(static_cast<size_t>(kSlots * Spec::kept * Spec::width));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<f32>(i + 1);
    for (size_t i = 0; i < state.size(); ++i) state[i] = -static_cast<f32>(i + 1);
  }

  // Element c of the row `back` rows before row i of sequence n.
  f32 element(size_t n, int i, int back, int c, const std::vector<f32>& before) const {
    if (back <= i) return x[static_cast<size_t>((first[n] + i - back) * Spec::width + c)];
    if (from[n] < 0 || back - i > Spec::kept) return 0.0f;
    return before[static_cast<size_t>((from[n] * Spec::kept + back - i - 1) * Spec::width + c)];
  }

  std::vector<f32> rows(size_t n, int i, const std::vector<f32>& before) const {
    std::vector<f32> all;
    for (int l = 0; l < Spec::kept; ++l)
      for (int c = 0; c < Spec::width; ++c) all.push_back(element(n, i, l + 1, c, before));
    return all;
  }

  void check() {
    const std::vector<f32> before = state;
    const idx count = first.back(), sequences = static_cast<idx>(from.size());
    const int blocks =
        (std::max(count, sequences) * (Spec::width / Spec::vec) + kThreads - 1) / kThreads;
    block_threads = kThreads;
    for (int b = 0; b < blocks; ++b) {
      Simt block;
      const bool done = block.run(kThreads, {b, 0, 0}, {blocks, 1, 1}, 1, [&] {
        earlier_rows<Spec>(out.data(), state.data(), x.data(), first.data(), from.data(), to.data(),
                           count, sequences, kSlots);
      });
      ASSERT_TRUE(done) << block.error();
    }
    std::vector<f32> want, after = before;
    for (size_t n = 0; n < from.size(); ++n) {
      const int length = first[n + 1] - first[n];
      for (int i = 0; i < length; ++i) {
        const std::vector<f32> of_row = rows(n, i, before);
        want.insert(want.end(), of_row.begin(), of_row.end());
      }
      if (to[n] >= kSlots) continue;
      const std::vector<f32> last = rows(n, length, before);
      std::copy(last.begin(), last.end(), after.begin() + to[n] * Spec::kept * Spec::width);
    }
    EXPECT_EQ(out, want);
    EXPECT_EQ(state, after);
  }
};

template <class Spec> void check_all() {
  Run<Spec>({1}).check();
  Run<Spec>({9}).check();
  Run<Spec>({1, 1, 1, 1, 1}).check();
  Run<Spec>({0, 3, 0, 2, 17, 0}).check();
  Run<Spec>({0, 0, 0, 1}).check();  // more sequences than rows
  Run<Spec>({2, 40, 1, 1, 5, 1, 1, 1, 3}).check();
}

TEST(EmulatedEarlierRows, AreThoseOfTheSequences) {
  check_all<SpecOf<1, 1, 1>>();
  check_all<SpecOf<2, 6, 2>>();
  check_all<SpecOf<3, 64, 4>>();
  check_all<SpecOf<10, 300, 4>>();
}

}  // namespace
}  // namespace tfcc::test

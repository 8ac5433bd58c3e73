// SPDX-License-Identifier: Apache-2.0
// templates/cuda/linear_attention_step.cuh, as it stands, on emulated blocks: sums that go on, in
// both forms; states that are asked for before the launch before has ended; sequences that are
// another launch's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "cuda/prelude.cuh"
#include "cuda/sm80.cuh"
// After these two, whose names it uses.
#include "cuda/linear_attention_step.cuh"

namespace tfcc::test {
namespace {

constexpr int kMost = std::numeric_limits<int32_t>::max();

template <int Heads, int KvHeads, int D, int Dv, bool Normalises, bool Ahead, bool Early,
          int Tokens, int Least = 0, int Most = kMost, bool Delta = false, int Parts = 8>
struct SpecOf {
  using T = f32;
  using Out = f32;
  static constexpr int heads = Heads, kv_heads = KvHeads, head_dim = D, v_dim = Dv,
                       width = (Heads + KvHeads) * D + KvHeads * Dv, q_stride = width,
                       k_stride = width, v_stride = width, out_stride = Heads * Dv, columns = 16,
                       parts = Parts, rows = Ahead ? 8 : 4, together = Ahead || Delta ? 1 : 4,
                       tokens = Tokens, places = 2, least = Least, most = Most;
  static constexpr bool ahead = Ahead, early = Early, aligned = true, decays = true,
                        normalises = Normalises, q_softmax = false, k_softmax = false,
                        delta = Delta, sums_aligned = !Delta || Ahead;
};
/// The delta rule.
template <int Heads, int KvHeads, int D, int Dv, bool Ahead, int Tokens, int Parts = 8>
using DeltaOf = SpecOf<Heads, KvHeads, D, Dv, false, Ahead, Ahead, Tokens, 0, kMost, true, Parts>;

template <class Spec> constexpr int parts_of = (Spec::v_dim + Spec::columns - 1) / Spec::columns;

/// Sequences of so many tokens; every third has no state before it, every fifth keeps none.
struct Run {
  std::vector<int> counts;
  std::vector<i32> first{0}, from, to;
  std::vector<f32> rows, state, decay, out;
  int slots;

  template <class Spec> static Run made(std::vector<int> counts, unsigned seed) {
    Run r;
    r.counts = std::move(counts);
    const int n = static_cast<int>(r.counts.size());
    r.slots = 2 * n;
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> value(-1, 1);
    const auto fill = [&](std::vector<f32>& v, int count) {
      v.resize(static_cast<size_t>(count));
      for (f32& x : v) x = value(random);
    };
    for (int s = 0; s < n; ++s) {
      r.first.push_back(r.first.back() + r.counts[static_cast<size_t>(s)]);
      r.from.push_back(s % 3 == 2 ? -1 : s);
      r.to.push_back(s % 5 == 4 ? r.slots : n + s);
    }
    const int tokens = r.first.back();
    fill(r.rows, tokens * Spec::width);
    fill(r.decay, tokens * Spec::heads);
    fill(r.state, r.slots * Spec::kv_heads * (Spec::v_dim + Spec::normalises) * Spec::head_dim);
    for (f32& x : r.decay) x = -std::abs(x);
    r.out.assign(static_cast<size_t>(tokens * Spec::out_stride), -77.0f);
    return r;
  }
};

/// Small enough that keys of any length correct what they find.
f32 beta_of(int g, int t) {
  return 0.02f * static_cast<f32>(1 + g) + 0.01f * static_cast<f32>(t % 5);
}

/// By definition (ir/ops.md), in double, of the sequences that `here` admits.
template <class Spec, class Here> void define(Run& r, const Here& here) {
  constexpr int d = Spec::head_dim, dv = Spec::v_dim, group = Spec::heads / Spec::kv_heads,
                numbers = (dv + Spec::normalises) * d;
  const std::vector<f32> before = r.state;
  for (size_t s = 0; s < r.counts.size(); ++s) {
    if (!here(r.counts[s])) continue;
    for (int g = 0; g < Spec::kv_heads; ++g) {
      std::vector<double> sums(static_cast<size_t>(numbers));
      const auto slot = [&](int at) {
        return static_cast<size_t>((at * Spec::kv_heads + g) * numbers);
      };
      for (size_t x = 0; r.from[s] >= 0 && x < sums.size(); ++x)
        sums[x] = before[slot(r.from[s]) + x];
      for (int t = r.first[s]; t < r.first[s + 1]; ++t) {
        const f32* const row = r.rows.data() + t * Spec::width;
        const f32* const k = row + Spec::heads * d + g * d;
        const f32* const v = row + (Spec::heads + Spec::kv_heads) * d + g * dv;
        const double keep = std::exp(double(r.decay[size_t(t * Spec::heads + g * group)]));
        for (double& x : sums) x *= keep;
        for (int m = 0; m < dv + Spec::normalises; ++m) {
          double value = m < dv ? double(v[m]) : 1.0, known = 0;
          for (int e = 0; e < d; ++e) known += double(k[e]) * sums[size_t(m * d + e)];
          if (Spec::delta) value = double(beta_of(g, t)) * (value - known);
          for (int e = 0; e < d; ++e) sums[size_t(m * d + e)] += double(k[e]) * value;
        }
        for (int h = g * group; h < (g + 1) * group; ++h) {
          const auto seen = [&](int m) {
            double sum = 0;
            for (int e = 0; e < d; ++e) sum += double(row[h * d + e]) * sums[size_t(m * d + e)];
            return sum;
          };
          const double z = Spec::normalises ? seen(dv) : 0.0;
          for (int m = 0; m < dv; ++m)
            r.out[size_t(t * Spec::out_stride + h * dv + m)] =
                static_cast<f32>(Spec::normalises ? seen(m) / (std::abs(z) + 1.0) : seen(m));
        }
      }
      for (size_t x = 0; r.to[s] < r.slots && x < sums.size(); ++x)
        r.state[slot(r.to[s]) + x] = static_cast<f32>(sums[x]);
    }
  }
}

template <class Spec> void run_blocks(Run& r, Dim grid, unsigned seed) {
  using Shape = LinearStepShape<Spec>;
  ASSERT_LE(Shape::shared_bytes, kSharedBytes);
  const StepTables tables{
      r.state.data(), r.first.data(), r.from.data(), r.to.data(), static_cast<idx>(r.counts.size()),
      r.slots};
  const auto late = [&] {
    if (Spec::early && !emulated::state.waited[simt().thread()])
      simt().fail("tables are read as after the wait");
    return tables;
  };
  const auto early = [&] { return tables; };
  const auto decay = [&](idx, idx h, idx t) {
    return r.decay[static_cast<size_t>(t * Spec::heads + h)];
  };
  const auto beta = [&](idx, idx g, idx t) { return beta_of(g, t); };
  const auto end = [](f32 s, f32 z, idx, idx, idx, idx) {
    return Spec::normalises ? s / (std::abs(z) + 1.0f) : s;
  };
  const f32* const rows = r.rows.data();
  block_threads = Shape::threads;
  for (int z = 0; z < grid.z; ++z) {
    for (int y = 0; y < grid.y; ++y) {
      for (int x = 0; x < grid.x; ++x) {
        emulated::state = {};
        emulated::state.others_begin = rows;
        emulated::state.others_end = rows + r.rows.size();
        std::fill_n(shared_memory, Shape::shared_bytes, static_cast<unsigned char>(0xff));
        Simt block;
        const bool done = block.run(Shape::threads, {x, y, z}, grid, seed, [&] {
          if constexpr (!Spec::early) wait_for_predecessor();  // as its stub does
          linear_attention_step<Spec>(r.out.data(), rows, rows + Spec::heads * Spec::head_dim,
                                      rows + (Spec::heads + Spec::kv_heads) * Spec::head_dim, late,
                                      early, SameElement{}, SameElement{}, decay, beta, end);
        });
        ASSERT_TRUE(done) << block.error();
        if constexpr (Spec::early) {
          const size_t s = static_cast<size_t>(x / Spec::kv_heads / parts_of<Spec>);
          const bool asks = s < r.counts.size() && r.from[s] >= 0 && r.counts[s] <= Spec::most;
          ASSERT_EQ(emulated::state.announced_early, asks ? 1 : 0) << "block " << x;
        }
      }
    }
  }
}

template <class Spec> void check(const std::vector<int>& counts, int blocks, unsigned seed) {
  SCOPED_TRACE(fmt::format("{} sequences, {} blocks, seed {}", counts.size(), blocks, seed));
  Run got = Run::made<Spec>(counts, seed), want = got;
  const auto here = [](int tokens) { return tokens >= Spec::least && tokens <= Spec::most; };
  define<Spec>(want, here);
  const int n = static_cast<int>(counts.size()),
            listed = Spec::least ? std::min(n, got.first.back() / Spec::least) : n;
  run_blocks<Spec>(
      got, Spec::ahead ? Dim{blocks, 1, 1} : Dim{parts_of<Spec>, Spec::kv_heads, listed}, seed);
  for (size_t i = 0; i < want.out.size(); ++i)
    ASSERT_NEAR(got.out[i], want.out[i], 1e-4 * (1 + std::abs(want.out[i]))) << "result " << i;
  for (size_t i = 0; i < want.state.size(); ++i)
    ASSERT_NEAR(got.state[i], want.state[i], 1e-4 * (1 + std::abs(want.state[i]))) << "sum " << i;
}

const std::vector<int> kCounts = {1, 3, 1, 9, 0, 1, 4, 5, 17, 2, 1};

TEST(LinearAttentionStep, GoesOnWithSums) {
  check<SpecOf<2, 2, 32, 32, false, false, false, 16>>(kCounts, 0, 1);
  check<SpecOf<4, 2, 32, 24, true, false, false, 16>>(kCounts, 0, 2);
  check<SpecOf<2, 2, 32, 32, true, true, false, 4>>(kCounts, 3, 3);
}

TEST(LinearAttentionStep, CorrectsWhatKeysRead) {
  check<DeltaOf<2, 2, 32, 32, false, 16>>(kCounts, 0, 1);
  check<DeltaOf<4, 2, 32, 24, false, 16>>(kCounts, 0, 2);
  check<DeltaOf<2, 2, 64, 32, false, 16, 16>>(kCounts, 0, 3);
  check<DeltaOf<2, 2, 20, 16, false, 16, 2>>(kCounts, 0, 4);
  check<DeltaOf<2, 2, 20, 16, false, 16, 1>>(kCounts, 0, 5);
  check<DeltaOf<2, 1, 128, 16, false, 16, 32>>(kCounts, 0, 6);
  for (const int blocks : {3, 100}) {
    check<DeltaOf<2, 2, 32, 32, true, 4>>(kCounts, blocks, 7);
    check<DeltaOf<4, 2, 32, 24, true, 2>>(kCounts, blocks, 8);
    check<DeltaOf<2, 2, 128, 16, true, 2, 32>>(kCounts, blocks, 9);
  }
}

// The same sequences, each of as many tokens, with sums of their own in another order: what
// expressions are told is a sequence and its token.
TEST(LinearAttentionStep, TakesSequencesOfABatch) {
  using Spec = DeltaOf<4, 2, 32, 24, false, 16>;
  for (const int tokens : {1, 16, 21}) {
    auto r = test::Run::made<Spec>({tokens, tokens, tokens}, 11), want = r;
    want.from = {0, 1, 2}, want.to = {3, 4, 5};
    define<Spec>(want, [](int) { return true; });
    const size_t numbers = r.state.size() / 6;
    std::vector<f32> after(3 * numbers, -77.0f);
    const auto states = [&] { return BatchStates{r.state.data(), after.data(), 3, tokens}; };
    const auto decay = [&](idx b, idx h, idx t) {
      return r.decay[static_cast<size_t>((b * tokens + t) * Spec::heads + h)];
    };
    const auto beta = [&](idx b, idx g, idx t) { return beta_of(g, b * tokens + t); };
    const auto end = [&](f32 s, f32, idx b, idx h, idx t, idx c) {
      return s + static_cast<f32>(1000 * b + 100 * h + 10 * t + c);
    };
    const f32* const rows = r.rows.data();
    block_threads = LinearStepShape<Spec>::threads;
    for (int z = 0; z < 3; ++z) {
      for (int x = 0; x < 2 * parts_of<Spec>; ++x) {
        emulated::state = {};
        Simt block;
        const Dim grid{parts_of<Spec>, 2, 3}, at{x / 2, x % 2, z};
        ASSERT_TRUE(block.run(block_threads, at, grid, 1, [&] {
          linear_attention_step<Spec>(r.out.data(), rows, rows + Spec::heads * Spec::head_dim,
                                      rows + (Spec::heads + Spec::kv_heads) * Spec::head_dim,
                                      states, 0, SameElement{}, SameElement{}, decay, beta, end);
        })) << block.error();
      }
    }
    for (size_t i = 0; i < want.out.size(); ++i) {
      const int row = static_cast<int>(i) / Spec::out_stride, b = row / tokens, t = row % tokens,
                h = static_cast<int>(i) % Spec::out_stride / Spec::v_dim,
                c = static_cast<int>(i) % Spec::v_dim;
      ASSERT_NEAR(r.out[i], want.out[i] + static_cast<f32>(1000 * b + 100 * h + 10 * t + c), 1e-3)
          << i;
    }
    for (size_t i = 0; i < after.size(); ++i)
      ASSERT_NEAR(after[i], want.state[3 * numbers + i], 1e-4) << "sum " << i;
  }
}

// One thread of a block asks for states; no other may read what the launch before writes.
TEST(LinearAttentionStep, AsksForStatesBeforeItWaits) {
  for (const int blocks : {1, 4, 7, 100}) {
    check<SpecOf<2, 2, 32, 32, false, true, true, 4>>(kCounts, blocks, 4);
    check<SpecOf<4, 2, 32, 24, true, true, true, 2>>(kCounts, blocks, 5);
  }
}

// Two launches share the sequences of a run: each leaves those of the other alone.
TEST(LinearAttentionStep, TakesSequencesOfItsOwnAlone) {
  using Few = SpecOf<2, 2, 32, 32, true, true, true, 4, 0, 4>;
  using Many = SpecOf<2, 2, 32, 32, true, false, false, 16, 5, kMost>;
  std::vector<int> counts(300, 1);
  for (size_t s = 7; s < counts.size(); s += 60) counts[s] = 6;
  counts[299] = 5, counts[130] = 12;
  for (const auto& of : {kCounts, counts, std::vector<int>{1, 1, 1}, std::vector<int>{40}}) {
    check<Few>(of, 16, 6);
    check<Many>(of, 0, 7);
  }
}

}  // namespace
}  // namespace tfcc::test

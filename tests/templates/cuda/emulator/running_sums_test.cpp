// SPDX-License-Identifier: Apache-2.0
// templates/cuda/running_sums.cuh, as it stands, on an emulated warp: values, and what NaN and
// infinity do to the sums in front of them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "cuda/running_sums.cuh"

namespace tfcc::test {
namespace {

using Numbers = std::array<float, 64>;

Numbers sums_of(const Numbers& x, unsigned seed) {
  Numbers to;
  to.fill(-5.0f);
  block_threads = 32;
  Simt block;
  const bool done = block.run(32, {0, 0, 0}, {1, 1, 1}, seed, [&] {
    running_sums([&](int j) { return x[static_cast<size_t>(j)]; }, to.data());
  });
  EXPECT_TRUE(done) << block.error();
  return to;
}

Numbers made(unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-1.0f, 0.0f);
  Numbers x;
  for (float& v : x) v = value(random);
  return x;
}

TEST(RunningSums, AreThoseOfDouble) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Numbers x = made(seed), got = sums_of(x, seed);
    double sum = 0;
    for (size_t j = 0; j < x.size(); ++j) EXPECT_NEAR(got[j], sum += x[j], 1e-5) << j;
  }
}

// The 65th token's decay is that of padding, say: real tokens in front of it have their bits.
TEST(RunningSums, SeeNothingBehind) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                  kInfinite = std::numeric_limits<float>::infinity();
  const Numbers x = made(9), clean = sums_of(x, 9);
  for (const float worst : {kNaN, -kInfinite, kInfinite})
    for (size_t at = 0; at < x.size(); ++at) {
      Numbers dirty = x;
      dirty[at] = worst;
      const Numbers got = sums_of(dirty, 9);
      for (size_t j = 0; j < x.size(); ++j) {
        if (j < at) EXPECT_EQ(got[j], clean[j]) << "NaN or infinity at " << at << ", sum " << j;
        else EXPECT_FALSE(std::isfinite(got[j])) << at << " " << j;
      }
    }
}

}  // namespace
}  // namespace tfcc::test

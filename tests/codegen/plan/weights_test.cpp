// SPDX-License-Identifier: Apache-2.0
// codegen/plan/weights: equal recipes are one weight, and what may lie in another is found.
#include "codegen/plan/weights.h"

#include <gtest/gtest.h>

namespace tfcc::codegen {
namespace {

using Kind = ir::ConstantStep::Kind;

ir::Constant random(uint64_t seed, std::vector<int64_t> dims) {
  ir::Constant c;
  c.source = ir::Constant::Source::random;
  c.seed = seed;
  c.dims = std::move(dims);
  return c;
}

ir::Constant stepped(ir::Constant c, std::vector<ir::ConstantStep> steps) {
  c.steps.insert(c.steps.end(), steps.begin(), steps.end());
  return c;
}

const ir::ConstantStep kTransposed{Kind::transpose, {1, 0}, {}},
    kNarrow{Kind::cast, {}, DType::f16};

std::vector<std::byte> bytes_of(const WeightPool& pool, size_t i) {
  auto bytes = ir::materialize(pool.entries()[i].constant);
  EXPECT_TRUE(bytes);
  return bytes ? *bytes : std::vector<std::byte>();
}

bool lies_there(const WeightPool& pool, size_t whole, const WeightPool::Part& part) {
  const auto all = bytes_of(pool, whole), own = bytes_of(pool, part.weight);
  return part.offset + own.size() <= all.size() &&
         std::equal(own.begin(), own.end(), all.begin() + static_cast<ptrdiff_t>(part.offset));
}

TEST(WeightPool, EqualRecipesAreOne) {
  WeightPool pool;
  EXPECT_EQ(pool.add("a", random(1, {4, 8})), 0U);
  EXPECT_EQ(pool.add("b", random(2, {4, 8})), 1U);
  EXPECT_EQ(pool.add("c", random(1, {4, 8})), 0U);
  EXPECT_EQ(pool.entries().size(), 2U);
}

// As a query projection of one program in the joined projections of another: [k,n] in the model,
// [n,k] in the file, narrowed on the way.
TEST(WeightPool, FindsPartsOfJoinedWeights) {
  const ir::Constant q = random(1, {4, 8}), k = random(2, {4, 2}), v = random(3, {4, 2});
  WeightPool pool;
  for (const ir::Constant& c : {q, k, v}) pool.add("part", stepped(c, {kNarrow, kTransposed}));
  const size_t whole =
      pool.add("whole", stepped(ir::concat_constants({q, k, v}, 1), {kNarrow, kTransposed}));
  const auto parts = pool.parts();
  ASSERT_EQ(parts.size(), 4U);
  ASSERT_EQ(parts[whole].size(), 3U);
  for (const size_t i : {0, 1, 2}) EXPECT_TRUE(parts[i].empty());
  size_t offset = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(parts[whole][i].weight, i);
    EXPECT_EQ(parts[whole][i].offset, offset);
    EXPECT_TRUE(lies_there(pool, whole, parts[whole][i])) << i;
    offset += bytes_of(pool, i).size();
  }
}

// Joined columns of a row-major matrix are no stretch of bytes: only the bytes say so.
TEST(WeightPool, AMixedLayoutHasOtherBytes) {
  const ir::Constant q = random(1, {4, 8}), k = random(2, {4, 8});
  WeightPool pool;
  pool.add("q", q);
  const size_t whole = pool.add("whole", ir::concat_constants({q, k}, 1));
  const auto parts = pool.parts();
  ASSERT_EQ(parts[whole].size(), 1U);
  EXPECT_FALSE(lies_there(pool, whole, parts[whole][0]));
}

TEST(WeightPool, OthersLieNowhere) {
  WeightPool pool;
  pool.add("a", random(1, {4, 8}));
  pool.add("b", stepped(random(1, {4, 8}), {kTransposed}));
  pool.add("c", ir::concat_constants({random(2, {4, 8}), random(3, {4, 8})}, 0));
  for (const auto& parts : pool.parts()) EXPECT_TRUE(parts.empty());
}

}  // namespace
}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// Size programs: values, floors, overflow, laziness of select, and validation of bad programs.
#include "runtime/core/size_expr.h"

#include <gtest/gtest.h>

namespace tfcc::runtime {
namespace {

std::optional<int64_t> value(std::vector<int64_t> code, std::vector<int64_t> symbols = {7, -3}) {
  SizeExpr e{std::move(code), ""};
  EXPECT_TRUE(e.valid(symbols.size()));
  return e.evaluate(symbols);
}

TEST(SizeExpr, evaluates_every_code) {
  EXPECT_EQ(value({}), 0);
  EXPECT_EQ(value({0, 5}), 5);
  EXPECT_EQ(value({1, 1}), -3);
  EXPECT_EQ(value({1, 0, 0, 2, 2}), 9);
  EXPECT_EQ(value({1, 0, 0, 2, 3}), 14);
  EXPECT_EQ(value({1, 0, 0, 2, 5}), 2);
  EXPECT_EQ(value({1, 0, 0, 2, 6}), 7);
  EXPECT_EQ(value({1, 1, 7}), 3);
  EXPECT_EQ(value({1, 0, 9}), -7);
  EXPECT_EQ(value({0, 0, 0, 1, 0, 2, 8}), 1);
  EXPECT_EQ(value({0, -1, 0, 1, 0, 2, 8}), 2);
}

TEST(SizeExpr, division_floors) {
  EXPECT_EQ(value({0, 7, 0, 2, 4}), 3);
  EXPECT_EQ(value({0, -7, 0, 2, 4}), -4);
  EXPECT_EQ(value({0, 7, 0, -2, 4}), -4);
  EXPECT_EQ(value({0, -8, 0, 2, 4}), -4);
}

TEST(SizeExpr, overflow_and_division_by_zero_have_no_value) {
  EXPECT_EQ(value({0, INT64_MAX, 0, 1, 2}), std::nullopt);
  EXPECT_EQ(value({0, INT64_MAX, 0, 2, 3}), std::nullopt);
  EXPECT_EQ(value({0, INT64_MIN, 9}), std::nullopt);
  EXPECT_EQ(value({0, INT64_MIN, 7}), std::nullopt);
  EXPECT_EQ(value({0, INT64_MIN, 0, -1, 4}), std::nullopt);
  EXPECT_EQ(value({0, 1, 0, 0, 4}), std::nullopt);
  EXPECT_EQ(value({0, 1, 0, 0, 4, 0, 5, 5}), std::nullopt) << "a broken value spreads";
}

TEST(SizeExpr, select_ignores_a_broken_branch) {
  EXPECT_EQ(value({0, 1, 0, 9, 0, 1, 0, 0, 4, 8}), 9);
  EXPECT_EQ(value({0, -1, 0, 9, 0, 1, 0, 0, 4, 8}), std::nullopt);
}

TEST(SizeExpr, rejects_bad_programs) {
  auto valid = [](std::vector<int64_t> code) { return SizeExpr{std::move(code), ""}.valid(2); };
  EXPECT_FALSE(valid({2}));
  EXPECT_FALSE(valid({0}));
  EXPECT_FALSE(valid({1, 2})) << "no such symbol";
  EXPECT_FALSE(valid({1, -1}));
  EXPECT_FALSE(valid({0, 1, 0, 2})) << "two values are left";
  EXPECT_FALSE(valid({0, 1, 3}));
  EXPECT_FALSE(valid({10}));
  EXPECT_FALSE(valid({-1}));
  std::vector<int64_t> deep;
  for (size_t i = 0; i <= kMaxSizeDepth; ++i) deep.insert(deep.end(), {0, 1});
  for (size_t i = 0; i < kMaxSizeDepth; ++i) deep.push_back(2);
  EXPECT_FALSE(valid(deep));
}

TEST(SizeExpr, knows_constants_and_lone_symbols) {
  EXPECT_EQ((SizeExpr{{0, 2, 0, 3, 3}, ""}.constant()), 6);
  EXPECT_EQ((SizeExpr{{1, 0}, ""}.constant()), std::nullopt);
  EXPECT_EQ((SizeExpr{{0, 1}, ""}.constant()), 1) << "the number after a push is not a code";
  EXPECT_EQ((SizeExpr{{1, 4}, ""}.lone_symbol()), 4u);
  EXPECT_EQ((SizeExpr{{0, 4}, ""}.lone_symbol()), std::nullopt);
}

TEST(SizeExpr, product_of_sizes) {
  EXPECT_EQ(checked_product(std::vector<int64_t>{2, 3}), 6);
  EXPECT_EQ(checked_product(std::vector<int64_t>{INT64_MAX, 2}), std::nullopt);
  EXPECT_EQ(checked_product(std::vector<int64_t>{INT64_MAX, 2, 0}), 0);
}

}  // namespace
}  // namespace tfcc::runtime

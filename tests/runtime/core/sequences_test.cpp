// SPDX-License-Identifier: Apache-2.0
// What follows from cu_seqlens, and which programs take it.
#include "runtime/core/sequences.h"

#include <gtest/gtest.h>

namespace tfcc::runtime {
namespace {

SizeExpr symbol(int64_t index, int64_t more = 0) {
  SizeExpr e;
  e.code = {static_cast<int64_t>(SizeCode::symbol), index};
  if (more) {
    e.code.insert(e.code.end(), {static_cast<int64_t>(SizeCode::push), more,
                                 static_cast<int64_t>(SizeCode::add)});
  }
  return e;
}

// Sizes 0: tokens, 1: batch, 2: length of at most 5.
Manifest small() {
  Manifest m;
  for (const SizeRole role : {SizeRole::tokens, SizeRole::batch, SizeRole::length}) {
    Symbol& s = m.symbols.emplace_back();
    s.name = to_string(role);
    s.role = role;
    s.max = role == SizeRole::length ? 5 : role == SizeRole::tokens ? 12 : 0;
  }
  for (const auto& [role, dim] : {std::pair(InputRole::cu_seqlens, symbol(1, 1)),
                                  {InputRole::seqlens, symbol(1)},
                                  {InputRole::longest_first, symbol(1)},
                                  {InputRole::row_sequences, symbol(0)},
                                  {InputRole::row_positions, symbol(0)},
                                  {InputRole::longest, symbol(2)}}) {
    TensorType& t = m.inputs.emplace_back();
    t.name = to_string(role);
    t.dtype = DType::i32;
    t.role = role;
    t.dims = {dim};
  }
  return m;
}

std::vector<int32_t> table(const Sequences& s, InputRole role) {
  const auto t = s.table(role);
  return {t.begin(), t.end()};
}

using Numbers = std::vector<int32_t>;

TEST(Sequences, MakesTablesOfEnds) {
  Sequences s(small());
  ASSERT_TRUE(s.taken());
  ASSERT_TRUE(s.set(std::vector<int64_t>{0, 2, 3, 7, 9}));
  EXPECT_EQ(s.tokens(), 9);
  EXPECT_EQ(table(s, InputRole::cu_seqlens), (Numbers{0, 2, 3, 7, 9}));
  EXPECT_EQ(table(s, InputRole::seqlens), (Numbers{2, 1, 4, 2}));
  EXPECT_EQ(table(s, InputRole::longest_first), (Numbers{2, 0, 3, 1})) << "equal ones in order";
  EXPECT_EQ(table(s, InputRole::row_sequences), (Numbers{0, 0, 1, 2, 2, 2, 2, 3, 3}));
  EXPECT_EQ(table(s, InputRole::row_positions), (Numbers{0, 1, 0, 0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(table(s, InputRole::longest).size(), 4u);
  ASSERT_TRUE(s.set(std::vector<int64_t>{0, 1})) << "fewer after more";
  EXPECT_EQ(table(s, InputRole::row_sequences), Numbers{0});
  EXPECT_EQ(table(s, InputRole::longest).size(), 1u);
  EXPECT_TRUE(s.are(std::vector<int64_t>{0, 1}));
  EXPECT_FALSE(s.are(std::vector<int64_t>{0, 2}));
  ASSERT_TRUE(s.set(std::vector<int64_t>{0})) << "no sequence at all";
  EXPECT_EQ(s.tokens(), 0);
  EXPECT_TRUE(table(s, InputRole::row_sequences).empty());
}

TEST(Sequences, KeepsWhatItHadAfterAnError) {
  Sequences s(small());
  ASSERT_TRUE(s.set(std::vector<int64_t>{0, 2, 3}));
  for (const std::vector<int64_t>& cu : {std::vector<int64_t>{},
                                         {1, 2},
                                         {0, 2, 1},
                                         {0, 2, 2},
                                         {0, 6},
                                         {0, 5, 10, 13},
                                         {0, -1},
                                         {0, INT64_MAX},
                                         {0, INT64_MIN},
                                         {INT64_MIN, INT64_MAX}}) {
    EXPECT_FALSE(s.set(cu));
    EXPECT_EQ(table(s, InputRole::seqlens), (Numbers{2, 1}));
    EXPECT_EQ(s.tokens(), 3);
  }
}

TEST(Sequences, TheLongestOfARunThatIsNotSet) {
  Sequences s(small());
  EXPECT_EQ(s.longest_of(3, 6), 4) << "the others have one token";
  EXPECT_EQ(s.longest_of(1, 9), 5) << "no more than the program takes";
  ASSERT_TRUE(s.set(std::vector<int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(s.longest_of(3, 6), 2);
}

TEST(Sequences, KnowsItsPrograms) {
  EXPECT_EQ(no_ragged_program(small()), "");
  const auto broken = [](auto change) {
    Manifest m = small();
    change(m);
    EXPECT_FALSE(Sequences(m).taken());
    return no_ragged_program(m);
  };
  EXPECT_NE(broken([](Manifest& m) { m.inputs.pop_back(); }).find("'longest' is missing"),
            std::string::npos);
  EXPECT_NE(broken([](Manifest& m) {
              m.inputs.push_back(m.inputs[0]);
            }).find("'cu_seqlens' is there twice"),
            std::string::npos);
  EXPECT_NE(broken([](Manifest& m) { m.inputs[1].dtype = DType::i64; }).find("no vector of i32"),
            std::string::npos);
  EXPECT_NE(broken([](Manifest& m) { m.inputs[3].state = true; }).find("no vector"),
            std::string::npos);
  EXPECT_NE(broken([](Manifest& m) { m.inputs[0].dims = {symbol(1)}; }).find("another size"),
            std::string::npos);
  EXPECT_NE(broken([](Manifest& m) { m.inputs[3].dims = {symbol(1)}; }).find("another size"),
            std::string::npos);
  EXPECT_NE(
      broken([](Manifest& m) { m.symbols[0].role = SizeRole::none; }).find("no size of a run"),
      std::string::npos);
  EXPECT_NE(broken([](Manifest& m) { m.symbols[1].value = symbol(0); }).find("no size of a run"),
            std::string::npos);
}

}  // namespace
}  // namespace tfcc::runtime

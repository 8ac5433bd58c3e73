// SPDX-License-Identifier: Apache-2.0
// Rows without padding: what pack numbers, attention over packed rows, sizes that an op makes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/ir/graph_of.h"
#include "tests/ir/violations.h"

namespace tfcc::ir {
namespace {

using Tensors = std::map<std::string, HostTensor>;

const std::string kHead =
    "graph @p(%m: i64[B,S], %x: f32[B,S,12]) symbols(B = m.0 in 1.. as batch, S = m.1 in 1.. as length, T <= (B*S) in 1.. as packed) {\n";
const std::string kResults = " : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n";
// No output has the size that a pack makes: rows are shown in 16 places, -1 where there is none.
const std::string kShown =
    "  %s = pointwise(%seq) {body = (i) => select(i < T, %seq[min(i, T - 1)], -1)} : i64[16]\n"
    "  %p = pointwise(%pos) {body = (i) => select(i < T, %pos[min(i, T - 1)], -1)} : i64[16]\n";
const std::string kPack =
    "  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {live = (i,j) => %m[i,j] == 1}" + kResults;

TEST(Pack, NumbersLiveRowsThenKeptOnes) {
  const Graph g = graph_of(
      "graph @p(%m: i64[B,S]) symbols(B = m.0 in 1.., S = m.1 in 1.., T <= (B*S) in 1.. as packed) {\n"
      "  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {kept = (i,j) => j == 0, live = (i,j) => %m[i,j] == 1}" +
      kResults + kShown +
      "  return row = %row, cu = %cu, keys = %keys, order = %order, seq = %s, pos = %p\n}\n");
  const HostTensor m{DType::i64, {4, 4}, {}, {1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1}};
  const auto out = eval(g, {{"m", m}});
  ASSERT_TRUE(out) << out.error().message;
  using Ints = std::vector<int64_t>;
  EXPECT_EQ(out->at("row").ints, (Ints{0, 1, -1, -1, 4, -1, 2, 3, 5, -1, -1, -1, 6, -1, 7, 8}));
  EXPECT_EQ(out->at("cu").ints, (Ints{0, 2, 5, 6, 9}));
  EXPECT_EQ(out->at("keys").ints, (Ints{2, 2, 0, 3}));
  EXPECT_EQ(out->at("order").ints, (Ints{1, 3, 0, 2}));
  EXPECT_EQ(out->at("seq").ints, (Ints{0, 0, 1, 1, 1, 2, 3, 3, 3, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(out->at("pos").ints, (Ints{0, 1, 2, 3, 0, 0, 0, 2, 3, -1, -1, -1, -1, -1, -1, -1}));
}

TEST(Pack, NothingLiveLeavesNoRow) {
  const Graph g = graph_of(
      "graph @p(%m: i64[B,S]) symbols(B = m.0 in 1.., S = m.1 in 1.., T <= (B*S) in 1.. as packed) {\n" +
      kPack + kShown + "  return seq = %s, cu = %cu\n}\n");
  const auto out = eval(g, {{"m", {DType::i64, {2, 2}, {}, {0, 0, 0, 0}}}});
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ(out->at("seq").ints, std::vector<int64_t>(16, -1));
  EXPECT_EQ(out->at("cu").ints, (std::vector<int64_t>{0, 0, 0}));
}

// Scores, causality, windows and loads of positions, with rows scattered and rows that are kept
// though dead.
TEST(Pack, PackedAttentionIsAttentionOfLiveRows) {
  const char* const forms[] = {
      "{causal = false, heads = 2, key_padding = %K, kv_heads = 1%P, score = (s,b,h,i,j) => s * 0.5, visible = %V}",
      "{causal = true, heads = 2, key_padding = %K, kv_heads = 1%P, score = (s,b,h,i,j) => s + f32(i - j) * 0.25, visible = (b,h,i,j) => %Aj <= i}",
      "{causal = false, heads = 2, key_padding = %K, kv_heads = 1%P, score = (s,b,h,i,j) => s, visible = (b,h,i,j) => %Ai <= j + 2 and j <= i + 1, window_left = 2, window_right = 1}"};
  std::mt19937 random(3);
  for (std::string form : forms) {
    const auto with = [&](const std::string& key_padding, const std::string& packed,
                          const std::string& visible, const std::string& also) {
      std::string s = form;
      for (const auto& [name, text] : {std::pair<std::string, std::string>{"%K", key_padding},
                                       {"%P", packed},
                                       {"%V", visible},
                                       {"%A", also}}) {
        for (size_t at; (at = s.find(name)) != std::string::npos;) s.replace(at, 2, text);
      }
      return s;
    };
    const std::string slices =
        "  %q = pointwise({0}) {{body = (i,j,k) => {0}[i,j,k]}} : f32[{1},4]\n  %k = pointwise({0}) {{body = (i,j,k) => {0}[i,j,k + 4]}} : f32[{1},2]\n"
        "  %v = pointwise({0}) {{body = (i,j,k) => {0}[i,j,k + 6]}} : f32[{1},3]\n";
    const std::string no_pack =
        "graph @p(%m: i64[B,S], %x: f32[B,S,12]) symbols(B = m.0 in 1.., S = m.1 in 1..) {\n";
    const Graph padded =
        graph_of(no_pack + fmt::format(fmt::runtime(slices), "%x", "B,S") +
                 "  %a = attention(%q, %k, %v, %m) " +
                 with("true", "", "(b,h,i,j) => %m[b,j] == 1", "%m[b,j] == 1 and ") +
                 " : f32[B,S,6]\n  return y = %a\n}\n");
    const Graph packed = graph_of(
        kHead +
        "  flag 0 \"a packed row lies outside\"\n  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {kept = (i,j) => j == 0, live = (i,j) => %m[i,j] == 1}" +
        kResults +
        "  %xp = pointwise(%x, %seq, %pos) {body = (i,j,k) => %x[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]} : f32[1,T,12]\n" +
        fmt::format(fmt::runtime(slices), "%xp", "1,T") +
        "  %a = attention(%q, %k, %v, %cu, %keys, %order, %pos) " +
        with("false", ", packed = [B,S]", "none", "") +
        " : f32[1,T,6]\n  %y = pointwise(%row, %a) {body = (i,j,k) => select(0 <= %row[i,j], %a[0,bounded(%row[i,j], T, 0),k], 0.0)} : f32[B,S,6]\n  return y = %y\n}\n");
    for (int trial = 0; trial < 20; ++trial) {
      const int64_t b = 1 + random() % 3, s = 1 + random() % 7;
      HostTensor m{DType::i64, {b, s}, {}, {}}, x{DType::f32, {b, s, 12}, {}, {}};
      for (int64_t i = 0; i < b * s; ++i) m.ints.push_back(random() % 3 != 0);
      for (int64_t i = 0; i < b * s * 12; ++i)
        x.reals.push_back(static_cast<double>(random() % 2001) / 1000 - 1);
      const auto want = eval(padded, {{"m", m}, {"x", x}}),
                 got = eval(packed, {{"m", m}, {"x", x}});
      ASSERT_TRUE(want) << want.error().message;
      ASSERT_TRUE(got) << got.error().message;
      for (int64_t i = 0; i < b * s; ++i) {
        const bool there = m.ints[static_cast<size_t>(i)] || i % s == 0;
        for (int64_t c = 0; c < 6; ++c) {
          const auto at = static_cast<size_t>(i * 6 + c);
          ASSERT_NEAR(got->at("y").reals[at], there ? want->at("y").reals[at] : 0, 1e-12)
              << form << " " << at;
        }
      }
    }
  }
}

TEST(Pack, RulesAreHeld) {
  const std::string tail = "  return y = %cu\n}\n";
  const auto results = [&](const std::string& types) {
    return kHead +
           "  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {live = (i,j) => %m[i,j] == 1} : " +
           types + "\n" + tail;
  };
  breaks("T1", results("i32[B,S], i32[B], i32[B], i32[B], i32[T], i32[T]"));
  breaks("T1", results("i32[B,S], i32[B + 1], i32[B], i64[B], i32[T], i32[T]"));
  breaks("T2", results("i32[B,S], i32[B + 1], i32[B], i32[B], i32[S], i32[S]"));
  breaks("T3", kHead +
                   "  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {live = (i,j) => %m[i,j]}" +
                   kResults + tail);
  breaks(
      "T3",
      kHead +
          "  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {kept = (i,j) => j, live = (i,j) => %m[i,j] == 1}" +
          kResults + tail);
  breaks("G8",
         kHead + "  %y = pointwise(%m) {body = (i,j) => %m[i,j]} : i64[B,S]\n  return y = %y\n}\n");
  const std::string row = "  %r = pointwise(%row) {body = (i,j) => f32(%row[i,j])} : f32[B,S]\n";
  graph_of(kHead + kPack + row + "  return y = %r\n}\n");
  const std::string without = ", s = %cu\n}\n";
  breaks(
      "G8",
      kHead + kPack +
          "  %t = pointwise() {body = (i) => 1.0} : f32[T]\n  %y = reduce(%t) {body = (i) => %t[i], extents = [T], kind = sum} : f32[]\n  return y = %y" +
          without);
  breaks("G8",
         kHead + kPack +
             "  %y = pointwise(%x) {body = (i) => %x[0,0,0] + f32(T)} : f32[B]\n  return y = %y" +
             without);
  breaks(
      "G8",
      kHead + kPack +
          "  %y = reduce(%x) {body = (i,j) => %x[i,0,0], extents = [T], kind = sum} : f32[B]\n  return y = %y" +
          without);
  graph_of(
      kHead + kPack +
      "  %y = pointwise(%keys) {body = (i) => f32(%keys[i]) + f32(T)} : f32[B]\n  return y = %y" +
      without);
  graph_of(
      kHead + kPack +
      "  %k = pointwise(%keys) {body = (i) => %keys[i]} : i32[B]\n  %y = reduce(%k) {body = (i,j) => f32(%k[i]), extents = [T], kind = sum} : f32[B]\n  return y = %y" +
      without);
  breaks("G8", kHead + kPack + "  return y = %seq" + without);
  breaks("G8", kHead + "  check T <= 8, \"small\"\n" + kPack + row + "  return y = %r\n}\n");
  breaks(
      "G8",
      "graph @p(%m: i64[B,S], %x: f32[B,S,T]) symbols(B = m.0 in 1.. as batch, S = m.1 in 1.. as length, T <= (B*S) in 1.. as packed) {\n" +
          kPack + row + "  return y = %r\n}\n");
  breaks("G8",
         kHead +
             "  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {live = (i,j) => %m[i,j] <= T}" +
             kResults + row + "  return y = %r\n}\n");
  const std::string attend =
      kHead + kPack +
      "  %z = pointwise(%seq) {body = (i,j,k) => f32(%seq[j])} : f32[1,T,4]\n  %a = attention(%z, %z, %z, ";
  const std::string attributes =
      ") {causal = false, heads = 1, key_padding = false, kv_heads = 1, packed = [B,S], score = (s,b,h,i,j) => s, visible = none} : f32[1,T,4]\n"
      "  %y = reduce(%a) {body = (i,j) => %a[0,j,i], extents = [T], kind = sum} : f32[4]\n  return y = %y\n}\n";
  graph_of(attend + "%cu, %keys, %order, %pos" + attributes);
  breaks("A8", attend + "%keys, %keys, %order, %pos" + attributes);
  breaks("A8", attend + "%cu, %keys, %order, %row" + attributes);
}

}  // namespace
}  // namespace tfcc::ir

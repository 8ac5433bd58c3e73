// SPDX-License-Identifier: Apache-2.0
// A cache in pages: kv_append, and attention over pages beside attention over the same tokens in
// one piece.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/ir/graph_of.h"
#include "tests/ir/violations.h"

namespace tfcc::ir {
namespace {

using Tensors = std::map<std::string, HostTensor>;

constexpr int kHeads = 4, kKvHeads = 2, kD = 3, kDv = 2, kPage = 4;

std::string paged_text(const std::string& append = "%kc, %vc, %k, %v, %slots",
                       const std::string& returned = "y = %y, kc = %keys, vc = %values") {
  return fmt::format(
      "graph @paged(%q: f32[1,T,12], %k: f32[1,T,6], %v: f32[1,T,4], %slots: i32[T], %n: i32[N], %cu: i32[N + 1], %order: i32[N], %pos: i32[T], %table: i32[N,W], "
      "%kc: f32[P,2,4,3], %vc: f32[P,2,4,2]) symbols(T = q.1 in 1.., N = n.0 in 1.., W = table.1 in 1.., P = kc.0 in 1..) {{\n"
      "  %keys, %values = kv_append({}) : f32[P,2,4,3], f32[P,2,4,2]\n"
      "  %y = attention(%q, %keys, %values, %cu, %n, %order, %pos, %table) {{causal = true, heads = 4, key_padding = false, kv_heads = 2, packed = [N,4*W], page = 4, "
      "score = (s,b,h,i,j) => s * 0.5 - f32(i - j) * 0.125, visible = (b,h,i,j) => j <= i}} : f32[1,T,8]\n"
      "  return {}\n}}\n",
      append, returned);
}

const char kWhole[] =
    "graph @whole(%q: f32[1,S,12], %k: f32[1,S,6], %v: f32[1,S,4]) symbols(S = q.1 in 1..) {\n"
    "  %y = attention(%q, %k, %v) {causal = true, heads = 4, key_padding = false, kv_heads = 2, score = (s,b,h,i,j) => s * 0.5 - f32(i - j) * 0.125, "
    "visible = (b,h,i,j) => j <= i} : f32[1,S,8]\n"
    "  return y = %y\n}\n";

HostTensor random_rows(std::mt19937& random, int64_t rows, int64_t width) {
  HostTensor t{DType::f32, {1, rows, width}, {}, {}};
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < rows * width; ++i) t.reals.push_back(normal(random));
  return t;
}

struct Sequence {
  HostTensor q, k, v;
  std::vector<double> expected, got;
  std::vector<int64_t> pages;
  int64_t length = 0, done = 0;
};

void append_rows(HostTensor& to, const HostTensor& from, int64_t first, int64_t count) {
  const int64_t width = from.dims[2];
  to.reals.insert(to.reals.end(), from.reals.begin() + first * width,
                  from.reals.begin() + (first + count) * width);
  to.dims[1] += count;
}

// Steps of so many tokens of each sequence, the pages of sequences mixed, are the attention of each
// sequence alone.
void steps_are_the_whole(int64_t chunk, unsigned seed) {
  std::mt19937 random(seed);
  const Graph paged = graph_of(paged_text()), whole = graph_of(kWhole);
  std::vector<Sequence> sequences(3);
  std::vector<int64_t> free_pages(16);
  for (size_t i = 0; i < free_pages.size(); ++i) free_pages[i] = static_cast<int64_t>(i);
  std::shuffle(free_pages.begin(), free_pages.end(), random);
  for (Sequence& s : sequences) {
    s.length = static_cast<int64_t>(random() % 14 + 1);
    s.q = random_rows(random, s.length, kHeads * kD);
    s.k = random_rows(random, s.length, kKvHeads * kD);
    s.v = random_rows(random, s.length, kKvHeads * kDv);
    const auto out = eval(whole, {{"q", s.q}, {"k", s.k}, {"v", s.v}});
    ASSERT_TRUE(out) << out.error().message;
    s.expected = out->at("y").reals;
  }
  const auto nan = std::numeric_limits<double>::quiet_NaN();  // what nobody wrote must not be read
  HostTensor keys{DType::f32,
                  {16, kKvHeads, kPage, kD},
                  std::vector<double>(16 * kKvHeads * kPage * kD, nan),
                  {}};
  HostTensor values{DType::f32,
                    {16, kKvHeads, kPage, kDv},
                    std::vector<double>(16 * kKvHeads * kPage * kDv, nan),
                    {}};
  while (std::any_of(sequences.begin(), sequences.end(),
                     [](const Sequence& s) { return s.done < s.length; })) {
    HostTensor q{DType::f32, {1, 0, kHeads * kD}, {}, {}},
        k{DType::f32, {1, 0, kKvHeads * kD}, {}, {}}, v{DType::f32, {1, 0, kKvHeads * kDv}, {}, {}};
    std::vector<int64_t> slots, n, cu{0}, order, pos, table;
    std::vector<Sequence*> now;
    for (Sequence& s : sequences) {
      if (s.done == s.length) continue;
      const int64_t count = std::min(chunk, s.length - s.done);
      for (int64_t t = s.done; t < s.done + count; ++t) {
        if (t % kPage == 0) {
          s.pages.push_back(free_pages.back());
          free_pages.pop_back();
        }
        slots.push_back(s.pages.back() * kPage + t % kPage);
        pos.push_back(t);
      }
      append_rows(q, s.q, s.done, count);
      append_rows(k, s.k, s.done, count);
      append_rows(v, s.v, s.done, count);
      s.done += count;
      n.push_back(s.done);
      cu.push_back(static_cast<int64_t>(slots.size()));
      order.push_back(static_cast<int64_t>(order.size()));
      for (size_t p = 0; p < 5; ++p) table.push_back(p < s.pages.size() ? s.pages[p] : -7);
      now.push_back(&s);
    }
    const auto ints = [](std::vector<int64_t> x, std::vector<int64_t> dims) {
      return HostTensor{DType::i32, std::move(dims), {}, std::move(x)};
    };
    const auto rows = static_cast<int64_t>(slots.size()), count = static_cast<int64_t>(n.size());
    const auto out = eval(paged, {{"q", q},
                                  {"k", k},
                                  {"v", v},
                                  {"slots", ints(slots, {rows})},
                                  {"n", ints(n, {count})},
                                  {"cu", ints(cu, {count + 1})},
                                  {"order", ints(order, {count})},
                                  {"pos", ints(pos, {rows})},
                                  {"table", ints(table, {count, 5})},
                                  {"kc", keys},
                                  {"vc", values}});
    ASSERT_TRUE(out) << out.error().message;
    const auto& y = out->at("y").reals;
    for (size_t i = 0; i < now.size(); ++i)
      now[i]->got.insert(now[i]->got.end(), y.begin() + cu[i] * kHeads * kDv,
                         y.begin() + cu[i + 1] * kHeads * kDv);
    keys = out->at("kc");
    values = out->at("vc");
  }
  for (const Sequence& s : sequences) {
    ASSERT_EQ(s.got.size(), s.expected.size());
    for (size_t i = 0; i < s.got.size(); ++i)
      EXPECT_NEAR(s.got[i], s.expected[i], 1e-12) << "chunk " << chunk << ", element " << i;
  }
}

TEST(KvCache, StepsAreTheWhole) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    for (int64_t chunk : {1, 3, 7, 100}) steps_are_the_whole(chunk, seed);
  }
}

TEST(KvCache, SlotsOutsideOfThePagesKeepNothing) {
  const Graph g = graph_of(paged_text());
  std::mt19937 random(1);
  const HostTensor keys{
      DType::f32, {2, kKvHeads, kPage, kD}, std::vector<double>(2 * kKvHeads * kPage * kD, 9), {}};
  const HostTensor values{DType::f32,
                          {2, kKvHeads, kPage, kDv},
                          std::vector<double>(2 * kKvHeads * kPage * kDv, 9),
                          {}};
  const auto ints = [](std::vector<int64_t> x, std::vector<int64_t> dims) {
    return HostTensor{DType::i32, std::move(dims), {}, std::move(x)};
  };
  const auto out = eval(g, {{"q", random_rows(random, 3, 12)},
                            {"k", random_rows(random, 3, 6)},
                            {"v", random_rows(random, 3, 4)},
                            {"slots", ints({-1, 8, 1 << 30}, {3})},
                            {"n", ints({3}, {1})},
                            {"cu", ints({0, 3}, {2})},
                            {"order", ints({0}, {1})},
                            {"pos", ints({0, 1, 2}, {3})},
                            {"table", ints({1}, {1, 1})},
                            {"kc", keys},
                            {"vc", values}});
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ(out->at("kc").reals, keys.reals);
  EXPECT_EQ(out->at("vc").reals, values.reals);
}

void refused(const std::string& rule, std::string text, const std::string& from,
             const std::string& to) {
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  breaks(rule, text);
}

TEST(KvCache, RulesAreChecked) {
  const std::string good = paged_text();
  refused("V1", good, "(%kc, %vc, %k, %v, %slots)", "(%kc, %vc, %k, %v)");
  refused("V2", good, "%vc: f32[P,2,4,2]", "%vc: f32[P,4,2,2]");
  refused("V3", good, "%k: f32[1,T,6]", "%k: f32[1,T,8]");
  refused("V3", good, "%slots: i32[T]", "%slots: i64[T]");
  refused("V4", good, ", kc = %keys", "");
  refused("V4", good, ", kc = %keys", ", keys = %keys");
  refused("V4", good, "y = %y, kc = %keys", "kc = %keys, y = %y");
  refused("V4", good, "y = %y", "y = %y, old = %kc");
  refused("A9", good, "packed = [N,4*W]", "packed = [N,W]");
  refused("A9", good, "%table: i32[N,W]", "%table: i64[N,W]");
  refused("A9", good, "page = 4", "page = 2");
  refused("A8", good, "%order: i32[N]", "%order: i32[N + 1]");
}

std::string rotated_text(const std::string& name, const std::string& how, bool as_one) {
  const std::string attributes = "{" + how + "}";
  const bool normalised = how.starts_with("eps");
  const std::string of_q = normalised ? ", %gq" : "", of_k = normalised ? ", %gk" : "";
  const std::string steps =
      as_one
          ? "  %keys, %values, %q2 = rope_append(%kc, %vc, %k, %v, %slots, %q, %cos, %sin" + of_q +
                of_k + ") " + attributes + " : f32[P,2,4,6], f32[P,2,4,2], f32[1,T,24]\n"
          : "  %q2 = rope(%q, %cos, %sin" + of_q + ") " + attributes +
                " : f32[1,T,24]\n  %k2 = rope(%k, %cos, %sin" + of_k + ") " +
                std::string(attributes).replace(attributes.find("heads = 4"), 9, "heads = 2") +
                " : f32[1,T,12]\n"
                "  %keys, %values = kv_append(%kc, %vc, %k2, %v, %slots) : f32[P,2,4,6], f32[P,2,4,2]\n";
  return "graph @" + name +
         "(%q: f32[1,T,24], %k: f32[1,T,12], %v: f32[1,T,4], %slots: i32[T], %cos: f32[1,T,2], %sin: f32[1,T,2], %kc: f32[P,2,4,6], %vc: f32[P,2,4,2], %gq: f32[6], %gk: f32[6]) "
         "symbols(T = q.1 in 1.., P = kc.0 in 1..) {\n" +
         steps + "  return y = %q2, kc = %keys, vc = %values\n}\n";
}

TEST(KvCache, RotatesWhatItAppends) {
  std::mt19937 random(5);
  const auto tensor = [&](std::vector<int64_t> dims) {
    HostTensor t = random_rows(
        random, 1, std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>()));
    t.dims = std::move(dims);
    return t;
  };
  const Tensors in = {{"q", tensor({1, 3, 24})},    {"k", tensor({1, 3, 12})},
                      {"v", tensor({1, 3, 4})},     {"slots", {DType::i32, {3}, {}, {6, -1, 1}}},
                      {"cos", tensor({1, 3, 2})},   {"sin", tensor({1, 3, 2})},
                      {"kc", tensor({2, 2, 4, 6})}, {"vc", tensor({2, 2, 4, 2})},
                      {"gq", tensor({6})},          {"gk", tensor({6})}};
  for (const std::string how :
       {"heads = 4, interleaved = false, rotary = 4", "heads = 4, interleaved = true, rotary = 4",
        "heads = 4, interleaved = false, rotary = 2",
        "eps = 0.1, heads = 4, interleaved = false, rotary = 4"}) {
    const auto apart = eval(graph_of(rotated_text("apart", how, false)), in),
               one = eval(graph_of(rotated_text("one", how, true)), in);
    ASSERT_TRUE(apart) << apart.error().message;
    ASSERT_TRUE(one) << one.error().message;
    for (const char* name : {"y", "kc", "vc"})
      EXPECT_EQ(apart->at(name).reals, one->at(name).reals) << name << " " << how;
    EXPECT_NE(one->at("kc").reals, in.at("kc").reals);
  }
}

TEST(KvCache, RulesOfRotationAreChecked) {
  const std::string good = rotated_text("good", "heads = 4, interleaved = false, rotary = 4", true);
  refused("V1", good, ", %q, %cos, %sin)", ", %q, %cos)");
  refused("V5", good, "heads = 4", "heads = 2");
  refused("V5", good, "%q: f32[1,T,24]", "%q: f16[1,T,24]");
  refused("O3", good, "rotary = 4", "rotary = 3");
  refused("O4", good, "%sin: f32[1,T,2]", "%sin: f32[1,T,3]");
  const std::string normalised =
      rotated_text("good", "eps = 0.1, heads = 4, interleaved = false, rotary = 4", true);
  refused("V1", normalised, ", %gq, %gk)", ", %gq)");
  refused("O5", normalised, "%gq: f32[6]", "%gq: f32[24]");
  refused("O5", normalised, "%gk: f32[6]", "%gk: i32[6]");
}

}  // namespace
}  // namespace tfcc::ir

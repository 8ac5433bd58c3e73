// SPDX-License-Identifier: Apache-2.0
// Memory planning on random graphs: what is live at once shares no byte, every slot holds its
// buffers at all sizes. Lifetimes are read off the launches here, not taken from the plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "codegen/lower.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

/// A random graph: ops over values of several shapes and types, long and short lived, some of them
/// outputs, some twice.
std::string random_graph(uint32_t seed) {
  std::mt19937 random(seed);
  struct Value {
    std::string name;
    int shape;
  };
  const char* const kTypes[] = {"f32[B,S,16]", "f32[B,16]", "f16[B,S,64]", "f32[B,S,S]"};
  const char* const kLoads[] = {"{}[i,j,k % 16]", "{}[i,k % 16]", "{}[i,j,k % 16]",
                                "{}[i,j,k % S]"};
  std::vector<Value> values = {{"x", 0}};
  std::string body;
  const int ops = 3 + static_cast<int>(random() % 25);
  for (int n = 0; n < ops; ++n) {
    // Mostly recent values, now and then one from long ago.
    const auto pick = [&] {
      return values[random() % 4 ? values.size() - 1 - random() % std::min<size_t>(values.size(), 3)
                                 : random() % values.size()];
    };
    const Value a = pick(), b = pick();
    const std::string name = fmt::format("v{}", n);
    const auto load = [&](const Value& v) {
      return fmt::format(fmt::runtime(kLoads[v.shape]), "%" + v.name);
    };
    const std::string operands =
        a.name == b.name ? "%" + a.name : fmt::format("%{}, %{}", a.name, b.name);
    const int kind = static_cast<int>(random() % 4);
    if (kind == 0 && a.shape == 0) {
      body += fmt::format(
          "  %{} = matmul(%{}, %{}) {{alpha = 1.0, trans_a = false, trans_b = true}} : "
          "f32[B,S,S]\n",
          name, a.name, a.name);
      values.push_back({name, 3});
    } else if (kind == 1) {
      body += fmt::format(
          "  %{} = reduce({}) {{body = (i,k,j) => {} + {}, extents = [S], kind = sum}} : "
          "f32[B,16]\n",
          name, operands, load(a), load(b));
      values.push_back({name, 1});
    } else {
      const int shape = static_cast<int>(random() % 4);
      const bool flat = shape == 1;
      body += fmt::format("  %{} = pointwise({}) {{body = ({}) => {}{} * {}}} : {}\n", name,
                          operands, flat ? "i,k" : "i,j,k", flat ? "let j = 0 in " : "", load(a),
                          load(b), kTypes[shape]);
      values.push_back({name, shape});
    }
  }
  std::string outputs = "last = %" + values.back().name;
  for (size_t n = 1; n < values.size(); ++n) {
    if (random() % 6 == 0) outputs += fmt::format(", o{} = %{}", n, values[n].name);
  }
  return fmt::format(
      "graph @random(%x: f32[B,S,16]) symbols(B = x.0 in 1.., S = x.1 in 1..) {{\n{}  return "
      "{}\n}}\n",
      body, outputs);
}

std::vector<uint32_t> buffers_of(const runtime::Launch& l) {
  if (l.kernel) {
    std::vector<uint32_t> list = l.kernel->args;
    for (const runtime::TensorMap& map : l.kernel->maps) list.push_back(map.buffer);
    return list;
  }
  std::vector<uint32_t> list{l.matmul->a, l.matmul->b, l.matmul->d};
  if (l.matmul->has_bias) list.push_back(l.matmul->bias);
  return list;
}

/// First and last launch of each arena buffer in a bucket.
std::map<uint32_t, std::pair<size_t, size_t>> lifetimes(const runtime::Plan& plan,
                                                        const runtime::Bucket& bucket) {
  std::map<uint32_t, std::pair<size_t, size_t>> life;
  for (size_t t = 0; t < bucket.launches.size(); ++t) {
    for (uint32_t b : buffers_of(bucket.launches[t])) {
      if (plan.buffers[b].place != runtime::BufferClass::arena) continue;
      life.emplace(b, std::pair{t, t}).first->second.second = t;
    }
  }
  return life;
}

int64_t bytes_at(const runtime::Buffer& b, const std::vector<int64_t>& symbols) {
  int64_t bytes = static_cast<int64_t>(size_of(b.dtype));
  for (const runtime::SizeExpr& d : b.dims) bytes *= d.evaluate(symbols).value_or(-1);
  return bytes;
}

int64_t offset_at(const runtime::Buffer& b, const std::vector<int64_t>& symbols) {
  return b.offset.evaluate(symbols).value_or(-1);
}

/// Whether two buffers of one slot share bytes.
bool overlap(const runtime::Buffer& a, const runtime::Buffer& b,
             const std::vector<int64_t>& symbols) {
  return offset_at(a, symbols) < offset_at(b, symbols) + bytes_at(b, symbols) &&
         offset_at(b, symbols) < offset_at(a, symbols) + bytes_at(a, symbols);
}

void check_bucket(const runtime::Plan& plan, const runtime::Bucket& bucket,
                  const std::vector<int64_t>& symbols) {
  const auto life = lifetimes(plan, bucket);
  for (const auto& [a, la] : life) {
    for (const auto& [b, lb] : life) {
      if (a >= b || plan.buffers[a].index != plan.buffers[b].index) continue;
      if (la.second < lb.first || lb.second < la.first) continue;
      EXPECT_FALSE(overlap(plan.buffers[a], plan.buffers[b], symbols))
          << plan.buffers[a].name << " is live in launches " << la.first << ".." << la.second
          << ", " << plan.buffers[b].name << " in " << lb.first << ".." << lb.second;
    }
  }
}

/// Numbers of a run at batch and length: the symbols, and after them their product, by which plans
/// name token counts.
std::vector<int64_t> sizes(int64_t batch, int64_t length) {
  return {batch, length, batch * length};
}

// Slots hold their buffers, at multiples of 256; the arena is never smaller than what is live, nor
// larger than all buffers together.
void check_sizes(const runtime::Plan& plan, const std::vector<int64_t>& symbols) {
  int64_t arena = 0, all = 0;
  for (const runtime::SizeExpr& s : plan.slots) arena += s.evaluate(symbols).value_or(-1);
  for (const runtime::Buffer& b : plan.buffers) {
    if (b.place != runtime::BufferClass::arena) continue;
    all += (bytes_at(b, symbols) + 255) / 256 * 256;
    ASSERT_LT(b.index, plan.slots.size());
    EXPECT_EQ(offset_at(b, symbols) % 256, 0) << b.name;
    EXPECT_GE(offset_at(b, symbols), 0) << b.name;
    EXPECT_GE(plan.slots[b.index].evaluate(symbols).value_or(-1),
              offset_at(b, symbols) + bytes_at(b, symbols))
        << b.name;
  }
  EXPECT_LE(arena, all);
  const auto life = lifetimes(plan, plan.buckets.back());
  for (size_t t = 0; t < plan.buckets.back().launches.size(); ++t) {
    int64_t live = 0;
    for (const auto& [b, l] : life)
      live += l.first <= t && t <= l.second ? bytes_at(plan.buffers[b], symbols) : 0;
    EXPECT_LE(live, arena) << "launch " << t;
  }
}

TEST(PlanMemory, NothingLiveSharesMemory) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const std::string text = random_graph(seed);
    SCOPED_TRACE(text);
    auto graph = ir::parse(text);
    ASSERT_TRUE(graph) << graph.error().message;
    for (const ir::Violation& problem : ir::verify(*graph)) FAIL() << to_string(problem);
    for (const TargetClass& target : target_classes()) {
      WeightPool weights;
      auto lowered = lower(*graph, target, weights);
      ASSERT_TRUE(lowered) << lowered.error().message;
      for (const auto& [batch, length] : {std::pair{1, 1}, {16, 128}, {1, 512}, {64, 3}}) {
        for (const runtime::Bucket& bucket : lowered->plan.buckets)
          check_bucket(lowered->plan, bucket, sizes(batch, length));
        check_sizes(lowered->plan, sizes(batch, length));
      }
      if (HasFailure()) return;
    }
  }
}

// Products and what is read beside their sums, in any order: with few tokens they are one launch,
// else two.
std::string random_products(uint32_t seed, bool packed = false) {
  std::mt19937 random(seed);
  const std::string type = packed ? " : f16[1,T,64]\n" : " : f16[B,S,64]\n";
  std::string body =
      "  const @w : f16[64,64] = f32[64,64] random(1) |> cast(f16)\n  %v0 = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 0.5} : f16[B,S,64]\n";
  if (packed) {
    body =
        "  flag 0 \"rows\"\n  const @w : f16[64,64] = f32[64,64] random(1) |> cast(f16)\n"
        "  %row, %cu, %keys, %order, %seq, %pos = pack(%x) {live = (i,j) => 0.0 < %x[i,j,0]} : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n"
        "  %v0 = pointwise(%x, %seq, %pos) {body = (i,j,k) => %x[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]} : f16[1,T,64]\n";
  }
  const int count = 4 + static_cast<int>(random() % 12);
  for (int n = 1; n < count; ++n) {
    const auto any = [&] {
      return fmt::format("%v{}", static_cast<int>(random() % static_cast<uint32_t>(n)));
    };
    const std::string a = any(), b = any(), c = any();
    switch (random() % 4) {
      case 0:
        body += fmt::format(
            "  %v{} = pointwise({}) {{body = (i,j,k) => tanh({}[i,j,63 - k])}} : f16[B,S,64]\n", n,
            a, a);
        break;
      case 1:
        body += fmt::format(
            "  %v{} = matmul({}, @w) {{alpha = 1.0, trans_a = false, trans_b = false}} : f16[B,S,64]\n",
            n, a);
        break;
      case 2:
        body += fmt::format(
            "  %v{} = matmul({}, @w, {}) {{alpha = 1.0, epilogue = (s,i,j,k) => max(s, {}[i,j,k]), trans_a = false, trans_b = false}} : f16[B,S,64]\n",
            n, a, b, b);
        break;
      case 3:
        if (b == c)
          body += fmt::format(
              "  %v{} = matmul({}, @w) {{alpha = 1.0, epilogue = (s,i,j,k) => tanh(s), trans_a = false, trans_b = false}} : f16[B,S,64]\n",
              n, a);
        else
          body += fmt::format(
              "  %v{} = matmul({}, @w, {}, {}) {{alpha = 1.0, epilogue = (s,i,j,k) => {}[i,j,k] * s + {}[i,j,k], trans_a = false, trans_b = false}} : f16[B,S,64]\n",
              n, a, b, c, c, b);
    }
  }
  if (packed) {
    for (size_t at; (at = body.find(" : f16[B,S,64]\n")) != std::string::npos;)
      body.replace(at, type.size(), type);
    for (int n : {count - 1, count / 2})
      body += fmt::format(
          "  %p{} = pointwise(%row, %v{}) {{body = (i,j,k) => select(0 <= %row[i,j], %v{}[0,bounded(%row[i,j], T, 0),k], 0.0)}} : f16[B,S,64]\n",
          n, n, n);
  }
  return fmt::format(
      "graph @random(%x: f32[B,S,64]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens{}) {{\n{}"
      "  return {} = %{}{}, {} = %{}{}\n}}\n",
      packed ? ", T <= (B*S) in 1.. as packed" : "", body,
      seed % 2 ? "last" : fmt::format("v{}", count - 1), packed ? 'p' : 'v', count - 1,
      seed % 2 ? "other" : fmt::format("v{}", count / 2), packed ? 'p' : 'v', count / 2);
}

void forms_share_the_arena(bool packed, size_t least_buckets) {
  size_t forms = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    auto graph = ir::parse(random_products(seed, packed));
    ASSERT_TRUE(graph) << graph.error().message << random_products(seed, packed);
    for (const ir::Violation& problem : ir::verify(*graph)) FAIL() << to_string(problem);
    WeightPool weights;
    auto lowered = lower(*graph, class_of("sm_90"), weights);
    ASSERT_TRUE(lowered) << lowered.error().message;
    forms += lowered->plan.buckets.size() >= least_buckets;
    for (const auto& [batch, length] : {std::pair{1, 1}, {2, 64}, {16, 128}}) {
      std::vector<int64_t> run = sizes(batch, length);
      if (packed) run.push_back(run.back());  // a size that an op makes is planned for at its bound
      for (const runtime::Bucket& bucket : lowered->plan.buckets)
        check_bucket(lowered->plan, bucket, run);
      check_sizes(lowered->plan, run);
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << random_products(seed, packed);
  }
  EXPECT_GT(forms, 300u);
}

TEST(PlanMemory, FormsOfAGraphShareTheArena) { forms_share_the_arena(false, 2); }
TEST(PlanMemory, FormsOfPackedRowsShareTheArena) { forms_share_the_arena(true, 3); }

// Graphs are captured at caps, where tokens is not batch times length: there too every buffer must
// keep the bytes of each smaller run to itself.
TEST(PlanMemory, CapsOfABucketHoldItsShapes) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    auto graph = ir::parse(random_graph(seed));
    ASSERT_TRUE(graph) << graph.error().message;
    WeightPool weights;
    auto lowered = lower(*graph, class_of("sm_80"), weights);
    ASSERT_TRUE(lowered) << lowered.error().message;
    const runtime::Plan& plan = lowered->plan;
    const std::vector<int64_t> caps = {7, 32, 128};
    const auto life = lifetimes(plan, plan.buckets.back());
    for (const auto& shape : {sizes(4, 32), sizes(7, 18), sizes(5, 25), sizes(1, 17)}) {
      for (const auto& [a, la] : life) {
        for (const auto& [b, lb] : life) {
          const runtime::Buffer &x = plan.buffers[a], &y = plan.buffers[b];
          if (a == b || x.index != y.index || la.second < lb.first || lb.second < la.first)
            continue;
          if (offset_at(x, caps) > offset_at(y, caps)) continue;
          EXPECT_LE(offset_at(x, caps) + bytes_at(x, shape), offset_at(y, caps))
              << random_graph(seed) << x.name << " below " << y.name;
        }
      }
    }
    if (HasFailure()) return;
  }
}

// A chain needs memory for two of its values however long it is.
TEST(PlanMemory, AChainTakesTwoBuffers) {
  std::string body;
  for (int n = 0; n < 20; ++n) {
    body +=
        fmt::format("  %v{} = pointwise({}) {{body = (i) => {}[i] + 1.0}} : f32[N]\n", n,
                    n ? fmt::format("%v{}", n - 1) : "%x", n ? fmt::format("%v{}", n - 1) : "%x");
  }
  auto graph = ir::parse("graph @chain(%x: f32[N]) symbols(N = x.0 in 1..) {\n" + body +
                         "  return y = %v19\n}\n");
  ASSERT_TRUE(graph) << graph.error().message;
  WeightPool weights;
  auto lowered = lower(*graph, cpu_class(), weights);
  ASSERT_TRUE(lowered) << lowered.error().message;
  ASSERT_EQ(lowered->plan.slots.size(), 1u);
  EXPECT_EQ(lowered->plan.slots[0].evaluate(std::vector<int64_t>{100}).value_or(0), 1024);
  EXPECT_EQ(lowered->plan.live_bytes.evaluate(std::vector<int64_t>{100}).value_or(0), 800);
}

// Buckets of one plan share their buffers: each must hold what any of them needs.
TEST(PlanMemory, BucketsShareTheirBuffers) {
  auto graph = ir::parse(R"(graph @a(%x: f32[B,S,32]) symbols(B = x.0 in 1.., S = x.1 in 1..) {
    %q = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 2.0} : f32[B,S,32]
    %a = attention(%q, %q, %q) {causal = false, heads = 2, key_padding = false, kv_heads = 2, score = (s,b,h,i,j) => s, visible = none} : f32[B,S,32]
    %b = pointwise(%a, %q) {body = (i,j,k) => %a[i,j,k] + %q[i,j,k]} : f32[B,S,32]
    %c = attention(%b, %a, %b) {causal = false, heads = 2, key_padding = false, kv_heads = 2, score = (s,b,h,i,j) => s, visible = none} : f32[B,S,32]
    %d = pointwise(%c) {body = (i,j,k) => %c[i,j,k] + 1.0} : f32[B,S,32]
    return y = %d
  })");
  ASSERT_TRUE(graph) << graph.error().message;
  WeightPool weights;
  auto lowered = lower(*graph, class_of("sm_80"), weights);
  ASSERT_TRUE(lowered) << lowered.error().message;
  ASSERT_GT(lowered->plan.buckets.size(), 1u);
  for (const runtime::Bucket& bucket : lowered->plan.buckets) {
    EXPECT_EQ(bucket.launches.size(), lowered->plan.buckets[0].launches.size());
    check_bucket(lowered->plan, bucket, sizes(4, 16));
  }
  check_sizes(lowered->plan, sizes(4, 16));
}

// One wide value where three narrow ones were: slots of one size each would leave holes.
TEST(PlanMemory, NarrowBuffersShareTheRoomOfAWideOne) {
  auto graph = ir::parse(R"(graph @a(%x: f32[B,S,64]) symbols(B = x.0 in 1.., S = x.1 in 1..) {
    %a = pointwise(%x) {body = (i,j,k) => %x[i,j,k] + 1.0} : f32[B,S,64]
    %b = pointwise(%a) {body = (i,j,k) => %a[i,j,k] * 2.0} : f32[B,S,64]
    %c = pointwise(%a, %b) {body = (i,j,k) => %a[i,j,k] + %b[i,j,k]} : f32[B,S,64]
    %d = pointwise(%a, %b, %c) {body = (i,j,k) => %a[i,j,k] * %b[i,j,k] + %c[i,j,k]} : f32[B,S,64]
    %w = pointwise(%d) {body = (i,j,k) => %d[i,j,k % 64]} : f32[B,S,192]
    %y = pointwise(%w) {body = (i,j,k) => %w[i,j,k] + %w[i,j,k + 64]} : f32[B,S,64]
    return y = %y
  })");
  ASSERT_TRUE(graph) << graph.error().message;
  WeightPool weights;
  auto lowered = lower(*graph, cpu_class(), weights);
  ASSERT_TRUE(lowered) << lowered.error().message;
  ASSERT_EQ(lowered->plan.slots.size(), 1u);
  for (const auto& symbols : {sizes(16, 128), sizes(1, 7)}) {
    EXPECT_EQ(lowered->plan.slots[0].evaluate(symbols).value_or(0), symbols[2] * 64 * 4 * 4);
  }
}

}  // namespace
}  // namespace tfcc::codegen

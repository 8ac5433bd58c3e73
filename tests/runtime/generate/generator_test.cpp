// SPDX-License-Identifier: Apache-2.0
// The generator over decoders of tests/models, compiled for the CPU: every answer is that of the
// sequence alone.
#include "runtime/generate.h"

#include "runtime/generate/engine.h"
#include "tests/runtime/generate/random_schedules.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

namespace tfcc {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<int32_t>;

struct Golden {
  Ids prompt, tokens;
};

class GeneratorTest : public testing::Test {
 protected:
  static std::filesystem::path folder() {
    return std::filesystem::temp_directory_path() / ("tfcc-generator-" + std::to_string(getpid()));
  }

  static Model load(const std::string& name) {
    const std::string file = folder() / (name + ".tfcc"),
                      model = TFCC_SOURCE_DIR "/tests/models/" + name + "/model.onnx";
    if (!std::filesystem::exists(file)) {
      std::filesystem::create_directories(folder());
      const std::string command = TFCC_BINARY_DIR "/tfcc compile " + model + " -o " + file +
                                  " --target cpu --cpu native -q";
      EXPECT_EQ(std::system(command.c_str()), 0);
    }
    LoadOptions options;
    options.device = "cpu";
    options.threads = 1;
    auto out = Model::load(file, options);
    EXPECT_TRUE(out) << out.error().message;
    return *out;
  }
  // Bytes of a page of the cache.
  static size_t page_bytes(const Model& model) {
    size_t bytes = 0;
    const Model generation = *model.generation();
    for (const TensorInfo& in : generation.inputs())
      if (in.state)
        bytes += size_of(in.dtype) *
                 static_cast<size_t>(in.dims[1].max * in.dims[2].max * in.dims[3].max);
    return bytes;
  }

  static void TearDownTestSuite() { std::filesystem::remove_all(folder()); }

  static Golden golden(const std::string& name) {
    std::ifstream stream(TFCC_SOURCE_DIR "/tests/models/" + name + "/generate.json");
    const auto json = nlohmann::json::parse(stream);
    return {json.at("prompt"), json.at("tokens")};
  }

  static Generator generator(const std::string& name, const GeneratorOptions& options = {}) {
    auto out = Generator::make(load(name), options);
    EXPECT_TRUE(out) << out.error().message;
    return *std::move(out);
  }

  static Generated answer(Generator& g, const Ids& prompt, const GenerateOptions& options) {
    const auto id = g.submit(prompt, options);
    EXPECT_TRUE(id) << id.error().message;
    auto out = g.wait(*id);
    EXPECT_TRUE(out) << out.error().message;
    return *out;
  }
};

TEST_F(GeneratorTest, GivesWhatFloat64Gives) {
  for (const std::string name : {"llama-past", "gpt2-past", "linear-decoder", "linear-hybrid"})
    for (const int64_t chunk : {1, 3, 7, 512})
      for (const bool literal : {false, true}) {
        const Golden want = golden(name);
        Generator g = generator(name, {.prompt_chunk = chunk, .literal = literal});
        EXPECT_EQ(g.engine(), !literal                     ? "pages"
                              : name.starts_with("linear") ? "whole sequences"
                                                           : "past and present");
        const Generated got = answer(g, want.prompt, {.max_tokens = 24});
        EXPECT_EQ(got.tokens, want.tokens)
            << name << " in chunks of " << chunk << (literal ? ", literal" : "");
        EXPECT_EQ(got.end, GenerateEnd::length);
        EXPECT_GT(got.first_token_ms, 0);
      }
}

Result<void> step(generate::Engine& engine, std::span<generate::Engine::Work> works) {
  TFCC_TRY_VOID(engine.begin(works, false));
  return engine.finish(works);
}

// On the CPU products add in the order of k and attention in that of keys, for one row as for many:
// neither chunks nor others in the batch change a bit.
TEST_F(GeneratorTest, ChunksChangeNoBitOfTheLogits) {
  for (const std::string name :
       {"llama-past", "gpt2-past", "llama", "gpt2", "linear-decoder", "linear-hybrid"}) {
    const Model model = load(name);
    Ids prompt, other;
    for (int i = 0; i < 40; ++i) prompt.push_back(i * 37 % 200), other.push_back(i * 17 % 200);
    for (const bool paged : {false, true}) {
      const auto generation = model.generation();
      if (!paged && !name.ends_with("past")) continue;
      ASSERT_TRUE(!paged || generation) << name;
      std::vector<float> whole;
      for (const size_t chunk : {40, 1, 3, 7, 8, 9, 33}) {
        auto engine =
            paged ? *generate::make_paged_engine(*generation, {.max_context = 64,
                                                               .max_sequences = 3,
                                                               .most_tokens = 200,
                                                               .prefix_sharing = false,
                                                               .logits = true})
                  : *generate::make_literal_engine(
                        model, *generate::find_roles(model.inputs(), model.outputs(), {}), 64);
        const auto sequence = engine->start(prompt), beside = engine->start(other);
        ASSERT_TRUE(engine->reserve(*sequence, 40) && engine->reserve(*beside, 40));
        std::vector<float> last;
        for (size_t at = 0; at < prompt.size(); at += chunk) {
          std::vector<generate::Engine::Work> works;
          const auto piece = std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at));
          if (paged && at / chunk % 2)
            works.push_back(
                {beside.get(), std::span(other).subspan(static_cast<size_t>(beside->length), 1)});
          works.push_back({sequence.get(), piece, true, piece});
          const auto done = step(*engine, works);
          ASSERT_TRUE(done) << done.error().message;
          last.assign(works.back().logits.begin(), works.back().logits.end());
        }
        if (whole.empty()) whole = last;
        EXPECT_EQ(std::memcmp(last.data(), whole.data(), whole.size() * sizeof(float)), 0)
            << name << " in chunks of " << chunk;
      }
    }
  }
}

TEST_F(GeneratorTest, EndsBeforeAStopId) {
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past");
  const Generated got =
      answer(g, want.prompt, {.max_tokens = 24, .stop_ids = {-1, want.tokens[4]}});
  EXPECT_EQ(got.end, GenerateEnd::stop);
  EXPECT_EQ(got.tokens, Ids(want.tokens.begin(),
                            std::find(want.tokens.begin(), want.tokens.end(), want.tokens[4])));
}

TEST_F(GeneratorTest, EndsWhereTheContextEnds) {
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past", {.max_context = 10});
  EXPECT_EQ(g.max_context(), 10);
  const Generated got = answer(g, want.prompt, {.max_tokens = 24});
  EXPECT_EQ(got.end, GenerateEnd::context);
  EXPECT_EQ(got.tokens,
            Ids(want.tokens.begin(), want.tokens.begin() + 3));  // the last needs no place
  const Ids full(10, 7);
  EXPECT_EQ(answer(g, full, {}).tokens.size(), 1u);
  EXPECT_EQ(g.submit(Ids(11, 7)).error().message, "the prompt has 11 tokens, the context holds 10");
}

TEST_F(GeneratorTest, SaysWhatTheModelCannotReach) {
  Generator g = generator("gpt2-past");  // 48 positions
  const Generated got = answer(g, golden("gpt2-past").prompt, {.max_tokens = 100});
  EXPECT_EQ(got.end, GenerateEnd::failed);
  EXPECT_NE(got.error.message.find("position_ids"), std::string::npos) << got.error.message;
  EXPECT_EQ(got.tokens.size(), 41u);
  EXPECT_EQ(answer(g, golden("gpt2-past").prompt, {.max_tokens = 24}).tokens,
            golden("gpt2-past").tokens);  // others go on
}

// The step that fails may be under way when a callback cancels.
TEST_F(GeneratorTest, EndsAsCancelledWhatWasCancelledBeforeItFailed) {
  Generator g = generator("gpt2-past", {.run_ahead = true});
  for (int i = 0; i < 50; ++i) {
    std::atomic<Generator::Id> own = 0;
    GenerateOptions o{.max_tokens = 100};
    int tokens = 0;
    o.on_token = [&](int32_t) {
      while (!own) std::this_thread::yield();
      if (++tokens == 40) g.cancel(own);  // of 41
    };
    own = *g.submit(golden("gpt2-past").prompt, o);
    const Generated got = *g.wait(own);
    if (got.end == GenerateEnd::failed) EXPECT_EQ(got.tokens.size(), 41u);
    else EXPECT_EQ(got.end, GenerateEnd::cancelled);
  }
}

TEST_F(GeneratorTest, TakesOptionsOfAnySize) {
  const Model model = load("llama-past");
  const auto refused = [&](const GeneratorOptions& o) {
    return Generator::make(model, o).error().message;
  };
  EXPECT_EQ(refused({.max_sequences = INT64_MAX}),
            "max_sequences must be at most 65535, got 9223372036854775807");
  EXPECT_EQ(refused({.max_context = INT64_MAX}),
            "max_context must be at most 1073741824, got 9223372036854775807");
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past", {.max_context = 64, .prompt_chunk = INT64_MAX});
  EXPECT_EQ(answer(g, want.prompt, {.max_tokens = 24}).tokens, want.tokens);
}

TEST_F(GeneratorTest, RefusesBadRequests) {
  Generator g = generator("llama-past");
  EXPECT_EQ(g.submit({}).error().message, "the prompt is empty; it needs at least one token");
  EXPECT_EQ(
      g.submit(Ids{1, 200}).error().message,
      "token 1 of the prompt is 200, outside the vocabulary [0, 200); is the tokenizer that of another model?");
  EXPECT_FALSE(g.submit(Ids{-1}));
  EXPECT_EQ(g.submit(Ids{1}, {.max_tokens = 0}).error().message,
            "max_tokens must be at least 1, got 0");
  GenerateOptions hot;
  hot.sampling.top_p = 3;
  EXPECT_FALSE(g.submit(Ids{1}, hot));
  EXPECT_EQ(g.wait(99).error().message, "there is no sequence 99, or its end was waited for");
  EXPECT_FALSE(Generator::make(load("bert-eager")));  // its output of [B,S,32] is no logits
  EXPECT_FALSE(Generator::make(load("llama-past"), {.max_sequences = 0}));
}

TEST_F(GeneratorTest, DeliversInOrder) {
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past");
  Ids seen;
  GenerateOptions o{.max_tokens = 24};
  o.on_token = [&](int32_t id) { seen.push_back(id); };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(answer(g, want.prompt, o).tokens, want.tokens);
  EXPECT_EQ(seen, want.tokens);
  const double host_ms = g.stats().host_ms;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(host_ms, 0);
  EXPECT_LE(host_ms, took.count());
  const GeneratorStats stats = g.stats();
  EXPECT_GE(stats.busy_ms, host_ms);
  EXPECT_LE(stats.busy_ms, took.count());
  EXPECT_NEAR(stats.tokens_per_second(), static_cast<double>(stats.tokens) * 1000 / stats.busy_ms,
              1e-6);
  EXPECT_EQ(stats.hit_rate(), 0);
  const Ids long_prompt(130, 7);  // two whole pages
  answer(g, long_prompt, {.max_tokens = 1});
  answer(g, long_prompt, {.max_tokens = 1});
  for (int i = 0; i < 2000 && g.stats().hit_rate() == 0; ++i)
    std::this_thread::sleep_for(1ms);  // it is counted after the answer is there
  EXPECT_NEAR(g.stats().hit_rate(), 128.0 / (260 + static_cast<double>(want.prompt.size())), 1e-9);
}

TEST_F(GeneratorTest, ACallbackThatThrowsEndsItsSequenceAlone) {
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past");
  GenerateOptions bad{.max_tokens = 200};
  bad.on_token = [n = 0](int32_t) mutable {
    if (++n == 3) throw std::runtime_error("enough");
  };
  const auto first = g.submit(want.prompt, bad);
  const auto second = g.submit(want.prompt, {.max_tokens = 24});
  const auto got = g.wait(*first);
  EXPECT_EQ(got->end, GenerateEnd::failed);
  EXPECT_EQ(got->error.message, "the callback threw: enough");
  EXPECT_EQ(g.wait(*second)->tokens, want.tokens);
}

TEST_F(GeneratorTest, ACallbackThatBlocksHoldsBackItsSequenceAlone) {
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past");
  std::atomic<bool> open = false;
  GenerateOptions slow{.max_tokens = 300};
  slow.on_token = [&](int32_t) {
    while (!open) std::this_thread::sleep_for(1ms);
  };
  const auto first = g.submit(want.prompt, slow);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(answer(g, want.prompt, {.max_tokens = 24}).tokens, want.tokens);
  EXPECT_LE(g.poll(*first)->tokens.size(), 64u);  // it does not run ahead of its reader without end
  open = true;
  EXPECT_EQ(g.wait(*first)->tokens.size(), 300u);
}

// Nor does it keep a place that others want: in the list, or in a cache of one sequence.
TEST_F(GeneratorTest, CallbacksThatBlockHoldNobodyElseUp) {
  for (const auto& [name, pages] : {std::pair{"llama-past", 2}, {"linear-hybrid", 4}}) {
    const Model model = load(name);
    const Ids prompt = {5, 6, 7};
    Generator alone = *Generator::make(model);
    const Ids want = answer(alone, prompt, {.max_tokens = 90}).tokens;
    for (const size_t swap : {size_t{0}, size_t{1} << 20}) {
      SCOPED_TRACE(std::string(name) + ", swap " + std::to_string(swap));
      Generator g = *Generator::make(model, {.max_context = 128,
                                             .max_sequences = 2,
                                             .cache_bytes = page_bytes(model) * pages,
                                             .swap_bytes = swap});
      std::atomic<bool> open = false;
      GenerateOptions slow{.max_tokens = 90};
      slow.on_token = [&](int32_t) {
        while (!open) std::this_thread::sleep_for(1ms);
      };
      std::vector<Generator::Id> blocked;
      for (int i = 0; i < 5; ++i) blocked.push_back(*g.submit(prompt, slow));
      const Generated free = answer(g, prompt, {.max_tokens = 90});
      EXPECT_EQ(free.tokens, want) << free.error.message;
      for (const auto id : blocked) EXPECT_LT(g.poll(id)->tokens.size(), 90u);
      EXPECT_GT(g.stats().preempted, 0);
      open = true;
      for (const auto id : blocked) EXPECT_EQ(g.wait(id)->tokens, want);
    }
  }
}

TEST_F(GeneratorTest, ACallbackMayCancelAndSubmit) {
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past");
  std::atomic<Generator::Id> own = 0, other = 0;
  GenerateOptions o{.max_tokens = 500};
  o.on_token = [&](int32_t) {
    while (!own) std::this_thread::yield();
    if (!other) other = *g.submit(want.prompt, {.max_tokens = 24});
    EXPECT_FALSE(g.wait(own));
    g.cancel(own);
  };
  own = *g.submit(want.prompt, o);
  EXPECT_EQ(g.wait(own)->end, GenerateEnd::cancelled);
  EXPECT_EQ(g.wait(other)->tokens, want.tokens);
}

TEST_F(GeneratorTest, CancelsBeforeTheFirstTokenAndAfterTheEnd) {
  Generator g = generator("llama-past", {.max_sequences = 1});
  const auto first = g.submit(Ids{5}, {.max_tokens = 2000});
  const auto waiting = g.submit(Ids{6}, {.max_tokens = 2000});
  g.cancel(*waiting);
  EXPECT_EQ(g.wait(*waiting)->end, GenerateEnd::cancelled);
  g.cancel(*first);
  g.cancel(*first);
  EXPECT_EQ(g.wait(*first)->end, GenerateEnd::cancelled);
  g.cancel(*first);
  g.cancel(12345);
  EXPECT_EQ(g.stats().running, 0);
}

TEST_F(GeneratorTest, MayBeDestroyedWithWorkInFlight) {
  for (int i = 0; i < 20; ++i) {
    Generator g = generator("llama-past");
    GenerateOptions o{.max_tokens = 10000};
    o.on_token = [](int32_t) { std::this_thread::sleep_for(100us); };
    for (int k = 0; k < 5; ++k) ASSERT_TRUE(g.submit(Ids{k}, o));
    std::this_thread::sleep_for(std::chrono::microseconds(200 * i));
  }
}

// Sequences that wait for their turn have no thread.
TEST_F(GeneratorTest, TakesThousandsOfRequests) {
  Generator g = generator("llama-past", {.max_sequences = 2});
  std::vector<Generator::Id> ids;
  std::atomic<int> tokens = 0;
  GenerateOptions o{.max_tokens = 1};
  o.on_token = [&](int32_t) { ++tokens; };
  for (int i = 0; i < 5000; ++i) ids.push_back(*g.submit(Ids{i % 200}, o));
  for (const auto id : ids) EXPECT_EQ(g.wait(id)->end, GenerateEnd::length);
  EXPECT_EQ(tokens, 5000);
}

TEST_F(GeneratorTest, TwoShareAModel) {
  const Golden want = golden("llama-past");
  const Model model = load("llama-past");
  Generator a = *Generator::make(model), b = *Generator::make(model);
  const auto x = a.submit(want.prompt, {.max_tokens = 24}),
             y = b.submit(want.prompt, {.max_tokens = 24});
  EXPECT_EQ(a.wait(*x)->tokens, want.tokens);
  EXPECT_EQ(b.wait(*y)->tokens, want.tokens);
}

class ScheduleTest : public GeneratorTest {
 protected:
  /// `unit`: bytes for each page of a cache of random size.
  static Schedules::Counts random_schedules(const std::string& name, size_t unit, int rounds) {
    Schedules schedules(load(name), unit, 1);
    for (int round = 0; round < rounds; ++round) {
      const std::string wrong = schedules.run(round, name == "llama-past");
      EXPECT_EQ(wrong, "");
      if (!wrong.empty()) break;
    }
    return schedules.counts();
  }
};

TEST_F(ScheduleTest, OfPages) {
  const Schedules::Counts done =
      random_schedules("llama-past", page_bytes(load("llama-past")), 200);
  EXPECT_GT(done.swapped, 0);
  EXPECT_GT(done.preempted, done.swapped);
  EXPECT_GT(done.shared_tokens, 0);
  EXPECT_GT(done.steps_ahead, 0);
}

// Slots of sums beside pages, two a sequence, or three where steps run ahead: half of the cache each.
// Prefixes are not shared.
TEST_F(ScheduleTest, OfPagesAndSums) {
  const Schedules::Counts done =
      random_schedules("linear-hybrid", 3 * page_bytes(load("linear-hybrid")), 60);
  EXPECT_GT(done.swapped, 0);
  EXPECT_GT(done.preempted, done.swapped);
  EXPECT_EQ(done.shared_tokens, 0);
  EXPECT_GT(done.steps_ahead, 0);
}

// Who has slots has all that it will need.
TEST_F(ScheduleTest, OfSumsAlone) {
  // A sequence keeps its slots, but where its callback lags.
  const Schedules::Counts done =
      random_schedules("linear-decoder", 3 * page_bytes(load("linear-decoder")), 60);
  EXPECT_GT(done.answers, 600);
  EXPECT_GT(done.steps_ahead, 0);
}

// A step that fails has changed nothing: its sequences go on as if it had not been.
TEST_F(GeneratorTest, AStepThatFailedHasChangedNoSums) {
  for (const std::string name : {"linear-decoder", "linear-hybrid"}) {
    const Model model = load(name);
    const Model generation = *model.generation();
    const Ids prompt = {5, 9, 44, 7, 120, 3}, next = {17}, wrong = {5000};
    std::vector<float> expected;
    for (const bool fails : {false, true}) {
      auto engine = *generate::make_paged_engine(generation, {.max_context = 64,
                                                              .max_sequences = 2,
                                                              .most_tokens = 64,
                                                              .prefix_sharing = false,
                                                              .logits = true});
      const auto a = engine->start(prompt), b = engine->start(prompt);
      ASSERT_TRUE(engine->reserve(*a, 8) && engine->reserve(*b, 8));
      const auto work = [&](generate::Engine::Sequence& s, const Ids& ids) {
        return generate::Engine::Work{&s, ids, true, ids};
      };
      std::vector<generate::Engine::Work> both = {work(*a, prompt), work(*b, prompt)};
      ASSERT_TRUE(step(*engine, both));
      if (fails) {
        both = {work(*a, next), work(*b, wrong)};
        const auto done = step(*engine, both);
        ASSERT_FALSE(done);
        EXPECT_NE(done.error().message.find("a value lies outside"), std::string::npos)
            << done.error().message;
      }
      std::vector<generate::Engine::Work> one = {work(*a, next)};
      ASSERT_TRUE(step(*engine, one));
      const std::vector<float> got(one[0].logits.begin(), one[0].logits.end());
      if (!fails) expected = got;
      else EXPECT_EQ(got, expected) << name;
    }
  }
}

// What a sequence holds comes back as it was, wherever it lies then; others have its place meanwhile.
TEST_F(GeneratorTest, ASequenceThatWasSwappedOutHasTheBitsThatItHad) {
  for (const std::string name : {"llama-past", "linear-hybrid", "linear-decoder"}) {
    const Model model = load(name);
    const Model generation = *model.generation();
    Ids prompt, other, next = {17};
    for (int i = 0; i < 100; ++i) prompt.push_back(i * 37 % 200), other.push_back(i * 17 % 200);
    std::vector<float> expected;
    for (const bool moved : {false, true})
      for (const bool sharing : {false, true}) {
        auto engine = *generate::make_paged_engine(generation, {.max_context = 128,
                                                                .max_sequences = 2,
                                                                .most_tokens = 200,
                                                                .cache_bytes = 0,
                                                                .prefix_sharing = sharing,
                                                                .logits = true});
        const auto compute = [&](generate::Engine::Sequence& s, const Ids& ids) {
          std::vector<generate::Engine::Work> works = {{&s, ids, true, ids}};
          EXPECT_TRUE(step(*engine, works));
          return std::vector<float>(works[0].logits.begin(), works[0].logits.end());
        };
        const auto a = engine->start(prompt);
        EXPECT_FALSE(engine->swap_out(*a)) << "there is nothing to keep";
        ASSERT_TRUE(engine->reserve(*a, 101));
        compute(*a, prompt);
        if (moved) {
          const int64_t held = engine->pages_held();
          EXPECT_GT(a->bytes, 0u);
          ASSERT_TRUE(engine->swap_out(*a)) << name;
          EXPECT_EQ(a->bytes, 0u);
          EXPECT_EQ(engine->pages_held(), 0);
          // All of the cache is written meanwhile.
          std::vector<std::unique_ptr<generate::Engine::Sequence>> others;
          for (int i = 0; i < 2; ++i) {
            others.push_back(engine->start(other));
            ASSERT_TRUE(engine->reserve(*others.back(), 128));
            Ids ids(128, 3 + i);
            compute(*others.back(), ids);
          }
          EXPECT_FALSE(engine->swap_in(*a)) << "there is no place";
          others.clear();
          const auto again = engine->start(prompt);
          ASSERT_TRUE(engine->reserve(*again, 100));
          compute(*again, prompt);
          ASSERT_TRUE(engine->swap_out(*again));
          ASSERT_TRUE(engine->swap_in(*again));
          EXPECT_EQ(engine->pages_held(), held);
          ASSERT_TRUE(engine->reserve(*again, 101));
          EXPECT_EQ(compute(*again, next), expected) << name;
        } else {
          expected = compute(*a, next);
        }
      }
  }
}

TEST_F(GeneratorTest, SwapsAsMuchAsTheHostHasPlaceFor) {
  const Model generation = *load("llama-past").generation();
  const size_t page = page_bytes(load("llama-past"));
  auto engine = *generate::make_paged_engine(
      generation,
      {.max_context = 128, .max_sequences = 2, .most_tokens = 200, .swap_bytes = 2 * page});
  std::vector<std::unique_ptr<generate::Engine::Sequence>> s;
  for (const size_t length : {65, 10}) {
    const Ids ids(length, 7 + static_cast<int>(length));
    s.push_back(engine->start(ids));
    ASSERT_TRUE(engine->reserve(*s.back(), static_cast<int64_t>(length)));
    std::vector<generate::Engine::Work> works = {{s.back().get(), ids, true, ids}};
    ASSERT_TRUE(step(*engine, works));
  }
  ASSERT_TRUE(engine->swap_out(*s[0]));
  EXPECT_FALSE(engine->swap_out(*s[1])) << "two pages are taken";
  EXPECT_EQ(s[1]->length, 10);
  EXPECT_EQ(engine->pages_held(), 1);
  ASSERT_TRUE(engine->swap_in(*s[0]));
  EXPECT_TRUE(engine->swap_out(*s[1]));
  EXPECT_EQ(engine->pages_held(), 2);
}

// Pages and sums together.
TEST_F(GeneratorTest, SwapsNoMoreThanIsAllowed) {
  const Model generation = *load("linear-hybrid").generation();
  size_t pages = 0, sums = 0;
  for (const TensorInfo& in : generation.inputs()) {
    if (!in.state) continue;
    const size_t bytes =
        size_of(in.dtype) * static_cast<size_t>(in.dims[1].max * in.dims[2].max * in.dims[3].max);
    (in.name.starts_with("cache.") ? pages : sums) += (bytes + 255) / 256 * 256;
  }
  ASSERT_TRUE(pages > 0 && sums > 0);
  for (const size_t less : {0, 1}) {
    auto engine = *generate::make_paged_engine(generation, {.max_context = 128,
                                                            .max_sequences = 2,
                                                            .most_tokens = 200,
                                                            .swap_bytes = pages + sums - less});
    const Ids ids(10, 7);
    const auto s = engine->start(ids);
    ASSERT_TRUE(engine->reserve(*s, 10));
    std::vector<generate::Engine::Work> works = {{s.get(), ids, true, ids}};
    ASSERT_TRUE(step(*engine, works));
    EXPECT_EQ(engine->swap_out(*s), less == 0);
  }
}

// The step that followed one that failed is none, and both may be computed again.
TEST_F(GeneratorTest, AStepThatFailedTakesTheOneAheadAlong) {
  for (const std::string name : {"llama-past", "linear-hybrid", "linear-decoder"}) {
    const Model model = load(name), generation = *model.generation();
    const Ids prompt = {5, 9, 44, 7, 120, 3}, wrong = {5000}, none = {};
    std::vector<float> expected;
    for (const bool fails : {false, true}) {
      auto engine = *generate::make_paged_engine(generation, {.max_context = 64,
                                                              .max_sequences = 2,
                                                              .most_tokens = 64,
                                                              .logits = true,
                                                              .run_ahead = true});
      const auto a = engine->start(prompt);
      ASSERT_TRUE(engine->reserve(*a, 9));
      const auto work = [&](const Ids& ids) {
        return std::vector<generate::Engine::Work>{{a.get(), ids, true, ids}};
      };
      auto first = work(prompt);
      ASSERT_TRUE(step(*engine, first));
      if (fails) {
        auto now = work(wrong), ahead = work(none);
        ASSERT_TRUE(engine->begin(now, false));
        ASSERT_TRUE(engine->begin(ahead, true));
        EXPECT_FALSE(engine->finish(now));
        EXPECT_EQ(a->length, 6);
      }
      const Ids chosen = {first[0].token};
      auto now = work(chosen), ahead = work(none);
      ASSERT_TRUE(engine->begin(now, false));
      ASSERT_TRUE(engine->begin(ahead, true));
      ASSERT_TRUE(engine->finish(now));
      const Ids next = {now[0].token};
      ahead[0].tokens = next;
      ASSERT_TRUE(engine->finish(ahead));
      EXPECT_EQ(a->length, 8);
      const std::vector<float> got(ahead[0].logits.begin(), ahead[0].logits.end());
      if (!fails) expected = got;
      else EXPECT_EQ(got, expected) << name;
    }
  }
}

// A counter shows that nothing waits for the host while the same sequences go on.
TEST_F(GeneratorTest, RunsAheadWhileSequencesGoOn) {
  for (const std::string name : {"llama-past", "linear-hybrid", "linear-decoder"}) {
    const Golden want = golden(name);
    for (const bool ahead : {false, true}) {
      Generator g = generator(name, {.run_ahead = ahead});
      GenerateOptions options;
      options.max_tokens = 20;
      EXPECT_EQ(answer(g, want.prompt, options).tokens,
                Ids(want.tokens.begin(), want.tokens.begin() + 20));
      EXPECT_EQ(g.stats().steps, 20);
      EXPECT_EQ(g.stats().steps_ahead, ahead ? 19 : 0);
    }
  }
}

TEST_F(GeneratorTest, GivesLogProbabilities) {
  Generator paged = generator("llama-past"), literal = generator("llama-past", {.literal = true});
  GenerateOptions options;
  options.max_tokens = 8;
  options.sampling.temperature = 2;
  options.sampling.repetition_penalty = 1.5f;
  EXPECT_TRUE(answer(paged, {5, 6, 7}, options).log_probabilities.empty());
  options.log_probabilities = true;
  const Generated a = answer(paged, {5, 6, 7}, options), b = answer(literal, {5, 6, 7}, options);
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.log_probabilities.size(), 8u);
  ASSERT_EQ(b.log_probabilities.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(a.log_probabilities[i], b.log_probabilities[i], 1e-5);
    EXPECT_LT(a.log_probabilities[i], 0);
  }
}

TEST_F(GeneratorTest, SaysThatTheCacheIsTooSmall) {
  const Golden want = golden("llama-past");
  const size_t page = page_bytes(load("llama-past"));
  EXPECT_NE(Generator::make(load("llama-past"), {.cache_bytes = page - 1})
                .error()
                .message.find("has no place for a page, which takes"),
            std::string::npos);
  Generator g = generator("llama-past", {.cache_bytes = page});
  const Generated got = answer(g, want.prompt, {.max_tokens = 100});
  EXPECT_EQ(got.end, GenerateEnd::failed);
  EXPECT_EQ(got.error.code, ErrorCode::memory);
  EXPECT_NE(got.error.message.find("the cache has place for 64 tokens"), std::string::npos)
      << got.error.message;
  EXPECT_EQ(got.tokens.size(), 64 - want.prompt.size() + 1);
  EXPECT_EQ(answer(g, Ids(80, 3), {}).error.code, ErrorCode::memory);
  EXPECT_EQ(answer(g, want.prompt, {.max_tokens = 24}).tokens, want.tokens);  // others go on
}

TEST_F(GeneratorTest, SaysThatSumsHaveNoPlace) {
  const Model model = load("linear-decoder");
  const size_t pair = 2 * page_bytes(model);
  EXPECT_NE(Generator::make(model, {.cache_bytes = pair - 1})
                .error()
                .message.find("has no place for the sums of a sequence, which take "),
            std::string::npos);
  Generator g = generator("linear-decoder", {.max_sequences = 3, .cache_bytes = 1000 * pair});
  const Golden want = golden("linear-decoder");
  const auto a = *g.submit(want.prompt, {.max_tokens = 24}),
             b = *g.submit(want.prompt, {.max_tokens = 500});
  EXPECT_EQ(g.wait(a)->tokens, want.tokens);
  EXPECT_EQ(g.wait(b)->tokens.size(), 500u);
  EXPECT_EQ(g.stats().pages, 0);
}

TEST_F(GeneratorTest, SequencesInABatchAreAsAlone) {
  const Golden want = golden("llama-past");
  Generator g = generator("llama-past");
  std::vector<Generator::Id> others;
  for (int i = 0; i < 5; ++i)
    others.push_back(*g.submit(Ids(static_cast<size_t>(3 + 20 * i), 7 * i), {.max_tokens = 60}));
  EXPECT_EQ(answer(g, want.prompt, {.max_tokens = 24}).tokens, want.tokens);
  for (const auto id : others) EXPECT_EQ(g.wait(id)->end, GenerateEnd::length);
}

}  // namespace
}  // namespace tfcc

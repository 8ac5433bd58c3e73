// SPDX-License-Identifier: Apache-2.0
// The generator by the C API: what it answers is what the C++ one answers; misuse is an error with
// a line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/tfcc_c.h"

namespace {

using Ids = std::vector<int32_t>;

class GeneratorCApi : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = TFCC_SOURCE_DIR "/tests/models/llama-past/";
    ASSERT_EQ(std::system((TFCC_BINARY_DIR "/tfcc compile " + folder + "model.onnx -o " + path_ +
                           " --target cpu --cpu native -q")
                              .c_str()),
              0);
    const auto json = nlohmann::json::parse(std::ifstream(folder + "generate.json"));
    prompt_ = json.at("prompt").get<Ids>();
    tokens_ = json.at("tokens").get<Ids>();
    ASSERT_EQ(tfcc_model_load(path_.c_str(), nullptr, &model_), TFCC_OK) << tfcc_last_error();
    ASSERT_EQ(tfcc_generator_create(model_, nullptr, &generator_), TFCC_OK) << tfcc_last_error();
  }
  void TearDown() override {
    tfcc_generator_free(generator_);
    tfcc_model_free(model_);
    std::filesystem::remove(path_);
  }

  uint64_t submit(const tfcc_generate_options& options) {
    uint64_t id = 0;
    EXPECT_EQ(tfcc_generator_submit(generator_, prompt_.data(), prompt_.size(), &options, &id),
              TFCC_OK)
        << tfcc_last_error();
    return id;
  }
  // Tokens and end of a sequence, once it has ended.
  std::pair<Ids, tfcc_generate_end> waited(uint64_t id) {
    tfcc_generated* g = nullptr;
    EXPECT_EQ(tfcc_generator_wait(generator_, id, &g), TFCC_OK) << tfcc_last_error();
    std::pair<Ids, tfcc_generate_end> out{Ids(g->tokens, g->tokens + g->count), g->end};
    EXPECT_STREQ(g->error, "");
    EXPECT_GE(g->total_ms, g->first_token_ms);
    tfcc_generated_free(g);
    return out;
  }
  tfcc_generate_options options(int64_t max_tokens) {
    tfcc_generate_options o;
    tfcc_generate_options_init(&o);
    o.max_tokens = max_tokens;
    return o;
  }

  std::string path_ = testing::TempDir() + "generator_c_api_" + std::to_string(getpid()) + ".tfcc";
  Ids prompt_, tokens_;
  tfcc_model* model_ = nullptr;
  tfcc_generator* generator_ = nullptr;
};

TEST_F(GeneratorCApi, AnswersAsCppDoes) {
  Ids seen;
  tfcc_generate_options o = options(24);
  o.on_token = [](int32_t id, void* user) { return static_cast<Ids*>(user)->push_back(id), 0; };
  o.user = &seen;
  const uint64_t one = submit(o), two = submit(options(5));
  EXPECT_EQ(waited(one), std::pair(tokens_, TFCC_END_LENGTH));
  EXPECT_EQ(seen, tokens_);
  EXPECT_EQ(waited(two), std::pair(Ids(tokens_.begin(), tokens_.begin() + 5), TFCC_END_LENGTH));
  o = options(24);
  o.stop_ids = &tokens_[7], o.stop_count = 1;
  const Ids stopped = waited(submit(o)).first;
  EXPECT_EQ(stopped, Ids(tokens_.begin(), std::find(tokens_.begin(), tokens_.end(), tokens_[7])));
  tfcc_generator_stats s;
  ASSERT_EQ(tfcc_generator_get_stats(generator_, &s), TFCC_OK);
  EXPECT_GE(s.busy_ms, s.host_ms);
  EXPECT_EQ(s.waiting + s.running, 0);
  EXPECT_GE(s.tokens, 24 + 5 - 2);
  EXPECT_GT(s.pages, 0);
  EXPECT_GT(tfcc_generator_max_context(generator_), 24);
  EXPECT_GT(tfcc_generator_vocabulary_size(generator_), 0);
}

TEST_F(GeneratorCApi, ACallbackMayCancel) {
  std::atomic<int> calls = 0;
  tfcc_generate_options o = options(1000);
  o.on_token = [](int32_t, void* user) {
    return ++*static_cast<std::atomic<int>*>(user) == 3 ? 1 : 0;
  };
  o.user = &calls;
  const uint64_t id = submit(o);
  EXPECT_EQ(waited(id).second, TFCC_END_CANCELLED);
  EXPECT_EQ(calls, 3);
}

TEST_F(GeneratorCApi, PollsCancelsAndForgets) {
  const uint64_t id = submit(options(1000));
  tfcc_generated* g = nullptr;
  ASSERT_EQ(tfcc_generator_poll(generator_, id, &g), TFCC_OK);
  tfcc_generated_free(g);
  ASSERT_EQ(tfcc_generator_cancel(generator_, id), TFCC_OK);
  EXPECT_EQ(waited(id).second, TFCC_END_CANCELLED);
  EXPECT_EQ(tfcc_generator_poll(generator_, id, &g), TFCC_INVALID_ARGUMENT);
  EXPECT_EQ(tfcc_generator_wait(generator_, id, &g), TFCC_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tfcc_last_error()).find("there is no sequence"), std::string::npos);
  EXPECT_EQ(tfcc_generator_cancel(generator_, 12345), TFCC_OK);
}

TEST_F(GeneratorCApi, RefusesMisuse) {
  uint64_t id = 0;
  tfcc_generated* g = nullptr;
  tfcc_generator* other = nullptr;
  const int32_t beyond = 1 << 30;
  EXPECT_EQ(tfcc_generator_create(nullptr, nullptr, &other), TFCC_INVALID_ARGUMENT);
  EXPECT_EQ(tfcc_generator_submit(generator_, nullptr, 0, nullptr, &id), TFCC_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tfcc_last_error()).find("empty"), std::string::npos) << tfcc_last_error();
  EXPECT_EQ(tfcc_generator_submit(generator_, nullptr, 1, nullptr, &id), TFCC_INVALID_ARGUMENT);
  EXPECT_EQ(tfcc_generator_submit(generator_, &beyond, 1, nullptr, &id), TFCC_INVALID_ARGUMENT);
  EXPECT_EQ(tfcc_generator_submit(nullptr, &beyond, 1, nullptr, &id), TFCC_INVALID_ARGUMENT);
  EXPECT_EQ(tfcc_generator_poll(nullptr, 0, &g), TFCC_INVALID_ARGUMENT);
  EXPECT_EQ(tfcc_generator_wait(generator_, 1, nullptr), TFCC_INVALID_ARGUMENT);
  tfcc_generate_options o = options(24);
  o.stop_count = 2;
  EXPECT_EQ(tfcc_generator_submit(generator_, prompt_.data(), prompt_.size(), &o, &id),
            TFCC_INVALID_ARGUMENT);
  tfcc_generator_options small;
  tfcc_generator_options_init(&small);
  small.cache_bytes = 1;
  EXPECT_EQ(tfcc_generator_create(model_, &small, &other), TFCC_MEMORY) << tfcc_last_error();
  tfcc_generator_free(nullptr);
  tfcc_generated_free(nullptr);
}

// A caller that was built against a header with fewer members.
TEST_F(GeneratorCApi, TakesShorterOptions) {
  tfcc_generate_options o = options(3);
  o.struct_size = offsetof(tfcc_generate_options, stop_count);
  o.temperature = -1;  // not read
  EXPECT_EQ(waited(submit(o)).first, Ids(tokens_.begin(), tokens_.begin() + 3));
}

}  // namespace

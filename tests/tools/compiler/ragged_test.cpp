// SPDX-License-Identifier: Apache-2.0
// A model's program without padding through the C++ API: what set() takes, what it refuses, and that
// shapes which were prepared allocate nothing.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "runtime/tfcc.h"
#include "tools/compiler/compiler.h"

namespace tfcc {
namespace {

namespace fs = std::filesystem;

std::string model(const std::string& name) {
  return TFCC_SOURCE_DIR "/tests/models/" + name + "/model.onnx";
}

class RaggedTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("tfcc-ragged-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    compiler::Options options = with_cache();
    options.ragged = true;
    options.sizes.max_batch = 9;
    tools::Files files;
    auto made = compiler::compile({model("bert-pooler")}, path("m.tfcc"), options, files);
    ASSERT_TRUE(made) << made.error().message;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  static compiler::Options with_cache() {
    compiler::Options options;
    options.targets = {"x86-64-v2"};
    options.cache.dir = (folder_ / "cache").string();
    return options;
  }
  static std::string path(const std::string& name) { return (folder_ / name).string(); }

  void SetUp() override {
    LoadOptions load;
    load.device = "cpu";
    auto padded = Model::load(path("m.tfcc"), load);
    ASSERT_TRUE(padded) << padded.error().message;
    padded_.emplace(*std::move(padded));
    auto ragged = padded_->ragged();
    ASSERT_TRUE(ragged) << ragged.error().message;
    ragged_.emplace(*std::move(ragged));
    executor_.emplace(*ragged_->executor());
  }

  // The first n of the numbers as ids, and zeros as types.
  Result<void> set(int64_t n, std::vector<int64_t> cu) {
    TFCC_TRY_VOID(executor_->set("input_ids", {ids_.data(), DType::i64, {n}}, cu));
    return executor_->set("token_type_ids", {types_.data(), DType::i64, {n}});
  }
  void expect_refused(const Result<void>& r, ErrorCode code, const std::string& text) {
    ASSERT_FALSE(r) << text;
    EXPECT_EQ(r.error().code, code) << r.error().message;
    EXPECT_NE(r.error().message.find(text), std::string::npos) << r.error().message;
  }
  std::vector<float> pooled() {
    auto y = executor_->output("pooler_output");
    EXPECT_TRUE(y);
    const auto* data = static_cast<const float*>(y->data);
    return {data, data + y->bytes / sizeof(float)};
  }

  static inline fs::path folder_;
  std::optional<Model> padded_, ragged_;
  std::optional<Executor> executor_;
  std::array<int64_t, 64> ids_ = {5, 9, 7, 3, 1, 8, 2, 6, 4, 5, 9, 7}, types_ = {};
};

TEST_F(RaggedTest, DescribesWhatIsGiven) {
  ASSERT_EQ(ragged_->inputs().size(), 3u) << "tokens, types, and where sequences end";
  EXPECT_EQ(ragged_->inputs()[0].name, "input_ids");
  EXPECT_EQ(ragged_->inputs()[0].dims[0].role, SizeRole::tokens);
  EXPECT_EQ(ragged_->inputs()[2].name, "cu_seqlens");
  EXPECT_EQ(ragged_->inputs()[2].role, InputRole::cu_seqlens);
  EXPECT_EQ(ragged_->outputs()[0].dims.size(), 2u);
  EXPECT_EQ(padded_->inputs().size(), 3u) << "the program beside it is what it was";
  auto again = ragged_->ragged();
  ASSERT_TRUE(again) << "it is that program already";
}

TEST_F(RaggedTest, TakesSequencesInManyForms) {
  const std::vector<int64_t> cu{0, 3, 4, 9};
  ASSERT_TRUE(set(9, cu));
  ASSERT_TRUE(executor_->run());
  const std::vector<float> want = pooled();
  EXPECT_EQ(*executor_->output_shape("last_hidden_state"), (std::vector<int64_t>{9, 32}));

  const std::span<const int64_t> all(ids_), none(types_);
  const std::array<std::span<const int64_t>, 3> ids{all.subspan(0, 3), all.subspan(3, 1),
                                                    all.subspan(4, 5)},
      types{none.subspan(0, 3), none.subspan(3, 1), none.subspan(4, 5)};
  {
    Executor pieces = *ragged_->executor();
    std::swap(*executor_, pieces);
    ASSERT_TRUE(executor_->set("input_ids", ids));
    ASSERT_TRUE(executor_->set("token_type_ids", types));
    ASSERT_TRUE(executor_->run());
    EXPECT_EQ(pooled(), want);
  }
  Executor tensors = *ragged_->executor();
  std::swap(*executor_, tensors);
  std::vector<int32_t> narrow(cu.begin(), cu.end());
  ASSERT_TRUE(executor_->set("input_ids", {ids_.data(), DType::i64, {9}}));
  ASSERT_TRUE(executor_->set("token_type_ids", {types_.data(), DType::i64, {9}}));
  ASSERT_TRUE(executor_->set("cu_seqlens", {narrow.data(), DType::i32, {4}}));
  std::fill(narrow.begin(), narrow.end(), -1);  // it was copied
  ASSERT_TRUE(executor_->run());
  EXPECT_EQ(pooled(), want);
}

TEST_F(RaggedTest, NamesWhatIsWrong) {
  ASSERT_TRUE(set(9, {0, 3, 4, 9}));
  ASSERT_TRUE(executor_->run());
  const std::vector<float> want = pooled();
  const auto shape = ErrorCode::shape;
  expect_refused(set(9, {}), shape, "it is empty");
  expect_refused(set(9, {1, 9}), shape, "begins with 1");
  expect_refused(set(9, {0, 5, 3, 9}), shape, "falls from 5 to 3 at sequence 1");
  expect_refused(set(9, {0, 5, 5, 9}), shape, "sequence 1 has no token");
  expect_refused(set(9, {0, -1, 9}), shape, "falls from 0 to -1 at sequence 0");
  expect_refused(set(9, {0, 8}), shape, "'input_ids' has 9 tokens, cu_seqlens ends at 8");
  expect_refused(set(49, {0, 49}), shape, "sequence 0 has 49 tokens, at most 48");
  expect_refused(set(10, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), shape,
                 "there are 10 sequences, at most 9");
  ASSERT_TRUE(executor_->run());
  EXPECT_EQ(pooled(), want) << "what was refused changed something";
  expect_refused(executor_->clear("row_positions"), ErrorCode::invalid_argument,
                 "'row_positions' follows from cu_seqlens");

  ASSERT_TRUE(executor_->set("token_type_ids", {types_.data(), DType::i64, {8}}));
  expect_refused(executor_->run(), shape, "'token_type_ids' has 8 tokens, cu_seqlens ends at 9");
  expect_refused(executor_->set("seqlens", {types_.data(), DType::i32, {3}}),
                 ErrorCode::invalid_argument, "'seqlens' follows from cu_seqlens");
  expect_refused(executor_->set("attention_mask", {ids_.data(), DType::i64, {9}}),
                 ErrorCode::invalid_argument,
                 "inputs: input_ids, token_type_ids, cu_seqlens; outputs");
  const float reals[] = {0, 9};
  expect_refused(executor_->set("cu_seqlens", {const_cast<float*>(reals), DType::f32, {2}}),
                 ErrorCode::invalid_argument, "dtype is f32, must be i32 or i64");
  expect_refused(executor_->set("cu_seqlens", {types_.data(), DType::i64, {2}, Place::device}),
                 ErrorCode::invalid_argument, "read by the host");
  Executor fresh = *ragged_->executor();
  ASSERT_TRUE(fresh.set("input_ids", {ids_.data(), DType::i64, {9}}));
  ASSERT_TRUE(fresh.set("token_type_ids", {types_.data(), DType::i64, {9}}));
  expect_refused(fresh.run(), ErrorCode::invalid_argument, "cu_seqlens is not set");
  Executor padded = *padded_->executor();
  expect_refused(
      padded.set("input_ids", {ids_.data(), DType::i64, {9}}, std::vector<int64_t>{0, 9}),
      ErrorCode::unsupported, "Model::ragged()");
}

TEST_F(RaggedTest, PreparedShapesAllocateNothing) {
  ASSERT_TRUE(
      executor_->prepare({{"input_ids", {60}}, {"token_type_ids", {60}}, {"cu_seqlens", {7}}}));
  const size_t arena = executor_->arena_bytes();
  EXPECT_GT(arena, 0u);
  for (int64_t batch = 1; batch <= 6; ++batch) {
    std::vector<int64_t> cu{0};
    for (int64_t b = 0; b < batch; ++b) cu.push_back(cu.back() + 1 + b);
    ASSERT_TRUE(set(cu.back(), cu));
    ASSERT_TRUE(executor_->run());
    EXPECT_EQ(executor_->arena_bytes(), arena);
  }
  expect_refused(
      executor_->prepare({{"input_ids", {5}}, {"token_type_ids", {5}}, {"cu_seqlens", {9}}}),
      ErrorCode::shape, "5 tokens of 8 sequences, each of which has one at least");
  expect_refused(
      executor_->prepare(
          {{"input_ids", {40}}, {"token_type_ids", {40}}, {"cu_seqlens", {9}}, {"longest", {4}}}),
      ErrorCode::shape, "40 tokens of 8 sequences, of which the longest cannot have 4");
  EXPECT_TRUE(executor_->workspace_bytes(
      {{"input_ids", {60}}, {"token_type_ids", {60}}, {"cu_seqlens", {7}}, {"longest", {20}}}));
  expect_refused(
      executor_->prepare(
          {{"input_ids", {60}}, {"token_type_ids", {60}}, {"cu_seqlens", {7}}, {"seqlens", {6}}}),
      ErrorCode::invalid_argument, "'seqlens' follows from cu_seqlens");
  expect_refused(executor_->prepare({{"input_ids", {60}}, {"token_type_ids", {60}}}),
                 ErrorCode::invalid_argument, "cu_seqlens:9 are 500 tokens of 8 sequences");
  expect_refused(
      executor_->prepare({{"input_ids", {60}}, {"token_type_ids", {60}}, {"cu_seqlens", {12}}}),
      ErrorCode::shape, "there are 11 sequences, at most 9");
}

TEST_F(RaggedTest, AnIdOutsideItsTableIsNamed) {
  ids_[2] = 100000;
  ASSERT_TRUE(set(3, {0, 3}));
  expect_refused(executor_->run(), ErrorCode::invalid_argument, "input_ids: a value lies outside");
}

TEST_F(RaggedTest, SaysWhyThereIsNone) {
  compiler::Options options = with_cache();
  tools::Files files;
  ASSERT_TRUE(compiler::compile({model("bert-pooler")}, path("plain.tfcc"), options, files));
  auto plain = Model::load(path("plain.tfcc"));
  ASSERT_TRUE(plain);
  auto none = plain->ragged();
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("compiled without --ragged"), std::string::npos);

  options.ragged = true;
  auto refused = compiler::compile({model("bert-quantised")}, path("q.tfcc"), options, files);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_FALSE(fs::exists(path("q.tfcc")));
  options.keep_padding = true;
  auto usage = compiler::compile({model("bert-pooler")}, path("q.tfcc"), options, files);
  ASSERT_FALSE(usage);
  EXPECT_EQ(usage.error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace tfcc

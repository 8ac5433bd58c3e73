// SPDX-License-Identifier: Apache-2.0
// The C API on a real CPU file: the same results as the C++ one, and a status with a message for
// each misuse.
#include <filesystem>
#include <thread>

#include "runtime/tfcc_c.h"
#include "tests/runtime/core/small_model.h"

namespace tfcc {
namespace {

using namespace testing_support;

tfcc_tensor as_c(const TensorRef& t) {
  return {t.data, static_cast<tfcc_dtype>(t.dtype), TFCC_HOST, t.shape.size(), t.shape.data()};
}

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_plugin()) GTEST_SKIP() << "built without the CPU target";
    write_small_model(path_);
    tfcc_load_options options;
    tfcc_load_options_init(&options);
    options.device = "cpu";
    options.threads = 2;
    ASSERT_EQ(tfcc_model_load(path_.c_str(), &options, &model_), TFCC_OK) << tfcc_last_error();
    ASSERT_EQ(tfcc_executor_create(model_, &executor_), TFCC_OK) << tfcc_last_error();
  }
  void TearDown() override {
    tfcc_executor_free(executor_);
    tfcc_model_free(model_);
    std::filesystem::remove(path_);
  }
  void expect_failure(tfcc_status got, tfcc_status want, const std::string& text) {
    EXPECT_EQ(got, want) << tfcc_last_error();
    EXPECT_NE(std::string(tfcc_last_error()).find(text), std::string::npos) << tfcc_last_error();
  }

  std::string path_ = testing::TempDir() + "c_api_" + std::to_string(getpid()) + ".tfcc";
  tfcc_model* model_ = nullptr;
  tfcc_executor* executor_ = nullptr;
};

TEST_F(CApi, RunsAndReadsBack) {
  SmallCase c(2, 3);
  const TensorRef x = c.x_ref(), ids = c.ids_ref();
  const tfcc_tensor tx = as_c(x), tids = as_c(ids);
  ASSERT_EQ(tfcc_executor_set(executor_, "x", &tx), TFCC_OK) << tfcc_last_error();
  ASSERT_EQ(tfcc_executor_set(executor_, "ids", &tids), TFCC_OK) << tfcc_last_error();
  int64_t shape[2] = {};
  size_t rank = 0;
  ASSERT_EQ(tfcc_executor_output_shape(executor_, "out", 2, shape, &rank), TFCC_OK)
      << tfcc_last_error();
  EXPECT_EQ(rank, 3u);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[1], 3);
  ASSERT_EQ(tfcc_executor_run(executor_), TFCC_OK) << tfcc_last_error();
  tfcc_tensor out;
  ASSERT_EQ(tfcc_executor_output(executor_, "out", &out), TFCC_OK) << tfcc_last_error();
  EXPECT_EQ(std::vector<int64_t>(out.shape, out.shape + out.rank),
            (std::vector<int64_t>{2, 3, kO}));
  const float* values = static_cast<const float*>(out.data);
  EXPECT_EQ(std::vector<float>(values, values + 2 * 3 * kO), c.expected);
  tfcc_executor_stats stats;
  ASSERT_EQ(tfcc_executor_get_stats(executor_, &stats), TFCC_OK);
  EXPECT_EQ(stats.graphs_made, 0u);
  EXPECT_EQ(tfcc_executor_status(executor_), TFCC_OK) << tfcc_last_error();
}

TEST_F(CApi, ClearedOutputsAreNotWrittenTo) {
  SmallCase c(1, 2);
  const TensorRef x = c.x_ref(), ids = c.ids_ref();
  const tfcc_tensor tx = as_c(x), tids = as_c(ids);
  std::vector<float> mine(2 * kO, -1);
  const int64_t shape[] = {1, 2, kO};
  const tfcc_tensor out = {mine.data(), TFCC_F32, TFCC_HOST, 3, shape};
  ASSERT_EQ(tfcc_executor_set(executor_, "x", &tx), TFCC_OK);
  ASSERT_EQ(tfcc_executor_set(executor_, "ids", &tids), TFCC_OK);
  ASSERT_EQ(tfcc_executor_set(executor_, "out", &out), TFCC_OK) << tfcc_last_error();
  ASSERT_EQ(tfcc_executor_run(executor_), TFCC_OK);
  EXPECT_EQ(mine, c.expected);
  mine.assign(mine.size(), -1);
  ASSERT_EQ(tfcc_executor_clear(executor_, "out"), TFCC_OK);
  ASSERT_EQ(tfcc_executor_run(executor_), TFCC_OK);
  EXPECT_EQ(mine, std::vector<float>(mine.size(), -1));
  ASSERT_EQ(tfcc_executor_clear(executor_, "ids"), TFCC_OK);
  expect_failure(tfcc_executor_run(executor_), TFCC_INVALID_ARGUMENT, "ids");
  expect_failure(tfcc_executor_clear(executor_, "nothing"), TFCC_INVALID_ARGUMENT, "nothing");
}

TEST_F(CApi, DescribesTheModel) {
  EXPECT_EQ(tfcc_model_input_count(model_), 2u);
  EXPECT_EQ(tfcc_model_output_count(model_), 1u);
  tfcc_tensor_info info;
  ASSERT_EQ(tfcc_model_output(model_, 0, &info), TFCC_OK);
  EXPECT_STREQ(info.name, "out");
  ASSERT_EQ(info.rank, 3u);
  EXPECT_EQ(info.dims[2].min, kO);
  EXPECT_EQ(info.dims[2].max, kO);
  EXPECT_EQ(info.dims[2].text, std::to_string(kO));
  EXPECT_STREQ(tfcc_model_device(model_), "cpu");
  expect_failure(tfcc_model_input(model_, 2, &info), TFCC_INVALID_ARGUMENT,
                 "input 2 does not exist; there are 2");
}

TEST_F(CApi, PreparedShapesRunWithoutGrowing) {
  SmallCase c(4, 5);
  const TensorRef x = c.x_ref(), ids = c.ids_ref();
  const tfcc_tensor given[] = {as_c(x), as_c(ids)};
  const char* const names[] = {"x", "ids"};
  ASSERT_EQ(tfcc_executor_prepare(executor_, 2, names, given), TFCC_OK) << tfcc_last_error();
  const size_t arena = tfcc_executor_arena_bytes(executor_);
  EXPECT_GT(arena, 0u);
  for (int k = 0; k < 2; ++k) ASSERT_EQ(tfcc_executor_set(executor_, names[k], &given[k]), TFCC_OK);
  ASSERT_EQ(tfcc_executor_run(executor_), TFCC_OK);
  EXPECT_EQ(tfcc_executor_arena_bytes(executor_), arena);
  const tfcc_tensor nameless = given[0];
  const char* const unknown[] = {"y"};
  expect_failure(tfcc_executor_prepare(executor_, 1, unknown, &nameless), TFCC_INVALID_ARGUMENT,
                 "no input is named 'y'");
}

TEST_F(CApi, MisuseIsAStatusAndALine) {
  tfcc_model* none = nullptr;
  expect_failure(tfcc_model_load("no/such/file.tfcc", nullptr, &none), TFCC_IO,
                 "no/such/file.tfcc");
  EXPECT_EQ(none, nullptr);
  expect_failure(tfcc_model_load_memory("not a file", 10, nullptr, &none), TFCC_BAD_FILE, "");
  expect_failure(tfcc_model_load(nullptr, nullptr, &none), TFCC_INVALID_ARGUMENT, "NULL");
  expect_failure(tfcc_executor_create(nullptr, &executor_), TFCC_INVALID_ARGUMENT, "NULL");
  expect_failure(tfcc_executor_run(nullptr), TFCC_INVALID_ARGUMENT, "NULL");
  expect_failure(tfcc_executor_run(executor_), TFCC_INVALID_ARGUMENT, "is not set");
  const int64_t shape[] = {1, 2};
  tfcc_tensor t = {nullptr, TFCC_F32, TFCC_HOST, 2, shape};
  expect_failure(tfcc_executor_set(executor_, "nothing", &t), TFCC_INVALID_ARGUMENT, "nothing");
  t.rank = size_t{1} << 60;
  expect_failure(tfcc_executor_set(executor_, "x", &t), TFCC_INVALID_ARGUMENT,
                 "rank is 1152921504606846976");
  const char* name = "x";
  expect_failure(tfcc_executor_prepare(executor_, 1, &name, &t), TFCC_INVALID_ARGUMENT,
                 "rank is 1152921504606846976");
  t.rank = 2;
  t.dtype = static_cast<tfcc_dtype>(99);
  expect_failure(tfcc_executor_set(executor_, "x", &t), TFCC_INVALID_ARGUMENT, "dtype");
  t.dtype = TFCC_F32;
  t.shape = nullptr;
  expect_failure(tfcc_executor_set(executor_, "x", &t), TFCC_INVALID_ARGUMENT, "shape");
  expect_failure(tfcc_executor_enqueue(executor_, nullptr), TFCC_UNSUPPORTED, "call run()");
  tfcc_executor_free(nullptr);
  tfcc_model_free(nullptr);
  EXPECT_EQ(tfcc_model_input_count(nullptr), 0u);
}

TEST_F(CApi, MessagesBelongToTheirThread) {
  ASSERT_EQ(tfcc_executor_run(nullptr), TFCC_INVALID_ARGUMENT);
  std::thread([] { EXPECT_STREQ(tfcc_last_error(), ""); }).join();
  EXPECT_STRNE(tfcc_last_error(), "");
}

TEST_F(CApi, OptionsOfAnOlderHeaderKeepTheNewDefaults) {
  tfcc_load_options options = {};
  options.struct_size = offsetof(tfcc_load_options, threads);
  options.device = "cpu";
  options.log = [](const char*, void*) { FAIL() << "a member beyond struct_size was read"; };
  tfcc_model* model = nullptr;
  ASSERT_EQ(tfcc_model_load(path_.c_str(), &options, &model), TFCC_OK) << tfcc_last_error();
  tfcc_model_free(model);
}

TEST(CApiNames, StatusesAndTypes) {
  EXPECT_STREQ(tfcc_status_name(TFCC_OK), "ok");
  EXPECT_STREQ(tfcc_status_name(TFCC_BAD_FILE), "bad_file");
  EXPECT_STREQ(tfcc_status_name(static_cast<tfcc_status>(99)), "unknown");
  EXPECT_STREQ(tfcc_dtype_name(TFCC_BF16), "bf16");
  EXPECT_EQ(tfcc_dtype_size(TFCC_I64), 8u);
  EXPECT_EQ(tfcc_dtype_name(static_cast<tfcc_dtype>(99)), nullptr);
  EXPECT_EQ(tfcc_dtype_size(static_cast<tfcc_dtype>(99)), 0u);
}

}  // namespace
}  // namespace tfcc

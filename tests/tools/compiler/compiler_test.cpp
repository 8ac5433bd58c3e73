// SPDX-License-Identifier: Apache-2.0
// The compiler as a library, and its C API: what the command does, from memory, by several threads,
// and with wrong options.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/tfcc_c.h"
#include "tools/compiler/compiler.h"
#include "tools/compiler/tfcc_compiler.h"
#include "tools/support/usage.h"

namespace {

namespace fs = std::filesystem;
using namespace tfcc;

const std::string kModel = TFCC_SOURCE_DIR "/tests/models/bert-eager/model.onnx";

std::string bytes_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
}

class CompilerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tfcc-compiler-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    tfcc_compile_options_init(&c_);
    cache_ = path("cache");
    c_.cache_dir = cache_.c_str();
    c_.targets = "x86-64-v2";
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> files() const {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(folder_)) {
      if (e.path() != cache_) out.push_back(e.path().filename().string());
    }
    return out;
  }
  void expect_refused(const std::string& model, const std::string& output, int status,
                      const std::string& text) {
    EXPECT_EQ(tfcc_compile(model.c_str(), output.c_str(), &c_, nullptr), status);
    EXPECT_NE(std::string(tfcc_compile_last_error()).find(text), std::string::npos)
        << tfcc_compile_last_error();
    EXPECT_EQ(std::string(tfcc_compile_last_error()).find("usage:"), std::string::npos);
  }

  fs::path folder_;
  std::string cache_;
  tfcc_compile_options c_;
};

TEST_F(CompilerTest, StagesTellWhatWasDone) {
  compiler::Options options;
  options.targets = {"x86-64-v2"};
  options.cache.dir = cache_;
  std::vector<std::string> steps;
  options.on_graph = [&](const std::string& step, const ir::Graph&) -> Result<void> {
    steps.push_back(step);
    return {};
  };
  tools::Files files;
  auto optimised = compiler::optimise({kModel}, options, files);
  ASSERT_TRUE(optimised) << optimised.error().message;
  EXPECT_EQ(steps.front(), "import");
  EXPECT_EQ(steps.at(steps.size() - 4), "convert-precision-f32");
  EXPECT_EQ(steps.back(), "tabulate-scores");
  EXPECT_EQ(optimised->inputs.size(), 1u);
  EXPECT_GT(optimised->imported_ops, compiler::count_ops(optimised->graph));
  EXPECT_TRUE(compiler::check_strict(*optimised));
  auto code = compiler::write_code(*optimised, path("m.tfcc"), options);
  ASSERT_TRUE(code) << code.error().message;
  EXPECT_EQ(code->plans.size(), 1u);
  EXPECT_LT(code->weight_bytes, fs::file_size(path("m.tfcc")));
}

TEST_F(CompilerTest, AnErrorOfWhoSeesGraphsEndsIt) {
  compiler::Options options;
  options.targets = {"x86-64-v2"};
  options.on_graph = [&](const std::string& step, const ir::Graph&) -> Result<void> {
    return step == "raise-gelu" ? Error{ErrorCode::io, "no room"} : Result<void>();
  };
  tools::Files files;
  auto done = compiler::compile({kModel}, path("m.tfcc"), options, files);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message, "no room");
  EXPECT_TRUE(this->files().empty());
}

TEST_F(CompilerTest, AMissIsAnErrorWhereItIsStrict) {
  c_.strict = 1;
  EXPECT_EQ(tfcc_compile(kModel.c_str(), path("m.tfcc").c_str(), &c_, nullptr), TFCC_OK)
      << tfcc_compile_last_error();
  c_.skip_passes = "fuse-attention";
  expect_refused(kModel, path("n.tfcc"), TFCC_UNSUPPORTED, "--strict: fuse-attention did not run");
  c_.skip_passes = "eliminate-common-ops,fuse-bias-gelu";  // not what it insists on
  EXPECT_EQ(tfcc_compile(kModel.c_str(), path("o.tfcc").c_str(), &c_, nullptr), TFCC_OK)
      << tfcc_compile_last_error();
  c_.skip_passes = nullptr;
  expect_refused(TFCC_SOURCE_DIR "/tests/models/gpt2-past/model.onnx", path("n.tfcc"),
                 TFCC_UNSUPPORTED, "did not happen; the first: ");
  EXPECT_FALSE(fs::exists(path("n.tfcc")));
}

TEST_F(CompilerTest, MemoryAndFileGiveTheSameBytes) {
  char* report = nullptr;
  ASSERT_EQ(tfcc_compile(kModel.c_str(), path("file.tfcc").c_str(), &c_, &report), TFCC_OK)
      << tfcc_compile_last_error();
  const auto j = nlohmann::json::parse(report);
  tfcc_compile_free(report);
  EXPECT_EQ(j["model"], "model.onnx");
  EXPECT_EQ(j["plans"][0]["family"], "cpu");
  const std::string model = bytes_of(kModel);
  ASSERT_EQ(tfcc_compile_memory(model.data(), model.size(), "model.onnx",
                                path("memory.tfcc").c_str(), &c_, nullptr),
            TFCC_OK)
      << tfcc_compile_last_error();
  EXPECT_EQ(bytes_of(path("file.tfcc")), bytes_of(path("memory.tfcc")));
}

TEST_F(CompilerTest, AModelInMemoryHasNoDataFiles) {
  const std::string model = bytes_of(TFCC_SOURCE_DIR "/tests/models/bert-external/model.onnx");
  EXPECT_EQ(
      tfcc_compile_memory(model.data(), model.size(), "m", path("m.tfcc").c_str(), &c_, nullptr),
      TFCC_IO);
  EXPECT_NE(std::string(tfcc_compile_last_error())
                .find("which was given as bytes; give the path of the model"),
            std::string::npos)
      << tfcc_compile_last_error();
  EXPECT_EQ(tfcc_compile_memory(model.data(), 0, "m", path("m.tfcc").c_str(), &c_, nullptr),
            TFCC_BAD_FILE);
  EXPECT_EQ(tfcc_compile_memory(nullptr, 100, "m", path("m.tfcc").c_str(), &c_, nullptr),
            TFCC_BAD_FILE);
  const std::string whole = bytes_of(kModel);
  const std::string dumps = path("ir");
  c_.dump_ir = dumps.c_str();
  EXPECT_EQ(
      tfcc_compile_memory(whole.data(), whole.size(), "m", path("m.tfcc").c_str(), &c_, nullptr),
      TFCC_INVALID_ARGUMENT);
  EXPECT_TRUE(files().empty());
}

TEST_F(CompilerTest, WrongOptionsAreNamed) {
  const std::string out = path("m.tfcc");
  const tfcc_compile_options plain = c_;
  auto with = [&](auto set, const std::string& text) {
    c_ = plain;
    set(c_);
    expect_refused(kModel, out, TFCC_INVALID_ARGUMENT, text);
  };
  with([](auto& o) { o.targets = "sm_75"; }, "there is no target 'sm_75'");
  with([](auto& o) { o.precision = "f8"; }, "not 'f8'");
  with([](auto& o) { o.passes = "fuse-everything"; }, "fuse-everything");
  with([](auto& o) { o.skip_passes = "cse"; }, "cse");
  with([](auto& o) { o.threads = -1; }, "--threads: -1");
  with([](auto& o) { o.max_batch = -3; }, "--max-batch: -3");
  with([](auto& o) { o.max_shapes = "ids:1x8"; }, "ids");
  with([](auto& o) { o.struct_size = 0; }, "tfcc_compile_options_init()");
  c_ = plain;
  expect_refused("", out, TFCC_INVALID_ARGUMENT, "NULL or empty");
  EXPECT_EQ(tfcc_compile(kModel.c_str(), nullptr, &c_, nullptr), TFCC_INVALID_ARGUMENT);
  expect_refused(path("none.onnx"), out, TFCC_IO, "none.onnx: ");
  EXPECT_TRUE(files().empty());
}

TEST_F(CompilerTest, AnOutputNeverTakesThePlaceOfAnInput) {
  fs::copy_file(kModel, path("m.onnx"));
  fs::create_hard_link(path("m.onnx"), path("same"));
  expect_refused(path("m.onnx"), path("same"), TFCC_INVALID_ARGUMENT, "which is read");
  EXPECT_EQ(bytes_of(path("m.onnx")), bytes_of(kModel));
}

TEST_F(CompilerTest, OptionsOfAnOlderHeaderKeepTheirDefaults) {
  c_.struct_size = offsetof(tfcc_compile_options, precision);  // it had targets and cpu alone
  c_.precision = reinterpret_cast<const char*>(1);
  c_.cache_dir = reinterpret_cast<const char*>(1);
  EXPECT_EQ(tfcc_compile(kModel.c_str(), path("m.tfcc").c_str(), &c_, nullptr), TFCC_OK)
      << tfcc_compile_last_error();
}

TEST_F(CompilerTest, SaysWhatThereIsToSay) {
  std::vector<std::string> lines;
  size_t reports = 0;
  struct Heard {
    std::vector<std::string>& lines;
    size_t& reports;
  } heard{lines, reports};
  c_.user = &heard;
  c_.precision = "f16";
  c_.log = [](const char* line, void* user) { static_cast<Heard*>(user)->lines.push_back(line); };
  c_.progress = [](const char*, size_t done, size_t total, void* user) {
    EXPECT_LE(done, total);
    ++static_cast<Heard*>(user)->reports;
  };
  ASSERT_EQ(tfcc_compile(kModel.c_str(), path("m.tfcc").c_str(), &c_, nullptr), TFCC_OK);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "--fp16 is for GPUs; the CPU computes in f32");
  c_.precision = "tf32";
  ASSERT_EQ(tfcc_compile(kModel.c_str(), path("m.tfcc").c_str(), &c_, nullptr), TFCC_OK);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "--tf32 is for GPUs; the CPU computes in f32");
  EXPECT_GT(reports, 0u);
}

// Each thread compiles a model of its own, over one cache.
TEST_F(CompilerTest, ManyThreadsCompileAtTheSameTime) {
  const std::vector<std::string> models = {"bert-eager", "roberta", "gpt2", "distilbert"};
  for (const std::string& m : models) {
    const std::string model = TFCC_SOURCE_DIR "/tests/models/" + m + "/model.onnx";
    ASSERT_EQ(tfcc_compile(model.c_str(), path(m + "-alone.tfcc").c_str(), &c_, nullptr), TFCC_OK)
        << tfcc_compile_last_error();
  }
  fs::remove_all(cache_);
  std::atomic<size_t> right{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const std::string& m = models[t % models.size()];
      const std::string model = TFCC_SOURCE_DIR "/tests/models/" + m + "/model.onnx",
                        out = path(m + std::to_string(t));
      if (t >= models.size()) {  // errors are those of their thread
        right +=
            tfcc_compile((model + "x").c_str(), out.c_str(), &c_, nullptr) == TFCC_IO &&
            std::string(tfcc_compile_last_error()).find(m + "/model.onnxx") != std::string::npos;
        return;
      }
      right += tfcc_compile(model.c_str(), out.c_str(), &c_, nullptr) == TFCC_OK &&
               bytes_of(out) == bytes_of(path(m + "-alone.tfcc"));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, threads.size());
}

}  // namespace

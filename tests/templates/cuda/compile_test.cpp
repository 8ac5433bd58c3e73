// SPDX-License-Identifier: Apache-2.0
// Every template compiles for every architecture without spills and without C75xx advice. Needs
// NVRTC, no device.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/nvrtc.h"
#include "tests/templates/cuda/stubs.h"

namespace tfcc::test {
namespace {

class Templates : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!codegen::cuda_compiler_version()) GTEST_SKIP() << "no NVRTC";
  }
  void compiles(const std::string& source) {
    auto image = codegen::compile_cuda("kernel", source, GetParam());
    ASSERT_TRUE(image) << image.error().message << "\n" << source;
    EXPECT_EQ(image->spill_bytes, 0) << source << image->log;
  }
};

/// The indented blocks of the page that begin with an #include.
std::vector<std::string> examples(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> blocks;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("    ")) continue;
    line = line.substr(4);
    if (line.starts_with("#include")) blocks.emplace_back();
    if (!blocks.empty()) blocks.back() += line + "\n";
  }
  return blocks;
}

TEST_P(Templates, ExamplesOfTheReadme) {
  std::vector<std::string> blocks = examples(TFCC_SOURCE_DIR "/templates/README.md");
  EXPECT_EQ(blocks.size(), 7u);
  for (const std::string& source : blocks) compiles(source);
}

TEST_P(Templates, Norms) {
  for (const char* type : {"f32", "f16", "bf16"}) {
    for (int hidden : {64, 770, 768, 4096, 8192}) {
      NormStub s{
          .type = type, .hidden = hidden, .has_residual = true, .has_bias = true, .has_sum = true};
      compiles(s.text());
    }
  }
}

TEST_P(Templates, AttentionOnTensorCores) {
  for (int d : {32, 64, 72, 128, 192, 256}) {
    for (bool plain : {true, false}) {
      AttentionStub s{.type = plain ? "bf16" : "f16",
                      .head_dim = d,
                      .v_dim = d,
                      .causal = !plain,
                      .scaled = plain,
                      .live = true,
                      .visible = !plain,
                      .bias = !plain};
      s.choose_tile();
      EXPECT_LE(s.shared_bytes(), 99 * 1024);
      compiles(s.text());
    }
  }
}

TEST_P(Templates, AttentionInFloat) {
  for (int d : {64, 72, 128, 256}) {
    AttentionStub s{.type = "f32",
                    .head_dim = d,
                    .v_dim = d,
                    .causal = true,
                    .scaled = d == 64,
                    .live = true,
                    .visible = d != 64,
                    .bias = d != 64};
    s.choose_tile();
    EXPECT_LE(s.shared_bytes(), 99 * 1024);
    compiles(s.text());
  }
}

INSTANTIATE_TEST_SUITE_P(Arch, Templates,
                         testing::Values("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120",
                                         "compute_80"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tfcc::test

// SPDX-License-Identifier: Apache-2.0
// The CPU compiler itself: objects that load and run, levels, and what it says when a kernel is
// wrong.
#include "codegen/templates.h"
#include "tests/templates/cpu/cpu_kernel.h"

namespace {

using tfcc::ErrorCode;
using tfcc::test::compile_cpu;
using tfcc::test::CpuKernels;

const char* kTwice = R"(
#include "cpu/prelude.h"
TFCC_KERNEL(twice) { for (i64 i = begin; i < end; ++i) store((f32*)a[1], i, 2 * load((const f32*)a[0], i)); }
)";

class ClangCpu : public tfcc::test::CpuTargetTest {};

TEST_F(ClangCpu, RunsAtEveryLevelOfThisMachine) {
  std::vector<std::string> levels = {"x86-64-v2"};
  std::string native = tfcc::codegen::native_cpu_level();
  if (native >= "x86-64-v3") levels.push_back("x86-64-v3");
  if (native >= "x86-64-v4") levels.push_back("x86-64-v4");
  for (const std::string& level : levels) {
    CpuKernels kernels(kTwice, level);
    std::vector<float> x = tfcc::test::random_floats(1001), y(x.size());
    kernels.run("twice", {}, {x.data(), y.data()}, 1001);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], 2 * x[i]) << level;
  }
}

TEST_F(ClangCpu, LinksSeveralUnits) {
  std::vector<tfcc::codegen::CpuSource> units;
  for (int k = 0; k < 6; ++k) {
    std::string name = "unit" + std::to_string(k);
    units.push_back({name, "#include \"cpu/prelude.h\"\nTFCC_KERNEL(" + name +
                               ") { flags[0] = " + name[4] + "; }\n"});
  }
  auto first = compile_cpu(units), second = compile_cpu(units);
  ASSERT_TRUE(first) << first.error().message;
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(*first, *second) << "the bytes of equal units must be equal";
}

TEST_F(ClangCpu, LargeCopiesNeedNothingFromOutside) {
  CpuKernels kernels(R"(
#include "cpu/prelude.h"
struct Big { f32 v[4096]; };
TFCC_KERNEL(copy) { *(Big*)a[1] = *(const Big*)a[0]; Big zero = {}; *(Big*)a[2] = zero; }
)");
  std::vector<float> x = tfcc::test::random_floats(4096), y(4096), z(4096, 1.0f);
  kernels.run("copy", {}, {x.data(), y.data(), z.data()}, 1);
  EXPECT_EQ(x, y);
  EXPECT_EQ(z, std::vector<float>(4096, 0.0f));
}

// Without -fwrapv Clang takes x + 1 > x for true and a sum past the ends for anything at all.
TEST_F(ClangCpu, IntegersWrap) {
  CpuKernels kernels(R"(
#include "expr.h"
TFCC_KERNEL(wrap) {
  const i64* x = (const i64*)a[0];
  i64* y = (i64*)a[1];
  for (i64 i = begin; i < end; ++i) y[3 * i] = x[i] + 1 > x[i], y[3 * i + 1] = x[i] + 1, y[3 * i + 2] = iabs(x[i] * 3);
}
)");
  std::vector<int64_t> x = {INT64_MAX, 5, INT64_MIN}, y(9);
  kernels.run("wrap", {}, {x.data(), y.data()}, 3);
  EXPECT_EQ(y, (std::vector<int64_t>{0, INT64_MIN, INT64_MAX - 2, 1, 6, 15, 1, INT64_MIN + 1,
                                     INT64_MIN}));
}

TEST_F(ClangCpu, ErrorNamesKernelAndLine) {
  auto r = compile_cpu(
      {{"bad__3", "#include \"cpu/prelude.h\"\nTFCC_KERNEL(bad__3) { nonsense(); }\n"}});
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, ErrorCode::internal);
  EXPECT_EQ(
      r.error().message,
      "kernel bad__3 does not compile: bad__3.cpp:2: use of undeclared identifier 'nonsense'");
}

TEST_F(ClangCpu, MissingIncludeIsAnErrorAndTheDiskIsNotRead) {
  auto r = compile_cpu({{"io", "#include <stdint.h>\n"}});
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("'stdint.h' file not found"), std::string::npos)
      << r.error().message;
}

TEST_F(ClangCpu, UndefinedSymbolIsAnError) {
  auto r = compile_cpu({{"open",
                         "#include \"cpu/prelude.h\"\nextern \"C\" float expf(float);\n"
                         "TFCC_KERNEL(open) { *(f32*)a[0] = expf(*(f32*)a[0]); }\n"}});
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, ErrorCode::internal);
  EXPECT_NE(r.error().message.find("undefined symbol: expf"), std::string::npos)
      << r.error().message;
  EXPECT_TRUE(compile_cpu({{"twice", kTwice}})) << "the linker must be usable after an error";
}

TEST_F(ClangCpu, UnknownLevel) {
  auto r = compile_cpu({{"twice", kTwice}}, "sse9");
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message,
            "no CPU level 'sse9'; use x86-64-v2, x86-64-v3, x86-64-v4 or native");
}

TEST_F(ClangCpu, EveryTemplateCompilesAloneAtEveryLevel) {
  for (const char* level : {"x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
    for (const auto& file : tfcc::codegen::template_files()) {
      if (!tfcc::codegen::belongs_to(file, tfcc::Family::cpu) || !file.path.ends_with(".h"))
        continue;
      // What kernels of CPUs and GPUs share stands behind the prelude of either.
      const bool shared = file.path.find('/') == std::string_view::npos;
      std::string include = shared ? "#include \"cpu/prelude.h\"\n" : "";
      auto r = tfcc::codegen::compile_cpu_object(
          {"one", include + "#include \"" + std::string(file.path) + "\"\n"}, level);
      EXPECT_TRUE(r) << file.path << ": " << r.error().message;
    }
  }
}

TEST(NoCpuTarget, SaysHowToGetIt) {
  if (!tfcc::codegen::cpu_compiler_version().empty())
    GTEST_SKIP() << "this build has the CPU target";
  auto r = compile_cpu({{"twice", kTwice}});
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, ErrorCode::unsupported);
  EXPECT_EQ(
      r.error().message,
      "this build has no CPU target; configure with -DTFCC_CPU=ON (needs LLVM 19 with clang-cpp and lld)");
}

}  // namespace

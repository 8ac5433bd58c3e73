// SPDX-License-Identifier: Apache-2.0
// Units of several kernels: which share one, and that kernels with equal names inside do not meet.
#include "codegen/cpu_units.h"

#include <gtest/gtest.h>

#include "codegen/clang_cpu.h"

namespace tfcc::codegen {
namespace {

std::vector<KernelSource> kernels(size_t count) {
  std::vector<KernelSource> out;
  for (size_t k = 0; k < count; ++k) {
    const std::string name = "k" + std::to_string(k);
    out.push_back(
        {name,
         "// pointwise of graph main\n#include \"cpu/prelude.h\"\nnamespace {\nstruct Body { i64 v = " +
             std::to_string(k) + "; };\n}  // namespace\nTFCC_KERNEL(" + name +
             ") { *(i64*)a[0] = Body().v; }"});
  }
  return out;
}

std::vector<size_t> sizes(size_t count) {
  std::vector<size_t> out;
  for (const Unit& u : cpu_units(kernels(count))) out.push_back(u.kernels.size());
  return out;
}

TEST(CpuUnits, OneKernelEachWhereThereAreFew) {
  EXPECT_EQ(sizes(0), std::vector<size_t>{});
  EXPECT_EQ(sizes(64), std::vector<size_t>(64, 1));
  const auto few = kernels(3);
  EXPECT_EQ(cpu_units(few)[2].source.text, few[2].text);
}

TEST(CpuUnits, SeveralWhereThereAreMany) {
  std::vector<size_t> two(33, 2);
  EXPECT_EQ(sizes(66), two);
  two.back() = 1;
  EXPECT_EQ(sizes(65), two);
  EXPECT_EQ(sizes(2000).front(), 16u);
}

TEST(CpuUnits, KernelsOfAUnitKeepTheirOwnNames) {
  if (cpu_compiler_version().empty()) GTEST_SKIP() << "this build has no CPU target";
  const std::vector<Unit> units = cpu_units(kernels(100));
  EXPECT_EQ(units[0].kernels, (std::vector<std::string>{"k0", "k1", "k2"}));
  EXPECT_TRUE(units[0].source.text.starts_with("#include \"cpu/prelude.h\"\nnamespace unit0 {\n"));
  auto object = compile_cpu_object({"unit", units[0].source.text}, "x86-64-v2");
  ASSERT_TRUE(object) << object.error().message;
  auto image = link_cpu({*object}, "x86-64-v2");
  ASSERT_TRUE(image) << image.error().message;
  const std::string_view bytes(reinterpret_cast<const char*>(image->data()), image->size());
  for (const char* name : {"k0", "k1", "k2"})
    EXPECT_NE(bytes.find(std::string(1, '\0') + name + '\0'), bytes.npos) << name;
}

}  // namespace
}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// Random expressions printed as C++ and compiled by NVRTC give what the interpreter gives, bit by
// bit: every operation is exact or correctly rounded, products are rounded before they are added,
// and integers wrap at 64 bits, not at the 32 of an index.
#include <fmt/format.h>

#include <cstdlib>

#include "codegen/emit/expr.h"
#include "tests/templates/cuda/device.h"
#include "tests/ir/raw_expr.h"

namespace tfcc::test {
namespace {

using ir::ExprRef;
using ir::Raw;
using ir::RawSample;

constexpr int kUnits = 400, kPerUnit = 250, kSamples = 4, kPositions = 32;

struct Function {
  Raw raw;
  ExprRef expr;
};

std::string source_of(const std::vector<Function>& functions, ir::ExprPool& pool) {
  codegen::CppNames names;
  names.index = [](int64_t k) { return "i" + std::to_string(k); };
  names.symbol = [](const std::string& s) { return s; };
  names.pointer = [](int64_t slot) { return "a" + std::to_string(slot); };
  names.dims = [&](int64_t slot) -> std::vector<ExprRef> {
    if (slot == 2) return {};
    if (slot == 1 || slot == 3) return {pool.symbol("N")};
    return {pool.symbol("N"), pool.integer(5)};
  };
  names.narrow_indices = true;
  std::string text = "#include \"cuda/pointwise.cuh\"\n", cases;
  for (size_t k = 0; k < functions.size(); ++k) {
    text += fmt::format(
        "__device__ f32 value{}(const f32* a0, const i64* a1, const b8* a2, const i32* a3, u32* flags, idx N, idx i0, idx i1) {{ {} }}\n",
        k, codegen::cpp_body(functions[k].expr, names));
    cases +=
        fmt::format("    case {0}: v = value{0}(a0, a1, a2, a3, flags, N, i0, i1); break;\n", k);
  }
  return text +
         fmt::format(
             R"(TFCC_KERNEL(32, kernel, const f32* a0, const i64* a1, const b8* a2, const i32* a3, const b8* defined, f32* out) {{
  idx N = (idx)n[0], i0 = threadIdx.x / 5, i1 = threadIdx.x % 5;
  if (!defined[blockIdx.x * 32 + threadIdx.x]) return;
  f32 v = 0;
  switch (blockIdx.x) {{
{}  }}
  out[blockIdx.x * 32 + threadIdx.x] = v;
}}
)",
             cases);
}

class RandomExpressions : public ::testing::TestWithParam<int> {};

TEST_P(RandomExpressions, CompiledByNvrtc) {
  TFCC_NEEDS_DEVICE();
  ir::ExprPool pool;
  pool.set_range("N", {1, 4});
  ir::RawMaker maker(static_cast<uint32_t>(GetParam()) + 1000, false, true);
  std::vector<Function> functions;
  for (int k = 0; static_cast<int>(functions.size()) < kPerUnit; ++k) {
    Raw raw = maker.real(1 + k % 6);
    const ExprRef e = build(raw, pool);
    if (ir::poison_of(e) == ir::Poison::none) functions.push_back({std::move(raw), e});
  }
  const std::string source = source_of(functions, pool);
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  int compared = 0, open = 0;
  for (int t = 0; t < kSamples && !HasFailure(); ++t) {
    RawSample sample = ir::random_sample(random);
    for (int64_t& v : sample.ints)
      v -= std::abs(static_cast<double>(v)) > 0x1p53
               ? v % 1024
               : 0;  // the tensors of a launch are doubles here
    const auto move_to = [&](int k) {
      sample.at[0] = k % kPositions / 5, sample.at[1] = k % kPositions % 5;
    };
    // What has no value, such as a load out of range, may not run at all.
    std::vector<double> defined(kPerUnit * kPositions);
    for (int k = 0; k < kPerUnit * kPositions; ++k) {
      move_to(k);
      if (sample.at[0] >= sample.n) continue;
      ir::RawEval eval(sample);
      eval(functions[static_cast<size_t>(k / kPositions)].raw);
      defined[static_cast<size_t>(k)] = !eval.open;
      open += eval.open;
    }
    Launch launch{.source = source,
                  .grid = {kPerUnit, 1, 1},
                  .threads = kPositions,
                  .sizes = {sample.n},
                  .inputs = {tensor("f32", {sample.reals.begin(), sample.reals.end()}),
                             tensor("i64", {sample.ints.begin(), sample.ints.end()}),
                             tensor("b8", {double(sample.truth)}),
                             tensor("i32", {sample.narrow.begin(), sample.narrow.end()}),
                             tensor("b8", defined)},
                  .outputs = {{"f32", std::vector<double>(kPerUnit * kPositions)}}};
    run(launch);
    for (int k = 0; k < kPerUnit * kPositions && !HasFatalFailure(); ++k) {
      if (defined[static_cast<size_t>(k)] == 0) continue;
      move_to(k);
      const Function& f = functions[static_cast<size_t>(k / kPositions)];
      ++compared;
      bool flagged = false;
      const ir::ScalarValue want = interpret(f.expr, sample, flagged);
      EXPECT_TRUE(
          same(ir::Scalar::f32, {0, launch.outputs[0].values[static_cast<size_t>(k)]}, want))
          << print(f.expr) << " is " << want.r << ", not "
          << launch.outputs[0].values[static_cast<size_t>(k)] << " at i0 = " << sample.at[0]
          << ", i1 = " << sample.at[1] << ", N = " << sample.n << ", %2 = " << sample.truth
          << ", %0 = " << ::testing::PrintToString(sample.reals)
          << ", %1 = " << ::testing::PrintToString(sample.ints)
          << ", %3 = " << ::testing::PrintToString(sample.narrow);
    }
  }
  EXPECT_GT(compared, 4 * open);
}

// TFCC_EXPRESSION_UNITS=4000 runs so many, from unit TFCC_EXPRESSION_FIRST on.
int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

const int first_unit = from_environment("TFCC_EXPRESSION_FIRST", 0);
INSTANTIATE_TEST_SUITE_P(
    Units, RandomExpressions,
    ::testing::Range(first_unit, first_unit + from_environment("TFCC_EXPRESSION_UNITS", kUnits)));

}  // namespace
}  // namespace tfcc::test

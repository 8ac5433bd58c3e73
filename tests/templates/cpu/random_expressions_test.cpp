// SPDX-License-Identifier: Apache-2.0
// Random expressions printed as C++ and compiled by Clang give what the interpreter gives: bit by
// bit where every operation is exact or correctly rounded, and within 2e-6 for one exp, log, erf,
// tanh, sin, cos or atan of such a value. No element outside the operands is read, whatever the
// data: they end, or begin, at pages that cannot be read.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "codegen/emit/expr.h"
#include "tests/templates/cpu/cpu_kernel.h"
#include "tests/ir/raw_expr.h"
#include "tests/support/guarded.h"

namespace {

using namespace tfcc;
using ir::ExprKind;
using ir::ExprRef;
using ir::Raw;
using ir::RawSample;
using ir::Scalar;

constexpr int kUnits = 40, kPerUnit = 1000, kSamples = 6;

struct Function {
  Raw raw;
  ExprRef expr;
  bool exact;
};

std::vector<Function> make_functions(uint32_t seed, ir::ExprPool& pool) {
  constexpr ExprKind kInexact[] = {ExprKind::exp, ExprKind::log, ExprKind::erf, ExprKind::tanh,
                                   ExprKind::sin, ExprKind::cos, ExprKind::atan};
  ir::RawMaker maker(seed, false);
  std::vector<Function> out;
  for (int k = 0; static_cast<int>(out.size()) < kPerUnit; ++k) {
    const bool exact = k % 4 != 0;
    Raw raw = maker.real(1 + k % 6);
    if (!exact) raw = {Raw::unary, Scalar::f32, 0, kInexact[k / 4 % std::size(kInexact)], {raw}};
    const ExprRef e = build(raw, pool);
    if (ir::poison_of(e) == ir::Poison::none) out.push_back({raw, e, exact});
  }
  return out;
}

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
  std::string
      text =
          "#include \"expr.h\"\n#define ARGS const f32* a0, const i64* a1, const b8* a2, const i32* a3, u32* flags, idx N, idx i0, idx i1\n",
      table;
  for (size_t k = 0; k < functions.size(); ++k) {
    text += fmt::format("static f32 value{}([[maybe_unused]] ARGS) {{ {} }}\n", k,
                        codegen::cpp_body(functions[k].expr, names));
    table += fmt::format("value{}, ", k);
  }
  return text + "static f32 (*const table[])(ARGS) = {" + table + "};\n" +
         "TFCC_KERNEL(all) { for (i64 k = begin; k < end; ++k) if (((const b8*)a[5])[k]) ((f32*)a[4])[k] = "
         "table[k]((const f32*)a[0], (const i64*)a[1], (const b8*)a[2], (const i32*)a[3], flags, n[0], n[1], n[2]); }\n";
}

bool close(double a, double b, double tolerance) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         std::fabs(a - b) <= tolerance * std::fabs(b) + 1e-37;
}

// The library's sine is for angles, not for all of f32 (docs/numerics.md).
bool in_domain(const Function& f, const RawSample& sample) {
  if (f.raw.kind != ExprKind::sin && f.raw.kind != ExprKind::cos) return true;
  ir::RawEval eval(sample);
  return std::fabs(eval(f.raw.args[0]).r) < 1e4;
}

class RandomExpressions : public test::CpuTargetTest, public ::testing::WithParamInterface<int> {};

TEST_P(RandomExpressions, CompiledByClang) {
  ir::ExprPool pool;
  pool.set_range("N", {1, 4});
  const std::vector<Function> functions =
      make_functions(static_cast<uint32_t>(GetParam()) + 1, pool);
  test::CpuKernels kernels(source_of(functions, pool), "x86-64-v2");
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  std::vector<float> got(kPerUnit);
  int compared = 0;
  for (int t = 0; t < kSamples && !HasFailure(); ++t) {
    const RawSample sample = ir::random_sample(random);
    // What has no value, such as a load that the expression itself puts out of range, may not run
    // at all.
    std::vector<uint8_t> defined(kPerUnit);
    for (size_t k = 0; k < kPerUnit; ++k) {
      ir::RawEval eval(sample);
      eval(functions[k].raw);
      defined[k] = !eval.open;
    }
    const bool at_end = t % 2 == 0;
    const testing_support::Guarded reals(sample.reals.data(), sample.reals.size() * 4, at_end),
        ints(sample.ints.data(), sample.ints.size() * 8, at_end), truth(&sample.truth, 1, at_end),
        narrow(sample.narrow.data(), sample.narrow.size() * 4, at_end);
    kernels.run(
        "all", {sample.n, sample.at[0], sample.at[1]},
        {reals.data(), ints.data(), truth.data(), narrow.data(), got.data(), defined.data()},
        kPerUnit);
    for (size_t k = 0; k < kPerUnit; ++k) {
      const Function& f = functions[k];
      if (!defined[k] || (!f.exact && !in_domain(f, sample))) continue;
      ++compared;
      bool flagged = false;
      const double want = interpret(f.expr, sample, flagged).r;
      EXPECT_TRUE(close(got[k], want, f.exact ? 0 : 2e-6))
          << print(f.expr) << " is " << want << ", not " << got[k] << " at i0 = " << sample.at[0]
          << ", i1 = " << sample.at[1] << ", N = " << sample.n << ", %2 = " << sample.truth
          << ", %0 = " << ::testing::PrintToString(sample.reals)
          << ", %1 = " << ::testing::PrintToString(sample.ints)
          << ", %3 = " << ::testing::PrintToString(sample.narrow);
    }
  }
  EXPECT_GT(compared, kPerUnit * kSamples * 3 / 4);
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

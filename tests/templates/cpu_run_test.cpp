// SPDX-License-Identifier: Apache-2.0
// Runs of a compiled encoder layer on the CPU: nothing is allocated, by anybody, after the first
// run of a shape; two runs agree bit for bit, whatever the number of threads; a sequence's result
// does not depend on its batch. malloc is replaced, so this is a program of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "codegen/clang_cpu.h"
#include "tools/compiler/compile_graph.h"
#include "ir/ir.h"
#include "tests/templates/harness.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TFCC_COUNTS_MALLOC 0
#else
#define TFCC_COUNTS_MALLOC 1
#endif

namespace {
std::atomic<long> allocations{0};
}

#if TFCC_COUNTS_MALLOC
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t n) { return ++allocations, __libc_malloc(n); }
void* calloc(size_t n, size_t size) { return ++allocations, __libc_calloc(n, size); }
void* realloc(void* p, size_t n) { return ++allocations, __libc_realloc(p, n); }
void* aligned_alloc(size_t a, size_t n) { return ++allocations, __libc_memalign(a, n); }
void* memalign(size_t a, size_t n) { return ++allocations, __libc_memalign(a, n); }
int posix_memalign(void** p, size_t a, size_t n) {
  return ++allocations, (*p = __libc_memalign(a, n)) != nullptr ? 0 : ENOMEM;
}
}
#endif

namespace tfcc::test {
namespace {

std::string layer() {
  std::string body;
  for (auto [name, k, n] :
       {std::tuple{"q", 64, 192}, {"o", 64, 64}, {"u", 64, 256}, {"d", 256, 64}}) {
    body += "  const @w" + std::string(name) + " : f32[" + std::to_string(k) + "," +
            std::to_string(n) + "] = random(" + std::to_string(n + k) + ")\n";
  }
  body +=
      "  const @b : f32[192] = random(1)\n  const @bu : f32[256] = random(2)\n  const @g : f32[64] = random(3)\n"
      "  %qkv = matmul(%x, @wq, @b) {alpha = 1.0, epilogue = (s,i,j,k) => s + @b[k], trans_a = false, trans_b = false} : f32[B,S,192]\n";
  for (int i = 0; i < 3; ++i) {
    const std::string name(1, "qkv"[i]);
    body += "  %" + name + " = pointwise(%qkv) {body = (b,s,c) => %qkv[b,s,c + " +
            std::to_string(64 * i) + "]} : f32[B,S,64]\n";
  }
  body +=
      "  %ctx = attention(%q, %k, %v) {causal = false, heads = 4, key_padding = false, kv_heads = 4, score = (s,b,h,i,j) => s * 0.25, visible = none} : f32[B,S,64]\n"
      "  %out = matmul(%ctx, @wo) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,64]\n"
      "  %n = norm(@g, %out, %x) {body = (i,j,k) => %out[i,j,k] + %x[i,j,k], eps = 1e-05, has_beta = false, kind = layer} : f32[B,S,64]\n"
      "  %up = matmul(%n, @wu) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,256]\n"
      "  %gelu = pointwise(%up, @bu) {body = (i,j,k) => 0.5 * (%up[i,j,k] + @bu[k]) * (1.0 + erf((%up[i,j,k] + @bu[k]) * 0.7071067811865476))} : f32[B,S,256]\n"
      "  %down = matmul(%gelu, @wd) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,64]\n"
      "  %y = norm(@g, %down, %n) {body = (i,j,k) => %down[i,j,k] + %n[i,j,k], eps = 1e-05, has_beta = false, kind = layer} : f32[B,S,64]\n";
  return graph_text("%x: f32[B,S,64]", "B = x.0 in 1.., S = x.1 in 1..", body, {"y"});
}

class CpuRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = new ScratchFile;
    auto graph = ir::parse(layer(), "layer");
    ASSERT_TRUE(graph) << graph.error().message;
    compiler::GraphOptions options{{codegen::native_cpu_level(), Family::cpu}};
    options.cache.enabled = false;
    auto made = compiler::compile_graph(*graph, file_->path(), options);
    ASSERT_TRUE(made) << made.error().message;
  }
  static void TearDownTestSuite() { delete file_; }

  Executor executor(int threads) {
    LoadOptions options;
    options.device = "cpu";
    options.threads = threads;
    auto model = Model::load(file_->path(), options);
    EXPECT_TRUE(model) << model.error().message;
    return *model->executor();
  }

  // Sequence b of any batch has the same values.
  static std::vector<float> input(int64_t batch, int64_t length) {
    std::vector<float> x(static_cast<size_t>(batch * length * 64));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>((i * 2654435761u >> 8) % 2001) / 1000 - 1;
    return x;
  }

  static std::vector<float> run(Executor& e, int64_t batch, int64_t length) {
    std::vector<float> x = input(batch, length), y(x.size());
    EXPECT_TRUE(e.set("x", {x.data(), DType::f32, {batch, length, 64}}));
    EXPECT_TRUE(e.set("y", {y.data(), DType::f32, {batch, length, 64}}));
    auto ran = e.run();
    EXPECT_TRUE(ran) << ran.error().message;
    return y;
  }

  static ScratchFile* file_;
};
ScratchFile* CpuRun::file_ = nullptr;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b, size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

TEST_F(CpuRun, allocates_nothing_after_the_first_run_of_a_shape) {
  if (!TFCC_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer has malloc";
  const long at_start = allocations;
  Executor e = executor(3);
  ASSERT_GT(allocations, at_start) << "calls are counted";
  std::vector<float> x = input(4, 70), y(x.size());
  for (auto [batch, length] : {std::pair{4, 70}, {1, 3}, {4, 70}, {2, 65}}) {
    ASSERT_TRUE(e.set("x", {x.data(), DType::f32, {batch, length, 64}}));
    ASSERT_TRUE(e.set("y", {y.data(), DType::f32, {batch, length, 64}}));
    ASSERT_TRUE(e.run());
    const long before = allocations;
    bool ok = true;
    for (int i = 0; i < 3; ++i) ok = ok && static_cast<bool>(e.run());
    EXPECT_EQ(allocations - before, 0) << batch << " x " << length;
    ASSERT_TRUE(ok);
  }
}

TEST_F(CpuRun, two_runs_agree_bit_for_bit_with_any_number_of_threads) {
  Executor one = executor(1);
  for (auto [batch, length] : {std::pair{1, 1}, {1, 130}, {3, 65}, {8, 128}}) {
    const std::vector<float> want = run(one, batch, length);
    for (int threads : {1, 2, 3, 4}) {
      Executor e = executor(threads);
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(same_bits(run(e, batch, length), want, want.size()))
            << threads << " threads, " << batch << " x " << length;
    }
  }
}

TEST_F(CpuRun, a_sequence_does_not_depend_on_its_batch) {
  Executor e = executor(2);
  for (int64_t length : {1, 37, 128}) {
    const std::vector<float> alone = run(e, 1, length), among = run(e, 7, length);
    EXPECT_TRUE(same_bits(alone, among, alone.size())) << length;
  }
}

}  // namespace
}  // namespace tfcc::test

// SPDX-License-Identifier: Apache-2.0
// The CPU plug-in by itself: every form of a product against a plain loop, and the split of work
// over threads.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "runtime/cpu/physical_cores.h"
#include "runtime/cpu/plugin.h"

namespace tfcc {
namespace {

const TfccCpuApi* api() {
  static const TfccCpuApi* found = [] {
    void* library = dlopen(TFCC_BINARY_DIR "/runtime/libtfcc_cpu.so", RTLD_NOW | RTLD_LOCAL);
    void* get = library != nullptr ? dlsym(library, "tfcc_cpu_api") : nullptr;
    return get != nullptr ? reinterpret_cast<const TfccCpuApi* (*)()>(get)() : nullptr;
  }();
  return found;
}

std::vector<float> numbers(size_t count, int seed) {
  std::vector<float> v(count);
  for (size_t i = 0; i < count; ++i)
    v[i] = static_cast<float>((i * 7 + static_cast<size_t>(seed) * 3) % 13) - 6;
  return v;
}

// Small integers: exact in float whatever the order of the sum.
void expect_product(const TfccCpuMatmul& g, void* pool, void* products) {
  auto span = [&](int64_t stride, int64_t size) {
    return static_cast<size_t>((g.batch - 1) * stride + size);
  };
  auto a = numbers(span(g.stride_a, g.m * g.k), 1), b = numbers(span(g.stride_b, g.k * g.n), 2);
  auto bias = numbers(static_cast<size_t>(g.n), 3);
  std::vector<float> d(static_cast<size_t>(g.batch * g.m * g.n), -1e9f);
  char message[256] = "";
  void* matmul = api()->matmul_create(pool, products, &g, message, sizeof message);
  ASSERT_NE(matmul, nullptr) << message;
  for (int run = 0; run < 2; ++run) {
    ASSERT_EQ(
        api()->matmul_run(matmul, a.data(), b.data(), g.has_bias ? bias.data() : nullptr, d.data()),
        0);
  }
  api()->matmul_destroy(matmul);
  for (int64_t i = 0; i < g.batch; ++i) {
    for (int64_t r = 0; r < g.m; ++r) {
      for (int64_t c = 0; c < g.n; ++c) {
        float sum = 0;
        for (int64_t k = 0; k < g.k; ++k) {
          sum += a[i * g.stride_a + (g.trans_a ? k * g.m + r : r * g.k + k)] *
                 b[i * g.stride_b + (g.trans_b ? c * g.k + k : k * g.n + c)];
        }
        float want = sum * g.alpha + (g.has_bias ? bias[c] : 0);
        ASSERT_EQ(d[(i * g.m + r) * g.n + c], want)
            << "batch " << i << " row " << r << " column " << c << " trans " << g.trans_a
            << g.trans_b << " bias " << g.has_bias << " alpha " << g.alpha << " strides "
            << g.stride_a << " " << g.stride_b;
      }
    }
  }
}

// A pool and a cache of its own.
class CpuProducts : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (api() == nullptr) GTEST_SKIP() << "built without the CPU target";
    pool_ = api()->create(GetParam());
    products_ = api()->products_create(size_t{1} << 30);
  }
  void TearDown() override {
    if (api() == nullptr) return;
    api()->products_destroy(products_);
    api()->destroy(pool_);
  }
  void expect(const TfccCpuMatmul& g) { expect_product(g, pool_, products_); }

  void* pool_ = nullptr;
  void* products_ = nullptr;
};

TEST_P(CpuProducts, of_every_form) {
  for (int form = 0; form < 16; ++form) {
    for (auto [batch, share_a, share_b] :
         {std::tuple{1, 0, 0}, {3, 0, 0}, {3, 0, 1}, {3, 1, 0}, {3, 1, 1}}) {
      for (auto [m, n, k] :
           {std::tuple{5, 7, 3}, {1, 1, 1}, {1, 9, 4}, {33, 1, 17}, {64, 48, 32}}) {
        TfccCpuMatmul g = {m,
                           n,
                           k,
                           batch,
                           share_a ? 0 : m * k,
                           share_b ? 0 : k * n,
                           form & 1,
                           form >> 1 & 1,
                           form >> 2 & 1,
                           form >> 3 & 1 ? 0.5f : 1.0f};
        expect(g);
      }
    }
  }
}

// Large enough to be dealt out: over the batch, the rows, or the columns where there are few rows.
TEST_P(CpuProducts, that_are_split) {
  for (int form = 0; form < 16; ++form) {
    for (auto [batch, share_a, share_b, m, n, k] : {std::tuple{1, 0, 0, 211, 67, 300},
                                                    {1, 0, 0, 3, 1301, 700},
                                                    {1, 0, 0, 1, 1301, 1700},
                                                    {13, 0, 0, 40, 36, 130},
                                                    {2, 0, 1, 97, 33, 700},
                                                    {2, 1, 0, 5, 701, 400},
                                                    {5, 1, 1, 90, 80, 70},
                                                    {300, 0, 0, 9, 11, 40}}) {
      expect({m, n, k, batch, share_a ? 0 : m * k, share_b ? 0 : k * n, form & 1, form >> 1 & 1,
              form >> 2 & 1, form >> 3 & 1 ? 0.5f : 1.0f});
    }
  }
}

TEST_P(CpuProducts, whose_operands_lie_apart) {
  expect({4, 5, 6, 3, 4 * 6 + 10, 5 * 6 + 3, 0, 1, 1, 2.0f});
}

INSTANTIATE_TEST_SUITE_P(Threads, CpuProducts, testing::Values(1, 2, 5),
                         testing::PrintToStringParamName());

// What is not in use goes when the limit is passed, the oldest first; what is in use stays and is
// right.
TEST(CpuPlugin, kept_products_have_a_limit) {
  if (api() == nullptr) GTEST_SKIP() << "built without the CPU target";
  const size_t limit = size_t{2} << 20;
  void* products = api()->products_create(limit);
  void* pool = api()->create(1);
  const TfccCpuMatmul held = {7, 5, 3, 1, 0, 0, 0, 0, 0, 1.0f};
  char message[256] = "";
  void* first = api()->matmul_create(pool, products, &held, message, sizeof message);
  size_t most = 0;
  for (int64_t m = 1; m <= 200; ++m) {
    expect_product({m, 3, 4, 1, 0, 0, 0, 0, 1, 1.0f}, pool, products);
    most = std::max(most, api()->products_bytes(products));
  }
  EXPECT_LE(most, limit);
  EXPECT_GT(most, limit / 2);
  std::vector<float> a(21, 1), b(15, 2), d(35);
  EXPECT_EQ(api()->matmul_run(first, a.data(), b.data(), nullptr, d.data()), 0);
  EXPECT_EQ(d[34], 6);
  api()->matmul_destroy(first);
  api()->products_destroy(products);
  products = api()->products_create(0);  // nothing is kept but what runs
  for (int64_t m = 1; m <= 20; ++m)
    expect_product({m, 3, 4, 1, 0, 0, 0, 0, 1, 1.0f}, pool, products);
  EXPECT_LE(api()->products_bytes(products), size_t{256} << 10);
  api()->products_destroy(products);
  api()->destroy(pool);
}

TEST(CpuPlugin, every_item_is_computed_once) {
  if (api() == nullptr) GTEST_SKIP() << "built without the CPU target";
  void* pool = api()->create(3);
  EXPECT_EQ(api()->threads(pool), 3);
  for (int64_t work : {0, 1, 2, 3, 7, 100, 1001}) {
    for (int64_t grain : {0, 1, 5, 64, 5000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(work));
      auto fn = [](void* p, int64_t begin, int64_t end) {
        auto& h = *static_cast<std::vector<std::atomic<int>>*>(p);
        for (int64_t i = begin; i < end; ++i) ++h[static_cast<size_t>(i)];
      };
      api()->parallel_for(pool, work, grain, fn, &hits);
      for (auto& h : hits) ASSERT_EQ(h, 1) << work << " " << grain;
    }
  }
  api()->destroy(pool);
}

TEST(CpuPlugin, counts_at_least_one_core) { EXPECT_GE(cpu::physical_cores(), 1); }

}  // namespace
}  // namespace tfcc

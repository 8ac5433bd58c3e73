// SPDX-License-Identifier: Apache-2.0
// libtfcc_cpu.so: threads (thread_pool.h) and matrix products (products.h) of the CPU target,
// behind the C table of plugin.h. No exception leaves this file.
#include "runtime/cpu/plugin.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "runtime/cpu/physical_cores.h"
#include "runtime/cpu/products.h"

namespace {

using tfcc::cpu::Product;
using tfcc::cpu::ProductCache;
using tfcc::cpu::Worker;

void* create(int threads) try {
  return new Worker(
      std::clamp(threads > 0 ? threads : tfcc::cpu::physical_cores(), 1, tfcc::kMaxThreads));
} catch (...) {
  return nullptr;
}

void destroy(void* pool) { delete static_cast<Worker*>(pool); }

int threads(const void* pool) { return static_cast<const Worker*>(pool)->pool.threads(); }

void parallel_for(void* pool, int64_t work, int64_t grain, TfccCpuRange fn, void* context) {
  if (work <= 0) return;
  auto& threads = static_cast<Worker*>(pool)->pool;
  const int64_t parts =
      std::clamp<int64_t>(work / std::max<int64_t>(grain, 1), 1, threads.threads());
  if (parts == 1) return fn(context, 0, work);
  struct Job {
    int64_t work, parts;
    TfccCpuRange fn;
    void* context;
  } job = {work, parts, fn, context};
  auto part = [](void* p, int i) {
    const Job& j = *static_cast<const Job*>(p);
    auto start = [&](int64_t k) {
      return j.work / j.parts * k + j.work % j.parts * k / j.parts;
    };  // work * k / parts
    j.fn(j.context, start(i), start(i + 1));
  };
  threads.run(static_cast<int>(parts), part, &job);
}

void* products_create(size_t limit) try { return new ProductCache(limit); } catch (...) {
  return nullptr;
}

void products_destroy(void* products) { delete static_cast<ProductCache*>(products); }

size_t products_bytes(const void* products) {
  return static_cast<const ProductCache*>(products)->bytes();
}

void* matmul_create(void* pool, void* products, const TfccCpuMatmul* matmul, char* message,
                    size_t message_bytes) try {
  return new Product(*static_cast<Worker*>(pool), *static_cast<ProductCache*>(products), *matmul);
} catch (const std::exception& e) {
  std::snprintf(message, message_bytes, "%s", e.what());
  return nullptr;
} catch (...) {
  std::snprintf(message, message_bytes, "unknown failure");
  return nullptr;
}

void matmul_destroy(void* matmul) { delete static_cast<Product*>(matmul); }

int matmul_run(void* matmul, const void* a, const void* b, const void* bias, void* d) {
  return static_cast<Product*>(matmul)->run(a, b, bias, d);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TfccCpuApi* tfcc_cpu_api(void) {
  static constexpr TfccCpuApi kApi = {
      TFCC_CPU_API_VERSION, create,          destroy,          threads,
      parallel_for,         products_create, products_destroy, products_bytes,
      matmul_create,        matmul_destroy,  matmul_run};
  return &kApi;
}

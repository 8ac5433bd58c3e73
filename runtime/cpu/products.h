// SPDX-License-Identifier: Apache-2.0
// Matrix products of the CPU target: oneDNN's kernels for one thread, and how a product is dealt
// out to the threads of a pool. oneDNN never sees more than one thread, so that OpenMP, which
// Debian's oneDNN is built with, makes no team. Internal to libtfcc_cpu.so.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "runtime/cpu/plugin.h"
#include "runtime/cpu/thread_pool.h"

namespace tfcc::cpu {

/// A product that one thread computes: a batch of blocks of larger matrices. `row_*` are the
/// elements from one stored row to the next, `stride_*` those from one matrix of the batch to the
/// next.
struct BlockShape {
  int64_t batch, m, n, k, stride_a, stride_b, stride_d, row_a, row_b, row_d;
  bool trans_a, trans_b, has_bias;
  float alpha;
  auto operator<=>(const BlockShape&) const = default;
};

/// What oneDNN made for a block. Immutable; any number of threads may execute it, each with its own
/// scratch memory.
struct BlockKernel {
  explicit BlockKernel(const BlockShape& shape);

  dnnl::matmul primitive;
  dnnl::memory::desc a, b, bias, d, scratch;
  int bias_arg = 0;  // 0: none
};

/// Kernels of the products seen so far, shared by the executors of a model. It forgets those that
/// were used least recently when it is over its limit; a kernel that an executor holds stays.
class ProductCache {
 public:
  explicit ProductCache(size_t limit) : limit_(limit) {}
  /// Throws what oneDNN throws.
  std::shared_ptr<const BlockKernel> get(const BlockShape& shape);
  size_t bytes() const;

 private:
  using Entry = std::pair<BlockShape, std::shared_ptr<const BlockKernel>>;

  const size_t limit_;
  mutable std::mutex mutex_;  // under a ForkGuard
  std::list<Entry> entries_;  // the latest used first
  std::map<BlockShape, std::list<Entry>::iterator> index_;
};

/// What one executor computes with: threads, and scratch memory and a stream for each.
struct Worker {
  explicit Worker(int threads) : pool(threads) {}
  /// Scratch of a part: at least `bytes`. Throws std::bad_alloc.
  void reserve(size_t part, size_t bytes);

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  struct Scratch {
    std::unique_ptr<void, Free> memory;
    size_t bytes = 0;
  };
  ThreadPool pool;
  std::vector<Scratch> scratch;  // of each part
};

/// A product of one executor, ready to run.
class Product {
 public:
  /// Throws what oneDNN throws, and std::bad_alloc.
  Product(Worker& worker, ProductCache& cache, const TfccCpuMatmul& matmul);
  /// 0, or a status of oneDNN.
  int run(const void* a, const void* b, const void* bias, void* d);

 private:
  // One part is computed by one thread: `repeat` blocks, `step_*` elements apart, the first at
  // `from_*`.
  struct Part {
    std::shared_ptr<const BlockKernel> kernel;
    dnnl::memory a, b, bias, d, scratch;
    dnnl::stream stream;
    int64_t from_a = 0, from_b = 0, from_bias = 0, from_d = 0;
    int64_t repeat = 1, step_a = 0, step_b = 0, step_d = 0;
    int64_t rows = 0, columns = 0,
            row_d = 0;         // of a result that is copied to its place; 0 rows: it is not
    size_t scratch_bytes = 0;  // oneDNN's; behind it lies such a result
    int status = 0;
  };
  struct Operands {
    const float *a, *b, *bias;
    float* d;
  };
  void add_part(ProductCache& cache, const BlockShape& shape, Part part);
  void execute(Part& part, size_t index, const Operands& o);

  Worker& worker_;
  std::vector<Part> parts_;
};

}  // namespace tfcc::cpu

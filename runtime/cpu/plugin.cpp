// SPDX-License-Identifier: Apache-2.0
// libtfcc_cpu.so: threads (OpenMP) and matrix products (oneDNN) of the CPU target, behind the C
// table of plugin.h. One OpenMP pool serves oneDNN and our kernels. No exception leaves this file.
#include "runtime/cpu/plugin.h"

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>

#include "runtime/cpu/physical_cores.h"

namespace {

using dims = dnnl::memory::dims;
constexpr auto kF32 = dnnl::memory::data_type::f32;

struct Pool {
  int threads = 1;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

// oneDNN takes the thread count of the calling thread; a caller's own setting is put back.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : saved_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadCount() { omp_set_num_threads(saved_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int saved_;
};

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

struct Gemm {
  Pool* pool = nullptr;
  dnnl::matmul primitive;
  dnnl::memory a, b, bias, d, scratch;
  std::unique_ptr<void, FreeDeleter> scratch_bytes;
  int bias_arg = 0;                      // 0: none
  int64_t repeat = 1;                    // products with the same operands, one after the other
  int64_t stride_d = 0;
};

// AMX is never used: in virtual machines cpuid may show it and its code still dies with SIGILL.
void limit_isa() {
  static const bool done = [] {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    return true;
  }();
  (void)done;
}

// A stored r x c matrix, or its transpose, as oneDNN sees it; a shared operand has a batch of 1,
// which broadcasts.
dnnl::memory::desc operand(int64_t batch, int64_t stride, int64_t rows, int64_t columns,
                           bool trans) {
  dims strides = trans ? dims{1, rows} : dims{columns, 1};
  if (batch == 1) return {dims{rows, columns}, kF32, strides};
  bool shared = stride == 0;
  strides.insert(strides.begin(), shared ? rows * columns : stride);
  return {dims{shared ? 1 : batch, rows, columns}, kF32, strides};
}

// alpha before the bias: a linear post-op, then the bias as a binary post-op. Returns the argument
// of the bias.
int add_alpha(dnnl::post_ops& ops, const TfccCpuGemm& g, const dnnl::memory::desc& bias) {
#if DNNL_VERSION_MAJOR >= 3
  ops.append_eltwise(dnnl::algorithm::eltwise_linear, g.alpha, 0.0f);
#else
  ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, g.alpha, 0.0f);
#endif
  if (!g.has_bias) return 0;
  ops.append_binary(dnnl::algorithm::binary_add, bias);
  return DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1;
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                      const dnnl::memory::desc& b, const dnnl::memory::desc* bias,
                                      const dnnl::memory::desc& d,
                                      const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  if (bias != nullptr) return {engine, a, b, *bias, d, attr};
  return {engine, a, b, d, attr};
#else
  if (bias != nullptr) return {{a, b, *bias, d}, attr, engine};
  return {{a, b, d}, attr, engine};
#endif
}

std::unique_ptr<Gemm> make_gemm(Pool* pool, const TfccCpuGemm& g) {
  auto gemm = std::make_unique<Gemm>();
  gemm->pool = pool;
  int64_t batch = g.batch;
  if (g.stride_a == 0 && g.stride_b == 0) std::swap(batch, gemm->repeat);
  gemm->stride_d = g.m * g.n;
  auto a = operand(batch, g.stride_a, g.m, g.k, g.trans_a != 0);
  auto b = operand(batch, g.stride_b, g.k, g.n, g.trans_b != 0);
  auto d = operand(batch, g.m * g.n, g.m, g.n, false);
  dims bias_dims = batch == 1 ? dims{1, g.n} : dims{1, 1, g.n};
  dnnl::memory::desc bias(bias_dims, kF32, batch == 1 ? dims{g.n, 1} : dims{g.n, g.n, 1});

  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);   // executors may move between threads
  dnnl::post_ops ops;
  if (g.alpha != 1.0f) {
    gemm->bias_arg = add_alpha(ops, g, bias);
    attr.set_post_ops(ops);
  } else if (g.has_bias) {
    gemm->bias_arg = DNNL_ARG_BIAS;
  }
  bool plain_bias = gemm->bias_arg == DNNL_ARG_BIAS;
  auto pd = describe(pool->engine, a, b, plain_bias ? &bias : nullptr, d, attr);
  gemm->primitive = dnnl::matmul(pd);
  gemm->a = dnnl::memory(a, pool->engine, nullptr);
  gemm->b = dnnl::memory(b, pool->engine, nullptr);
  gemm->d = dnnl::memory(d, pool->engine, nullptr);
  gemm->bias = dnnl::memory(bias, pool->engine, nullptr);
  size_t bytes = pd.scratchpad_desc().get_size();
  if (bytes > 0) {
    gemm->scratch_bytes.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    if (gemm->scratch_bytes == nullptr) throw std::bad_alloc();
  }
  gemm->scratch = dnnl::memory(pd.scratchpad_desc(), pool->engine, gemm->scratch_bytes.get());
  return gemm;
}

void* create(int threads) try {
  limit_isa();
  auto pool = std::make_unique<Pool>();
  pool->threads = threads > 0 ? threads : tfcc::cpu::physical_cores();
  return pool.release();
} catch (...) {
  return nullptr;
}

void destroy(void* pool) { delete static_cast<Pool*>(pool); }

int threads(const void* pool) { return static_cast<const Pool*>(pool)->threads; }

void parallel_for(void* pool, int64_t work, int64_t grain, TfccCpuRange fn, void* context) {
  if (work <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  int64_t most = static_cast<Pool*>(pool)->threads;
  int64_t parts = std::clamp<int64_t>(work / grain, 1, most);
  if (parts == 1) return fn(context, 0, work);
  // Always the whole team: libgomp rebuilds its threads when the size of a team changes.
#pragma omp parallel num_threads(static_cast<int>(most))
  {
    // A smaller team is possible under a thread limit, so parts are dealt out, not assumed one to
    // one.
    for (int64_t i = omp_get_thread_num(); i < parts; i += omp_get_num_threads()) {
      int64_t begin = work * i / parts, end = work * (i + 1) / parts;
      if (begin < end) fn(context, begin, end);
    }
  }
}

void* gemm_create(void* pool, const TfccCpuGemm* gemm, char* message, size_t message_bytes) try {
  auto* p = static_cast<Pool*>(pool);
  ThreadCount count(p->threads);
  return make_gemm(p, *gemm).release();
} catch (const std::exception& e) {
  std::snprintf(message, message_bytes, "%s", e.what());
  return nullptr;
} catch (...) {
  std::snprintf(message, message_bytes, "unknown failure");
  return nullptr;
}

void gemm_destroy(void* gemm) { delete static_cast<Gemm*>(gemm); }

// The C interface of oneDNN: its C++ one builds a hash map for every call.
int gemm_run(void* gemm, const void* a, const void* b, const void* bias, void* d) {
  auto* g = static_cast<Gemm*>(gemm);
  ThreadCount count(g->pool->threads);
  auto set = [](dnnl::memory& m, const void* p) {
    return dnnl_memory_set_data_handle(m.get(), const_cast<void*>(p));
  };
  set(g->a, a);
  set(g->b, b);
  if (g->bias_arg != 0) set(g->bias, bias);
  dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, g->a.get()},
                             {DNNL_ARG_WEIGHTS, g->b.get()},
                             {DNNL_ARG_DST, g->d.get()},
                             {DNNL_ARG_SCRATCHPAD, g->scratch.get()},
                             {g->bias_arg, g->bias.get()}};
  int arg_count = g->bias_arg != 0 ? 5 : 4;
  for (int64_t i = 0; i < g->repeat; ++i) {
    set(g->d, static_cast<float*>(d) + i * g->stride_d);
    auto status =
        dnnl_primitive_execute(g->primitive.get(), g->pool->stream.get(), arg_count, args);
    if (status != dnnl_success) return static_cast<int>(status);
  }
  return static_cast<int>(dnnl_stream_wait(g->pool->stream.get()));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TfccCpuApi* tfcc_cpu_api(void) {
  static constexpr TfccCpuApi kApi = {TFCC_CPU_API_VERSION, create,       destroy,      threads,
                                      parallel_for,         gemm_create, gemm_destroy, gemm_run};
  return &kApi;
}

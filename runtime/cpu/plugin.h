/* SPDX-License-Identifier: Apache-2.0
 * The C interface between the runtime and libtfcc_cpu.so, which alone starts threads and uses oneDNN.
 * One table of functions, found by the name tfcc_cpu_api; both sides check the version. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFCC_CPU_API_VERSION 2u

/** D[i] = alpha * op(A[i]) * op(B[i]) + bias, f32, row-major; see MatmulLaunch in manifest.proto. */
typedef struct TfccCpuMatmul {
  int64_t m, n, k, batch, stride_a, stride_b;
  int32_t trans_a, trans_b, has_bias;
  float alpha;
} TfccCpuMatmul;

/** Computes the items [begin, end). */
typedef void (*TfccCpuRange)(void* context, int64_t begin, int64_t end);

typedef struct TfccCpuApi {
  uint32_t version;
  /** The threads of one executor; 0 is one per physical core that this process may use. There are fewer where the system
   * gives no more. A child after fork() starts them anew. Null: out of memory. */
  void* (*create)(int threads);
  void (*destroy)(void* pool);
  /** Threads that there are, the caller's among them. */
  int (*threads)(const void* pool);
  /** Splits [0, work) over the threads, at least `grain` items each, and waits. */
  void (*parallel_for)(void* pool, int64_t work, int64_t grain, TfccCpuRange fn, void* context);
  /** What oneDNN made for the products of a model, at most some `limit` bytes beside what is in use; shared by its
   * executors, safe for threads. Null: out of memory. */
  void* (*products_create)(size_t limit);
  void (*products_destroy)(void* products);
  size_t (*products_bytes)(const void* products);
  /** A product ready to run, or null with a message. */
  void* (*matmul_create)(void* pool, void* products, const TfccCpuMatmul* matmul, char* message,
                         size_t message_bytes);
  void (*matmul_destroy)(void* matmul);
  /** 0, or a status code of oneDNN. */
  int (*matmul_run)(void* matmul, const void* a, const void* b, const void* bias, void* d);
} TfccCpuApi;

const TfccCpuApi* tfcc_cpu_api(void);

#ifdef __cplusplus
}
#endif

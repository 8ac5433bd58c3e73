// SPDX-License-Identifier: Apache-2.0
// What the launches of a run cost, and what the machine could do at most: for `tfcc bench`.
// Internal: the library does not export it. An executor's captured launches stay, unless profile_graph()
// has to make its arena larger first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/manifest.h"
#include "runtime/result.h"
#include "runtime/tfcc.h"

namespace tfcc::runtime {

/// One launch of the plan at the sizes of the executor's inputs.
struct LaunchProfile {
  std::string name;               // the value it computes
  std::string op;                 // "matmul", "attention"
  std::string kernel;             // empty: a product of the library
  std::vector<int64_t> sizes;     // of a product: batch, m, n, k
  DType arithmetic = DType::f32;  // operands of a product, else the plan's precision
  int64_t flops = 0;
  int64_t bytes = 0;       // least traffic: operands read once, results written once
  std::vector<double> ms;  // of each run
};

/// Arithmetic of the executor's plan.
DType precision_of(const Executor& executor);
/// Products in TF32 for one of f32: 0 (it is one of f32), 1 or 3.
int tf32_products(const Executor& executor);

/// Milliseconds that reading all weights of the executor's file once takes, by all its threads on
/// the CPU (best of three), or at the rate of a copy on a GPU: what a step of one token takes at
/// least. Errors: as measured_copy_rate().
Result<double> weight_read_ms(Executor& executor);

/// Runs the executor's inputs `warm_up` + `runs` times by launches one by one, with a clock around
/// each: events on a GPU, where the host has enqueued all of a run before it starts. Errors: as
/// Executor::run(), and invalid_argument for an empty run.
Result<std::vector<LaunchProfile>> profile_launches(Executor& executor, int warm_up, int runs);

/// What launches take in the captured graph, where one begins before the last has ended.
struct GraphProfile {
  double begin_ms = 0;     // a run without any
  std::vector<double> ms;  // what each launch adds; in the order of profile_launches()
};

/// Times graphs of the first launch, the first two, and so on: medians of `runs`. Each is replayed
/// behind the whole graph, so that caches hold what they do in a run. The sum is the time of the
/// whole graph. Empty where the sizes have no graph, as on a CPU. Errors: as profile_launches().
Result<GraphProfile> profile_graph(Executor& executor, int runs);

/// FLOP/s of a large product of this type by oneDNN or cuBLASLt, random operands, best of several.
/// Errors: unsupported (the library has no such product), memory, device.
Result<double> measured_product_rate(Executor& executor, DType type);

/// Bytes/s, read and written, of a large copy on the device by all threads, best of several.
/// Errors: memory, device.
Result<double> measured_copy_rate(Executor& executor);

}  // namespace tfcc::runtime

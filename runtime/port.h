// SPDX-License-Identifier: Apache-2.0
// A graph input or output as one executor holds it: what the caller gave, and memory of our own
// where that is needed.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "runtime/manifest.h"
#include "runtime/tfcc.h"

namespace tfcc::runtime {

/// Memory of the device that only grows; allocated and released through a queue.
struct Grown {
  void* data = nullptr;
  size_t bytes = 0;
};

/// Memory of the host that only grows.
struct HostMemory {
  struct Deleter {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Deleter> data;
  size_t bytes = 0;

  /// Errors: memory, naming the output it is for.
  Result<void> grow(size_t size, const TensorType& output);
};

/// One input or output.
struct Port {
  const TensorType* type = nullptr;
  bool is_input = true;
  bool is_set = false;
  TensorRef ref;                         // what the caller gave
  Grown device;                          // CUDA, run(): our copy there
  HostMemory host;                       // output that the caller gave no memory for
  Tensor result;                         // output of the last run()
};

/// "input 'ids'", for messages.
std::string role(const Port& port);

/// Bytes of a dense tensor.
size_t bytes_of(const std::vector<int64_t>& shape, DType dtype);

/// Compares a shape with rank and fixed dims. Errors: shape.
Result<void> check_shape(const Port& port, const std::vector<int64_t>& shape);

}  // namespace tfcc::runtime

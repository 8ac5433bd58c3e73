// SPDX-License-Identifier: Apache-2.0
// A graph input or output as one executor holds it: what the caller gave, and memory of our own
// where that is needed.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/manifest.h"
#include "runtime/tfcc.h"

namespace tfcc::runtime {

/// Memory of the device that only grows; allocated and released through a queue.
struct Grown {
  void* data = nullptr;
  size_t bytes = 0;
};

class Queue;

struct HostDeleter {
  Queue* queue = nullptr;  // null: of the heap
  void operator()(void* p) const;
};

/// Memory of the host that only grows: of the queue, for copies of a size that it is worth it, or
/// any.
struct HostMemory {
  std::unique_ptr<void, HostDeleter> data;
  size_t bytes = 0;

  /// Errors: memory, naming the output it is for.
  Result<void> grow(size_t size, const TensorType& output, Queue& queue);
};

/// One input or output.
struct Port {
  const TensorType* type = nullptr;
  bool is_input = true;
  bool is_set = false;
  TensorRef ref;                 // what the caller gave
  Grown device[2];               // CUDA, run(): our copy there; that of an input is the first
  std::optional<size_t> staged;  // or its place in the memory that is copied there at once
  const Port* fed = nullptr;     // the output that this input is, of the run before
  HostMemory host[2];            // output that the caller gave no memory for
  std::vector<int64_t> own;      // input that was given in pieces
  Tensor result[2];              // output of the last run on a side
};

/// "input 'ids'", for messages.
std::string role(const Port& port);

/// Bytes of a dense tensor.
size_t bytes_of(const std::vector<int64_t>& shape, DType dtype);

/// Compares a shape with rank and fixed dims. Errors: shape.
Result<void> check_shape(const Port& port, const std::vector<int64_t>& shape);

}  // namespace tfcc::runtime

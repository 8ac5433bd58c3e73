// SPDX-License-Identifier: Apache-2.0
// Checks and memory of one graph input or output.
#include "runtime/core/port.h"

#include <cstdlib>

#include "runtime/core/backend.h"
#include "runtime/core/size_expr.h"

namespace tfcc::runtime {

constexpr size_t kMostOfQueue = size_t{16}
                                << 20;  // its memory takes long to make, and cannot be swapped out

void HostDeleter::operator()(void* p) const {
  if (queue != nullptr) queue->release_host(p);
  else std::free(p);
}

Result<void> HostMemory::grow(size_t size, const TensorType& output, Queue& queue) {
  if (size <= bytes) return {};
  size_t rounded = (size + 63) / 64 * 64;
  data.reset();
  void* const of_queue = rounded <= kMostOfQueue ? queue.allocate_host(rounded) : nullptr;
  data = of_queue != nullptr ? std::unique_ptr<void, HostDeleter>(of_queue, {&queue})
                             : std::unique_ptr<void, HostDeleter>(std::aligned_alloc(64, rounded));
  bytes = data ? rounded : 0;
  if (data) return {};
  return Error{ErrorCode::memory, "output '" + output.name + "': no memory for " +
                                      std::to_string(size) + " bytes; use smaller shapes"};
}

size_t bytes_of(const std::vector<int64_t>& shape, DType dtype) {
  return static_cast<size_t>(checked_product(shape).value_or(0)) * size_of(dtype);
}

std::string role(const Port& p) {
  return (p.is_input ? "input '" : "output '") + p.type->name + "'";
}

Result<void> check_shape(const Port& p, const std::vector<int64_t>& shape) {
  const auto& dims = p.type->dims;
  if (shape.size() != dims.size()) {
    std::string want;
    for (const auto& d : dims) want += (want.empty() ? "" : ", ") + d.print();
    return Error{ErrorCode::shape, role(p) + ": rank is " + std::to_string(shape.size()) +
                                       ", must be " + std::to_string(dims.size()) + " [" + want +
                                       "]"};
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    auto fixed = dims[i].constant();
    if (shape[i] >= 0 && (!fixed || *fixed == shape[i])) continue;
    return Error{ErrorCode::shape, role(p) + ": dim " + std::to_string(i) + " is " +
                                       std::to_string(shape[i]) + ", must be " +
                                       (fixed ? std::to_string(*fixed) : "0 or more")};
  }
  if (!checked_product(shape)) {
    return Error{ErrorCode::shape, role(p) + ": too many elements; use a smaller shape"};
  }
  return {};
}

}  // namespace tfcc::runtime

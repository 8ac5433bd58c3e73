// SPDX-License-Identifier: Apache-2.0
// Executor::prepare and prepare_all: everything that runs of certain shapes, or of all, will need.
#include <algorithm>

#include "runtime/executor_impl.h"

namespace tfcc {

using runtime::Symbol;
using runtime::bytes_of;

inline namespace v1 {
namespace {

// The first size that inputs have at this axis; the number of symbols if there is none.
size_t symbol_at(const runtime::Manifest& m, uint32_t axis) {
  auto at = std::find_if(m.symbols.begin(), m.symbols.end(), [&](const Symbol& s) { return !s.derived() && s.axis == axis; });
  return static_cast<size_t>(at - m.symbols.begin());
}

// The sizes at which every symbol is as large as the file says, each by itself.
Result<std::vector<int64_t>> largest_sizes(const runtime::Manifest& m) {
  std::vector<int64_t> sizes;
  for (const Symbol& s : m.symbols) {
    if (!s.derived() && s.max == 0) {
      return Error{ErrorCode::invalid_argument,
                   "the file names no largest " + s.name +
                       "; give prepare_all() shapes, or compile with --max-batch, --max-tokens, "
                       "--seq-buckets or --maxShapes"};
    }
    sizes.push_back(s.max);
  }
  return sizes;
}

// Sizes at which tensors are as large as in any run of so many tokens: as many rows as there may be, and
// tokens for all of them, rounded up.
std::vector<int64_t> widest(const runtime::Manifest& m, const std::vector<int64_t>& largest) {
  std::vector<int64_t> sizes = largest;
  const size_t batch = symbol_at(m, 0), length = symbol_at(m, 1);
  if (m.symbols.empty() || !m.symbols.back().derived() || m.symbols.back().max == 0) return sizes;
  const int64_t rows = std::max<int64_t>(sizes[batch], 1);
  sizes[length] = std::min(sizes[length], (m.symbols.back().max + rows - 1) / rows);
  return sizes;
}

// Of these sizes those that a run may have: a file that was compiled for so many tokens takes long
// rows or many, not both.
std::vector<std::vector<int64_t>> corners(const runtime::Manifest& m, const std::vector<int64_t>& largest) {
  const size_t batch = symbol_at(m, 0), length = symbol_at(m, 1);
  if (m.symbols.empty() || !m.symbols.back().derived() || m.symbols.back().max == 0) return {largest};
  const int64_t tokens = m.symbols.back().max;
  std::vector<int64_t> many = largest, longest = largest;
  many[length] = std::max<int64_t>(m.symbols[length].min, 1);
  for (auto* sizes : {&many, &longest}) {
    int64_t& rows = (*sizes)[batch];
    rows = std::clamp(tokens / (*sizes)[length], std::min(m.symbols[batch].min, rows), rows);
  }
  return {many, longest};
}

}  // namespace

// What run() needs beside the arena, before any tensor is set.
Result<void> Executor::Impl::prepare_ports(std::span<const int64_t> wanted) {
  Shape shape;
  for (Port& p : ports) {
    TFCC_TRY_VOID(runtime::evaluate_dims(*p.type, wanted, shape));
    const size_t bytes = bytes_of(shape, p.type->dtype);
    const bool on_device = p.is_set && p.ref.place == Place::device;
    if (!on_host() && !on_device) TFCC_TRY_VOID(grow_device(p, bytes));
    if (!p.is_input && !p.is_set) TFCC_TRY_VOID(p.host.grow(bytes, *p.type));
  }
  return {};
}

Result<void> Executor::Impl::prepare_symbols(std::span<const int64_t> wanted) {
  TFCC_TRY_VOID(bind(wanted));
  TFCC_TRY_VOID(make_ready(queue->own_stream(), true));
  // Also for a run on a stream that is being captured.
  if (!binding.empty()) TFCC_TRY_VOID(plain_ready(true));
  return prepare_ports(wanted);
}

Result<void> Executor::Impl::prepare(const Shapes& shapes) {
  std::vector<int64_t> sizes;
  TFCC_TRY_VOID(symbols_for(shapes, sizes));
  TFCC_TRY_VOID(prepare_symbols(sizes));
  return model->backend->save_timings();
}

Result<void> Executor::Impl::prepare_all(const Shapes& shapes) {
  const runtime::Manifest& m = model->manifest;
  std::vector<int64_t> largest;
  std::vector<std::vector<int64_t>> prepared;
  if (shapes.empty() && !m.inputs.empty()) {
    TFCC_TRY(largest, largest_sizes(m));
    prepared = corners(m, largest);
    std::vector<int64_t> of_ports = widest(m, largest);
    if (runtime::derive_symbols(m, of_ports)) TFCC_TRY_VOID(prepare_ports(of_ports));
    for (auto& sizes : prepared) {
      if (runtime::derive_symbols(m, sizes)) continue;
      return Error{ErrorCode::shape, "the largest sizes of the file overflow; give prepare_all() shapes"};
    }
  } else {
    TFCC_TRY_VOID(symbols_for(shapes, largest));
    prepared = {largest};
  }
  if (captures(queue->own_stream())) {
    for (const auto& sizes : prepared) {
      if (!largest.empty()) largest.back() = std::max(largest.back(), sizes.back());
    }
    TFCC_TRY_VOID(capture_all(largest));
  }
  for (const auto& sizes : prepared) TFCC_TRY_VOID(prepare_symbols(sizes));
  return model->backend->save_timings();
}

}  // namespace v1
}  // namespace tfcc

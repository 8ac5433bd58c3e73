// SPDX-License-Identifier: Apache-2.0
// What a target must supply to the executor: memory, copies, launches of compiled kernels and the
// matrix product. cpu/backend.cpp and cuda/backend.cpp implement it; nothing else in the runtime
// knows which target runs.
//
//     Backend    code and weights of one loaded model on one device, shared by its executors
//     Queue      what one executor needs: arena, flags, its own order of work
//     Recorder   launches of a queue, captured once and replayed
//     Stopwatch  the time that work of a queue takes
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/manifest.h"
#include "runtime/result.h"
#include "runtime/tfcc.h"

namespace tfcc::runtime {

struct TilesByRows;
class TimingCache;

/// A product with its sizes known: what a library needs to choose its kernel. See MatmulLaunch in
/// manifest.proto.
struct MatmulShape {
  int64_t m = 0, n = 0, k = 0, batch = 1, stride_a = 0, stride_b = 0;
  bool trans_a = false, trans_b = false, has_bias = false, in_order = false, tf32 = false,
       side_by_side = false;
  float alpha = 1;
  DType a = DType::f32, b = DType::f32, d = DType::f32, bias = DType::f32;

  /// Elements from one stored row of A or D, which has `columns`, to the next.
  int64_t row(int64_t columns) const { return side_by_side ? batch * columns : columns; }
  /// Elements from one result of the batch to the next.
  int64_t stride_d() const { return side_by_side ? n : m * n; }

  auto operator<=>(const MatmulShape&) const = default;
};

/// Addresses of a product's operands.
struct MatmulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* d = nullptr;
};

/// A matrix of 16-bit elements, f32 or bytes that a kernel copies boxes of; see TensorMap in manifest.proto.
struct MappedMatrix {
  void* address = nullptr;
  DType dtype = DType::f16;
  int64_t rows = 0, columns = 0;
  uint32_t box_rows = 0, box_columns = 0;
};

/// A launch of a compiled kernel with its sizes known.
struct KernelCall {
  uint32_t kernel = 0;
  std::span<void* const> args;
  std::array<int64_t, 3> grid = {1, 1, 1};  // CUDA
  int64_t work = 0;                         // CPU
  int64_t grain = 1;
  std::span<const MappedMatrix> maps = {};  // CUDA
  uint32_t resident = 0;  // CUDA: the most blocks along the first size, for each multiprocessor
  const TilesByRows* tiles = nullptr;  // CUDA: of a kernel with several
  /// CUDA: no launch stands where the plan has the one before, whose wait this one may count on.
  bool behind_skipped = false;
};

/// Launches of a queue between begin() and end() are recorded, not run. The graph that comes out
/// can be replayed on any stream, one run at a time, as long as the memory that the launches were
/// given stays.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// Whether the caller is recording this stream.
  virtual bool is_capturing(void* stream) const = 0;
  /// Begins on the queue's own stream. Errors: device.
  virtual Result<void> begin() = 0;
  /// Errors: device; the stream is free after them too.
  virtual Result<void*> end() = 0;
  virtual Result<void> replay(void* stream, void* graph) = 0;
  /// A graph in flight is freed when it is done.
  virtual void drop(void* graph) = 0;
};

/// Profiles (profile.h) of a queue.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  /// A point of time after the work enqueued so far.
  virtual Result<void> mark(void* stream) = 0;
  /// The milliseconds from each point to the next; waits and forgets them.
  virtual Result<void> marked(std::vector<double>& ms) = 0;
  /// Work that follows does not start before open_gate(). Where the host runs the work itself there
  /// is no gate.
  virtual Result<void> close_gate(void* /*stream*/) { return {}; }
  virtual void open_gate() {}
  /// A copy within the device, by all its threads: what memory allows.
  virtual Result<void> copy(void* stream, void* to, const void* from, size_t bytes) = 0;
};

/// The order of work of one executor. `stream` is the caller's CUstream, or own_stream(); ignored
/// on the CPU.
class Queue {
 public:
  virtual ~Queue() = default;

  /// Memory of the device, aligned to 256 bytes. `what` is for the message. Errors: memory.
  virtual Result<void*> allocate(size_t bytes, const char* what) = 0;
  /// Gives it back, after work that may use it. Null is allowed.
  virtual void release(void* memory) = 0;

  /// Memory of the host that the device reads and writes by itself; null where there is none: any
  /// memory serves then.
  virtual void* allocate_host(size_t /*bytes*/) { return nullptr; }
  virtual void release_host(void*) {}

  /// Makes a product ready; the handle stays valid until the next trim(). Errors: unsupported,
  /// device.
  virtual Result<size_t> prepare_matmul(const MatmulShape& shape) = 0;
  /// Forgets products that a device keeps elsewhere, or that are very many. Called before a series
  /// of prepare_matmul.
  virtual void trim() = 0;
  /// Algorithms that a product may run by: several where it was timed by this queue, the library's
  /// own choice first.
  virtual size_t offers(size_t /*handle*/) const { return 1; }
  /// From the next matmul() on. Returns the one before.
  virtual size_t take_offer(size_t /*handle*/, size_t /*offer*/) { return 0; }
  /// The cache keeps the one that was taken last, and there are no others from then on.
  virtual void keep_offer(size_t /*handle*/) {}

  /// Starts a run: sizes, then the addresses of all inputs and outputs.
  virtual Result<void> begin(void* stream, std::span<const int64_t> values) = 0;
  virtual Result<void> launch(void* stream, const KernelCall& call) = 0;
  virtual Result<void> matmul(void* stream, size_t handle, const MatmulOperands& operands) = 0;

  virtual Result<void> copy_in(void* stream, void* to, const void* from, size_t bytes) = 0;
  virtual Result<void> copy_out(void* stream, void* to, const void* from, size_t bytes) = 0;
  /// For all that is enqueued.
  virtual Result<void> wait() = 0;

  /// Null where launches cannot be captured.
  virtual Recorder* recorder() { return nullptr; }
  virtual Stopwatch& stopwatch() = 0;

  /// Device allocations made so far.
  virtual uint64_t allocations() const { return 0; }

  /// The work enqueued so far on our stream is a run, which wait_run() of this side, 0 or 1, waits
  /// for: others may follow meanwhile.
  virtual Result<void> end_run(size_t /*side*/) { return {}; }
  virtual Result<void> wait_run(size_t /*side*/) { return {}; }
  /// The flags, which are cleared: as they were at the end of the run of that side if it was waited
  /// for and nothing has begun since, else as they are after all work.
  virtual Result<void> take_flags(std::span<uint32_t> flags, size_t side) = 0;
  /// Waits, and copies the sizes of the run: those that its launches made are what they made.
  virtual Result<void> read_sizes(std::span<int64_t> sizes) = 0;
  /// What a kernel gets for graph input or output `i` in place of its address; null: the address
  /// itself.
  virtual void* io_slot(size_t i) const = 0;
  virtual void* own_stream() const = 0;
};

/// A piece of the device's memory, and its place in memory of the host.
struct HostPiece {
  void* device = nullptr;
  void* host = nullptr;
  size_t bytes = 0;
};

/// Code and weights on a device.
class Backend {
 public:
  virtual ~Backend() = default;
  /// "NVIDIA H200", "cpu".
  virtual const std::string& device_name() const = 0;
  /// True if kernels work on host memory.
  virtual bool on_host() const = 0;
  /// Memory of the device for a caller, aligned to 256 bytes. Errors: memory.
  virtual Result<void*> allocate(size_t bytes) const = 0;
  virtual void release(void* memory) const = 0;
  /// Memory of the host that is copied to and from the device as fast as may be. Errors: memory.
  virtual Result<void*> allocate_host(size_t bytes) const { return allocate(bytes); }
  virtual void release_host(void* memory) const { release(memory); }
  /// Copies to the host or from there, and waits for it. Errors: device.
  virtual Result<void> copy(std::span<const HostPiece> pieces, bool to_host) const = 0;
  /// Memory that is free there now; 0: not known.
  virtual size_t free_bytes() const = 0;
  /// Address of the weights section as kernels see it.
  virtual const std::byte* weights() const = 0;
  virtual Result<std::unique_ptr<Queue>> queue() const = 0;
  /// Pieces of code given to the driver so far.
  virtual uint64_t modules_loaded() const { return 0; }
  /// Writes what was timed to LoadOptions::timing_cache. Errors: io.
  virtual Result<void> save_timings() const { return {}; }
  /// Multiprocessors of a GPU.
  virtual int64_t processors() const { return 1; }
  /// What was measured on this device; null: nothing is.
  virtual TimingCache* timings() const { return nullptr; }
};

/// What a backend is made from. Everything outlives the backend.
struct BackendSource {
  const Artifact& artifact;
  const Manifest& manifest;
  const Target& target;
  const LoadOptions& options;
  const std::string& name;  // of the file, for messages
  const class Backend* weights_of =
      nullptr;  // on the same device, which has the weights already and lives longer; or null
};

/// Errors: device (plug-in missing, code refused), bad_file (kernel missing), io.
Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendSource& source);
/// Errors: device (no driver, library or memory), bad_file.
Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendSource& source, int device);

/// A GPU as target choice sees it.
struct GpuInfo {
  std::string name;
  int major = 0;
  int minor = 0;
  int driver = 0;  // e.g. 13000
};

/// Asks the driver. Errors: device (built without CUDA, no driver, no such GPU), with the way out.
Result<GpuInfo> query_gpu(int device);

}  // namespace tfcc::runtime

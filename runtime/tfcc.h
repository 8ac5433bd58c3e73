// SPDX-License-Identifier: Apache-2.0
// The C++ API of the tfcc runtime: load a .tfcc file, make an executor, run it. Needs the standard
// library alone.
//
//     auto model = tfcc::Model::load("model.tfcc");                       // immutable, shared between threads
//     auto executor = model->executor();                                  // one per thread and stream
//     executor->set("input_ids", {ids, tfcc::DType::i64, {batch, length}});
//     executor->set("attention_mask", {mask, tfcc::DType::i64, {batch, length}});
//     executor->run();                                                    // host memory in and out
//     tfcc::Tensor out = *executor->output("last_hidden_state");
//
// No function throws or prints. Every failure is an Error: what it is about, where, and the way
// out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/result.h"
#include "runtime/input_role.h"
#include "runtime/size_role.h"

/// Marks what libtfcc.so exports; its other symbols are hidden.
#define TFCC_API __attribute__((visibility("default")))

namespace tfcc {
inline namespace v1 {

/// One dim of an input or output: a number, or a range with the expression that gives it.
struct DimInfo {
  std::string text;                // "768", "batch_size", "batch_size*12"
  int64_t min = 0;                 // smallest and largest size accepted; equal if fixed
  int64_t max = 0;                 // 0: no limit
  SizeRole role = SizeRole::none;  // what it counts, where it is one size
};

/// Name, type and dims of a graph input or output.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<DimInfo> dims;
  bool state =
      false;  ///< an input that a run changes in place: a cache. Device memory of it is aligned to 16 bytes
  InputRole role = InputRole::none;  ///< what an input says, as far as the compiler was told
};

/// Where a tensor's memory is.
enum class Place { host, device };

/// A tensor in the caller's memory: row-major, dense, aligned to its element size. Not owned.
struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  Place place = Place::host;
};

/// A tensor read back: memory owned by the executor, valid until its next run.
struct Tensor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  size_t bytes = 0;
};

/// Receives what the library would otherwise print: one line, without newline.
using LogSink = std::function<void(std::string_view line)>;

/// The most threads that a run may have.
inline constexpr int kMaxThreads = 4096;

/// What a profiler calls a range: push() opens one on the calling thread, pop() closes the last.
/// runtime/nvtx.h has those of NVTX.
struct RangeHooks {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};

struct LoadOptions {
  std::string device =
      "auto";       // "auto" (a GPU that the file has code for, else cpu), "cpu", "cuda", "cuda:1"
  int threads = 0;  // CPU: threads of a run, at most kMaxThreads; 0 is one per physical core
  bool verify_weights = false;  // also check the checksums of all weights
  std::string code_dir;         // CPU: where to put the code if memory files may not be executed
  std::string
      timing_cache;  // CUDA: a file of measured algorithms of products (docs/timing-cache.md); it may be absent
  bool tune = false;  // CUDA: prepare() times products that it lacks, and writes it
  bool graphs =
      true;  // CUDA: replay captured launches; false: launch one by one (needs less memory)
  RangeHooks
      ranges;  // around each run, and in it around each launch, as the host enqueues them: captured ones once
  LogSink log;  // may be called by any thread that uses the model
  bool in_memory =
      false;  // read the file into memory in place of mapping it: it may change afterwards
  size_t cache_bytes =
      size_t{64}
      << 20;  // most memory for what executors keep of shapes seen before, all of a model together
};

/// Sizes for Executor::prepare, by input name.
using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// What an executor has done since it was made.
struct ExecutorStats {
  uint64_t graphs_made = 0;         // CUDA graphs captured, again after the arena moved
  uint64_t device_allocations = 0;  // of GPU memory
  uint64_t modules_loaded = 0;      // pieces of GPU code loaded
  uint64_t plain_runs = 0;          // runs by launches one by one
  uint64_t graph_runs = 0;          // runs by a captured graph
};

class Executor;
struct ExecutorAccess;

/// Memory on a model's device, aligned to 256 bytes; what is in it at first is not said. Given back
/// with the object.
class Memory {
 public:
  TFCC_API Memory(Memory&&) noexcept;
  TFCC_API Memory& operator=(Memory&&) noexcept;
  TFCC_API ~Memory();
  /// An address of `place`, for Executor::set().
  TFCC_API void* data() const;
  TFCC_API size_t bytes() const;
  TFCC_API Place place() const;

  /// Bytes from `offset` on, and their place in memory of the host.
  struct Piece {
    size_t offset = 0;
    void* host = nullptr;
    size_t bytes = 0;
  };
  /// Copies pieces to the host, or from there, and returns when all are there. Runs that use them
  /// must have finished. Errors: invalid_argument (a piece passes the end), device.
  TFCC_API Result<void> read(std::span<const Piece> pieces) const;
  TFCC_API Result<void> write(std::span<const Piece> pieces);

 private:
  friend class Model;
  struct Impl;
  explicit Memory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A loaded file: weights and code of one target, mapped or on the device. Cheap to copy, safe to
/// share.
class Model {
 public:
  /// Loads a file, verifies header, manifest and code, and uploads the weights. On the CPU the
  /// weights stay in the mapped file, which must not be changed in place while the model lives
  /// (replacing or removing it is fine), or `in_memory`.
  /// Errors: invalid_argument (options), io, bad_file, device (no usable target or driver, and what
  /// would help), memory.
  TFCC_API static Result<Model> load(const std::string& path, const LoadOptions& options = {});
  /// The same from memory, which must stay valid as long as the model; with `in_memory` it is
  /// copied.
  TFCC_API static Result<Model> load(std::span<const std::byte> file,
                                     const LoadOptions& options = {});

  TFCC_API const std::vector<TensorInfo>& inputs() const;
  TFCC_API const std::vector<TensorInfo>& outputs() const;
  /// Name of the target that runs: "sm_90", "compute_80", "x86-64-v4".
  TFCC_API const std::string& target() const;
  /// What it runs on: "NVIDIA H200", "cpu".
  TFCC_API const std::string& device() const;

  /// A file that was kept with the model (`tfcc compile --tokenizer`): "tokenizer.json". Errors:
  /// invalid_argument (the file holds none of that name), bad_file (the checksum differs).
  TFCC_API Result<std::string> attachment(std::string_view name) const;

  /// The other program of a decoder's file, on the same device and with the same weights: a step
  /// over tokens of any sequences, with keys and values in pages (docs/generate.md; Generator runs
  /// it). Errors: unsupported (there is none, and why), bad_file, memory, device.
  TFCC_API Result<Model> generation() const;
  /// Whether the file has that program alone (`tfcc compile --generate-only`): inputs(), outputs()
  /// and executor() are its own, and generation() is this model.
  TFCC_API bool generation_alone() const;

  /// The program that takes tokens without padding, on the same device and with the same weights
  /// (`tfcc compile --ragged`, docs/ragged.md). It has no mask; inputs and outputs that are [batch,
  /// length, ..] in this model are [tokens, ..], sequence after sequence, and cu_seqlens [batch + 1]
  /// says where each ends. Errors: unsupported (there is none, and why), bad_file, memory, device.
  TFCC_API Result<Model> ragged() const;

  /// Memory for inputs that runs change, as caches are. Errors: memory, device.
  TFCC_API Result<Memory> allocate(size_t bytes) const;
  /// Memory of the host for Memory::read() and write(), page-locked where there is a GPU: copies are
  /// as fast as they can be. Errors: memory.
  TFCC_API Result<Memory> allocate_host(size_t bytes) const;
  /// Bytes that are free on the device now; 0 where that is not known.
  TFCC_API size_t free_bytes() const;

  /// A new executor with its own arena. Errors: memory, device.
  TFCC_API Result<Executor> executor() const;

  struct Impl;
  explicit Model(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Runs a model. One executor per thread (and stream): while one call is under way, a second to the
/// same executor is an error (invalid_argument) and does nothing. workspace_bytes(), stats() and
/// arena_bytes() may be called at any time.
class Executor {
 public:
  TFCC_API Executor(Executor&&) noexcept;
  TFCC_API Executor& operator=(Executor&&) noexcept;
  TFCC_API ~Executor();

  /// Gives an input, or the memory an output is written to (optional for run()). Keeps the pointer,
  /// copies nothing. Where an output is an input, as some graphs have it, the name means the input;
  /// on the device both are this memory.
  /// Errors: invalid_argument (unknown name, wrong dtype), shape (wrong rank or fixed dim).
  TFCC_API Result<void> set(std::string_view name, const TensorRef& tensor);
  /// Of a model without padding (Model::ragged()): tokens [T,..] of all sequences, one sequence after
  /// the other, and where each ends: cu_seqlens is 0, then the running sum of their lengths, and is
  /// copied. Inputs over tokens have the same sequences; those set first may be set without them.
  /// Errors: as set(); shape (a number falls, a sequence has no token or too many, there are too many
  /// sequences or tokens; names the numbers); unsupported (the model is not without padding).
  TFCC_API Result<void> set(std::string_view name, const TensorRef& tokens,
                            std::span<const int64_t> cu_seqlens);
  /// The same of whole numbers in pieces, a piece for each sequence; copies them.
  TFCC_API Result<void> set(std::string_view name,
                            std::span<const std::span<const int64_t>> sequences);
  /// Forgets the memory given for an input or output. Errors: invalid_argument (unknown name).
  TFCC_API Result<void> clear(std::string_view name);

  /// Makes everything ready for these shapes, so that a run with them allocates nothing. Results of
  /// the last run are gone. Errors: invalid_argument (a run is under way), shape, memory.
  TFCC_API Result<void> prepare(const Shapes& shapes);
  /// The same for these shapes and all smaller ones: on CUDA captures the launches of every bucket
  /// of shapes, so that later runs, of any shape, allocate and capture nothing. A bucket is some
  /// 100 KB on the device. No shapes: the largest that the file was compiled for (--max-batch,
  /// --max-tokens, --seq-buckets, --maxShapes).
  TFCC_API Result<void> prepare_all(const Shapes& largest = {});
  /// Arena bytes that these shapes need; captured launches use those of the bucket's largest shape.
  TFCC_API Result<size_t> workspace_bytes(const Shapes& shapes) const;

  /// Host tensors in and out; returns when the results are there. Errors: invalid_argument (missing
  /// input, value out of range), shape, memory, device.
  TFCC_API Result<void> run();

  /// The first half of run(): on a GPU it returns once host tensors that were set may be changed
  /// (page-locked ones that do not fit 1 MiB together, and states, after finish() alone), and the device works on. Two runs may be under way; they are computed in the order in which
  /// they began. Errors: as run(); invalid_argument (two are under way).
  TFCC_API Result<void> start();
  /// The second half: waits for the run that began first. output() and status() are about it, its
  /// results in memory of the executor until two more have begun or prepare() is called. Errors: as run();
  /// invalid_argument (none is under way).
  TFCC_API Result<void> finish();
  /// The next run has for `input` what the one begun last gives as `output`, which may be under way
  /// still; for one run. Errors: invalid_argument (there was no run, the output goes to memory that
  /// was set, other types), shape.
  TFCC_API Result<void> feed_back(std::string_view output, std::string_view input);

  /// Launches on the caller's stream (a CUstream or cudaStream_t) with device memory set for every
  /// input and output, and returns at once. Afterwards output shapes are known. Errors: as run();
  /// unsupported on the CPU.
  TFCC_API Result<void> enqueue(void* stream);

  /// Shape of an output for the inputs set so far.
  TFCC_API Result<std::vector<int64_t>> output_shape(std::string_view name) const;
  /// An output of the last run(), in host memory.
  TFCC_API Result<Tensor> output(std::string_view name) const;
  /// The memory of it alone, which takes no allocation.
  TFCC_API Result<const void*> output_data(std::string_view name) const;

  /// What the kernels flagged since the last call, e.g. ids that were clamped; waits for the
  /// device.
  TFCC_API Result<void> status();

  /// Counters, for tests and monitoring.
  TFCC_API ExecutorStats stats() const;
  /// Bytes of the arena held now.
  TFCC_API size_t arena_bytes() const;

  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);

 private:
  friend struct ExecutorAccess;  // the library's own profiler
  std::unique_ptr<Impl> impl_;
};

}  // namespace v1
}  // namespace tfcc

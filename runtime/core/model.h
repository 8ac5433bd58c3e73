// SPDX-License-Identifier: Apache-2.0
// Inside of a loaded model: what Model and Executor share. Internal to the runtime.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/artifact.h"
#include "runtime/core/backend.h"
#include "runtime/core/manifest.h"
#include "runtime/tfcc.h"

namespace tfcc {

namespace runtime {

/// The bytes of a file, mapped for reading or in memory of our own.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();
  /// Errors: io.
  static Result<MappedFile> open(const std::string& path);
  /// Reads the file into memory. Errors: io, memory.
  static Result<MappedFile> read(const std::string& path);
  /// Errors: memory.
  static Result<MappedFile> copy(std::span<const std::byte> bytes, const std::string& name);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Which target of a file runs here, and on which GPU if it is one.
struct Choice {
  const Target* target = nullptr;
  int gpu = -1;      // -1: the CPU
  std::string note;  // for the log: why it is slower than it could be; empty if it is not
};

/// "sm_90" is {9, 0}, "compute_80" {8, 0, ptx}; an 'a' behind it binds the code to that very
/// device.
struct CudaTarget {
  int major = 0;
  int minor = 0;
  bool ptx = false;
  bool exact = false;
};
std::optional<CudaTarget> parse_cuda_target(const std::string& name);

/// The best target for a GPU, or null.
const Target* best_for_gpu(const Manifest& manifest, const GpuInfo& gpu);
/// The target of the highest level that this CPU supports, or null.
const Target* best_for_cpu(const Manifest& manifest);

/// Chooses by LoadOptions::device. Errors: invalid_argument (no such device name), device (naming
/// what the file has and what this machine has).
Result<Choice> choose_target(const Manifest& manifest, const std::string& device,
                             const std::string& name);

}  // namespace runtime

inline namespace v1 {

struct Model::Impl {
  ~Impl();
  /// A GPU is known to the process alone that loaded the model, not to its children after fork().
  /// Errors: device.
  Result<void> here() const;

  std::string name;  // of the file, for messages
  LoadOptions options;
  const pid_t process = getpid();
  mutable std::atomic<size_t> graph_bytes{0};  // of the captured graphs of all executors
  std::shared_ptr<const Impl>
      file;  // of a program for generation: what it is a part of; null: this is the file
  runtime::MappedFile map;  // empty if loaded from the caller's memory
  runtime::Artifact artifact;
  runtime::Manifest manifest;
  runtime::Choice choice;
  const runtime::Target* target = nullptr;
  const runtime::Plan* plan = nullptr;
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::unique_ptr<runtime::Backend> backend;  // last: it uses all of the above
};

}  // namespace v1
}  // namespace tfcc

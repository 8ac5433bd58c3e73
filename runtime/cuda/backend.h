// SPDX-License-Identifier: Apache-2.0
// Code and weights of a model on one GPU: one module per kernel, weights in one allocation.
// Included only where TFCC_CUDA is defined.
#pragma once

#include "runtime/core/backend.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/matmul_cublaslt.h"

namespace tfcc::runtime {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaDriver& cuda) : cuda_(cuda) {}
  ~CudaBackend() override;
  static Result<std::unique_ptr<Backend>> make(const BackendSource& source, int device);

  const std::string& device_name() const override { return name_; }
  bool on_host() const override { return false; }
  Result<void*> allocate(size_t bytes) const override;
  void release(void* memory) const override;
  Result<void*> allocate_host(size_t bytes) const override;
  void release_host(void* memory) const override;
  Result<void> copy(std::span<const HostPiece> pieces, bool to_host) const override;
  size_t free_bytes() const override;
  const std::byte* weights() const override { return reinterpret_cast<const std::byte*>(weights_); }
  Result<std::unique_ptr<Queue>> queue() const override;
  uint64_t modules_loaded() const override { return modules_.size(); }
  Result<void> save_timings() const override {
    if (!timings_.tune || timings_.cache->added() == 0) return {};
    return timings_.cache->save(timing_file_);
  }
  int64_t processors() const override { return processors_; }
  TimingCache* timings() const override { return timings_.cache; }

 private:
  friend class CudaQueue;
  Result<void> upload_weights(const BackendSource& source);
  Result<void> load_kernels(const BackendSource& source);
  Result<void> load_timings(const BackendSource& source);
  Result<CUmodule> load_module(const BackendSource& source, const Kernel& kernel,
                               const Image& image);
  Result<void> check_memory(CUdeviceptr* p, size_t bytes, const std::string& what) const;

  const CudaDriver& cuda_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  CUdeviceptr weights_ = 0;
  bool owns_weights_ = true;
  std::vector<CUmodule> modules_;
  std::vector<CUfunction> kernels_;
  TimingCache timing_cache_;
  MatmulTimings timings_;
  std::string timing_file_;
  const Plan* plan_ = nullptr;
  size_t symbols_ = 0;
  size_t ports_ = 0;
  size_t flags_ = 0;
  uint32_t processors_ = 0;    // multiprocessors
  bool starts_early_ = false;  // the GPU can start launches before the one before them has ended
};

}  // namespace tfcc::runtime

// SPDX-License-Identifier: Apache-2.0
// Code and weights of a model on a GPU, and what there is to know of one, by the driver API. The
// launches are queue.cpp.
#include "runtime/core/backend.h"

#ifndef TFCC_CUDA

namespace tfcc::runtime {
namespace {
Error not_built() {
  return {
      ErrorCode::device,
      "this tfcc was built without CUDA; build it where the CUDA headers are, or use device cpu"};
}
}  // namespace

Result<GpuInfo> query_gpu(int) { return not_built(); }
Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendSource&, int) {
  return not_built();
}

}  // namespace tfcc::runtime

#else

#include <algorithm>
#include <cctype>
#include <map>

#include "runtime/cuda/backend.h"
#include "runtime/cuda/context.h"

namespace tfcc::runtime {
namespace {

constexpr uint32_t kPlainSharedBytes = 48 * 1024;  // more must be asked for

// 90 of "sm_90", "compute_90" or "sm_90a".
int capability(const std::string& target) {
  int value = 0;
  for (size_t at = target.find('_') + 1; at < target.size() && std::isdigit(target[at]); ++at) {
    value = value * 10 + (target[at] - '0');
  }
  return value;
}

bool uses_products(const Plan& plan) {
  for (const Bucket& b : plan.buckets) {
    for (const Launch& l : b.launches) {
      if (l.matmul) return true;
    }
  }
  return false;
}

}  // namespace

CudaBackend::~CudaBackend() {
  if (context_ == nullptr) return;
  {
    Current current(cuda_, context_);
    synchronize(cuda_);
    for (CUmodule m : modules_) cuda_.cuModuleUnload(m);
    if (weights_ != 0 && owns_weights_) cuda_.cuMemFree(weights_);
  }
  cuda_.cuDevicePrimaryCtxRelease(device_);
}

Result<void> CudaBackend::check_memory(CUdeviceptr* p, size_t bytes,
                                       const std::string& what) const {
  CUresult code = cuda_.cuMemAlloc(p, bytes);
  if (code == CUDA_SUCCESS) return {};
  if (code != CUDA_ERROR_OUT_OF_MEMORY) return failure(cuda_, what.c_str(), code);
  size_t free_bytes = 0, total = 0;
  cuda_.cuMemGetInfo(&free_bytes, &total);
  return Error{ErrorCode::memory, name_ + ": no memory for " + what + ": " + std::to_string(bytes) +
                                      " bytes needed, " + std::to_string(free_bytes) +
                                      " free; use smaller shapes or free the GPU"};
}

Result<void*> CudaBackend::allocate(size_t bytes) const {
  Current current(cuda_, context_);
  CUdeviceptr p = 0;
  TFCC_TRY_VOID(check_memory(&p, std::max<size_t>(bytes, 1), "memory of the caller's"));
  return reinterpret_cast<void*>(p);
}

void CudaBackend::release(void* memory) const {
  Current current(cuda_, context_);
  synchronize(cuda_);
  cuda_.cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
}

Result<void*> CudaBackend::allocate_host(size_t bytes) const {
  Current current(cuda_, context_);
  void* p = nullptr;
  if (cuda_.cuMemAllocHost(&p, std::max<size_t>(bytes, 1)) == CUDA_SUCCESS) return p;
  return Error{ErrorCode::memory, name_ + ": no page-locked memory of the host for " +
                                      std::to_string(bytes) + " bytes; ask for less"};
}

void CudaBackend::release_host(void* memory) const {
  Current current(cuda_, context_);
  cuda_.cuMemFreeHost(memory);
}

// On a stream of this thread's: what runs on others goes on.
Result<void> CudaBackend::copy(std::span<const HostPiece> pieces, bool to_host) const {
  Current current(cuda_, context_);
  const auto copied = [&]() -> Result<void> {
    for (const HostPiece& p : pieces) {
      const auto device = reinterpret_cast<CUdeviceptr>(p.device);
      TFCC_CU(cuda_, to_host ? "copy from the GPU" : "copy to the GPU",
              to_host ? cuda_.cuMemcpyDtoHAsync(p.host, device, p.bytes, CU_STREAM_PER_THREAD)
                      : cuda_.cuMemcpyHtoDAsync(device, p.host, p.bytes, CU_STREAM_PER_THREAD));
    }
    return {};
  }();
  // After an error too: what was begun may still use the host's memory.
  const CUresult waited = cuda_.cuStreamSynchronize(CU_STREAM_PER_THREAD);
  if (!copied) return copied;
  TFCC_CU(cuda_, "copies", waited);
  return {};
}

size_t CudaBackend::free_bytes() const {
  Current current(cuda_, context_);
  size_t free_bytes = 0, total = 0;
  return cuda_.cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : 0;
}

Result<void> CudaBackend::upload_weights(const BackendSource& s) {
  if (s.weights_of) {
    owns_weights_ = false;
    weights_ = reinterpret_cast<CUdeviceptr>(s.weights_of->weights());
    return {};
  }
  const Section* section = s.artifact.find(SectionKind::weights);
  if (section == nullptr || section->size == 0) return {};
  TFCC_TRY_VOID(check_memory(&weights_, section->size, "the weights"));
  TFCC_CU(cuda_, "upload of the weights",
          cuda_.cuMemcpyHtoD(weights_, s.artifact.bytes(*section).data(), section->size));
  return {};
}

// A cubin is complete in itself; PTX is text that must end in NUL and is compiled here by the
// driver.
Result<CUmodule> CudaBackend::load_module(const BackendSource& s, const Kernel& kernel,
                                          const Image& image) {
  auto section = s.artifact.bytes(s.artifact.sections[s.target.section]);
  auto bytes = section.subspan(image.offset, image.size);
  std::string text;
  const void* data = bytes.data();
  if (s.target.name.starts_with("compute_")) {
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    data = text.c_str();
  }
  char log[1024] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  CUresult code = cuda_.cuModuleLoadDataEx(&module, data, 2, options, values);
  if (code == CUDA_SUCCESS) return module;
  log[sizeof log - 1] = '\0';
  std::string first_line(log, std::find(log, log + sizeof log - 1, '\n'));
  if (first_line.find('\0') != std::string::npos) first_line.resize(first_line.find('\0'));
  return Error{ErrorCode::device, s.name + ": kernel '" + kernel.name + "' for " + s.target.name +
                                      " does not load on " + name_ + ": " + cuda_.text(code) +
                                      (first_line.empty() ? "" : " (" + first_line + ")") +
                                      "; update the NVIDIA driver or compile for this GPU"};
}

Result<void> CudaBackend::load_kernels(const BackendSource& s) {
  std::map<uint64_t, CUmodule> by_offset;  // kernels may share an image
  for (size_t i = 0; i < plan_->kernels.size(); ++i) {
    const Kernel& kernel = plan_->kernels[i];
    CUmodule& module = by_offset[s.target.images[i].offset];
    if (module == nullptr) {
      TFCC_TRY(module, load_module(s, kernel, s.target.images[i]));
      modules_.push_back(module);
    }
    CUfunction function = nullptr;
    if (cuda_.cuModuleGetFunction(&function, module, kernel.name.c_str()) != CUDA_SUCCESS) {
      return Error{ErrorCode::bad_file, s.name + ": kernel '" + kernel.name + "' is not in its " +
                                            s.target.name + " code; compile the model again"};
    }
    if (kernel.shared_bytes > kPlainSharedBytes) {
      std::string what = "shared memory of kernel '" + kernel.name + "'";
      TFCC_CU(cuda_, what.c_str(),
              cuda_.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       static_cast<int>(kernel.shared_bytes)));
    }
    kernels_.push_back(function);
  }
  return {};
}

// Those of the file first: a cache beside it is younger.
Result<void> CudaBackend::load_timings(const BackendSource& s) {
  timings_ = {&timing_cache_, name_, s.options.tune};
  timing_file_ = s.options.timing_cache;
  if (s.options.tune && timing_file_.empty()) {
    return Error{ErrorCode::invalid_argument,
                 "tuning needs a file to write; set LoadOptions::timing_cache"};
  }
  const Section* section = s.artifact.find(SectionKind::text);
  for (const Text& t : s.manifest.texts) {
    if (t.name != kTimingText || section == nullptr) continue;
    TFCC_TRY_VOID(verify_section(s.artifact, *section, s.name));
    const auto bytes = s.artifact.bytes(*section).subspan(t.offset, t.size);
    timing_cache_.read({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return timing_file_.empty() ? Result<void>() : timing_cache_.load(timing_file_);
}

Result<std::unique_ptr<Backend>> CudaBackend::make(const BackendSource& s, int index) {
  TFCC_TRY(const CudaDriver* cuda, cuda_driver());
  TFCC_TRY(GpuInfo info, query_gpu(index));
  auto backend = std::make_unique<CudaBackend>(*cuda);
  backend->name_ = info.name;
  backend->plan_ = &s.manifest.plans[s.target.plan];
  backend->symbols_ = s.manifest.symbols.size();
  backend->ports_ = s.manifest.inputs.size() + s.manifest.outputs.size();
  backend->flags_ = s.manifest.flags.size();
  // Found missing at load, not in the first run.
  if (uses_products(*backend->plan_)) {
    if (auto lt = cublaslt(); !lt) return lt.error();
  }
  TFCC_CU(*cuda, "find the GPU", cuda->cuDeviceGet(&backend->device_, index));
  TFCC_CU(*cuda, "start the GPU",
          cuda->cuDevicePrimaryCtxRetain(&backend->context_, backend->device_));
  int processors = 0;
  TFCC_CU(*cuda, "ask the GPU",
          cuda->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                     backend->device_));
  backend->processors_ = static_cast<uint32_t>(processors);
  // Kernels that start early can wait in code for capability 9.0 and later.
  backend->starts_early_ = capability(s.target.name) >= 90;
  Current current(*cuda, backend->context_);
  TFCC_TRY_VOID(backend->load_timings(s));
  TFCC_TRY_VOID(backend->load_kernels(s));
  TFCC_TRY_VOID(backend->upload_weights(s));
  return std::unique_ptr<Backend>(std::move(backend));
}

Result<GpuInfo> query_gpu(int index) {
  if (index < 0) return Error{ErrorCode::invalid_argument, "a GPU has a number of 0 or more"};
  TFCC_TRY(const CudaDriver* cuda, cuda_driver());
  int count = 0;
  TFCC_CU(*cuda, "count the GPUs", cuda->cuDeviceGetCount(&count));
  if (index >= count) {
    return Error{ErrorCode::device, "there is no GPU " + std::to_string(index) +
                                        ", this machine has " + std::to_string(count) +
                                        "; choose another with cuda:N, or use device cpu"};
  }
  GpuInfo info;
  CUdevice device = 0;
  char name[256] = "";
  TFCC_CU(*cuda, "find the GPU", cuda->cuDeviceGet(&device, index));
  TFCC_CU(*cuda, "ask the GPU", cuda->cuDeviceGetName(name, sizeof name, device));
  TFCC_CU(*cuda, "ask the GPU",
          cuda->cuDeviceGetAttribute(&info.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                     device));
  TFCC_CU(*cuda, "ask the GPU",
          cuda->cuDeviceGetAttribute(&info.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                     device));
  TFCC_CU(*cuda, "ask the driver", cuda->cuDriverGetVersion(&info.driver));
  info.name = name;
  return info;
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendSource& source, int device) {
  return CudaBackend::make(source, device);
}

}  // namespace tfcc::runtime

#endif

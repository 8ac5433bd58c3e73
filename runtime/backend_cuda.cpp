// SPDX-License-Identifier: Apache-2.0
// The CUDA backend on the driver API: one module per kernel, weights in one allocation, launches on
// any stream.
#include "runtime/backend.h"

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
#include <mutex>

#include "runtime/cuda_driver.h"
#include "runtime/cuda_timer.h"
#include "runtime/gemm_cublaslt.h"

namespace tfcc::runtime {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;         // of cuBLASLt, per executor
constexpr uint32_t kPlainSharedBytes = 48 * 1024;            // more must be asked for

CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

Error failure(const CudaDriver& cuda, const char* what, CUresult code) {
  ErrorCode kind = code == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::memory : ErrorCode::device;
  return {kind, std::string("cuda: ") + what + ": " + cuda.text(code) +
                    "; check the GPU with nvidia-smi"};
}

#define TFCC_CU(cuda, what, ...)                                                    \
  if (CUresult cu_code = (__VA_ARGS__); cu_code != CUDA_SUCCESS) {                  \
    return failure(cuda, what, cu_code);                                            \
  }

// Makes the context current on the calling thread for a scope; the caller may have its own.
class Current {
 public:
  Current(const CudaDriver& cuda, CUcontext context) : cuda_(cuda) {
    cuda_.cuCtxPushCurrent(context);
  }
  ~Current() {
    CUcontext old = nullptr;
    cuda_.cuCtxPopCurrent(&old);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const CudaDriver& cuda_;
};

// A context must not be waited for while one of its streams is being captured, by whatever thread.
std::mutex& capture_mutex() {
  static std::mutex mutex;
  return mutex;
}

CUresult synchronize(const CudaDriver& cuda) {
  std::lock_guard lock(capture_mutex());
  return cuda.cuCtxSynchronize();
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaDriver& cuda) : cuda_(cuda) {}
  ~CudaBackend() override;
  static Result<std::unique_ptr<Backend>> make(const BackendSource& source, int device);

  const std::string& device_name() const override { return name_; }
  bool on_host() const override { return false; }
  const std::byte* weights() const override { return reinterpret_cast<const std::byte*>(weights_); }
  Result<std::unique_ptr<Queue>> queue() const override;
  uint64_t modules_loaded() const override { return modules_.size(); }
  Result<void> save_timings() const override {
    if (!timings_.tune || timings_.cache->added() == 0) return {};
    return timings_.cache->save(timing_file_);
  }

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
  std::vector<CUmodule> modules_;
  std::vector<CUfunction> kernels_;
  TimingCache timing_cache_;
  GemmTimings timings_;
  std::string timing_file_;
  const Plan* plan_ = nullptr;
  size_t symbols_ = 0;
  size_t ports_ = 0;
  size_t flags_ = 0;
  int64_t early_blocks_ = 0;                       // the largest grid that is started early
};

CudaBackend::~CudaBackend() {
  if (context_ == nullptr) return;
  {
    Current current(cuda_, context_);
    synchronize(cuda_);
    for (CUmodule m : modules_) cuda_.cuModuleUnload(m);
    if (weights_ != 0) cuda_.cuMemFree(weights_);
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

Result<void> CudaBackend::upload_weights(const BackendSource& s) {
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
  std::map<uint64_t, CUmodule> by_offset;          // kernels may share an image
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
    return Error{ErrorCode::invalid_argument, "tuning needs a file to write; set LoadOptions::timing_cache"};
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
      if (l.gemm) return true;
    }
  }
  return false;
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
  // Kernels that start early can wait in code for capability 9.0 and later. A grid that fills the GPU gains nothing: its
  // blocks only stand in the way of what still runs.
  if (capability(s.target.name) >= 90) {
    int processors = 0;
    TFCC_CU(*cuda, "ask the GPU",
            cuda->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                       backend->device_));
    backend->early_blocks_ = 2 * processors;
  }
  Current current(*cuda, backend->context_);
  TFCC_TRY_VOID(backend->load_timings(s));
  TFCC_TRY_VOID(backend->load_kernels(s));
  TFCC_TRY_VOID(backend->upload_weights(s));
  return std::unique_ptr<Backend>(std::move(backend));
}

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(const CudaBackend& backend) : b_(backend), cuda_(backend.cuda_) {}

  ~CudaQueue() override {
    Current current(cuda_, b_.context_);
    synchronize(cuda_);
    gemms_.reset();
    timer_.reset();
    for (CUdeviceptr p : {block_, workspace_}) {
      if (p != 0) cuda_.cuMemFree(p);
    }
    if (stream_ != nullptr) cuda_.cuStreamDestroy(stream_);
  }

  // One small allocation: the block of sizes and pointers, then the flags.
  Result<void> start() {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "a stream", cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    size_t bytes = block_bytes() + std::max<size_t>(b_.flags_, 1) * sizeof(uint32_t);
    TFCC_TRY_VOID(b_.check_memory(&block_, bytes, "the sizes"));
    ++allocations_;
    TFCC_CU(cuda_, "clear the flags", cuda_.cuMemsetD8(block_, 0, bytes));
    // The memset is on the null stream, which a non-blocking stream does not wait for.
    TFCC_CU(cuda_, "clear the flags", synchronize(cuda_));
    return {};
  }

  Result<void*> allocate(size_t bytes, const char* what) override {
    Current current(cuda_, b_.context_);
    CUdeviceptr p = 0;
    TFCC_TRY_VOID(b_.check_memory(&p, bytes, what));
    ++allocations_;
    return reinterpret_cast<void*>(p);
  }

  // Streams of the caller may still use it.
  void release(void* memory) override {
    if (memory == nullptr) return;
    Current current(cuda_, b_.context_);
    synchronize(cuda_);
    cuda_.cuMemFree(address(memory));
  }

  Result<size_t> prepare_gemm(const GemmShape& shape) override {
    Current current(cuda_, b_.context_);
    if (gemms_ == nullptr) {
      TFCC_TRY(gemms_, CublasLtGemms::make(b_.timings_));
      TFCC_TRY_VOID(b_.check_memory(&workspace_, kWorkspaceBytes, "the workspace of products"));
      ++allocations_;
    }
    // What is timed is waited for, and its memory given back.
    std::unique_lock<std::mutex> lock(capture_mutex(), std::defer_lock);
    if (b_.timings_.tune) lock.lock();
    return gemms_->prepare(shape, kWorkspaceBytes);
  }
  void trim() override {
    if (gemms_ != nullptr) gemms_->trim();
  }

  // `bind` takes the values as one struct by value, so that nothing of the host is read after the
  // call.
  Result<void> begin(void* stream, std::span<const int64_t> values) override {
    Current current(cuda_, b_.context_);
    void* params[] = {const_cast<int64_t*>(values.data()), &block_};
    return start_kernel(stream, b_.plan_->bind, {1, 1, 1}, params);
  }

  Result<void> launch(void* stream, const KernelCall& call) override {
    Current current(cuda_, b_.context_);
    CUdeviceptr flags = block_ + block_bytes();
    params_.clear();
    params_.push_back(&block_);
    params_.push_back(&flags);
    for (void* const& arg : call.args) params_.push_back(const_cast<void**>(&arg));
    return start_kernel(stream, call.kernel, call.grid, params_.data());
  }

  Result<void> gemm(void* stream, size_t handle, const GemmOperands& operands) override {
    Current current(cuda_, b_.context_);
    return gemms_->run(handle, operands, reinterpret_cast<void*>(workspace_), kWorkspaceBytes,
                       stream);
  }

  Result<void> copy_in(void* stream, void* to, const void* from, size_t bytes) override {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "copy to the GPU",
            cuda_.cuMemcpyHtoDAsync(address(to), from, bytes, static_cast<CUstream>(stream)));
    return {};
  }
  Result<void> copy_out(void* stream, void* to, const void* from, size_t bytes) override {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "copy from the GPU",
            cuda_.cuMemcpyDtoHAsync(to, address(from), bytes, static_cast<CUstream>(stream)));
    return {};
  }
  Result<void> fill_zero(void* stream, void* memory, size_t bytes) override {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "clear memory",
            cuda_.cuMemsetD8Async(address(memory), 0, bytes, static_cast<CUstream>(stream)));
    return {};
  }
  Result<void> wait() override {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "a kernel failed", cuda_.cuStreamSynchronize(stream_));
    return {};
  }

  bool can_capture() const override { return true; }
  bool is_capturing(void* stream) const override {
    Current current(cuda_, b_.context_);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult code = cuda_.cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
    return code != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  // Relaxed: a kernel of the library may be loaded by its first launch, which other modes refuse.
  Result<void> begin_capture() override {
    Current current(cuda_, b_.context_);
    std::unique_lock lock(capture_mutex());
    TFCC_CU(cuda_, "start of a capture",
            cuda_.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    capturing_ = std::move(lock);
    return {};
  }

  Result<void*> end_capture() override {
    Current current(cuda_, b_.context_);
    CUgraph graph = nullptr;
    CUgraphExec made = nullptr;
    CUresult code = cuda_.cuStreamEndCapture(stream_, &graph);
    capturing_ = {};
    TFCC_CU(cuda_, "end of a capture", code);
    code = cuda_.cuGraphInstantiateWithFlags(&made, graph, 0);
    cuda_.cuGraphDestroy(graph);
    TFCC_CU(cuda_, "a graph", code);
    if (const CUresult upload = cuda_.cuGraphUpload(made, stream_); upload != CUDA_SUCCESS) {
      cuda_.cuGraphExecDestroy(made);
      return failure(cuda_, "upload of a graph", upload);
    }
    return static_cast<void*>(made);
  }

  Result<void> replay(void* stream, void* graph) override {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "launch of a graph",
            cuda_.cuGraphLaunch(static_cast<CUgraphExec>(graph), static_cast<CUstream>(stream)));
    return {};
  }

  // A graph in flight is freed when it is done.
  void drop_graph(void* graph) override {
    Current current(cuda_, b_.context_);
    cuda_.cuGraphExecDestroy(static_cast<CUgraphExec>(graph));
  }

  uint64_t allocations() const override { return allocations_; }

  Result<void> mark(void* stream) override {
    Current current(cuda_, b_.context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->mark(static_cast<CUstream>(stream));
  }
  Result<void> marked(std::vector<double>& ms) override {
    Current current(cuda_, b_.context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->marked(ms);
  }
  Result<void> close_gate(void* stream) override {
    Current current(cuda_, b_.context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->close_gate(static_cast<CUstream>(stream));
  }
  void open_gate() override {
    if (timer_ != nullptr) timer_->open_gate();
  }
  Result<void> copy(void* stream, void* to, const void* from, size_t bytes) override {
    Current current(cuda_, b_.context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->copy(address(to), address(from), bytes, static_cast<CUstream>(stream));
  }

  // The caller's stream is not kept: it may be gone by now.
  Result<void> take_flags(std::span<uint32_t> flags) override {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "a kernel failed", synchronize(cuda_));
    if (flags.empty()) return {};
    CUdeviceptr from = block_ + block_bytes();
    TFCC_CU(cuda_, "read the flags", cuda_.cuMemcpyDtoH(flags.data(), from, flags.size_bytes()));
    TFCC_CU(cuda_, "clear the flags", cuda_.cuMemsetD8(from, 0, flags.size_bytes()));
    TFCC_CU(cuda_, "clear the flags", synchronize(cuda_));
    return {};
  }

  void* io_slot(size_t i) const override {
    return reinterpret_cast<void*>(block_ + (b_.symbols_ + i) * sizeof(int64_t));
  }
  void* own_stream() const override { return stream_; }

 private:
  Result<void> make_timer() {
    if (timer_ != nullptr) return {};
    TFCC_TRY(timer_, CudaTimer::make());
    return {};
  }
  size_t block_bytes() const { return (b_.symbols_ + b_.ports_) * sizeof(int64_t); }

  Result<void> start_kernel(void* stream, uint32_t kernel, const std::array<int64_t, 3>& grid,
                            void** params) {
    const Kernel& k = b_.plan_->kernels[kernel];
    CUlaunchAttribute early = {};
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {};
    config.gridDimX = static_cast<unsigned>(grid[0]);
    config.gridDimY = static_cast<unsigned>(grid[1]);
    config.gridDimZ = static_cast<unsigned>(grid[2]);
    config.blockDimX = k.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = k.shared_bytes;
    config.hStream = static_cast<CUstream>(stream);
    config.attrs = &early;
    config.numAttrs = k.starts_early && grid[0] * grid[1] * grid[2] <= b_.early_blocks_ ? 1 : 0;
    CUresult code = cuda_.cuLaunchKernelEx(&config, b_.kernels_[kernel], params, nullptr);
    if (code == CUDA_SUCCESS) return {};
    return failure(cuda_, ("launch of kernel '" + k.name + "'").c_str(), code);
  }

  const CudaBackend& b_;
  const CudaDriver& cuda_;
  CUstream stream_ = nullptr;
  CUdeviceptr block_ = 0;
  CUdeviceptr workspace_ = 0;
  uint64_t allocations_ = 0;
  std::unique_lock<std::mutex> capturing_;         // held from begin_capture() to end_capture()
  std::unique_ptr<CublasLtGemms> gemms_;
  std::unique_ptr<CudaTimer> timer_;               // made by the first profile
  std::vector<void*> params_;
};

Result<std::unique_ptr<Queue>> CudaBackend::queue() const {
  auto queue = std::make_unique<CudaQueue>(*this);
  TFCC_TRY_VOID(queue->start());
  return std::unique_ptr<Queue>(std::move(queue));
}

}  // namespace

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

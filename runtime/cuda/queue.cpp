// SPDX-License-Identifier: Apache-2.0
// The order of work of one executor on a GPU: launches, products, copies and captures on any
// stream.
#ifdef TFCC_CUDA

#include <algorithm>
#include <atomic>
#include <utility>

#include "runtime/core/tile_table.h"
#include "runtime/cuda/backend.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/timer.h"

namespace tfcc::runtime {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // of cuBLASLt, per executor

// CUDA graphs, captured on the queue's own stream.
class CudaRecorder final : public Recorder {
 public:
  CudaRecorder(const CudaDriver& cuda, CUcontext context, const CUstream& stream)
      : cuda_(cuda), context_(context), stream_(stream) {}

  bool is_capturing(void* stream) const override {
    Current current(cuda_, context_);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult code = cuda_.cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
    return code != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  // Relaxed: a kernel of the library may be loaded by its first launch, which other modes refuse.
  Result<void> begin() override {
    Current current(cuda_, context_);
    std::unique_lock lock(capture_mutex());
    TFCC_CU(cuda_, "start of a capture",
            cuda_.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    capturing_ = std::move(lock);
    return {};
  }

  Result<void*> end() override {
    Current current(cuda_, context_);
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
    Current current(cuda_, context_);
    TFCC_CU(cuda_, "launch of a graph",
            cuda_.cuGraphLaunch(static_cast<CUgraphExec>(graph), static_cast<CUstream>(stream)));
    return {};
  }

  // A graph in flight is freed when it is done.
  void drop(void* graph) override {
    Current current(cuda_, context_);
    cuda_.cuGraphExecDestroy(static_cast<CUgraphExec>(graph));
  }

 private:
  const CudaDriver& cuda_;
  CUcontext context_;
  const CUstream& stream_;                  // of the queue, made after this
  std::unique_lock<std::mutex> capturing_;  // held from begin() to end()
};

// Events of the stream that is timed.
class CudaStopwatch final : public Stopwatch {
 public:
  CudaStopwatch(const CudaDriver& cuda, CUcontext context) : cuda_(cuda), context_(context) {}
  ~CudaStopwatch() override {
    Current current(cuda_, context_);
    timer_.reset();
  }

  Result<void> mark(void* stream) override {
    Current current(cuda_, context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->mark(static_cast<CUstream>(stream));
  }
  Result<void> marked(std::vector<double>& ms) override {
    Current current(cuda_, context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->marked(ms);
  }
  Result<void> close_gate(void* stream) override {
    Current current(cuda_, context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->close_gate(static_cast<CUstream>(stream));
  }
  void open_gate() override {
    if (timer_ != nullptr) timer_->open_gate();
  }
  Result<void> copy(void* stream, void* to, const void* from, size_t bytes) override {
    Current current(cuda_, context_);
    TFCC_TRY_VOID(make_timer());
    return timer_->copy(address(to), address(from), bytes, static_cast<CUstream>(stream));
  }

 private:
  Result<void> make_timer() {
    if (timer_ != nullptr) return {};
    TFCC_TRY(timer_, CudaTimer::make());
    return {};
  }

  const CudaDriver& cuda_;
  CUcontext context_;
  std::unique_ptr<CudaTimer> timer_;  // made by the first profile
};

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(const CudaBackend& backend)
      : b_(backend),
        cuda_(backend.cuda_),
        recorder_(cuda_, backend.context_, stream_),
        stopwatch_(cuda_, backend.context_) {}

  ~CudaQueue() override {
    Current current(cuda_, b_.context_);
    synchronize(cuda_);
    matmuls_.reset();
    for (CUdeviceptr p : {block_, workspace_}) {
      if (p != 0) cuda_.cuMemFree(p);
    }
    for (End& e : ends_) {
      if (e.flags != nullptr) cuda_.cuMemFreeHost(e.flags);
      if (e.done != nullptr) cuda_.cuEventDestroy(e.done);
    }
    if (stream_ != nullptr) cuda_.cuStreamDestroy(stream_);
  }

  // One small allocation: the block of sizes and pointers, then the flags, then the counters.
  Result<void> start() {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "a stream", cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    size_t bytes =
        block_bytes() + std::max<size_t>(b_.flags_ + b_.plan_->counters, 1) * sizeof(uint32_t);
    TFCC_TRY_VOID(b_.check_memory(&block_, bytes, "the sizes"));
    ++allocations_;
    TFCC_CU(cuda_, "clear the flags", cuda_.cuMemsetD8(block_, 0, bytes));
    if (b_.plan_->counters > 0) {
      TFCC_CU(cuda_, "set the counters",
              cuda_.cuMemsetD32(block_ + block_bytes() + b_.flags_ * sizeof(uint32_t),
                                b_.processors_, 1));
    }
    // The memset is on the null stream, which a non-blocking stream does not wait for.
    TFCC_CU(cuda_, "clear the flags", synchronize(cuda_));
    for (End& e : ends_) {
      e.flags =
          static_cast<uint32_t*>(host_memory(std::max<size_t>(b_.flags_, 1) * sizeof(uint32_t)));
      TFCC_CU(cuda_, "an event", cuda_.cuEventCreate(&e.done, CU_EVENT_DISABLE_TIMING));
    }
    return {};
  }

  void* allocate_host(size_t bytes) override {
    Current current(cuda_, b_.context_);
    return host_memory(bytes);
  }
  void release_host(void* memory) override {
    if (memory == nullptr) return;
    Current current(cuda_, b_.context_);
    cuda_.cuMemFreeHost(memory);
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

  Result<size_t> prepare_matmul(const MatmulShape& shape) override {
    Current current(cuda_, b_.context_);
    if (matmuls_ == nullptr) {
      TFCC_TRY(matmuls_, CublasLtProducts::make(b_.timings_));
      TFCC_TRY_VOID(b_.check_memory(&workspace_, kWorkspaceBytes, "the workspace of products"));
      ++allocations_;
    }
    // What is timed is waited for, and its memory given back.
    std::unique_lock<std::mutex> lock(capture_mutex(), std::defer_lock);
    if (b_.timings_.tune) lock.lock();
    return matmuls_->prepare(shape, kWorkspaceBytes);
  }
  void trim() override {
    if (matmuls_ != nullptr) matmuls_->trim();
  }
  size_t offers(size_t handle) const override { return matmuls_->offers(handle); }
  size_t take_offer(size_t handle, size_t offer) override {
    return matmuls_->take_offer(handle, offer);
  }
  void keep_offer(size_t handle) override { matmuls_->keep_offer(handle); }

  // `bind` takes the values as one struct by value, so that nothing of the host is read after the
  // call.
  Result<void> begin(void* stream, std::span<const int64_t> values) override {
    Current current(cuda_, b_.context_);
    for (End& e : ends_) e.copied = false;
    callers_ |= stream != stream_;
    void* params[] = {const_cast<int64_t*>(values.data()), &block_};
    return start_kernel(stream, b_.plan_->bind, {1, 1, 1}, false, params);
  }

  Result<void> launch(void* stream, const KernelCall& call) override {
    Current current(cuda_, b_.context_);
    CUdeviceptr flags = block_ + block_bytes();
    params_.clear();
    params_.push_back(&block_);
    params_.push_back(&flags);
    if (call.tiles != nullptr) params_.push_back(const_cast<TilesByRows*>(call.tiles));
    for (void* const& arg : call.args) params_.push_back(const_cast<void**>(&arg));
    maps_.resize(call.maps.size());
    for (size_t i = 0; i < call.maps.size(); ++i) {
      TFCC_TRY_VOID(encode(call.maps[i], maps_[i]));
      params_.push_back(&maps_[i]);
    }
    std::array<int64_t, 3> grid = call.grid;
    if (call.resident != 0) grid[0] = std::min(grid[0], int64_t{call.resident} * b_.processors_);
    return start_kernel(stream, call.kernel, grid,
                        !call.behind_skipped && starts_early(b_.plan_->kernels[call.kernel], grid),
                        params_.data());
  }

  Result<void> matmul(void* stream, size_t handle, const MatmulOperands& operands) override {
    Current current(cuda_, b_.context_);
    return matmuls_->run(handle, operands, reinterpret_cast<void*>(workspace_), kWorkspaceBytes,
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
  Result<void> wait() override {
    Current current(cuda_, b_.context_);
    TFCC_CU(cuda_, "a kernel failed", cuda_.cuStreamSynchronize(stream_));
    return {};
  }

  Recorder* recorder() override { return &recorder_; }
  Stopwatch& stopwatch() override { return stopwatch_; }

  uint64_t allocations() const override { return allocations_; }

  // The caller's stream is not kept: it may be gone by now.
  Result<void> read_sizes(std::span<int64_t> sizes) override {
    TFCC_TRY_VOID(
        copy_out(stream_, sizes.data(), reinterpret_cast<const void*>(block_), sizes.size_bytes()));
    return wait();
  }
  // What a caller's stream runs, as a graph of its own too, may raise flags at any time: only runs
  // on ours are known to be all.
  Result<void> end_run(size_t side) override {
    Current current(cuda_, b_.context_);
    End& e = ends_[side];
    e.pending = e.flags != nullptr && !callers_;
    if (e.pending && b_.flags_ > 0)
      TFCC_CU(cuda_, "read the flags",
              cuda_.cuMemcpyDtoHAsync(e.flags, block_ + block_bytes(), b_.flags_ * sizeof(uint32_t),
                                      stream_));
    TFCC_CU(cuda_, "the end of a run", cuda_.cuEventRecord(e.done, stream_));
    return {};
  }
  Result<void> wait_run(size_t side) override {
    Current current(cuda_, b_.context_);
    End& e = ends_[side];
    const bool copied = std::exchange(e.pending, false);
    TFCC_CU(cuda_, "a kernel failed", cuda_.cuEventSynchronize(e.done));
    e.copied = copied;
    return {};
  }
  Result<void> take_flags(std::span<uint32_t> flags, size_t side) override {
    End& e = ends_[side];
    if (e.copied && !callers_) {
      std::copy_n(e.flags, flags.size(), flags.begin());
      if (std::all_of(flags.begin(), flags.end(), [](uint32_t f) { return f == 0; })) return {};
      e.copied = false;
    }
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
  void* host_memory(size_t bytes) const {
    void* p = nullptr;
    return cuda_.cuMemAllocHost(&p, bytes) == CUDA_SUCCESS ? p : nullptr;
  }
  // Rows one behind the other; boxes with the swizzle that products of a warpgroup read.
  Result<void> encode(const MappedMatrix& m, CUtensorMap& map) const {
    if (cuda_.cuTensorMapEncodeTiled == nullptr) {
      return Error{
          ErrorCode::device,
          "the NVIDIA driver is older than CUDA 12.0, which kernels for this GPU need; update it"};
    }
    // A deep box is one of three axes: 64 columns, rows, parts of 64 columns.
    const bool bytes = size_of(m.dtype) == 1, deep = m.box_columns > 64 && !bytes;
    const cuuint64_t row = static_cast<cuuint64_t>(m.columns) * size_of(m.dtype),
                     part = 64 * size_of(m.dtype);
    const cuuint64_t dims[] = {static_cast<cuuint64_t>(deep ? 64 : m.columns),
                               static_cast<cuuint64_t>(m.rows),
                               static_cast<cuuint64_t>(m.columns / 64)};
    const cuuint64_t strides[] = {row, part};
    const cuuint32_t box[] = {deep ? 64 : m.box_columns, m.box_rows, m.box_columns / 64},
                     steps[] = {1, 1, 1};
    const CUresult code = cuda_.cuTensorMapEncodeTiled(
        &map,
        bytes                    ? CU_TENSOR_MAP_DATA_TYPE_UINT8
        : m.dtype == DType::f32  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
        : m.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        deep ? 3 : 2, m.address, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS) return {};
    return failure(cuda_, "a tensor map", code);
  }

  size_t block_bytes() const { return (b_.symbols_ + b_.ports_) * sizeof(int64_t); }

  // Small blocks of a large grid would crowd on the multiprocessors that the launch before leaves
  // first. Of blocks that ask for much shared memory few fit.
  bool starts_early(const Kernel& k, const std::array<int64_t, 3>& grid) const {
    constexpr uint32_t kFewFit = 32 << 10;  // bytes: six of them
    return k.starts_early && b_.starts_early_ &&
           (k.shared_bytes >= kFewFit ||
            grid[0] * grid[1] * grid[2] <= int64_t{2} * b_.processors_);
  }

  Result<void> start_kernel(void* stream, uint32_t kernel, const std::array<int64_t, 3>& grid,
                            bool early, void** params) {
    const Kernel& k = b_.plan_->kernels[kernel];
    std::array<CUlaunchAttribute, 2> attributes = {};
    unsigned count = 0;
    if (early) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attributes[count++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (k.cluster > 1) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attributes[count].value.clusterDim.x = attributes[count].value.clusterDim.y = 1;
      attributes[count++].value.clusterDim.z = k.cluster;
    }
    CUlaunchConfig config = {};
    config.gridDimX = static_cast<unsigned>(grid[0]);
    config.gridDimY = static_cast<unsigned>(grid[1]);
    config.gridDimZ = static_cast<unsigned>(grid[2]);
    config.blockDimX = k.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = k.shared_bytes;
    config.hStream = static_cast<CUstream>(stream);
    config.attrs = attributes.data();
    config.numAttrs = count;
    CUresult code = cuda_.cuLaunchKernelEx(&config, b_.kernels_[kernel], params, nullptr);
    if (code == CUDA_SUCCESS) return {};
    return failure(cuda_, ("launch of kernel '" + k.name + "'").c_str(), code);
  }

  const CudaBackend& b_;
  const CudaDriver& cuda_;
  CUstream stream_ = nullptr;
  CUdeviceptr block_ = 0;
  CUdeviceptr workspace_ = 0;
  struct End {  // of a run on a side
    CUevent done = nullptr;
    uint32_t* flags = nullptr;  // a copy in memory of the host
    bool pending = false;       // it was asked for
    bool copied = false;        // it is there, and nothing has begun since
  };
  std::array<End, 2> ends_;
  bool callers_ = false;                  // a run was enqueued on a caller's stream
  std::atomic<uint64_t> allocations_{0};  // read by any thread
  std::unique_ptr<CublasLtProducts> matmuls_;
  CudaRecorder recorder_;
  CudaStopwatch stopwatch_;
  std::vector<void*> params_;
  std::vector<CUtensorMap> maps_;
};

Result<std::unique_ptr<Queue>> CudaBackend::queue() const {
  auto queue = std::make_unique<CudaQueue>(*this);
  TFCC_TRY_VOID(queue->start());
  return std::unique_ptr<Queue>(std::move(queue));
}

}  // namespace tfcc::runtime

#endif

// SPDX-License-Identifier: Apache-2.0
#ifdef TFCC_CUDA
#include "runtime/cuda/matmul_tuner.h"

#include <algorithm>
#include <vector>

#include "runtime/cuda/timer.h"

namespace tfcc::runtime {
namespace {

constexpr int kWarmUps = 2, kRuns = 16, kRounds = 3;
constexpr size_t kFarApart = size_t{192} << 20;  // more than any cache of the card holds
constexpr size_t kMostCopies = 32;
constexpr double kClearlyFaster = 0.98;

// Device memory and a stream, given back at the end of the scope.
class Scratch {
 public:
  explicit Scratch(const CudaDriver& cuda) : cuda_(cuda) {}
  ~Scratch() {
    if (stream != nullptr) cuda_.cuStreamSynchronize(stream);
    for (CUdeviceptr p : memory_) cuda_.cuMemFree(p);
    if (stream != nullptr) cuda_.cuStreamDestroy(stream);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Result<void> start() {
    CUresult code = cuda_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (code != CUDA_SUCCESS)
      return Error{ErrorCode::device, std::string("a stream: ") + cuda_.text(code)};
    return {};
  }

  // Filled with small numbers of any type.
  Result<CUdeviceptr> allocate(size_t bytes) {
    CUdeviceptr p = 0;
    CUresult code = cuda_.cuMemAlloc(&p, std::max<size_t>(bytes, 1));
    if (code == CUDA_SUCCESS) {
      memory_.push_back(p);
      code = cuda_.cuMemsetD8Async(p, 0x3c, bytes, stream);
    }
    if (code == CUDA_SUCCESS) return p;
    return Error{ErrorCode::memory,
                 "no GPU memory to time products; free some, or leave out tuning"};
  }

  CUstream stream = nullptr;

 private:
  const CudaDriver& cuda_;
  std::vector<CUdeviceptr> memory_;
};

size_t extent(int64_t batch, int64_t stride, int64_t rows, int64_t columns, DType type) {
  return static_cast<size_t>((batch - 1) * stride + rows * columns) * size_of(type);
}

}  // namespace

size_t fastest_of(std::span<const double> us) {
  size_t fastest = us.size();
  for (size_t i = 0; i < us.size(); ++i) {
    if (us[i] > 0 && (fastest == us.size() || us[i] < us[fastest] * kClearlyFaster)) fastest = i;
  }
  return fastest;
}

Result<std::vector<double>> time_candidates(const CudaDriver& cuda, const MatmulShape& s,
                                            size_t candidates, const RunCandidate& run) {
  Scratch scratch(cuda);
  TFCC_TRY_VOID(scratch.start());
  const size_t b_bytes = (extent(s.batch, s.stride_b, s.k, s.n, s.b) + 255) / 256 * 256;
  const size_t copies =
      std::clamp<size_t>(kFarApart / std::max<size_t>(b_bytes, 1), 1, kMostCopies);
  TFCC_TRY(CUdeviceptr a, scratch.allocate(extent(s.batch, s.side_by_side ? s.m * s.k : s.stride_a,
                                                  s.m, s.k, s.a)));
  TFCC_TRY(CUdeviceptr b, scratch.allocate(b_bytes * copies));
  TFCC_TRY(CUdeviceptr d, scratch.allocate(extent(s.batch, s.m * s.n, s.m, s.n, s.d)));
  TFCC_TRY(CUdeviceptr bias, scratch.allocate(static_cast<size_t>(s.n) * size_of(s.bias)));
  TFCC_TRY(auto timer, CudaTimer::make());

  auto pointer = [](CUdeviceptr p) { return reinterpret_cast<void*>(p); };
  size_t copy = 0;
  auto runs = [&](size_t candidate, int count) -> Result<void> {
    for (int i = 0; i < count; ++i) {
      const CUdeviceptr weight = b + b_bytes * (copy++ % copies);
      TFCC_TRY_VOID(
          run(candidate, {pointer(a), pointer(weight), pointer(bias), pointer(d)}, scratch.stream));
    }
    return {};
  };
  auto time = [&](size_t candidate) -> Result<double> {
    TFCC_TRY_VOID(runs(candidate, kWarmUps));
    TFCC_TRY_VOID(timer->close_gate(scratch.stream));
    TFCC_TRY_VOID(timer->mark(scratch.stream));
    auto done = runs(candidate, kRuns);
    if (done) done = timer->mark(scratch.stream);
    timer->open_gate();
    std::vector<double> ms;
    TFCC_TRY_VOID(timer->marked(ms));
    TFCC_TRY_VOID(std::move(done));
    return ms[0] * 1000 / kRuns;
  };

  std::vector<double> best(candidates, 0);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < candidates; ++i) {
      if (best[i] < 0) continue;
      auto us = time(i);
      if (!us) best[i] = -1;
      else best[i] = best[i] == 0 ? *us : std::min(best[i], *us);
    }
  }
  if (fastest_of(best) == best.size())
    return Error{ErrorCode::device,
                 "no algorithm of a product could be timed; check the GPU with nvidia-smi"};
  return best;
}

}  // namespace tfcc::runtime
#endif

// SPDX-License-Identifier: Apache-2.0
// Row-major products on a column-major library: D = A * B by rows is D^T = B^T * A^T by columns,
// and a row-major matrix read by columns is its own transpose. So the library's first operand is
// our B, its second our A, and m and n swap.
#ifdef TFCC_CUDA
#include "runtime/cuda/matmul_cublaslt.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/cuda/matmul_tuner.h"

#include "runtime/core/shared_library.h"

#define TFCC_TEXT_(x) #x
#define TFCC_TEXT(x) TFCC_TEXT_(x)

namespace tfcc::runtime {
namespace {

constexpr int kMostOffers = 16;  // algorithms that are timed
constexpr size_t kMostKept = 4;  // of these, to be timed among the launches of a run

constexpr const char* kWayOut =
    "install cuBLAS of CUDA 13 or 12 (package libcublas-13-0, or pip install nvidia-cublas) and "
    "add its "
    "folder to LD_LIBRARY_PATH";

Result<CublasLt> open_cublaslt() {
  TFCC_TRY(void* library, open_library({"libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so.12"},
                                       kWayOut));
  CublasLt lt;
#define TFCC_FIND(name) TFCC_TRY_VOID(find_function(library, TFCC_TEXT(name), lt.name, kWayOut));
  TFCC_CUBLASLT(TFCC_FIND)
#undef TFCC_FIND
  return lt;
}

Error failure(const char* what, cublasStatus_t status) {
  return {ErrorCode::device, std::string("cublasLt: ") + what + " failed with status " +
                                 std::to_string(static_cast<int>(status)) +
                                 "; check the GPU with nvidia-smi"};
}

#define TFCC_LT(what, ...)                                                            \
  if (cublasStatus_t lt_status = (__VA_ARGS__); lt_status != CUBLAS_STATUS_SUCCESS) { \
    return failure(what, lt_status);                                                  \
  }

std::optional<cudaDataType_t> cuda_type(DType t) {
  switch (t) {
    case DType::f32: return CUDA_R_32F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f64: return CUDA_R_64F;
    default: return std::nullopt;
  }
}

std::string print(const MatmulShape& s) {
  return std::string(to_string(s.a)) + " x " + to_string(s.b) + " to " + to_string(s.d) + ", " +
         std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) + ", batch " +
         std::to_string(s.batch);
}

// Which of the algorithms that were timed go on: the library's first that runs, `fastest`, and the
// least of the others.
std::vector<size_t> best_offers(std::span<const double> us, size_t fastest) {
  std::vector<size_t> order;
  for (size_t i = 0; i < us.size(); ++i) {
    if (us[i] > 0) order.push_back(i);
  }
  const auto rank = [&](size_t i) {
    return std::pair(i == order.front() ? 0 : i == fastest ? 1 : 2, us[i]);
  };
  std::vector<size_t> sorted = order;
  std::ranges::sort(sorted, {}, rank);
  sorted.resize(std::min(sorted.size(), kMostKept));
  return sorted;
}

}  // namespace

Result<const CublasLt*> cublaslt() {
  static const Result<CublasLt> lt = open_cublaslt();
  if (!lt) return lt.error();
  return &*lt;
}

// A product's descriptors; freed one by one, null ones are those that were never made.
struct CublasLtProducts::Product {
  explicit Product(const CublasLt& table) : lt(table) {}
  ~Product() {
    for (auto layout : {first, second, result}) {
      if (layout != nullptr) lt.cublasLtMatrixLayoutDestroy(layout);
    }
    if (desc != nullptr) lt.cublasLtMatmulDescDestroy(desc);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  template <class T> cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return lt.cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value);
  }

  // A row-major rows x columns matrix, `row` elements from one row to the next, which the library
  // reads as columns x rows by columns.
  cublasStatus_t layout(cublasLtMatrixLayout_t& out, cudaDataType_t type, int64_t rows,
                        int64_t columns, int64_t row, int64_t batch, int64_t stride) {
    auto status = lt.cublasLtMatrixLayoutCreate(&out, type, static_cast<uint64_t>(columns),
                                                static_cast<uint64_t>(rows), row);
    if (status != CUBLAS_STATUS_SUCCESS || batch == 1) return status;
    auto count = static_cast<int32_t>(batch);
    status = lt.cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                 sizeof count);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return lt.cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &stride, sizeof stride);
  }

  const CublasLt& lt;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algo = {};
  struct Offer {
    cublasLtMatmulAlgo_t algo;
    double us;
  };
  std::vector<Offer> offers;  // if they were timed and none is settled: the library's first, ..
  size_t taken = 0;           // of these
  std::string key;            // of the timing cache
  bool has_bias = false;
  bool is_f64 = false;
  double alpha = 1;
};

Result<std::unique_ptr<CublasLtProducts>> CublasLtProducts::make(const MatmulTimings& timings) {
  TFCC_TRY(const CublasLt* lt, cublaslt());
  std::unique_ptr<CublasLtProducts> matmuls(new CublasLtProducts(*lt, timings));
  TFCC_LT("start", lt->cublasLtCreate(&matmuls->handle_));
  return matmuls;
}

CublasLtProducts::CublasLtProducts(const CublasLt& lt, const MatmulTimings& timings)
    : lt_(lt), timings_(timings) {}

CublasLtProducts::~CublasLtProducts() {
  products_.clear();
  if (handle_ != nullptr) lt_.cublasLtDestroy(handle_);
}

void CublasLtProducts::trim() {
  constexpr size_t kMost = 4096;
  if (products_.size() < kMost) return;
  products_.clear();
  index_.clear();
}

Result<void> CublasLtProducts::describe(const MatmulShape& s, Product& p) const {
  auto a = cuda_type(s.a), b = cuda_type(s.b), d = cuda_type(s.d), bias = cuda_type(s.bias);
  if (!a || !b || !d || !bias || s.batch > INT32_MAX) {
    return Error{ErrorCode::unsupported,
                 "cublasLt has no product " + print(s) + "; report this model"};
  }
  p.has_bias = s.has_bias;
  p.alpha = s.alpha;
  p.is_f64 = s.d == DType::f64;
  // COMPUTE_32F is true fp32 for fp32 operands (no TF32), and fp32 accumulation for 16-bit ones.
  auto compute = p.is_f64 ? CUBLAS_COMPUTE_64F
                 : s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                          : CUBLAS_COMPUTE_32F;
  auto scale = p.is_f64 ? CUDA_R_64F : CUDA_R_32F;
  TFCC_LT("a descriptor", lt_.cublasLtMatmulDescCreate(&p.desc, compute, scale));
  int32_t op_first = s.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  int32_t op_second = s.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  TFCC_LT("a descriptor", p.set(CUBLASLT_MATMUL_DESC_TRANSA, op_first));
  TFCC_LT("a descriptor", p.set(CUBLASLT_MATMUL_DESC_TRANSB, op_second));
  if (s.has_bias) {
    int32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    int32_t bias_type = *bias;
    TFCC_LT("a descriptor", p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
    TFCC_LT("a descriptor", p.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type));
  }
  // Stored sizes by rows: a transposed operand is stored the other way round.
  const int64_t columns_a = s.trans_a ? s.m : s.k, columns_b = s.trans_b ? s.k : s.n;
  TFCC_LT("a layout",
          p.layout(p.first, *b, s.trans_b ? s.n : s.k, columns_b, columns_b, s.batch, s.stride_b));
  TFCC_LT("a layout", p.layout(p.second, *a, s.trans_a ? s.k : s.m, columns_a, s.row(columns_a),
                               s.batch, s.stride_a));
  TFCC_LT("a layout", p.layout(p.result, *d, s.m, s.n, s.row(s.n), s.batch, s.stride_d()));
  return {};
}

Result<std::vector<cublasLtMatmulHeuristicResult_t>> CublasLtProducts::offers(
    const MatmulShape& s, size_t workspace_bytes, int most, const Product& p) const {
  cublasLtMatmulPreference_t preference = nullptr;
  TFCC_LT("a preference", lt_.cublasLtMatmulPreferenceCreate(&preference));
  auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    lt_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  if (s.in_order)
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});  // parts of a split sum would be reduced
  // Weights start at multiples of 64; the library's own assumption is 256.
  auto align = static_cast<uint32_t>(kWeightAlignment);
  for (auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, align);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  auto status =
      lt_.cublasLtMatmulAlgoGetHeuristic(handle_, p.desc, p.first, p.second, p.result, p.result,
                                         preference, most, found.data(), &count);
  lt_.cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    return Error{ErrorCode::unsupported, "cublasLt has no product " + print(s) + " (status " +
                                             std::to_string(static_cast<int>(status)) +
                                             "); report this model"};
  }
  found.resize(static_cast<size_t>(count));
  return found;
}

Result<void> CublasLtProducts::choose(const MatmulShape& s, size_t workspace_bytes,
                                      Product& p) const {
  const bool cached = timings_.cache != nullptr;
  const std::string key =
      cached ? TimingCache::key(timings_.card, lt_.cublasLtGetVersion(), s) : "";
  if (cached && choose_cached(key, workspace_bytes, p)) return {};
  const bool tune = cached && timings_.tune;
  TFCC_TRY(const auto offered, offers(s, workspace_bytes, tune ? kMostOffers : 1, p));
  p.algo = offered[0].algo;
  return tune ? choose_fastest(s, key, offered, p) : Result<void>();
}

// An entry that the library does not take is as good as none.
bool CublasLtProducts::choose_cached(const std::string& key, size_t workspace_bytes,
                                     Product& p) const {
  static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(TimingCache::Algorithm));
  const auto entry = timings_.cache->find(key);
  if (!entry) return false;
  cublasLtMatmulAlgo_t algo;
  std::memcpy(&algo, entry->algorithm.data(), sizeof algo);
  cublasLtMatmulHeuristicResult_t result = {};
  const auto status = lt_.cublasLtMatmulAlgoCheck(handle_, p.desc, p.first, p.second, p.result,
                                                  p.result, &algo, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace_bytes) return false;
  p.algo = algo;
  return true;
}

Result<void> CublasLtProducts::choose_fastest(
    const MatmulShape& s, const std::string& key,
    std::span<const cublasLtMatmulHeuristicResult_t> offered, Product& p) const {
  TFCC_TRY(const CudaDriver* cuda, cuda_driver());
  size_t workspace_bytes = 0;
  for (const auto& o : offered) workspace_bytes = std::max(workspace_bytes, o.workspaceSize);
  CUdeviceptr workspace = 0;
  if (workspace_bytes > 0 && cuda->cuMemAlloc(&workspace, workspace_bytes) != CUDA_SUCCESS)
    workspace_bytes = 0;
  const auto us = time_candidates(
      *cuda, s, offered.size(), [&](size_t i, const MatmulOperands& o, void* stream) {
        p.algo = offered[i].algo;
        return run(p, o, reinterpret_cast<void*>(workspace), workspace_bytes, stream);
      });
  if (workspace != 0) cuda->cuMemFree(workspace);
  if (!us) return us.error();
  const size_t fastest = fastest_of(*us);
  p.key = key;
  for (size_t i : best_offers(*us, fastest)) {
    if (i == fastest) p.taken = p.offers.size();
    p.offers.push_back({offered[i].algo, (*us)[i]});
  }
  p.algo = offered[fastest].algo;
  keep(p);
  return {};
}

void CublasLtProducts::keep(const Product& p) const {
  TimingCache::Entry entry;
  std::memcpy(entry.algorithm.data(), &p.algo, sizeof p.algo);
  entry.us = p.offers[p.taken].us;
  timings_.cache->add(p.key, entry);
}

size_t CublasLtProducts::offers(size_t handle) const {
  return std::max<size_t>(products_[handle]->offers.size(), 1);
}

size_t CublasLtProducts::take_offer(size_t handle, size_t offer) {
  Product& p = *products_[handle];
  if (offer >= p.offers.size()) return 0;
  p.algo = p.offers[offer].algo;
  return std::exchange(p.taken, offer);
}

void CublasLtProducts::keep_offer(size_t handle) {
  Product& p = *products_[handle];
  if (p.offers.empty()) return;
  keep(p);
  p.offers.clear();
}

Result<size_t> CublasLtProducts::prepare(const MatmulShape& shape, size_t workspace_bytes) {
  if (auto found = index_.find(shape); found != index_.end()) return found->second;
  auto product = std::make_unique<Product>(lt_);
  TFCC_TRY_VOID(describe(shape, *product));
  TFCC_TRY_VOID(choose(shape, workspace_bytes, *product));
  products_.push_back(std::move(product));
  index_[shape] = products_.size() - 1;
  return products_.size() - 1;
}

Result<void> CublasLtProducts::run(size_t handle, const MatmulOperands& o, void* workspace,
                                   size_t workspace_bytes, void* stream) {
  return run(*products_[handle], o, workspace, workspace_bytes, stream);
}

Result<void> CublasLtProducts::run(Product& p, const MatmulOperands& o, void* workspace,
                                   size_t workspace_bytes, void* stream) const {
  if (p.has_bias) TFCC_LT("a bias", p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias));
  float alpha32 = static_cast<float>(p.alpha), beta32 = 0;
  double alpha64 = p.alpha, beta64 = 0;
  const void* alpha = p.is_f64 ? static_cast<const void*>(&alpha64) : &alpha32;
  const void* beta = p.is_f64 ? static_cast<const void*>(&beta64) : &beta32;
  TFCC_LT("a product", lt_.cublasLtMatmul(handle_, p.desc, alpha, o.b, p.first, o.a, p.second, beta,
                                          o.d, p.result, o.d, p.result, &p.algo, workspace,
                                          workspace_bytes, static_cast<cudaStream_t>(stream)));
  return {};
}

}  // namespace tfcc::runtime
#endif

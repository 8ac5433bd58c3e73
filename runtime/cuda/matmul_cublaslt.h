// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt, opened at run time (13, then 12). Included only where TFCC_CUDA is
// defined.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/backend.h"
#include "runtime/result.h"
#include "runtime/core/timing_cache.h"

namespace tfcc::runtime {

// As in cuda_driver.h.
// clang-format off
#define TFCC_CUBLASLT(X) \
  X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmul) X(cublasLtMatmulDescCreate) \
  X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) \
  X(cublasLtMatrixLayoutDestroy) X(cublasLtMatrixLayoutSetAttribute) \
  X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) \
  X(cublasLtMatmulAlgoCheck) X(cublasLtGetVersion)
// clang-format on

/// Table of the library's functions.
struct CublasLt {
#define TFCC_MEMBER(name) decltype(&::name) name = nullptr;
  TFCC_CUBLASLT(TFCC_MEMBER)
#undef TFCC_MEMBER
};

/// The library, opened once. Errors: device, with the way out.
Result<const CublasLt*> cublaslt();

/// Where algorithms come from before the library is asked.
struct MatmulTimings {
  TimingCache* cache = nullptr;  // may be null
  std::string card;
  bool tune = false;  // time what the cache lacks, and add it
};

/// The products of one executor: descriptors and the chosen algorithm per shape. The context must
/// be current.
class CublasLtProducts {
 public:
  /// Errors: device.
  static Result<std::unique_ptr<CublasLtProducts>> make(const MatmulTimings& timings = {});
  ~CublasLtProducts();
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  /// Descriptors and algorithm for a shape, made once. Errors: unsupported, device.
  Result<size_t> prepare(const MatmulShape& shape, size_t workspace_bytes);
  /// Launches on a stream. Errors: device.
  Result<void> run(size_t handle, const MatmulOperands& operands, void* workspace,
                   size_t workspace_bytes, void* stream);
  /// Forgets all products if there are very many.
  void trim();
  /// As those of Queue.
  size_t offers(size_t handle) const;
  size_t take_offer(size_t handle, size_t offer);
  void keep_offer(size_t handle);

 private:
  struct Product;
  CublasLtProducts(const CublasLt& lt, const MatmulTimings& timings);
  Result<void> describe(const MatmulShape& shape, Product& p) const;
  /// The algorithm: from the cache, by time, or the library's first.
  Result<void> choose(const MatmulShape& shape, size_t workspace_bytes, Product& p) const;
  bool choose_cached(const std::string& key, size_t workspace_bytes, Product& p) const;
  /// By time; the library's first and the fastest behind it stay as offers.
  Result<void> choose_fastest(const MatmulShape& shape, const std::string& key,
                              std::span<const cublasLtMatmulHeuristicResult_t> offered,
                              Product& p) const;
  Result<std::vector<cublasLtMatmulHeuristicResult_t>> offers(const MatmulShape& shape,
                                                              size_t workspace_bytes, int most,
                                                              const Product& p) const;
  void keep(const Product& p) const;
  Result<void> run(Product& p, const MatmulOperands& operands, void* workspace,
                   size_t workspace_bytes, void* stream) const;

  const CublasLt& lt_;
  const MatmulTimings timings_;
  cublasLtHandle_t handle_ = nullptr;
  std::vector<std::unique_ptr<Product>> products_;
  std::map<MatmulShape, size_t> index_;
};

}  // namespace tfcc::runtime

// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's product as its manual defines it, in plain loops over f32: column-major, D = alpha *
// op(A) * op(B), a bias per row of D. It holds the mapping from row-major products to account.
#include <cstdint>
#include <cstring>
#include <functional>

#include <dlfcn.h>

namespace {

struct Layout {
  uint64_t rows, columns;
  int64_t ld;
  int32_t batch = 1;
  int64_t stride = 0;
};

struct Desc {
  int32_t op[2] = {0, 0};
  int32_t epilogue = 1;
  bool tf32 = false;
  const float* bias = nullptr;
};

enum { kOpN = 0, kOpT = 1, kEpilogueBias = 4, kInvalid = 7 };

// TF32: a fraction of 10 bits.
float cut(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof x);
  bits &= ~uint32_t{0x1fff};
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

float at(const float* p, const Layout& l, int32_t op, int64_t row, int64_t column) {
  return op == kOpT ? p[column + row * l.ld] : p[row + column * l.ld];
}

void multiply(const Desc* desc, float alpha, const void* pa, const Layout* a, const void* pb,
              const Layout* b, void* pd, const Layout* d) {
  int32_t op_a = desc->op[0], op_b = desc->op[1];
  uint64_t k = op_a == kOpT ? a->rows : a->columns;
  for (int64_t i = 0; i < d->batch; ++i) {
    auto* fa = static_cast<const float*>(pa) + i * a->stride;
    auto* fb = static_cast<const float*>(pb) + i * b->stride;
    auto* fd = static_cast<float*>(pd) + i * d->stride;
    for (uint64_t r = 0; r < d->rows; ++r) {
      for (uint64_t c = 0; c < d->columns; ++c) {
        float sum = 0;
        for (uint64_t j = 0; j < k; ++j) {
          const float x = at(fa, *a, op_a, static_cast<int64_t>(r), static_cast<int64_t>(j)),
                      y = at(fb, *b, op_b, static_cast<int64_t>(j), static_cast<int64_t>(c));
          sum += desc->tf32 ? cut(x) * cut(y) : x * y;
        }
        sum *= alpha;
        if (desc->epilogue == kEpilogueBias) sum += desc->bias[r];
        fd[r + c * static_cast<uint64_t>(d->ld)] = sum;
      }
    }
  }
}

// The driver knows whether the stream is being captured.
void submit(void* stream, const std::function<void()>& work) {
  using Submit = void (*)(void*, const std::function<void()>&);
  static const auto to = reinterpret_cast<Submit>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_cuda_submit"));
  to(stream, work);
}

bool is_captured(void* stream) {
  using Status = int (*)(void*, int*);
  static const auto status = reinterpret_cast<Status>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuStreamIsCapturing"));
  int captured = 0;
  return status(stream, &captured) == 0 && captured != 0;
}

}  // namespace

// What each algorithm takes, if asked for, and how often it ran.
double milliseconds[] = {9, 4, 3, 1, 2, 6, 7};
bool timed = false;
int slow_in_graphs = 0;  // this one takes ten times as long there
int runs[7] = {};

void spend(double ms) {
  using Spend = void (*)(double);
  static const auto to = reinterpret_cast<Spend>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_cuda_spend"));
  to(ms);
}

extern "C" {

void fake_cublaslt_timed(bool on) { timed = on; }
void fake_cublaslt_ms(int algorithm, double ms) { milliseconds[algorithm] = ms; }
void fake_cublaslt_slow_in_graphs(int algorithm) { slow_in_graphs = algorithm; }
int fake_cublaslt_runs(int algorithm) { return runs[algorithm]; }

int cublasLtCreate(void** h) { return *h = new int(0), 0; }
int cublasLtDestroy(void* h) { return delete static_cast<int*>(h), 0; }
int cublasLtMatmulDescCreate(Desc** d, int compute, int scale) {
  constexpr int kF32 = 68, kTf32 = 77;  // CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
  if ((compute != kF32 && compute != kTf32) || scale != 0) return kInvalid;  // CUDA_R_32F
  *d = new Desc;
  (*d)->tf32 = compute == kTf32;
  return 0;
}
int cublasLtMatmulDescDestroy(Desc* d) { return delete d, 0; }
int cublasLtMatmulDescSetAttribute(Desc* d, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case 3: return std::memcpy(&d->op[0], value, bytes), 0;
    case 4: return std::memcpy(&d->op[1], value, bytes), 0;
    case 7: return std::memcpy(&d->epilogue, value, bytes), 0;
    case 8: return std::memcpy(&d->bias, value, bytes), 0;
    case 26: return 0;
  }
  return kInvalid;
}
int cublasLtMatrixLayoutCreate(Layout** l, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  if (type != 0 || ld < static_cast<int64_t>(rows)) return kInvalid;
  return *l = new Layout{rows, columns, ld}, 0;
}
int cublasLtMatrixLayoutDestroy(Layout* l) { return delete l, 0; }
int cublasLtMatrixLayoutSetAttribute(Layout* l, int attribute, const void* value, size_t bytes) {
  if (attribute == 5) return std::memcpy(&l->batch, value, bytes), 0;
  if (attribute == 6) return std::memcpy(&l->stride, value, bytes), 0;
  return kInvalid;
}
int cublasLtMatmulPreferenceCreate(void** p) { return *p = new int(0), 0; }
int cublasLtMatmulPreferenceDestroy(void* p) { return delete static_cast<int*>(p), 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }
size_t cublasLtGetVersion() { return 130200; }

// Offers algorithms 1, 2 and so on, at most six.
struct Offer {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};
int cublasLtMatmulAlgoGetHeuristic(void*, Desc*, Layout*, Layout*, Layout*, Layout*, void*,
                                   int most, Offer* offers, int* count) {
  *count = most < 6 ? most : 6;
  for (int i = 0; i < *count; ++i) offers[i] = {{static_cast<uint64_t>(i) + 1}, 0, 0, 0, {}};
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, Desc*, Layout*, Layout*, Layout*, Layout*,
                            const uint64_t* algorithm, Offer* result) {
  *result = {};
  return algorithm[0] >= 1 && algorithm[0] <= 6 ? 0 : kInvalid;
}

int cublasLtMatmul(void*, Desc* desc, const void* alpha, const void* pa, Layout* a, const void* pb,
                   Layout* b, const void* beta, const void*, Layout*, void* pd, Layout* d,
                   const uint64_t* algorithm, void*, size_t, void* stream) {
  ++runs[algorithm[0] % 7];
  int32_t op_a = desc->op[0], op_b = desc->op[1];
  uint64_t m = op_a == kOpT ? a->columns : a->rows, k = op_a == kOpT ? a->rows : a->columns;
  uint64_t kb = op_b == kOpT ? b->columns : b->rows, n = op_b == kOpT ? b->rows : b->columns;
  if (k != kb || d->rows != m || d->columns != n || a->batch != d->batch || b->batch != d->batch)
    return kInvalid;
  if (*static_cast<const float*>(beta) != 0) return kInvalid;
  const float scale = *static_cast<const float*>(alpha);
  const bool slow = static_cast<int>(algorithm[0]) == slow_in_graphs && is_captured(stream);
  const double ms = milliseconds[algorithm[0] % 7] * (slow ? 10 : 1);
  submit(stream, [=, desc = *desc, a = *a, b = *b, d = *d] {
    if (timed) spend(ms);
    multiply(&desc, scale, pa, &a, pb, &b, pd, &d);
  });
  return 0;
}
}

// SPDX-License-Identifier: Apache-2.0
// A driver for tests without a GPU: device memory is host memory and kernels are the functions
// below, found by name. It counts contexts, so that a test sees when they are not given back.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

using Kernel = void (*)(void** params);
using Address = unsigned long long;

namespace {

int pushed = 0, retained = 0, allocations = 0, modules = 0;

template <class T>
T param(void** params, int i) {
  return *static_cast<T*>(params[i]);
}

// The device block of the small model: two sizes, then the addresses of x, ids and out.
struct Block {
  int64_t batch, length;
  void *x, *ids, *out;
};

void bind(void** params) {
  auto* block = param<Block*>(params, 1);
  std::memcpy(block, params[0], sizeof *block);
}

void embed(void** params) {
  auto* n = param<const Block*>(params, 0);
  auto* flags = param<uint32_t*>(params, 1);
  auto* x = *param<const float**>(params, 2);  // graph inputs come as slots of the block
  auto* ids = *param<const int64_t**>(params, 3);
  auto* table = param<const float*>(params, 4);
  auto* h = param<float*>(params, 5);
  for (int64_t t = 0; t < n->batch * n->length; ++t) {
    int64_t id = ids[t];
    if (id < 0 || id >= 5) flags[0] = 1, id = 0;
    for (int c = 0; c < 4; ++c) h[t * 4 + c] = 2 * x[t * 4 + c] + table[id];
  }
}

void add_one(void** params) {
  auto* n = param<const Block*>(params, 0);
  auto* y = param<const float*>(params, 2);
  auto* out = *param<float**>(params, 3);
  for (int64_t i = 0; i < n->batch * n->length * 3; ++i) out[i] = y[i] + 1;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) { return *v = 13000, 0; }
int cuDeviceGetCount(int* n) { return *n = 1, 0; }
int cuDeviceGet(int* d, int i) { return *d = i, 0; }
int cuDeviceGetName(char* out, int, int) { return std::strcpy(out, "fake GPU"), 0; }
int cuDeviceGetAttribute(int* out, int attribute, int) { return *out = attribute == 75 ? 9 : 0, 0; }
int cuDevicePrimaryCtxRetain(void** c, int) { return *c = &retained, ++retained, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return --retained, 0; }
int cuCtxPushCurrent_v2(void* c) { return c != nullptr ? (++pushed, 0) : 1; }
int cuCtxPopCurrent_v2(void**) { return --pushed, 0; }
int cuCtxSynchronize() { return pushed > 0 ? 0 : 201; }
int cuMemGetInfo_v2(size_t* f, size_t* t) { return *f = *t = 1 << 20, 0; }
int cuMemAlloc_v2(Address* p, size_t n) {
  if (pushed == 0) return 201;
  if (n > size_t{1} << 40) return 2;
  ++allocations;
  *p = reinterpret_cast<Address>(std::aligned_alloc(256, (n + 255) / 256 * 256));
  std::memset(reinterpret_cast<void*>(*p), 0xAB, n);
  return 0;
}
int cuMemFree_v2(Address p) { return --allocations, std::free(reinterpret_cast<void*>(p)), 0; }
int cuMemcpyHtoD_v2(Address to, const void* from, size_t n) {
  return std::memcpy(reinterpret_cast<void*>(to), from, n), 0;
}
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t n, void*) {
  return cuMemcpyHtoD_v2(to, from, n);
}
int cuMemcpyDtoH_v2(void* to, Address from, size_t n) {
  return std::memcpy(to, reinterpret_cast<void*>(from), n), 0;
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t n, void*) {
  return cuMemcpyDtoH_v2(to, from, n);
}
int cuMemsetD8_v2(Address p, unsigned char v, size_t n) {
  return std::memset(reinterpret_cast<void*>(p), v, n), 0;
}
int cuMemsetD8Async(Address p, unsigned char v, size_t n, void*) { return cuMemsetD8_v2(p, v, n); }
int cuStreamCreate(void** s, unsigned) { return *s = std::malloc(1), 0; }
int cuStreamDestroy_v2(void* s) { return std::free(s), 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuModuleLoadDataEx(void** m, const void* image, unsigned, int*, void**) {
  if (std::memcmp(image, "fake cubin", 10) != 0) return 200;
  return *m = const_cast<void*>(image), ++modules, 0;
}
int cuModuleUnload(void*) { return --modules, 0; }
int cuModuleGetFunction(void** f, void*, const char* name) {
  std::string n = name;
  Kernel k = n == "bind" ? bind : n == "embed" ? embed : n == "add_one" ? add_one : nullptr;
  return *f = reinterpret_cast<void*>(k), k != nullptr ? 0 : 500;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernel(void* f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned, void*, void** params, void**) {
  if (x == 0 || y == 0 || z == 0 || threads == 0 || pushed == 0) return 1;
  return reinterpret_cast<Kernel>(f)(params), 0;
}
int cuGetErrorString(int code, const char** out) {
  return *out = code == 2 ? "out of memory" : "fake failure", 0;
}

/// Contexts, memory and modules that were taken and not given back.
int fake_cuda_held() { return pushed + retained + allocations + modules; }
}

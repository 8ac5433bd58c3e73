// SPDX-License-Identifier: Apache-2.0
// A driver for tests without a GPU: device memory is host memory and kernels are the functions
// below, found by name. It counts contexts, so that a test sees when they are not given back. A
// stream that is captured records its work with the values of that moment; a graph repeats it.
#include <cstdint>
#include <cstdlib>
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

using Kernel = void (*)(void** params);
using Address = unsigned long long;

namespace {

int pushed = 0, retained = 0, allocations = 0, modules = 0, executables = 0, events = 0, gates = 0;
double ticks = 0;

using Work = std::function<void()>;
using Graph = std::vector<Work>;
int captures_to_fail = 0, copies_in = 0;
std::map<void*, Graph> captured;  // by stream
std::map<Address, size_t> sizes;  // of allocations

constexpr int kCaptureUnsupported = 900;

template <class T> T param(void** params, int i) { return *static_cast<T*>(params[i]); }

// The device block of the small model: sizes, then the addresses of x, ids and out.
struct Block {
  int64_t batch, length, tokens;
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

// The same, and takes as long as its tile does: a table tells which.
struct TilesByRows {
  uint64_t numbers[4];
  int32_t shift;
};
double tile_ms[] = {8, 5, 6};
int tiles_taken[3] = {};
void add_one_tiled(void** params) {
  auto* n = param<const Block*>(params, 0);
  const auto tiles = param<TilesByRows>(params, 2);
  const auto piece = static_cast<uint64_t>(n->tokens - 1) >> tiles.shift;
  const auto number = tiles.numbers[piece / 16] >> piece % 16 * 4 & 15;
  ++tiles_taken[number];
  ticks += tile_ms[number];
  void* others[] = {params[0], params[1], params[3], params[4]};
  add_one(others);
}

// The device block of the small program without padding: tokens, batch, the longest, then the
// addresses of x, cu_seqlens and what follows from it, and out.
struct RowsBlock {
  int64_t tokens, batch, longest;
  void *x, *tables[6], *out;
};

void bind_rows(void** params) {
  std::memcpy(param<RowsBlock*>(params, 1), params[0], sizeof(RowsBlock));
}

// out[t] = x[t] + 100 * its sequence + its place + 10000 * where the sequence ends.
void rows(void** params) {
  auto* n = param<const RowsBlock*>(params, 0);
  auto* x = *param<const float**>(params, 2);
  auto* ends = *param<const int32_t**>(params, 3);
  auto* sequences = *param<const int32_t**>(params, 4);
  auto* places = *param<const int32_t**>(params, 5);
  auto* out = *param<float**>(params, 6);
  for (int64_t t = 0; t < n->tokens; ++t)
    out[t] = x[t] + 100.0f * sequences[t] + places[t] + 10000.0f * ends[sequences[t] + 1];
}

// Parameters are copied when a kernel is captured: `bind` has a struct and a pointer, the others
// pointers alone.
struct Known {
  Kernel run;
  std::vector<size_t> bytes;
};
const std::map<std::string, Known> kernels = {
    {"bind", {bind, {sizeof(Block), 8}}},
    {"embed", {embed, {8, 8, 8, 8, 8, 8}}},
    {"add_one", {add_one, {8, 8, 8, 8}}},
    {"add_one_tiled", {add_one_tiled, {8, 8, sizeof(TilesByRows), 8, 8}}},
    {"bind_rows", {bind_rows, {sizeof(RowsBlock), 8}}},
    {"rows", {rows, {8, 8, 8, 8, 8, 8, 8}}},
};

struct LaunchAttribute {
  int id;
  alignas(8) unsigned value[16];
};
struct LaunchConfig {
  unsigned x, y, z, threads, threads_y, threads_z, shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};
constexpr int kClusterDimension = 4, kProgrammaticSerialization = 6;
unsigned cluster = 0;  // of the last launch that had one
int early = 0;
unsigned widest = 0;  // grid of the launches

Work with_values(const Known& k, void** params) {
  std::vector<std::vector<char>> values;
  for (size_t i = 0; i < k.bytes.size(); ++i) {
    auto* p = static_cast<char*>(params[i]);
    values.emplace_back(p, p + k.bytes[i]);
  }
  return [run = k.run, values]() mutable {
    std::vector<void*> pointers;
    for (auto& v : values) pointers.push_back(v.data());
    run(pointers.data());
  };
}

}  // namespace

extern "C" {

/// Runs the work now, or records it if the stream is captured. Used by the library of products too.
void fake_cuda_submit(void* stream, const Work& work) {
  auto found = captured.find(stream);
  found != captured.end() ? found->second.push_back(work) : work();
}

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) { return *v = 13000, 0; }
int cuDeviceGetCount(int* n) { return *n = 1, 0; }
int cuDeviceGet(int* d, int i) { return *d = i, 0; }
int cuDeviceGetName(char* out, int, int) { return std::strcpy(out, "fake GPU"), 0; }
int cuDeviceGetAttribute(int* out, int attribute, int) {
  return *out = attribute == 75   ? 9
                : attribute == 16 ? 1
                                  : 0,
         0;  // capability 9.0, one multiprocessor
}
int cuDevicePrimaryCtxRetain(void** c, int) { return *c = &retained, ++retained, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return --retained, 0; }
int cuCtxPushCurrent_v2(void* c) { return c != nullptr ? (++pushed, 0) : 1; }
int cuCtxPopCurrent_v2(void**) { return --pushed, 0; }
int cuCtxSynchronize() { return !captured.empty() ? kCaptureUnsupported : pushed > 0 ? 0 : 201; }
int cuMemGetInfo_v2(size_t* f, size_t* t) { return *f = *t = 1 << 20, 0; }
int cuMemAlloc_v2(Address* p, size_t n) {
  if (pushed == 0) return 201;
  if (!captured.empty()) return kCaptureUnsupported;
  if (n > size_t{1} << 40) return 2;
  ++allocations;
  *p = reinterpret_cast<Address>(std::aligned_alloc(256, (n + 255) / 256 * 256));
  std::memset(reinterpret_cast<void*>(*p), 0xAB, n);
  sizes[*p] = n;
  return 0;
}
int cuMemFree_v2(Address p) {
  --allocations;
  sizes.erase(p);
  return std::free(reinterpret_cast<void*>(p)), 0;
}
int cuMemAllocHost_v2(void** p, size_t n) {
  if (pushed == 0) return 201;
  return *p = std::malloc(n), 0;
}
int cuMemFreeHost(void* p) {
  if (pushed == 0) return 201;
  return std::free(p), 0;
}
int cuMemcpyHtoD_v2(Address to, const void* from, size_t n) {
  return std::memcpy(reinterpret_cast<void*>(to), from, n), 0;
}
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t n, void*) {
  ++copies_in;
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
int cuMemsetD32_v2(Address p, unsigned v, size_t n) {
  return std::fill_n(reinterpret_cast<unsigned*>(p), n, v), 0;
}
int cuMemsetD8Async(Address p, unsigned char v, size_t n, void*) { return cuMemsetD8_v2(p, v, n); }
int cuStreamCreate(void** s, unsigned) { return *s = std::malloc(1), 0; }
int cuStreamDestroy_v2(void* s) { return std::free(s), 0; }
int cuStreamSynchronize(void* s) { return captured.contains(s) ? kCaptureUnsupported : 0; }
int cuStreamBeginCapture_v2(void* s, int) {
  return s != nullptr && captured.emplace(s, Graph()).second ? 0 : kCaptureUnsupported;
}
int cuStreamEndCapture(void* s, Graph** out) {
  auto found = captured.find(s);
  if (found == captured.end()) return 901;
  Graph work = std::move(found->second);
  captured.erase(found);
  if (captures_to_fail > 0) return --captures_to_fail, *out = nullptr, 901;
  return *out = new Graph(std::move(work)), 0;
}
int cuStreamIsCapturing(void* s, int* status) { return *status = captured.contains(s), 0; }
int cuGraphInstantiateWithFlags(Graph** out, Graph* graph, unsigned long long) {
  return *out = new Graph(*graph), ++executables, 0;
}
int cuGraphUpload(Graph*, void*) { return 0; }
int cuGraphLaunch(Graph* graph, void* stream) {
  if (captured.contains(stream)) return kCaptureUnsupported;  // the runtime never nests them
  for (const Work& w : *graph) w();
  return 0;
}
int cuGraphDestroy(Graph* graph) { return delete graph, 0; }
int cuGraphExecDestroy(Graph* graph) { return delete graph, --executables, 0; }
int cuModuleLoadDataEx(void** m, const void* image, unsigned, int*, void**) {
  if (std::memcmp(image, "fake cubin", 10) != 0) return 200;
  return *m = const_cast<void*>(image), ++modules, 0;
}
int cuModuleUnload(void*) { return --modules, 0; }
int cuModuleGetFunction(void** f, void*, const char* name) {
  auto found = kernels.find(name);
  if (found == kernels.end()) return 500;
  return *f = const_cast<Known*>(&found->second), 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernelEx(const LaunchConfig* c, void* f, void** params, void**) {
  if (c->x == 0 || c->y == 0 || c->z == 0 || c->threads == 0 || pushed == 0) return 1;
  const Known& kernel = *static_cast<Known*>(f);
  widest = std::max(widest, c->x);
  for (unsigned i = 0; i < c->attribute_count; ++i) {
    const LaunchAttribute& a = c->attributes[i];
    if (a.id == kClusterDimension) {
      if (a.value[0] != 1 || a.value[1] != 1 || c->z % a.value[2] != 0) return 1;
      cluster = a.value[2];
    } else if (a.id == kProgrammaticSerialization && a.value[0] == 1) {
      ++early;
    } else {
      return 1;
    }
  }
  return fake_cuda_submit(c->stream, with_values(kernel, params)), 0;
}
// Events hold a count of events: one millisecond from each to the next.
int cuEventCreate(void** e, unsigned) { return *e = new double(0), ++events, 0; }
int cuEventDestroy_v2(void* e) { return delete static_cast<double*>(e), --events, 0; }
int cuEventRecord(void* e, void*) { return *static_cast<double*>(e) = ++ticks, 0; }
int cuEventSynchronize(void*) { return 0; }
int cuEventElapsedTime(float* ms, void* a, void* b) {
  return *ms = static_cast<float>(*static_cast<double*>(b) - *static_cast<double*>(a)), 0;
}
int cuLaunchHostFunc(void*, void (*)(void*), void*) { return ++gates, 0; }
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, void*) {
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n), 0;
}
/// Makes work take so many milliseconds.
void fake_cuda_spend(double ms) { ticks += ms; }
/// How long kernels of that tile take, and how many ran.
void fake_cuda_tile_ms(int tile, double ms) { tile_ms[tile] = ms; }
int fake_cuda_tiles(int tile) { return tiles_taken[tile]; }
/// Work that was put behind a gate so far.
int fake_cuda_copies_in() { return copies_in; }
int fake_cuda_gates() { return gates; }
int cuGetErrorString(int code, const char** out) {
  return *out = code == 2 ? "out of memory" : "fake failure", 0;
}

/// Contexts, memory, modules and graphs that were taken and not given back.
int fake_cuda_held() { return pushed + retained + allocations + modules + executables + events; }
/// Lets the next captures fail, as another thread's wait for the device does.
void fake_cuda_fail_captures(int count) { captures_to_fail = count; }
/// Launches so far that may start before their predecessor has ended.
int fake_cuda_early() { return early; }
int fake_cuda_widest() { return static_cast<int>(widest); }
int fake_cuda_cluster() { return static_cast<int>(cluster); }
/// Fills the allocations of that size with NaN; returns how many there are.
int fake_cuda_poison(size_t bytes) {
  int count = 0;
  for (auto [p, n] : sizes) {
    if (n == bytes) std::memset(reinterpret_cast<void*>(p), 0xFF, n), ++count;
  }
  return count;
}
}

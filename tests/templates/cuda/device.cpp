// SPDX-License-Identifier: Apache-2.0
#include "tests/templates/cuda/device.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "codegen/nvrtc.h"

namespace tfcc::test {
namespace {

constexpr size_t kGuard = 4096;  // poisoned bytes on each side of a buffer

/// The driver's functions that the tests use.
struct Driver {
  decltype(&cuInit) init;
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDeviceGetAttribute) attribute;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuModuleLoadData) load;
  decltype(&cuModuleGetFunction) function;
  decltype(&cuFuncSetAttribute) set_attribute;
  decltype(&cuMemAlloc) allocate;
  decltype(&cuMemFree) free;
  decltype(&cuMemcpyHtoD) to_device;
  decltype(&cuMemcpyDtoH) to_host;
  decltype(&cuLaunchKernel) launch;
  decltype(&cuCtxSynchronize) synchronize;
  std::string arch;  // empty: no device
};

template <class F> bool find(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  return f != nullptr;
}

Driver open_driver() {
  Driver d;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return d;
  bool ok = find(library, "cuInit", d.init) && find(library, "cuDeviceGet", d.device_get) &&
            find(library, "cuDeviceGetAttribute", d.attribute) &&
            find(library, "cuDevicePrimaryCtxRetain", d.retain) &&
            find(library, "cuCtxSetCurrent", d.set_current) &&
            find(library, "cuModuleLoadData", d.load) &&
            find(library, "cuModuleGetFunction", d.function) &&
            find(library, "cuFuncSetAttribute", d.set_attribute) &&
            find(library, "cuMemAlloc_v2", d.allocate) && find(library, "cuMemFree_v2", d.free) &&
            find(library, "cuMemcpyHtoD_v2", d.to_device) &&
            find(library, "cuMemcpyDtoH_v2", d.to_host) &&
            find(library, "cuLaunchKernel", d.launch) &&
            find(library, "cuCtxSynchronize", d.synchronize);
  CUdevice device;
  CUcontext context;
  int major = 0, minor = 0;
  if (!ok || d.init(0) != 0 || d.device_get(&device, 0) != 0) return d;
  d.attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  d.attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  if (d.retain(&context, device) != 0 || d.set_current(context) != 0) return d;
  d.arch = fmt::format("sm_{}{}", major, minor);
  return d;
}

const Driver& driver() {
  static const Driver d = open_driver();
  return d;
}

size_t size_of(const std::string& type) {
  static const std::map<std::string, size_t> kSizes = {{"f32", 4}, {"f16", 2}, {"bf16", 2},
                                                       {"f64", 8}, {"i64", 8}, {"i32", 4},
                                                       {"u8", 1},  {"b8", 1}};
  return kSizes.at(type);
}

template <class T> void put(std::byte* at, T v) { std::memcpy(at, &v, sizeof v); }
template <class T> T get(const std::byte* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

/// Through float: right for every value that is a float.
uint16_t to_bf16(double v) {
  float f = static_cast<float>(v);
  if (std::isnan(f)) return 0x7fc0;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void encode(const std::string& type, double v, std::byte* at) {
  if (type == "f32") put(at, static_cast<float>(v));
  if (type == "f64") put(at, v);
  if (type == "f16") put(at, static_cast<_Float16>(v));
  if (type == "bf16") put(at, to_bf16(v));
  if (type == "i64") put(at, static_cast<int64_t>(v));
  if (type == "i32") put(at, static_cast<int32_t>(v));
  if (type == "u8" || type == "b8") put(at, static_cast<uint8_t>(v));
}

double decode(const std::string& type, const std::byte* at) {
  if (type == "f32") return get<float>(at);
  if (type == "f64") return get<double>(at);
  if (type == "f16") return static_cast<double>(get<_Float16>(at));
  if (type == "bf16") return std::bit_cast<float>(static_cast<uint32_t>(get<uint16_t>(at)) << 16);
  if (type == "i64") return static_cast<double>(get<int64_t>(at));
  if (type == "i32") return get<int32_t>(at);
  return get<uint8_t>(at);
}

/// Device memory: guard, bytes, guard, all 0xff where nothing is copied.
struct Buffer {
  CUdeviceptr base = 0;
  size_t bytes = 0, offset = 0;

  Buffer(size_t bytes_, size_t offset_) : bytes(bytes_), offset(offset_) {
    std::vector<std::byte> poison(bytes + 2 * kGuard, std::byte{0xff});
    EXPECT_EQ(driver().allocate(&base, poison.size()), 0);
    EXPECT_EQ(driver().to_device(base, poison.data(), poison.size()), 0);
  }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& b) : base(b.base), bytes(b.bytes), offset(b.offset) { b.base = 0; }
  ~Buffer() {
    if (base) driver().free(base);
  }
  CUdeviceptr data() const { return base + kGuard + offset; }
};

Buffer upload(const HostTensor& t) {
  size_t size = size_of(t.type);
  std::vector<std::byte> bytes(t.values.size() * size);
  for (size_t k = 0; k < t.values.size(); ++k) encode(t.type, t.values[k], &bytes[k * size]);
  Buffer b(bytes.size(), 0);
  if (!bytes.empty()) {
    EXPECT_EQ(driver().to_device(b.data(), bytes.data(), bytes.size()), 0);
  }
  return b;
}

void download(const Buffer& b, HostTensor& t) {
  std::vector<std::byte> all(b.bytes + 2 * kGuard);
  ASSERT_EQ(driver().to_host(all.data(), b.base, all.size()), 0);
  size_t size = size_of(t.type), begin = kGuard + b.offset;
  for (size_t k = 0; k < all.size(); ++k) {
    if (k >= begin && k < begin + b.bytes) continue;
    ASSERT_EQ(all[k], std::byte{0xff}) << "wrote outside, byte " << static_cast<int64_t>(k - begin);
  }
  for (size_t k = 0; k < t.values.size(); ++k) t.values[k] = decode(t.type, &all[begin + k * size]);
}

CUfunction compile(const Launch& launch) {
  static std::map<std::string, CUfunction> known;
  if (auto at = known.find(launch.source); at != known.end()) return at->second;
  auto image = codegen::compile_cuda("kernel", launch.source, driver().arch);
  if (!image) {
    ADD_FAILURE() << image.error().message << "\n" << launch.source;
    return nullptr;
  }
  EXPECT_EQ(image->spill_bytes, 0) << launch.source << image->log;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(driver().load(&module, image->bytes.data()), 0);
  EXPECT_EQ(driver().function(&function, module, "kernel"), 0);
  return known[launch.source] = function;
}

}  // namespace

HostTensor tensor(const std::string& type, std::vector<double> values) {
  for (double& v : values) {
    std::byte bytes[8];
    encode(type, v, bytes);
    v = decode(type, bytes);
  }
  return {type, std::move(values)};
}

HostTensor random(const std::string& type, size_t count, uint32_t seed, double low, double high) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(count);
  for (double& v : values) v = uniform(engine);
  return tensor(type, std::move(values));
}

void run(Launch& launch) {
  CUfunction function = compile(launch);
  ASSERT_NE(function, nullptr);
  std::vector<Buffer> buffers;
  std::vector<double> sizes(launch.sizes.begin(), launch.sizes.end());
  buffers.push_back(upload({"i64", sizes}));
  buffers.push_back(upload({"i32", std::vector<double>(16, 0)}));
  for (const HostTensor& t : launch.inputs) buffers.push_back(upload(t));
  size_t first_output = buffers.size();
  for (const HostTensor& t : launch.outputs)
    buffers.emplace_back(t.values.size() * size_of(t.type), launch.output_offset);
  std::vector<CUdeviceptr> pointers;
  for (const Buffer& b : buffers) pointers.push_back(b.data());
  std::vector<void*> parameters;
  for (CUdeviceptr& p : pointers) parameters.push_back(&p);
  if (launch.shared_bytes > 48 * 1024) {
    ASSERT_EQ(driver().set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                     launch.shared_bytes),
              0);
  }
  ASSERT_EQ(
      driver().launch(function, launch.grid[0], launch.grid[1], launch.grid[2], launch.threads, 1,
                      1, launch.shared_bytes, nullptr, parameters.data(), nullptr),
      0);
  ASSERT_EQ(driver().synchronize(), 0) << launch.source;
  for (size_t k = 0; k < launch.outputs.size(); ++k)
    download(buffers[first_output + k], launch.outputs[k]);
  uint32_t flags[16];
  ASSERT_EQ(driver().to_host(flags, buffers[1].data(), sizeof flags), 0);
  launch.flags = flags[0];
}

bool has_device() { return !driver().arch.empty(); }

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t k = 0; k < b.size(); ++k) {
    if (a[k] == b[k] || (std::isnan(a[k]) && std::isnan(b[k]))) {
      if (std::isfinite(b[k])) norm += b[k] * b[k];
      continue;
    }
    if (!std::isfinite(a[k]) || !std::isfinite(b[k]))
      return std::numeric_limits<double>::infinity();
    difference += (a[k] - b[k]) * (a[k] - b[k]);
    norm += b[k] * b[k];
  }
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

double rounding(const std::string& type) {
  return type == "f16" ? 2.5e-4 : type == "bf16" ? 2.0e-3 : 2e-6;
}

}  // namespace tfcc::test

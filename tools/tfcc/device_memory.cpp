// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/device_memory.h"

#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace tfcc::tools {
namespace {

// The driver's functions by their ABI names; handles are opaque pointers, a device address is an
// integer.
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*release)(int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*allocate)(uint64_t*, size_t) = nullptr;
  int (*free)(uint64_t) = nullptr;
  int (*copy_in)(uint64_t, const void*, size_t) = nullptr;
  int (*copy_out)(void*, uint64_t, size_t) = nullptr;
  int (*make_stream)(void**, unsigned) = nullptr;
  int (*drop_stream)(void*) = nullptr;
  int (*wait_stream)(void*) = nullptr;
  int (*make_event)(void**, unsigned) = nullptr;
  int (*drop_event)(void*) = nullptr;
  int (*record)(void*, void*) = nullptr;
  int (*wait_event)(void*) = nullptr;
  int (*elapsed)(float*, void*, void*) = nullptr;
};

template <class F> bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

Result<Driver> open_driver() {
  void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib)
    return Error{ErrorCode::device,
                 "libcuda.so.1 is missing; install the NVIDIA driver, or use --device cpu"};
  Driver d;
  const bool all =
      find(lib, "cuInit", d.init) && find(lib, "cuDeviceGet", d.device) &&
      find(lib, "cuDevicePrimaryCtxRetain", d.retain) &&
      find(lib, "cuDevicePrimaryCtxRelease_v2", d.release) &&
      find(lib, "cuCtxSetCurrent", d.set_current) && find(lib, "cuMemAlloc_v2", d.allocate) &&
      find(lib, "cuMemFree_v2", d.free) && find(lib, "cuMemcpyHtoD_v2", d.copy_in) &&
      find(lib, "cuMemcpyDtoH_v2", d.copy_out) && find(lib, "cuStreamCreate", d.make_stream) &&
      find(lib, "cuStreamDestroy_v2", d.drop_stream) &&
      find(lib, "cuStreamSynchronize", d.wait_stream) && find(lib, "cuEventCreate", d.make_event) &&
      find(lib, "cuEventDestroy_v2", d.drop_event) && find(lib, "cuEventRecord", d.record) &&
      find(lib, "cuEventSynchronize", d.wait_event) && find(lib, "cuEventElapsedTime", d.elapsed);
  if (!all) return Error{ErrorCode::device, "libcuda.so.1 is too old; update the NVIDIA driver"};
  return d;
}

Error failure(const char* what) {
  return {ErrorCode::device,
          std::string("cuda: ") + what + " failed; check the GPU with nvidia-smi"};
}

}  // namespace

struct Device::Impl {
  Driver d;
  int device = 0;
  void* context = nullptr;
  void* stream = nullptr;
  void* begin = nullptr;
  void* end = nullptr;
  std::vector<uint64_t> memory;

  ~Impl() {
    if (!context) return;
    d.set_current(context);
    for (uint64_t p : memory) d.free(p);
    if (begin) d.drop_event(begin);
    if (end) d.drop_event(end);
    if (stream) d.drop_stream(stream);
    d.release(device);
  }
};

Device::Device(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Device::Device(Device&&) noexcept = default;
Device& Device::operator=(Device&&) noexcept = default;
Device::~Device() = default;

Result<Device> Device::open(int index) {
  auto impl = std::make_unique<Impl>();
  TFCC_TRY(impl->d, open_driver());
  const Driver& d = impl->d;
  if (d.init(0) != 0 || d.device(&impl->device, index) != 0) return failure("finding the GPU");
  if (d.retain(&impl->context, impl->device) != 0 || d.set_current(impl->context) != 0)
    return failure("starting the GPU");
  constexpr unsigned kNonBlocking = 1;
  if (d.make_stream(&impl->stream, kNonBlocking) != 0 || d.make_event(&impl->begin, 0) != 0 ||
      d.make_event(&impl->end, 0) != 0) {
    return failure("making a stream");
  }
  return Device(std::move(impl));
}

Result<void*> Device::upload(const void* data, size_t bytes) {
  uint64_t p = 0;
  if (impl_->d.allocate(&p, bytes ? bytes : 1) != 0)
    return Error{ErrorCode::memory,
                 "no memory on the GPU for inputs and outputs; use smaller shapes"};
  impl_->memory.push_back(p);
  if (data && bytes && impl_->d.copy_in(p, data, bytes) != 0) return failure("copying an input");
  return reinterpret_cast<void*>(p);
}

Result<void> Device::download(void* to, const void* from, size_t bytes) {
  if (bytes && impl_->d.copy_out(to, reinterpret_cast<uint64_t>(from), bytes) != 0)
    return failure("copying an output");
  return {};
}

void* Device::stream() const { return impl_->stream; }

Result<void> Device::synchronize() {
  if (impl_->d.wait_stream(impl_->stream) != 0) return failure("a kernel");
  return {};
}

Result<void> Device::start() {
  if (impl_->d.record(impl_->begin, impl_->stream) != 0) return failure("recording an event");
  return {};
}

Result<float> Device::stop() {
  float ms = 0;
  if (impl_->d.record(impl_->end, impl_->stream) != 0 || impl_->d.wait_event(impl_->end) != 0 ||
      impl_->d.elapsed(&ms, impl_->begin, impl_->end) != 0) {
    return failure("a kernel");
  }
  return ms;
}

}  // namespace tfcc::tools

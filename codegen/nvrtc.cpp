// SPDX-License-Identifier: Apache-2.0
// compile_cuda: NVRTC through a table of functions found at run time, so that tfcc starts without
// CUDA installed.
#include "codegen/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "codegen/templates.h"

namespace tfcc::codegen {
namespace {

// Generic lambdas of functors are for the device too.
constexpr const char* kFlags[] = {"--std=c++17", "--device-as-default-execution-space",
                                  "--ptxas-options=-v"};

using Program = struct OpaqueProgram*;
using Status = int;  // 0 is success

/// NVRTC's C interface, declared by us: it has not changed since CUDA 11.1.
struct Nvrtc {
  Status (*version)(int* major, int* minor);
  Status (*create)(Program*, const char* source, const char* name, int headers,
                   const char* const* texts, const char* const* paths);
  Status (*destroy)(Program*);
  Status (*compile)(Program, int options, const char* const*);
  Status (*log_size)(Program, size_t*);
  Status (*log)(Program, char*);
  Status (*cubin_size)(Program, size_t*);
  Status (*cubin)(Program, char*);
  Status (*ptx_size)(Program, size_t*);
  Status (*ptx)(Program, char*);
  const char* (*error_string)(Status);
  int major = 0;
  int minor = 0;
};

template <class F> bool find(void* library, const char* name, F*& f) {
  f = reinterpret_cast<F*>(dlsym(library, name));
  return f != nullptr;
}

Error missing(const std::string& why) {
  return {ErrorCode::device,
          "NVRTC is missing (" + why +
              "); install the CUDA toolkit 12.8 or newer, or `pip install nvidia-cuda-nvrtc` "
              "and put its lib folder into LD_LIBRARY_PATH"};
}

void* open_library() {
  const char* names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  for (const char* folder : {"", "/usr/local/cuda/lib64/"}) {
    for (const char* name : names) {
      if (void* library = dlopen((std::string(folder) + name).c_str(), RTLD_NOW | RTLD_LOCAL))
        return library;
    }
  }
  return nullptr;
}

Result<Nvrtc> load() {
  void* library = open_library();
  if (!library)
    return missing(
        "no libnvrtc.so.13 or libnvrtc.so.12 on the library path or in /usr/local/cuda/lib64");
  Nvrtc n;
  bool ok =
      find(library, "nvrtcVersion", n.version) && find(library, "nvrtcCreateProgram", n.create) &&
      find(library, "nvrtcDestroyProgram", n.destroy) &&
      find(library, "nvrtcCompileProgram", n.compile) &&
      find(library, "nvrtcGetProgramLogSize", n.log_size) &&
      find(library, "nvrtcGetProgramLog", n.log) &&
      find(library, "nvrtcGetCUBINSize", n.cubin_size) && find(library, "nvrtcGetCUBIN", n.cubin) &&
      find(library, "nvrtcGetPTXSize", n.ptx_size) && find(library, "nvrtcGetPTX", n.ptx) &&
      find(library, "nvrtcGetErrorString", n.error_string);
  if (!ok || n.version(&n.major, &n.minor) != 0)
    return missing("the libnvrtc that was found lacks functions");
  return n;
}

const Result<Nvrtc>& nvrtc() {
  static const Result<Nvrtc> table = load();
  return table;
}

/// Destroys the program at the end of the scope.
struct Guard {
  const Nvrtc& n;
  Program program = nullptr;
  ~Guard() {
    if (program) n.destroy(&program);
  }
};

std::string get_log(const Nvrtc& n, Program program) {
  size_t size = 0;
  if (n.log_size(program, &size) != 0 || size <= 1) return {};
  std::string log(size, '\0');
  if (n.log(program, log.data()) != 0) return {};
  log.resize(size - 1);
  return log;
}

/// The first line that contains `what`, or the first line.
std::string line_with(const std::string& log, std::string_view what) {
  size_t at = log.find(what);
  if (at == std::string::npos) return log.substr(0, log.find('\n'));
  size_t begin = log.rfind('\n', at);
  begin = begin == std::string::npos ? 0 : begin + 1;
  return log.substr(begin, log.find('\n', at) - begin);
}

/// ptxas advice C75xx: an instruction was ignored or serialised, and the result is wrong or slow.
bool has_advice(const std::string& log) {
  for (size_t at = log.find("C75"); at != std::string::npos; at = log.find("C75", at + 1)) {
    auto digit = [&](size_t k) {
      return at + k < log.size() && log[at + k] >= '0' && log[at + k] <= '9';
    };
    if (digit(3) && digit(4)) return true;
  }
  return false;
}

Error failure(const Nvrtc& n, const std::string& name, const std::string& arch, Status status,
              const std::string& log) {
  if (log.find("--gpu-architecture") != std::string::npos) {
    return {
        ErrorCode::unsupported,
        fmt::format("NVRTC {}.{} cannot compile for {}; name a target it knows or install a newer "
                    "CUDA toolkit",
                    n.major, n.minor, arch)};
  }
  std::string why = log.empty() ? n.error_string(status) : line_with(log, "error");
  return {ErrorCode::internal, "kernel " + name + " does not compile for " + arch + ": " + why};
}

int number_before(std::string_view log, size_t end) {
  size_t begin = end;
  while (begin > 0 && log[begin - 1] >= '0' && log[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(log.data() + begin, log.data() + end, value);
  return value;
}

}  // namespace

void read_ptxas_log(const std::string& log, CudaImage& image) {
  image.registers = 0, image.spill_bytes = 0;
  for (size_t at = 0; (at = log.find(" registers", at)) != std::string::npos; ++at) {
    image.registers = std::max(image.registers, number_before(log, at));
  }
  for (size_t at = 0; (at = log.find(" bytes spill", at)) != std::string::npos; ++at) {
    image.spill_bytes += number_before(log, at);
  }
}

Result<CudaImage> compile_cuda(const std::string& name, const std::string& source,
                               const std::string& arch) {
  if (!nvrtc()) return nvrtc().error();
  const Nvrtc& n = *nvrtc();
  bool binary = arch.starts_with("sm_");
  if (!binary && !arch.starts_with("compute_")) {
    return Error{ErrorCode::invalid_argument,
                 "no CUDA architecture '" + arch + "'; write sm_90 or compute_80"};
  }
  std::vector<std::string> paths;
  std::vector<const char*> texts, path_pointers;
  for (const TemplateFile* file : included_templates(Family::cuda, source)) {
    paths.emplace_back(file->path);
    texts.push_back(file->text.data());
  }
  for (const std::string& path : paths) path_pointers.push_back(path.c_str());

  Guard guard{n};
  Status status = n.create(&guard.program, source.c_str(), (name + ".cu").c_str(),
                           static_cast<int>(texts.size()), texts.data(), path_pointers.data());
  if (status != 0) return failure(n, name, arch, status, {});
  std::string gpu = "--gpu-architecture=" + arch;
  std::vector<const char*> options(std::begin(kFlags), std::end(kFlags));
  options.push_back(gpu.c_str());
  status = n.compile(guard.program, static_cast<int>(options.size()), options.data());
  CudaImage image;
  image.log = get_log(n, guard.program);
  if (status != 0) return failure(n, name, arch, status, image.log);
  if (has_advice(image.log)) {
    return Error{ErrorCode::internal,
                 "kernel " + name + " for " + arch + ": " + line_with(image.log, "C75")};
  }
  size_t size = 0;
  status = binary ? n.cubin_size(guard.program, &size) : n.ptx_size(guard.program, &size);
  image.bytes.resize(size);
  char* bytes = reinterpret_cast<char*>(image.bytes.data());
  if (status == 0) status = binary ? n.cubin(guard.program, bytes) : n.ptx(guard.program, bytes);
  if (status != 0 || size == 0)
    return failure(n, name, arch, status, "error: NVRTC returned no code");
  read_ptxas_log(image.log, image);
  return image;
}

Result<std::string> cuda_compiler_version() {
  if (!nvrtc()) return nvrtc().error();
  std::string version = fmt::format("nvrtc {}.{}", nvrtc()->major, nvrtc()->minor);
  for (const char* flag : kFlags) version += std::string(" ") + flag;
  return version;
}

uint32_t least_driver(const std::string& arch) {
  if (!nvrtc()) return 0;
  const int minor = arch.starts_with("compute_") ? nvrtc()->minor : 0;
  return static_cast<uint32_t>(nvrtc()->major * 1000 + minor * 10);
}

}  // namespace tfcc::codegen

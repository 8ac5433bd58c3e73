// SPDX-License-Identifier: Apache-2.0
// The CPU backend: code from a sealed memory file, threads and products from the plug-in
// libtfcc_cpu.so.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

#include "runtime/core/backend.h"
#include "runtime/cpu/fork_guard.h"
#include "runtime/cpu/plugin.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace tfcc::runtime {
namespace {

constexpr const char* kPlugin = "libtfcc_cpu.so";

std::string last_dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown failure";
}

// The folder of the file that holds `symbol`, with a slash behind it.
std::string folder_of(const void* symbol) {
  Dl_info info = {};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
  std::string path = info.dli_fname;
  return path.substr(0, path.find_last_of('/') + 1);
}

std::string folder_of_executable() {
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  std::string text(path, n > 0 ? static_cast<size_t>(n) : 0);
  return text.substr(0, text.find_last_of('/') + 1);
}

// A child of fork() that another thread's dlopen() fell into would wait for the loader's lock for
// ever.
void* open_library(const std::string& path) {
  cpu::ForkGuard guard;
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

void close_library(void* library) {
  cpu::ForkGuard guard;
  dlclose(library);
}

// Opened once and kept: threads and what it registers for fork() outlive any model.
Result<const TfccCpuApi*> open_plugin() {
  std::string own = folder_of(reinterpret_cast<const void*>(&open_plugin));
  std::string exe = folder_of_executable();
  std::string error;
  for (const std::string& path :
       {own + kPlugin, own + "tfcc/" + kPlugin, own + "../lib/tfcc/" + kPlugin, exe + kPlugin,
        exe + "../lib/tfcc/" + kPlugin, exe + "../lib/" + kPlugin, std::string(kPlugin)}) {
    bool plain_name = path.find('/') == std::string::npos;
    if (!plain_name && access(path.c_str(), F_OK) != 0) continue;
    void* library = open_library(path);
    if (library == nullptr) {
      if (error.empty()) error = last_dl_error();
      continue;
    }
    auto* api = reinterpret_cast<const TfccCpuApi* (*)()>(dlsym(library, "tfcc_cpu_api"));
    if (api != nullptr && api()->version == TFCC_CPU_API_VERSION) return api();
    error = path + " belongs to another version of tfcc";
  }
  return Error{ErrorCode::device,
               "cannot open the cpu plug-in " + std::string(kPlugin) + ": " + error +
                   "; put it beside libtfcc.so (it needs libdnnl and libgomp), or build "
                   "with TFCC_CPU=ON"};
}

Result<void> write_code(int fd, std::span<const std::byte> code) {
  while (!code.empty()) {
    ssize_t n = write(fd, code.data(), code.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Error{ErrorCode::io, std::strerror(n < 0 ? errno : ENOSPC)};
    code = code.subspan(static_cast<size_t>(n));
  }
  return {};
}

// A shared object of kernels, loaded from bytes.
class CodeObject {
 public:
  CodeObject() = default;
  CodeObject(const CodeObject&) = delete;
  CodeObject& operator=(const CodeObject&) = delete;
  ~CodeObject() {
    if (library_ != nullptr) close_library(library_);
    if (fd_ >= 0) close(fd_);
  }

  Result<void> load(std::span<const std::byte> code, const std::string& code_dir,
                    const std::string& name) {
    auto memory = from_memory(code);
    if (memory) return {};
    if (code_dir.empty()) {
      return Error{ErrorCode::device,
                   name + ": cannot run code from a memory file: " + memory.error().message +
                       "; name a folder that allows it in LoadOptions::code_dir"};
    }
    auto file = from_file(code, code_dir);
    if (file) return {};
    return Error{ErrorCode::device, name + ": cannot run code from LoadOptions::code_dir '" +
                                        code_dir + "': " + file.error().message +
                                        "; name another folder"};
  }

  void* symbol(const char* name) const { return dlsym(library_, name); }

 private:
  // The descriptor stays open as long as the library: dlopen knows libraries by their path, and a
  // second file on the same descriptor number would be taken for the first.
  Result<void> from_memory(std::span<const std::byte> code) {
    fd_ = memfd_create("tfcc-code", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (fd_ < 0 && errno == EINVAL)
      fd_ = memfd_create("tfcc-code", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0) return Error{ErrorCode::device, std::strerror(errno)};
    TFCC_TRY_VOID(write_code(fd_, code));
    if (fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return Error{ErrorCode::device, std::strerror(errno)};
    }
    return open("/proc/self/fd/" + std::to_string(fd_));
  }

  Result<void> from_file(std::span<const std::byte> code, const std::string& folder) {
    std::string path = folder + "/tfcc-code-XXXXXX";
    int fd = mkostemp(path.data(), O_CLOEXEC);
    if (fd < 0) return Error{ErrorCode::device, std::strerror(errno)};
    auto done = write_code(fd, code);
    close(fd);
    if (done) done = open(path);
    unlink(path.c_str());
    return done;
  }

  Result<void> open(const std::string& path) {
    library_ = open_library(path);
    if (library_ == nullptr) return Error{ErrorCode::device, last_dl_error()};
    return {};
  }

  void* library_ = nullptr;
  int fd_ = -1;
};

using KernelFn = void (*)(const int64_t* n, uint32_t* flags, void* const* args, int64_t begin,
                          int64_t end);

struct AlignedDelete {
  void operator()(std::byte* p) const { std::free(p); }
};

class CpuBackend final : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> make(const BackendSource& s) {
    auto backend = std::make_unique<CpuBackend>();
    const Image& image = s.target.images[0];
    auto section = s.artifact.bytes(s.artifact.sections[s.target.section]);
    TFCC_TRY_VOID(
        backend->code_.load(section.subspan(image.offset, image.size), s.options.code_dir, s.name));
    for (const Kernel& k : s.manifest.plans[s.target.plan].kernels) {
      auto* fn = reinterpret_cast<KernelFn>(backend->code_.symbol(k.name.c_str()));
      if (fn == nullptr) {
        return Error{ErrorCode::bad_file, s.name + ": kernel '" + k.name +
                                              "' is not in its code; compile the model again"};
      }
      backend->kernels_.push_back(fn);
    }
    TFCC_TRY(backend->api_, open_plugin());
    backend->products_ = backend->api_->products_create(s.options.cache_bytes);
    if (backend->products_ == nullptr)
      return Error{ErrorCode::memory, s.name + ": no memory; free some memory"};
    backend->threads_ = s.options.threads;
    backend->log_ = s.options.log;
    backend->file_ = s.name;
    backend->flag_count_ = s.manifest.flags.size();
    TFCC_TRY_VOID(backend->take_weights(s));
    return std::unique_ptr<Backend>(std::move(backend));
  }

  ~CpuBackend() override {
    if (products_ != nullptr) api_->products_destroy(products_);
  }

  const std::string& device_name() const override { return name_; }
  bool on_host() const override { return true; }
  Result<void*> allocate(size_t bytes) const override {
    const size_t rounded = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
    if (void* p = rounded >= bytes ? std::aligned_alloc(256, rounded) : nullptr) return p;
    return Error{ErrorCode::memory,
                 name_ + ": no memory for " + std::to_string(bytes) + " bytes; ask for less"};
  }
  void release(void* memory) const override { std::free(memory); }
  Result<void> copy(std::span<const HostPiece> pieces, bool to_host) const override {
    for (const HostPiece& p : pieces)
      std::memcpy(to_host ? p.host : p.device, to_host ? p.device : p.host, p.bytes);
    return {};
  }
  size_t free_bytes() const override {
    const long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(size) : 0;
  }
  const std::byte* weights() const override { return weights_; }
  Result<std::unique_ptr<Queue>> queue() const override;

 private:
  friend class CpuQueue;

  // In place where they are aligned, which a mapped file is; memory from a caller may not be.
  Result<void> take_weights(const BackendSource& s) {
    if (s.weights_of) {
      weights_ = s.weights_of->weights();
      return {};
    }
    const Section* section = s.artifact.find(SectionKind::weights);
    if (section == nullptr) return {};
    auto bytes = s.artifact.bytes(*section);
    weights_ = bytes.data();
    if (reinterpret_cast<uintptr_t>(weights_) % kWeightAlignment == 0 || bytes.empty()) return {};
    size_t rounded = (bytes.size() + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
    copy_.reset(static_cast<std::byte*>(std::aligned_alloc(kWeightAlignment, rounded)));
    if (copy_ == nullptr) {
      return Error{ErrorCode::memory,
                   s.name + ": no memory to align the weights; give memory aligned to 64"};
    }
    std::memcpy(copy_.get(), bytes.data(), bytes.size());
    weights_ = copy_.get();
    return {};
  }

  std::string name_ = "cpu";
  CodeObject code_;
  std::vector<KernelFn> kernels_;
  const TfccCpuApi* api_ = nullptr;
  void* products_ = nullptr;  // kernels of oneDNN, shared by the executors
  int threads_ = 0;
  LogSink log_;
  std::string file_;  // for messages
  size_t flag_count_ = 0;
  const std::byte* weights_ = nullptr;
  std::unique_ptr<std::byte, AlignedDelete> copy_;
};

// Time on the host's clock: a CPU's work is done when its launch returns.
class CpuStopwatch final : public Stopwatch {
 public:
  CpuStopwatch(const TfccCpuApi& api, void* pool) : api_(api), pool_(pool) {}

  Result<void> mark(void*) override {
    marks_.push_back(std::chrono::steady_clock::now());
    return {};
  }
  Result<void> marked(std::vector<double>& ms) override {
    ms.clear();
    for (size_t i = 1; i < marks_.size(); ++i) {
      ms.push_back(std::chrono::duration<double, std::milli>(marks_[i] - marks_[i - 1]).count());
    }
    marks_.clear();
    return {};
  }
  Result<void> copy(void*, void* to, const void* from, size_t bytes) override {
    struct Context {
      std::byte* to;
      const std::byte* from;
    } context = {static_cast<std::byte*>(to), static_cast<const std::byte*>(from)};
    auto range = [](void* p, int64_t begin, int64_t end) {
      auto& c = *static_cast<Context*>(p);
      std::memcpy(c.to + begin, c.from + begin, static_cast<size_t>(end - begin));
    };
    api_.parallel_for(pool_, static_cast<int64_t>(bytes), 4096, range, &context);
    return {};
  }

 private:
  const TfccCpuApi& api_;
  void* pool_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

class CpuQueue final : public Queue {
 public:
  CpuQueue(const CpuBackend& backend, void* pool)
      : backend_(backend),
        api_(*backend.api_),
        pool_(pool),
        flags_(backend.flag_count_),
        ended_{flags_, flags_},
        stopwatch_(api_, pool) {}
  ~CpuQueue() override {
    CpuQueue::trim();
    api_.destroy(pool_);
  }

  Result<void*> allocate(size_t bytes, const char* what) override {
    size_t rounded = (bytes + 255) / 256 * 256;
    if (void* p = rounded >= bytes ? std::aligned_alloc(256, rounded) : nullptr) return p;
    return Error{ErrorCode::memory, std::string(what) + ": no memory for " + std::to_string(bytes) +
                                        " bytes; use smaller shapes"};
  }
  void release(void* memory) override { std::free(memory); }

  Result<size_t> prepare_matmul(const MatmulShape& s) override {
    if (auto found = matmul_index_.find(s); found != matmul_index_.end()) return found->second;
    for (DType t : {s.a, s.b, s.d, s.bias}) {
      if (t == DType::f32) continue;
      return Error{ErrorCode::unsupported,
                   std::string("products of ") + to_string(t) +
                       " do not run on the cpu; compile the cpu target in f32"};
    }
    TfccCpuMatmul g = {s.m,        s.n,       s.k,       s.batch,    s.stride_a,
                       s.stride_b, s.trans_a, s.trans_b, s.has_bias, s.alpha};
    char message[256] = "";
    void* matmul = api_.matmul_create(pool_, backend_.products_, &g, message, sizeof message);
    if (matmul == nullptr) return Error{ErrorCode::device, std::string("onednn: ") + message};
    matmuls_.push_back(matmul);
    matmul_index_[s] = matmuls_.size() - 1;
    return matmuls_.size() - 1;
  }

  // Those of other sizes stay in the model's cache, within its limit; an executor holds what its
  // sizes need.
  void trim() override {
    for (void* g : matmuls_) api_.matmul_destroy(g);
    matmuls_.clear();
    matmul_index_.clear();
  }

  Result<void> begin(void*, std::span<const int64_t> values) override {
    values_ = values.data();
    std::fill(flags_.begin(), flags_.end(), 0);
    return {};
  }

  Result<void> launch(void*, const KernelCall& call) override {
    struct Context {
      KernelFn fn;
      const int64_t* n;
      uint32_t* flags;
      void* const* args;
    } context = {backend_.kernels_[call.kernel], values_, flags_.data(), call.args.data()};
    auto range = [](void* p, int64_t begin, int64_t end) {
      auto& c = *static_cast<Context*>(p);
      c.fn(c.n, c.flags, c.args, begin, end);
    };
    api_.parallel_for(pool_, call.work, call.grain, range, &context);
    return {};
  }

  Result<void> matmul(void*, size_t handle, const MatmulOperands& o) override {
    int status = api_.matmul_run(matmuls_[handle], o.a, o.b, o.bias, o.d);
    if (status == 0) return {};
    return Error{ErrorCode::device, "onednn: a product failed with status " +
                                        std::to_string(status) + "; report it with the model"};
  }

  Result<void> copy_in(void*, void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Result<void> copy_out(void*, void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Result<void> wait() override { return {}; }

  Stopwatch& stopwatch() override { return stopwatch_; }

  Result<void> read_sizes(std::span<int64_t> sizes) override {
    std::copy_n(values_, sizes.size(), sizes.begin());
    return {};
  }
  Result<void> end_run(size_t side) override {
    ended_[side] = flags_;
    return {};
  }
  Result<void> take_flags(std::span<uint32_t> flags, size_t side) override {
    std::copy(ended_[side].begin(), ended_[side].end(), flags.begin());
    std::fill(ended_[side].begin(), ended_[side].end(), 0);
    return {};
  }
  void* io_slot(size_t) const override { return nullptr; }
  void* own_stream() const override { return nullptr; }

 private:
  const CpuBackend& backend_;
  const TfccCpuApi& api_;
  void* pool_;
  std::vector<uint32_t> flags_;                 // of the run under way
  std::array<std::vector<uint32_t>, 2> ended_;  // of those that have ended, by side
  const int64_t* values_ = nullptr;
  std::vector<void*> matmuls_;
  std::map<MatmulShape, size_t> matmul_index_;
  CpuStopwatch stopwatch_;
};

Result<std::unique_ptr<Queue>> CpuBackend::queue() const {
  void* pool = api_->create(threads_);
  if (pool == nullptr)
    return Error{ErrorCode::memory, "no memory for the cpu threads; free some memory"};
  if (log_ && api_->threads(pool) < threads_) {
    log_(file_ + ": only " + std::to_string(api_->threads(pool)) + " of " +
         std::to_string(threads_) + " threads could be started; runs take longer");
  }
  return std::unique_ptr<Queue>(std::make_unique<CpuQueue>(*this, pool));
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendSource& source) {
  return CpuBackend::make(source);
}

}  // namespace tfcc::runtime

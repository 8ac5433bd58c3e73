// SPDX-License-Identifier: Apache-2.0
// Model: from a file or memory to verified bytes, a chosen target and a backend with weights and
// code.
#include "runtime/core/model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/generation.h"
#include "runtime/core/sequences.h"

namespace tfcc {
namespace runtime {

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

namespace {

Error unreadable(const std::string& path, int code) {
  return {ErrorCode::io, path + ": cannot read: " + std::strerror(code) + "; check the path"};
}

// Memory in whole pages, so that the weights lie aligned in it as they do in a mapped file.
Result<std::span<std::byte>> pages(size_t size, const std::string& name) {
  if (size == 0) return std::span<std::byte>();
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p != MAP_FAILED) return std::span(static_cast<std::byte*>(p), size);
  return Error{ErrorCode::memory, name + ": no memory for its " + std::to_string(size) +
                                      " bytes; free some memory, or load it without in_memory"};
}

// Fills the span. A file that ends before, since somebody changes it meanwhile, is an error.
Result<void> read_all(int fd, std::span<std::byte> to, const std::string& path) {
  while (!to.empty()) {
    ssize_t n = ::read(fd, to.data(), to.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unreadable(path, errno);
    if (n == 0)
      return Error{ErrorCode::io, path + ": became shorter while it was read; load it again"};
    to = to.subspan(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace

Result<MappedFile> MappedFile::read(const std::string& path) {
  int fd = ::open(path.c_str(),
                  O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe must not wait for a writer
  if (fd < 0) return unreadable(path, errno);
  MappedFile file;
  auto fill = [&]() -> Result<void> {
    struct stat info = {};
    if (fstat(fd, &info) != 0) return unreadable(path, errno);
    if (S_ISDIR(info.st_mode)) return unreadable(path, EISDIR);
    TFCC_TRY(auto memory, pages(static_cast<size_t>(info.st_size), path));
    file.bytes_ = memory;
    return read_all(fd, memory, path);
  };
  auto done = fill();
  close(fd);
  if (!done) return done.error();
  return file;
}

Result<MappedFile> MappedFile::copy(std::span<const std::byte> bytes, const std::string& name) {
  MappedFile file;
  TFCC_TRY(auto memory, pages(bytes.size(), name));
  std::copy(bytes.begin(), bytes.end(), memory.begin());
  file.bytes_ = memory;
  return file;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  auto failure = [&](int code) { return unreadable(path, code); };
  int fd = ::open(path.c_str(),
                  O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe must not wait for a writer
  if (fd < 0) return failure(errno);
  struct stat info = {};
  int code = fstat(fd, &info) != 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
  if (code == 0 && !S_ISREG(info.st_mode)) {
    close(fd);
    return Error{ErrorCode::io, path + ": cannot read: not a regular file; copy it to one"};
  }
  MappedFile file;
  if (code == 0 && info.st_size > 0) {
    auto size = static_cast<size_t>(info.st_size);
    void* p = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      code = errno;
    } else {
      file.bytes_ = {static_cast<const std::byte*>(p), size};
    }
  }
  close(fd);
  if (code != 0) return failure(code);
  return file;
}

namespace {

DimInfo describe(const Manifest& m, const SizeExpr& dim) {
  DimInfo info;
  info.text = dim.print();
  if (auto c = dim.constant()) {
    info.min = info.max = *c;
  } else if (auto s = dim.lone_symbol()) {
    info.text = m.symbols[*s].name;
    info.min = m.symbols[*s].min;
    info.max = m.symbols[*s].max;
    info.role = m.symbols[*s].role;
  }
  return info;
}

std::vector<TensorInfo> describe(const Manifest& m, const std::vector<TensorType>& tensors) {
  std::vector<TensorInfo> infos;
  // Files of before have no roles: then names tell.
  const auto told = [](const TensorType& t) { return t.role != InputRole::none || t.state; };
  const bool by_names = std::ranges::none_of(tensors, told);
  for (const TensorType& t : tensors) {
    if (t.role > InputRole::cu_seqlens) continue;  // follows from it: nobody sets it
    TensorInfo& info = infos.emplace_back();
    info.name = t.name;
    info.dtype = t.dtype;
    info.state = t.state;
    info.role = by_names && &tensors == &m.inputs ? role_by_name(t.name, t.dtype) : t.role;
    for (const SizeExpr& dim : t.dims) info.dims.push_back(describe(m, dim));
  }
  return infos;
}

Result<void> verify_weights(const Artifact& a, const Manifest& m, const std::string& name) {
  const Section* section = a.find(SectionKind::weights);
  if (section == nullptr) return {};
  auto bytes = a.bytes(*section);
  for (const Weight& w : m.weights) {
    if (checksum(bytes.subspan(w.offset, w.size)) == w.checksum) continue;
    return Error{ErrorCode::bad_file,
                 name + ": weight '" + w.name + "' is altered; compile or copy the file again"};
  }
  return verify_section(a, *section, name);
}

Result<std::unique_ptr<Backend>> make_backend(const Model::Impl& impl, int gpu) {
  BackendSource source{impl.artifact, impl.manifest,
                       *impl.target,  impl.options,
                       impl.name,     impl.file ? impl.file->backend.get() : nullptr};
  return gpu < 0 ? make_cpu_backend(source) : make_cuda_backend(source, gpu);
}

// The chosen target's code is verified before anything maps it executable.
Result<void> start(Model::Impl& impl, const Choice& choice) {
  impl.choice = choice;
  impl.target = choice.target;
  impl.plan = &impl.manifest.plans[choice.target->plan];
  TFCC_TRY_VOID(
      verify_section(impl.artifact, impl.artifact.sections[impl.target->section], impl.name));
  TFCC_TRY(impl.backend, make_backend(impl, choice.gpu));
  return {};
}

Result<void> check_options(const LoadOptions& o) {
  if (o.threads >= 0 && o.threads <= kMaxThreads) return {};
  return Error{ErrorCode::invalid_argument,
               "LoadOptions::threads is " + std::to_string(o.threads) + ", must be from 0 to " +
                   std::to_string(kMaxThreads) + "; 0 is one per physical core"};
}

Result<std::shared_ptr<const Model::Impl>> load_impl(std::shared_ptr<Model::Impl> impl,
                                                     std::span<const std::byte> file) {
  TFCC_TRY(impl->artifact, read_artifact(file, impl->name));
  TFCC_TRY(impl->manifest, read_manifest(impl->artifact.manifest, impl->name));
  TFCC_TRY_VOID(check_manifest(impl->manifest, impl->artifact, impl->name));
  if (impl->options.verify_weights) {
    TFCC_TRY_VOID(verify_weights(impl->artifact, impl->manifest, impl->name));
  }
  TFCC_TRY(Choice choice, choose_target(impl->manifest, impl->options.device, impl->name));
  if (!choice.note.empty() && impl->options.log) impl->options.log(choice.note);
  auto started = start(*impl, choice);
  // A GPU whose libraries are incomplete is no reason to fail where nobody asked for it by name.
  if (!started && choice.gpu >= 0 && impl->options.device == "auto") {
    if (const Target* cpu = best_for_cpu(impl->manifest)) {
      if (impl->options.log) impl->options.log(started.error().message + "; using the cpu");
      started = start(*impl, {cpu, -1, ""});
    }
  }
  if (!started) return started.error();
  impl->inputs = describe(impl->manifest, impl->manifest.inputs);
  impl->outputs = describe(impl->manifest, impl->manifest.outputs);
  return std::shared_ptr<const Model::Impl>(std::move(impl));
}

}  // namespace
}  // namespace runtime

inline namespace v1 {

Model::Impl::~Impl() {
  if (!here()) (void)backend.release();  // the driver knows nothing of it in this process
}

Result<void> Model::Impl::here() const {
  if (backend == nullptr || backend->on_host() || process == getpid()) return {};
  return Error{
      ErrorCode::device,
      name +
          ": the GPU was opened before fork() and is not there in the child; load the model in the child alone"};
}

Model::Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<Model> Model::load(const std::string& path, const LoadOptions& options) {
  TFCC_TRY_VOID(runtime::check_options(options));
  auto impl = std::make_shared<Impl>();
  impl->name = path;
  impl->options = options;
  TFCC_TRY(impl->map,
           options.in_memory ? runtime::MappedFile::read(path) : runtime::MappedFile::open(path));
  auto bytes = impl->map.bytes();
  TFCC_TRY(auto loaded, runtime::load_impl(std::move(impl), bytes));
  return Model(std::move(loaded));
}

Result<Model> Model::load(std::span<const std::byte> file, const LoadOptions& options) {
  TFCC_TRY_VOID(runtime::check_options(options));
  auto impl = std::make_shared<Impl>();
  impl->name = "file in memory";
  impl->options = options;
  if (options.in_memory) {
    TFCC_TRY(impl->map, runtime::MappedFile::copy(file, impl->name));
    file = impl->map.bytes();
  }
  TFCC_TRY(auto loaded, runtime::load_impl(std::move(impl), file));
  return Model(std::move(loaded));
}

Result<std::string> Model::attachment(std::string_view name) const {
  const runtime::Section* section = impl_->artifact.find(runtime::SectionKind::text);
  for (const runtime::Text& t : impl_->manifest.texts) {
    if (!section || !t.name.starts_with(runtime::kAttachmentPrefix) ||
        t.name.substr(std::strlen(runtime::kAttachmentPrefix)) != name)
      continue;
    TFCC_TRY_VOID(runtime::verify_section(impl_->artifact, *section, impl_->name));
    const auto bytes = impl_->artifact.bytes(*section).subspan(t.offset, t.size);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return Error{ErrorCode::invalid_argument,
               impl_->name + ": holds no file '" + std::string(name) +
                   "'; `tfcc compile --tokenizer FOLDER` keeps a tokenizer's"};
}

struct Memory::Impl {
  ~Impl() {
    if (!model->here()) return;  // the driver knows nothing of it in this process
    of_host ? model->backend->release_host(data) : model->backend->release(data);
  }
  Result<void> copy(std::span<const Piece> pieces, bool to_host) const;
  std::shared_ptr<const Model::Impl> model;
  void* data = nullptr;
  size_t bytes = 0;
  bool of_host = false;
};

Result<void> Memory::Impl::copy(std::span<const Piece> pieces, bool to_host) const {
  TFCC_TRY_VOID(model->here());
  std::vector<runtime::HostPiece> copies;
  for (const Piece& p : pieces) {
    if (p.offset > bytes || p.bytes > bytes - p.offset)
      return Error{ErrorCode::invalid_argument, "bytes " + std::to_string(p.offset) + " to " +
                                                    std::to_string(p.offset + p.bytes) +
                                                    " of a memory of " + std::to_string(bytes)};
    copies.push_back({static_cast<std::byte*>(data) + p.offset, p.host, p.bytes});
  }
  if (!of_host) return model->backend->copy(copies, to_host);
  for (const runtime::HostPiece& c : copies)
    std::memcpy(to_host ? c.host : c.device, to_host ? c.device : c.host, c.bytes);
  return {};
}

Memory::Memory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
Memory::~Memory() = default;
void* Memory::data() const { return impl_->data; }
size_t Memory::bytes() const { return impl_->bytes; }
Place Memory::place() const {
  return impl_->of_host || impl_->model->backend->on_host() ? Place::host : Place::device;
}
Result<void> Memory::read(std::span<const Piece> pieces) const { return impl_->copy(pieces, true); }
Result<void> Memory::write(std::span<const Piece> pieces) { return impl_->copy(pieces, false); }

Result<Memory> Model::allocate(size_t bytes) const {
  TFCC_TRY_VOID(impl_->here());
  TFCC_TRY(void* const data, impl_->backend->allocate(bytes));
  return Memory(std::unique_ptr<Memory::Impl>(new Memory::Impl{impl_, data, bytes, false}));
}

Result<Memory> Model::allocate_host(size_t bytes) const {
  TFCC_TRY_VOID(impl_->here());
  TFCC_TRY(void* const data, impl_->backend->allocate_host(bytes));
  return Memory(std::unique_ptr<Memory::Impl>(new Memory::Impl{impl_, data, bytes, true}));
}

size_t Model::free_bytes() const { return impl_->here() ? impl_->backend->free_bytes() : 0; }

bool Model::generation_alone() const { return impl_->manifest.generation_alone; }

namespace {

// Another program of a file, not started yet: on the same device and with the same weights.
std::shared_ptr<Model::Impl> beside(const std::shared_ptr<const Model::Impl>& file,
                                    runtime::Manifest manifest) {
  auto impl = std::make_shared<Model::Impl>();
  impl->name = file->name;
  impl->options = file->options;
  impl->file = file;
  impl->artifact = file->artifact;
  impl->manifest = std::move(manifest);
  impl->inputs = runtime::describe(impl->manifest, impl->manifest.inputs);
  impl->outputs = runtime::describe(impl->manifest, impl->manifest.outputs);
  return impl;
}

Result<void> start_beside(Model::Impl& impl, const std::string& program) {
  const auto& targets = impl.manifest.targets;
  const auto same = std::find_if(targets.begin(), targets.end(), [&](const runtime::Target& t) {
    return t.name == impl.file->target->name;
  });
  if (same == targets.end())
    return Error{ErrorCode::bad_file, impl.name + ": " + program + " has no code for " +
                                          impl.file->target->name + "; compile it again"};
  return runtime::start(impl, {&*same, impl.file->choice.gpu, ""});
}

Error not_of_this_version(const std::string& name, const std::string& program,
                          const std::string& why) {
  return {ErrorCode::bad_file, name + ": " + program + " is not one of this version, " + why +
                                   "; compile the model again"};
}

}  // namespace

Result<Model> Model::generation() const {
  const std::string program = "the program for generation";
  const runtime::Manifest& m = impl_->manifest;
  const auto checked = [&](const Impl& impl) -> Result<void> {
    const std::string why = runtime::no_generation_program(impl.inputs, impl.outputs);
    if (why.empty()) return {};
    return not_of_this_version(impl_->name, program, why);
  };
  if (m.generation_alone) {
    TFCC_TRY_VOID(checked(*impl_));
    return *this;
  }
  if (m.generation.empty()) {
    const std::string why = m.no_generation.empty() ? "" : ": " + m.no_generation;
    return Error{ErrorCode::unsupported, impl_->name + ": has no program for generation" + why};
  }
  auto impl = beside(impl_, runtime::generation_of(m));
  TFCC_TRY_VOID(checked(*impl));
  TFCC_TRY_VOID(start_beside(*impl, program));
  return Model(std::move(impl));
}

Result<Model> Model::ragged() const {
  const std::string program = "the program without padding";
  const runtime::Manifest& m = impl_->manifest;
  if (runtime::no_ragged_program(m).empty()) return *this;
  if (m.ragged.empty()) {
    return Error{ErrorCode::unsupported,
                 impl_->name + ": takes padded tensors alone: " +
                     (m.no_ragged.empty() ? "compile it with --ragged" : m.no_ragged)};
  }
  if (const std::string why = runtime::no_ragged_program(m.ragged[0]); !why.empty())
    return not_of_this_version(impl_->name, program, why);
  auto impl = beside(impl_, runtime::ragged_of(m));
  TFCC_TRY_VOID(start_beside(*impl, program));
  return Model(std::move(impl));
}

const std::vector<TensorInfo>& Model::inputs() const { return impl_->inputs; }
const std::vector<TensorInfo>& Model::outputs() const { return impl_->outputs; }
const std::string& Model::target() const { return impl_->target->name; }
const std::string& Model::device() const { return impl_->backend->device_name(); }

}  // namespace v1
}  // namespace tfcc

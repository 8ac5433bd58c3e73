// SPDX-License-Identifier: Apache-2.0
// Model: from a file or memory to verified bytes, a chosen target and a backend with weights and
// code.
#include "runtime/model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tfcc {
namespace runtime {

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  auto failure = [&](int code) {
    return Error{ErrorCode::io,
                 path + ": cannot read: " + std::strerror(code) + "; check the path"};
  };
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe must not wait for a writer
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
  }
  return info;
}

std::vector<TensorInfo> describe(const Manifest& m, const std::vector<TensorType>& tensors) {
  std::vector<TensorInfo> infos;
  for (const TensorType& t : tensors) {
    TensorInfo& info = infos.emplace_back();
    info.name = t.name;
    info.dtype = t.dtype;
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
    return Error{ErrorCode::bad_file, name + ": weight '" + w.name +
                                          "' is altered; compile or copy the file again"};
  }
  return verify_section(a, *section, name);
}

Result<std::unique_ptr<Backend>> make_backend(const Model::Impl& impl, int gpu) {
  BackendSource source{impl.artifact, impl.manifest, *impl.target, impl.options, impl.name};
  return gpu < 0 ? make_cpu_backend(source) : make_cuda_backend(source, gpu);
}

// The chosen target's code is verified before anything maps it executable.
Result<void> start(Model::Impl& impl, const Choice& choice) {
  impl.target = choice.target;
  impl.plan = &impl.manifest.plans[choice.target->plan];
  TFCC_TRY_VOID(
      verify_section(impl.artifact, impl.artifact.sections[impl.target->section], impl.name));
  TFCC_TRY(impl.backend, make_backend(impl, choice.gpu));
  return {};
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
  auto started = start(*impl, choice);
  // A GPU whose libraries are incomplete is no reason to fail where nobody asked for it by name.
  if (!started && choice.gpu >= 0 && impl->options.device == "auto") {
    if (const Target* cpu = best_for_cpu(impl->manifest)) {
      if (impl->options.log) impl->options.log(started.error().message + "; using the cpu");
      started = start(*impl, {cpu, -1});
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

Model::Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<Model> Model::load(const std::string& path, const LoadOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->name = path;
  impl->options = options;
  TFCC_TRY(impl->map, runtime::MappedFile::open(path));
  auto bytes = impl->map.bytes();
  TFCC_TRY(auto loaded, runtime::load_impl(std::move(impl), bytes));
  return Model(std::move(loaded));
}

Result<Model> Model::load(std::span<const std::byte> file, const LoadOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->name = "file in memory";
  impl->options = options;
  TFCC_TRY(auto loaded, runtime::load_impl(std::move(impl), file));
  return Model(std::move(loaded));
}

const std::vector<TensorInfo>& Model::inputs() const { return impl_->inputs; }
const std::vector<TensorInfo>& Model::outputs() const { return impl_->outputs; }
const std::string& Model::target() const { return impl_->target->name; }
const std::string& Model::device() const { return impl_->backend->device_name(); }

}  // namespace v1
}  // namespace tfcc

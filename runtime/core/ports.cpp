// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/ports.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/backend.h"

namespace tfcc::runtime {

Ports::Ports(const Manifest& manifest, Queue& queue, bool on_host)
    : manifest_(manifest),
      queue_(queue),
      on_host_(on_host),
      ports_(manifest.inputs.size() + manifest.outputs.size()),
      addresses_(ports_.size()),
      sequences_(manifest) {
  for (size_t i = 0; i < ports_.size(); ++i) {
    ports_[i].is_input = i < manifest.inputs.size();
    ports_[i].type =
        ports_[i].is_input ? &manifest.inputs[i] : &manifest.outputs[i - manifest.inputs.size()];
    if (ports_[i].is_input) shapes_.push_back(&ports_[i].ref.shape);
  }
}

Ports::~Ports() {
  for (Port& p : ports_) {
    for (Grown& memory : p.device) queue_.release(memory.data);
  }
  queue_.release(staging_.device);
  for (void* host : staging_.host) queue_.release_host(host);
}

void Ports::abandon() {
  for (Port& p : ports_) {
    for (HostMemory& memory : p.host) (void)memory.data.release();
    for (Grown& memory : p.device) memory = {};
  }
  staging_ = {};
}

// An input and an output may share a name; inputs come first.
Port* Ports::find(std::string_view name, bool output_only) {
  for (Port& p : ports_) {
    if (p.type->name == name && !(output_only && p.is_input)) return &p;
  }
  return nullptr;
}

Result<Port*> Ports::require(std::string_view name, bool output_only) {
  if (Port* found = find(name, output_only)) return found;
  std::string known[2];
  for (const Port& p : ports_) {
    if (is_table(p) && p.type->role != InputRole::cu_seqlens) continue;  // nobody sets them
    std::string& list = known[p.is_input ? 0 : 1];
    list += (list.empty() ? "" : ", ") + p.type->name;
  }
  std::string message = output_only ? "no output is named '" : "no input or output is named '";
  message += std::string(name) + "'; ";
  if (!output_only) message += "inputs: " + known[0] + "; ";
  return Error{ErrorCode::invalid_argument, message + "outputs: " + known[1]};
}

Result<void> Ports::set(std::string_view name, const TensorRef& tensor) {
  TFCC_TRY(Port * p, require(name, false));
  if (is_table(*p)) return set_sequences(*p, tensor);
  if (tensor.dtype != p->type->dtype) {
    return Error{ErrorCode::invalid_argument, role(*p) + ": dtype is " + to_string(tensor.dtype) +
                                                  ", must be " + to_string(p->type->dtype)};
  }
  TFCC_TRY_VOID(check_shape(*p, tensor.shape));
  if (tensor.data == nullptr && bytes_of(tensor.shape, tensor.dtype) > 0) {
    return Error{ErrorCode::invalid_argument, role(*p) + ": data is null"};
  }
  if (tensor.place == Place::device && on_host_) {
    return Error{
        ErrorCode::invalid_argument,
        role(*p) + ": device memory given to a model that runs on the cpu; use Place::host"};
  }
  constexpr uintptr_t kStateAlignment = 16;
  if (p->type->state && tensor.place == Place::device &&
      reinterpret_cast<uintptr_t>(tensor.data) % kStateAlignment != 0) {
    return Error{ErrorCode::invalid_argument,
                 role(*p) + ": its memory, which runs change in place, is not aligned to 16 bytes"};
  }
  p->ref = tensor;
  p->is_set = true;
  p->fed = nullptr;
  // An output of this name is the same tensor: in device memory it stays where it is.
  Port* same = p->is_input && tensor.place == Place::device ? find(name, true) : nullptr;
  if (same != nullptr) {
    same->ref = tensor;
    same->is_set = true;
  }
  return {};
}

Result<void> Ports::clear(std::string_view name) {
  TFCC_TRY(Port * p, require(name, false));
  TFCC_TRY_VOID(check_told(*p));
  for (Port* each : {p, find(name, true)}) {
    if (each == nullptr) continue;
    each->ref = {};
    each->is_set = false;
    each->fed = nullptr;
  }
  return {};
}

Result<void> Ports::feed_back(std::string_view output, std::string_view input) {
  TFCC_TRY(const Port* from, require(output, true));
  Port* to = find(input, false);
  if (to == nullptr || !to->is_input || to->type->state) {
    return Error{ErrorCode::invalid_argument,
                 "no input is named '" + std::string(input) + "' that an output can be"};
  }
  if (!ran_ || from->is_set) {
    return Error{ErrorCode::invalid_argument,
                 role(*from) + (ran_ ? " goes to memory that was set; it can be read there"
                                     : ": there is no run that gives it")};
  }
  const Tensor& result = from->result[last_];
  if (result.dtype != to->type->dtype) {
    return Error{ErrorCode::invalid_argument, role(*to) + ": dtype is " + to_string(result.dtype) +
                                                  ", must be " + to_string(to->type->dtype)};
  }
  TFCC_TRY_VOID(check_shape(*to, result.shape));
  to->ref.data = nullptr;
  to->ref.dtype = result.dtype;
  to->ref.shape.assign(result.shape.begin(), result.shape.end());  // in the memory that it has
  to->ref.place = Place::host;
  to->is_set = true;
  to->fed = from;
  return {};
}

bool Ports::feeds() const {
  return std::any_of(ports_.begin(), ports_.end(), [](const Port& p) { return p.fed != nullptr; });
}

void Ports::forget_feeds() {
  for (Port& p : ports_) {
    if (p.fed == nullptr) continue;
    p.fed = nullptr;
    p.is_set = false;
  }
}

void* Ports::fed_address(const Port& p) const {
  return on_host_ ? p.fed->host[last_].data.get() : p.fed->device[last_].data;
}

Result<void> Ports::symbols(std::vector<int64_t>& out) const {
  for (const Port& p : ports_) {
    if (!p.is_input || p.is_set) continue;
    return Error{ErrorCode::invalid_argument, (is_table(p) ? std::string("cu_seqlens") : role(p)) +
                                                  " is not set; give it with set()"};
  }
  TFCC_TRY_VOID(check_tokens());
  return read_symbols(manifest_, shapes_, out);
}

Result<void> Ports::symbols_for(const Shapes& of_caller, std::vector<int64_t>& out) const {
  TFCC_TRY(const Shapes given, with_tables(of_caller));
  std::vector<const Shape*> found(manifest_.inputs.size(), nullptr);
  for (const auto& [name, shape] : given) {
    size_t i = 0;
    while (i < found.size() && ports_[i].type->name != name) ++i;
    if (i == found.size()) {
      return Error{ErrorCode::invalid_argument,
                   "no input is named '" + name + "'; see Model::inputs()"};
    }
    TFCC_TRY_VOID(check_shape(ports_[i], shape));
    found[i] = &shape;
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != nullptr) continue;
    return Error{ErrorCode::invalid_argument, role(ports_[i]) + " has no shape; name every input"};
  }
  return read_symbols(manifest_, found, out);
}

// Memory given for an output must have the shape that comes out.
Result<void> Ports::check_outputs(const Binding& of) const {
  for (const Port& p : ports_) {
    if (p.is_input || !p.is_set || p.ref.shape == shape_of(p, of)) continue;
    std::string got, want;
    for (int64_t d : p.ref.shape) got += (got.empty() ? "" : ", ") + std::to_string(d);
    for (int64_t d : shape_of(p, of)) want += (want.empty() ? "" : ", ") + std::to_string(d);
    return Error{ErrorCode::shape, role(p) + ": shape is [" + got + "], must be [" + want +
                                       "] for " + print_symbols(manifest_, of.symbols())};
  }
  return {};
}

// What run() needs beside the arena: copies on the device, and host memory for outputs without any.
// Small inputs share the memory that is copied at once, as far as it goes.
Result<void> Ports::own_memory(const Binding& of) {
  TFCC_TRY_VOID(make_staging(side_));
  staging_.used = 0;
  for (size_t i = 0; i < ports_.size(); ++i) {
    Port& p = ports_[i];
    bool on_device = p.is_set && p.ref.place == Place::device;
    size_t bytes = p.is_input ? (p.is_set ? bytes_of(p.ref.shape, p.type->dtype) : 0)
                              : bytes_of(shape_of(p, of), p.type->dtype);
    p.staged.reset();
    if (p.fed != nullptr) continue;
    if (staging_.host[side_] != nullptr && p.is_input && !p.type->state && !on_device &&
        bytes <= kStagingBytes - staging_.used) {
      p.staged = staging_.used;
      staging_.used = std::min(kStagingBytes, (staging_.used + bytes + 255) / 256 * 256);
    } else if (!on_host_ && !on_device) {
      TFCC_TRY_VOID(grow_device(own_device(p), p, bytes));
    }
    if (!p.is_input && !p.is_set) TFCC_TRY_VOID(p.host[side_].grow(bytes, *p.type, queue_));
  }
  return {};
}

Result<void> Ports::make_staging(size_t side) {
  if (on_host_ || staging_.host[side] != nullptr) return {};
  if (staging_.device == nullptr) {
    TFCC_TRY(staging_.device, queue_.allocate(kStagingBytes, "the inputs"));
  }
  staging_.host[side] = queue_.allocate_host(kStagingBytes);  // null: they are copied one by one
  return {};
}

Result<void> Ports::grow_device(Grown& memory, const Port& p, size_t bytes) {
  if (bytes <= memory.bytes) return {};
  queue_.release(memory.data);
  memory = {};
  TFCC_TRY(memory.data, queue_.allocate(bytes, p.type->name.c_str()));
  memory.bytes = bytes;
  return {};
}

Result<void> Ports::choose_addresses(bool own_stream) {
  for (size_t i = 0; i < ports_.size(); ++i) {
    Port& p = ports_[i];
    bool on_device = p.is_set && p.ref.place == Place::device;
    if (p.fed != nullptr && own_stream) {
      addresses_[i] = fed_address(p);
      continue;
    }
    if (!own_stream && !on_device && !is_table(p)) {
      return Error{ErrorCode::invalid_argument,
                   role(p) + (p.is_set ? " is in host memory" : " is not set") +
                       "; enqueue() takes device memory for every input and output, run() takes "
                       "host memory"};
    }
    addresses_[i] = on_device   ? p.ref.data
                    : p.staged  ? static_cast<std::byte*>(staging_.device) + *p.staged
                    : !on_host_ ? own_device(p).data
                    : p.is_set  ? p.ref.data
                                : p.host[side_].data.get();
  }
  return {};
}

Result<void> Ports::copy_in(void* stream) {
  if (on_host_) return {};
  tables_there_ = false;
  for (size_t i = 0; i < manifest_.inputs.size(); ++i) {
    const Port& p = ports_[i];
    size_t bytes = bytes_of(p.ref.shape, p.type->dtype);
    if (p.ref.place == Place::device || bytes == 0 || p.fed != nullptr) continue;
    if (p.staged)
      std::memcpy(static_cast<std::byte*>(staging_.host[side_]) + *p.staged, p.ref.data, bytes);
    else TFCC_TRY_VOID(queue_.copy_in(stream, addresses_[i], p.ref.data, bytes));
  }
  return staging_.used > 0
             ? queue_.copy_in(stream, staging_.device, staging_.host[side_], staging_.used)
             : Result<void>();
}

Result<void> Ports::copy_out(void* stream, const Binding& of) {
  for (size_t i = 0; i < manifest_.inputs.size() && !on_host_; ++i) {
    const Port& p = ports_[i];
    const size_t bytes = bytes_of(p.ref.shape, p.type->dtype);
    if (p.type->state && p.ref.place == Place::host && bytes > 0)
      TFCC_TRY_VOID(queue_.copy_out(stream, p.ref.data, addresses_[i], bytes));
  }
  for (size_t i = manifest_.inputs.size(); i < ports_.size(); ++i) {
    Port& p = ports_[i];
    bool on_device = p.is_set && p.ref.place == Place::device;
    const Shape& shape = shape_of(p, of);
    size_t bytes = bytes_of(shape, p.type->dtype);
    void* to = on_device ? nullptr : p.is_set ? p.ref.data : p.host[side_].data.get();
    if (!on_host_ && !on_device && bytes > 0) {
      TFCC_TRY_VOID(queue_.copy_out(stream, to, addresses_[i], bytes));
    }
    Tensor& result = p.result[side_];
    result.data = to;
    result.dtype = p.type->dtype;
    result.shape = shape;
    result.bytes = bytes;
  }
  forget_feeds();  // for one run
  last_ = side_;
  ran_ = true;
  return {};
}

// What run() needs beside the arena, before any tensor is set.
Result<void> Ports::prepare(std::span<const int64_t> wanted) {
  Shape shape;
  for (Port& p : ports_) {
    TFCC_TRY_VOID(evaluate_dims(*p.type, wanted, shape));
    const size_t bytes = bytes_of(shape, p.type->dtype);
    const bool on_device = p.is_set && p.ref.place == Place::device;
    for (const size_t side :
         {side_, 1 - side_}) {  // small outputs on both, whether or not it starts runs
      if (side != side_ && (p.is_input || (!turned_ && bytes > kSmallBytes))) continue;
      if (!on_host_ && !on_device)
        TFCC_TRY_VOID(grow_device(p.device[p.is_input ? 0 : side], p, bytes));
      if (!p.is_input && !p.is_set) TFCC_TRY_VOID(p.host[side].grow(bytes, *p.type, queue_));
    }
  }
  TFCC_TRY_VOID(make_staging(side_));
  return make_staging(1 - side_);
}

}  // namespace tfcc::runtime

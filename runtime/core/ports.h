// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs of one executor: what the caller set, memory of our own where nothing was
// set, and where each of them is in a run. There are two sides of what a run under way holds, so
// that the next one may be begun.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/core/binding.h"
#include "runtime/core/port.h"
#include "runtime/core/sequences.h"

namespace tfcc::runtime {

class Ports {
 public:
  Ports(const Manifest& manifest, Queue& queue, bool on_host);
  ~Ports();
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;
  /// Gives no memory back: the driver knows nothing of it in this process.
  void abandon();

  /// Errors: invalid_argument, with the names that there are.
  Result<Port*> require(std::string_view name, bool output_only);
  /// Errors: invalid_argument, shape.
  Result<void> set(std::string_view name, const TensorRef& tensor);
  /// Tokens without padding, and where each sequence of them ends. Errors: as set(); unsupported if
  /// the program takes padded tensors.
  Result<void> set(std::string_view name, const TensorRef& tensor,
                   std::span<const int64_t> cu_seqlens);
  /// The same of sequences in pieces, which are copied. Errors: also invalid_argument (the input has
  /// no whole numbers).
  Result<void> set(std::string_view name, std::span<const std::span<const int64_t>> sequences);
  Result<void> clear(std::string_view name);

  /// The next run has for `input` what the one begun last has in `output`. Errors:
  /// invalid_argument.
  Result<void> feed_back(std::string_view output, std::string_view input);
  /// Runs have this side from now on, 0 or 1.
  void use(size_t side) {
    turned_ |= side != side_;
    side_ = side;
  }
  size_t side() const { return side_; }
  /// That of the run begun last.
  size_t last_side() const { return last_; }
  /// Whether both sides have been used.
  bool turned() const { return turned_; }
  bool feeds() const;
  /// Inputs that were fed are not set any more.
  void forget_feeds();

  /// The sizes of the inputs that are set. Errors: invalid_argument if one is not, shape.
  Result<void> symbols(std::vector<int64_t>& out) const;
  /// The sizes of inputs of these shapes. Errors: invalid_argument, shape.
  Result<void> symbols_for(const Shapes& given, std::vector<int64_t>& out) const;

  /// Memory given for an output must have the shape that comes out. Errors: shape.
  Result<void> check_outputs(const Binding& of) const;
  /// What a run of these sizes needs beside the arena, before any tensor is set. Errors: memory.
  Result<void> prepare(std::span<const int64_t> sizes);
  /// The same of the run that is bound: copies on the device, and host memory for outputs without
  /// any. Small inputs share the memory that is copied at once, as far as it goes.
  Result<void> own_memory(const Binding& of);
  /// Where each input and output is in this run; on a stream of the caller all in device memory.
  /// Errors: invalid_argument.
  Result<void> choose_addresses(bool own_stream);
  /// Inputs, then outputs: the order of the device block.
  std::span<void* const> addresses() const { return addresses_; }

  Result<void> copy_in(void* stream);
  /// On a stream of the caller: what is made of cu_seqlens, if that is new. Errors: memory, device.
  Result<void> copy_tables(void* stream);
  /// And the results, which are complete when the stream is.
  Result<void> copy_out(void* stream, const Binding& of);

 private:
  Port* find(std::string_view name, bool output_only);
  bool is_table(const Port& p) const;
  bool has_tokens(const Port& p) const;
  Result<void> check_told(const Port& p) const;
  Result<void> check_tokens() const;
  Result<void> set_sequences(const Port& p, const TensorRef& tensor);
  Result<void> take(std::span<const int64_t> cu_seqlens);
  Result<Shapes> with_tables(const Shapes& given) const;
  const Shape& shape_of(const Port& output, const Binding& of) const {
    return of.output_shape(static_cast<size_t>(&output - ports_.data()) - manifest_.inputs.size());
  }
  Result<void> grow_device(Grown& memory, const Port& p, size_t bytes);
  /// Where run() keeps it on the device.
  Grown& own_device(Port& p) const { return p.device[p.is_input ? 0 : side_]; }
  /// What an input that is fed is.
  void* fed_address(const Port& p) const;
  Result<void> make_staging(size_t side);

  const Manifest& manifest_;
  Queue& queue_;
  bool on_host_;
  std::vector<Port> ports_;           // inputs, then outputs
  std::vector<const Shape*> shapes_;  // of the inputs set
  std::vector<void*> addresses_;
  /// CUDA: inputs that go to the device in one copy.
  static constexpr size_t kStagingBytes = size_t{1} << 20;
  struct {
    void* host[2] = {nullptr, nullptr};
    void* device = nullptr;
    size_t used = 0;
  } staging_;
  static constexpr size_t kSmallBytes = size_t{1} << 20;
  size_t side_ = 0, last_ = 0;  // of runs from now on, of the run begun last
  bool ran_ = false;            // there is one
  bool turned_ = false;         // both sides are in use
  Sequences sequences_;
  bool tables_there_ = false;  // where copy_tables() puts them
};

}  // namespace tfcc::runtime

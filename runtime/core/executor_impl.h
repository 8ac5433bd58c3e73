// SPDX-License-Identifier: Apache-2.0
// Inside of an executor. executor.cpp is the road of one run, executor_graphs.cpp the captured
// launches of the shapes prepared.
#pragma once

#include <atomic>
#include <map>

#include "runtime/core/binding.h"
#include "runtime/core/bucket_finder.h"
#include "runtime/core/model.h"
#include "runtime/core/one_call.h"
#include "runtime/core/port.h"

namespace tfcc {
using runtime::Binding;
using runtime::BoundLaunch;
using runtime::Grown;
using runtime::Port;
using runtime::Queue;
using runtime::Shape;

inline namespace v1 {

struct Executor::Impl {
  explicit Impl(std::shared_ptr<const Model::Impl> m)
      : model(std::move(m)),
        binding(model->manifest, *model->plan),
        buckets(model->manifest, *model->plan),
        caps_binding(model->manifest, *model->plan) {}
  ~Impl();

  Port* find(std::string_view name, bool output_only);
  Result<Port*> require(std::string_view name, bool output_only);
  Result<void> symbols_for(const Shapes& given, std::vector<int64_t>& out) const;
  Result<void> symbols_of_set(std::vector<int64_t>& out) const;
  Result<void> bind(std::span<const int64_t> symbols);
  /// Chooses the captured launches for the sizes bound, or makes the plain ones ready.
  Result<void> make_ready(void* stream, bool prepared);
  Result<void> plain_ready(bool prepared);
  /// From launch `first` on.
  Result<void> prepare_products(Binding& of, size_t first = 0);
  Result<void> grow_arena(size_t bytes, bool prepared);
  Result<void> check_outputs() const;
  Result<void> own_memory();
  Result<void> grow_device(Port& p, size_t bytes);
  Result<void> make_staging();
  Result<void> choose_addresses(bool own_stream);
  Result<void> issue(void* stream);
  Result<void> begin_run(void* stream);
  Result<void> issue_launches(void* stream, Binding& of);
  Result<void> issue_launch(void* stream, const Binding& of, const BoundLaunch& launch);
  /// On the host: after launch `i` the sizes of those behind it follow from the size that it made,
  /// if it makes one.
  Result<void> take_made_size(Binding& of, size_t i);
  Result<void> issue_kernel(void* stream, const Binding& of, const BoundLaunch& launch);
  Result<void> issue_gemm(void* stream, const Binding& of, const BoundLaunch& launch);
  Result<void> copy_inputs(void* stream);
  Result<void> copy_outputs(void* stream);
  Result<void> flag_error();
  void* address(const Binding& of, uint32_t buffer) const;

  // profile.cpp
  Result<void> ready_to_profile();
  Result<void> run_marked(std::vector<double>& ms);

  // executor_graphs.cpp
  bool captures(void* stream) const;
  Result<void*> graph_for(std::span<const int64_t> symbols, bool prepared);
  Result<void*> capture(const std::vector<int64_t>& bucket);
  Result<void> capture_all(std::span<const int64_t> symbols,
                           const std::vector<std::vector<int64_t>>& first);
  bool room_for_graph() const;

  // executor_prepare.cpp
  Result<void> prepare_symbols(std::span<const int64_t> symbols);
  Result<void> prepare_ports(std::span<const int64_t> symbols);
  std::vector<std::vector<int64_t>> drop_graphs();
  bool on_host() const { return model->backend->on_host(); }
  static void count(uint64_t& counter) {
    std::atomic_ref(counter).fetch_add(1, std::memory_order_relaxed);
  }
  const Shape& output_shape(const Port& p) const {
    return binding.output_shape(static_cast<size_t>(&p - ports.data()) -
                                model->manifest.inputs.size());
  }

  // The public calls, once the executor is held for them.
  Result<void> set(std::string_view name, const TensorRef& tensor);
  Result<void> clear(std::string_view name);
  Result<void> prepare(const Shapes& shapes);
  Result<void> prepare_all(const Shapes& largest);
  Result<void> run();
  Result<void> enqueue(void* stream);
  Result<Shape> shape_of_output(std::string_view name);
  Result<Tensor> output(std::string_view name);

  runtime::InUse in_use;  // by a public call
  std::shared_ptr<const Model::Impl> model;
  std::unique_ptr<Queue> queue;
  std::vector<Port> ports;           // inputs, then outputs: the order of the device block
  std::vector<const Shape*> shapes;  // of the inputs set
  std::vector<int64_t> symbols;
  Binding binding;  // the sizes of the run
  runtime::BucketFinder buckets;
  Binding caps_binding;                          // the sizes of the bucket being captured
  std::map<std::vector<int64_t>, void*> graphs;  // by caps; null: cannot be captured
  size_t graph_bytes = 0;                        // of them, in the model's sum
  std::vector<int64_t> bucket;                   // of the run
  void* graph = nullptr;  // for the sizes bound; null: plain, or not known yet
  uint64_t modules_before = 0;
  ExecutorStats counted;  // by the call under way, read by any thread: atomically
  /// CUDA: inputs that go to the device in one copy.
  static constexpr size_t kStagingBytes = size_t{256} << 10;
  struct {
    void* host = nullptr;
    void* device = nullptr;
    size_t used = 0;
  } staging;
  Grown arena;
  std::atomic<size_t> arena_held{0};        // arena.bytes, for any thread
  std::vector<int64_t> values;              // symbols, then addresses of the ports
  std::vector<void*> addresses;             // of the ports for this run
  std::vector<void*> args;                  // of one launch
  std::vector<runtime::MappedMatrix> maps;  // of one launch
  std::vector<uint32_t> flags;
  bool ran = false;  // results of run() are there
};

}  // namespace v1
}  // namespace tfcc

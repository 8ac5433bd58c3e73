// SPDX-License-Identifier: Apache-2.0
// Inside of an executor. executor.cpp is the road of one run, ports.h what goes in and out,
// executor_graphs.cpp the captured launches of the shapes prepared.
#pragma once

#include <array>
#include <atomic>
#include <map>

#include "runtime/core/binding.h"
#include "runtime/core/bucket_finder.h"
#include "runtime/core/model.h"
#include "runtime/core/one_call.h"
#include "runtime/core/ports.h"
#include "runtime/core/tile_table.h"

namespace tfcc {
using runtime::Binding;
using runtime::BoundLaunch;
using runtime::Grown;
using runtime::Port;
using runtime::Ports;
using runtime::Queue;
using runtime::Shape;

inline namespace v1 {

struct Executor::Impl {
  Impl(std::shared_ptr<const Model::Impl> m, std::unique_ptr<Queue> q)
      : model(std::move(m)),
        queue(std::move(q)),
        ports(model->manifest, *queue, model->backend->on_host()),
        binding(model->manifest, *model->plan),
        buckets(model->manifest, *model->plan),
        caps_binding(model->manifest, *model->plan),
        tiles(runtime::tile_tables(*model->plan, *model->backend)) {}
  ~Impl();

  Result<void> bind(std::span<const int64_t> symbols);
  /// For the tensors that are set.
  Result<void> bind_set();
  /// Chooses the captured launches for the sizes bound, or makes the plain ones ready.
  Result<void> make_ready(void* stream, bool prepared);
  Result<void> plain_ready(bool prepared);
  /// From launch `first` on.
  Result<void> prepare_products(Binding& of, size_t first = 0);
  Result<void> grow_arena(size_t bytes, bool prepared);
  Result<void> issue(void* stream);
  Result<void> begin_run(void* stream);
  /// The first `most` of them.
  Result<void> issue_launches(void* stream, Binding& of, size_t most = SIZE_MAX);
  Result<void> issue_launch(void* stream, const Binding& of, const BoundLaunch& launch);
  /// On the host: after launch `i` the sizes of those behind it follow from the size that it made,
  /// if it makes one.
  Result<void> take_made_size(Binding& of, size_t i);
  Result<void> issue_kernel(void* stream, const Binding& of, const BoundLaunch& launch);
  Result<void> issue_matmul(void* stream, const Binding& of, const BoundLaunch& launch);
  Result<void> flag_error();
  void* address(const Binding& of, uint32_t buffer) const;

  // profile.cpp
  Result<void> ready_to_profile();
  Result<void> run_marked(std::vector<double>& ms);

  // profile_graph.cpp
  /// Binds the bucket of the sizes bound, so that its launches can be captured. False: it has none.
  Result<bool> ready_to_capture();
  Result<void*> capture_first(size_t launches);
  Result<double> replay_marked(void* whole, void* part);

  // executor_graphs.cpp
  bool captures(void* stream) const;
  Result<void*> graph_for(std::span<const int64_t> symbols, bool prepared);
  Result<void*> capture(const std::vector<int64_t>& bucket);
  Result<void> capture_all(const std::vector<std::vector<int64_t>>& wanted);
  bool room_for_graph() const;

  // executor_prepare.cpp
  /// What prepare_all() is asked for: the largest of each size, and sizes that runs have for
  /// certain.
  Result<void> wanted_sizes(const Shapes& shapes, std::vector<int64_t>& largest,
                            std::vector<std::vector<int64_t>>& certain);
  /// The buckets of all these, those of certain runs first.
  std::vector<std::vector<int64_t>> buckets_of(
      std::span<const int64_t> largest, const std::vector<std::vector<int64_t>>& certain) const;
  Result<void> prepare_symbols(std::span<const int64_t> symbols);
  std::vector<std::vector<int64_t>> drop_graphs();
  bool on_host() const { return model->backend->on_host(); }
  static void count(uint64_t& counter) {
    std::atomic_ref(counter).fetch_add(1, std::memory_order_relaxed);
  }

  // The public calls, once the executor is held for them.
  Result<void> prepare(const Shapes& shapes);
  Result<void> prepare_all(const Shapes& largest);
  Result<void> run();
  /// What changes memory that a run under way has must wait for it. Errors: invalid_argument.
  Result<void> idle(const char* call) const;
  /// A run on this side. After an error nothing of it is under way.
  Result<void> begin(size_t on_side);
  Result<void> issue_all(void* stream);
  Result<void> start();
  Result<void> finish();
  Result<void> enqueue(void* stream);
  Result<Shape> shape_of_output(std::string_view name);
  Result<const Tensor*> output(std::string_view name);

  runtime::InUse in_use;  // by a public call
  std::shared_ptr<const Model::Impl> model;
  std::unique_ptr<Queue> queue;
  Ports ports;
  std::vector<int64_t> symbols;
  Binding binding;  // the sizes of the run
  runtime::BucketFinder buckets;
  Binding caps_binding;                          // the sizes of the bucket being captured
  runtime::TileTables tiles;                     // of launches that have several
  std::map<std::vector<int64_t>, void*> graphs;  // by caps; null: cannot be captured
  size_t graph_bytes = 0;                        // of them, in the model's sum
  std::vector<int64_t> bucket;                   // of the run
  void* graph = nullptr;  // for the sizes bound; null: plain, or not known yet
  uint64_t modules_before = 0;
  ExecutorStats counted;  // by the call under way, read by any thread: atomically
  Grown arena;
  std::atomic<size_t> arena_held{0};        // arena.bytes, for any thread
  std::vector<int64_t> values;              // symbols, then addresses of the ports
  std::vector<void*> args;                  // of one launch
  std::vector<runtime::MappedMatrix> maps;  // of one launch
  std::vector<uint32_t> flags;
  bool ran = false;                  // results of a run are there
  size_t side = 0;                   // that they are of
  size_t under_way = 0;              // runs begun and not finished, at most two
  std::array<size_t, 2> begun = {};  // their sides, the older first
};

/// The way from the public class to its inside.
struct ExecutorAccess {
  static Executor::Impl& of(Executor& e) { return *e.impl_; }
  static const Executor::Impl& of(const Executor& e) { return *e.impl_; }
};

}  // namespace v1
}  // namespace tfcc

// SPDX-License-Identifier: Apache-2.0
// Captured launches of an executor: one graph for each bucket of shapes, made at the bucket's caps.
// A run writes its sizes and pointers to the device block and replays the graph of its bucket.
#include <algorithm>

#include "runtime/core/executor_impl.h"

namespace tfcc {
inline namespace v1 {
namespace {

constexpr size_t kMostGraphs = 1024;  // of an executor
constexpr size_t kLaunchBytes =
    1024;  // of a captured launch on the device: measured, some 100 KB for 100

}  // namespace

bool Executor::Impl::captures(void* stream) const {
  return model->options.graphs && buckets.possible() && queue->recorder() != nullptr &&
         !queue->recorder()->is_capturing(stream);
}

Result<void*> Executor::Impl::graph_for(std::span<const int64_t> wanted, bool prepared) {
  if (!buckets.find(wanted, bucket)) return nullptr;
  if (auto found = graphs.find(bucket); found != graphs.end()) return found->second;
  if (graphs.size() >= kMostGraphs || !room_for_graph()) drop_graphs();
  TFCC_TRY(size_t bytes, runtime::arena_size(*model->plan, bucket));
  if (bytes < binding.arena_bytes())
    return nullptr;  // a table of another plan: its caps are not above the run
  TFCC_TRY_VOID(grow_arena(bytes, prepared));
  auto made = capture(bucket);
  if (prepared || (made && *made == nullptr)) return made;
  // Something else in the program may have disturbed the capture: not this run's concern. The steps
  // of a generator come in shapes that nobody can prepare.
  const bool steps = std::ranges::any_of(model->manifest.inputs, &runtime::TensorType::state);
  if (model->options.log && !(made && steps)) {
    const std::string what = made ? ": captured the launches" : ": could not capture the launches";
    model->options.log(model->name + what + " for up to " +
                       runtime::print_symbols(model->manifest, bucket) + " in a run" +
                       (made ? "" : " (" + made.error().message + ")") +
                       "; prepare() its shapes first");
  }
  return made ? *made : nullptr;
}

// The arena is large enough by now. A bucket that cannot be captured runs by plain launches.
Result<void*> Executor::Impl::capture(const std::vector<int64_t>& sizes) {
  auto ready = caps_binding.bind_caps(sizes);
  if (ready) ready = prepare_products(caps_binding);
  if (!ready) return graphs[sizes] = nullptr;
  TFCC_TRY_VOID(queue->recorder()->begin());
  auto issued = issue_launches(queue->own_stream(), caps_binding);
  auto made = queue->recorder()->end();  // also after an error: it frees the stream
  if (!issued) return issued.error();
  if (!made) return made.error();
  count(counted.graphs_made);
  const size_t bytes = caps_binding.launches().size() * kLaunchBytes;
  graph_bytes += bytes;
  model->graph_bytes += bytes;
  return graphs[sizes] = *made;
}

// Whether one more stays within the limit that the executors of the model share.
bool Executor::Impl::room_for_graph() const {
  size_t launches = 0;
  for (const runtime::Bucket& b : model->plan->buckets)
    launches = std::max(launches, b.launches.size());
  return model->graph_bytes + launches * kLaunchBytes <= model->options.cache_bytes;
}

std::vector<std::vector<int64_t>> Executor::Impl::buckets_of(
    std::span<const int64_t> largest, const std::vector<std::vector<int64_t>>& certain) const {
  std::vector<std::vector<int64_t>> wanted;
  auto want = [&](const std::vector<int64_t>& b) {
    if (std::find(wanted.begin(), wanted.end(), b) == wanted.end()) wanted.push_back(b);
  };
  std::vector<int64_t> caps;
  for (const auto& sizes : certain) {
    if (buckets.find(sizes, caps)) want(caps);
  }
  for (const auto& b : buckets.up_to(largest, 4 * kMostGraphs)) want(b);
  return wanted;
}

// The arena first, so that it grows once; then the buckets while there is room.
Result<void> Executor::Impl::capture_all(const std::vector<std::vector<int64_t>>& wanted) {
  size_t largest = 0;
  for (const auto& b : wanted) {
    TFCC_TRY(size_t bytes, runtime::arena_size(*model->plan, b));
    largest = std::max(largest, bytes);
  }
  TFCC_TRY_VOID(grow_arena(largest, true));
  for (const auto& b : wanted) {
    if (graphs.contains(b)) continue;
    if (graphs.size() >= kMostGraphs || !room_for_graph()) {
      if (model->options.log) {
        model->options.log(model->name + ": captured the launches of " +
                           std::to_string(graphs.size()) + " of " + std::to_string(wanted.size()) +
                           " buckets of shapes, others in a run; raise LoadOptions::cache_bytes");
      }
      break;
    }
    TFCC_TRY_VOID(capture(b));
  }
  return {};
}

// Returns the buckets that were captured.
std::vector<std::vector<int64_t>> Executor::Impl::drop_graphs() {
  std::vector<std::vector<int64_t>> captured;
  for (const auto& [sizes, made] : graphs) {
    if (made == nullptr) continue;
    queue->recorder()->drop(made);
    captured.push_back(sizes);
  }
  graphs.clear();
  graph = nullptr;
  model->graph_bytes -= graph_bytes;
  graph_bytes = 0;
  return captured;
}

}  // namespace v1
}  // namespace tfcc

// SPDX-License-Identifier: Apache-2.0
// profile_graph: graphs of a part of the launches of a run, timed one behind the other.
#include <algorithm>

#include "runtime/core/executor_impl.h"
#include "runtime/core/profile.h"

namespace tfcc {
inline namespace v1 {

Result<bool> Executor::Impl::ready_to_capture() {
  if (!captures(queue->own_stream()) || !buckets.find(binding.symbols(), bucket)) return false;
  TFCC_TRY(const size_t bytes, runtime::arena_size(*model->plan, bucket));
  if (bytes < binding.arena_bytes()) return false;
  TFCC_TRY_VOID(grow_arena(bytes, false));
  TFCC_TRY_VOID(caps_binding.bind_caps(bucket));
  TFCC_TRY_VOID(prepare_products(caps_binding));
  return std::ranges::equal(binding.launches(), caps_binding.launches(),
                            [](const BoundLaunch& a, const BoundLaunch& b) {
                              return a.launch == b.launch && a.skip == b.skip;
                            });
}

Result<void*> Executor::Impl::capture_first(size_t launches) {
  TFCC_TRY_VOID(queue->recorder()->begin());
  auto issued = issue_launches(queue->own_stream(), caps_binding, launches);
  auto made = queue->recorder()->end();  // also after an error: it frees the stream
  if (!issued) return issued.error();
  return made;
}

// Milliseconds of a run of `part`, behind one of `whole`.
Result<double> Executor::Impl::replay_marked(void* whole, void* part) {
  void* stream = queue->own_stream();
  runtime::Stopwatch& stopwatch = queue->stopwatch();
  TFCC_TRY_VOID(stopwatch.close_gate(stream));
  auto issued = begin_run(stream);
  if (issued) issued = queue->recorder()->replay(stream, whole);
  if (issued) issued = stopwatch.mark(stream);
  if (issued) issued = begin_run(stream);
  if (issued && part != nullptr) issued = queue->recorder()->replay(stream, part);
  if (issued) issued = stopwatch.mark(stream);
  stopwatch.open_gate();
  std::vector<double> ms;
  auto read = stopwatch.marked(ms);
  if (!issued) return issued.error();
  if (!read) return read.error();
  return ms.front();
}

}  // namespace v1

namespace runtime {
namespace {

/// Graphs of the first launches of a run, given back at the end.
class Parts {
 public:
  explicit Parts(Recorder& recorder) : recorder_(recorder) {}
  ~Parts() {
    for (void* graph : graphs_) recorder_.drop(graph);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  void add(void* graph) { graphs_.push_back(graph); }
  const std::vector<void*>& graphs() const { return graphs_; }

 private:
  Recorder& recorder_;
  std::vector<void*> graphs_;
};

double median(std::vector<double> ms) {
  std::ranges::nth_element(ms, ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2));
  return ms[ms.size() / 2];
}

}  // namespace

Result<GraphProfile> profile_graph(Executor& executor, int runs) {
  Executor::Impl& e = ExecutorAccess::of(executor);
  TFCC_TRY_VOID(e.ready_to_profile());
  TFCC_TRY(const bool ready, e.ready_to_capture());
  GraphProfile out;
  if (!ready) return out;
  Parts parts(*e.queue->recorder());
  for (size_t i = 0; i < e.binding.launches().size(); ++i) {
    if (e.binding.launches()[i].skip) continue;
    TFCC_TRY(void* graph, e.capture_first(i + 1));
    parts.add(graph);
  }
  const std::vector<void*>& graphs = parts.graphs();
  // Runs of all parts in turn, so that a clock that changes does so for all.
  std::vector<std::vector<double>> taken(graphs.size() + 1);
  for (int run = 0; run <= runs; ++run) {
    for (size_t k = 0; k <= graphs.size(); ++k) {
      TFCC_TRY(const double ms, e.replay_marked(graphs.back(), k == 0 ? nullptr : graphs[k - 1]));
      if (run > 0) taken[k].push_back(ms);  // the first warms up
    }
  }
  TFCC_TRY_VOID(e.queue->end_run(e.side));
  TFCC_TRY_VOID(e.flag_error());
  double before = out.begin_ms = median(taken[0]);
  for (size_t k = 1; k < taken.size(); ++k) {
    const double now = median(taken[k]);
    out.ms.push_back(now - before);
    before = now;
  }
  return out;
}

}  // namespace runtime
}  // namespace tfcc

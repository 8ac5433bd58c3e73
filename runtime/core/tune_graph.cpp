// SPDX-License-Identifier: Apache-2.0
// tune_graph: graphs of a run that differ in how one product is executed, timed in turn.
#include "runtime/core/tune_graph.h"

#include <algorithm>
#include <utility>

#include "runtime/core/executor_impl.h"

namespace tfcc::runtime {
namespace {

constexpr int kRounds = 15, kFirstRounds = 5;
/// After the first rounds a candidate that is slower by so much is given up.
constexpr double kSlower = 1.005;
/// So much shorter a run must be for one product to be executed otherwise ..
constexpr double kShorter = 0.997;
/// .. and so much with all of them, or nothing is kept.
constexpr double kWorthKeeping = 0.98;

double median(std::vector<double> ms) {
  std::ranges::nth_element(ms, ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2));
  return ms[ms.size() / 2];
}

/// A captured run, given back at the end.
class Captured {
 public:
  Captured(Recorder& recorder, void* graph) : recorder_(&recorder), graph_(graph) {}
  ~Captured() {
    if (graph_ != nullptr) recorder_->drop(graph_);
  }
  Captured(Captured&& other) noexcept
      : recorder_(other.recorder_), graph_(std::exchange(other.graph_, nullptr)) {}
  Captured& operator=(Captured&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  void* get() const { return graph_; }

 private:
  Recorder* recorder_;
  void* graph_;
};

/// A product that may be executed in several ways.
struct Open {
  const TileChoice* tiles = nullptr;  // of a kernel of ours, where option 0 is its own model; or ..
  int64_t rows = 0, most_rows = 0;    // of the run, and of its bucket, which an entry is of
  size_t handle = 0;                  // .. of the library, where option 0 is its first
  size_t options = 0, best = 0, before = 0;
};

class Tuner {
 public:
  explicit Tuner(Executor::Impl& e) : e_(e), cache_(*e.model->backend->timings()) {}
  ~Tuner() {
    for (const Open& o : open_) {  // of a bucket that could not be measured to its end
      if (o.tiles == nullptr) e_.queue->take_offer(o.handle, o.before);
    }
    e_.tiles = tile_tables(*e_.model->plan, *e_.model->backend);
    e_.drop_graphs();  // which have other tables
  }
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  Result<GraphTuning> run() {
    TFCC_TRY(Captured first, capture());
    TFCC_TRY_VOID(find_open(first.get()));
    GraphTuning out;
    out.measured = open_.size();
    if (open_.empty()) return out;
    // What alone was the fastest is no more than a candidate.
    for (Open& o : open_) o.before = take(o, 0);
    TFCC_TRY(Captured base, capture());
    TFCC_TRY_VOID(choose_all());
    TFCC_TRY(const Captured chosen, capture());
    TFCC_TRY(const auto ms, compare(base.get(), chosen.get(), kRounds));
    const bool keeps = ms.second < ms.first * kWorthKeeping;
    for (Open& o : open_) {
      if (!keeps) take(o, 0);
      out.changed += o.best != 0;
      keep(o, (keeps ? ms.second : ms.first) * 1000);
    }
    out.before_us = ms.first * 1000;
    out.after_us = (keeps ? ms.second : ms.first) * 1000;
    return out;
  }

 private:
  const std::string& card() const { return e_.model->backend->device_name(); }

  Result<Captured> capture() {
    TFCC_TRY(void* graph, e_.capture_first(SIZE_MAX));
    return Captured(*e_.queue->recorder(), graph);
  }

  /// Products of this run that the cache does not know, each once. Their rows are those of a run.
  Result<void> find_open(void* graph) {
    std::vector<int64_t> sizes(e_.binding.symbols().size());
    TFCC_TRY_VOID(e_.replay_marked(graph, graph));
    TFCC_TRY_VOID(e_.queue->read_sizes(sizes));
    for (const BoundLaunch& l : e_.caps_binding.launches()) {
      if (l.skip) continue;
      Open open;
      if (l.launch->matmul) {
        open.handle = l.handle, open.options = e_.queue->offers(l.handle);
      } else if (const auto& tiles = l.launch->kernel->tiles) {
        open.tiles = &*tiles, open.most_rows = l.rows;
        open.rows = tiles->rows.evaluate(sizes).value_or(0);
        open.options = tiles->tiles.size() + 1;
        if (open.rows < 1 || cache_.find(tile_key(card(), *tiles, open.most_rows))) continue;
      }
      if (open.options < 2) continue;
      const bool known = std::ranges::any_of(open_, [&](const Open& o) {
        return (o.tiles == nullptr) == (open.tiles == nullptr) && o.handle == open.handle &&
               (o.tiles == nullptr ||
                (o.tiles->what == open.tiles->what && o.most_rows == open.most_rows));
      });
      if (!known) open_.push_back(open);
    }
    return {};
  }

  /// Returns what the library's was before.
  size_t take(Open& o, size_t option) {
    o.best = option;
    if (o.tiles == nullptr) return e_.queue->take_offer(o.handle, option);
    e_.tiles.at(o.tiles->what).set(o.rows - 1, o.most_rows, static_cast<uint32_t>(option));
    return 0;
  }

  void keep(const Open& o, double us) {
    if (o.tiles == nullptr) return e_.queue->keep_offer(o.handle);
    TimingCache::Entry entry;
    entry.algorithm[0] = o.best, entry.us = us;
    cache_.add(tile_key(card(), *o.tiles, o.most_rows), entry);
  }

  /// Medians of runs in turn, each behind one of the other graph, so that both find the caches as
  /// the other leaves them.
  Result<std::pair<double, double>> compare(void* a, void* b, int rounds) {
    std::vector<double> of_a, of_b;
    for (int round = -1; round < rounds; ++round) {
      TFCC_TRY(const double ms_b, e_.replay_marked(a, b));
      TFCC_TRY(const double ms_a, e_.replay_marked(b, a));
      if (round >= 0) of_a.push_back(ms_a), of_b.push_back(ms_b);  // the first warms up
      if (round + 1 == kFirstRounds && median(of_b) > median(of_a) * kSlower) break;
    }
    return std::pair(median(of_a), median(of_b));
  }

  /// One product after the other; those before it are executed as was best for them.
  Result<void> choose_all() {
    TFCC_TRY(Captured best, capture());
    for (Open& o : open_) {
      for (size_t option = 1; option < o.options; ++option) {
        const size_t before = o.best;
        take(o, option);
        TFCC_TRY(Captured candidate, capture());
        TFCC_TRY(const auto ms, compare(best.get(), candidate.get(), kRounds));
        if (ms.second < ms.first * kShorter) best = std::move(candidate);
        else take(o, before);
      }
    }
    return {};
  }

  Executor::Impl& e_;
  TimingCache& cache_;
  std::vector<Open> open_;
};

/// The sizes of a run that fills the bucket of these caps; none: no run has exactly these caps.
/// Where rows of a length make tokens, the caps of all three are seldom those of one run: as many
/// rows as there may be, each as long as the tokens allow, or fewer and longer ones.
std::optional<std::vector<int64_t>> largest_run(const Manifest& m, const BucketFinder& buckets,
                                                const std::vector<int64_t>& caps) {
  const auto is_run = [&](std::vector<int64_t>& sizes) {
    std::vector<int64_t> found;
    return derive_symbols(m, sizes) && buckets.find(sizes, found) && found == caps;
  };
  std::vector<int64_t> sizes = caps;
  if (is_run(sizes)) return sizes;
  size_t place[3] = {};
  const SizeRole roles[] = {SizeRole::batch, SizeRole::length, SizeRole::tokens};
  for (size_t i = 0; i < 3; ++i) {
    const Symbol* s = with_role(m, roles[i]);
    if (s == nullptr) return std::nullopt;
    place[i] = static_cast<size_t>(s - m.symbols.data());
  }
  const auto [batch, length, tokens] = place;
  std::optional<std::vector<int64_t>> best;
  for (int64_t rows = 1; rows <= caps[batch]; ++rows) {
    sizes = caps;
    sizes[batch] = rows, sizes[length] = std::min(caps[length], caps[tokens] / rows);
    if (is_run(sizes) && (!best || sizes[tokens] > (*best)[tokens])) best = sizes;
  }
  return best;
}

}  // namespace

Result<GraphTuning> tune_graph(Executor& executor) {
  Executor::Impl& e = ExecutorAccess::of(executor);
  if (e.model->backend->timings() == nullptr) return GraphTuning();
  TFCC_TRY_VOID(e.ready_to_profile());
  TFCC_TRY(const bool ready, e.ready_to_capture());
  if (!ready) return GraphTuning();
  auto tuned = Tuner(e).run();
  // Random numbers may be none that the model takes: it took them all the same.
  TFCC_TRY_VOID(e.queue->end_run(e.side));
  TFCC_TRY_VOID(e.queue->take_flags(e.flags, e.side));
  if (!tuned) return tuned;
  TFCC_TRY_VOID(e.model->backend->save_timings());
  return tuned;
}

Result<std::vector<std::map<std::string, int64_t>>> runs_of_buckets(Executor& executor,
                                                                    const Shapes& largest) {
  Executor::Impl& e = ExecutorAccess::of(executor);
  std::vector<int64_t> most;
  std::vector<std::vector<int64_t>> certain;
  TFCC_TRY_VOID(e.wanted_sizes(largest, most, certain));
  std::vector<std::map<std::string, int64_t>> out;
  if (!e.captures(e.queue->own_stream())) return out;
  const Manifest& m = e.model->manifest;
  for (const std::vector<int64_t>& caps : e.buckets_of(most, certain)) {
    const auto sizes = largest_run(m, e.buckets, caps);
    if (!sizes) continue;
    auto& named = out.emplace_back();
    for (size_t i = 0; i < m.symbols.size(); ++i) {
      if (!m.symbols[i].derived()) named[m.symbols[i].name] = (*sizes)[i];
    }
  }
  return out;
}

}  // namespace tfcc::runtime

// SPDX-License-Identifier: Apache-2.0
// What the parts of `tfcc bench` share: options, series of times, and the model that is timed.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tfcc.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/device_memory.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {

struct BenchOptions {
  std::string model, npz, shapes, lengths = "full", device = "auto", export_profile, html, trace,
                                  timing_cache;
  std::string peer, peer_model, peer_mode = "compile", python = "python3";
  std::vector<std::string> inputs;
  std::vector<double> percentiles = {90, 95, 99};
  int iterations = 0, threads = 0, rounds = 7;
  double warm_up_ms = 200, duration_s = 3, tolerance = 0;
  uint64_t seed = 1;
  bool json = false, no_graph = false, dump_profile = false, ragged = false;
  // Of generation: new tokens of each of so many sequences, after so many of a prompt, and after so
  // many that are there before (-1: 512 before a step, none before a prompt).
  int64_t decode = 0, prefill = 0, batch = 1, context = -1;
  bool generates() const { return decode > 0 || prefill > 0; }
  /// One step alone, again and again.
  bool one_step() const { return generates() && decode <= 1 && (decode == 0 || prefill == 0); }
  int64_t context_before() const { return context >= 0 ? context : prefill > 0 ? 0 : 512; }
  int runs_at_least() const { return iterations > 0 ? iterations : 10; }
  int rounds_at_least() const { return iterations > 0 ? iterations : 3; }
};

using Clock = std::chrono::steady_clock;
inline double ms_since(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}

/// Whole answers, timed and printed. Errors: as Model::generation() and Generator::make(), submit().
Result<void> bench_generation(const BenchOptions& options, const Model& model);

/// Times in milliseconds, in the order of the runs.
struct Series {
  std::vector<double> ms;
  double quantile(double q) const;
  double median() const { return quantile(0.5); }
  double mean() const;
};
/// min, max, mean, median, p10, p90, p99; null if there are none.
nlohmann::json json_of(const Series& s);

struct Measured {
  Series latency, enqueue, gpu;    // the last two on a GPU alone
  std::vector<double> started_ms;  // of each run, since the first began
  Clock::time_point begin = Clock::now();
  size_t queries = 0;
  double seconds = 0;
};

/// A line on a terminal that says how far a stage is, at most five times a second.
class Stage {
 public:
  explicit Stage(std::string name) : name_(std::move(name)) {}
  void update(double share);

 private:
  std::string name_;
  Progress progress_;
  Clock::time_point last_ = Clock::now();
};

/// The compiled model with its inputs set: in host memory, or on the GPU together with its outputs.
class Subject {
 public:
  /// `inputs` must stay. Errors: as Executor::set() and prepare().
  static Result<Subject> make(const BenchOptions& options, const Model& model, NamedArrays& inputs);
  /// One run, timed.
  Result<void> once(Measured& to);
  /// Outputs of the last run, copied.
  Result<NamedArrays> outputs();
  Executor& executor() { return executor_; }
  bool on_host() const { return !device_; }

 private:
  Subject(const Model& model, Executor executor) : model_(model), executor_(std::move(executor)) {}
  Result<void> place_on(Device device, NamedArrays& inputs);

  Model model_;
  std::optional<Device> device_;
  Executor executor_;                                      // after the device: it goes first
  std::vector<std::pair<TensorInfo, TensorRef>> outputs_;  // on the device
};

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
// tfcc bench: latency and throughput of a .tfcc file, in trtexec's words. On a GPU inputs and outputs stay on the device.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "ir/constant.h"
#include "runtime/tfcc.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/device_memory.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string model, shapes, lengths = "full", device = "auto";
  int iterations = 10, threads = 0;
  double warm_up_ms = 200, duration_s = 3;
  uint64_t seed = 1;
  bool json = false, no_graph = false;
};

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point t) { return std::chrono::duration<double, std::milli>(Clock::now() - t).count(); }

struct Series {
  std::vector<double> ms;
  double quantile(double q) const {
    std::vector<double> s = ms;
    std::sort(s.begin(), s.end());
    return s[std::min(s.size() - 1, static_cast<size_t>(q * static_cast<double>(s.size())))];
  }
  double mean() const { return std::accumulate(ms.begin(), ms.end(), 0.0) / static_cast<double>(ms.size()); }
};

// "uniform:0.2-1.0": lengths drawn between these shares of the second axis, the first row full; the mask inputs get them.
Result<int64_t> apply_lengths(const Options& o, std::vector<std::pair<std::string, Array>>& inputs) {
  double low = 1, high = 1;
  if (o.lengths != "full") {
    if (std::sscanf(o.lengths.c_str(), "uniform:%lf-%lf", &low, &high) != 2 || low < 0 || high > 1 || low > high) {
      return usage_error(fmt::format("--lengths takes full or uniform:LOW-HIGH with shares of the length, not '{}'", o.lengths));
    }
  }
  std::mt19937_64 rng(o.seed);
  int64_t tokens = 0;
  for (auto& [name, a] : inputs) {
    if (name.find("mask") == std::string::npos || a.shape.size() != 2 || is_float(a.dtype)) continue;
    const int64_t batch = a.shape[0], length = a.shape[1];
    tokens = 0;
    for (int64_t b = 0; b < batch; ++b) {
      const auto least = std::max<int64_t>(1, static_cast<int64_t>(low * static_cast<double>(length)));
      const auto most = std::max(least, static_cast<int64_t>(high * static_cast<double>(length)));
      const int64_t n = b == 0 ? most : std::uniform_int_distribution<int64_t>(least, most)(rng);
      for (int64_t j = 0; j < length; ++j) ir::write_int(a.dtype, a.bytes.data(), b * length + j, j < n);
      tokens += n;
    }
  }
  return tokens;
}

struct Measured {
  Series latency, enqueue, gpu;
  size_t queries = 0;
  double seconds = 0;
};

// Calls `once` until warm-up time is over, then until both the iterations and the duration are done.
template <class F>
Result<void> repeat(const Options& o, Measured& m, F once) {
  const auto warm = Clock::now();
  Measured ignored;
  do {
    TFCC_TRY_VOID(once(ignored));
  } while (ms_since(warm) < o.warm_up_ms);
  const auto start = Clock::now();
  while (static_cast<int>(m.queries) < o.iterations || ms_since(start) < o.duration_s * 1000) {
    TFCC_TRY_VOID(once(m));
    ++m.queries;
  }
  m.seconds = ms_since(start) / 1000;
  return {};
}

Result<Measured> bench_host(const Options& o, Executor& executor) {
  Measured m;
  TFCC_TRY_VOID(repeat(o, m, [&](Measured& to) -> Result<void> {
    const auto t = Clock::now();
    TFCC_TRY_VOID(executor.run());
    to.latency.ms.push_back(ms_since(t));
    return {};
  }));
  return m;
}

Result<Measured> bench_device(const Options& o, const Model& model, Executor& executor, std::vector<std::pair<std::string, Array>>& inputs) {
  const size_t colon = o.device.find(':');
  TFCC_TRY(Device device, Device::open(colon == std::string::npos ? 0 : std::atoi(o.device.c_str() + colon + 1)));
  Shapes shapes;
  for (auto& [name, a] : inputs) {
    TFCC_TRY(void* p, device.upload(a.bytes.data(), a.bytes.size()));
    TFCC_TRY_VOID(executor.set(name, {p, a.dtype, a.shape, Place::device}));
    shapes.emplace_back(name, a.shape);
  }
  TFCC_TRY_VOID(executor.prepare(shapes));
  for (const TensorInfo& out : model.outputs()) {
    TFCC_TRY(auto shape, executor.output_shape(out.name));
    int64_t bytes = static_cast<int64_t>(size_of(out.dtype));
    for (int64_t d : shape) bytes *= d;
    TFCC_TRY(void* p, device.upload(nullptr, static_cast<size_t>(bytes)));
    TFCC_TRY_VOID(executor.set(out.name, {p, out.dtype, shape, Place::device}));
  }
  Measured m;
  TFCC_TRY_VOID(repeat(o, m, [&](Measured& to) -> Result<void> {
    const auto t = Clock::now();
    TFCC_TRY_VOID(device.start());
    TFCC_TRY_VOID(executor.enqueue(device.stream()));
    to.enqueue.ms.push_back(ms_since(t));
    TFCC_TRY(float gpu, device.stop());
    to.gpu.ms.push_back(gpu);
    to.latency.ms.push_back(ms_since(t));
    return {};
  }));
  TFCC_TRY_VOID(executor.status());
  return m;
}

void print_series(const char* title, const Series& s) {
  if (s.ms.empty()) return;
  std::printf("%s: min = %.4f ms, max = %.4f ms, mean = %.4f ms, median = %.4f ms, percentile(90%%) = %.4f ms, percentile(95%%) = %.4f ms, percentile(99%%) = %.4f ms\n",
              title, s.quantile(0), s.quantile(1), s.mean(), s.quantile(0.5), s.quantile(0.9), s.quantile(0.95), s.quantile(0.99));
}

nlohmann::json json_of(const Series& s) {
  if (s.ms.empty()) return nullptr;
  return {{"min", s.quantile(0)}, {"max", s.quantile(1)}, {"mean", s.mean()}, {"median", s.quantile(0.5)}, {"p10", s.quantile(0.1)}, {"p90", s.quantile(0.9)}, {"p99", s.quantile(0.99)}};
}

Result<void> bench(const Options& o) {
  TFCC_TRY(auto shapes, parse_shapes(o.shapes));
  LoadOptions load;
  load.device = o.device;
  load.threads = o.threads;
  load.graphs = !o.no_graph;
  TFCC_TRY(Model model, Model::load(o.model, load));
  TFCC_TRY(auto inputs, random_inputs(model.inputs(), shapes, o.seed));
  TFCC_TRY(int64_t tokens, apply_lengths(o, inputs));
  TFCC_TRY(Executor executor, model.executor());
  const bool host = model.device() == "cpu";
  if (host) {
    for (auto& [name, a] : inputs) TFCC_TRY_VOID(executor.set(name, {a.bytes.data(), a.dtype, a.shape, Place::host}));
  }
  TFCC_TRY(Measured m, host ? bench_host(o, executor) : bench_device(o, model, executor, inputs));
  const double qps = static_cast<double>(m.queries) / m.seconds;
  if (o.json) {
    nlohmann::json j = {{"schema", 1}, {"model", o.model}, {"device", model.device()}, {"target", model.target()}, {"lengths", o.lengths},
                        {"tokens", tokens}, {"queries", m.queries}, {"throughput_qps", qps}, {"arena_bytes", executor.arena_bytes()},
                        {"latency_ms", json_of(m.latency)}, {"enqueue_ms", json_of(m.enqueue)}, {"gpu_compute_ms", json_of(m.gpu)}};
    for (auto& [name, a] : inputs) j["shapes"][name] = a.shape;
    std::printf("%s\n", j.dump(1).c_str());
    return {};
  }
  std::printf("%s on %s (%s)", o.model.c_str(), model.device().c_str(), model.target().c_str());
  for (auto& [name, a] : inputs) std::printf(", %s %s", name.c_str(), fmt::format("{}", fmt::join(a.shape, "x")).c_str());
  std::printf(", lengths %s%s\n", o.lengths.c_str(), tokens ? fmt::format(" ({} tokens)", tokens).c_str() : "");
  std::printf("Throughput: %.2f qps\n", qps);
  print_series("Latency", m.latency);
  print_series("Enqueue Time", m.enqueue);
  print_series("GPU Compute Time", m.gpu);
  if (!m.gpu.ms.empty() && m.enqueue.quantile(0.5) > 0.9 * m.gpu.quantile(0.5)) {
    std::printf("Throughput may be bound by Enqueue Time rather than GPU Compute\n");
  }
  return {};
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("bench", "time a .tfcc file");
  c->add_option("model", o->model, "the .tfcc file")->required();
  c->add_option("--shapes", o->shapes, "sizes of the made-up inputs: input_ids:8x128");
  c->add_option("--lengths", o->lengths, "full, or uniform:0.2-1.0: how much of each row the mask inputs keep");
  c->add_option("--iterations", o->iterations, "least number of timed runs")->check(CLI::PositiveNumber);
  c->add_option("--warmUp", o->warm_up_ms, "warm-up in milliseconds")->check(CLI::NonNegativeNumber);
  c->add_option("--duration", o->duration_s, "least seconds of timed runs")->check(CLI::NonNegativeNumber);
  c->add_option("--device", o->device, "auto, cpu, cuda or cuda:N");
  c->add_option("--threads", o->threads, "CPU threads; default: one per core")->check(CLI::NonNegativeNumber);
  c->add_flag("--noCudaGraph", o->no_graph, "launch kernels one by one, without CUDA graphs");
  c->add_option("--seed", o->seed, "seed of inputs and lengths");
  c->add_flag("--json", o->json, "print JSON");
  c->callback([o, &action] { action = [o] { return bench(*o); }; });
}

}  // namespace tfcc::tools

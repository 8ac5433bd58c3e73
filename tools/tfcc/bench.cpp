// SPDX-License-Identifier: Apache-2.0
// tfcc bench: latency and throughput of a .tfcc file, in trtexec's words. On a GPU inputs and
// outputs stay on the device. The profile (bench_profile) and the peer (bench_peer) have runs of
// their own.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "ir/constant.h"
#include "runtime/core/generation.h"
#include "tools/tfcc/bench.h"
#include "tools/tfcc/bench_peer.h"
#include "tools/tfcc/bench_profile.h"
#include "tools/support/fold.h"
#include "tools/support/output_file.h"
#include "tools/support/real_rows.h"
#include "tools/tfcc/peer.h"
#include "tools/tfcc/ranges.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {
namespace {

// "uniform:0.2-1.0": lengths drawn between these shares of the second axis, the first row full; the
// mask inputs get them, but for those that were given. They are what torch.randint(least, most + 1)
// draws on a CPU from a torch.Generator of that seed, so that a peer can have the same.
Result<int64_t> apply_lengths(const BenchOptions& o, const Model& model,
                              const std::vector<std::string>& given, NamedArrays& inputs) {
  double low = 1, high = 1;
  if (o.lengths != "full") {
    if (std::sscanf(o.lengths.c_str(), "uniform:%lf-%lf", &low, &high) != 2 || low < 0 ||
        high > 1 || low > high) {
      return usage_error(fmt::format(
          "--lengths takes full or uniform:LOW-HIGH with shares of the length, not '{}'",
          o.lengths));
    }
  }
  std::mt19937 rng(static_cast<uint32_t>(o.seed));
  int64_t tokens = 0;
  for (auto& [name, a] : inputs) {
    const auto info = std::ranges::find(model.inputs(), name, &TensorInfo::name);
    if (info == model.inputs().end() || info->role != InputRole::mask) continue;
    if (a.shape.size() != 2 || is_float(a.dtype)) continue;
    const int64_t batch = a.shape[0], length = a.shape[1];
    tokens = 0;
    if (std::find(given.begin(), given.end(), name) != given.end()) {
      for (int64_t i = 0; i < a.count(); ++i)
        tokens += ir::read_int(a.dtype, a.bytes.data(), i) != 0;
      continue;
    }
    for (int64_t b = 0; b < batch; ++b) {
      const auto least =
          std::max<int64_t>(1, static_cast<int64_t>(low * static_cast<double>(length)));
      const auto most = std::max(least, static_cast<int64_t>(high * static_cast<double>(length)));
      const int64_t drawn =
          least + static_cast<int64_t>(rng() % static_cast<uint64_t>(most - least + 1));
      const int64_t n = b == 0 ? most : drawn;
      for (int64_t j = 0; j < length; ++j)
        ir::write_int(a.dtype, a.bytes.data(), b * length + j, j < n);
      tokens += n;
    }
  }
  return tokens;
}

// Of a state: random numbers that repeat, for gigabytes of them would take minutes.
Array made_state(const TensorInfo& t, int64_t count, std::mt19937_64& rng) {
  std::vector<int64_t> shape{count};
  for (size_t k = 1; k < t.dims.size(); ++k) shape.push_back(t.dims[k].max);
  Array a = make_array(t.dtype, std::move(shape));
  std::uniform_real_distribution<double> uniform(-1, 1);
  constexpr int64_t kPeriod = 65521;
  const auto size = static_cast<int64_t>(size_of(t.dtype));
  for (int64_t i = 0; i < a.count(); ++i) {
    if (i < kPeriod) ir::write_real(t.dtype, a.bytes.data(), static_cast<size_t>(i), uniform(rng));
    else std::copy_n(a.bytes.begin() + (i - kPeriod) * size, size, a.bytes.begin() + i * size);
  }
  return a;
}

// A step of the program for generation (docs/generate.md): every sequence has as many tokens and
// keys, its pages lie apart; slots of sums that are read lie before those that are written. What
// states hold is made up like any input.
NamedArrays step_inputs(const BenchOptions& o, const Model& generation) {
  const auto info = [&](const std::string& name) {
    return *std::find_if(generation.inputs().begin(), generation.inputs().end(),
                         [&](const TensorInfo& t) { return t.name == name; });
  };
  const auto cache =
      std::find_if(generation.inputs().begin(), generation.inputs().end(),
                   [](const TensorInfo& t) { return t.state && runtime::is_cache(t); });
  const bool cached = cache != generation.inputs().end();
  const bool sums = std::any_of(generation.inputs().begin(), generation.inputs().end(),
                                [](const TensorInfo& t) { return t.state && runtime::is_sums(t); });
  const int64_t page = cached ? cache->dims[2].max : 1, n = o.batch,
                each = o.decode ? 1 : o.prefill, keys = o.context_before() + each;
  const int64_t width = (keys + page - 1) / page,
                vocabulary = generation.outputs()[0].dims.back().max;
  std::mt19937_64 rng(o.seed);
  const auto page_of = [&](int64_t b, int64_t k) { return b + k * n; };
  NamedArrays out;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, auto value) {
    Array a = make_array(info(name).dtype, std::move(shape));
    for (int64_t i = 0; i < a.count(); ++i) {
      if (is_float(a.dtype))
        ir::write_real(a.dtype, a.bytes.data(), i, static_cast<double>(value(i)));
      else ir::write_int(a.dtype, a.bytes.data(), i, value(i));
    }
    out.emplace_back(name, std::move(a));
  };
  const auto place = [&](int64_t t) { return keys - each + t % each; };
  add("ids", {1, n * each},
      [&](int64_t) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(vocabulary)); });
  add("positions", {n * each}, place);
  if (cached)
    add("slots", {n * each},
        [&](int64_t t) { return page_of(t / each, place(t) / page) * page + place(t) % page; });
  add("context", {n}, [&](int64_t) { return keys; });
  add("first", {n + 1}, [&](int64_t b) { return b * each; });
  if (cached) add("order", {n}, [](int64_t b) { return b; });
  if (sums) add("state_from", {n}, [&](int64_t b) { return keys > each ? b : -1; });
  if (sums) add("state_to", {n}, [&](int64_t b) { return n + b; });
  if (cached) add("table", {n, width}, [&](int64_t i) { return page_of(i / width, i % width); });
  add("wanted", {n}, [&](int64_t b) { return (b + 1) * each - 1; });
  add("sampling", {n, 4}, [](int64_t i) { return i % 4 == 3; });  // the likeliest, no penalty
  add("draw", {n, 4}, [](int64_t) { return 0; });
  add("seen", {n, 1}, [](int64_t) { return 0; });
  for (const TensorInfo& t : generation.inputs()) {
    if (t.state)
      out.emplace_back(t.name, made_state(t, runtime::is_cache(t) ? n * width : 2 * n, rng));
  }
  return out;
}

// Runs until warm-up time is over, then until both the iterations and the duration are done.
Result<Measured> measure(const BenchOptions& o, Subject& subject) {
  Stage stage("timed runs");
  const auto warm = Clock::now();
  Measured ignored, m;
  do {
    TFCC_TRY_VOID(subject.once(ignored));
  } while (ms_since(warm) < o.warm_up_ms);
  const auto start = Clock::now();
  while (static_cast<int>(m.queries) < o.runs_at_least() || ms_since(start) < o.duration_s * 1000) {
    TFCC_TRY_VOID(subject.once(m));
    ++m.queries;
    stage.update(std::min(ms_since(start) / std::max(o.duration_s * 1000, 1e-3),
                          static_cast<double>(m.queries) / o.runs_at_least()));
  }
  m.seconds = ms_since(start) / 1000;
  if (!subject.on_host()) TFCC_TRY_VOID(subject.executor().status());
  return m;
}

void print_series(const char* title, const Series& s, const std::vector<double>& percentiles) {
  if (s.ms.empty()) return;
  std::printf(
      "%s: min = %.4f ms, max = %.4f ms, mean = %.4f ms, median = %.4f ms, percentile(10%%) = %.4f ms",
      title, s.quantile(0), s.quantile(1), s.mean(), s.median(), s.quantile(0.1));
  for (double p : percentiles) std::printf(", percentile(%g%%) = %.4f ms", p, s.quantile(p / 100));
  std::printf("\n");
}

std::string shapes_text(const NamedArrays& inputs) {
  std::string out;
  std::vector<std::pair<std::string, std::string>> items;
  for (const auto& [name, a] : inputs)
    items.emplace_back(name, fmt::format("{}", fmt::join(a.shape, "x")));
  for (const Folded& f : fold(items)) out += fmt::format(", {} {}", f.name, items[f.first].second);
  return out;
}

/// Everything that was measured.
struct Findings {
  std::string device, target;
  NamedArrays inputs;
  int64_t tokens = 0;
  size_t arena_bytes = 0;
  Measured times;
  std::optional<ProfileReport> profile;
  std::optional<PeerReport> peer;

  double qps() const { return static_cast<double>(times.queries) / times.seconds; }
  double run_ms() const {
    return times.gpu.ms.empty() ? times.latency.median() : times.gpu.median();
  }
};

// Names of files need not be UTF-8.
std::string dumped(const nlohmann::json& j, int indent) {
  return j.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

void print(const BenchOptions& o, const Findings& f) {
  std::printf("%s on %s (%s)%s, lengths %s%s\n", o.model.c_str(), f.device.c_str(),
              f.target.c_str(), shapes_text(f.inputs).c_str(), o.lengths.c_str(),
              f.tokens ? fmt::format(" ({} tokens)", f.tokens).c_str() : "");
  std::printf("Throughput: %.2f qps\n", f.qps());
  print_series("Latency", f.times.latency, o.percentiles);
  print_series("Enqueue Time", f.times.enqueue, o.percentiles);
  print_series("GPU Compute Time", f.times.gpu, o.percentiles);
  if (!f.times.gpu.ms.empty() && f.times.enqueue.median() > 0.9 * f.times.gpu.median()) {
    std::printf("Throughput may be bound by Enqueue Time rather than GPU Compute\n");
  }
  if (f.profile && o.dump_profile) print_profile(*f.profile, f.run_ms());
  if (f.peer) print_peer(*f.peer);
}

nlohmann::json json_of(const BenchOptions& o, const Findings& f) {
  nlohmann::json j = {{"schema", 1},
                      {"model", o.model},
                      {"device", f.device},
                      {"target", f.target},
                      {"lengths", o.lengths},
                      {"tokens", f.tokens},
                      {"queries", f.times.queries},
                      {"throughput_qps", f.qps()},
                      {"arena_bytes", f.arena_bytes},
                      {"latency_ms", json_of(f.times.latency)},
                      {"enqueue_ms", json_of(f.times.enqueue)},
                      {"gpu_compute_ms", json_of(f.times.gpu)}};
  for (const auto& [name, a] : f.inputs) j["shapes"][name] = a.shape;
  j["profile"] = f.profile ? json_of(*f.profile) : nlohmann::json(nullptr);
  j["peer"] = f.peer ? json_of(*f.peer) : nlohmann::json(nullptr);
  return j;
}

Result<void> gather_inputs(const BenchOptions& o, const Model& model, Findings& f) {
  if (o.one_step()) {
    f.inputs = step_inputs(o, model);
    f.tokens = o.batch * (o.decode ? 1 : o.prefill);
    return {};
  }
  TFCC_TRY(auto shapes, parse_shapes(o.shapes));
  TFCC_TRY(NamedArrays given, read_inputs(o.npz, o.inputs));
  std::vector<std::string> names;
  for (const auto& [name, array] : given) names.push_back(name);
  TFCC_TRY(f.inputs, random_inputs(model.inputs(), shapes, o.seed, std::move(given)));
  TFCC_TRY(f.tokens, apply_lengths(o, model, names, f.inputs));
  if (o.ragged) {
    TFCC_TRY(const Model ragged, model.ragged());
    TFCC_TRY(const RealRows real, real_rows(model.inputs(), f.inputs));
    TFCC_TRY(f.inputs, without_padding(ragged.inputs(), real, std::move(f.inputs)));
  }
  return {};
}

Result<void> check_usage(const BenchOptions& o) {
  if (o.generates() &&
      (!o.shapes.empty() || !o.npz.empty() || !o.inputs.empty() || !o.peer.empty()))
    return usage_error(
        "bench makes up the inputs of --decode and --prefill, and has no peer there");
  if (o.ragged && (o.generates() || !o.peer.empty()))
    return usage_error("--ragged is of a program with neither --decode, --prefill nor a peer");
  if (o.generates() && o.context_before() + o.prefill == 0)
    return usage_error("--decode goes on after --context tokens or --prefill: give one of them");
  const bool profiles =
      o.dump_profile || !o.export_profile.empty() || !o.html.empty() || !o.trace.empty();
  if (o.generates() && !o.one_step() && profiles)
    return usage_error("a profile is of one step: --decode 1, or --prefill N alone");
  return {};
}

Result<void> bench(const BenchOptions& o) {
  TFCC_TRY_VOID(check_usage(o));
  for (const std::string* read : {&o.model, &o.timing_cache, &o.peer_model}) {
    if (!read->empty()) TFCC_TRY_VOID(note_input(*read));
  }
  const std::string beside = std::filesystem::path(o.model)
                                 .replace_extension(".onnx")
                                 .string();  // what a peer reads if nothing else is named
  std::error_code none;
  if (!o.peer.empty() && std::filesystem::exists(beside, none)) TFCC_TRY_VOID(note_input(beside));
  TFCC_TRY_VOID(plan_output("--exportProfile", o.export_profile));
  TFCC_TRY_VOID(plan_output("--html", o.html));
  TFCC_TRY_VOID(plan_output("--trace", o.trace));
  LoadOptions load;
  load.device = o.device;
  load.threads = o.threads;
  load.graphs = !o.no_graph;
  load.ranges = profiler_ranges();
  load.timing_cache = o.timing_cache;
  load.log = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  TFCC_TRY(Model model, Model::load(o.model, load));
  if (o.generates() && !o.one_step()) return bench_generation(o, model);
  if (o.one_step()) {
    TFCC_TRY(model, model.generation());
  } else if (model.generation_alone() && o.inputs.empty() && o.npz.empty()) {
    return usage_error(fmt::format(
        "{} was compiled with --generate-only: --decode or --prefill tells what step is timed",
        o.model));
  }
  Findings f;
  TFCC_TRY_VOID(gather_inputs(o, model, f));
  if (o.ragged) {
    TFCC_TRY(model, model.ragged());
  }
  f.device = model.device();
  f.target = model.target();
  TFCC_TRY(Subject subject, Subject::make(o, model, f.inputs));
  TFCC_TRY(f.times, measure(o, subject));
  f.arena_bytes = subject.executor().arena_bytes();
  if (!o.peer.empty()) {
    TFCC_TRY(f.peer, compare_with_peer(subject, o, model, f.inputs));
  }
  if (o.dump_profile || !o.export_profile.empty() || !o.html.empty() || !o.trace.empty()) {
    TFCC_TRY(f.profile, profile(subject, o, f.run_ms()));
  }
  if (!o.export_profile.empty())
    TFCC_TRY_VOID(write_text(o.export_profile, dumped(json_of(*f.profile), 1) + "\n"));
  const std::string title =
      fmt::format("{} on {} ({}){}", o.model, f.device, f.target, shapes_text(f.inputs));
  if (!o.html.empty()) TFCC_TRY_VOID(write_text(o.html, roofline_page(*f.profile, title)));
  if (!o.trace.empty())
    TFCC_TRY_VOID(write_text(o.trace, dumped(trace_of(f.times, *f.profile, title), -1) + "\n"));
  if (o.json) std::printf("%s\n", dumped(json_of(o, f), 1).c_str());
  else print(o, f);
  return {};
}

// What is timed of a program for generation.
void add_generation(CLI::App& c, BenchOptions& o) {
  c.add_option(
       "--decode", o.decode,
       "generation: so many tokens of each of --batch sequences after --context tokens; 1 is one step alone")
      ->check(positive());
  c.add_option(
       "--prefill", o.prefill,
       "generation: so many tokens of a prompt for each; without --decode one step alone, with it whole answers")
      ->check(positive());
  c.add_option("--batch", o.batch, "sequences of --decode and --prefill")
      ->check(positive())
      ->capture_default_str();
  c.add_option("--context", o.context,
               "tokens before these, which are not timed; default: 512, before a prompt none")
      ->check(not_negative());
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* c = app.add_subcommand("bench", "time a .tfcc file");
  c->add_option("model", o->model, "the .tfcc file")->required();
  c->add_option(
      "--shapes", o->shapes,
      "sizes of the made-up inputs: batch_size=8,sequence_length=128, or input_ids:8x128; the others follow");
  add_inputs(*c, o->npz, o->inputs, "; the others are made up");
  add_generation(*c, *o);
  c->add_option("--lengths", o->lengths,
                "full, or uniform:0.2-1.0: how much of each row the mask inputs keep");
  c->add_flag(
      "--ragged", o->ragged,
      "time the program for tokens without padding, on the tokens that the mask inputs keep (docs/ragged.md)");
  c->add_option("--iterations", o->iterations,
                "least number of timed runs; default: 10, of whole answers 3")
      ->check(positive());
  c->add_option("--warmUp", o->warm_up_ms, "warm-up in milliseconds")->check(not_negative());
  c->add_option("--duration", o->duration_s,
                "least seconds of timed runs, and of the rounds against a peer")
      ->check(not_negative());
  c->add_option("--percentile", o->percentiles, "percentiles to print: 90,95,99")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  c->add_option("--device", o->device, "auto, cpu, cuda or cuda:N");
  add_threads(*c, o->threads, "CPU threads, of a peer too");
  c->add_option("--timing-cache,--timingCacheFile", o->timing_cache,
                "measured algorithms of products, from `tfcc tune`");
  c->add_flag("--noCudaGraph", o->no_graph, "launch kernels one by one, without CUDA graphs");
  c->add_option("--seed", o->seed, "seed of inputs and lengths");
  c->add_flag("--json", o->json, "print JSON (docs/bench.md)");
  c->add_flag("--dumpProfile", o->dump_profile,
              "time, rate and share of this machine's limit of every launch, in runs of their own");
  c->add_option("--exportProfile", o->export_profile, "write the profile to this file as JSON");
  c->add_option("--trace", o->trace,
                "write timed runs and launches to this file, for chrome://tracing and Perfetto");
  c->add_option("--html", o->html, "write the profile to this file as a roofline page");
  c->add_option("--peer", o->peer,
                "also run onnxruntime or torch, in alternation on the same inputs")
      ->check(CLI::IsMember({"onnxruntime", "torch"}));
  c->add_option(
      "--peer-model", o->peer_model,
      "what the peer loads: FILE.onnx; for torch FILE.py with load(context), hf:NAME or FILE.onnx");
  c->add_option("--peer-mode", o->peer_mode, "torch: compile (torch.compile) or eager")
      ->check(CLI::IsMember({"compile", "eager"}));
  c->add_option("--rounds", o->rounds, "rounds against the peer")->check(CLI::Range(5, 1000));
  c->add_option("--tolerance", o->tolerance,
                "most relative L2 between outputs; default 1e-3, 2e-2 in fp16, 6e-2 in bf16")
      ->check(not_negative());
  c->add_option("--python", o->python, "the Python that has the peer's package; default: python3");
  c->callback([o, &action] { action = [o] { return bench(*o); }; });
}

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/bench_peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/cpu/physical_cores.h"
#include "runtime/core/profile.h"
#include "tools/tfcc/peer.h"
#include "tools/tfcc/verify_cases.h"
#include "tools/tfcc/verify_compare.h"
#include "tools/support/fold.h"

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;

// Relative L2 between two implementations: each has an error of its own.
double default_tolerance(DType precision) {
  return precision == DType::f32 || precision == DType::f64 ? 1e-3
         : precision == DType::f16                          ? 2e-2
                                                            : 6e-2;
}

Result<PeerOptions> peer_options(const BenchOptions& o, Subject& subject) {
  PeerOptions p;
  p.kind = o.peer;
  p.mode = o.peer_mode;
  p.python = o.python;
  std::error_code ignored;
  const fs::path beside = fs::path(o.model).replace_extension(".onnx");
  if (fs::exists(beside, ignored)) p.onnx = beside.string();
  if (o.peer_model.ends_with(".onnx")) p.onnx = o.peer_model;
  p.model = !o.peer_model.empty() ? o.peer_model : o.peer == "onnxruntime" ? p.onnx : "";
  if (p.model.empty()) {
    return usage_error(
        o.peer == "torch"
            ? "--peer torch needs --peer-model: FILE.py with a function load(context), hf:NAME, or FILE.onnx (package onnx2torch)"
            : fmt::format(
                  "--peer onnxruntime needs the .onnx that the model came from: there is no {}, name it with --peer-model",
                  beside.string()));
  }
  if (!p.model.starts_with("hf:") && !fs::exists(p.model, ignored)) {
    return Error{
        ErrorCode::io,
        fmt::format("{}: there is no such file; --peer-model names what the peer loads", p.model)};
  }
  p.threads = o.threads > 0 ? o.threads : cpu::physical_cores();
  p.dtype = runtime::tf32_products(subject.executor()) == 1
                ? std::string(runtime::kTf32)
                : to_string(runtime::precision_of(subject.executor()));
  p.device = subject.on_host()                         ? "cpu"
             : o.device.find(':') != std::string::npos ? o.device
                                                       : "cuda:0";
  return p;
}

HostTensors masks_of(const Model& model, const NamedArrays& inputs) {
  HostTensors out;
  for (const TensorInfo& in : model.inputs()) {
    const auto given = std::ranges::find(inputs, in.name, &NamedArrays::value_type::first);
    if (in.role == InputRole::mask && given != inputs.end())
      out[in.name] = to_host_tensor(given->second);
  }
  return out;
}

// Outputs are matched by name, else by place; a shape that differs is an error where the name says
// it is the same tensor.
Result<std::vector<ComparedOutput>> compare(Subject& subject, Peer& peer, const Model& model,
                                            const NamedArrays& inputs) {
  TFCC_TRY(auto ours, subject.outputs());
  TFCC_TRY(auto theirs, peer.outputs());
  const Defined defined(masks_of(model, inputs));
  const bool named = std::any_of(theirs.begin(), theirs.end(), [&](const auto& t) {
    return t.first && std::any_of(ours.begin(), ours.end(),
                                  [&](const auto& o) { return o.first == *t.first; });
  });
  std::vector<ComparedOutput> out;
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto& [name, mine] = ours[i];
    auto it = named ? std::find_if(theirs.begin(), theirs.end(),
                                   [&, n = name](const auto& t) { return t.first == n; })
                    : theirs.begin() + static_cast<std::ptrdiff_t>(std::min(i, theirs.size()));
    if (it == theirs.end()) continue;
    if (it->second.shape != mine.shape) {
      return Error{
          ErrorCode::invalid_argument,
          fmt::format(
              "output '{}' is [{}] here and [{}] from the peer: it runs another model; nothing was timed",
              name, fmt::join(mine.shape, ","), fmt::join(it->second.shape, ","))};
    }
    // Over the tokens that the mask keeps: what stands at the others is nobody's promise.
    const Difference d = compare(to_host_tensor(mine), to_host_tensor(it->second), defined);
    out.push_back({name, d.relative, d.max_abs});
  }
  if (out.empty())
    return Error{
        ErrorCode::invalid_argument,
        "the peer gives none of the model's outputs: it runs another model; nothing was timed"};
  return out;
}

// Lets the threads of the side that ran last go to sleep.
void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

Result<Series> our_block(Subject& subject, int runs, bool events) {
  Measured ignored, m;
  settle();
  TFCC_TRY_VOID(subject.once(ignored));
  for (int i = 0; i < runs; ++i) TFCC_TRY_VOID(subject.once(m));
  return events ? m.gpu : m.latency;
}

Result<Series> their_block(Peer& peer, int runs) {
  settle();
  TFCC_TRY(auto ms, peer.run(runs, 1));
  return Series{ms};
}

void add(Series& all, Series& rounds, const Series& block) {
  all.ms.insert(all.ms.end(), block.ms.begin(), block.ms.end());
  rounds.ms.push_back(block.median());
}

Result<void> run_rounds(Subject& subject, Peer& peer, const BenchOptions& o, PeerReport& r) {
  TFCC_TRY(Series first, our_block(subject, 3, r.by_events));
  TFCC_TRY(Series second, their_block(peer, 3));
  const double block_ms = o.duration_s * 1000 / (2 * o.rounds);
  auto runs_for = [&](const Series& s) {
    return static_cast<int>(std::clamp(block_ms / std::max(s.median(), 1e-3), 3.0, 10000.0));
  };
  const int our_runs = runs_for(first), their_runs = runs_for(second);
  Stage stage("rounds against " + o.peer);
  for (int round = 0; round < o.rounds; ++round) {
    stage.update(static_cast<double>(round) / o.rounds);
    Series ours, theirs;
    for (int half = 0; half < 2; ++half) {  // who begins changes from round to round
      if ((round + half) % 2 == 0) {
        TFCC_TRY(ours, our_block(subject, our_runs, r.by_events));
      } else {
        TFCC_TRY(theirs, their_block(peer, their_runs));
      }
    }
    add(r.ours, r.our_rounds, ours);
    add(r.theirs, r.their_rounds, theirs);
    r.ratios.ms.push_back(theirs.median() / ours.median());
  }
  return {};
}

}  // namespace

Result<PeerReport> compare_with_peer(Subject& subject, const BenchOptions& o, const Model& model,
                                     const NamedArrays& inputs) {
  TFCC_TRY(PeerOptions options, peer_options(o, subject));
  PeerReport r;
  const DType precision = runtime::precision_of(subject.executor());
  r.tolerance = o.tolerance > 0                                   ? o.tolerance
                : runtime::tf32_products(subject.executor()) == 1 ? default_tolerance(DType::f16)
                                                                  : default_tolerance(precision);
  r.model = options.model;
  Progress progress;
  progress.say("loading " + o.peer);
  TFCC_TRY(Peer peer, Peer::start(options, inputs));
  r.name = peer.name();
  r.by_events = peer.by_events() && !subject.on_host();
  Measured ignored;
  TFCC_TRY_VOID(subject.once(ignored));
  TFCC_TRY(r.outputs, compare(subject, peer, model, inputs));
  for (const ComparedOutput& c : r.outputs) {
    if (c.relative_l2 <= r.tolerance) continue;
    return Error{
        ErrorCode::invalid_argument,
        fmt::format(
            "output '{}' of {} and of {} differ by {:.2g} (relative L2, allowed {:.2g}); nothing was timed; tfcc verify tells "
            "which is wrong, --tolerance allows more",
            c.name, model.target(), r.name, c.relative_l2, r.tolerance)};
  }
  TFCC_TRY_VOID(run_rounds(subject, peer, o, r));
  return r;
}

void print_peer(const PeerReport& r) {
  std::printf("\nPeer: %s, %s; %zu rounds in alternation, %s\n", r.name.c_str(), r.model.c_str(),
              r.ratios.ms.size(),
              r.by_events ? "time between events on the GPU" : "time on the host");
  // The worst of those that layers have in common.
  std::vector<std::pair<std::string, std::string>> names;
  for (const ComparedOutput& c : r.outputs) names.emplace_back(c.name, "");
  const std::vector<Folded> folded = fold(names);
  for (const Folded& f : folded) {
    double l2 = 0, most = 0;
    for (size_t i : f.members)
      l2 = std::max(l2, r.outputs[i].relative_l2), most = std::max(most, r.outputs[i].max_abs);
    std::printf("Output %s: relative L2 %.2e, max abs %.2e, allowed %.0e\n", f.name.c_str(), l2,
                most, r.tolerance);
  }
  auto line = [](const char* title, const Series& s) {
    std::printf(
        "%-16s median = %.4f ms, percentile(10%%) = %.4f ms, percentile(90%%) = %.4f ms, %zu runs\n",
        title, s.median(), s.quantile(0.1), s.quantile(0.9), s.ms.size());
  };
  line("tfcc:", r.ours);
  line("peer:", r.theirs);
  std::printf("Ratio: %.3f (peer / tfcc, median of the rounds; %.3f to %.3f)\n", r.ratios.median(),
              r.ratios.quantile(0), r.ratios.quantile(1));
}

nlohmann::json json_of(const PeerReport& r) {
  nlohmann::json j = {{"name", r.name},
                      {"model", r.model},
                      {"clock", r.by_events ? "events" : "wall"},
                      {"tolerance", r.tolerance},
                      {"ours_ms", json_of(r.ours)},
                      {"peer_ms", json_of(r.theirs)},
                      {"ratio", json_of(r.ratios)},
                      {"rounds", nlohmann::json::array()},
                      {"outputs", nlohmann::json::array()}};
  for (size_t i = 0; i < r.ratios.ms.size(); ++i)
    j["rounds"].push_back({{"ours_ms", r.our_rounds.ms[i]},
                           {"peer_ms", r.their_rounds.ms[i]},
                           {"ratio", r.ratios.ms[i]}});
  for (const ComparedOutput& c : r.outputs)
    j["outputs"].push_back(
        {{"name", c.name}, {"relative_l2", c.relative_l2}, {"max_abs", c.max_abs}});
  return j;
}

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
// A decoder with a cache on a real GPU: every step is replayed from a captured graph, few graphs
// serve all lengths of the past, and the numbers are those of launches one by one.
//
//     decode_steps MODEL.tfcc        of inputs x [B,S,32], past_key, past_value [B,2,P,16] and the presents as outputs
//
// Exit status 0 if so, 1 with a line for each thing that is not.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "runtime/tfcc.h"

namespace {

using tfcc::DType;
using tfcc::Executor;
using tfcc::Model;

constexpr int64_t kWidth = 32, kHeads = 2, kHead = 16;

int wrong = 0;
void expect(bool good, const std::string& what) {
  if (good) return;
  std::printf("FAIL  %s\n", what.c_str());
  wrong = 1;
}

struct Step {
  std::vector<float> y, key, value;
};

Step run(Executor& e, int64_t batch, int64_t length, int64_t past, std::vector<float>& x,
         Step& before) {
  Step out;
  const bool set =
      e.set("x", {x.data(), DType::f32, {batch, length, kWidth}}) &&
      e.set("past_key", {before.key.data(), DType::f32, {batch, kHeads, past, kHead}}) &&
      e.set("past_value", {before.value.data(), DType::f32, {batch, kHeads, past, kHead}});
  auto ran = e.run();
  if (!set || !ran) {
    expect(false, ran ? "an input was refused" : ran.error().message);
    return out;
  }
  auto take = [&](const char* name, std::vector<float>& to) {
    auto t = e.output(name);
    if (!t) return expect(false, t.error().message);
    const auto* data = static_cast<const float*>(t->data);
    to.assign(data, data + t->bytes / sizeof(float));
  };
  take("y", out.y);
  take("present_key", out.key);
  take("present_value", out.value);
  return out;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    d += (a[i] - b[i]) * (a[i] - b[i]);
    n += b[i] * b[i];
  }
  return std::sqrt(d / std::max(n, 1e-30));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "decode_steps MODEL.tfcc\n"), 2;
  tfcc::LoadOptions options;
  options.device = "cuda";
  auto model = Model::load(argv[1], options);
  options.graphs = false;
  auto plain = Model::load(argv[1], options);
  if (!model || !plain)
    return std::fprintf(stderr, "%s\n", (model ? plain : model).error().message.c_str()), 1;
  auto by_graph = model->executor(), one_by_one = plain->executor();
  if (!by_graph || !one_by_one) return std::fprintf(stderr, "no executor\n"), 1;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  double largest = 0;
  int runs = 0;
  for (int64_t batch : {1, 3, 1}) {
    Step graph, single;
    int64_t past = 0;
    // A prompt, steps of one token, a chunk, and steps again.
    for (int step = 0; step < 80; ++step) {
      const int64_t length = step == 0 ? 7 : step == 50 ? 5 : 1;
      std::vector<float> x(static_cast<size_t>(batch * length * kWidth));
      for (float& v : x) v = uniform(random);
      graph = run(*by_graph, batch, length, past, x, graph);
      single = run(*one_by_one, batch, length, past, x, single);
      for (double d : {difference(graph.y, single.y), difference(graph.key, single.key),
                       difference(graph.value, single.value)}) {
        largest = std::max(largest, d);
        expect(d < 1e-5, std::to_string(batch) + "x" + std::to_string(length) + " after " +
                             std::to_string(past) + ": differs by " + std::to_string(d));
      }
      past += length;
      ++runs;
    }
  }
  const tfcc::ExecutorStats stats = by_graph->stats();
  expect(stats.plain_runs == 0, "runs without a graph");
  expect(stats.graph_runs == static_cast<uint64_t>(runs), "not every run was replayed");
  // For each batch: a prompt, a chunk, and steps with up to 16, 32, 64 and 128 tokens in the cache;
  // all again whenever the arena grew.
  expect(stats.graphs_made < static_cast<uint64_t>(runs) / 4, "as many graphs as steps");
  expect(one_by_one->stats().graph_runs == 0, "graphs where they are off");
  std::printf(
      "%s, %s: %d steps, %llu graphs made, largest difference from launches one by one %.1e\n",
      argv[1], model->device().c_str(), runs, static_cast<unsigned long long>(stats.graphs_made),
      largest);
  return wrong;
}

// SPDX-License-Identifier: Apache-2.0
// One executor on a real GPU: after prepare_all() runs of any shape make no graph, no allocation
// and load no code, and the same run twice gives the same bits.
//
//     prepared_runs MODEL.tfcc [LARGEST_BATCH LARGEST_LENGTH [RUNS]]
//
// Exit status 0 if so, 1 with a line for each thing that is not.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "runtime/tfcc.h"

namespace {

using tfcc::DType;
using tfcc::Executor;
using tfcc::Model;

struct Inputs {
  std::map<std::string, std::vector<std::byte>> bytes;
  tfcc::Shapes shapes;
};

// Ids below 2, masks of ones, except that a row of a batch keeps half of its tokens.
Inputs inputs_of(const Model& model, int64_t batch, int64_t length) {
  Inputs in;
  for (const tfcc::TensorInfo& t : model.inputs()) {
    std::vector<int64_t> shape;
    int64_t count = 1;
    for (size_t k = 0; k < t.dims.size(); ++k) {
      const auto& d = t.dims[k];
      shape.push_back(d.min == d.max && d.max != 0 ? d.min : k == 0 ? batch : length);
      count *= shape.back();
    }
    std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(t.dtype));
    for (int64_t i = 0; i < count && t.dtype == DType::i64; ++i) {
      const bool mask = t.name.find("mask") != std::string::npos;
      const int64_t value = mask ? (i / length) % 2 == 0 || i % length <= length / 2 : i % 2;
      std::memcpy(bytes.data() + i * 8, &value, 8);
    }
    in.bytes[t.name] = std::move(bytes);
    in.shapes.emplace_back(t.name, shape);
  }
  return in;
}

// The bytes of all outputs, or nothing after an error.
std::string run(const Model& model, Executor& e, int64_t batch, int64_t length) {
  Inputs in = inputs_of(model, batch, length);
  for (size_t i = 0; i < model.inputs().size(); ++i) {
    const auto& t = model.inputs()[i];
    auto set = e.set(t.name, {in.bytes[t.name].data(), t.dtype, in.shapes[i].second});
    if (!set) return std::fprintf(stderr, "%s\n", set.error().message.c_str()), "";
  }
  if (auto ran = e.run(); !ran)
    return std::fprintf(stderr, "%s\n", ran.error().message.c_str()), "";
  std::string all;
  for (const auto& t : model.outputs()) {
    auto out = e.output(t.name);
    if (!out) return "";
    all.append(static_cast<const char*>(out->data), out->bytes);
  }
  return all;
}

int wrong = 0;
void expect(bool good, const std::string& what) {
  if (good) return;
  std::printf("FAIL  %s\n", what.c_str());
  wrong = 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4 && argc != 5)
    return std::fprintf(stderr, "prepared_runs MODEL.tfcc [BATCH LENGTH [RUNS]]\n"), 2;
  tfcc::LoadOptions options;
  options.device = "cuda";
  auto model = Model::load(argv[1], options);
  if (!model) return std::fprintf(stderr, "%s\n", model.error().message.c_str()), 1;
  auto executor = model->executor();
  if (!executor) return std::fprintf(stderr, "%s\n", executor.error().message.c_str()), 1;
  const int64_t batch = argc > 2 ? std::atoll(argv[2]) : 16,
                length = argc > 2 ? std::atoll(argv[3]) : 48;
  const int runs = argc > 4 ? std::atoi(argv[4]) : 50;
  auto prepared = executor->prepare_all(inputs_of(*model, batch, length).shapes);
  if (!prepared) return std::fprintf(stderr, "%s\n", prepared.error().message.c_str()), 1;
  const tfcc::ExecutorStats before = executor->stats();
  std::mt19937 rng(1);
  for (int i = 0; i < runs; ++i) {
    const int64_t b = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(batch));
    const int64_t s = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(length));
    const std::string first = run(*model, *executor, b, s), second = run(*model, *executor, b, s);
    expect(!first.empty() && first == second,
           "two runs of " + std::to_string(b) + "x" + std::to_string(s) + " differ");
  }
  const tfcc::ExecutorStats after = executor->stats();
  expect(before.graphs_made > 0, "prepare_all() made no graph");
  expect(after.graphs_made == before.graphs_made, "graphs were made in runs");
  expect(after.device_allocations == before.device_allocations,
         "device memory was allocated in runs");
  expect(after.modules_loaded == before.modules_loaded, "code was loaded in runs");
  expect(after.plain_runs == before.plain_runs, "runs without a graph");
  std::printf(
      "%s, %s: %llu graphs prepared up to %lldx%lld; in %d runs: graphs %lld, allocations %lld, modules %lld, plain runs %lld\n",
      argv[1], model->device().c_str(), static_cast<unsigned long long>(before.graphs_made),
      static_cast<long long>(batch), static_cast<long long>(length), 2 * runs,
      static_cast<long long>(after.graphs_made - before.graphs_made),
      static_cast<long long>(after.device_allocations - before.device_allocations),
      static_cast<long long>(after.modules_loaded - before.modules_loaded),
      static_cast<long long>(after.plain_runs - before.plain_runs));
  return wrong;
}

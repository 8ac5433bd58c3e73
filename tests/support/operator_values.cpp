// SPDX-License-Identifier: Apache-2.0
// Runs files of models with numbers: `operators FILE...`. tests/frontend/operators/README.md has the format.
// Each model is imported and evaluated in float64, as imported and after all passes, and must give
// what the file expects.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "frontend/import/import.h"
#include "ir/ir.h"
#include "passes/passes.h"

namespace {

using tfcc::ir::Graph;
using tfcc::ir::HostTensor;
namespace fs = std::filesystem;

constexpr double kTolerance = 5e-5;

int failures = 0;

void fail(const std::string& where, const std::string& what) {
  fmt::print(stderr, "{}: {}\n", where, what);
  ++failures;
}

// A tensor of the file. A place that is not compared is "_", here NaN in `ignored`.
struct Values {
  std::string name;
  HostTensor tensor;
  std::vector<bool> ignored;
};

struct Run {
  std::vector<Values> inputs, outputs;
};

// What a model gives, or the words at the end of the message that refuses it.
struct Expected {
  std::vector<Run> runs;
  std::string refused;
};

bool parse_values(const std::string& line, Values& v) {
  std::istringstream in(line);
  std::string word, type, dims;
  if (!(in >> word >> v.name >> type >> dims)) return false;
  int number = 0;
  while (number < tfcc::kDTypeCount && tfcc::to_string(static_cast<tfcc::DType>(number)) != type)
    ++number;
  if (number == tfcc::kDTypeCount) return false;
  const auto dtype = v.tensor.dtype = static_cast<tfcc::DType>(number);
  std::istringstream sizes(dims);
  for (std::string n; std::getline(sizes, n, ',');) {
    if (n != "scalar") v.tensor.dims.push_back(std::atoll(n.c_str()));
  }
  while (in >> word) {
    v.ignored.push_back(word == "_");
    if (is_float(dtype)) v.tensor.reals.push_back(std::strtod(word.c_str(), nullptr));
    else v.tensor.ints.push_back(std::atoll(word.c_str()));
  }
  return static_cast<int64_t>(v.ignored.size()) == v.tensor.element_count();
}

// What is expected of each model, in the order of the file.
std::vector<Expected> read_expected(const fs::path& path) {
  constexpr std::string_view kRefused = "#refused ";
  std::vector<Expected> models;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("<ir_version")) models.emplace_back();
    if (line.starts_with(kRefused) && !models.empty())
      models.back().refused = line.substr(kRefused.size());
    const bool input = line.starts_with("#in "), output = line.starts_with("#out ");
    if (!input && !output) continue;
    Values v;
    if (models.empty() || !parse_values(line, v)) {
      fail(path, "not a line of values: " + line.substr(0, 80));
      continue;
    }
    auto& runs = models.back().runs;
    if (runs.empty() || (input && !runs.back().outputs.empty())) runs.emplace_back();
    (input ? runs.back().inputs : runs.back().outputs).push_back(std::move(v));
  }
  return models;
}

void compare(const std::string& where, const HostTensor& got, const Values& want) {
  if (got.dims != want.tensor.dims || got.dtype != want.tensor.dtype)
    return fail(where, want.name + " has another type or shape");
  for (size_t i = 0; i < want.ignored.size(); ++i) {
    if (want.ignored[i]) continue;
    if (!is_float(got.dtype)) {
      if (got.ints[i] != want.tensor.ints[i])
        return fail(where, fmt::format("{}[{}] is {}, not {}", want.name, i, got.ints[i],
                                       want.tensor.ints[i]));
      continue;
    }
    const double x = got.reals[i], y = want.tensor.reals[i];
    const bool same = x == y || (std::isnan(x) && std::isnan(y)) ||
                      std::fabs(x - y) <= kTolerance * (1 + std::fabs(y));
    if (!same) return fail(where, fmt::format("{}[{}] is {}, not {}", want.name, i, x, y));
  }
}

void check(const std::string& where, const Graph& graph, const std::vector<Run>& runs) {
  for (size_t r = 0; r < runs.size(); ++r) {
    const std::string place = fmt::format("{}, run {}", where, r);
    std::map<std::string, HostTensor> inputs;
    for (const Values& v : runs[r].inputs) inputs[v.name] = v.tensor;
    auto got = tfcc::ir::eval(graph, inputs);
    if (!got) {
      fail(place, got.error().message);
      continue;
    }
    for (const Values& v : runs[r].outputs) {
      auto it = got->find(v.name);
      if (it == got->end()) fail(place, "no output " + v.name);
      else compare(place, it->second, v);
    }
  }
}

void run_model(const std::string& where, const std::string& bytes, const Expected& expected) {
  const std::vector<Run>& runs = expected.runs;
  const std::string file =
      fs::path(where).filename().string() + ".onnx";  // in the working folder: messages name it
  std::ofstream(file, std::ios::binary) << bytes;
  auto model = tfcc::frontend::read_onnx(file);
  auto graph =
      model ? tfcc::frontend::import_onnx(*model, nullptr) : tfcc::Result<Graph>(model.error());
  if (!expected.refused.empty()) {
    if (graph) fail(where, "is taken; should be refused: " + expected.refused);
    else if (!graph.error().message.ends_with(expected.refused))
      fail(where, graph.error().message + "; should end: " + expected.refused);
  } else if (!graph) {
    fail(where, graph.error().message);
  } else if (runs.empty()) {
    fail(where, "has no values");
  }
  if (graph) {
    check(where + " as imported", *graph, runs);
    // What an operator computes at padding is compared too.
    std::vector<std::string> passes = tfcc::passes::default_pipeline();
    std::erase(passes, "remove-padding");
    auto reports = tfcc::passes::run_passes(*graph, passes);
    if (!reports) return fail(where, reports.error().message);
    for (const auto& r : *reports) {
      for (const auto& m : r.misses) {
        if (m.reason.starts_with(tfcc::passes::kUndone)) fail(where, r.pass + ": " + m.reason);
      }
    }
    check(where + " after all passes", *graph, runs);
  }
  fs::remove(file);
}

void run_file(const fs::path& path, const fs::path& converter) {
  const fs::path binary = fs::absolute(path.filename()).concat(".values.bin");
  if (std::system(fmt::format("'{}' '{}' '{}'", converter.string(), path.string(), binary.string())
                      .c_str()) != 0) {
    return fail(path, "not a file of models; see above");
  }
  std::ostringstream all;
  all << std::ifstream(binary).rdbuf();
  fs::remove(binary);
  const auto expected = read_expected(path);
  std::istringstream in(all.str());
  std::string name;
  size_t number = 0;
  for (size_t size; in >> name >> size; ++number) {
    in.ignore(1);
    std::string bytes(size, '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(size));
    if (number < expected.size())
      run_model(path.stem().string() + ":" + name, bytes, expected[number]);
  }
  if (number == 0 || number != expected.size()) fail(path, "models and values do not go together");
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    run_file(fs::absolute(argv[i]), fs::absolute(argv[0]).parent_path() / "onnx_from_text");
  return failures ? 1 : 0;
}

// SPDX-License-Identifier: Apache-2.0
// Runs golden files: `golden [--fail-fast] FILE...`; TFCC_BLESS=1 rewrites what they expect.
// tests/README.md has both formats.
//   passes/NAME.tfir       input graphs and what passes make of them, checked by running both in float64 as well
//   import/NAME.onnxtxt    models in ONNX's own text form, and NAME.tfir, the graphs they become
//   emit/NAME.tfir         graphs, and NAME.txt, their plan and the text of their kernels for every class of target
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "codegen/lower.h"
#include "codegen/plan/print.h"
#include "frontend/import/import.h"
#include "ir/ir.h"
#include "passes/passes.h"

namespace {

using tfcc::ir::Graph;
using tfcc::ir::HostTensor;
namespace fs = std::filesystem;

int failures = 0;
bool fail_fast = false;

void fail(const std::string& where, const std::string& what) {
  fmt::print(stderr, "{}: {}\n", where, what);
  ++failures;
  if (fail_fast) std::exit(1);
}

bool blessing() { return std::getenv("TFCC_BLESS") != nullptr; }

std::string read(const fs::path& path) {
  std::ostringstream s;
  s << std::ifstream(path).rdbuf();
  return s.str();
}

struct Case {
  std::string comment, input, expected;
  int line = 0;
};

// ---- passes ----

std::string strip_comment(const std::string& line) { return line.substr(0, line.find("//")); }

// A graph ends with a line "}"; "// ----", the expectation and its misses follow. False if the file
// has another form.
bool split_cases(const std::string& text, std::vector<Case>& cases) {
  std::istringstream in(text);
  std::string line;
  int number = 0;
  auto graph = [&](std::string& out) {
    do out += line + "\n", ++number;
    while (line != "}" && std::getline(in, line));
    return line == "}";
  };
  while (std::getline(in, line)) {
    ++number;
    if (!strip_comment(line).starts_with("graph ")) {
      if (!line.empty() && !line.starts_with("// miss: ") && !line.starts_with("// rewrites: ")) {
        if (!line.starts_with("//")) return false;
        cases.push_back({line + "\n", "", "", 0});
      } else if (!line.empty()) {
        cases.back().expected += line + "\n";
      }
      continue;
    }
    if (cases.empty() || !cases.back().input.empty()) cases.emplace_back();
    Case& c = cases.back();
    c.line = number--;
    if (!graph(c.input) || !std::getline(in, line) || line != "// ----") return false;
    ++number;
    if (!std::getline(in, line)) return blessing();
    ++number;
    if (line.starts_with("graph ")) {
      --number;
      if (!graph(c.expected)) return false;
    } else if (line == "unchanged") {
      c.expected = line + "\n";
    } else if (!blessing()) {
      return false;
    }
  }
  // A comment that no graph follows, as the line RUN, is a case without input: it joins the next
  // one.
  for (size_t i = 0; i + 1 < cases.size();) {
    if (!cases[i].input.empty()) {
      ++i;
      continue;
    }
    cases[i + 1].comment = cases[i].comment + cases[i + 1].comment;
    cases.erase(cases.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return !cases.empty();
}

// Inputs that every case can take: integers are 0 or 1, and 1 where the last index is 0, so that a
// mask hides no whole row.
std::map<std::string, HostTensor> sample_inputs(const Graph& g) {
  std::mt19937 random(1);
  std::map<std::string, int64_t> sizes;
  for (size_t k = 0; k < g.symbols.size(); ++k) {
    const auto range = g.pool().range(g.symbols[k].name);
    const int64_t n = static_cast<int64_t>(k) + 2;
    sizes[g.symbols[k].name] = std::max(range.min, std::min(n, range.max.value_or(n)));
  }
  std::map<std::string, HostTensor> inputs;
  for (tfcc::ir::ValueId v : g.inputs()) {
    HostTensor t;
    t.dtype = g.value(v).type.dtype;
    for (auto d : g.value(v).type.dims) {
      t.dims.push_back(
          tfcc::ir::eval_size(d, [&](std::string_view s) { return sizes[std::string(s)]; }));
    }
    const bool mask = g.value(v).name.ends_with("mask");
    const int64_t row = t.dims.empty() || t.dims.size() == 1 ? 1 : t.dims.back();
    for (int64_t i = 0; i < t.element_count(); ++i) {
      const double r = static_cast<double>(random()) / static_cast<double>(std::mt19937::max());
      if (is_float(t.dtype)) t.reals.push_back(mask ? i % row == 0 || r < 0.5 : 2 * r - 1);
      else t.ints.push_back(i % row == 0 || r < 0.5);
    }
    inputs[g.value(v).name] = std::move(t);
  }
  return inputs;
}

// Whether element i of an output [B,S,..] is at padding, where the input "mask" is 0.
bool at_padding(const HostTensor& output, const std::map<std::string, HostTensor>& inputs,
                size_t i) {
  const auto mask = inputs.find("mask");
  if (mask == inputs.end() || output.dims.size() < 2) return false;
  const std::vector<int64_t> rows(output.dims.begin(), output.dims.begin() + 2);
  if (mask->second.dims != rows) return false;
  const size_t tokens = static_cast<size_t>(mask->second.element_count());
  const size_t token =
      i / (static_cast<size_t>(output.element_count()) / std::max<size_t>(tokens, 1));
  return mask->second.reals.empty() ? mask->second.ints[token] == 0
                                    : mask->second.reals[token] == 0;
}

bool has_input(const Graph& g, const std::string& name) {
  return std::any_of(g.inputs().begin(), g.inputs().end(),
                     [&](auto v) { return g.value(v).name == name; });
}

// Padded inputs of sequences of 1, 2, .. tokens as a ragged graph takes them.
class RaggedCase {
 public:
  RaggedCase(const Graph& before, const Graph& after) : padded(sample_inputs(before)) {
    batch_ = size_named(before, after.size_with(tfcc::SizeRole::batch)->name);
    length_ = size_named(before, after.size_with(tfcc::SizeRole::length)->name);
    for (auto& [name, x] : padded) {
      // Ids are 1 or 3, neither 0 nor what pads; a place in each sequence is that of its first token.
      for (int64_t& i : x.ints) i = x.dims.size() > 1 ? i * 2 + 1 : 0;
      if (!has_input(after, name) && name != "cu_seqlens") says_padding(name, x);
    }
    for (const auto& [name, x] : padded) {
      if (has_input(after, name) && name != "cu_seqlens")
        ragged[name] = is_rows(x) ? rows_of(x) : x;
    }
    if (padded.count("cu_seqlens")) ragged["cu_seqlens"] = padded["cu_seqlens"];
    for (tfcc::ir::ValueId v : after.inputs()) {
      const tfcc::InputRole role = after.value(v).role;
      if (role >= tfcc::InputRole::cu_seqlens) ragged[after.value(v).name] = table(role);
    }
  }

  bool is_rows(const HostTensor& x) const {
    return x.dims.size() >= 2 && x.dims[0] == batch_ && x.dims[1] == length_;
  }
  // The tokens of a padded tensor.
  HostTensor rows_of(const HostTensor& x) const {
    HostTensor y = x;
    y.dims.erase(y.dims.begin());
    const int64_t tokens = batch_ * length_,
                  width = x.element_count() / std::max<int64_t>(tokens, 1);
    y.ints.clear(), y.reals.clear();
    y.dims[0] = 0;
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t s = 0; s < tokens_of(b); ++s, ++y.dims[0]) {
        const int64_t first = (b * length_ + s) * width;
        if (!x.ints.empty())
          y.ints.insert(y.ints.end(), x.ints.begin() + first, x.ints.begin() + first + width);
        if (!x.reals.empty())
          y.reals.insert(y.reals.end(), x.reals.begin() + first, x.reals.begin() + first + width);
      }
    }
    return y;
  }

  std::map<std::string, HostTensor> padded, ragged;

 private:
  // The last is the longest.
  int64_t tokens_of(int64_t b) const { return b + 1 == batch_ ? length_ : 1 + b % length_; }

  int64_t size_named(const Graph& g, const std::string& name) const {
    for (tfcc::ir::ValueId v : g.inputs()) {
      const auto& dims = g.value(v).type.dims;
      for (size_t k = 0; k < dims.size(); ++k) {
        if (dims[k] == g.pool().symbol(name)) return padded.at(g.value(v).name).dims[k];
      }
    }
    return 1;
  }

  void says_padding(const std::string& name, HostTensor& x) const {
    for (int64_t i = 0; i < x.element_count(); ++i) {
      const bool rows = x.dims.size() == 2;
      const bool real = rows && i % length_ < tokens_of(i / length_);
      const int64_t is = rows ? real != name.starts_with("hidden") : tokens_of(i);
      if (!x.ints.empty()) x.ints[static_cast<size_t>(i)] = is;
      if (!x.reals.empty()) x.reals[static_cast<size_t>(i)] = static_cast<double>(is);
    }
  }

  HostTensor table(tfcc::InputRole role) const {
    HostTensor t;
    t.dtype = tfcc::DType::i32;
    std::vector<int64_t>& out = t.ints;
    if (role == tfcc::InputRole::longest) out.assign(static_cast<size_t>(length_), 0);
    if (role == tfcc::InputRole::cu_seqlens) out.push_back(0);
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t n = tokens_of(b);
      if (role == tfcc::InputRole::cu_seqlens) out.push_back(out.back() + n);
      if (role == tfcc::InputRole::seqlens) out.push_back(n);
      if (role == tfcc::InputRole::longest_first) out.push_back(b);
      for (int64_t s = 0; s < n && role == tfcc::InputRole::row_sequences; ++s) out.push_back(b);
      for (int64_t s = 0; s < n && role == tfcc::InputRole::row_positions; ++s) out.push_back(s);
    }
    if (role == tfcc::InputRole::longest_first)
      std::stable_sort(out.begin(), out.end(),
                       [&](int64_t a, int64_t b) { return tokens_of(a) > tokens_of(b); });
    t.dims = {static_cast<int64_t>(out.size())};
    return t;
  }

  int64_t batch_ = 1, length_ = 1;
};

// A graph that takes tokens without padding gives at them what the padded one does.
void check_ragged(const std::string& where, const Graph& before, const Graph& after,
                  double tolerance) {
  const RaggedCase c(before, after);
  const auto a = tfcc::ir::eval(before, c.padded), b = tfcc::ir::eval(after, c.ragged);
  if (!a || !b)
    return fail(where, "the result cannot be evaluated: " + (a ? b : a).error().message);
  for (const auto& [name, y] : *b) {
    const HostTensor x = c.is_rows(a->at(name)) ? c.rows_of(a->at(name)) : a->at(name);
    bool same = x.dims == y.dims && x.dtype == y.dtype && x.ints == y.ints;
    for (size_t i = 0; same && i < x.reals.size(); ++i)
      same = std::fabs(x.reals[i] - y.reals[i]) <= tolerance * (1 + std::fabs(x.reals[i]));
    if (!same) fail(where, fmt::format("output {} is not what the padded graph computes", name));
  }
}

// Optimised and original graph give the same numbers, to the precision that the passes keep; 0 at
// padding that was removed. With `rounded_once` a 16-bit result may be the neighbour of what it
// was: a cast on the way to it is left out.
void check_meaning(const std::string& where, const Graph& before, const Graph& after,
                   double tolerance, bool rounded_once) {
  const bool no_padding = after.size_with(tfcc::SizeRole::packed) != nullptr;
  // A decoder that was lifted has other inputs: tests/passes/lift_kv_cache_test.cpp compares the
  // two step by step.
  if (has_input(after, "wanted") && !has_input(before, "wanted")) return;
  if (has_input(after, "row_sequences")) return check_ragged(where, before, after, tolerance);
  const auto inputs = sample_inputs(before);
  auto inputs_after = sample_inputs(after);  // a pass may add some
  for (const auto& [name, x] : inputs) inputs_after[name] = x;
  for (auto v : after.inputs())
    inputs_after[after.value(v).name].dtype = after.value(v).type.dtype;  // a cache in 16 bits
  const auto a = tfcc::ir::eval(before, inputs), b = tfcc::ir::eval(after, inputs_after);
  if (!a) return;  // a constant in a file that is not there
  if (!b) return fail(where, "the result cannot be evaluated: " + b.error().message);
  for (const auto& [name, x] : *a) {
    const auto of_name = b->find(name);  // the first may get another name
    const HostTensor& y = of_name != b->end() ? of_name->second : b->at(after.outputs[0].name);
    if (rounded_once && x.dtype == tfcc::DType::f16)
      tolerance = std::max(tolerance, std::ldexp(1.0, -10));
    if (rounded_once && x.dtype == tfcc::DType::bf16)
      tolerance = std::max(tolerance, std::ldexp(1.0, -7));
    const bool logits = &y == &b->at(after.outputs[0].name) && b->count("log_probabilities");
    bool same = x.dims == y.dims && (x.dtype == y.dtype || inputs_after.count(name) || logits) &&
                x.ints.size() == y.ints.size();
    for (size_t i = 0; same && i < x.ints.size(); ++i)
      same = (no_padding && y.ints[i] == 0 && at_padding(x, inputs, i)) || x.ints[i] == y.ints[i];
    for (size_t i = 0; same && i < x.reals.size(); ++i) {
      const double p = x.reals[i], q = y.reals[i];
      same = (no_padding && q == 0 && at_padding(x, inputs, i)) || p == q ||
             (std::isnan(p) && std::isnan(q)) || std::fabs(p - q) <= tolerance * (1 + std::fabs(p));
    }
    if (!same) fail(where, fmt::format("output {} is not what the input graph computes", name));
  }
}

std::string run_case(const std::string& where, const Case& c,
                     const std::vector<std::string>& passes) {
  auto before = tfcc::ir::parse(c.input, where);
  if (!before) return fail(where, before.error().message), c.expected;
  const auto broken = verify(*before);
  if (!broken.empty()) return fail(where, "the input graph: " + to_string(broken[0])), c.expected;
  auto after = tfcc::ir::parse(c.input, where);
  auto reports = tfcc::passes::run_passes(*after, passes);
  if (!reports) return fail(where, reports.error().message), c.expected;
  const std::string& last =
      passes.back();  // f16 graphs: constants of a GELU, rounding of probabilities
  check_meaning(where, *before, *after,
                last.ends_with("bf16")                             ? 8e-2
                : last.starts_with("convert-precision")            ? 1e-2
                : last == "raise-gelu" || last == "fuse-attention" ? 1e-3
                                                                   : 1e-5,
                last == "raise-layer-norm" || last == "raise-rms-norm");
  std::string text = print(*after);
  if (text == print(*before)) text = "unchanged\n";
  size_t rewrites = 0;
  for (const auto& r : *reports) rewrites += r.rewrites;
  if (rewrites != (text == "unchanged\n" ? 0 : 1))
    text += fmt::format("// rewrites: {}\n", rewrites);
  for (const auto& r : *reports) {
    for (const auto& m : r.misses) text += fmt::format("// miss: {}: {}\n", m.node, m.reason);
  }
  return text;
}

void run_passes_file(const fs::path& path) {
  const std::string text = read(path), kRun = "// RUN: opt ";
  std::vector<Case> cases;
  if (!text.starts_with(kRun) || !split_cases(text, cases))
    return fail(path, "not a golden file; see tests/README.md");
  std::vector<std::string> passes;
  std::istringstream list(text.substr(kRun.size(), text.find('\n') - kRun.size()));
  for (std::string name; std::getline(list, name, ',');) passes.push_back(name);
  std::string blessed;
  for (const Case& c : cases) {
    const std::string where = fmt::format("{}:{}", path.string(), c.line),
                      got = run_case(where, c, passes);
    if (got != c.expected && !blessing())
      fail(where, fmt::format("expected:\n{}got:\n{}", c.expected, got));
    blessed += (blessed.empty() ? "" : "\n") + c.comment + c.input + "// ----\n" + got;
  }
  if (blessing()) std::ofstream(path) << blessed;
}

// ---- import ----

std::string import_text(const std::string& name, const std::string& bytes) {
  const std::string file = name + ".onnx";  // in the working folder: messages name it
  std::ofstream(file, std::ios::binary) << bytes;
  std::string out = "// " + name + "\n";
  auto model = tfcc::frontend::read_onnx(file);
  tfcc::frontend::ImportReport report;
  auto graph =
      model ? tfcc::frontend::import_onnx(*model, &report) : tfcc::Result<Graph>(model.error());
  fs::remove(file);
  if (!graph) return out + "// error: " + graph.error().message + "\n";
  if (report.shape_ops_left) out += fmt::format("// shape ops left: {}\n", report.shape_ops_left);
  return out + print(*graph);
}

// The models of a file, made by the program beside this one: name, size and bytes of each.
void run_import_file(const fs::path& path, const fs::path& converter) {
  const fs::path binary = fs::absolute(path.filename()).concat(".bin");
  if (std::system(fmt::format("'{}' '{}' '{}'", converter.string(), path.string(), binary.string())
                      .c_str()) != 0) {
    return fail(path, "not a file of models; see above");
  }
  std::istringstream in(read(binary));
  fs::remove(binary);
  std::string got =
      "// Imported from " + path.filename().string() + "; TFCC_BLESS=1 rewrites this file.\n";
  std::string name;
  for (size_t size; in >> name >> size;) {
    in.ignore(1);
    std::string bytes(size, '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(size));
    got += "\n" + import_text(name, bytes);
  }
  const fs::path expected = fs::path(path).replace_extension(".tfir");
  if (blessing()) std::ofstream(expected) << got;
  else if (read(expected) != got) fail(expected, "differs; got:\n" + got);
}

// ---- emit ----

// A blank line divides graphs. Classes whose plans are equal are named together.
std::string emit_text(const std::string& where, const std::string& text) {
  auto graph = tfcc::ir::parse(text, where);
  if (!graph) return fail(where, graph.error().message), "";
  for (const auto& broken : verify(*graph)) fail(where, to_string(broken));
  std::vector<std::pair<std::string, tfcc::codegen::Lowered>> plans;
  for (const tfcc::codegen::TargetClass& target : tfcc::codegen::target_classes()) {
    tfcc::codegen::WeightPool weights;
    auto lowered = tfcc::codegen::lower(*graph, target, weights);
    if (!lowered) return "error: " + lowered.error().message + "\n";
    const auto same = std::find_if(plans.begin(), plans.end(),
                                   [&](const auto& p) { return p.second == *lowered; });
    if (same != plans.end()) same->first += fmt::format(", {}", target.name);
    else plans.emplace_back(target.name, *std::move(lowered));
  }
  std::string out;
  for (const auto& [classes, plan] : plans) {
    out += fmt::format("== {} of {}\n", graph->name, classes) + tfcc::codegen::print(plan.plan);
    for (const auto& k : plan.kernels) out += "-- " + k.name + "\n" + k.text;
  }
  return out;
}

void run_emit_file(const fs::path& path) {
  std::string got = "Emitted from " + path.filename().string() +
                    "; TFCC_BLESS=1 rewrites this file.\n",
              graph;
  std::istringstream in(read(path));
  for (std::string line; std::getline(in, line);) {
    if (strip_comment(line).empty() && graph.empty()) continue;
    graph += line + "\n";
    if (line != "}") continue;
    got += "\n" + emit_text(path.string(), graph);
    graph.clear();
  }
  const fs::path expected = fs::path(path).replace_extension(".txt");
  if (blessing()) std::ofstream(expected) << got;
  else if (read(expected) != got) fail(expected, "differs; got:\n" + got);
}

}  // namespace

int main(int argc, char** argv) {
  fail_fast = argc > 1 && std::string_view(argv[1]) == "--fail-fast";
  for (int i = fail_fast ? 2 : 1; i < argc; ++i) {
    const fs::path path = fs::absolute(argv[i]);
    if (path.extension() == ".onnxtxt")
      run_import_file(path, fs::absolute(argv[0]).parent_path() / "onnx_from_text");
    else if (path.parent_path().filename() == "emit") run_emit_file(path);
    else run_passes_file(path);
  }
  return failures ? 1 : 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/verify_bisect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "ir/elements.h"
#include "ir/lexer.h"
#include "passes/passes.h"
#include "tools/tfcc/verify_counterparts.h"

namespace tfcc::tools {
namespace {

using ir::ValueId;

constexpr size_t kEvaluatedAtOnce = 64, kCompiledAtOnce = 16;
constexpr size_t kMostCompilations = 60;
constexpr double kPassTolerance = 1e-6;  // a pass may round constants to f32
constexpr size_t kLongestText = 400;

/// A graph with more outputs, which keep single values; packed rows among them in their padded
/// places.
class Probed {
 public:
  explicit Probed(const ir::Graph& graph) : graph_(graph) {}
  void keep(ValueId v) {
    auto it = std::find_if(graph_.outputs.begin(), graph_.outputs.end(),
                           [&](const auto& o) { return o.value == v; });
    if (it != graph_.outputs.end()) {
      name_[v] = it->name;
      return;
    }
    const ValueId shown = without_made_size(v);
    std::string name = graph_.value(v).name;
    while (std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](const auto& o) { return o.name == name; }))
      name += ".kept";
    graph_.outputs.push_back({name, shown});
    name_[v] = name;
  }
  const ir::Graph& graph() const { return graph_; }
  const ir::HostTensor& of(const HostTensors& outputs, ValueId v) const {
    return outputs.at(name_.at(v));
  }

 private:
  // No output has a size that the run makes. Tensors of such a size are [T] or [1,T,..], of the
  // rows of a pack.
  ValueId without_made_size(ValueId v) {
    const auto* size = graph_.size_with(SizeRole::packed);
    if (!size) return v;
    ir::Type type = graph_.value(v).type;
    ir::ExprRef total = graph_.pool().symbol(size->name);
    const auto at = std::find(type.dims.begin(), type.dims.end(), total);
    if (at == type.dims.end()) return v;
    const auto pack = std::find_if(graph_.order().begin(), graph_.order().end(), [&](ir::OpId o) {
      return graph_.op(o).kind == ir::OpKind::pack;
    });
    const ValueId row = graph_.result(*pack);
    if (type.rank() == 1) {
      type.dims.insert(type.dims.begin(), graph_.pool().integer(1));
      ir::Captured c = ir::capture(ir::load_of(graph_, v, {graph_.pool().index(1, total)}));
      v = graph_.add_pointwise(c.operands, c.body, type, graph_.value(v).name + ".row");
    }
    const std::vector<ir::ExprRef> rows = graph_.value(row).type.dims;
    std::copy(rows.begin(), rows.end(), type.dims.begin());
    graph_.flags.push_back("a row outside of the packed ones");
    ir::Captured c =
        ir::capture(ir::padded_element(graph_, row, v, ir::indices_of(graph_.pool(), type.dims),
                                       static_cast<int64_t>(graph_.flags.size()) - 1));
    return graph_.add_pointwise(c.operands, c.body, type, graph_.value(v).name + ".padded");
  }

  ir::Graph graph_;
  std::unordered_map<ValueId, std::string> name_;
};

ValueId output_of(const ir::Graph& graph, const std::string& name) {
  for (const auto& o : graph.outputs) {
    if (o.name == name) return o.value;
  }
  return {};
}

/// The lines of a graph in text, by op.
class Lines {
 public:
  explicit Lines(const ir::Graph& graph) : graph_(graph), text_(ir::print(graph)) {}
  std::string of(ir::OpId o) const {
    const std::string start = "\n  %" + ir::value_name(graph_.value(graph_.result(o)).name);
    size_t at = text_.find(start + " = ");
    if (at == std::string::npos) at = text_.find(start + ", ");
    if (at == std::string::npos) return "";
    const size_t begin = at + 3;
    std::string line = text_.substr(begin, text_.find('\n', begin) - begin);
    if (line.size() > kLongestText) line = line.substr(0, kLongestText) + " ...";
    return line;
  }

 private:
  const ir::Graph& graph_;
  std::string text_;
};

/// The two halves of bisect(), over what both need.
class Bisection {
 public:
  Bisection(const Failure& f, const Target& t, const SearchProgress& progress)
      : f_(f), target_(t), progress_(progress) {}

  Result<Guilty> run() {
    TFCC_TRY(HostTensors want, ir::eval(f_.imported, f_.inputs));
    want_ = std::move(want.at(f_.output));
    ir::Graph last = f_.imported;
    TFCC_TRY(makers_, run_steps(last, f_.steps));
    const Meaning at_end = meaning(last);
    const bool passes = !at_end.problem.empty() ||
                        at_end.difference.relative > std::max(f_.tolerance, kPassTolerance / 10) ||
                        (at_end.difference.relative > 0 &&
                         at_end.difference.relative >= f_.difference.relative / 4);
    return passes ? guilty_pass(at_end) : guilty_kernel(last);
  }

 private:
  struct Meaning {
    Difference difference;
    std::string problem;
  };

  // What a graph computes in float64, against the one that was imported.
  Meaning meaning(const ir::Graph& graph) const {
    auto got = ir::eval(graph, f_.inputs);
    if (!got) return {{0, INFINITY, ""}, got.error().message};
    return {compare(got->at(f_.output), want_, f_.defined), ""};
  }

  Result<Guilty> guilty_pass(const Meaning& at_end) {
    const double limit =
        std::isfinite(at_end.difference.relative) ? at_end.difference.relative / 2 : f_.tolerance;
    Meaning before{}, after = at_end;
    ir::Graph good = f_.imported;  // after the first `right` steps
    size_t right = 0, wrong = f_.steps.size();
    while (wrong - right > 1) {
      if (progress_)
        progress_("looking for the pass", f_.steps.size() - (wrong - right), f_.steps.size());
      const size_t middle = (right + wrong) / 2;
      ir::Graph graph = good;
      for (size_t i = right; i < middle; ++i) TFCC_TRY_VOID(f_.steps[i].run(graph));
      Meaning now = meaning(graph);
      if (now.problem.empty() && now.difference.relative < limit) {
        good = std::move(graph);
        before = std::move(now);
        right = middle;
      } else {
        after = std::move(now);
        wrong = middle;
      }
    }
    ir::Graph bad = good;
    TFCC_TRY_VOID(f_.steps[right].run(bad));
    Guilty g{f_.steps[right].name, right + 1, f_.steps.size(), after.problem, before.difference,
             after.difference,     {}};
    if (!after.problem.empty()) return g;
    TFCC_TRY(g.op, first_changed(good, bad));
    return g;
  }

  // Values of the graph after the pass against those of before that they stand for.
  Result<std::optional<WrongOp>> first_changed(const ir::Graph& good, const ir::Graph& bad) {
    const Counterparts twin = counterparts(good, bad);
    Measure measure = [&](const std::vector<ValueId>& values) -> Result<Differences> {
      Probed was(good), is(bad);
      for (ValueId v : values) {
        if (auto it = twin.find(v); it != twin.end()) {
          is.keep(v);
          was.keep(it->second);
        }
      }
      TFCC_TRY(HostTensors want, ir::eval(was.graph(), f_.inputs));
      TFCC_TRY(HostTensors got, ir::eval(is.graph(), f_.inputs));
      Differences out;
      for (ValueId v : values) {
        const auto it = twin.find(v);
        out.push_back(it == twin.end() ? std::nullopt
                                       : std::optional(compare(
                                             is.of(got, v), was.of(want, it->second), f_.defined)));
      }
      return out;
    };
    SearchOptions options{std::clamp(f_.tolerance / 4, 1e-9, kPassTolerance), kEvaluatedAtOnce, 40,
                          progress_};
    TFCC_TRY(auto op, searched(bad, measure, options));
    if (op && op->node.empty()) {  // made by the pass without saying from what
      const ValueId v = bad.find_value(op->value);
      if (auto it = twin.find(v); it != twin.end() && good.def(it->second))
        op->node = good.def(it->second)->origin;
    }
    return op;
  }

  Result<Guilty> guilty_kernel(const ir::Graph& graph) {
    const ValueId output = output_of(graph, f_.output);
    Measure measure = [&](const std::vector<ValueId>& values) {
      return measured_in_parts(
          values, [&](const std::vector<ValueId>& part) { return on_target(graph, output, part); });
    };
    // An output that only its largest single error fails is searched by what it differs by.
    const double relative = f_.difference.relative;
    SearchOptions options{relative > f_.tolerance ? f_.tolerance : relative / 4, kCompiledAtOnce,
                          40, progress_};
    Guilty g;
    TFCC_TRY(g.op, searched(graph, measure, options));
    if (g.op && !g.op->difference) g.op->difference = f_.difference;
    if (g.op && compilations_ > kMostCompilations) g.op->narrowed = false;
    if (g.op && target_.kernel) g.op->kernel = target_.kernel(graph, g.op->value);
    return g;
  }

  // Compiled with these values kept; nothing can be told where that makes the output right, or does
  // not compile.
  Result<std::optional<Differences>> on_target(const ir::Graph& graph, ValueId output,
                                               const std::vector<ValueId>& values) {
    if (++compilations_ > kMostCompilations)
      return std::optional<Differences>(Differences(values.size()));
    Probed kept(graph);
    for (ValueId v : values) kept.keep(v);
    kept.keep(output);
    auto got = target_.run(kept.graph(), f_.inputs);
    const bool still_wrong = got && compare(kept.of(*got, output), want_, f_.defined).relative >=
                                        f_.difference.relative / 2;
    if (!still_wrong) return std::optional<Differences>{};
    TFCC_TRY(HostTensors want, ir::eval(kept.graph(), f_.inputs));
    Differences out;
    for (ValueId v : values) out.push_back(compare(kept.of(*got, v), kept.of(want, v), f_.defined));
    return std::optional(std::move(out));
  }

  Result<std::optional<WrongOp>> searched(const ir::Graph& graph, const Measure& measure,
                                          const SearchOptions& options) {
    TFCC_TRY(auto op, first_wrong_op(graph, f_.output, measure, options));
    if (!op || op->op.value >= makers_.size()) return op;
    for (size_t step : makers_[op->op.value]) {
      const std::string& name = f_.steps[step].name;
      if (op->makers.empty() || op->makers.back() != name) op->makers.push_back(name);
    }
    return op;
  }

  const Failure& f_;
  const Target& target_;
  const SearchProgress& progress_;
  ir::HostTensor want_;
  Makers makers_;
  size_t compilations_ = 0;
};

// Half a unit in the last place of 1.
double rounding_of(DType t) {
  return t == DType::f16 ? 0x1p-11 : t == DType::bf16 ? 0x1p-8 : t == DType::f32 ? 0x1p-24 : 0;
}

std::string report(const WrongOp& w, bool pass) {
  std::string out = fmt::format("the first {} that differs: ", pass ? "value" : "op") + describe(w);
  out += fmt::format(
      "made by: {}\n",
      w.makers.empty() ? "the import" : fmt::format("{}", fmt::join(w.makers, ", changed by ")));
  if (!w.kernel.empty()) out += fmt::format("kernel: {}\n", w.kernel);
  for (size_t i = 0; i < w.unknown.size() && i < 6; ++i) {
    if (i == 0)
      out +=
          pass
              ? "it reads what the pass made, which has no counterpart before it:\n"
              : "kept as an output, these make the result right, or cannot be compiled (a buffer reused too early, or an operand "
                "read in place):\n";
    out += "  " + w.unknown[i] + "\n";
  }
  if (w.unknown.size() > 6) out += fmt::format("  and {} more\n", w.unknown.size() - 6);
  const double unit = rounding_of(w.dtype);
  if (!pass && w.difference && w.difference->relative <= 16 * unit) {
    out += fmt::format(
        "that is a few roundings of {} (one is up to {:.0e}): the tolerance may be too small for the type, rather than the op wrong\n",
        to_string(w.dtype), unit);
  }
  return out;
}

}  // namespace

Result<std::optional<WrongOp>> first_wrong_op(const ir::Graph& graph, const std::string& output,
                                              const Measure& measure,
                                              const SearchOptions& options) {
  const ValueId begin = output_of(graph, output);
  const ir::Op* made_by = graph.def(begin);
  if (!made_by || made_by->kind == ir::OpKind::constant) return std::optional<WrongOp>{};
  TFCC_TRY(FirstWrong first, find_first_wrong(graph, begin, measure, options));
  const ir::Value& value = graph.value(first.value);
  const Lines lines(graph);
  WrongOp w;
  w.value = value.name;
  w.op = value.def;
  w.kind = ir::to_string(graph.op(value.def).kind);
  w.text = lines.of(value.def);
  w.node = graph.op(value.def).origin;
  w.dtype = value.type.dtype;
  w.difference = first.difference;
  w.operands = first.operands;
  for (ValueId v : first.unknown) w.unknown.push_back(lines.of(graph.value(v).def));
  w.narrowed = first.narrowed;
  return std::optional(std::move(w));
}

std::vector<Step> steps_of(const std::vector<std::string>& passes) {
  std::vector<Step> out;
  for (const std::string& name : passes) {
    out.push_back({name, [name](ir::Graph& graph) -> Result<void> {
                     TFCC_TRY([[maybe_unused]] auto reports, passes::run_passes(graph, {name}));
                     return {};
                   }});
  }
  return out;
}

Result<Makers> run_steps(ir::Graph& graph, const std::vector<Step>& steps) {
  Makers makers(graph.op_count());
  for (size_t i = 0; i < steps.size(); ++i) {
    const ir::Graph before = graph;
    TFCC_TRY_VOID(steps[i].run(graph));
    makers.resize(graph.op_count());
    for (uint32_t v = 0; v < before.value_count();
         ++v) {  // what computes the same in another layout has the same makers, and one more
      const ValueId replacement = graph.value(ValueId{v}).replacement;
      if (!replacement.valid() || graph.value(replacement).type == before.value(ValueId{v}).type ||
          !before.value(ValueId{v}).def.valid())
        continue;
      const ir::OpId made = graph.value(replacement).def;
      if (made.value >= before.op_count())
        makers[made.value] = makers[before.value(ValueId{v}).def.value];
    }
    for (ir::OpId o : graph.order()) {
      if (o.value >= before.op_count() || !same_computation(before.op(o), graph.op(o)))
        makers[o.value].push_back(i);
    }
  }
  return makers;
}

Result<Guilty> bisect(const Failure& failure, const Target& target,
                      const SearchProgress& progress) {
  return Bisection(failure, target, progress).run();
}

std::string describe(const WrongOp& w) {
  std::string out = fmt::format("%{} = {}", w.value, w.kind);
  if (w.difference) out += ": " + to_string(*w.difference);
  if (w.operands) out += fmt::format("; what it reads: {:.1e} at most", *w.operands);
  if (!w.narrowed) out += "; earlier ones may differ too, the search was cut short";
  return out + "\n" + w.text + "\n" +
         (w.node.empty() ? "" : fmt::format("ONNX node: {}\n", w.node));
}

std::string report(const Guilty& g, const Target& target) {
  if (g.pass.empty()) {
    return fmt::format("the passes keep the meaning: the kernels of {} differ\n", target.name) +
           (g.op ? report(*g.op, false)
                 : "the output is an input or a constant: no op computes it\n");
  }
  std::string out = fmt::format("pass {} ({} of {}) changed the result", g.pass, g.step, g.steps);
  if (!g.problem.empty()) return out + ": " + g.problem + "\n";
  out += fmt::format(" in float64: relative L2 {:.1e} after it, {:.1e} before\n", g.after.relative,
                     g.before.relative);
  return out + (g.op ? report(*g.op, true) : "the output is an input or a constant now\n");
}

}  // namespace tfcc::tools

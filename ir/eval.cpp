// SPDX-License-Identifier: Apache-2.0
// Runs a graph on the host: checks inputs, binds symbols, runs ops in order, drops a value after
// its last use.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ir/eval_ops.h"
#include "ir/lexer.h"

namespace tfcc::ir {
namespace {

std::string shape_text(const std::vector<int64_t>& dims) {
  return fmt::format("[{}]", fmt::join(dims, ","));
}

HostTensor empty_tensor(DType dtype, std::vector<int64_t> dims) {
  HostTensor t;
  t.dtype = dtype;
  t.dims = std::move(dims);
  const auto n = static_cast<size_t>(t.element_count());
  if (is_float(dtype)) {
    t.reals.resize(n);
  } else {
    t.ints.resize(n);
  }
  return t;
}

/// Brings every element to what its dtype can hold; reals only if asked to.
void round_elements(HostTensor& t, bool reals) {
  std::byte one[8];
  for (int64_t& v : t.ints) {
    write_int(t.dtype, one, 0, v);
    v = read_int(t.dtype, one, 0);
  }
  if (!reals) return;
  for (double& v : t.reals) {
    write_real(t.dtype, one, 0, v);
    v = read_real(t.dtype, one, 0);
  }
}

class Evaluator {
 public:
  Evaluator(const Graph& graph, const EvalOptions& options,
            std::map<std::string, HostTensor>* trace)
      : graph_(graph),
        options_(options),
        trace_(trace),
        values_(graph.value_count()),
        uses_left_(graph.value_count()) {}

  Result<std::map<std::string, HostTensor>> run(const std::map<std::string, HostTensor>& inputs) {
    TFCC_TRY_VOID(bind(inputs));
    TFCC_TRY_VOID(checks());
    for (uint32_t v = 0; v < values_.size(); ++v) uses_left_[v] = graph_.use_count(ValueId{v});
    for (OpId o : graph_.order()) TFCC_TRY_VOID(step(graph_.op(o)));
    std::map<std::string, HostTensor> out;
    for (const Graph::Output& output : graph_.outputs)
      out[output.name] = values_[output.value.value];
    return out;
  }

 private:
  SymbolValue symbol() const {
    return [this](std::string_view name) -> int64_t {
      const auto it = symbols_.find(name);
      TFCC_CHECK(it != symbols_.end());
      return it->second;
    };
  }

  std::vector<int64_t> dims_of(const Type& type) const {
    std::vector<int64_t> out;
    // A size of 0 may give an expression such as S - 1 no sense: the tensor has no elements anyway.
    for (ExprRef d : type.dims) out.push_back(std::max<int64_t>(0, eval_size(d, symbol())));
    return out;
  }

  Result<void> bind(const std::map<std::string, HostTensor>& inputs) {
    for (ValueId v : graph_.inputs()) TFCC_TRY_VOID(check_input(graph_.value(v), inputs));
    for (const auto& [name, tensor] : inputs) {
      const ValueId v = graph_.find_value(name);
      if (v.valid() &&
          std::find(graph_.inputs().begin(), graph_.inputs().end(), v) != graph_.inputs().end())
        continue;
      return Error{ErrorCode::invalid_argument, fmt::format("the model has no input '{}'", name)};
    }
    TFCC_TRY_VOID(bind_symbols(inputs));
    TFCC_TRY_VOID(outputs_with_elements());
    for (ValueId v : graph_.inputs()) {
      const Value& value = graph_.value(v);
      HostTensor tensor = inputs.at(value.name);
      if (const auto dims = dims_of(value.type); tensor.dims != dims) {
        return Error{ErrorCode::shape,
                     fmt::format("input '{}' has shape {}, expected {} = {}", value.name,
                                 shape_text(tensor.dims), to_string(value.type), shape_text(dims))};
      }
      round_elements(tensor, options_.round_stores);
      keep(v, std::move(tensor));
    }
    return {};
  }

  Result<void> check_input(const Value& value,
                           const std::map<std::string, HostTensor>& inputs) const {
    const auto it = inputs.find(value.name);
    if (it == inputs.end())
      return Error{ErrorCode::invalid_argument, fmt::format("input '{}' is missing", value.name)};
    const HostTensor& t = it->second;
    if (t.dtype != value.type.dtype) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("input '{}' is {}, expected {}", value.name,
                               tfcc::to_string(t.dtype), tfcc::to_string(value.type.dtype))};
    }
    if (t.dims.size() != value.type.rank()) {
      return Error{ErrorCode::shape,
                   fmt::format("input '{}' has rank {}, expected {} of rank {}", value.name,
                               t.dims.size(), to_string(value.type), value.type.rank())};
    }
    const size_t count = is_float(t.dtype) ? t.reals.size() : t.ints.size();
    if (count != static_cast<size_t>(t.element_count())) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("input '{}' has {} elements, its shape {} needs {}", value.name,
                               count, shape_text(t.dims), t.element_count())};
    }
    return {};
  }

  Result<void> bind_symbols(const std::map<std::string, HostTensor>& inputs) {
    for (const SizeSymbol& s : graph_.symbols) {
      if (s.made()) continue;  // by its op
      if (s.computed()) {
        TFCC_TRY_VOID(compute(s));
        continue;
      }
      const std::string& input = graph_.value(graph_.inputs()[s.input]).name;
      const int64_t dim = inputs.at(input).dims[s.axis], size = dim / s.multiple;
      if (dim % s.multiple != 0) {
        return Error{ErrorCode::shape,
                     fmt::format("input '{}': size {} of axis {} is no multiple of {}", input, dim,
                                 s.axis, s.multiple)};
      }
      const SymbolRange range = graph_.pool().range(s.name);
      // An empty batch or sequence is legal whatever the smallest size is, if it leaves nothing to
      // compute; outputs_with_elements() asks.
      if ((size < range.min && size != 0) || (range.max && size > *range.max)) {
        return Error{
            ErrorCode::shape,
            fmt::format("input '{}': size {} of axis {} ({}) lies outside {}..{}", input, size,
                        s.axis, s.name, range.min, range.max ? fmt::format("{}", *range.max) : "")};
      }
      symbols_[s.name] = size;
    }
    return {};
  }

  Result<void> compute(const SizeSymbol& s) {
    ScalarEnv env;
    env.symbol = symbol();
    const int64_t size = eval_expr(s.formula, env).i;
    const auto most = graph_.pool().range(s.name).max;
    if (most && size > *most) {
      return Error{ErrorCode::shape,
                   fmt::format("{} is {}, must be at most {}", print(s.formula), size, *most)};
    }
    symbols_[s.name] = size;
    return {};
  }

  // What was simplified for a size from 1 on says nothing at 0.
  Result<void> outputs_with_elements() const {
    for (const SizeSymbol& s : graph_.symbols) {
      if (!s.read() || symbols_.at(s.name) != 0 || graph_.pool().range(s.name).min == 0) continue;
      for (const Graph::Output& o : graph_.outputs) {
        const std::vector<int64_t> dims = dims_of(graph_.value(o.value).type);
        if (std::any_of(dims.begin(), dims.end(), [](int64_t d) { return d <= 0; })) continue;
        return Error{
            ErrorCode::shape,
            fmt::format("input '{}': dim {} ({}) is 0, which leaves output '{}' with elements",
                        graph_.value(graph_.inputs()[s.input]).name, s.axis, s.name, o.name)};
      }
    }
    return {};
  }

  Result<void> checks() const {
    ScalarEnv env;
    env.symbol = symbol();
    for (const SizeCheck& check : graph_.checks) {
      if (!eval_expr(check.condition, env).i) return Error{ErrorCode::shape, check.message};
    }
    return {};
  }

  Result<void> step(const Op& op) {
    if (op.kind == OpKind::constant) return constant(op);
    OpRun run{op, symbol(), {}, {}, {}, {}};
    for (ValueId v : op.operands) run.operands.push_back(&values_[v.value]);
    if (op.kind == OpKind::pack) {
      const Dims& padded = graph_.value(op.results[0]).type.dims;
      symbols_[graph_.value(op.results[5]).type.dims[0]->name] =
          count_packed(run, eval_size(padded[0], symbol()), eval_size(padded[1], symbol()));
    }
    for (ValueId v : op.results) {
      const Type& type = graph_.value(v).type;
      run.results.push_back(empty_tensor(type.dtype, dims_of(type)));
    }
    eval_op(run);
    const std::string& name = graph_.value(op.results[0]).name;
    if (!run.flags.empty()) {
      return Error{ErrorCode::invalid_argument,
                   graph_.flags[static_cast<size_t>(*run.flags.begin())]};
    }
    if (!run.problem.empty()) {
      return Error{ErrorCode::shape,
                   fmt::format("%{} = {}: {}", value_name(name), to_string(op.kind), run.problem)};
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      round_elements(run.results[i], options_.round_stores);
      keep(op.results[i], std::move(run.results[i]));
    }
    for (ValueId v : op.operands) {
      if (--uses_left_[v.value] == 0) values_[v.value] = {};
    }
    return {};
  }

  Result<void> constant(const Op& op) {
    const Constant& c = op.as<ConstantAttrs>().constant;
    TFCC_TRY(std::vector<std::byte> bytes, materialize(c));
    HostTensor t = empty_tensor(c.result_dtype(), c.result_dims());
    for (size_t i = 0; i < t.reals.size(); ++i) t.reals[i] = read_real(t.dtype, bytes.data(), i);
    for (size_t i = 0; i < t.ints.size(); ++i) t.ints[i] = read_int(t.dtype, bytes.data(), i);
    keep(op.results[0], std::move(t));
    return {};
  }

  void keep(ValueId v, HostTensor tensor) {
    if (trace_) (*trace_)[graph_.value(v).name] = tensor;
    values_[v.value] = std::move(tensor);
  }

  using Dims = std::vector<ExprRef>;
  const Graph& graph_;
  const EvalOptions& options_;
  std::map<std::string, HostTensor>* trace_;
  std::vector<HostTensor> values_;
  std::vector<size_t> uses_left_;
  std::map<std::string, int64_t, std::less<>> symbols_;
};

}  // namespace

int64_t HostTensor::element_count() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

Result<std::map<std::string, HostTensor>> eval(const Graph& graph,
                                               const std::map<std::string, HostTensor>& inputs,
                                               const EvalOptions& options,
                                               std::map<std::string, HostTensor>* trace) {
  try {
    return Evaluator(graph, options, trace).run(inputs);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::memory, fmt::format("no memory to evaluate graph '{}'", graph.name)};
  }
}

}  // namespace tfcc::ir

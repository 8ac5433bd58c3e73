// SPDX-License-Identifier: Apache-2.0
// What can be done with a graph: check it, write it, read it, run it slowly.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace tfcc::ir {

/// A rule of ir/ops.md that a graph does not keep.
struct Violation {
  std::string_view rule;  // its label: "E4"
  OpId op;                // the op that does not keep it; invalid if it is none of an op
  std::string text;       // the place and what is wrong there
};
/// "%y = pointwise: body: load of operand 3 of 2 (E3)"
std::string to_string(const Violation& violation);
/// All violations; empty if the graph is well formed. Runs after every pass.
std::vector<Violation> verify(const Graph& graph);

/// The first rule that a free expression over indices of these extents would break as the body of
/// an op (as the score of an attention if `has_param`); empty if none. For a pass that asks before
/// it rewrites.
std::string body_problem(const Graph& graph, ExprRef free, const std::vector<ExprRef>& extents,
                         bool has_param = false);

/// The text form (.tfir). parse(print(g)) equals g, and printing parsed canonical text gives that
/// text back.
std::string print(const Graph& graph);
/// What the text form has of an op's attributes, in its order: "epilogue", "(s,i,j) => %b[j] + s".
std::vector<std::pair<std::string, std::string>> attribute_texts(const Graph& graph, const Op& op);
/// How the text form writes a constant: its source and steps.
std::string recipe_text(const Constant& constant);
/// Errors: bad_file with "name:line: reason".
Result<Graph> parse(std::string_view text, const std::string& name = "<text>");
/// A scalar expression; `index` and `slot` resolve names to index variables and operand slots
/// (null: unknown name).
Result<ExprRef> parse_expr(
    std::string_view text, ExprPool& pool, const std::function<ExprRef(std::string_view)>& name,
    const std::function<std::optional<std::pair<int64_t, DType>>(std::string_view)>& slot);

/// True for names that the text form uses itself (functions, keywords, single lower-case letters,
/// t0, i18): no symbol may be called so.
bool is_reserved_name(std::string_view name);

/// A tensor on the host for the evaluator: reals as double, everything else as int64.
struct HostTensor {
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  std::vector<double> reals;  // if is_float(dtype)
  std::vector<int64_t> ints;  // otherwise; booleans are 0 and 1
  int64_t element_count() const;
};

struct EvalOptions {
  bool round_stores =
      false;  // round every f16/bf16/f32 result to its type; off: everything in f64 (the oracle)
};

/// Runs the graph in float64 on the host, the reference for every target. `inputs` by name. Errors:
/// missing input, dtype, rank, shape, a check that fails, a raised flag. `trace`, if given,
/// receives every value by name.
Result<std::map<std::string, HostTensor>> eval(const Graph& graph,
                                               const std::map<std::string, HostTensor>& inputs,
                                               const EvalOptions& options = {},
                                               std::map<std::string, HostTensor>* trace = nullptr);

/// Bindings for evaluating one scalar expression.
struct ScalarEnv {
  std::function<int64_t(std::string_view)> symbol;
  std::span<const int64_t> indices;  // value of index variable k
  std::function<void(int64_t slot, std::span<const int64_t> at, int64_t& i, double& r)>
      load;  // sets i or r by type
  std::function<double(std::string_view)> param;
  std::function<void(int64_t)> flag;
};
struct ScalarValue {
  int64_t i = 0;
  double r = 0;
};
/// One value of an expression, lazily; reals in double unless round_f32 is set (then every real
/// result is rounded to f32).
ScalarValue eval_expr(ExprRef e, const ScalarEnv& env, bool round_f32 = false);
/// Value of a size over symbols alone.
int64_t eval_size(ExprRef e, const std::function<int64_t(std::string_view)>& symbol);

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
#include "ir/computed.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ir.h"

namespace tfcc::ir {
namespace {

/// Of one value, 2 GiB in float64.
constexpr int64_t kMostElements = int64_t{1} << 28;
/// A minute or two.
constexpr double kMostWork = 2e11;
/// An element of an expression takes as long as so many multiplications of a product.
constexpr double kOfExpression = 32;

std::string problem_of(const Graph& g, const Op& op) {
  if (op.kind == OpKind::constant) {
    if (is_computed(op.as<ConstantAttrs>().constant)) return "is made of another one";
  } else if (!ComputedConstant::serves(op.kind)) {
    return fmt::format("has an op {}", to_string(op.kind));
  }
  for (ValueId v : op.results) {
    if (!ComputedConstant::elements(g.value(v).type))
      return "has a value of unknown size, or of too many elements";
  }
  return "";
}

}  // namespace

bool is_computed(const Constant& c) {
  return c.computed != nullptr || std::ranges::any_of(c.parts, is_computed);
}

const std::string& ComputedConstant::key() const {
  const std::lock_guard lock(making_);
  if (key_.empty()) key_ = print(graph_);
  return key_;
}

bool ComputedConstant::serves(OpKind kind) {
  return kind == OpKind::pointwise || kind == OpKind::reduce || kind == OpKind::norm ||
         kind == OpKind::softmax || kind == OpKind::matmul;
}

std::optional<int64_t> ComputedConstant::elements(const Type& type) {
  int64_t count = 1;
  for (ExprRef d : type.dims) {
    const auto n = as_int(d);
    if (!n || *n < 0 || *n > kMostElements) return std::nullopt;
    count *= *n;
    if (count > kMostElements) return std::nullopt;
  }
  return count;
}

double ComputedConstant::work(const Graph& g, const Op& op) {
  if (op.kind == OpKind::constant) return 0;
  double count = 0;
  for (ValueId v : op.results) count += static_cast<double>(elements(g.value(v).type).value_or(0));
  if (op.kind == OpKind::reduce) {
    for (ExprRef e : op.as<ReduceAttrs>().extents)
      count *= static_cast<double>(as_int(e).value_or(kMostElements));
  }
  double work = count * kOfExpression;
  if (op.kind == OpKind::matmul && !op.operands.empty()) {
    const auto& a = g.value(op.operands[0]).type.dims;
    const size_t from_last = op.as<MatmulAttrs>().trans_a ? 2 : 1;
    if (a.size() >= from_last)
      work += count * static_cast<double>(as_int(a[a.size() - from_last]).value_or(kMostElements));
  }
  return work;
}

std::string ComputedConstant::problem(const Graph& g) {
  if (g.outputs.size() != 1) return "has not one output";
  if (!g.inputs().empty() || !g.symbols.empty()) return "reads what only a run has";
  if (!g.checks.empty() || !g.flags.empty()) return "may refuse what it is given";
  double all = 0;
  for (OpId o : g.order()) {
    if (const std::string problem = problem_of(g, g.op(o)); !problem.empty()) return problem;
    all += work(g, g.op(o));
  }
  return all > kMostWork ? "takes minutes to compute" : "";
}

Result<std::span<const std::byte>> ComputedConstant::bytes() const {
  const std::lock_guard lock(making_);
  if (made_) return std::span<const std::byte>(bytes_);
  TFCC_TRY(const auto values, eval(graph_, {}));
  const HostTensor& made = values.at(graph_.outputs[0].name);
  bytes_.resize(static_cast<size_t>(made.element_count()) * size_of(made.dtype));
  for (size_t i = 0; i < made.reals.size(); ++i)
    write_real(made.dtype, bytes_.data(), i, made.reals[i]);
  for (size_t i = 0; i < made.ints.size(); ++i)
    write_int(made.dtype, bytes_.data(), i, made.ints[i]);
  for (OpId o : graph_.order()) {
    if (graph_.op(o).kind == OpKind::constant) let_go(graph_.op(o).as<ConstantAttrs>().constant);
  }
  made_ = true;
  return std::span<const std::byte>(bytes_);
}

}  // namespace tfcc::ir

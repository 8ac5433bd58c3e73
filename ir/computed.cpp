// SPDX-License-Identifier: Apache-2.0
#include "ir/computed.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ir.h"

namespace tfcc::ir {
namespace {

/// Of all values together: 2 GiB in float64.
constexpr int64_t kMostElements = int64_t{1} << 28;
/// A minute or two.
constexpr double kMostWork = 2e11;
/// An element of an expression takes as long as so many multiplications of a product, and so many
/// for each of its nodes.
constexpr double kOfElement = 32, kOfNode = 4;
/// Constants that are longer than that stand for themselves in a key.
constexpr size_t kLongBytes = 4096;

bool is_long(const Constant& c) {
  return (c.bytes && c.bytes->size() > kLongBytes) || std::ranges::any_of(c.parts, is_long);
}

double nodes_of(Attrs attrs) {
  double count = 0;
  const auto field = [&](std::string_view, auto& value) {
    using T = std::remove_cvref_t<decltype(value)>;
    ExprRef e = nullptr;
    if constexpr (std::is_same_v<T, ExprRef>) e = value;
    if constexpr (std::is_same_v<T, OptionalExpr>) e = value.expr;
    if (e) for_each_node(e, [&](ExprRef) { ++count; });
  };
  std::visit([&](auto& a) { a.visit(field); }, attrs);
  return count;
}

bool is_size(ExprRef e) {
  const auto n = as_int(e);
  return n && *n >= 0 && *n <= kMostElements;
}

std::string problem_of(const Graph& g, const Op& op) {
  if (op.kind == OpKind::constant) {
    if (is_computed(op.as<ConstantAttrs>().constant)) return "is made of another one";
  } else if (!ComputedConstant::serves(op)) {
    return fmt::format("has an op {}", to_string(op.kind));
  }
  const bool sized =
      op.kind != OpKind::reduce || std::ranges::all_of(op.as<ReduceAttrs>().extents, is_size);
  for (ValueId v : op.results) {
    if (!sized || !ComputedConstant::elements(g.value(v).type))
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
  if (!key_.empty()) return key_;
  const bool has_long = std::ranges::any_of(graph_.order(), [&](OpId o) {
    return graph_.op(o).kind == OpKind::constant &&
           is_long(graph_.op(o).as<ConstantAttrs>().constant);
  });
  key_ = has_long ? fmt::format("{}", static_cast<const void*>(this)) : print(graph_);
  return key_;
}

bool ComputedConstant::serves(const Op& op) {
  if (op.kind == OpKind::matmul) return op.as<MatmulAttrs>().weight == nullptr;
  return op.kind == OpKind::pointwise || op.kind == OpKind::reduce || op.kind == OpKind::norm ||
         op.kind == OpKind::softmax;
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
  double count = 0;
  for (ValueId v : op.results) count += static_cast<double>(elements(g.value(v).type).value_or(0));
  if (op.kind == OpKind::constant) return count * kOfNode;
  if (op.kind == OpKind::reduce) {
    for (ExprRef e : op.as<ReduceAttrs>().extents)
      count *= static_cast<double>(as_int(e).value_or(kMostElements));
  }
  double work = count * (kOfElement + kOfNode * nodes_of(op.attrs));
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
  int64_t count = 0;
  for (OpId o : g.order()) {
    if (const std::string problem = problem_of(g, g.op(o)); !problem.empty()) return problem;
    all += work(g, g.op(o));
    for (ValueId v : g.op(o).results) count += *elements(g.value(v).type);
    if (count > kMostElements) return "has values of too many elements together";
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

// SPDX-License-Identifier: Apache-2.0
// fold-products: a product of constants, and what is computed of it without anything of a run, is
// computed when the model is compiled. Such are the keys and queries of relative positions
// (DeBERTa), which each layer projects anew.
//   before: const @p : f32[64,128], const @w : f32[128,256] = ..
//           %t = matmul(@p, @w, @b) {epilogue = ..} : f32[64,256]
//           %m = matmul(%x, %t) {trans_b = true, ..} : f32[B,S,64]
//   after:  const @t.table : f32[64,256] = graph @t() { const @p .. %t = matmul(@p, @w, @b) .. }
//           %m = matmul(%x, @t.table) {trans_b = true, ..} : f32[B,S,64]
// The recipe is the graph itself, which whoever reads the constant evaluates, in float64. Requires:
// elementwise ops, reductions, norms, softmax and products alone, of known sizes, that raise no flag
// and name no number beyond those of f16; no more elements than the largest product has that it is
// made of, 16 MiB a table and 256 MiB in all; and no more work than a compiler may take some seconds
// for. What is no table itself may be made of one. Without a product it is cheap to make, and may be
// much larger than its operands. Runs after: the fusions of the pipeline, which look for products of
// weights.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ir/computed.h"
#include "ir/ir.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using ir::ComputedConstant;

constexpr int64_t kMostBytes = int64_t{16} << 20, kMostBytesInAll = int64_t{256} << 20;
/// Of all values that a table is made of: half a GiB in float64.
constexpr int64_t kMostElements = int64_t{1} << 26;
/// Of all tables, as ComputedConstant::work() counts it.
constexpr double kMostWork = 3e10;
/// In a graph that is converted to f16 an op has larger ones kept in range; a constant has not.
constexpr double kLargestHalf = 65504;

bool is_finite_beyond_half(ExprRef e) {
  const auto v = ir::as_real(e);
  return v && std::isfinite(*v) && std::abs(*v) > kLargestHalf;
}

/// Whether an expression names a size of the run, raises a flag, or does not fit f16.
bool needs_run(ir::Attrs attrs) {
  bool needs = false;
  const auto look = [&](ExprRef e) {
    if (e)
      ir::for_each_node(e, [&](ExprRef n) {
        needs |=
            n->kind == ExprKind::symbol || n->kind == ExprKind::bounded || is_finite_beyond_half(n);
      });
  };
  const auto field = [&](std::string_view, auto& value) {
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<T, ExprRef>) look(value);
    if constexpr (std::is_same_v<T, ir::OptionalExpr>) look(value.expr);
    if constexpr (std::is_same_v<T, std::vector<ExprRef>>) std::ranges::for_each(value, look);
  };
  std::visit([&](auto& a) { a.visit(field); }, attrs);
  return needs;
}

/// What the recipe of a table has.
struct Recipe {
  std::vector<OpId> ops;  // in order, constants too
  double work = 0;
  int64_t elements = 0;
};

class Folder {
 public:
  explicit Folder(Graph& g) : g_(g), order_(g.order()) {}

  PassReport run() {
    for (OpId o : order_) look(o);
    for (auto o = order_.rbegin(); !made_.empty() && o != order_.rend(); ++o) {
      if (made_.contains(o->value)) decide(*o);
    }
    for (const auto& [v, constant] : tables_) {
      g_.replace_uses(v, g_.add_constant(g_.value(v).name + ".table", constant));
      ++report_.rewrites;
    }
    return std::move(report_);
  }

 private:
  bool is_known(ValueId v) const {
    const ir::Constant* c = g_.constant(v);
    return c ? !ir::is_computed(*c) : made_.contains(g_.value(v).def.value);
  }

  void look(OpId o) {
    const ir::Op& op = g_.op(o);
    const auto has_elements = [&](ValueId v) {
      return ComputedConstant::elements(g_.value(v).type).has_value();
    };
    if (!ComputedConstant::serves(op) ||
        !std::ranges::all_of(op.operands, [&](ValueId v) { return is_known(v); }) ||
        !std::ranges::all_of(op.results, has_elements) || needs_run(op.attrs))
      return;
    if (!std::ranges::all_of(op.operands, has_elements)) return;  // cost: of memory
    int64_t product = op.kind == OpKind::matmul ? elements(op.results[0]) : 0;
    for (ValueId v : op.operands) {
      if (!g_.is_constant(v)) product = std::max(product, made_.at(g_.value(v).def.value));
    }
    made_[o.value] = product;
  }

  // Of a value that has_elements().
  int64_t elements(ValueId v) const { return *ComputedConstant::elements(g_.value(v).type); }

  // By ops of a run, or from outside.
  bool is_read(ValueId v) const {
    return g_.is_output(v) || std::ranges::any_of(g_.value(v).users, [&](OpId user) {
             return !made_.contains(user.value);
           });
  }

  // Readers have been decided. An op of which not all that is read becomes a table stays, and its
  // operands are read by it.
  void decide(OpId o) {
    std::vector<ValueId> read;
    for (ValueId v : g_.op(o).results) {
      if (is_read(v)) read.push_back(v);
    }
    std::vector<Recipe> recipes;
    for (ValueId v : read) {
      if (made_.at(o.value) > 0) recipes.push_back(recipe_of(v));
      if (recipes.empty() || !may_be_table(v, made_.at(o.value), recipes.back())) {
        made_.erase(o.value);
        return;
      }
    }
    for (size_t i = 0; i < read.size(); ++i) add_table(read[i], recipes[i]);
  }

  bool may_be_table(ValueId v, int64_t product, const Recipe& recipe) {
    const int64_t count = elements(v), bytes = bytes_of(v);
    if (g_.is_output(v) || count > product) return false;
    if (bytes > kMostBytes) return miss(v, "is a large constant");
    if (bytes_ + bytes > kMostBytesInAll)
      return miss(v, "is beside many large constants");  // cost: of memory
    if (work_ + recipe.work > kMostWork || recipe.elements > kMostElements)
      return miss(v, "takes long to compute");  // cost: of compiling
    return true;
  }

  int64_t bytes_of(ValueId v) const {
    return elements(v) * static_cast<int64_t>(size_of(g_.value(v).type.dtype));
  }

  void add_table(ValueId v, const Recipe& recipe) {
    Graph graph(g_.value(v).name, g_.pool_ptr());
    std::map<uint32_t, ValueId> copies;
    for (OpId o : recipe.ops) copy_op(graph, copies, g_.op(o));
    graph.outputs = {{g_.value(v).name, copies.at(v.value)}};
    graph.clean();
    work_ += recipe.work, bytes_ += bytes_of(v);
    tables_.emplace_back(
        v, ir::constant_of(std::make_shared<const ComputedConstant>(std::move(graph))));
  }

  // All that the value is made of.
  Recipe recipe_of(ValueId v) const {
    std::set<uint32_t> needed = {g_.value(v).def.value};
    Recipe recipe;
    for (auto o = order_.rbegin(); o != order_.rend(); ++o) {
      if (!needed.contains(o->value)) continue;  // cost: clean() drops it
      const ir::Op& op = g_.op(*o);
      for (ValueId x : op.operands) needed.insert(g_.value(x).def.value);
      recipe.ops.push_back(*o);
      recipe.work += ComputedConstant::work(g_, op);
      for (ValueId r : op.results) recipe.elements += elements(r);
    }
    std::ranges::reverse(recipe.ops);
    return recipe;
  }

  void copy_op(Graph& to, std::map<uint32_t, ValueId>& copies, const ir::Op& op) const {
    if (op.kind == OpKind::constant) {
      copies[op.results[0].value] =
          to.add_constant(g_.value(op.results[0]).name, op.as<ir::ConstantAttrs>().constant);
      return;
    }
    std::vector<ValueId> operands;
    for (ValueId x : op.operands) operands.push_back(copies.at(x.value));
    std::vector<ir::Type> types;
    std::vector<std::string> names;
    for (ValueId r : op.results) {
      types.push_back(g_.value(r).type);
      names.push_back(g_.value(r).name);
    }
    const OpId made = to.add_op(op.kind, std::move(operands), op.attrs, std::move(types),
                                std::move(names), op.origin);
    for (size_t i = 0; i < op.results.size(); ++i) copies[op.results[i].value] = to.result(made, i);
  }

  bool miss(ValueId v, const char* why) {
    report_.misses.push_back({label(g_, g_.value(v).def), why});
    return false;
  }

  Graph& g_;
  const std::vector<OpId> order_;
  PassReport report_;
  // By op, of those that need no run: the elements of the largest product that it is made of.
  std::map<uint32_t, int64_t> made_;
  std::vector<std::pair<ValueId, ir::Constant>> tables_;
  double work_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace

PassReport fold_products(Graph& g) { return Folder(g).run(); }

}  // namespace tfcc::passes

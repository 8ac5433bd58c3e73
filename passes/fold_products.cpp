// SPDX-License-Identifier: Apache-2.0
// fold-products: a product of constants, and what is computed of it without anything of a run, is
// computed when the model is compiled. Such are the keys and queries of relative positions
// (DeBERTa), which each layer projects anew.
//   before: const @p : f32[64,128], const @w : f32[128,256] = ..
//           %t = matmul(@p, @w, @b) {epilogue = ..} : f32[64,256]
//           %m = matmul(%x, %t) {trans_b = true, ..} : f32[B,S,64]
//   after:  const @t.table : f32[64,256] = graph @t(..) { const @p .. %t = matmul(@p, @w, @b) .. }
//           %m = matmul(%x, @t.table) {trans_b = true, ..} : f32[B,S,64]
// The recipe is the graph itself, which whoever reads the constant evaluates, in float64. Requires:
// elementwise ops, reductions, norms, softmax and products alone, of known sizes, that raise no flag;
// at most 16 MiB a table; and all together no more work than a compiler may take some seconds for.
// Others stay: a table without a product is cheap to make, and may be much larger than what it is
// made of. Runs after: all fusions, which look for products of weights.
#include <algorithm>
#include <map>

#include "ir/computed.h"
#include "ir/ir.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kMostBytes = int64_t{16} << 20;
/// Multiplications of all tables. The evaluator does 2e9 a second and more.
constexpr double kMostWork = 3e10;

/// Whether an expression names a size of the run, or raises a flag.
bool needs_run(ir::Attrs attrs) {
  bool needs = false;
  const auto look = [&](ExprRef e) {
    if (e)
      ir::for_each_node(e, [&](ExprRef n) {
        needs |= n->kind == ExprKind::symbol || n->kind == ExprKind::bounded;
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

class Folder {
 public:
  explicit Folder(Graph& g) : g_(g) {}

  PassReport run() {
    for (OpId o : g_.order()) look(o);
    for (const auto& [v, work] : std::map(tables_)) {
      if (work > 0 && read_by_others(ValueId{v})) fold(ValueId{v}, work);
    }
    return std::move(report_);
  }

 private:
  bool is_known(ValueId v) const { return g_.is_constant(v) || tables_.contains(v.value); }

  std::optional<int64_t> elements(ValueId v) const {
    return ir::as_int(ir::element_count(g_.pool(), g_.value(v).type.dims));
  }

  // Multiplications of the products that an op's results are made of, where they need no run.
  void look(OpId o) {
    const ir::Op& op = g_.op(o);
    const bool serves = op.kind == OpKind::pointwise || op.kind == OpKind::reduce ||
                        op.kind == OpKind::norm || op.kind == OpKind::softmax ||
                        op.kind == OpKind::matmul;
    const auto is_sized = [&](ValueId v) { return elements(v).has_value(); };
    if (!serves || needs_run(op.attrs) || op.operands.empty() ||
        !std::ranges::all_of(op.results, is_sized) ||
        !std::ranges::all_of(op.operands, [&](ValueId v) { return is_known(v); }))
      return;
    double work = 0;
    for (ValueId v : op.operands) work += g_.is_constant(v) ? 0 : tables_.at(v.value);
    if (op.kind == OpKind::matmul) {
      const auto& a = g_.value(op.operands[0]).type.dims;
      const bool trans_a = op.as<ir::MatmulAttrs>().trans_a;
      work += static_cast<double>(*elements(op.results[0])) *
              static_cast<double>(ir::as_int(a[a.size() - (trans_a ? 2 : 1)]).value_or(0));
    }
    for (ValueId v : op.results) tables_[v.value] = work;
  }

  // By ops of a run, and nobody outside.
  bool read_by_others(ValueId v) const {
    const auto& users = g_.value(v).users;
    return !g_.is_output(v) && std::ranges::any_of(users, [&](OpId user) {
      return !tables_.contains(g_.result(user).value);
    });
  }

  void fold(ValueId v, double work) {
    const ir::Value& value = g_.value(v);
    if (*elements(v) * static_cast<int64_t>(size_of(value.type.dtype)) > kMostBytes)
      return miss(v, "is a constant of more than 16 MiB");
    if (work_ + work > kMostWork) return miss(v, "takes long to compute");
    Graph made = g_;
    made.name = value.name;
    made.outputs = {{value.name, v}};
    made.set_inputs({});
    made.symbols.clear(), made.checks.clear(), made.flags.clear();
    made.clean();
    work_ += work;
    auto computed = std::make_shared<const ir::ComputedConstant>(std::move(made));
    g_.replace_uses(v, g_.add_constant(value.name + ".table", ir::constant_of(computed)));
    ++report_.rewrites;
  }

  void miss(ValueId v, const char* why) { report_.misses.push_back({g_.value(v).name, why}); }

  Graph& g_;
  PassReport report_;
  std::map<uint32_t, double> tables_;  // by value: what needs no run
  double work_ = 0;
};

}  // namespace

PassReport fold_products(Graph& g) { return Folder(g).run(); }

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// Rules of expressions (E1 to E7 of ir/ops.md). The one that matters most: no load leaves its
// tensor. Most indices are proved without help; for the rest the conditions of the selects above
// them are assumed.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ir/elements.h"
#include "ir/ir.h"
#include "ir/lexer.h"
#include "ir/range.h"
#include "ir/rules.h"
#include "ir/signature.h"

namespace tfcc::ir {
namespace {

// Expressions are over sizes that are read; what is computed of them is for codegen and the runtime
// alone.
bool reads_symbol(const Graph& graph, std::string_view name) {
  return std::any_of(graph.symbols.begin(), graph.symbols.end(),
                     [&](const SizeSymbol& s) { return !s.computed() && s.name == name; });
}

constexpr int kGuardSteps =
    20000;  // a load may be reached on many paths; beyond this it counts as not proved

template <class F> void for_each_child(ExprRef n, F f) {
  for (ExprRef a : n->args) f(a);
  for (const Term& t : n->terms) {
    for (ExprRef a : t.atoms) f(a);
  }
}

void assume(ExprRef c, bool truth, std::vector<ExprRef>& out) {
  ExprPool& pool = *c->pool;
  switch (c->kind) {
    case ExprKind::bnot: return assume(c->args[0], !truth, out);
    case ExprKind::ge0:
      out.push_back(truth ? c->args[0] : sub(pool.integer(-1), c->args[0]));
      return;
    case ExprKind::eq0:
      if (!truth || !fits_twice(to_poly(c->args[0]), pool)) return;
      out.push_back(c->args[0]);
      out.push_back(neg(c->args[0]));
      return;
    case ExprKind::band:
    case ExprKind::bor:
      if (truth != (c->kind == ExprKind::band)) return;
      for (ExprRef a : c->args) assume(a, truth, out);
      return;
    default: return;
  }
}

class ExprChecker {
 public:
  ExprChecker(const Graph& graph, const Op& op, const ExprPlace& place,
              std::vector<Violation>& problems)
      : graph_(graph), op_(op), place_(place), problems_(problems) {}

  void run(ExprRef e) {
    if (e->pool != &graph_.pool()) return problem("E1", "belongs to another pool");
    const size_t before = problems_.size();
    for_each_node(e, [&](ExprRef n) { node(n); });
    if (problems_.size() == before) loads(e);
  }

 private:
  void problem(std::string_view rule, std::string_view text) {
    problems_.push_back({rule, {}, fmt::format("{}: {}", place_.attribute, text)});
  }

  void node(ExprRef n) {
    switch (n->kind) {
      case ExprKind::index:  // E2
        if (n->value < 0 || static_cast<size_t>(n->value) >= place_.extents.size()) {
          problem("E2", fmt::format("index variable {} of {}", n->value, place_.extents.size()));
        } else if (n->args[0] != place_.extents[n->value]) {
          problem("E2", fmt::format("index variable {} ranges over {}, not {}", n->value,
                                    print(n->args[0]), print(place_.extents[n->value])));
        }
        break;
      case ExprKind::symbol:  // E5
        if (!reads_symbol(graph_, n->name)) {
          problem("E5", fmt::format("unknown symbol '{}'", n->name));
        }
        break;
      case ExprKind::param:  // E5
        if (std::find(place_.params.begin(), place_.params.end(), n->name) == place_.params.end())
          problem("E5", fmt::format("unknown parameter '{}'", n->name));
        break;
      case ExprKind::bounded:  // G7
        if (n->value < 0 || static_cast<size_t>(n->value) >= graph_.flags.size()) {
          problem("G7", fmt::format("flag {} has no message", n->value));
        }
        break;
      case ExprKind::load: load(n); break;
      case ExprKind::poison: problem("E7", to_string(poison_of(n))); break;
      default: break;
    }
  }

  void load(ExprRef n) {
    if (n->value < static_cast<int64_t>(place_.first_slot) ||
        static_cast<size_t>(n->value) >= op_.operands.size()) {
      return problem("E3", fmt::format("load of operand {} of {}", n->value, op_.operands.size()));
    }
    const Value& v = graph_.value(op_.operands[n->value]);
    if (n->args.size() != v.type.rank()) {  // E3
      problem("E3", fmt::format("load of %{} with {} indices, its rank is {}", value_name(v.name),
                                n->args.size(), v.type.rank()));
    } else if (n->type != scalar_of(v.type.dtype) ||
               (n->type == Scalar::i64 && n->dtype != v.type.dtype)) {
      problem("E3", fmt::format("load of %{} in another type than its own", value_name(v.name)));
    }
  }

  // ---- E4: every index in range ----
  const std::vector<ExprRef>& dims_of(ExprRef load) const {
    return graph_.value(op_.operands[load->value]).type.dims;
  }

  bool in_range(ExprRef i, ExprRef dim, const std::vector<ExprRef>& assumed) {
    if (i->kind == ExprKind::index && i->args[0] == dim) return true;
    return prove_in(i, dim, assumed);
  }

  bool all_in_range(ExprRef load, const std::vector<ExprRef>& assumed) {
    const auto& dims = dims_of(load);
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!in_range(load->args[d], dims[d], assumed)) return false;
    }
    return true;
  }

  void loads(ExprRef e) {
    for_each_node(e, [&](ExprRef n) {
      bool open = n->kind == ExprKind::load && !all_in_range(n, {});
      if (open) pending_.insert(n);
      for_each_child(n, [&](ExprRef c) { open = open || holds_pending_.count(c); });
      if (open) holds_pending_.insert(n);
    });
    if (!pending_.empty()) guarded(e, {});
  }

  void guarded(ExprRef n, const std::vector<ExprRef>& assumed) {
    if (!holds_pending_.count(n)) return;
    if (pending_.count(n) && (--steps_ < 0 || !all_in_range(n, assumed))) {
      pending_.erase(n);
      const Value& v = graph_.value(op_.operands[n->value]);
      problem("E4", fmt::format("load {} may leave %{} : {}; guard it with a select or bounded()",
                                print(n), value_name(v.name), to_string(v.type)));
    }
    if (n->kind != ExprKind::select) {
      for_each_child(n, [&](ExprRef c) { guarded(c, assumed); });
      return;
    }
    guarded(n->args[0], assumed);
    for (const bool truth : {true, false}) {
      std::vector<ExprRef> more = assumed;
      assume(n->args[0], truth, more);
      guarded(n->args[truth ? 1 : 2], more);
    }
  }

  const Graph& graph_;
  const Op& op_;
  const ExprPlace& place_;
  std::vector<Violation>& problems_;
  std::unordered_set<ExprRef> pending_, holds_pending_;
  int steps_ = kGuardSteps;
};

}  // namespace

/// Slot *n* of a load is operand *n*. Only a select is lazy: both arms of `and` and `or` may be
/// evaluated, so a guard is a select.
///
/// - **E1** An expression lives in the graph's pool.
/// - **E2** Index variable *k* exists and ranges over exactly the extent that the op gives it.
/// - **E3** A load names an operand that loads may use, has one index per dim, and has the scalar
///   type of its elements.
/// - **E4** Every index of a load is inside its dim: by proof, by proof under the conditions of the
///   selects above it, or because it is `bounded`. A proof counts only for what cannot wrap at 64
///   bits (docs/expressions.md, Proofs).
/// - **E5** Symbols are declared. There are no parameters but these:
///   - `s` in the score of an attention;
///   - `s` in the epilogue and `scaled` of a product, and in an epilogue with a `norm` also `mean`
///     and `rstd`;
///   - `s` in the maps and the epilogue of a linear attention, and in that epilogue also `z`.
/// - **E6** Operands are distinct, so that text can name them: in an attention those from the
///   fourth on, in a product those from the third on.
/// - **E7** No expression is a poison. A builder returns one for operands of the wrong types, and
///   for an integer that does not fit 64 bits or is too large.
void check_expr(const Graph& graph, const Op& op, ExprRef e, const ExprPlace& place,
                std::vector<Violation>& problems) {
  for (size_t a = place.first_slot; a < op.operands.size(); ++a) {  // E6
    if (std::find(op.operands.begin() + place.first_slot, op.operands.begin() + a,
                  op.operands[a]) != op.operands.begin() + a) {
      problems.push_back({"E6",
                          {},
                          fmt::format("operand %{} is given twice",
                                      value_name(graph.value(op.operands[a]).name))});
    }
  }
  ExprChecker(graph, op, place, problems).run(e);
}

void check_expr(const Graph& graph, const Op& op, std::string_view key, ExprRef e,
                std::vector<Violation>& problems) {
  Signature over = signature(graph, op, key);
  ExprPlace place{key, std::move(over.extents), first_loaded(op)};
  for (const Signature::Param& p : over.params) place.params.push_back(p.name);
  check_expr(graph, op, e, place, problems);
}

std::string body_problem(const Graph& graph, ExprRef free, const std::vector<ExprRef>& extents,
                         bool has_param) {
  const Captured c = capture(free);
  Op op{OpKind::pointwise, c.operands, {}, {}, {}};
  std::vector<Violation> problems;
  check_expr(graph, op, c.body,
             {"body", extents, 0,
              has_param ? std::vector<std::string_view>{"s"} : std::vector<std::string_view>{}},
             problems);
  return problems.empty() ? "" : to_string(problems[0]);
}

ReadSizes read_sizes(const Graph& graph) {
  ReadSizes names;
  for (const SizeSymbol& s : graph.symbols) {
    if (!s.computed()) names.insert(s.name);
  }
  return names;
}

void check_size(const Graph& graph, const ReadSizes& read, ExprRef e, Scalar type,
                std::string_view what, std::vector<Violation>& problems) {
  if (!e || e->type != type || e->pool != &graph.pool()) {
    return problems.push_back(
        {"G5", {}, fmt::format("{}: missing, of a wrong type or of another pool", what)});
  }
  if (const Poison why = poison_of(e); why != Poison::none)
    return problems.push_back({"E7", {}, fmt::format("{}: {}", what, to_string(why))});
  for_each_node(e, [&](ExprRef n) {
    const bool foreign =
        n->kind == ExprKind::index || n->kind == ExprKind::load || n->kind == ExprKind::param;
    const bool unknown = n->kind == ExprKind::symbol && !read.count(n->name);
    if (foreign || unknown)
      problems.push_back(
          {"G5", {}, fmt::format("{}: {} is not over the symbols of the graph", what, print(e))});
  });
}

}  // namespace tfcc::ir

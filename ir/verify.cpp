// SPDX-License-Identifier: Apache-2.0
// The verifier: rules of the graph as a whole (G1 to G8 of ir/ops.md). Rules of expressions and of
// ops are in verify_expr.cpp and verify_ops.cpp. Runs after every pass, so everything here is
// linear but the proofs.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "ir/elements.h"
#include "ir/ir.h"
#include "ir/lexer.h"
#include "ir/rules.h"

namespace tfcc::ir {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph), read_(read_sizes(graph)), defined_(graph.value_count(), false) {
    for (const SizeSymbol& s : graph.symbols) {
      if (s.made()) made_.push_back(&s);
    }
  }

  std::vector<Violation> run() {
    names_.reserve(graph_.value_count());
    inputs();
    symbols();
    for (const SizeCheck& check : graph_.checks) {
      std::vector<Violation> problems;
      check_size(graph_, read_, check.condition, Scalar::boolean, "check", problems);  // G8
      report([] { return std::string(); }, {}, problems);
      no_made_size(check.condition, "a check");
    }
    for (OpId o : graph_.order()) op(o);
    outputs();
    uses();
    return std::move(errors_);
  }

 private:
  void error(std::string_view rule, std::string text, OpId op = {}) {
    errors_.push_back({rule, op, std::move(text)});
  }

  // Places are words for messages: made for those alone.
  template <class Place>
  void report(const Place& place, OpId op, const std::vector<Violation>& problems) {
    for (const Violation& p : problems) error(p.rule, place() + p.text, op);
  }

  void define(ValueId v) {
    const Value& value = graph_.value(v);
    if (defined_[v.value]) error("G1", fmt::format("%{} is defined twice", value.name));
    defined_[v.value] = true;
    if (value.name.empty() || !names_.insert(value.name).second) {  // G2
      error("G2", fmt::format("the name '{}' is empty or taken", value.name));
    }
    std::vector<Violation> problems;
    for (ExprRef d : value.type.dims)
      check_size(graph_, read_, d, Scalar::i64, "dim", problems);  // G5
    report([&] { return fmt::format("%{}: ", value_name(value.name)); }, value.def, problems);
  }

  void inputs() {
    for (ValueId v : graph_.inputs()) {
      define(v);
      const Value& in = graph_.value(v);
      for (ExprRef d : in.type.dims) no_made_size(d, "an input");
      const bool whole = in.type.dtype == DType::i64 || in.type.dtype == DType::i32;
      if (in.role != InputRole::none && in.role != InputRole::mask && !whole)  // G9
        error("G9", fmt::format("%{}: {} that are no i64 or i32", value_name(in.name),
                                to_string(in.role)));
      const auto same = [&](ValueId other) { return graph_.value(other).role == in.role; };
      if (in.role >= InputRole::cu_seqlens && std::ranges::count_if(graph_.inputs(), same) > 1)
        error("G9",
              fmt::format("%{}: two inputs are the {}", value_name(in.name), to_string(in.role)));
    }
  }

  void symbols() {
    std::set<std::string> seen;
    for (const SizeSymbol& s : graph_.symbols) {  // G4
      if (s.name.empty() || is_reserved_name(s.name) || !seen.insert(s.name).second) {
        error("G4", fmt::format("symbol '{}': the name is empty, taken or reserved", s.name));
      }
      if (s.role != SizeRole::none && graph_.size_with(s.role) != &s) {
        error("G4", fmt::format("symbol '{}': two sizes are the {}", s.name, to_string(s.role)));
      }
      if (!s.read()) {
        formula(s, s.made() ? s.bound : s.formula, seen);
        if (s.made()) makers(s);
        continue;
      }
      const bool exists = s.input < graph_.inputs().size() &&
                          s.axis < graph_.value(graph_.inputs()[s.input]).type.rank();
      if (!exists) {
        error("G4", fmt::format("symbol '{}': input {} has no axis {}", s.name, s.input, s.axis));
      } else if (s.multiple < 1 ||
                 graph_.value(graph_.inputs()[s.input]).type.dims[s.axis] !=
                     mul(graph_.pool().integer(s.multiple), graph_.pool().symbol(s.name))) {
        error("G4",
              fmt::format("symbol '{}': axis {} of input {} is not {}that symbol", s.name, s.axis,
                          s.input, s.multiple == 1 ? "" : fmt::format("{} times ", s.multiple)));
      }
    }
  }

  // A size that an op makes has one such op; whatever names it reads what comes from that op, so
  // that it is computed later.
  void makers(const SizeSymbol& size) {
    ExprRef symbol = graph_.pool().symbol(size.name);
    std::vector<bool> later(graph_.value_count(), false);
    size_t packs = 0;
    for (OpId o : graph_.order()) {
      const Op& op = graph_.op(o);
      const bool dims = std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) {
        return any_names(graph_.value(v).type.dims, symbol);
      });
      const bool makes = op.kind == OpKind::pack && dims;
      const bool reads = std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) {
        return v.value < later.size() && later[v.value];
      });
      packs += makes;
      if (makes || reads) {
        for (ValueId v : op.results) later[v.value] = true;
      }
      if (makes ? names_inside(op, symbol) : !reads && (dims || names_inside(op, symbol)))
        error("G8",
              place_of(graph_, op) +
                  fmt::format("names '{}' and reads nothing that comes after its pack", size.name),
              o);
    }
    if (packs != 1) error("G8", fmt::format("symbol '{}': {} ops make it", size.name, packs));
  }

  static bool names(ExprRef e, ExprRef symbol) {
    bool found = false;
    for_each_node(e, [&](ExprRef n) { found |= n == symbol; });
    return found;
  }
  static bool any_names(const std::vector<ExprRef>& list, ExprRef symbol) {
    return std::any_of(list.begin(), list.end(), [&](ExprRef e) { return e && names(e, symbol); });
  }

  // Among the attributes of the op, extents included.
  static bool names_inside(const Op& op, ExprRef symbol) {
    Op copy = op;
    for (ExprRef* e : expressions_of(copy)) {
      if (names(*e, symbol)) return true;
    }
    if (op.kind == OpKind::reduce) return any_names(op.as<ReduceAttrs>().extents, symbol);
    if (is_linear(op.kind)) return any_names(op.as<LinearAttentionAttrs>().packed, symbol);
    return op.kind == OpKind::attention && any_names(op.as<AttentionAttrs>().packed, symbol);
  }

  // What is known before a run knows no size that an op of the run makes.
  void no_made_size(ExprRef e, std::string_view what) {
    if (!e) return;
    for (const SizeSymbol* s : made_) {
      if (names(e, graph_.pool().symbol(s->name)))
        error("G8", fmt::format("{} names '{}', which an op makes", what, s->name));
    }
  }

  // A size is computed from sizes that are read and stand before it.
  void formula(const SizeSymbol& size, ExprRef formula, const std::set<std::string>& before) {
    std::vector<Violation> problems;
    check_size(graph_, read_, formula, Scalar::i64, "formula", problems);
    report([&] { return fmt::format("symbol '{}': ", size.name); }, {}, problems);
    if (!problems.empty()) return;
    for_each_node(formula, [&](ExprRef n) {
      if (n->kind == ExprKind::symbol && !before.count(n->name)) {
        error("G4", fmt::format("symbol '{}': '{}' is no size of an input before it", size.name,
                                n->name));
      }
    });
  }

  static std::string place_of(const Graph& graph, const Op& op) {
    const std::string name = op.results.empty() ? "?" : value_name(graph.value(op.results[0]).name);
    return fmt::format("{}{} = {}: ", op.kind == OpKind::constant ? "@" : "%", name,
                       to_string(op.kind));
  }

  void op(OpId o) {
    const Op& op = graph_.op(o);
    const auto place = [&] { return place_of(graph_, op); };
    if (op.erased) error("G1", place() + "is erased but still in order", o);
    for (ValueId v : op.operands) {
      if (v.value >= defined_.size()) return error("G1", place() + "an operand does not exist", o);
      if (!defined_[v.value]) {  // G1
        error("G1",
              fmt::format("{}operand %{} is not defined before this use", place(),
                          value_name(graph_.value(v).name)),
              o);
      }
    }
    const size_t before = errors_.size();
    for (ValueId v : op.results) {
      if (graph_.value(v).def != o)
        error("G1", place() + "a result does not name this op as its definition", o);
      define(v);
    }
    if (errors_.size() != before) return;  // the op's rules read these types
    std::vector<Violation> problems;
    check_op(graph_, op, problems);
    report(place, o, problems);
  }

  void outputs() {
    std::set<std::string> seen;
    for (const Graph::Output& output : graph_.outputs) {  // G3
      if (!seen.insert(output.name).second)
        error("G3", fmt::format("two outputs are called '{}'", output.name));
      if (output.value.value >= defined_.size() || !defined_[output.value.value]) {
        error("G3", fmt::format("output '{}' is not computed", output.name));
        continue;
      }
      for (ExprRef d : graph_.value(output.value).type.dims) no_made_size(d, "an output");
    }
  }

  void uses() {
    // The users of value v are those from first[v] to first[v + 1].
    std::vector<size_t> first(graph_.value_count() + 1);
    const auto for_each_use = [&](auto f) {
      for (OpId o : graph_.order()) {
        for (ValueId v : graph_.op(o).operands) {
          if (v.value < graph_.value_count()) f(v, o);
        }
      }
    };
    for_each_use([&](ValueId v, OpId) { ++first[v.value + 1]; });
    for (size_t v = 1; v < first.size(); ++v) first[v] += first[v - 1];
    std::vector<OpId> users(first.back()), kept;
    std::vector<size_t> next = first;
    for_each_use([&](ValueId v, OpId o) { users[next[v.value]++] = o; });
    for (uint32_t v = 0; v < graph_.value_count(); ++v) {  // G6
      const auto begin = users.begin() + static_cast<long>(first[v]),
                 end = users.begin() + static_cast<long>(first[v + 1]);
      kept = graph_.value(ValueId{v}).users;
      std::sort(kept.begin(), kept.end());
      std::sort(begin, end);
      if (!std::equal(kept.begin(), kept.end(), begin, end))
        error("G6", fmt::format("the use list of %{} is out of date",
                                value_name(graph_.value(ValueId{v}).name)));
    }
  }

  const Graph& graph_;
  const ReadSizes read_;
  std::vector<const SizeSymbol*>
      made_;  // the sizes that ops make: few, where sizes that are read may be thousands
  std::vector<bool> defined_;
  std::unordered_set<std::string_view> names_;  // of the graph's values
  std::vector<Violation> errors_;
};

}  // namespace

std::string to_string(const Violation& v) { return fmt::format("{} ({})", v.text, v.rule); }

/// - **G1** Every operand is an input or a result of an earlier op; every value has one definition.
/// - **G2** Names are non-empty and unique; values and constants share one set of names.
/// - **G3** Outputs exist; their names are unique.
/// - **G4** The name of a symbol is unique and not a word of the text form (functions, keywords,
///   single lower-case letters, `t0`, `i18`). At most one symbol has each role. A symbol is one of
///   these three:
///   - an axis of an input, and that axis is written as the symbol;
///   - a size that is computed from such symbols before it and named by no expression;
///   - a size that an op makes: then it is written with a bound over symbols before it, `T <=
///     (B*S)`.
/// - **G5** Dims, extents and checks are expressions over the graph's symbols alone, in the graph's
///   pool; dims and extents are i64, checks conditions.
/// - **G6** Use lists are current.
/// - **G7** The flag of every `bounded` has a message.
/// - **G8** A size that an op makes is a dim of the results of exactly one `pack`, whose
///   expressions do not name it. Every other op that names it, in a dim or an expression, reads a
///   result of that pack or of an op that does. Inputs, outputs and checks do not name it.
/// - **G9** An input that has a role, but for a mask, has whole numbers, i64 or i32. A role of rows
///   (`cu_seqlens` and what follows from it) is that of one input at most.
std::vector<Violation> verify(const Graph& graph) { return Verifier(graph).run(); }

}  // namespace tfcc::ir

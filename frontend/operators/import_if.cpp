// SPDX-License-Identifier: Apache-2.0
// If: a condition that folds leaves one branch. One that does not, with branches of equal types,
// becomes a select of their results; with branches of different shapes the import takes the branch
// of larger sizes and checks the condition at run time.
#include <fmt/format.h>

#include <algorithm>

#include "frontend/import/importer.h"
#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

const Body* body_of(const Importer& im, const char* name) {
  const Attribute* a = im.node->find(name);
  return a ? a->graph.get() : nullptr;
}

// The values that a branch gives, its own names forgotten again.
Result<std::vector<ValueId>> run_branch(Importer& im, const Body& body) {
  if (!body.unsupported_initializers.empty()) {
    const auto& [name, why] = *body.unsupported_initializers.begin();
    return im.fail(ErrorCode::unsupported, fmt::format("initializer '{}' {}", escaped(name), why));
  }
  if (body.outputs.size() != im.node->outputs.size())
    return im.fail(ErrorCode::bad_file, "a branch has another number of outputs");
  const auto outer = im.values;
  const Node* const node = im.node;
  const int64_t opset = im.opset;
  for (const auto& [name, constant] : body.initializers)
    im.values[name] = im.graph.add_constant(name, constant);
  Result<void> done = im.import_nodes(body.nodes);
  im.node = node;
  im.opset = opset;
  std::vector<ValueId> out;
  std::string missing;
  for (const std::string& name : body.outputs) {
    const auto it = im.values.find(name);
    if (it == im.values.end()) missing = name;
    else out.push_back(it->second);
  }
  im.values = outer;
  TFCC_TRY_VOID(std::move(done));
  if (!missing.empty())
    return im.fail(ErrorCode::bad_file,
                   fmt::format("a branch does not compute its output '{}'", escaped(missing)));
  return out;
}

void define_all(Importer& im, const std::vector<ValueId>& from) {
  for (size_t i = 0; i < from.size(); ++i) im.define(i, from[i]);
}

// A branch that may not run: it must ask nothing of the sizes. Empty if it does, or cannot be
// imported.
std::optional<std::vector<ValueId>> tried(Importer& im, const Body& body) {
  const Facts facts = im.found;
  const size_t checks = im.graph.checks.size();
  auto out = run_branch(im, body);
  const bool harmless = im.found == facts && im.graph.checks.size() == checks;
  im.found = facts;
  im.graph.checks.resize(checks);
  if (!out || !harmless) return std::nullopt;
  return *std::move(out);
}

bool same_types(const Importer& im, const std::vector<ValueId>& a, const std::vector<ValueId>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](ValueId x, ValueId y) { return im.type(x) == im.type(y); });
}

// The truth of a condition over sizes for large and different sizes, the general case.
bool holds_in_general(const Importer& im, ExprRef condition) {
  const auto symbol = [&](std::string_view name) {
    const ir::SymbolRange range = im.graph.pool().range(name);
    int64_t v = 16;
    for (const auto& s : im.graph.symbols) {
      v += 3;
      if (s.name == name) break;
    }
    return std::clamp(v, range.min, range.max.value_or(v));
  };
  ir::ScalarEnv env;
  env.symbol = symbol;
  return ir::eval_expr(condition, env).i != 0;
}

// Not p == 0 as p >= 1 or p <= -1, where one of the two is all that can be: S != 1 is S >= 2.
ExprRef without_not(ExprRef c) {
  if (c->kind != ir::ExprKind::bnot || c->args[0]->kind != ir::ExprKind::eq0) return c;
  const ExprRef p = c->args[0]->args[0], one = p->pool->integer(1);
  if (ir::prove_ge0(p)) return ir::le(one, p);
  return ir::prove_ge0(ir::neg(p)) ? ir::le(p, ir::neg(one)) : c;
}

bool can_check(ExprRef c) {
  if (c->kind == ir::ExprKind::band) return std::all_of(c->args.begin(), c->args.end(), can_check);
  return c->kind == ir::ExprKind::ge0 || c->kind == ir::ExprKind::eq0;
}

}  // namespace

Result<void> import_if(Importer& im) {
  TFCC_TRY(ValueId c, im.input(0));
  const Body *yes = body_of(im, "then_branch"), *no = body_of(im, "else_branch");
  if (!yes || !no || im.type(c).dtype != DType::boolean)
    return im.fail(ErrorCode::bad_file, "needs a bool condition and two branches");
  TFCC_TRY(const ExprRef condition, im.scalar(c, "the condition"));
  const ExprRef known = im.resolved(condition);
  if (known == im.pool().boolean(true) || known == im.pool().boolean(false)) {
    TFCC_TRY(auto taken, run_branch(im, known == im.pool().boolean(true) ? *yes : *no));
    define_all(im, taken);
    return {};
  }
  const auto a = tried(im, *yes), b = tried(im, *no);
  if (a && b && same_types(im, *a, *b)) {
    for (size_t i = 0; i < a->size(); ++i) {
      const Type t = im.type((*a)[i]);
      const Indices at = im.index_vars(t.dims);
      im.define(i, ir::select(condition, im.element((*a)[i], at), im.element((*b)[i], at)), t.dtype,
                t.dims);
    }
    return {};
  }
  if (!is_size_expression(known)) {
    return im.fail(
        ErrorCode::unsupported,
        fmt::format("the condition depends on data ({}), and the branches differ in shape",
                    im.graph.value(c).name));
  }
  const bool truth = holds_in_general(im, known);
  const ExprRef required = truth ? known : without_not(ir::logical_not(known));
  if (!can_check(required))
    return im.fail(
        ErrorCode::unsupported,
        fmt::format("the condition {} is not known and decides a shape", ir::print(known)));
  TFCC_TRY(auto taken, run_branch(im, truth ? *yes : *no));
  define_all(im, taken);
  im.graph.checks.push_back(
      {required, fmt::format("'{}' ({}) was compiled for the sizes where its condition is {}",
                             im.node->name, im.node->op_type, truth)});
  return {};
}

}  // namespace tfcc::frontend

// SPDX-License-Identifier: Apache-2.0
// Sizes that grow with what they are made of: first by form, which needs no arithmetic, then by the
// difference of two sums.
#include <algorithm>
#include <set>
#include <string>

#include "ir/expr.h"

namespace tfcc::ir {
namespace {

bool grows_by_form(ExprRef e) {
  switch (e->kind) {
    case ExprKind::symbol: return true;
    case ExprKind::poly:
      return std::all_of(e->terms.begin(), e->terms.end(), [](const Term& t) {
        return t.coefficient > 0 && std::all_of(t.atoms.begin(), t.atoms.end(), [](ExprRef a) {
                 return never_decreases(a) && prove_ge0(a);
               });
      });
    case ExprKind::floordiv: {
      const auto divisor = as_int(e->args[1]);
      return divisor && *divisor > 0 && never_decreases(e->args[0]);
    }
    case ExprKind::imin:
    case ExprKind::imax: return never_decreases(e->args[0]) && never_decreases(e->args[1]);
    default: return false;
  }
}

// What a sum grows by when one of its symbols does.
bool grows_by_difference(ExprRef e) {
  if (e->kind != ExprKind::poly) return false;
  std::set<std::string> names;
  for_each_node(e, [&](ExprRef n) {
    if (n->kind == ExprKind::symbol) names.insert(n->name);
  });
  // No model has a size of this name: of such a symbol it is known that it is at least 1, the least
  // that a size grows by.
  ExprRef more = e->pool->symbol("\x01");
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    ExprRef grown = rewrite(e, [&](ExprRef n) {
      return n->kind == ExprKind::symbol && n->name == name ? add(n, more) : nullptr;
    });
    return prove_le(e, grown);
  });
}

}  // namespace

bool never_decreases(ExprRef e) { return grows_by_form(e) || grows_by_difference(e); }

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// What the builders of expressions share: making a node, and short questions about one. Internal to
// ir/.
#pragma once

#include "ir/expr.h"

namespace tfcc::ir {

/// The node of this kind over args, once per pool; args[0] says which pool.
inline ExprRef make_node(ExprKind kind, Scalar type, std::vector<ExprRef> args) {
  Node n{};
  n.kind = kind;
  n.type = type;
  ExprPool* pool = args.at(0)->pool;
  n.args = std::move(args);
  return pool->intern(std::move(n));
}

inline bool is_real_type(Scalar t) { return t == Scalar::f32 || t == Scalar::f64; }
inline bool is_real(ExprRef e, double v) { return e->kind == ExprKind::fconst && e->real == v; }
inline bool is_bool(ExprRef e, bool v) {
  return e->kind == (v ? ExprKind::btrue : ExprKind::bfalse);
}
inline bool is_constant(ExprRef e) { return as_int(e).has_value() || as_real(e).has_value(); }

}  // namespace tfcc::ir

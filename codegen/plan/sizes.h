// SPDX-License-Identifier: Apache-2.0
// Sizes of a graph as programs of the runtime.
//
// A bucket of shapes caps batch, length and tokens each by itself, so that at the caps tokens is
// not batch * length. What is launched at the caps must therefore name tokens wherever the graph
// says batch * length: restate() writes it so, once, and everything that codegen decides about caps
// (programs, offsets, proofs) is made of restated sizes.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "runtime/core/size_expr.h"

namespace tfcc::codegen {

/// Why a size, or a condition over sizes, cannot be a program of the runtime; empty: it can.
std::string why_no_program(ir::ExprRef e);
/// A size as a postfix program over symbols, in this order.
runtime::SizeExpr size_program(ir::ExprRef e, const std::vector<std::string>& symbols);

class Sizes {
 public:
  explicit Sizes(const ir::Graph& graph);

  /// The symbols of the manifest, in its order: those of the graph, but for computed sizes that no
  /// program names.
  const std::vector<std::string>& names() const { return names_; }
  /// e, a size over the symbols of the graph, with computed sizes in place of the products that
  /// they stand for. It lives in pool(), where all symbols are independent: what is proved of it
  /// holds at the caps of a bucket too.
  ir::ExprRef restate(ir::ExprRef e);
  ir::ExprPool& pool() const { return *pool_; }
  /// The program of restate(e), with the text of e.
  runtime::SizeExpr program(ir::ExprRef e);
  /// The program of a size that lives in pool().
  runtime::SizeExpr restated_program(ir::ExprRef e) const { return size_program(e, names_); }

  /// e with the bound of each size that an op makes in its place: what the host knows, and what
  /// memory is planned for.
  static ir::ExprRef at_bounds(const ir::Graph& graph, ir::ExprRef e);
  /// The symbols whose product this computed size is, where restate() uses it; empty for any other
  /// symbol.
  static std::vector<ir::ExprRef> factors(const ir::SizeSymbol& s);
  /// The symbols of a graph that the manifest has.
  static std::vector<const ir::SizeSymbol*> told(const ir::Graph& graph);

 private:
  ir::ExprRef restate_sum(ir::ExprRef e);

  struct Product {
    std::string name;
    std::vector<ir::ExprRef> factors;
  };
  std::vector<std::string> names_;
  std::vector<Product> products_;
  std::shared_ptr<ir::ExprPool> pool_;
  std::unordered_map<ir::ExprRef, ir::ExprRef> restated_;
};

}  // namespace tfcc::codegen

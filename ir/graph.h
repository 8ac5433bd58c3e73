// SPDX-License-Identifier: Apache-2.0
// The IR in memory: a graph of tensor ops in SSA form. Two dense arrays, ops and values, indexed by
// typed ids; edges are ids and uses are kept current by Graph alone. ir/README.md has the text
// form, ir/ops.md the semantics.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ir/attrs.h"
#include "ir/ids.h"
#include "runtime/dtype.h"
#include "runtime/input_role.h"
#include "runtime/size_role.h"

namespace tfcc::ir {

enum class OpKind : uint8_t {
#define TFCC_OP(name, attrs, summary) name,
#include "ir/ops.def"
#undef TFCC_OP
};
std::string_view to_string(OpKind kind);
/// linear_attention or its step: their expressions have the same indices and parameters.
constexpr bool is_linear(OpKind kind) {
  return kind == OpKind::linear_attention || kind == OpKind::linear_attention_step;
}

/// Element type and dims; a dim is an i64 expression over symbols.
struct Type {
  DType dtype = DType::f32;
  std::vector<ExprRef> dims;
  size_t rank() const { return dims.size(); }
  bool operator==(const Type&) const = default;
};
/// "f32[B,S,64]"
std::string to_string(const Type& type);

struct Value {
  std::string name;  // without sigil
  Type type;
  OpId def;                 // invalid for graph inputs
  std::vector<OpId> users;  // one entry per use, in no order; graph outputs are not in it
  ValueId
      replacement;  // what a pass put in its place (replace_uses, set_replacement); invalid if nothing
  InputRole role = InputRole::none;  // of a graph input
};

struct Op {
  OpKind kind;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Attrs attrs;
  std::string origin;  // ONNX nodes it stands for, for messages
  bool erased = false;
  template <class A> const A& as() const { return std::get<A>(attrs); }
  template <class A> A& as() { return std::get<A>(attrs); }
};

/// A size known at run time. It is read off an axis of an input, computed from sizes before it, or
/// made by an op, which then is known to be no larger than its bound.
struct SizeSymbol {
  std::string name;
  uint32_t input = 0;
  uint32_t axis = 0;
  SizeRole role = SizeRole::none;
  ExprRef formula = nullptr;  // of a computed size; input and axis mean nothing then
  ExprRef bound = nullptr;    // of a size that an op makes; input and axis mean nothing then
  int64_t multiple = 1;       // of a size that is read: the axis is so many times the size
  bool computed() const { return formula != nullptr; }
  bool made() const { return bound != nullptr; }
  bool read() const { return !computed() && !made(); }
};

/// A condition on sizes checked at every run, with what the user is told when it fails.
struct SizeCheck {
  ExprRef condition;  // boolean over symbols
  std::string message;
};

class Graph {
 public:
  explicit Graph(std::string name = "main");
  /// One whose expressions are another graph's, too.
  Graph(std::string name, std::shared_ptr<ExprPool> pool);
  /// Copies share the pool; ids stay valid across a copy.
  Graph(const Graph&) = default;
  Graph(Graph&&) = default;
  Graph& operator=(const Graph&) = default;
  Graph& operator=(Graph&&) = default;

  std::string name;
  std::vector<SizeSymbol> symbols;
  /// The size with this role (at most one has it), or null.
  const SizeSymbol* size_with(SizeRole role) const;
  std::vector<SizeCheck> checks;
  std::vector<std::string> flags;  // message of flag i, raised by bounded(.., .., i)
  struct Output {
    std::string name;
    ValueId value;
  };
  std::vector<Output> outputs;

  ExprPool& pool() const { return *pool_; }
  const std::shared_ptr<ExprPool>& pool_ptr() const { return pool_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const Value& value(ValueId v) const { return values_[v.value]; }
  const Op& op(OpId o) const { return ops_[o.value]; }
  Op& op(OpId o) { return ops_[o.value]; }
  size_t value_count() const { return values_.size(); }
  size_t op_count() const { return ops_.size(); }
  /// Live ops, constants included. After clean() the order respects data flow; until then new ops
  /// stand last.
  const std::vector<OpId>& order() const { return order_; }
  /// The op that defines v, or null for a graph input.
  const Op* def(ValueId v) const;
  bool is_constant(ValueId v) const;
  const Constant* constant(ValueId v) const;
  bool is_output(ValueId v) const;
  /// The live value of that name; invalid if there is none.
  ValueId find_value(std::string_view name) const;
  /// Uses by ops plus uses as graph output.
  size_t use_count(ValueId v) const;
  ValueId result(OpId o, size_t i = 0) const { return op(o).results[i]; }

  ValueId add_input(std::string name, Type type);
  /// The inputs from now on; those that are left out must have no users that stay. Symbols are the
  /// caller's to set.
  void set_inputs(std::vector<ValueId> inputs) { inputs_ = std::move(inputs); }
  ValueId add_constant(std::string name, Constant constant);
  /// Appends an op; names are made unique by a suffix.
  OpId add_op(OpKind kind, std::vector<ValueId> operands, Attrs attrs, std::vector<Type> types,
              std::vector<std::string> names, std::string origin = {});
  /// Gives an op one more result, before its result `at`.
  ValueId insert_result(OpId o, size_t at, Type type, std::string name);
  /// Convenience for one result.
  ValueId add(OpKind kind, std::vector<ValueId> operands, Attrs attrs, Type type, std::string name,
              std::string origin = {});
  ValueId add_pointwise(std::vector<ValueId> operands, ExprRef body, Type type, std::string name,
                        std::string origin = {});

  /// Every use of `from` (outputs too) becomes `to`. Types must be equal.
  void replace_uses(ValueId from, ValueId to);
  /// `to` stands for `from` from now on, in another layout; uses stay as they are.
  void set_replacement(ValueId from, ValueId to) { values_[from.value].replacement = to; }
  void set_operands(OpId o, std::vector<ValueId> operands);
  void set_role(ValueId input, InputRole role) { values_[input.value].role = role; }
  void set_type(ValueId v, Type type) { values_[v.value].type = std::move(type); }
  void rename(ValueId v, std::string name);
  /// Removes ops no output needs, and puts order() in a canonical order (depth first from the
  /// outputs). Number removed.
  size_t clean();

 private:
  struct NameTable& own_names();
  std::string unique_name(std::string name, ValueId holder);
  std::shared_ptr<ExprPool> pool_;
  std::deque<Op> ops_;  // references to ops and values stay valid when others are added
  std::deque<Value> values_;
  std::vector<ValueId> inputs_;
  std::vector<OpId> order_;
  std::shared_ptr<struct NameTable> names_;
};

/// Index variables over the dims of a type: index k has extent dims[k].
std::vector<ExprRef> indices_of(ExprPool& pool, const std::vector<ExprRef>& dims);
/// Number of elements as an expression.
ExprRef element_count(ExprPool& pool, const std::vector<ExprRef>& dims);

}  // namespace tfcc::ir

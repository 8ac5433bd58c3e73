// SPDX-License-Identifier: Apache-2.0
// What an import function works with. Internal to frontend/.
//
// Every view, gather and elementwise operator becomes one `pointwise` op whose body is built from
// element(): a value that depends on sizes and constants alone is inlined where it is used, so
// shape arithmetic leaves no op behind.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "frontend/onnx/element_types.h"
#include "frontend/import/attributes.h"
#include "frontend/import/import.h"
#include "ir/elements.h"

namespace tfcc::frontend {

using ir::ExprPool;
using ir::ExprRef;
using ir::Graph;
using ir::Scalar;
using ir::Type;
using ir::ValueId;
using Dims = std::vector<ExprRef>;
using Indices = std::vector<ExprRef>;

/// Facts about symbols found in one round of import and given to the next.
struct Facts {
  std::map<std::string, int64_t> min;         // symbol >= min
  std::map<std::string, int64_t> max;         // symbol <= max
  std::map<std::string, std::string> reason;  // why
  std::map<std::string, std::string> alias;   // symbol is the same size as the other
  std::map<std::string, int64_t> fixed;       // symbol == value
  std::map<std::string, std::string> equal;   // symbol is this expression over other symbols
  std::map<std::string, int64_t> multiple;    // symbol is a multiple of it
  std::set<std::string> axes;                 // names that axes of inputs have
  bool room_for_padding =
      false;  // rows without padding are as many as with it: what becomes of them needs their number
  bool operator==(const Facts&) const = default;
};

class Importer {
 public:
  Importer(const Model& model, const Facts& known);

  // ---- the node being imported ----
  const Node* node = nullptr;
  int64_t opset = 0;
  bool has_input(size_t i) const { return i < node->inputs.size() && !node->inputs[i].empty(); }
  Result<ValueId> input(size_t i) const;
  int64_t attr_int(IntegerName name, int64_t otherwise) const;
  /// The number of an element type in ONNX; 0 if there is no such attribute.
  int attr_type(IntegerName name) const;
  float attr_float(RealName name, float otherwise) const;
  std::string attr_string(StringName name, std::string_view otherwise) const;
  std::optional<std::vector<int64_t>> attr_ints(IntegersName name) const;
  Error fail(ErrorCode code, const std::string& what) const;  // prefixed with file and node

  /// Whether rows that are left without padding need room for all (Facts).
  bool room_for_padding() const { return known_.room_for_padding; }

  // ---- values ----
  Graph graph;
  ExprPool& pool() { return graph.pool(); }
  ExprRef integer(int64_t v) { return graph.pool().integer(v); }
  const Type& type(ValueId v) const { return graph.value(v).type; }
  const Dims& dims(ValueId v) const { return type(v).dims; }
  size_t rank(ValueId v) const { return dims(v).size(); }
  /// The element type in ONNX, which may be narrower than the tensor's.
  int onnx_type(ValueId v) const;
  void set_onnx_type(ValueId v, const ElementType& t);
  Dims index_vars(const Dims& dims) { return ir::indices_of(pool(), dims); }

  /// Element of v as a free expression, size and constant arithmetic inlined.
  ExprRef element(ValueId v, const Indices& at);
  /// Element of v under ONNX broadcasting: `at` are indices of a result of rank at.size().
  ExprRef broadcast_element(ValueId v, const Indices& at);
  /// A size tensor as expressions over symbols (up to 64 elements). Errors: unsupported if it
  /// depends on data.
  Result<std::vector<ExprRef>> sizes(ValueId v, std::string_view role);
  /// Whether `e`, found in `v`, can be a size. Errors: unsupported if it depends on data or on
  /// reals.
  Result<void> require_size(ExprRef e, ValueId v, std::string_view role) const;
  /// The same where every element must be a number.
  Result<std::vector<int64_t>> numbers(ValueId v, std::string_view role);
  /// A free expression with everything looked through that can be: ops that were kept, elements of
  /// constants.
  ExprRef resolved(ExprRef e);
  /// The one element of a tensor. Errors: shape if it has not one.
  Result<ExprRef> scalar(ValueId v, std::string_view role);
  Result<ExprRef> scalar_real(ValueId v, std::string_view role);

  /// Result dims of broadcasting; records what must be equal. Errors: shape.
  Result<Dims> broadcast(const Dims& a, const Dims& b);
  /// Two sizes that must be equal: a fact, a check, or an error. Returns the one to use.
  Result<ExprRef> unify(ExprRef a, ExprRef b, const std::string& what);
  /// A product of sizes that the graph cuts into parts of `divisor` elements: the one size that is
  /// left over is a multiple of what is missing, which the next round knows.
  void expect_multiple(ExprRef product, ExprRef divisor);
  /// `e` must be non-negative in every run; a fact or a check.
  Result<void> require_ge0(ExprRef e, const std::string& what);
  /// A gather index into [0, n): negative ones wrap; proved, made a fact, or clamped with a flag.
  Result<ExprRef> gather_index(ExprRef e, ExprRef n);
  Result<size_t> axis_of(int64_t axis, size_t rank) const;

  // ---- results ----
  /// Defines output i of the node as an op of a body over its index variables.
  ValueId define(size_t output, ExprRef free_body, DType dtype, const Dims& dims);
  void define(size_t output, ValueId v);
  /// An intermediate value.
  ValueId pointwise(ExprRef free_body, DType dtype, const Dims& dims, std::string_view suffix);
  std::string value_name(size_t output) const;

  /// The nodes of a body, as those of the model; its values join `values`.
  Result<void> import_nodes(const std::vector<Node>& nodes);

  /// The nodes so far, and the ops that each left in the graph.
  std::vector<ImportedNode> imported() const;

  Facts found;
  std::unordered_map<std::string, ValueId> values;  // by ONNX name
  /// What a family of operators remembers from one node to the next, in a type of its own.
  template <class T> T& notes() {
    std::shared_ptr<void>& kept = notes_[typeid(T)];
    if (!kept) kept = std::make_shared<T>();
    return *static_cast<T*>(kept.get());
  }
  /// What a family of operators asks of an output of the graph, by its ONNX name.
  using OutputRule = Result<void> (*)(Importer&, const std::string& name, ValueId);
  std::set<OutputRule> output_rules;
  const Model& model() const { return model_; }

 private:
  ValueId add_pointwise(ExprRef free_body, DType dtype, const Dims& dims, std::string name);
  void same_size(const std::string& a, const std::string& b);
  bool equal_by_index(ExprRef e, ExprRef n);
  /// Learns that a size is a sum of others. False if it is no size of its own or the sum holds it.
  bool equal_to_sum(ExprRef symbol, ExprRef sum);
  class NodeScope;
  const Model& model_;
  const Facts& known_;
  static constexpr size_t kNoNode = SIZE_MAX;
  std::vector<const Node*> nodes_;  // of the model and of branches, in the order of the walk
  size_t node_index_ = kNoNode;     // of `node` in nodes_
  std::vector<size_t> node_of_op_;  // by op
  size_t judged_ops_ = 0;           // ops before it are those of nodes that were looked at whole
  std::unordered_map<uint32_t, int> onnx_types_;  // of values whose type is narrower in ONNX
  std::unordered_map<std::type_index, std::shared_ptr<void>> notes_;
};

using ImportFunction = Result<void> (*)(Importer&);

/// Whether a free expression depends on no run-time data.
bool is_size_expression(ExprRef e);

#define TFCC_IMPORT(name, function, min_opset, max_opset, dtypes, notes) \
  Result<void> function(Importer&);
#include "frontend/import/importers.def"
#include "frontend/import/importers_microsoft.def"
#undef TFCC_IMPORT

/// What Gather reads of a tensor of dims `d`: the dims of its result, and the element of the tensor
/// for each element of that.
struct Gathered {
  Dims dims;
  Indices from;
};
Result<Gathered> gathered(Importer& im, const Dims& d, size_t axis, ValueId indices);

// Shared by families.
ValueId transpose(Importer& im, ValueId v, const std::vector<size_t>& perm,
                  std::string_view suffix);
ValueId reshape(Importer& im, ValueId v, const Dims& to, std::string_view suffix);
/// Softmax along `axis`; `coerced`, as before opset 13: over all axes from there on.
ValueId softmax_along(Importer& im, ValueId x, size_t axis, bool coerced, const std::string& name);
/// Tensors of one type after one another. Errors: shape if they differ in another axis.
Result<ValueId> concat(Importer& im, std::vector<ValueId> parts, size_t axis,
                       std::string_view suffix);
/// The values of a packed tensor, unpacked element by element where they are read.
ValueId unpack(Importer& im, const PackedTensor& packed, const std::string& name);
/// After a node whose input has an element type that is narrower in ONNX than its tensor's: so have
/// the outputs of that type. Sums and products, which may leave the range, wrap as in ONNX.
void keep_narrow_type(Importer& im);
/// Element `at` of a tensor of bytes whose last axis counts elements of `bits` bits, the first in
/// the lowest bits.
ExprRef packed_bits(Importer& im, ValueId bytes, Indices at, int bits);
/// Whether v is one element: a scalar or a vector of length 1.
bool is_single(Importer& im, ValueId v);
/// A tensor of f32 in 8 bits, with a scale and a zero point for all of it.
struct DynamicallyQuantised {
  ValueId values, scale, zero;
};
Result<DynamicallyQuantised> quantised_dynamically(Importer& im, ValueId x);
/// saturate(round(value) + zero) in an integer type; `zero` is an i64 or null.
ExprRef requantised(ExprRef value, ExprRef zero, const ElementType& type);
/// kind over `extents` of a free body whose reduction indices follow those of the result.
ValueId reduction(Importer& im, ir::ReduceKind kind, ExprRef free_body, const Dims& extents,
                  const Type& type, std::string_view suffix);
/// Index variables over `dims`, numbered from `first`.
Indices variables(Importer& im, const Dims& dims, size_t first);
/// Zero of a scalar type.
ExprRef zero_of(Importer& im, Scalar type);
/// e held inside [0, n), for a load that another condition keeps from being used. Needs n >= 1.
ExprRef clamped(ExprRef e, ExprRef n);

}  // namespace tfcc::frontend

// SPDX-License-Identifier: Apache-2.0
// What an emitter may know beside its op: the graph, the target class, the bucket, and which values
// are memory of the caller.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/matmul/rules.h"
#include "codegen/target.h"
#include "ir/elements.h"
#include "ir/graph.h"

namespace tfcc::codegen {

using ir::ExprPool;
using ir::ExprRef;
using ir::Graph;
using ir::OpId;
using ir::OpKind;
using ir::Scalar;
using ir::ValueId;

/// A product of reals: a library may compute it, so it touches no memory of the caller.
inline bool is_real_product(const Graph& graph, const ir::Op& op) {
  return op.kind == OpKind::matmul && is_float(graph.value(op.operands[0]).type.dtype);
}

/// Which values lie in memory of the caller, who may have misaligned it: graph inputs, and outputs
/// that are written in place.
class CallerMemory {
 public:
  /// Of all forms of a graph that a plan has: a value lies in the same memory in each.
  explicit CallerMemory(const std::vector<const Graph*>& forms);
  /// The graph input that v is.
  std::optional<size_t> input_of(ValueId v) const;
  /// The graph output that v is written to in place, if it is: its op is a kernel, and no product
  /// reads it.
  std::optional<size_t> output_of(ValueId v) const;
  /// The graph input in whose memory v, a cache after its new rows, is. It is aligned to 16 bytes.
  std::optional<size_t> state_of(ValueId v) const;
  bool has(ValueId v) const { return input_of(v) || output_of(v) || state_of(v); }

 private:
  std::vector<ValueId> inputs_;
  std::vector<std::optional<ValueId>> outputs_;
  std::vector<std::pair<ValueId, size_t>> states_;
};

/// The runs that a bucket is for.
struct BucketLimits {
  int64_t most_tokens = 0;   // 0: any number
  ExprRef length = nullptr;  // the size that is at most `longest`
  int64_t longest = 0;       // 0: any
};

struct EmitContext {
  const Graph& graph;
  const TargetClass& target;
  const CallerMemory& callers;
  /// The sizes that kernels find in n[...], in this order.
  const std::vector<std::string>& symbols;
  BucketLimits bucket = {};
  ProductRules rules = {};

  bool cuda() const { return target.cuda(); }
  ExprPool& pool() const { return graph.pool(); }
  ExprRef integer(int64_t v) const { return pool().integer(v); }
  const ir::Type& type(ValueId v) const { return graph.value(v).type; }
  const std::vector<ExprRef>& dims(ValueId v) const { return type(v).dims; }
  /// The C++ type of its elements in memory: "f16", "b8".
  std::string storage(ValueId v) const;
  std::optional<int64_t> known(ExprRef e) const { return ir::as_int(e); }
  ExprRef ceil_div(ExprRef a, int64_t b) const {
    return ir::div(ir::add(a, integer(b - 1)), integer(b));
  }
  ExprRef count(ValueId v) const { return ir::element_count(pool(), dims(v)); }
  /// Elements of all dims but the last.
  ExprRef rows(ValueId v) const;
  /// The most a size can be in this bucket, if that is known.
  std::optional<int64_t> largest(ExprRef size) const;
  /// The same in any bucket.
  std::optional<int64_t> promised(ExprRef size) const;
  bool any_of_callers(const std::vector<ValueId>& values) const;
  /// CUDA: whether a launch that reads these values may read what `sizes` are made of, and addresses
  /// of the caller, before its wait (docs/kernel-abi.md). It may if a launch of the run wrote one of
  /// the values, and for a size that an op makes one of so many rows. Then a launch that lets its
  /// successor start only behind its own wait came behind what writes the size: that one, or if it is
  /// a matmul_stream the one that wrote its operand.
  bool made_before_last(const std::vector<ExprRef>& sizes, const std::vector<ValueId>& reads) const;

  Error unsupported(OpId op, const std::string& what) const;
};

/// The C++ type of an element in memory.
std::string storage_type(DType t);
/// "idx i0, idx i1": the parameters of a functor over `count` indices, which index_name() names.
std::string index_parameters(size_t count);
std::string index_name(int64_t k);

/// A tensor read in place as part of a wider one with the same rows: the attention templates take a
/// stride and an offset.
struct RowSlice {
  ValueId base;
  int64_t offset = 0, stride = 0;  // elements
};
/// The slice that v is, if every reader of v can read it in place; then v has no launch and no
/// buffer of its own.
std::optional<RowSlice> row_slice(const Graph& graph, ValueId v);
/// All dims but the last, as one.
ExprRef rows_of(const EmitContext& c, ValueId v);

}  // namespace tfcc::codegen

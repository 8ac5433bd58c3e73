// SPDX-License-Identifier: Apache-2.0
// What an emitter works with: the op being lowered, its buffers, and the stub that is being written. Internal to codegen/.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "codegen/emit_expr.h"
#include "codegen/lower.h"
#include "codegen/sizes.h"
#include "ir/elements.h"

namespace tfcc::codegen {

using ir::ExprPool;
using ir::ExprRef;
using ir::Graph;
using ir::OpId;
using ir::OpKind;
using ir::Scalar;
using ir::ValueId;

/// How a kernel launch is sized. CUDA uses grid and threads, the CPU work and grain.
struct LaunchSize {
  std::vector<ExprRef> grid;
  uint32_t threads = 256;
  uint32_t shared_bytes = 0;
  ExprRef work = nullptr;
  uint32_t grain = 1;
};

class Lowering {
 public:
  Lowering(const Graph& graph, const TargetClass& target, WeightPool& weights, const LowerOptions& options);
  Result<Lowered> run();

  /// In the form that suits the bucket which is lowered. Forms share values: each has those of the forms before it.
  Graph graph;
  const TargetClass target;
  bool cuda() const { return target.cuda(); }
  ExprPool& pool() const { return graph.pool(); }
  ExprRef integer(int64_t v) const { return graph.pool().integer(v); }
  const ir::Type& type(ValueId v) const { return graph.value(v).type; }
  const std::vector<ExprRef>& dims(ValueId v) const { return type(v).dims; }

  // ---- the stub of one kernel: arguments are operands then results of the op, each value once ----
  /// Starts a launch with these arguments; `written` says which are results.
  void begin(OpId op, std::vector<ValueId> reads, std::vector<ValueId> writes);
  /// Argument k as a typed pointer expression, valid inside the kernel.
  std::string pointer(size_t k) const;
  size_t arg_of(ValueId v) const;
  /// True if the caller may have misaligned it: a graph input or output.
  bool is_io(size_t k) const;
  bool any_io() const;
  /// True if one of these operands is a graph input.
  bool reads_io(const std::vector<ValueId>& operands) const;
  /// "f16" of a value.
  std::string storage(ValueId v) const { return to_cpp(type(v).dtype); }
  static std::string to_cpp(DType t);
  /// A size as C++ over n[...].
  std::string size(ExprRef e) const;
  /// "{n[0], 768}"
  std::string sizes(const std::vector<ExprRef>& dims) const;
  /// A functor type `name` with call parameters `params` ("idx i0, idx i1"), computing a body of `op` whose slots are
  /// operands; index k is spelled index(k), and operand_dims(slot) are the dims that a load's indices are for, if not the operand's own.
  /// Returns its text; functor_value() constructs one.
  std::string functor(const std::string& name, const std::string& params, ExprRef body, Scalar result,
                      const std::function<std::string(int64_t)>& index, const std::function<std::vector<ExprRef>(int64_t)>& operand_dims = {});
  /// The same in two steps, for templates that walk rows: called with the row's indices i0, i1, ... it computes what all of the
  /// row shares, and returns the function of index i`column`.
  std::string row_functor(const std::string& name, ExprRef body, int64_t column, Scalar result);
  std::string functor_value(const std::string& name) const;
  /// Ends the launch: `text` has @NAME@ and @PARAMS@ for the kernel's name and the list of its parameters.
  /// Buffers in `more` are read too and follow the arguments.
  /// `parts` are said of the launch beside its op: what was fused into it.
  void launch(const std::string& base, const std::string& op, const std::string& text, const LaunchSize& size,
              ExprRef flops, const std::vector<uint32_t>& more = {}, const std::vector<std::string>& parts = {},
              const std::vector<runtime::TensorMap>& maps = {});
  /// The line that includes a template. On the CPU what follows up to header() is local to the unit: all are linked together.
  std::string include(const std::string& op) const;
  /// "TFCC_KERNEL(...) {" with the parameters of this launch.
  std::string header(uint32_t threads) const;
  /// The same for a kernel that waits for its predecessor itself, `resident` blocks of it on a multiprocessor, with tensor maps m0, m1, ...
  std::string header_with_maps(uint32_t threads, int resident, size_t maps) const;

  ExprRef ceil_div(ExprRef a, int64_t b) const;
  ExprRef count(ValueId v) const { return ir::element_count(pool(), dims(v)); }
  /// Elements of all dims but the last.
  ExprRef rows(ValueId v) const;
  std::optional<int64_t> known(ExprRef e) const { return ir::as_int(e); }

  /// A tensor read in place as part of a wider one with the same rows: the attention templates take a stride and an offset.
  struct RowSlice {
    ValueId base;
    int64_t offset = 0, stride = 0;   // elements
  };
  /// The slice that v is, if every reader of v can read it in place; then v has no launch and no buffer of its own.
  std::optional<RowSlice> row_slice(ValueId v) const;

  /// The most a size can be in the bucket being lowered, if that is known.
  std::optional<int64_t> largest(ExprRef size) const;
  int64_t most_tokens() const { return most_tokens_; }

  // ---- the plan, for launches that are no stub ----
  uint32_t buffer_of(ValueId v);
  ExprRef bytes_of(uint32_t buffer) const { return bytes_[buffer]; }
  /// The buffer of a constant in another layout, which `change` adds as steps to its recipe; one for each name of a layout.
  uint32_t weight_in_layout(ValueId v, const std::string& layout, const std::function<void(ir::Constant&)>& change);
  runtime::SizeExpr encode(ExprRef e);
  /// What `tfcc inspect --why` says of the launches of this bucket from number `first` on: what was chosen and why, decided at
  /// `file`:`line`.
  void explain(size_t first, const std::string& why, const char* file, int line);
  size_t launch_count() const { return out_.plan.buckets.back().launches.size(); }
  /// `copy` tells a copy to an output, which may have the name of a value, from the launch that computes that value.
  void add_launch(runtime::Launch launch, const std::vector<uint32_t>& reads, const std::vector<uint32_t>& writes, const std::string& copy = {});
  /// Takes note of a size that launches at the caps of a bucket must not find smaller than that of any run below them.
  void grows(ExprRef size, const std::string& what);
  /// Takes note of why the plan has no buckets of shapes, once.
  void no_buckets(const std::string& why);

  Error unsupported(OpId op, const std::string& what) const;

 private:
  /// Lengths up to which attention has a tile of its own; 0: any length.
  std::vector<int64_t> sequence_buckets();
  Result<void> lower_buckets();
  /// The graph as it suits runs of at most kFewRows tokens.
  Graph form_of_few_rows() const;
  Result<void> lower_bucket(int64_t longest);
  std::vector<OpId> launch_order() const;
  /// The graph output that v is written to in place, if it is.
  std::optional<size_t> output_of(ValueId v) const;
  Result<void> lower_op(OpId op);
  uint32_t add_buffer(runtime::Buffer buffer, ExprRef bytes);
  void copy_to_output(ValueId v, uint32_t output);
  /// CUDA: what a kernel does while the launch before it may still run, and the wait for that one.
  std::string start_early() const;
  std::string prefetches() const;
  /// ", const f16* a0, f16* a1": the arguments as a CUDA kernel declares them.
  std::string parameters() const;
  CppNames functor_names(const std::function<std::string(int64_t)>& index) const;
  /// The head of a functor's type: the members that its body needs, which functor_value() fills in.
  std::string functor_members(const std::string& name, ExprRef body);
  void plan_memory();
  std::vector<std::map<std::string, int64_t, std::less<>>> judged_shapes() const;
  void add_bucket_table();
  void add_limits();
  bool fits_by_tokens(ExprRef count) const;
  void add_bind();
  std::string unique_kernel(const std::string& base, const std::string& op, const std::string& text, const LaunchSize& size, bool starts_early);
  ExprRef traffic(const std::vector<uint32_t>& buffers) const;

  WeightPool& weights_;
  LowerOptions options_;
  Lowered out_;
  Sizes sizes_;
  std::vector<std::string> symbols_;                  // their names
  std::set<ExprRef> growing_;                         // restated, and proved to grow
  std::map<uint32_t, uint32_t> buffers_;              // value -> buffer
  std::map<std::pair<uint32_t, std::string>, uint32_t> in_layout_;  // weight, layout -> buffer
  std::vector<ExprRef> bytes_;                        // of each buffer
  std::vector<std::pair<int, int>> lifetime_;         // first write, last use of each buffer, by launch
  std::map<std::string, uint32_t> kernel_by_text_;
  std::map<std::string, int> names_;
  std::map<uint32_t, uint32_t> output_copies_;        // output -> buffer of its copy
  bool misplaced_ = false;                            // a launch of one form of the graph is none of the other's
  bool too_deep_ = false;                             // a program needs more than the runtime's stack
  ExprRef bucket_symbol_ = nullptr;
  int64_t longest_ = 0;
  int64_t most_tokens_ = 0;                           // of the bucket that is lowered; 0: any
  const Graph* other_form_ = nullptr;                 // of the graph, while buckets are lowered
  std::map<std::string, int> place_of_;               // of each launch, by name, where tokens are any
  // the launch being written
  OpId op_;
  std::vector<ValueId> args_;
  size_t reads_ = 0;
  std::map<std::string, std::vector<size_t>> functor_args_;   // arguments that each functor of it holds
};

// One emitter per template; each writes one launch.
Result<void> emit_pointwise(Lowering& l, OpId op);
Result<void> emit_reduce(Lowering& l, OpId op);
Result<void> emit_cumsum(Lowering& l, OpId op);
Result<void> emit_matmul(Lowering& l, OpId op);
Result<void> emit_softmax(Lowering& l, OpId op);
Result<void> emit_layer_norm(Lowering& l, OpId op);
Result<void> emit_rms_norm(Lowering& l, OpId op);
Result<void> emit_residual_norm(Lowering& l, OpId op);
Result<void> emit_pointwise_norm(Lowering& l, OpId op);
Result<void> emit_gelu(Lowering& l, OpId op);
Result<void> emit_bias_gelu(Lowering& l, OpId op);
Result<void> emit_rope(Lowering& l, OpId op);
Result<void> emit_attention(Lowering& l, OpId op);

/// A product of reals: a library may compute it, so it touches no graph input and no output.
inline bool is_real_product(const Graph& graph, const ir::Op& op) {
  return op.kind == OpKind::matmul && is_float(graph.value(op.results[0]).type.dtype);
}

/// Rewrites what no launch can do as it is into ops that can be: products whose leading dims broadcast on both sides, products
/// of f64, products that read a graph input, epilogues that the arm does not take which is chosen for at most `most_tokens` tokens
/// (0: any number).
void legalise(Graph& graph, const TargetClass& target, int64_t most_tokens);

}  // namespace tfcc::codegen

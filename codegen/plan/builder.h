// SPDX-License-Identifier: Apache-2.0
// The plan that emissions become: buffers, kernels with their texts once, launches, lifetimes,
// sizes as programs.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "codegen/emit/emit.h"
#include "codegen/lower.h"
#include "codegen/plan/memory.h"
#include "codegen/plan/sizes.h"
#include "codegen/plan/weights.h"

namespace tfcc::codegen {

class PlanBuilder {
 public:
  PlanBuilder(const TargetClass& target, const Graph& graph, WeightPool& weights,
              const std::string& precision);

  /// The sizes that kernels find in n[...].
  const std::vector<std::string>& symbols() const { return symbols_; }

  /// Starts a bucket, to which launches are then added. Lifetimes are counted in launches of the
  /// first form of a graph: one that does the same in fewer launches does it where the first form
  /// does the last of them.
  void begin_bucket(runtime::Bucket bucket, bool first_form);
  /// Adds the launches of an op.
  void add(const EmitContext& context, OpId op, const Emission& emission);
  /// Copies v to a graph output that is not written in place.
  void add_output(const EmitContext& context, size_t output);
  /// Where the first form launches what computes this value; -1: nowhere.
  int place_of(const std::string& value) const;
  /// Puts the buckets into this order, given by their present places: the first whose limits hold
  /// is used.
  void order_buckets(const std::vector<size_t>& order);

  /// A size as a program of the runtime. One without a value makes finish() fail.
  runtime::SizeExpr encode(ExprRef e);
  /// The same of a number for reports, which may be too large.
  runtime::SizeExpr statistic(ExprRef e);
  void fail(ErrorCode code, std::string why);
  bool lacks_value(ExprRef e, std::string_view what);
  void limit(runtime::Check check) { out_.plan.limits.push_back(std::move(check)); }

  /// Gives the buffers of the arena their places.
  void place_buffers(const JudgedShapes& shapes);
  /// The kernel that writes sizes and the caller's pointers, if the target has one.
  void add_bind(size_t values);
  /// Whether launches captured at the caps of a bucket serve all runs below them.
  bool may_have_buckets() const { return out_.plan.no_bucket_table.empty(); }
  void no_buckets(const std::string& why);
  void set_bucket_table(runtime::BucketTable table) { out_.plan.bucket_table = std::move(table); }
  /// Errors: unsupported, internal.
  Result<Lowered> finish();

 private:
  struct Placed {
    ExprRef bytes;
    int first = -1, last = -1;  // launches that write it first and use it last
  };
  void add_kernel(const EmitContext& context, OpId op, const KernelLaunch& launch);
  void add_library(const EmitContext& context, OpId op, const LibraryLaunch& launch);
  /// `key` tells a copy to an output, which may have the name of a value, from the launch that
  /// computes that value.
  void add_launch(runtime::Launch launch, const std::string& key,
                  const std::vector<uint32_t>& reads, const std::vector<uint32_t>& writes);
  uint32_t buffer_of(const EmitContext& context, ValueId v);
  uint32_t packed(const EmitContext& context, const PackedWeight& weight);
  /// Of the launch of this name.
  uint32_t scratch_of(const EmitContext& context, const std::string& launch,
                      const Scratch& scratch);
  uint32_t add_buffer(runtime::Buffer buffer, ExprRef bytes);
  uint32_t kernel_of(const EmitContext& context, const KernelLaunch& launch, bool starts_early);
  runtime::KernelLaunch sized(const std::string& launch, uint32_t kernel,
                              std::vector<uint32_t> args, const LaunchSize& size);
  ExprRef traffic(const EmitContext& context, OpKind op, const std::vector<uint32_t>& all) const;
  void grows(ExprRef size, const std::string& what);

  const TargetClass& target_;
  ExprPool& pool_;
  std::string graph_name_;
  WeightPool& weights_;
  Lowered out_;
  Sizes sizes_;
  std::vector<std::string> symbols_;
  std::vector<Placed> buffers_;  // one for each of the plan's
  std::map<std::string, uint32_t>
      buffer_of_value_;  // by name, which a value has in every form of a graph
  std::map<std::pair<std::string, std::string>, uint32_t> packed_;  // weight, layout -> buffer
  std::map<std::string, uint32_t> scratch_;                         // by launch
  std::map<size_t, uint32_t> output_copies_;                        // output -> buffer of its copy
  std::map<std::string, uint32_t> kernel_by_text_;
  std::map<std::string, int> kernel_names_;
  std::map<std::string, int> place_of_;  // of each launch of the first form
  std::set<ExprRef> growing_;            // restated, and proved to grow
  bool first_form_ = true;
  std::optional<Error> problem_;  // the first that makes the plan impossible
};

}  // namespace tfcc::codegen

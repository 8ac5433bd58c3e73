// SPDX-License-Identifier: Apache-2.0
// The walk from ops to launches, and the bookkeeping of buffers, kernels and lifetimes.
#include "codegen/lower.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/bucket_table.h"
#include "codegen/lowering.h"
#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

std::string recipe_key(const ir::Constant& c) {
  std::string key = fmt::format("{}:{}:{}:{}:{}", static_cast<int>(c.source), static_cast<int>(c.dtype),
                                static_cast<const void*>(c.file ? c.file->data : nullptr), c.offset, c.seed);
  for (int64_t d : c.dims) key += fmt::format(",{}", d);
  for (const ir::Constant& part : c.parts) key += fmt::format("({}:{})", c.axis, recipe_key(part));
  if (c.bytes) key.append(reinterpret_cast<const char*>(c.bytes->data()), c.bytes->size());
  for (const ir::ConstantStep& s : c.steps) {
    key += fmt::format("|{}:{}", static_cast<int>(s.kind), static_cast<int>(s.dtype));
    for (int64_t n : s.numbers) key += fmt::format(",{}", n);
  }
  return key;
}

}  // namespace

uint32_t WeightPool::add(const std::string& name, const ir::Constant& constant) {
  std::string key = recipe_key(constant);
  auto it = std::find(keys_.begin(), keys_.end(), key);
  if (it != keys_.end()) return static_cast<uint32_t>(it - keys_.begin());
  keys_.push_back(std::move(key));
  entries_.push_back({name, constant});
  return static_cast<uint32_t>(entries_.size() - 1);
}

namespace {

// Every size can be a program, so that nothing after this needs to ask.
Result<void> check_sizes(const Graph& g) {
  auto check = [&](ExprRef e, const std::string& of) -> Result<void> {
    const std::string why = why_no_program(e);
    if (why.empty()) return {};
    return Error{ErrorCode::unsupported, fmt::format("a size of '{}' {}: it cannot be computed at run time; fix that dim at export", of, why)};
  };
  for (OpId o : g.order()) {
    for (ValueId v : g.op(o).results) {
      for (ExprRef d : g.value(v).type.dims) TFCC_TRY_VOID(check(d, g.value(v).name));
    }
  }
  for (const ir::SizeCheck& c : g.checks) TFCC_TRY_VOID(check(c.condition, c.message));
  return {};
}

}  // namespace

Result<Lowered> lower(const Graph& graph, const TargetClass& target, WeightPool& weights, const LowerOptions& options) {
  TFCC_TRY_VOID(check_sizes(graph));
  return Lowering(graph, target, weights, options).run();
}

Lowering::Lowering(const Graph& g, const TargetClass& t, WeightPool& weights, const LowerOptions& options)
    : graph(g), target(t), weights_(weights), options_(options), sizes_(g), symbols_(sizes_.names()) {}

Result<Lowered> Lowering::run() {
  out_.plan.family = target.family;
  out_.plan.name = to_string(target.family);
  out_.plan.precision = options_.precision;
  TFCC_TRY_VOID(lower_buckets());
  plan_memory();
  add_limits();
  if (cuda()) {
    add_bind();
    add_bucket_table();
  }
  if (misplaced_) return Error{ErrorCode::internal, "a launch for few tokens has no place among those for any number; report this model"};
  if (too_deep_) return Error{ErrorCode::unsupported, "a size is too deep an expression to be computed at run time; fix more dims at export"};
  if (pool().ill_typed) return Error{ErrorCode::internal, "an expression was built from operands of the wrong types while lowering"};
  return std::move(out_);
}

runtime::SizeExpr Lowering::encode(ExprRef e) {
  runtime::SizeExpr program = sizes_.program(e);
  too_deep_ |= !program.valid(symbols_.size());
  return program;
}

void Lowering::grows(ExprRef e, const std::string& what) {
  if (!cuda() || !out_.plan.no_bucket_table.empty()) return;
  ExprRef size = sizes_.restate(e);
  if (growing_.count(size)) return;
  if (!ir::never_decreases(size)) return no_buckets(fmt::format("{} is {}, which may shrink when a size grows", what, ir::print(size)));
  growing_.insert(size);
}

void Lowering::no_buckets(const std::string& why) {
  if (out_.plan.no_bucket_table.empty()) out_.plan.no_bucket_table = why;
}

void Lowering::add_bucket_table() {
  if (symbols_.size() > runtime::kMaxBucketSizes) no_buckets(fmt::format("the inputs have more than {} sizes", runtime::kMaxBucketSizes));
  if (out_.plan.no_bucket_table.empty()) out_.plan.bucket_table = bucket_table(graph, options_.lengths);
}

std::vector<int64_t> Lowering::sequence_buckets() {
  for (OpId o : graph.order()) {
    if (!cuda() || graph.op(o).kind != OpKind::attention) continue;
    ExprRef queries = dims(graph.op(o).operands[0])[1];
    if (queries->kind != ir::ExprKind::symbol) continue;
    bucket_symbol_ = queries;
    const std::optional<int64_t> most = pool().range(queries->name).max;
    // 0 is any length; a bucket above the largest length is never used.
    std::vector<int64_t> buckets = options_.lengths.empty() ? std::vector<int64_t>{16, 32} : options_.lengths;
    std::erase_if(buckets, [&](int64_t n) { return most && n >= *most; });
    buckets.push_back(0);
    return buckets;
  }
  return {0};
}

// Runs of few tokens come first in the plan, for the first bucket whose limits hold is used; they are lowered last, when the places
// of all launches are known.
Result<void> Lowering::lower_buckets() {
  const Graph few = form_of_few_rows();
  graph = few;
  legalise(graph, target, 0);
  const Graph any = graph;
  other_form_ = &few;
  const std::vector<int64_t> lengths = sequence_buckets();
  for (int64_t longest : lengths) TFCC_TRY_VOID(lower_bucket(longest));
  const auto arm = [&](OpId o, int64_t most) { return choose(describe(few, o, most), target).arm; };
  const auto wants = [&](OpId o) { return few.op(o).kind == OpKind::matmul && arm(o, kFewRows) != arm(o, 0); };
  if (std::none_of(few.order().begin(), few.order().end(), wants)) {
    other_form_ = nullptr;
    return {};
  }
  const auto count = static_cast<long>(out_.plan.buckets.size());
  most_tokens_ = kFewRows;
  graph = few;
  other_form_ = &any;
  for (int64_t longest : lengths) TFCC_TRY_VOID(lower_bucket(longest));
  other_form_ = nullptr;
  std::rotate(out_.plan.buckets.begin(), out_.plan.buckets.begin() + count, out_.plan.buckets.end());
  most_tokens_ = 0;
  graph = any;
  return {};
}

Graph Lowering::form_of_few_rows() const {
  Graph few = graph;
  if (target.has_wgmma && few.size_with(SizeRole::tokens)) legalise(few, target, kFewRows);
  return few;
}

// What a form computes at once lies where the other form does the last part of it. So one form runs in the order of the other, or
// what is dead in one when something is written might be alive in the other.
std::vector<OpId> Lowering::launch_order() const {
  std::vector<OpId> order = graph.order();
  if (most_tokens_ == 0) return order;
  const auto place = [&](OpId o) {
    const auto it = place_of_.find(graph.value(graph.op(o).results[0]).name);
    return it == place_of_.end() ? -1 : it->second;  // no launch of its own
  };
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) { return place(a) < place(b); });
  return order;
}

Result<void> Lowering::lower_bucket(int64_t longest) {
  longest_ = longest;
  const int64_t most_tokens = most_tokens_;
  runtime::Bucket bucket;
  bucket.name = longest ? fmt::format("s{}", longest) : "any";
  if (most_tokens) {
    const ir::SizeSymbol& tokens = *graph.size_with(SizeRole::tokens);
    ExprRef size = tokens.computed() ? tokens.formula : pool().symbol(tokens.name);
    bucket.name = longest ? fmt::format("s{}.t{}", longest, most_tokens) : fmt::format("t{}", most_tokens);
    bucket.limits.push_back({encode(ir::sub(integer(most_tokens), size)), false, fmt::format("{} must be at most {}", ir::print(size), most_tokens)});
  }
  if (longest) {
    bucket.limits.push_back({encode(ir::sub(integer(longest), bucket_symbol_)), false,
                             fmt::format("{} must be at most {}", ir::print(bucket_symbol_), longest)});
  }
  out_.plan.buckets.push_back(std::move(bucket));
  for (OpId o : launch_order()) {
    if (graph.op(o).kind != OpKind::constant) TFCC_TRY_VOID(lower_op(o));
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId v = graph.outputs[i].value;
    const runtime::Buffer& buffer = out_.plan.buffers[buffer_of(v)];
    if (buffer.place != runtime::BufferClass::output || buffer.index != i) copy_to_output(v, static_cast<uint32_t>(i));
  }
  return {};
}

std::optional<Lowering::RowSlice> Lowering::row_slice(ValueId v) const {
  const ir::Op* op = graph.def(v);
  if (!op || op->kind != OpKind::pointwise || op->operands.size() != 1 || graph.is_output(v)) return std::nullopt;
  for (OpId user : graph.value(v).users) {
    const ir::Op& reader = graph.op(user);
    if (reader.kind != OpKind::attention && reader.kind != OpKind::rope) return std::nullopt;
    // Only as q, k or v, or as what is rotated: tables and what a score loads go through a plain pointer.
    for (size_t i = reader.kind == OpKind::rope ? 1 : 3; i < reader.operands.size(); ++i) {
      if (reader.operands[i] == v) return std::nullopt;
    }
  }
  const ValueId base = op->operands[0];
  ExprRef body = op->as<ir::PointwiseAttrs>().body;
  const auto at = ir::indices_of(pool(), dims(v));
  if (body->kind != ir::ExprKind::load || at.size() != 3 || body->args.size() != 3 || !graph.def(base) || graph.is_constant(base) ||
      type(base).dtype != type(v).dtype) {
    return std::nullopt;
  }
  const bool same_rows = body->args[0] == at[0] && body->args[1] == at[1] && dims(base)[0] == dims(v)[0] && dims(base)[1] == dims(v)[1];
  const auto offset = ir::as_int(ir::sub(body->args[2], at[2])), stride = ir::as_int(dims(base)[2]);
  if (!same_rows || !offset || *offset < 0 || !stride) return std::nullopt;
  return RowSlice{base, *offset, *stride};
}

std::optional<int64_t> Lowering::largest(ExprRef size) const {
  if (auto n = ir::as_int(size)) return n;
  if (longest_ && size == bucket_symbol_) return longest_;
  if (size->kind == ir::ExprKind::symbol) return pool().range(size->name).max;
  return std::nullopt;
}

Error Lowering::unsupported(OpId o, const std::string& what) const {
  const ir::Op& op = graph.op(o);
  return {ErrorCode::unsupported, fmt::format("{} '{}': {}", ir::to_string(op.kind), graph.value(op.results[0]).name, what)};
}

Result<void> Lowering::lower_op(OpId o) {
  for (ValueId v : graph.op(o).results) {
    if (dims(v).size() > 8) return unsupported(o, "more than 8 dims are not supported");
  }
  switch (graph.op(o).kind) {
    case OpKind::constant: return {};
    case OpKind::pointwise:
      if (row_slice(graph.op(o).results[0])) return {};  // read in place
      return emit_pointwise(*this, o);
    case OpKind::reduce: return emit_reduce(*this, o);
    case OpKind::cumsum: return emit_cumsum(*this, o);
    case OpKind::matmul: return emit_matmul(*this, o);
    case OpKind::softmax: return emit_softmax(*this, o);
    case OpKind::layer_norm: return emit_layer_norm(*this, o);
    case OpKind::rms_norm: return emit_rms_norm(*this, o);
    case OpKind::residual_norm: return emit_residual_norm(*this, o);
    case OpKind::pointwise_norm: return emit_pointwise_norm(*this, o);
    case OpKind::gelu: return emit_gelu(*this, o);
    case OpKind::bias_gelu: return emit_bias_gelu(*this, o);
    case OpKind::rope: return emit_rope(*this, o);
    case OpKind::attention: return emit_attention(*this, o);
  }
  return unsupported(o, "no kernel");
}

// ---- buffers ----

namespace {

// A graph output is written in place if its op is a kernel (products touch no graph inputs and outputs) that no product reads.
std::optional<size_t> direct_output(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  if (!op || is_real_product(g, *op) || op->kind == OpKind::constant) return std::nullopt;
  for (OpId u : g.value(v).users) {
    if (is_real_product(g, g.op(u))) return std::nullopt;
  }
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    if (g.outputs[i].value == v) return i;
  }
  return std::nullopt;
}

}  // namespace

// The same in both forms: where one of them has a product, the value must not be the caller's.
std::optional<size_t> Lowering::output_of(ValueId v) const {
  const auto output = direct_output(graph, v);
  if (!output || other_form_ == nullptr) return output;
  const bool same = *output < other_form_->outputs.size() && other_form_->outputs[*output].value == v;
  return same && direct_output(*other_form_, v) ? output : std::nullopt;
}

uint32_t Lowering::buffer_of(ValueId v) {
  auto it = buffers_.find(v.value);
  if (it != buffers_.end()) return it->second;
  runtime::Buffer b;
  const ir::Value& value = graph.value(v);
  b.name = value.name;
  b.dtype = value.type.dtype;
  for (ExprRef d : value.type.dims) b.dims.push_back(encode(d));
  const auto& inputs = graph.inputs();
  const auto input = std::find(inputs.begin(), inputs.end(), v);
  if (input != inputs.end()) {
    b.place = runtime::BufferClass::input;
    b.index = static_cast<uint32_t>(input - inputs.begin());
  } else if (const ir::Constant* c = graph.constant(v)) {
    b.place = runtime::BufferClass::constant;
    b.index = weights_.add(value.name, *c);
  } else if (auto output = output_of(v)) {
    b.place = runtime::BufferClass::output;
    b.index = static_cast<uint32_t>(*output);
  } else {
    b.place = runtime::BufferClass::arena;  // the slot comes with plan_memory
  }
  const uint32_t id = add_buffer(std::move(b), ir::mul(count(v), integer(static_cast<int64_t>(size_of(value.type.dtype)))));
  buffers_[v.value] = id;
  return id;
}

uint32_t Lowering::add_buffer(runtime::Buffer buffer, ExprRef bytes) {
  out_.plan.buffers.push_back(std::move(buffer));
  bytes_.push_back(bytes);
  lifetime_.push_back({-1, -1});
  return static_cast<uint32_t>(out_.plan.buffers.size() - 1);
}

uint32_t Lowering::weight_in_layout(ValueId v, const std::string& layout, const std::function<void(ir::Constant&)>& change) {
  auto [it, added] = in_layout_.emplace(std::pair(v.value, layout), 0);
  if (!added) return it->second;
  ir::Constant c = *graph.constant(v);
  change(c);
  runtime::Buffer b;
  b.name = graph.value(v).name + "." + layout;
  b.dtype = c.result_dtype();
  for (int64_t d : c.result_dims()) b.dims.push_back(encode(integer(d)));
  b.place = runtime::BufferClass::constant;
  b.index = weights_.add(b.name, c);
  return it->second = add_buffer(std::move(b), integer(c.element_count() * static_cast<int64_t>(size_of(b.dtype))));
}

void Lowering::add_launch(runtime::Launch launch, const std::vector<uint32_t>& reads, const std::vector<uint32_t>& writes, const std::string& copy) {
  auto& launches = out_.plan.buckets.back().launches;
  // What a form does in fewer launches it does where another form does the last of them.
  int position = static_cast<int>(launches.size());
  const std::string key = copy + launch.name;
  if (most_tokens_ == 0) place_of_.emplace(key, position);
  else if (const auto it = place_of_.find(key); it != place_of_.end()) position = it->second;
  else misplaced_ = true;
  for (uint32_t b : writes) lifetime_[b].first = lifetime_[b].first < 0 ? position : std::min(lifetime_[b].first, position);
  for (const auto* list : {&reads, &writes}) {
    for (uint32_t b : *list) lifetime_[b].second = std::max(lifetime_[b].second, position);
  }
  launches.push_back(std::move(launch));
}

// Each operand read once and each result written once; a table is not read further than what is gathered from it, a weight is.
ExprRef Lowering::traffic(const std::vector<uint32_t>& buffers) const {
  ExprRef largest = integer(0), sum = integer(0);
  for (uint32_t b : buffers) {
    if (out_.plan.buffers[b].place != runtime::BufferClass::constant) largest = ir::max(largest, bytes_[b]);
  }
  for (uint32_t b : buffers) {
    const bool table = out_.plan.buffers[b].place == runtime::BufferClass::constant && graph.op(op_).kind != OpKind::matmul;
    sum = ir::add(sum, table ? ir::min(bytes_[b], largest) : bytes_[b]);
  }
  return sum;
}

void Lowering::explain(size_t first, const std::string& why, const char* file, int line) {
  auto& launches = out_.plan.buckets.back().launches;
  for (size_t i = first; i < launches.size(); ++i) launches[i].why = fmt::format("{}\ndecided at {}:{}", why, file, line);
}

ExprRef Lowering::ceil_div(ExprRef a, int64_t b) const { return ir::div(ir::add(a, integer(b - 1)), integer(b)); }

ExprRef Lowering::rows(ValueId v) const {
  const auto& d = dims(v);
  return d.empty() ? integer(1) : ir::element_count(pool(), std::vector<ExprRef>(d.begin(), d.end() - 1));
}

}  // namespace tfcc::codegen

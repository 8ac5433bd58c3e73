// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace tfcc::codegen {

PlanBuilder::PlanBuilder(const TargetClass& target, const Graph& graph, WeightPool& weights,
                         const std::string& precision)
    : target_(target),
      pool_(graph.pool()),
      graph_name_(graph.name),
      weights_(weights),
      sizes_(graph),
      symbols_(sizes_.names()) {
  out_.plan.family = target.family;
  out_.plan.name = to_string(target.family);
  out_.plan.precision =
      f32_products(precision) != F32Products::exact ? "f32" : precision;  // until something is
}

Result<Lowered> PlanBuilder::finish() {
  if (problem_) return *std::move(problem_);
  return std::move(out_);
}

void PlanBuilder::fail(ErrorCode code, std::string why) {
  if (!problem_) problem_ = Error{code, std::move(why)};
}

// ---- sizes ----

bool PlanBuilder::lacks_value(ExprRef e, std::string_view what) {
  const ir::Poison why = ir::poison_of(e);
  if (why == ir::Poison::none) return false;
  fail(ErrorCode::shape, fmt::format("{}: {}", what, ir::to_string(why)));
  return true;
}

runtime::SizeExpr PlanBuilder::statistic(ExprRef e) {
  return encode(ir::poison_of(e) == ir::Poison::none ? e : pool_.integer(INT64_MAX));
}

runtime::SizeExpr PlanBuilder::encode(ExprRef e) {
  if (lacks_value(e, "a size of a launch")) return {};
  runtime::SizeExpr program = sizes_.program(e);
  if (!program.valid(symbols_.size()))  // it needs more than the runtime's stack
    fail(ErrorCode::unsupported,
         "a size is too deep an expression to be computed at run time; fix more dims at export");
  return program;
}

void PlanBuilder::no_buckets(const std::string& why) {
  if (may_have_buckets()) out_.plan.no_bucket_table = why;
}

void PlanBuilder::grows(ExprRef e, const std::string& what) {
  if (!target_.cuda() || !may_have_buckets()) return;
  ExprRef size = sizes_.restate(e);
  if (growing_.count(size)) return;
  if (!ir::never_decreases(size))
    return no_buckets(
        fmt::format("{} is {}, which may shrink when a size grows", what, ir::print(size)));
  growing_.insert(size);
}

// ---- buffers ----

uint32_t PlanBuilder::add_buffer(runtime::Buffer buffer, ExprRef bytes) {
  if (lacks_value(bytes, "the bytes of '" + buffer.name + "'")) bytes = pool_.integer(0);
  out_.plan.buffers.push_back(std::move(buffer));
  buffers_.push_back({bytes});
  return static_cast<uint32_t>(buffers_.size() - 1);
}

uint32_t PlanBuilder::buffer_of(const EmitContext& c, ValueId v) {
  const ir::Value& value = c.graph.value(v);
  const auto it = buffer_of_value_.find(value.name);
  if (it != buffer_of_value_.end()) return it->second;
  runtime::Buffer b;
  b.name = value.name;
  b.dtype = value.type.dtype;
  for (ExprRef d : value.type.dims) b.dims.push_back(encode(d));
  if (const auto input = c.callers.input_of(v)) {
    b.place = runtime::BufferClass::input;
    b.index = static_cast<uint32_t>(*input);
  } else if (const auto state = c.callers.state_of(v)) {
    b.place = runtime::BufferClass::state;
    b.index = static_cast<uint32_t>(*state);
  } else if (const ir::Constant* constant = c.graph.constant(v)) {
    b.place = runtime::BufferClass::constant;
    b.index = weights_.add(value.name, *constant);
  } else if (const auto output = c.callers.output_of(v)) {
    b.place = runtime::BufferClass::output;
    b.index = static_cast<uint32_t>(*output);
  } else {
    b.place = runtime::BufferClass::arena;  // the slot comes with place_buffers
  }
  ExprRef count = Sizes::at_bounds(c.graph, c.count(v));
  const uint32_t id = add_buffer(
      std::move(b), ir::mul(count, c.integer(static_cast<int64_t>(size_of(value.type.dtype)))));
  buffer_of_value_[value.name] = id;
  return id;
}

uint32_t PlanBuilder::packed(const EmitContext& c, const PackedWeight& w) {
  auto [it, added] = packed_.emplace(std::pair(c.graph.value(w.weight).name, w.layout), 0);
  if (!added) return it->second;
  ir::Constant constant = *c.graph.constant(w.weight);
  w.change(constant);
  runtime::Buffer b;
  b.name = c.graph.value(w.weight).name + "." + w.layout;
  b.dtype = constant.result_dtype();
  for (int64_t d : constant.result_dims()) b.dims.push_back(encode(c.integer(d)));
  b.place = runtime::BufferClass::constant;
  b.index = weights_.add(b.name, constant);
  return it->second = add_buffer(std::move(b), c.integer(constant.element_count() *
                                                         static_cast<int64_t>(size_of(b.dtype))));
}

uint32_t PlanBuilder::scratch_of(const EmitContext& c, const std::string& launch,
                                 const Scratch& scratch) {
  auto [it, added] = scratch_.emplace(launch, 0);
  if (!added) return it->second;
  runtime::Buffer b;
  b.name = launch + ".scratch";
  b.dtype = scratch.dtype;
  b.dims = {encode(scratch.count)};
  b.place = runtime::BufferClass::arena;
  return it->second = add_buffer(std::move(b),
                                 ir::mul(Sizes::at_bounds(c.graph, scratch.count),
                                         c.integer(static_cast<int64_t>(size_of(scratch.dtype)))));
}

// Each operand read once and each result written once; a table is not read further than what is
// gathered from it, a weight is.
ExprRef PlanBuilder::traffic(const EmitContext& c, OpKind op,
                             const std::vector<uint32_t>& all) const {
  const auto is_constant = [&](uint32_t b) {
    return out_.plan.buffers[b].place == runtime::BufferClass::constant;
  };
  ExprRef largest = c.integer(0), sum = c.integer(0);
  for (uint32_t b : all) {
    if (!is_constant(b)) largest = ir::max(largest, buffers_[b].bytes);
  }
  for (uint32_t b : all) {
    const bool table = is_constant(b) && op != OpKind::matmul;
    sum = ir::add(sum, table ? ir::min(buffers_[b].bytes, largest) : buffers_[b].bytes);
  }
  return sum;
}

// ---- launches ----

void PlanBuilder::begin_bucket(runtime::Bucket bucket, bool first_form) {
  out_.plan.buckets.push_back(std::move(bucket));
  first_form_ = first_form;
}

void PlanBuilder::order_buckets(const std::vector<size_t>& order) {
  std::vector<runtime::Bucket> ordered;
  for (size_t i : order) ordered.push_back(std::move(out_.plan.buckets[i]));
  out_.plan.buckets = std::move(ordered);
}

int PlanBuilder::place_of(const std::string& value) const {
  const auto it = place_of_.find(value);
  return it == place_of_.end() ? -1 : it->second;
}

void PlanBuilder::add_launch(runtime::Launch launch, const std::string& key,
                             const std::vector<uint32_t>& reads,
                             const std::vector<uint32_t>& writes) {
  auto& launches = out_.plan.buckets.back().launches;
  int position = static_cast<int>(launches.size());
  if (first_form_) place_of_.emplace(key, position);
  else position = place_of(key);
  if (position < 0)
    fail(ErrorCode::internal,
         "a launch for few tokens has no place among those for any number; report this model");
  for (uint32_t b : writes)
    buffers_[b].first = buffers_[b].first < 0 ? position : std::min(buffers_[b].first, position);
  for (const auto* list : {&reads, &writes}) {
    for (uint32_t b : *list) buffers_[b].last = std::max(buffers_[b].last, position);
  }
  launches.push_back(std::move(launch));
}

void PlanBuilder::add(const EmitContext& c, OpId op, const Emission& emission) {
  if (!emission.no_buckets.empty()) no_buckets(emission.no_buckets);
  for (const Growth& g : emission.grows) grows(g.size, g.what);
  const size_t first = out_.plan.buckets.back().launches.size();
  for (const auto& launch : emission.launches) {
    if (const auto* kernel = std::get_if<KernelLaunch>(&launch)) add_kernel(c, op, *kernel);
    else add_library(c, op, std::get<LibraryLaunch>(launch));
  }
  auto& launches = out_.plan.buckets.back().launches;
  for (size_t i = first; i < launches.size() && emission.reason; ++i) {
    launches[i].why = fmt::format("{}\ndecided at {}:{}", emission.reason->text,
                                  emission.reason->file, emission.reason->line);
  }
}

uint32_t PlanBuilder::kernel_of(const EmitContext& c, const KernelLaunch& k, bool starts_early) {
  // Without a name: what kernels share.
  const std::string text = fmt::format("{}\n{}", k.size.cluster, k.stub.print("", k.size.threads));
  auto [it, added] = kernel_by_text_.emplace(text, static_cast<uint32_t>(out_.kernels.size()));
  if (!added) return it->second;
  const int number = kernel_names_[k.kernel]++;
  const std::string name = number == 0 ? k.kernel : fmt::format("{}_{}", k.kernel, number);
  out_.kernels.push_back(
      {name, fmt::format("// {} of graph {}\n", k.stub.function(), c.graph.name) +
                 k.stub.print(name, k.size.threads)});
  const bool cuda = target_.cuda();
  out_.plan.kernels.push_back({name, k.stub.function(), cuda ? k.size.threads : 0,
                               cuda ? k.size.shared_bytes : 0, cuda && starts_early,
                               cuda ? k.size.cluster : 0});
  return it->second;
}

runtime::KernelLaunch PlanBuilder::sized(const std::string& launch, uint32_t kernel,
                                         std::vector<uint32_t> args, const LaunchSize& size) {
  runtime::KernelLaunch k;
  k.kernel = kernel;
  k.args = std::move(args);
  if (target_.cuda()) {
    for (ExprRef g : size.grid) {
      grows(g, "the grid of '" + launch + "'");
      k.grid.push_back(encode(g));
    }
    k.resident = size.resident;
  } else {
    k.work = encode(size.work);
    k.grain = size.grain;
  }
  return k;
}

void PlanBuilder::add_kernel(const EmitContext& c, OpId o, const KernelLaunch& launch) {
  const ir::Op& op = c.graph.op(o);
  runtime::Launch out;
  out.name = c.graph.value(op.results[0]).name;
  out.ops = {std::string(ir::to_string(op.kind))};
  out.ops.insert(out.ops.end(), launch.parts.begin(), launch.parts.end());
  std::vector<uint32_t> reads, writes, args;
  for (ValueId v : launch.stub.reads()) reads.push_back(buffer_of(c, v));
  for (ValueId v : launch.stub.writes()) writes.push_back(buffer_of(c, v));
  args = reads;
  args.insert(args.end(), writes.begin(), writes.end());
  for (const PackedWeight& w : launch.packed) {
    reads.push_back(packed(c, w));
    args.push_back(reads.back());
  }
  if (launch.scratch) args.push_back(scratch_of(c, out.name, *launch.scratch));
  out_.plan.counters = std::max(out_.plan.counters, launch.counters);
  if (launch.f32 != F32Products::exact) out_.plan.precision = to_string(launch.f32);
  const uint32_t kernel = kernel_of(c, launch, true);
  TFCC_CHECK((launch.maps.empty() || target_.has_tma) && "the target has no TMA");
  TFCC_CHECK((launch.size.cluster <= 1 || target_.has_clusters) && "the target has no clusters");
  std::vector<runtime::TensorMap> maps;
  for (const MatrixView& m : launch.maps) {
    reads.push_back(buffer_of(c, m.value));
    maps.push_back({reads.back(), encode(m.rows), encode(m.columns), m.box_rows, m.box_columns});
  }
  out.kernel = sized(out.name, kernel, std::move(args), launch.size);
  out.kernel->maps = std::move(maps);
  if (const auto& t = launch.tiles)
    out.kernel->tiles =
        runtime::TileChoice{encode(t->rows), static_cast<uint64_t>(t->columns), t->tiles, t->what};
  out.flops = statistic(launch.flops);
  std::vector<uint32_t> all = reads;
  all.insert(all.end(), writes.begin(), writes.end());
  if (launch.of_states)
    std::erase_if(
        all, [&](uint32_t b) { return out_.plan.buffers[b].place == runtime::BufferClass::state; });
  if (launch.of_constants)
    std::erase_if(all, [&](uint32_t b) {
      return out_.plan.buffers[b].place == runtime::BufferClass::constant;
    });
  ExprRef bytes = traffic(c, op.kind, all);
  for (ExprRef part : {launch.of_states, launch.of_constants})
    if (part) bytes = ir::add(bytes, part);
  out.bytes = statistic(bytes);
  if (launch.makes)
    out.makes =
        static_cast<uint32_t>(std::find(symbols_.begin(), symbols_.end(), launch.makes->name) -
                              symbols_.begin()) +
        1;
  std::string key = out.name;
  if (launch.scratch) writes.push_back(scratch_of(c, key, *launch.scratch));
  add_launch(std::move(out), key, reads, writes);
}

void PlanBuilder::add_library(const EmitContext& c, OpId o, const LibraryLaunch& launch) {
  runtime::MatmulLaunch g;
  g.a = buffer_of(c, launch.a);
  g.b = buffer_of(c, launch.b);
  g.d = buffer_of(c, launch.d);
  std::vector<uint32_t> reads{g.a, g.b};
  g.has_bias = launch.bias.has_value();
  if (launch.bias) reads.push_back(g.bias = buffer_of(c, *launch.bias));
  g.m = encode(launch.m);
  g.n = encode(launch.n);
  g.k = encode(launch.k);
  g.batch = encode(launch.batch);
  g.stride_a = encode(launch.stride_a);
  g.stride_b = encode(launch.stride_b);
  g.trans_a = launch.trans_a;
  g.trans_b = launch.trans_b;
  g.alpha = static_cast<float>(launch.alpha);
  g.in_order = launch.in_order;
  g.side_by_side = launch.side_by_side;
  g.tf32 = c.rules.f32 == F32Products::tf32 && !g.in_order &&
           c.type(launch.a).dtype == DType::f32 && c.type(launch.b).dtype == DType::f32;
  if (g.tf32) out_.plan.precision = runtime::kTf32;
  runtime::Launch out;
  out.name = c.graph.value(launch.d).name;
  out.ops = {std::string(ir::to_string(c.graph.op(o).kind))};
  out.flops = statistic(
      ir::mul(ir::mul(c.integer(2), launch.batch), ir::mul(ir::mul(launch.m, launch.n), launch.k)));
  std::vector<uint32_t> all = reads;
  all.push_back(g.d);
  out.bytes = statistic(traffic(c, OpKind::matmul, all));
  const uint32_t d = g.d;
  out.matmul = std::move(g);
  std::string key = out.name;
  add_launch(std::move(out), key, reads, {d});
}

void PlanBuilder::add_output(const EmitContext& c, size_t output) {
  const ValueId v = c.graph.outputs[output].value;
  const uint32_t from = buffer_of(c, v);
  if (const runtime::Buffer& b = out_.plan.buffers[from];
      b.place == runtime::BufferClass::output && b.index == output)
    return;
  auto [it, added] = output_copies_.emplace(output, 0);
  if (added) {
    runtime::Buffer b = out_.plan.buffers[from];
    b.place = runtime::BufferClass::output;
    b.name = c.graph.outputs[output].name;
    b.index = static_cast<uint32_t>(output);
    it->second = add_buffer(std::move(b), buffers_[from].bytes);
  }
  const uint32_t to = it->second;
  const KernelLaunch copy = copy_of(c, v);
  runtime::Launch out;
  out.name = c.graph.outputs[output].name;
  out.ops = {"pointwise"};
  grows(c.count(v), "output '" + out.name + "'");
  out.kernel = sized(out.name, kernel_of(c, copy, false), {from, to}, copy.size);
  out.flops = statistic(c.integer(0));
  out.bytes = statistic(ir::mul(c.integer(2), buffers_[from].bytes));
  std::string key = "copy to " + out.name;
  add_launch(std::move(out), key, {from}, {to});
}

void PlanBuilder::add_bind(size_t values) {
  const std::string name = "tfcc_bind";
  out_.plan.has_bind = true;
  out_.plan.bind = static_cast<uint32_t>(out_.plan.kernels.size());
  out_.kernels.push_back(
      {name, fmt::format("// bind of graph {}\n", graph_name_) + bind_source(name, values)});
  out_.plan.kernels.push_back({name, "bind", 128, 0});
}

// ---- memory ----

void PlanBuilder::place_buffers(const JudgedShapes& shapes) {
  constexpr size_t kLongestOffset = 200;  // codes of a program
  std::vector<ArenaBuffer> arena;
  std::vector<uint32_t> ids;
  for (uint32_t b = 0; b < buffers_.size(); ++b) {
    runtime::Buffer& buffer = out_.plan.buffers[b];
    const Placed& p = buffers_[b];
    if (buffer.place != runtime::BufferClass::arena || p.first < 0) continue;
    buffer.first_use = static_cast<uint32_t>(p.first);
    buffer.last_use = static_cast<uint32_t>(p.last);
    arena.push_back({p.first, p.last, p.bytes, sizes_.restate(p.bytes)});
    ids.push_back(b);
    grows(arena.back().restated, "buffer '" + buffer.name + "'");
  }
  const auto short_enough = [&](ExprRef offset, ExprRef total) {
    if (ir::poison_of(offset) != ir::Poison::none || ir::poison_of(total) != ir::Poison::none)
      return false;
    const runtime::SizeExpr program = sizes_.restated_program(offset);
    return program.code.size() <= kLongestOffset && program.valid(symbols_.size()) &&
           sizes_.restated_program(total).valid(symbols_.size());
  };
  const ArenaLayout layout = plan_memory(arena, shapes, pool_, sizes_.pool(), short_enough);
  out_.plan.live_bytes = statistic(layout.live_bytes);
  if (arena.empty() || lacks_value(layout.total, "the memory of all values together")) return;
  out_.plan.slots.push_back(encode(layout.total));
  for (size_t i = 0; i < arena.size(); ++i) {
    runtime::Buffer& buffer = out_.plan.buffers[ids[i]];
    buffer.index = 0;
    if (layout.offsets[i]) {
      buffer.offset = sizes_.restated_program(layout.offsets[i]);
      grows(layout.offsets[i], "the place of buffer '" + buffer.name + "'");
    } else {
      buffer.index = static_cast<uint32_t>(out_.plan.slots.size());
      out_.plan.slots.push_back(encode(aligned_bytes(sizes_.pool(), arena[i].restated)));
    }
  }
}

}  // namespace tfcc::codegen

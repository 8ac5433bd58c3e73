// SPDX-License-Identifier: Apache-2.0
// The walk from ops to launches, and the bookkeeping of buffers, kernels and lifetimes.
#include "codegen/lower.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/lowering.h"

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

Result<Lowered> lower(const Graph& graph, Family family, WeightPool& weights, const LowerOptions& options) {
  Graph legal = graph;
  legalise(legal);
  return Lowering(legal, family, weights, options).run();
}

Lowering::Lowering(const Graph& g, Family f, WeightPool& weights, const LowerOptions& options)
    : graph(g), family(f), weights_(weights), options_(options), sizes_(size_symbols(g)), symbols_(sizes_.names) {}

Result<Lowered> Lowering::run() {
  out_.plan.family = cuda() ? "cuda" : "cpu";
  out_.plan.precision = options_.precision;
  if (cuda()) out_.plan.lengths = options_.lengths;
  for (int64_t longest : sequence_buckets()) TFCC_TRY_VOID(lower_bucket(longest));
  plan_memory();
  add_limits();
  if (cuda()) add_bind();
  if (pool().ill_typed) return Error{ErrorCode::internal, "an expression was built from operands of the wrong types while lowering"};
  return std::move(out_);
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

Result<void> Lowering::lower_bucket(int64_t longest) {
  longest_ = longest;
  runtime::Bucket bucket;
  bucket.name = longest ? fmt::format("s{}", longest) : "any";
  if (longest) {
    bucket.limits.push_back({encode(ir::sub(integer(longest), bucket_symbol_)), false,
                             fmt::format("{} must be at most {}", ir::print(bucket_symbol_), longest)});
  }
  out_.plan.buckets.push_back(std::move(bucket));
  for (OpId o : graph.order()) {
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
    case OpKind::matmul:
      if (!is_library_product(graph, graph.op(o))) return emit_matmul(*this, o);
      if (!is_weight_product(o)) gemm(o);
      else if (!is_in_gelu(o)) weight_product(o, std::nullopt);
      return {};
    case OpKind::softmax: return emit_softmax(*this, o);
    case OpKind::layer_norm: return emit_layer_norm(*this, o);
    case OpKind::rms_norm: return emit_rms_norm(*this, o);
    case OpKind::residual_norm: return emit_residual_norm(*this, o);
    case OpKind::pointwise_norm: return emit_pointwise_norm(*this, o);
    case OpKind::gelu:
    case OpKind::bias_gelu:
      if (auto product = product_before_gelu(o)) {
        weight_product(*product, o);
        return {};
      }
      return graph.op(o).kind == OpKind::gelu ? emit_gelu(*this, o) : emit_bias_gelu(*this, o);
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
  if (!op || is_library_product(g, *op) || op->kind == OpKind::constant) return std::nullopt;
  for (OpId u : g.value(v).users) {
    if (is_library_product(g, g.op(u))) return std::nullopt;
  }
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    if (g.outputs[i].value == v) return i;
  }
  return std::nullopt;
}

}  // namespace

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
  } else if (auto output = direct_output(graph, v)) {
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

void Lowering::add_launch(runtime::Launch launch, const std::vector<uint32_t>& reads, const std::vector<uint32_t>& writes) {
  auto& launches = out_.plan.buckets.back().launches;
  const int position = static_cast<int>(launches.size());
  for (uint32_t b : writes) lifetime_[b].first = lifetime_[b].first < 0 ? position : lifetime_[b].first;
  for (const auto* list : {&reads, &writes}) {
    for (uint32_t b : *list) lifetime_[b].second = position;
  }
  launches.push_back(std::move(launch));
}

// Each operand read once and each result written once; a table is not read further than what is gathered from it.
ExprRef Lowering::traffic(const std::vector<uint32_t>& buffers) const {
  ExprRef largest = integer(0), sum = integer(0);
  for (uint32_t b : buffers) {
    if (out_.plan.buffers[b].place != runtime::BufferClass::constant) largest = ir::max(largest, bytes_[b]);
  }
  for (uint32_t b : buffers) {
    const bool table = out_.plan.buffers[b].place == runtime::BufferClass::constant;
    sum = ir::add(sum, table ? ir::min(bytes_[b], largest) : bytes_[b]);
  }
  return sum;
}

// ---- kernel launches ----

void Lowering::begin(OpId op, std::vector<ValueId> reads, std::vector<ValueId> writes) {
  op_ = op;
  args_ = std::move(reads);
  reads_ = args_.size();
  args_.insert(args_.end(), writes.begin(), writes.end());
  for (ValueId v : args_) buffer_of(v);
}

std::string Lowering::to_cpp(DType t) { return t == DType::boolean ? "b8" : tfcc::to_string(t); }

bool Lowering::is_io(size_t k) const {
  const auto place = out_.plan.buffers[buffers_.at(args_[k].value)].place;
  return place == runtime::BufferClass::input || place == runtime::BufferClass::output;
}

bool Lowering::any_io() const {
  for (size_t k = 0; k < args_.size(); ++k) {
    if (is_io(k)) return true;
  }
  return false;
}

bool Lowering::reads_io(const std::vector<ValueId>& operands) const {
  return std::any_of(operands.begin(), operands.end(), [&](ValueId v) { return is_io(arg_of(v)); });
}

size_t Lowering::arg_of(ValueId v) const {
  auto it = std::find(args_.begin(), args_.begin() + static_cast<long>(reads_), v);
  TFCC_CHECK(it != args_.end());
  return static_cast<size_t>(it - args_.begin());
}

std::string Lowering::pointer(size_t k) const {
  const std::string t = storage(args_[k]);
  if (cuda()) return fmt::format("{}a{}", is_io(k) ? "*" : "", k);
  return fmt::format("({}{}*)a[{}]", k < reads_ ? "const " : "", t, k);
}

std::string Lowering::include(const std::string& op) const {
  return cuda() ? fmt::format("#include \"cuda/{}.cuh\"\n", op) : fmt::format("#include \"cpu/{}.h\"\nnamespace {{\n", op);
}

std::string Lowering::header(uint32_t threads) const {
  if (!cuda()) return "}  // namespace\nTFCC_KERNEL(@NAME@) {\n  ";
  std::string params;
  for (size_t k = 0; k < args_.size(); ++k) {
    const char* constness = k < reads_ ? "const " : "";
    params += fmt::format(", {}{}* {}a{}", constness, storage(args_[k]), is_io(k) ? "const* " : "", k);
  }
  return fmt::format("TFCC_KERNEL({}, @NAME@{}) {{\n  {}", threads, params, start_early());
}

std::string Lowering::start_early() const {
  constexpr int64_t kLargest = 32 << 10;                   // larger constants are tables, of which a kernel reads few rows
  std::string text;
  for (size_t k = 0; k < reads_; ++k) {
    const auto bytes = known(bytes_[buffers_.at(args_[k].value)]);
    if (graph.is_constant(args_[k]) && bytes && *bytes <= kLargest) text += fmt::format("prefetch(a{}, {});\n  ", k, *bytes);
  }
  return text + "wait_for_predecessor();\n  ";
}

std::string Lowering::size(ExprRef e) const {
  CppNames names;
  names.symbol = [this](const std::string& s) {
    return fmt::format("n[{}]", std::find(symbols_.begin(), symbols_.end(), s) - symbols_.begin());
  };
  return cpp_expr(e, names);
}

std::string Lowering::sizes(const std::vector<ExprRef>& list) const {
  std::string s = "{";
  for (size_t k = 0; k < list.size(); ++k) s += (k ? ", " : "") + size(list[k]);
  return s + "}";
}

CppNames Lowering::functor_names(const std::function<std::string(int64_t)>& index) const {
  CppNames names;
  names.index = index;
  names.symbol = [this](const std::string& s) {
    const auto i = std::find(symbols_.begin(), symbols_.end(), s) - symbols_.begin();
    return cuda() ? fmt::format("(idx)n[{}]", i) : fmt::format("n[{}]", i);
  };
  names.pointer = [this](int64_t slot) { return fmt::format("a{}", arg_of(graph.op(op_).operands[slot])); };
  names.dims = [this](int64_t slot) { return dims(graph.op(op_).operands[slot]); };
  return names;
}

std::string Lowering::functor_members(const std::string& name, ExprRef body) {
  std::string text = fmt::format("struct {} {{\n  const i64* n; u32* flags;", name);
  std::vector<size_t>& used = functor_args_[name];
  used.clear();
  ir::for_each_node(body, [&](ExprRef n) {
    if (n->kind == ir::ExprKind::load) used.push_back(arg_of(graph.op(op_).operands[n->value]));
  });
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (size_t k : used) text += fmt::format(" const {}* a{};", storage(args_[k]), k);
  return text + "\n";
}

namespace {

std::string cpp_type(Scalar s) {
  const char* const kTypes[] = {"i64", "f32", "f64", "bool"};
  return kTypes[static_cast<int>(s)];
}

}  // namespace

std::string Lowering::functor(const std::string& name, const std::string& params, ExprRef body, Scalar result,
                              const std::function<std::string(int64_t)>& index) {
  return functor_members(name, body) + fmt::format("  TFCC_FN {} operator()({}) const {{ {} }}\n}};\n", cpp_type(result), params,
                                                   cpp_body(body, functor_names(index)));
}

std::string Lowering::row_functor(const std::string& name, ExprRef body, int64_t column, Scalar result) {
  const CppRowBody parts = cpp_row_body(body, column, functor_names([](int64_t k) { return "i" + std::to_string(k); }));
  std::string params;
  for (int64_t k = 0; k < column; ++k) params += fmt::format("{}[[maybe_unused]] idx i{}", k ? ", " : "", k);
  return functor_members(name, body) +
         fmt::format("  TFCC_FN auto operator()({}) const {{\n    {}\n    return [=, *this]([[maybe_unused]] idx i{}) -> {} {{ {} }};\n  }}\n}};\n", params,
                     parts.row, column, cpp_type(result), parts.column);
}

std::string Lowering::functor_value(const std::string& name) const {
  std::string s = name + "{n, flags";
  for (size_t k : functor_args_.at(name)) s += ", " + pointer(k);
  return s + "}";
}

std::string Lowering::unique_kernel(const std::string& base, const std::string& op, const std::string& text, const LaunchSize& size,
                                    bool starts_early) {
  auto it = kernel_by_text_.find(text);
  if (it != kernel_by_text_.end()) return out_.kernels[it->second].name;
  const int number = names_[base]++;
  const std::string name = number == 0 ? base : fmt::format("{}_{}", base, number);
  std::string source = text;
  for (size_t at; (at = source.find("@NAME@")) != std::string::npos;) source.replace(at, 6, name);
  const std::string origin = fmt::format("// {} of graph {}\n", op, graph.name);
  kernel_by_text_[text] = static_cast<uint32_t>(out_.kernels.size());
  out_.kernels.push_back({name, origin + source});
  out_.plan.kernels.push_back({name, op, cuda() ? size.threads : 0, cuda() ? size.shared_bytes : 0, cuda() && starts_early});
  return name;
}

void Lowering::launch(const std::string& base, const std::string& op, const std::string& text, const LaunchSize& size, ExprRef flops,
                      const std::vector<uint32_t>& more) {
  unique_kernel(base, op, text, size, true);
  runtime::Launch launch;
  launch.name = graph.value(graph.op(op_).results[0]).name;
  launch.ops = {std::string(ir::to_string(graph.op(op_).kind))};
  runtime::KernelLaunch k;
  k.kernel = kernel_by_text_[text];
  std::vector<uint32_t> reads, writes;
  for (size_t i = 0; i < args_.size(); ++i) {
    k.args.push_back(buffers_.at(args_[i].value));
    (i < reads_ ? reads : writes).push_back(k.args.back());
  }
  k.args.insert(k.args.end(), more.begin(), more.end());
  reads.insert(reads.end(), more.begin(), more.end());
  if (cuda()) {
    for (ExprRef g : size.grid) k.grid.push_back(encode(g));
  } else {
    k.work = encode(size.work);
    k.grain = size.grain;
  }
  launch.kernel = std::move(k);
  launch.flops = encode(flops);
  std::vector<uint32_t> all = reads;
  all.insert(all.end(), writes.begin(), writes.end());
  launch.bytes = encode(traffic(all));
  add_launch(std::move(launch), reads, writes);
}

void Lowering::copy_to_output(ValueId v, uint32_t output) {
  const uint32_t from = buffer_of(v);
  auto [it, added] = output_copies_.emplace(output, static_cast<uint32_t>(out_.plan.buffers.size()));
  const uint32_t to = it->second;
  if (added) {
    runtime::Buffer b = out_.plan.buffers[from];
    b.place = runtime::BufferClass::output;
    b.name = graph.outputs[output].name;
    b.index = output;
    out_.plan.buffers.push_back(std::move(b));
    bytes_.push_back(bytes_[from]);
    lifetime_.push_back({-1, -1});
  }
  const bool from_io = out_.plan.buffers[from].place == runtime::BufferClass::input ||
                       out_.plan.buffers[from].place == runtime::BufferClass::output;
  const std::string t = storage(v), compute = t == "b8" ? "bool" : fmt::format("Compute<{}>", t);
  const std::string body = fmt::format("struct Body {{ const {0}* a0; TFCC_FN {1} operator()(idx i0) const {{ return load(a0, i0); }} }};\n", t, compute);
  const std::string spec = fmt::format("struct Spec {{ using Out = {}; static constexpr int rank = 1, vec = 1; }};\n", t);
  LaunchSize s;
  std::string text;
  if (cuda()) {
    text = fmt::format("#include \"cuda/pointwise.cuh\"\n{0}{1}TFCC_KERNEL(256, @NAME@, const {2}* {3}a0, {2}* const* a1) {{\n"
                       "  pointwise<Spec>(*a1, {{{4}}}, Body{{{5}a0}});\n}}\n",
                       body, spec, t, from_io ? "const* " : "", size(count(v)), from_io ? "*" : "");
    s.grid = {ceil_div(count(v), 256)};
  } else {
    text = fmt::format("#include \"cpu/pointwise.h\"\nnamespace {{\n{0}{1}}}  // namespace\nTFCC_KERNEL(@NAME@) {{\n"
                       "  pointwise<Spec>(({2}*)a[1], {{{3}}}, Body{{(const {2}*)a[0]}}, begin, end);\n}}\n",
                       body, spec, t, size(count(v)));
    s.work = integer(1);
  }
  unique_kernel("copy__" + t, "pointwise", text, s, false);
  runtime::Launch launch;
  launch.name = graph.outputs[output].name;
  launch.ops = {"pointwise"};
  runtime::KernelLaunch k;
  k.kernel = kernel_by_text_[text];
  k.args = {from, to};
  if (cuda()) k.grid = {encode(s.grid[0])};
  else k.work = encode(s.work), k.grain = 1;
  launch.kernel = std::move(k);
  launch.flops = encode(integer(0));
  launch.bytes = encode(ir::mul(integer(2), bytes_[from]));
  add_launch(std::move(launch), {from}, {to});
}

ExprRef Lowering::ceil_div(ExprRef a, int64_t b) const { return ir::div(ir::add(a, integer(b - 1)), integer(b)); }

ExprRef Lowering::rows(ValueId v) const {
  const auto& d = dims(v);
  return d.empty() ? integer(1) : ir::element_count(pool(), std::vector<ExprRef>(d.begin(), d.end() - 1));
}

}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
// The text of one kernel and its launch: arguments, pointers, sizes and functors as C++, each text once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/lowering.h"

namespace tfcc::codegen {

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
  return fmt::format("TFCC_KERNEL({}, @NAME@{}) {{\n  {}", threads, parameters(), start_early());
}

std::string Lowering::header_with_maps(uint32_t threads, int resident, size_t maps) const {
  std::string params = parameters();
  for (size_t k = 0; k < maps; ++k) params += fmt::format(", const __grid_constant__ TensorMap m{}", k);
  return fmt::format("TFCC_KERNEL_RESIDENT({}, {}, @NAME@{}) {{\n  {}", threads, resident, params, prefetches());
}

std::string Lowering::parameters() const {
  std::string params;
  for (size_t k = 0; k < args_.size(); ++k) {
    const char* constness = k < reads_ ? "const " : "";
    params += fmt::format(", {}{}* {}a{}", constness, storage(args_[k]), is_io(k) ? "const* " : "", k);
  }
  return params;
}

std::string Lowering::start_early() const { return prefetches() + "wait_for_predecessor();\n  "; }

std::string Lowering::prefetches() const {
  constexpr int64_t kLargest = 32 << 10;                   // larger constants are tables, of which a kernel reads few rows
  std::string text;
  for (size_t k = 0; k < reads_; ++k) {
    const auto bytes = known(bytes_[buffers_.at(args_[k].value)]);
    if (graph.is_constant(args_[k]) && bytes && *bytes <= kLargest) text += fmt::format("prefetch(a{}, {});\n  ", k, *bytes);
  }
  return text;
}

std::string Lowering::size(ExprRef e) const {
  CppNames names;
  names.symbol = [this](const std::string& s) {
    return fmt::format("n[{}]", std::find(symbols_.begin(), symbols_.end(), s) - symbols_.begin());
  };
  // A sum of hundreds of sizes is a program, as the plan has it: Clang takes far longer over such a text than over the rest of
  // the kernel. No size of a model is that long.
  constexpr size_t kLongSize = 64;
  if (cuda() || ir::node_count(e) <= kLongSize) return cpp_expr(e, names);
  const runtime::SizeExpr program = size_program(e, symbols_);
  if (!program.valid(symbols_.size())) return cpp_expr(e, names);
  return fmt::format("([&] {{ static constexpr i64 p[] = {{{}}}; return size_program(n, p, {}); }}())", fmt::join(program.code, ","), program.code.size());
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
  names.narrow_indices = cuda();
  for (const auto* list : {&graph.op(op_).operands, &graph.op(op_).results}) {
    for (ValueId v : *list) names.counts.push_back(count(v));
  }
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
                              const std::function<std::string(int64_t)>& index,
                              const std::function<std::vector<ExprRef>(int64_t)>& operand_dims) {
  CppNames names = functor_names(index);
  if (operand_dims) names.dims = operand_dims;
  return functor_members(name, body) +
         fmt::format("  TFCC_FN {} operator()({}) const {{ {} }}\n}};\n", cpp_type(result), params, cpp_body(body, names));
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
                      const std::vector<uint32_t>& more, const std::vector<std::string>& parts, const std::vector<runtime::TensorMap>& maps) {
  unique_kernel(base, op, text, size, true);
  runtime::Launch launch;
  launch.name = graph.value(graph.op(op_).results[0]).name;
  launch.ops = {std::string(ir::to_string(graph.op(op_).kind))};
  launch.ops.insert(launch.ops.end(), parts.begin(), parts.end());
  runtime::KernelLaunch k;
  k.kernel = kernel_by_text_[text];
  std::vector<uint32_t> reads, writes;
  for (size_t i = 0; i < args_.size(); ++i) {
    k.args.push_back(buffers_.at(args_[i].value));
    (i < reads_ ? reads : writes).push_back(k.args.back());
  }
  k.args.insert(k.args.end(), more.begin(), more.end());
  reads.insert(reads.end(), more.begin(), more.end());
  for (const runtime::TensorMap& map : maps) reads.push_back(map.buffer);
  k.maps = maps;
  if (cuda()) {
    for (ExprRef g : size.grid) {
      grows(g, "the grid of '" + launch.name + "'");
      k.grid.push_back(encode(g));
    }
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
  grows(count(v), "output '" + launch.name + "'");
  if (cuda()) k.grid = {encode(s.grid[0])};
  else k.work = encode(s.work), k.grain = 1;
  launch.kernel = std::move(k);
  launch.flops = encode(integer(0));
  launch.bytes = encode(ir::mul(integer(2), bytes_[from]));
  add_launch(std::move(launch), {from}, {to}, "copy to ");
}

}  // namespace tfcc::codegen

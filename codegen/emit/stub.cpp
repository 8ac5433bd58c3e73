// SPDX-License-Identifier: Apache-2.0
#include "codegen/emit/stub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "codegen/plan/sizes.h"

namespace tfcc::codegen {
namespace {

std::string cpp_type(Scalar s) {
  const char* const kTypes[] = {"i64", "f32", "f64", "bool"};
  return kTypes[static_cast<int>(s)];
}

// Constants that a kernel reads as a whole, and their bytes; larger ones are tables, of which it
// reads few rows.
std::vector<std::pair<size_t, int64_t>> constants_read(const EmitContext& c,
                                                       const std::vector<ValueId>& reads) {
  constexpr int64_t kLargest = 32 << 10;
  std::vector<std::pair<size_t, int64_t>> found;
  for (size_t k = 0; k < reads.size(); ++k) {
    const auto count = c.known(c.count(reads[k]));
    const int64_t bytes = count.value_or(0) * static_cast<int64_t>(size_of(c.type(reads[k]).dtype));
    if (count && c.graph.is_constant(reads[k]) && bytes <= kLargest) found.emplace_back(k, bytes);
  }
  return found;
}

// Each on a line of its own, and the indent of what follows.
std::string lines(const std::vector<std::string>& statements, const char* indent) {
  std::string text;
  for (const std::string& s : statements) text += s + "\n" + indent;
  return text;
}

}  // namespace

std::vector<ValueId> each_once(const std::vector<ValueId>& values) {
  std::vector<ValueId> once;
  for (ValueId v : values) {
    if (std::find(once.begin(), once.end(), v) == once.end()) once.push_back(v);
  }
  return once;
}

Stub::Stub(const EmitContext& context, std::string function, const std::vector<ValueId>& slots,
           std::vector<ValueId> reads, std::vector<ValueId> writes)
    : context_(&context),
      cuda_(context.cuda()),
      function_(std::move(function)),
      slots_(slots),
      reads_(std::move(reads)),
      writes_(std::move(writes)) {
  for (ValueId v : reads_)
    arguments_.push_back({context.storage(v), false, context.callers.has(v)});
  for (ValueId v : writes_)
    arguments_.push_back({context.storage(v), true, context.callers.has(v)});
  constants_read_ = constants_read(context, reads_);
}

Stub::Stub(const EmitContext& context, std::string function, OpId op)
    : Stub(context, std::move(function), context.graph.op(op).operands,
           each_once(context.graph.op(op).operands), context.graph.op(op).results) {}

Stub Stub::copy(const EmitContext& context, ValueId v) {
  Stub stub(context, "pointwise", {v}, {v}, {});
  stub.arguments_.push_back({context.storage(v), true, true});
  return stub;
}

// ---- Spec ----

void Stub::type(const std::string& name, const std::string& cpp) {
  types_.push_back(fmt::format("using {} = {};", name, cpp));
}

void Stub::constant(const std::string& type, const std::string& name, const std::string& value) {
  if (constants_.empty() || constants_.back().first != type) constants_.emplace_back(type, "");
  std::string& list = constants_.back().second;
  list += fmt::format("{}{} = {}", list.empty() ? "" : ", ", name, value);
}

void Stub::field(const std::string& name, int64_t value) {
  constant("int", name, std::to_string(value));
}
void Stub::field(const std::string& name, bool value) {
  constant("bool", name, value ? "true" : "false");
}

namespace {

std::string f32_literal(double value) {
  char buffer[64];
  std::string s(buffer, std::to_chars(buffer, buffer + 64, value).ptr);
  return s + (s.find_first_of(".e") == std::string::npos ? ".0f" : "f");
}

}  // namespace

void Stub::field_f32(const std::string& name, double value) {
  constant("f32", name, f32_literal(value));
}
void Stub::require(const std::string& condition, const std::string& message) {
  conditions_ += fmt::format("static_assert({}, \"{}\");\n", condition, message);
}

// ---- functors ----

CppNames Stub::names(const Index& index) const {
  const EmitContext& c = *context_;
  CppNames n;
  n.index = index;
  n.symbol = [this](const std::string& s) {
    const auto i = std::find(context_->symbols.begin(), context_->symbols.end(), s) -
                   context_->symbols.begin();
    return cuda_ ? fmt::format("(idx)n[{}]", i) : fmt::format("n[{}]", i);
  };
  n.pointer = [this](int64_t slot) {
    return fmt::format("a{}", position(slots_[static_cast<size_t>(slot)]));
  };
  n.dims = [this](int64_t slot) { return context_->dims(slots_[static_cast<size_t>(slot)]); };
  n.of_caller = [this](int64_t slot) {
    return arguments_[position(slots_[static_cast<size_t>(slot)])].callers;
  };
  n.narrow_indices = cuda_;
  n.fast = fast_;
  n.short_result = cuda_ && std::all_of(writes_.begin(), writes_.end(), [&](ValueId v) {
                     return c.type(v).dtype == DType::f16 || c.type(v).dtype == DType::bf16;
                   });
  for (const auto* list : {&slots_, &writes_}) {
    for (ValueId v : *list) n.counts.push_back(c.count(v));
  }
  return n;
}

std::string Stub::members(const std::string& name, const std::vector<ExprRef>& bodies) {
  std::string text = fmt::format("struct {} {{\n  const i64* n; u32* flags;", name);
  std::vector<size_t> used;
  const auto look = [&](ExprRef n) {
    if (n->kind == ir::ExprKind::load)
      used.push_back(position(slots_[static_cast<size_t>(n->value)]));
  };
  for (ExprRef body : bodies) ir::for_each_node(body, look);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (size_t k : used) text += fmt::format(" const {}* a{};", arguments_[k].type, k);
  members_[name] = std::move(used);
  return text + "\n";
}

void Stub::functor(const std::string& name, const std::string& params, ExprRef body, Scalar result,
                   const Index& index, const std::function<std::vector<ExprRef>(int64_t)>& dims) {
  CppNames n = names(index);
  if (dims) n.dims = dims;
  functors_ +=
      members(name, {body}) + fmt::format("  TFCC_FN {} operator()({}) const {{ {} }}\n}};\n",
                                          cpp_type(result), params, cpp_body(body, n));
}

void Stub::row_functor(const std::string& name, ExprRef body, int64_t column, int64_t vec) {
  CppRowBody parts = cpp_row_body(body, column, cuda_ ? vec : 1, names(index_name));
  const std::string index = fmt::format("[[maybe_unused]] idx i{}", column);
  const std::string result = cpp_type(body->type);
  std::string params;
  for (int64_t k = 0; k < column; ++k)
    params += fmt::format("{}[[maybe_unused]] idx i{}", k ? ", " : "", k);
  std::string function = fmt::format("[=, *this]({}) -> {} {{ {} }}", index, result, parts.column);
  if (cuda_) {
    if (!parts.packs.empty())
      parts.packs.insert(parts.packs.begin(), "constexpr int vec = sizeof(v) / sizeof(v[0]);");
    function = fmt::format(
        "[=, *this]({0}, auto& v) {{\n      {1}"
        "fill_pack(v, i{2}, [&]({0}, [[maybe_unused]] int k) -> {3} {{ {4} }});\n    }}",
        index, lines(parts.packs, "      "), column, result, parts.column);
  }
  functors_ += members(name, {body}) +
               fmt::format("  TFCC_FN auto operator()({}) const {{\n    {}return {};\n  }}\n}};\n",
                           params, lines(parts.row, "    "), function);
}

namespace {

constexpr const char* kChunkIndices = "[[maybe_unused]] idx i0, [[maybe_unused]] idx i1";

void add_once(std::vector<ExprRef>& all, const std::vector<ExprRef>& more) {
  for (ExprRef e : more)
    if (std::find(all.begin(), all.end(), e) == all.end()) all.push_back(e);
}

// The outermost loads that are evaluated in every case: select and both logical operators are lazy.
std::vector<ExprRef> loads_in(ExprRef e) {
  if (!e->has_load) return {};
  if (e->kind == ir::ExprKind::load) return {e};
  const bool chooses = e->kind == ir::ExprKind::select;
  if (chooses || e->kind == ir::ExprKind::band || e->kind == ir::ExprKind::bor) {
    std::vector<ExprRef> loads = loads_in(e->args[0]);
    if (chooses) {
      std::vector<ExprRef> both = loads_in(e->args[1]);
      const std::vector<ExprRef> other = loads_in(e->args[2]);
      std::erase_if(
          both, [&](ExprRef n) { return std::find(other.begin(), other.end(), n) == other.end(); });
      add_once(loads, both);
    }
    return loads;
  }
  std::vector<ExprRef> loads;
  for (ExprRef child : e->args) add_once(loads, loads_in(child));
  for (const ir::Term& t : e->terms) {
    for (ExprRef atom : t.atoms) add_once(loads, loads_in(atom));
  }
  return loads;
}

}  // namespace

// On a GPU what a chunk shares is loaded by one function and computed by another: a conversion would
// wait for its load. The text of both; `shared` becomes expressions over what is loaded.
std::string Stub::raw_functions(std::vector<ExprRef>& shared, std::string& aliases) {
  constexpr int64_t kRawIndex = 100;  // of a byte that was loaded: its range is known
  std::vector<ExprRef> loads;
  for (ExprRef e : shared) add_once(loads, loads_in(e));
  std::string fields, parts, made;
  for (size_t k = 0; k < loads.size(); ++k) {
    CppNames plain = names(index_name);
    plain.unconverted = loads[k];
    const std::string& type =
        arguments_[position(slots_[static_cast<size_t>(loads[k]->value)])].type;
    fields += fmt::format("{} r{}; ", type, k);
    parts += fmt::format("  TFCC_FN {} raw{}({}) const {{ {} }}\n", type, k, kChunkIndices,
                         cpp_body(loads[k], plain));
    made += fmt::format("{}raw{}(i0, i1)", k ? ", " : "", k);
    aliases += fmt::format(
        "[[maybe_unused]] const auto r{0} = load(&raw.r{0}, 0); "
        "[[maybe_unused]] const auto i{1} = (idx)r{0}; ",
        k, kRawIndex + static_cast<int64_t>(k));
  }
  for (ExprRef& e : shared)
    e = ir::rewrite(e, [&](ExprRef n) -> ExprRef {
      const auto at = std::find(loads.begin(), loads.end(), n);
      if (at == loads.end()) return nullptr;
      const auto number = at - loads.begin();
      const bool byte = context_->type(slots_[static_cast<size_t>(n->value)]).dtype == DType::u8;
      return byte ? n->pool->index(kRawIndex + number, n->pool->integer(256))
                  : n->pool->param("r" + std::to_string(number), n->type);
    });
  return fmt::format("  struct Raw {{ {}}};\n{}  TFCC_FN Raw raw({}) const {{ return {{{}}}; }}\n",
                     fields, parts, kChunkIndices, made);
}

void Stub::shared_functor(const std::string& name, std::vector<ExprRef> shared, ExprRef value,
                          const std::vector<std::pair<std::string, ExprRef>>& more) {
  std::vector<ExprRef> bodies = shared;
  bodies.push_back(value);
  functors_ += members(name, bodies);
  std::string raw, fields, parts, made, aliases;
  if (cuda_) functors_ += raw_functions(shared, raw);
  const char* const from = cuda_ ? ", [[maybe_unused]] const Raw& raw" : "";
  for (size_t k = 0; k < shared.size(); ++k) {
    const std::string type = cpp_type(shared[k]->type);
    fields += fmt::format("{} v{}; ", type, k);
    parts += fmt::format("  TFCC_FN {} part{}({}{}) const {{ {}{} }}\n", type, k, kChunkIndices,
                         from, raw, cpp_body(shared[k], names(index_name)));
    made += fmt::format("{}part{}(i0, i1{})", k ? ", " : "", k, cuda_ ? ", raw" : "");
    aliases += fmt::format("[[maybe_unused]] const auto v{0} = shared.v{0}; ", k);
  }
  functors_ += fmt::format("  struct Shared {{ {}}};\n{}", fields, parts);
  functors_ += fmt::format("  TFCC_FN Shared shared({}{}) const {{ return {{{}}}; }}\n",
                           kChunkIndices, from, made);
  if (cuda_)
    functors_ +=
        fmt::format("  TFCC_FN Shared shared({}) const {{ return shared(i0, i1, raw(i0, i1)); }}\n",
                    kChunkIndices);
  CppNames small = names(index_name);
  small.convert_by_bits = cuda_;
  small.narrow_indices = true;  // of bytes and places in a chunk: more of them fit a vector
  small.unsigned_quotients = !cuda_;
  for (const auto& [of, e] : more)
    functors_ +=
        fmt::format("  TFCC_FN {} {}([[maybe_unused]] const Shared& shared) const {{ {}{} }}\n",
                    cpp_type(e->type), of, aliases, cpp_body(e, small));
  functors_ += fmt::format(
      "  TFCC_FN {} value([[maybe_unused]] const Shared& shared, [[maybe_unused]] int i2, "
      "[[maybe_unused]] int i3) const {{ {}{} }}\n}};\n",
      cpp_type(value->type), aliases, cpp_body(value, small));
}

// ---- arguments ----

size_t Stub::position(ValueId v) const {
  const auto it = std::find(reads_.begin(), reads_.end(), v);
  TFCC_CHECK(it != reads_.end());
  return static_cast<size_t>(it - reads_.begin());
}

std::string Stub::pointer(size_t k) const {
  const Argument& a = arguments_[k];
  if (cuda_ && a.callers && reads_early_) return fmt::format("fresh(a{})", k);
  if (cuda_) return fmt::format("{}a{}", a.callers ? "*" : "", k);
  return fmt::format("({}{}*)a[{}]", a.written ? "" : "const ", a.type, k);
}

std::string Stub::in(ValueId v, int64_t offset) const {
  const std::string p = pointer(position(v));
  return offset ? fmt::format("{} + {}", p, offset) : p;
}

std::string Stub::out(size_t k) const { return pointer(reads_.size() + k); }

std::string Stub::packed(const std::string& type, size_t k) const {
  return cuda_ ? fmt::format("a{}", arguments_.size() + k)
               : fmt::format("(const {}*)a[{}]", type, arguments_.size() + k);
}

std::string Stub::size(ExprRef e) const {
  const std::vector<std::string>& symbols = context_->symbols;
  CppNames n;
  n.symbol = [&](const std::string& s) {
    return fmt::format("n[{}]", std::find(symbols.begin(), symbols.end(), s) - symbols.begin());
  };
  // A sum of hundreds of sizes is a program, as the plan has it: Clang takes far longer over such a
  // text than over the rest of the kernel. No size of a model is that long.
  constexpr size_t kLongSize = 64;
  if (cuda_ || ir::node_count(e) <= kLongSize) return cpp_expr(e, n);
  const runtime::SizeExpr program = size_program(e, symbols);
  if (!program.valid(symbols.size())) return cpp_expr(e, n);
  return fmt::format(
      "([&] {{ static constexpr i64 p[] = {{{}}}; return size_program(n, p, {}); }}())",
      fmt::join(program.code, ","), program.code.size());
}

std::string Stub::sizes(const std::vector<ExprRef>& dims) const {
  std::string s = "{";
  for (size_t k = 0; k < dims.size(); ++k) s += (k ? ", " : "") + size(dims[k]);
  return s + "}";
}

std::string Stub::sizes_before_wait(const std::string& name, const std::vector<ExprRef>& dims) {
  before_wait_ +=
      fmt::format("const auto {} = [n = FreshSizes{{n}}] {{ return Dims<{}>{}; }}();\n  ", name,
                  dims.size(), sizes(dims));
  return name;
}

std::string Stub::object(const std::string& functor) const {
  std::string s = functor + "{n, flags";
  for (size_t k : members_.at(functor)) s += ", " + pointer(k);
  return s + "}";
}

std::string Stub::late_size(ExprRef e) const {
  return fmt::format("[&] {{ return (idx)({}); }}", size(e));
}

std::string Stub::early_size(ExprRef e) const {
  return fmt::format("[n = FreshSizes{{n}}] {{ return (idx)({}); }}", size(e));
}

std::string Stub::address_of(ExprRef size) const {
  const auto it = std::find(context_->symbols.begin(), context_->symbols.end(), size->name);
  TFCC_CHECK(it != context_->symbols.end());
  return fmt::format("(i64*)n + {}", it - context_->symbols.begin());
}

std::string Stub::scratch(const std::string& type) {
  scratch_ = type;
  return fmt::format("a{}", arguments_.size());
}

std::string Stub::counters() const {
  return fmt::format("flags + {}", context_->graph.flags.size());
}

void Stub::call(std::vector<std::string> arguments, const std::vector<ExprRef>& rest) {
  if (cuda_) {
    for (ExprRef e : rest) arguments.push_back(size(e));
  } else {
    arguments.insert(arguments.end(), {"begin", "end"});
  }
  call_ = fmt::format("{}<Spec>({});", function_, fmt::join(arguments, ", "));
}

std::string Stub::tiles_by_rows(int words) {
  tiles_by_rows_ = words;
  return "tiles";
}

// ---- text ----

std::string Stub::parameters() const {
  std::string s;
  // In front, where the address of the sizes is too: both are asked for at once.
  if (tiles_by_rows_)
    s += fmt::format(", const __grid_constant__ TilesByRows<{}> tiles", tiles_by_rows_);
  for (size_t k = 0; k < arguments_.size(); ++k) {
    const Argument& a = arguments_[k];
    s += fmt::format(", {}{}* {}a{}", a.written ? "" : "const ", a.type, a.callers ? "const* " : "",
                     k);
  }
  if (!scratch_.empty()) s += fmt::format(", {}* a{}", scratch_, arguments_.size());
  for (size_t k = 0; k < maps_; ++k) s += fmt::format(", const __grid_constant__ TensorMap m{}", k);
  return s;
}

std::string Stub::print(const std::string& name, uint32_t threads) const {
  std::string spec = "struct Spec {\n";
  for (const std::string& t : types_) spec += "  " + t + "\n";
  for (const auto& [type, list] : constants_)
    spec += fmt::format("  static constexpr {} {};\n", type, list);
  spec += "};\n";
  const std::string types = functors_ + spec + conditions_;
  if (!cuda_) {  // what is local to a kernel is local to its unit: all are linked together
    return fmt::format(
        "#include \"cpu/{}.h\"\nnamespace {{\n{}}}  // namespace\nTFCC_KERNEL({}) {{\n  {}\n}}\n",
        function_, types, name, call_);
  }
  const std::string head = resident_
                               ? fmt::format("TFCC_KERNEL_RESIDENT({}, {}, {}{})", threads,
                                             resident_, name, parameters())
                               : fmt::format("TFCC_KERNEL({}, {}{})", threads, name, parameters());
  std::string before;
  for (size_t k = 0; k < arguments_.size() && !maps_; ++k)
    before += fmt::format("{}a{}", k ? ", " : "bring_parameters_near(", k);
  if (!before.empty()) before += ");\n  ";
  for (const auto& [k, bytes] : constants_read_)
    before += fmt::format("{}(a{}, {});\n  ", near_ ? "bring_near" : "prefetch", k, bytes);
  before += before_wait_;
  return fmt::format("#include \"cuda/{}.cuh\"\n{}{} {{\n  {}{}{}\n}}\n", function_, types, head,
                     before, waits_itself_ ? "" : "wait_for_predecessor();\n  ", call_);
}

std::string bind_source(const std::string& name, size_t values) {
  return fmt::format(
      "#include \"cuda/bind.cuh\"\nstruct BlockValues {{ i64 v[{0}]; }};\n"
      "extern \"C\" __global__ void {1}(const __grid_constant__ BlockValues values, i64* block) {{ bind<{0}>(values.v, block); }}\n",
      values, name);
}

}  // namespace tfcc::codegen

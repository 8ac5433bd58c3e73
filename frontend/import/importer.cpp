// SPDX-License-Identifier: Apache-2.0
// The import context: values, elements, sizes, broadcasting. Facts about sizes: importer_sizes.cpp.
#include "frontend/import/importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

constexpr size_t kLargestSizeVector = 64;

std::string shown(ExprRef e) { return ir::print(e); }

std::string shown(const Dims& dims) {
  std::string s = "[";
  for (size_t k = 0; k < dims.size(); ++k) s += (k ? "," : "") + shown(dims[k]);
  return s + "]";
}

}  // namespace

bool is_size_expression(ExprRef e) { return !ir::has_loads(e); }

Importer::Importer(const Model& model, const Facts& known)
    : graph("main"), model_(model), known_(known) {}

Error Importer::fail(ErrorCode code, const std::string& what) const {
  if (!node) return {code, fmt::format("{}: {}", model_.path, what)};
  std::string label = node->name.empty() && !node->outputs.empty() ? node->outputs[0] : node->name;
  return {code, fmt::format("{}: node '{}' ({}): {}", model_.path, escaped(label),
                            escaped(node->op_type), what)};
}

Result<ValueId> Importer::input(size_t i) const {
  if (!has_input(i)) return fail(ErrorCode::bad_file, fmt::format("input {} is missing", i));
  auto it = values.find(node->inputs[i]);
  if (it != values.end()) return it->second;
  auto bad = model_.unsupported_initializers.find(node->inputs[i]);
  if (bad != model_.unsupported_initializers.end()) {
    return fail(ErrorCode::unsupported,
                fmt::format("initializer '{}' {}", escaped(bad->first), bad->second));
  }
  return fail(ErrorCode::bad_file,
              fmt::format("input '{}' is not defined before this node", escaped(node->inputs[i])));
}

int64_t Importer::attr_int(IntegerName name, int64_t otherwise) const {
  const Attribute* a = node->find(name.name);
  return a ? a->i : otherwise;
}

int Importer::attr_type(IntegerName name) const {
  const int64_t v = attr_int(name, 0);
  return v == static_cast<int>(v) ? static_cast<int>(v) : -1;
}

float Importer::attr_float(RealName name, float otherwise) const {
  const Attribute* a = node->find(name.name);
  return a ? a->f : otherwise;
}

std::string Importer::attr_string(StringName name, std::string_view otherwise) const {
  const Attribute* a = node->find(name.name);
  return a ? a->s : std::string(otherwise);
}

std::optional<std::vector<int64_t>> Importer::attr_ints(IntegersName name) const {
  const Attribute* a = node->find(name.name);
  return a ? std::optional(a->ints) : std::nullopt;
}

int Importer::onnx_type(ValueId v) const {
  auto it = onnx_types_.find(v.value);
  return it != onnx_types_.end() ? it->second : onnx_type_of(type(v).dtype);
}

void Importer::set_onnx_type(ValueId v, const ElementType& t) {
  if (t.is_packed()) onnx_types_[v.value] = t.onnx_type;
}

ExprRef Importer::element(ValueId v, const Indices& at) {
  if (const ir::Constant* c = graph.constant(v)) {
    // A vector of reals stays a load, even if all its values are equal: it is a weight.
    const bool look = !is_float(c->result_dtype()) || c->element_count() <= 64;
    ExprRef e = look ? ir::constant_element(pool(), *c, at) : nullptr;
    const bool literal = e && (!is_float(c->result_dtype()) || c->element_count() == 1 ||
                               std::all_of(at.begin(), at.end(),
                                           [](ExprRef i) { return ir::as_int(i).has_value(); }));
    return literal ? e : ir::load_of(graph, v, at);
  }
  const ir::Op* op = graph.def(v);
  if (op && op->kind == ir::OpKind::pointwise && op->operands.empty())
    return ir::element_of(graph, v, at);
  return ir::load_of(graph, v, at);
}

ExprRef Importer::broadcast_element(ValueId v, const Indices& at) {
  return element(v, ir::broadcast_indices(pool(), dims(v), at));
}

ExprRef Importer::resolved(ExprRef e) {
  e = ir::expand(graph, e, [](ValueId) { return true; });
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    if (n->kind != ir::ExprKind::load) return n->has_load ? nullptr : n;
    const ir::Constant* c = graph.constant(ValueId{static_cast<uint32_t>(n->value)});
    return c ? ir::constant_element(pool(), *c, n->args) : nullptr;
  });
}

Result<void> Importer::require_size(ExprRef e, ValueId v, std::string_view role) const {
  if (const ir::Poison why = ir::poison_of(e); why != ir::Poison::none)
    return fail(ErrorCode::shape, fmt::format("{}: {}", role, ir::to_string(why)));
  if (!is_size_expression(e)) {
    return fail(ErrorCode::unsupported,
                fmt::format("{} depends on data ({}); only sizes and constants can shape a tensor",
                            role, graph.value(v).name));
  }
  if (!ir::has_reals(e)) return {};
  return fail(
      ErrorCode::unsupported,
      fmt::format(
          "{} goes through floating point ({}); there, sums, products and one division of sizes with Floor, Ceil "
          "or Cast are followed",
          role, graph.value(v).name));
}

Result<std::vector<ExprRef>> Importer::sizes(ValueId v, std::string_view role) {
  const Dims d = dims(v);
  if (d.size() > 1 || !is_integer(type(v).dtype)) {
    return fail(ErrorCode::bad_file, fmt::format("{} must be a vector of integers, not {}", role,
                                                 ir::to_string(type(v))));
  }
  int64_t count = 1;
  if (d.size() == 1) {
    auto n = ir::as_int(d[0]);
    if (!n || *n > static_cast<int64_t>(kLargestSizeVector)) {
      return fail(ErrorCode::unsupported,
                  fmt::format("{} has {} elements; its length must be known", role, shown(d[0])));
    }
    count = *n;
  }
  std::vector<ExprRef> out;
  for (int64_t k = 0; k < count; ++k) {
    ExprRef e = resolved(element(v, d.empty() ? Indices{} : Indices{integer(k)}));
    TFCC_TRY_VOID(require_size(e, v, role));
    out.push_back(e);
  }
  return out;
}

Result<std::vector<int64_t>> Importer::numbers(ValueId v, std::string_view role) {
  TFCC_TRY(auto list, sizes(v, role));
  std::vector<int64_t> out;
  for (ExprRef e : list) {
    auto n = ir::as_int(e);
    if (!n)
      return fail(ErrorCode::unsupported,
                  fmt::format("{} must be known at compile time, not {}", role, shown(e)));
    out.push_back(*n);
  }
  return out;
}

Result<ExprRef> Importer::scalar(ValueId v, std::string_view role) {
  for (ExprRef d : dims(v)) {
    if (!ir::is_int(d, 1))
      return fail(ErrorCode::shape,
                  fmt::format("{} must be a single element, not {}", role, ir::to_string(type(v))));
  }
  return element(v, Indices(rank(v), integer(0)));
}

Result<ExprRef> Importer::scalar_real(ValueId v, std::string_view role) {
  TFCC_TRY(ExprRef e, scalar(v, role));
  if (!is_size_expression(e))
    return fail(ErrorCode::unsupported, fmt::format("{} must be known at compile time", role));
  return e;
}

Result<Dims> Importer::broadcast(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()));
  for (size_t k = 0; k < out.size(); ++k) {
    const size_t from_end = out.size() - 1 - k;
    ExprRef x = from_end < a.size() ? a[a.size() - 1 - from_end] : integer(1);
    ExprRef y = from_end < b.size() ? b[b.size() - 1 - from_end] : integer(1);
    if (ir::is_int(x, 1)) {
      out[k] = y;
    } else if (ir::is_int(y, 1)) {
      out[k] = x;
    } else {
      TFCC_TRY(out[k],
               unify(x, y, fmt::format("shapes {} and {} do not broadcast", shown(a), shown(b))));
    }
  }
  return out;
}

Result<size_t> Importer::axis_of(int64_t axis, size_t rank) const {
  const int64_t r = static_cast<int64_t>(rank);
  if (axis < -r || axis >= r)
    return fail(ErrorCode::shape, fmt::format("axis {} is out of range for rank {}", axis, rank));
  return static_cast<size_t>(axis < 0 ? axis + r : axis);
}

std::string Importer::value_name(size_t output) const {
  return output < node->outputs.size() ? node->outputs[output] : std::string("value");
}

ValueId Importer::add_pointwise(ExprRef free_body, DType dtype, const Dims& dims,
                                std::string name) {
  // What has no elements reads none: its indices divide by sizes of 0.
  if (std::any_of(dims.begin(), dims.end(), [](ExprRef d) { return ir::is_int(d, 0); }))
    free_body = zero_of(*this, ir::scalar_of(dtype));
  ir::Captured c = ir::capture(free_body);
  return graph.add_pointwise(std::move(c.operands), c.body, {dtype, dims}, std::move(name),
                             node->name);
}

ValueId Importer::pointwise(ExprRef free_body, DType dtype, const Dims& dims,
                            std::string_view suffix) {
  return add_pointwise(free_body, dtype, dims, value_name(0) + std::string(suffix));
}

ValueId Importer::define(size_t output, ExprRef free_body, DType dtype, const Dims& dims) {
  ValueId v = add_pointwise(free_body, dtype, dims, value_name(output));
  define(output, v);
  return v;
}

void Importer::define(size_t output, ValueId v) {
  if (output < node->outputs.size() && !node->outputs[output].empty())
    values[node->outputs[output]] = v;
}

ValueId transpose(Importer& im, ValueId v, const std::vector<size_t>& perm,
                  std::string_view suffix) {
  Dims to;
  for (size_t p : perm) to.push_back(im.dims(v)[p]);
  const Indices at = im.index_vars(to);
  Indices from(perm.size());
  for (size_t k = 0; k < perm.size(); ++k) from[perm[k]] = at[k];
  return im.pointwise(im.element(v, from), im.type(v).dtype, to, suffix);
}

ValueId reduction(Importer& im, ir::ReduceKind kind, ExprRef free_body, const Dims& extents,
                  const Type& type, std::string_view suffix) {
  ir::ReduceAttrs attrs;
  attrs.kind = kind;
  attrs.extents = extents;
  ir::Captured c = ir::capture(free_body);
  attrs.body = c.body;
  return im.graph.add(ir::OpKind::reduce, c.operands, attrs, type,
                      im.value_name(0) + std::string(suffix), im.node->name);
}

Indices variables(Importer& im, const Dims& dims, size_t first) {
  Indices at;
  for (size_t k = 0; k < dims.size(); ++k)
    at.push_back(im.pool().index(static_cast<int64_t>(first + k), dims[k]));
  return at;
}

ExprRef zero_of(Importer& im, Scalar type) {
  if (type == Scalar::boolean) return im.pool().boolean(false);
  return type == Scalar::i64 ? im.integer(0) : im.pool().real(0, type);
}

ExprRef clamped(ExprRef e, ExprRef n) {
  ExprPool& pool = *e->pool;
  return ir::max(pool.integer(0), ir::min(e, ir::sub(n, pool.integer(1))));
}

ValueId reshape(Importer& im, ValueId v, const Dims& to, std::string_view suffix) {
  const Indices at = ir::reshape_indices(im.pool(), im.index_vars(to), to, im.dims(v));
  return im.pointwise(im.element(v, at), im.type(v).dtype, to, suffix);
}

}  // namespace tfcc::frontend

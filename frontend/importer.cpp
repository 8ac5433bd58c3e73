// SPDX-License-Identifier: Apache-2.0
// The import context: values, elements, sizes, broadcasting, and the facts that sizes must satisfy.
#include "frontend/importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

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

Importer::Importer(const Model& model, const Facts& known) : graph("main"), model_(model), known_(known) {
}

Error Importer::fail(ErrorCode code, const std::string& what) const {
  if (!node) return {code, fmt::format("{}: {}", model_.path, what)};
  std::string label = node->name.empty() && !node->outputs.empty() ? node->outputs[0] : node->name;
  return {code, fmt::format("{}: node '{}' ({}): {}", model_.path, escaped(label), escaped(node->op_type), what)};
}

Result<ValueId> Importer::input(size_t i) const {
  if (!has_input(i)) return fail(ErrorCode::bad_file, fmt::format("input {} is missing", i));
  auto it = values.find(node->inputs[i]);
  if (it != values.end()) return it->second;
  auto bad = model_.unsupported_initializers.find(node->inputs[i]);
  if (bad != model_.unsupported_initializers.end()) {
    return fail(ErrorCode::unsupported, fmt::format("initializer '{}' {}", escaped(bad->first), bad->second));
  }
  return fail(ErrorCode::bad_file, fmt::format("input '{}' is not defined before this node", escaped(node->inputs[i])));
}

const Attribute* Importer::attribute(std::string_view name, Attribute::Kind kind) const {
  const Attribute* a = node->find(name);
  if (!a || a->kind == kind) return a;
  if (wrong_attribute.empty()) wrong_attribute = fmt::format("attribute '{}' has a type that {} does not take", name, escaped(node->op_type));
  return nullptr;
}

int64_t Importer::attr_int(std::string_view name, int64_t otherwise) const {
  const Attribute* a = attribute(name, Attribute::Kind::integer);
  return a ? a->i : otherwise;
}

float Importer::attr_float(std::string_view name, float otherwise) const {
  const Attribute* a = attribute(name, Attribute::Kind::real);
  if (!a) return otherwise;
  // No operator means anything with NaN, nor with an infinite epsilon; a mask's value may be infinite.
  if (wrong_attribute.empty() && (std::isnan(a->f) || (std::isinf(a->f) && name == "epsilon"))) {
    wrong_attribute = fmt::format("attribute '{}' is {}", name, a->f);
  }
  return a->f;
}

int Importer::attr_type(std::string_view name) const {
  const int64_t v = attr_int(name, 0);
  return v == static_cast<int>(v) ? static_cast<int>(v) : -1;
}

std::string Importer::attr_string(std::string_view name, std::string_view otherwise) const {
  const Attribute* a = attribute(name, Attribute::Kind::string);
  return a ? a->s : std::string(otherwise);
}

std::optional<std::vector<int64_t>> Importer::attr_ints(std::string_view name) const {
  const Attribute* a = attribute(name, Attribute::Kind::integers);
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
                               std::all_of(at.begin(), at.end(), [](ExprRef i) { return ir::as_int(i).has_value(); }));
    return literal ? e : ir::load_of(graph, v, at);
  }
  const ir::Op* op = graph.def(v);
  if (op && op->kind == ir::OpKind::pointwise && op->operands.empty()) return ir::element_of(graph, v, at);
  return ir::load_of(graph, v, at);
}

ExprRef Importer::broadcast_element(ValueId v, const Indices& at) {
  const Dims& d = dims(v);
  Indices own;
  const size_t skip = at.size() - d.size();
  for (size_t k = 0; k < d.size(); ++k) own.push_back(ir::is_int(d[k], 1) ? integer(0) : at[skip + k]);
  return element(v, own);
}

ExprRef Importer::resolved(ExprRef e) {
  e = ir::expand(graph, e, [](ValueId) { return true; });
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    if (n->kind != ir::ExprKind::load) return nullptr;
    const ir::Constant* c = graph.constant(ValueId{static_cast<uint32_t>(n->value)});
    return c ? ir::constant_element(pool(), *c, n->args) : nullptr;
  });
}

Result<std::vector<ExprRef>> Importer::sizes(ValueId v, std::string_view role) {
  const Dims d = dims(v);
  if (d.size() > 1 || !is_integer(type(v).dtype)) {
    return fail(ErrorCode::bad_file, fmt::format("{} must be a vector of integers, not {}", role, ir::to_string(type(v))));
  }
  int64_t count = 1;
  if (d.size() == 1) {
    auto n = ir::as_int(d[0]);
    if (!n || *n > static_cast<int64_t>(kLargestSizeVector)) {
      return fail(ErrorCode::unsupported, fmt::format("{} has {} elements; its length must be known", role, shown(d[0])));
    }
    count = *n;
  }
  std::vector<ExprRef> out;
  for (int64_t k = 0; k < count; ++k) {
    ExprRef e = resolved(element(v, d.empty() ? Indices{} : Indices{integer(k)}));
    if (!is_size_expression(e)) {
      return fail(ErrorCode::unsupported, fmt::format("{} depends on data ({}); only sizes and constants can shape a tensor",
                                                      role, graph.value(v).name));
    }
    out.push_back(e);
  }
  return out;
}

Result<std::vector<int64_t>> Importer::numbers(ValueId v, std::string_view role) {
  TFCC_TRY(auto list, sizes(v, role));
  std::vector<int64_t> out;
  for (ExprRef e : list) {
    auto n = ir::as_int(e);
    if (!n) return fail(ErrorCode::unsupported, fmt::format("{} must be known at compile time, not {}", role, shown(e)));
    out.push_back(*n);
  }
  return out;
}

Result<ExprRef> Importer::scalar(ValueId v, std::string_view role) {
  for (ExprRef d : dims(v)) {
    if (!ir::is_int(d, 1)) return fail(ErrorCode::shape, fmt::format("{} must be a single element, not {}", role, ir::to_string(type(v))));
  }
  return element(v, Indices(rank(v), integer(0)));
}

Result<ExprRef> Importer::scalar_real(ValueId v, std::string_view role) {
  TFCC_TRY(ExprRef e, scalar(v, role));
  if (!is_size_expression(e)) return fail(ErrorCode::unsupported, fmt::format("{} must be known at compile time", role));
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
      TFCC_TRY(out[k], unify(x, y, fmt::format("shapes {} and {} do not broadcast", shown(a), shown(b))));
    }
  }
  return out;
}

namespace {

// 64*B*S = 2048*B says S = 32, since no size B is 0: the equation without the sizes that all its terms share.
ExprRef without_common_sizes(Importer& im, ExprRef difference) {
  if (difference->kind != ir::ExprKind::poly || difference->value != 0 || difference->terms.size() != 2) return difference;
  for (ExprRef atom : difference->terms[0].atoms) {
    if (!ir::prove_ge0(ir::sub(atom, im.integer(1)))) continue;
    if (std::optional<ExprRef> q = ir::exact_div(difference, atom)) return without_common_sizes(im, *q);
  }
  return difference;
}

// The size and the value that `difference` = 0 gives it, for c * S + k.
std::optional<std::pair<std::string, int64_t>> solved(ExprRef difference) {
  if (difference->kind != ir::ExprKind::poly || difference->terms.size() != 1) return std::nullopt;
  const ir::Term& t = difference->terms[0];
  if (t.atoms.size() != 1 || t.atoms[0]->kind != ir::ExprKind::symbol || difference->value % t.coefficient != 0) return std::nullopt;
  return std::pair{t.atoms[0]->name, -(difference->value / t.coefficient)};
}

void constants_in(ExprRef e, std::set<int64_t>& out) {
  if (e->kind == ir::ExprKind::poly && e->value > 0) out.insert(e->value);
  for (const ir::Term& t : e->terms) {
    for (ExprRef atom : t.atoms) constants_in(atom, out);
  }
  for (ExprRef arg : e->args) constants_in(arg, out);
}

// The least constant of `e` that `e` provably never exceeds: min(128, ...) is at most 128.
std::optional<int64_t> upper_bound(ExprRef e) {
  std::set<int64_t> candidates;
  constants_in(e, candidates);
  for (int64_t c : candidates) {
    if (ir::prove_ge0(ir::sub(e->pool->integer(c), e))) return c;
  }
  return std::nullopt;
}

}  // namespace

namespace {
// x and y of x - y.
std::optional<std::pair<ExprRef, ExprRef>> two_symbols(ExprRef e) {
  if (e->kind != ir::ExprKind::poly || e->value != 0 || e->terms.size() != 2) return std::nullopt;
  for (const ir::Term& t : e->terms) {
    if (t.atoms.size() != 1 || t.atoms[0]->kind != ir::ExprKind::symbol) return std::nullopt;
  }
  if (e->terms[0].coefficient + e->terms[1].coefficient != 0 || std::abs(e->terms[0].coefficient) != 1) return std::nullopt;
  return std::pair{e->terms[0].atoms[0], e->terms[1].atoms[0]};
}
}  // namespace

// One name for two sizes; what this round knows already is followed first, so that names never go in a circle.
void Importer::same_size(const std::string& a, const std::string& b) {
  auto root = [&](std::string name) {
    for (auto it = found.alias.find(name); it != found.alias.end(); it = found.alias.find(name)) name = it->second;
    return name;
  };
  const std::string kept = root(a), gone = root(b);
  if (kept != gone) found.alias[gone] = kept;
}

bool Importer::equal_to_sum(ExprRef symbol, ExprRef sum) {
  if (symbol->kind != ir::ExprKind::symbol || sum->kind != ir::ExprKind::poly || sum->terms.empty() || known_.equal.count(symbol->name)) return false;
  bool free = sum->value >= 0 && is_size_expression(sum);
  for (const ir::Term& t : sum->terms) free = free && t.coefficient > 0;
  ir::for_each_node(sum, [&](ExprRef n) { free = free && n != symbol && n->kind != ir::ExprKind::index; });
  if (free) found.equal[symbol->name] = ir::print(sum);
  return free;
}

Result<ExprRef> Importer::unify(ExprRef a, ExprRef b, const std::string& what) {
  if (a == b) return a;
  ExprRef difference = ir::sub(a, b);
  if (ir::as_int(difference) || ir::eq(a, b)->kind == ir::ExprKind::bfalse) return fail(ErrorCode::shape, what);
  if (a->kind == ir::ExprKind::imin || b->kind == ir::ExprKind::imin) {
    // min(128, S) against S: S <= 128 in every run.
    ExprRef m = a->kind == ir::ExprKind::imin ? a : b;
    ExprRef other = m == a ? b : a;
    if (m->args[0] == other || m->args[1] == other) {
      ExprRef limit = m->args[0] == other ? m->args[1] : m->args[0];
      // A mask cut to the keys there are, min(P + S, T): a longer T has no use, and T = P + S is what the next round can compute with.
      if (equal_to_sum(limit, other)) return other;
      if (limit->kind == ir::ExprKind::symbol && other->kind == ir::ExprKind::symbol) {
        same_size(other->name, limit->name);
        return other;
      }
      TFCC_TRY_VOID(require_ge0(ir::sub(limit, other), fmt::format("{} must be at most {}", shown(other), shown(limit))));
      return other;
    }
  }
  if (a->kind == ir::ExprKind::symbol && b->kind == ir::ExprKind::symbol) {
    same_size(a->name, b->name);
    return a;
  }
  if (auto pair = two_symbols(difference)) {  // P + S against P + T
    same_size(pair->first->name, pair->second->name);
    return a;
  }
  // The length of a mask against that of the past and the new tokens: one size less.
  for (auto [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
    if (equal_to_sum(x, y)) return y;
  }
  if (auto fixed = solved(without_common_sizes(*this, difference)); fixed && fixed->second >= 0) {
    found.fixed.insert(*fixed);
    found.reason.emplace(fixed->first, fmt::format("size {} is always {}: {} must equal {} at node '{}'", fixed->first, fixed->second, shown(a),
                                             shown(b), node->name));
    return ir::as_int(a) ? a : b;
  }
  for (auto [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
    if (x->kind != ir::ExprKind::symbol) continue;
    const std::optional<int64_t> limit = upper_bound(y);
    if (limit && !ir::prove_ge0(ir::sub(integer(*limit), x))) {
      TFCC_TRY_VOID(require_ge0(ir::sub(integer(*limit), x), fmt::format("{} must be at most {}", shown(x), *limit)));
      return x;
    }
  }
  graph.checks.push_back({ir::eq(a, b), fmt::format("{} must equal {}", shown(a), shown(b))});
  return a;
}

namespace {

// True if `e` cannot fall when a size in it grows: sums and quotients by constants, as windows count.
bool grows_with_sizes(ExprRef e) {
  switch (e->kind) {
    case ir::ExprKind::symbol: return true;
    case ir::ExprKind::poly:
      return std::all_of(e->terms.begin(), e->terms.end(), [](const ir::Term& t) {
        return t.coefficient > 0 && t.atoms.size() == 1 && grows_with_sizes(t.atoms[0]);
      });
    case ir::ExprKind::floordiv: return ir::as_int(e->args[1]) && grows_with_sizes(e->args[0]);
    case ir::ExprKind::imin:
    case ir::ExprKind::imax: return grows_with_sizes(e->args[0]) && grows_with_sizes(e->args[1]);
    default: return false;
  }
}

constexpr int64_t kLargestLeast = int64_t{1} << 20;  // of a size: a second of audio is some ten thousand samples

// The one size in `e` and the least value at which e >= 0, where e grows with it.
std::optional<std::pair<std::string, int64_t>> least_size(ExprRef e) {
  std::string name;
  bool single = grows_with_sizes(e);
  ir::for_each_node(e, [&](ExprRef n) {
    if (n->kind != ir::ExprKind::symbol) return;
    single = single && (name.empty() || name == n->name);
    name = n->name;
  });
  if (!single || name.empty()) return std::nullopt;
  auto holds = [&](int64_t size) { return ir::eval_size(e, [&](std::string_view) { return size; }) >= 0; };
  int64_t low = 0, high = kLargestLeast;  // holds at high, not at low
  if (holds(low) || !holds(high)) return std::nullopt;
  while (high - low > 1) (holds(low + (high - low) / 2) ? high : low) = low + (high - low) / 2;
  return std::pair{name, high};
}

}  // namespace

Result<void> Importer::require_ge0(ExprRef e, const std::string& what) {
  if (ir::prove_ge0(e)) return {};
  if (auto v = ir::as_int(e)) return fail(ErrorCode::shape, what);
  // c - S >= 0 is a range of S, which simplification can use: a fact for the next round.
  if (e->kind == ir::ExprKind::poly && e->terms.size() == 1 && e->terms[0].atoms.size() == 1 &&
      e->terms[0].coefficient == -1 && e->terms[0].atoms[0]->kind == ir::ExprKind::symbol) {
    const std::string& name = e->terms[0].atoms[0]->name;
    auto [it, added] = found.max.emplace(name, e->value);
    it->second = std::min(it->second, e->value);
    found.reason[name] = fail(ErrorCode::shape, what).message;
    return {};
  }
  if (auto least = least_size(e)) {
    int64_t& min = found.min[least->first];
    min = std::max(min, least->second);
  }
  graph.checks.push_back({ir::le(integer(0), e), what});
  return {};
}

// b*T + j into a flattened [B, M], or j < T into [.., M], with T from other inputs: what the graph means is M = T. Stricter than an index in range,
// and said as a size that differs instead of a bad index. True if a symbol of n is now known in terms of others.
bool Importer::equal_by_index(ExprRef e, ExprRef n) {
  std::vector<ExprRef> sizes, symbols;
  ir::for_each_node(e, [&](ExprRef x) {
    if (x->kind == ir::ExprKind::index && !ir::as_int(x->args[0])) sizes.push_back(x->args[0]);
  });
  ir::for_each_node(n, [&](ExprRef x) {
    if (x->kind == ir::ExprKind::symbol && !known_.equal.count(x->name)) symbols.push_back(x);
  });
  for (ExprRef m : symbols) {
    for (ExprRef t : sizes) {
      bool inside = false;
      ir::for_each_node(t, [&](ExprRef x) { inside |= x == m; });
      if (inside) continue;
      ExprRef whole = ir::rewrite(n, [&](ExprRef x) { return x == m ? t : nullptr; });
      if (!ir::prove_ge0(e) || !ir::prove_le(e, ir::sub(whole, integer(1)))) continue;
      found.equal[m->name] = ir::print(t);
      return true;
    }
  }
  return false;
}

Result<ExprRef> Importer::gather_index(ExprRef e, ExprRef n) {
  ExprRef wrapped = ir::select(ir::lt(e, integer(0)), ir::add(e, n), e);
  ExprRef room = ir::sub(ir::sub(n, integer(1)), wrapped);
  if (ir::prove_ge0(wrapped) && ir::prove_ge0(room)) return wrapped;
  if (ir::as_int(wrapped) && ir::as_int(n)) return fail(ErrorCode::shape, fmt::format("index {} lies outside [0, {})", shown(e), shown(n)));
  std::vector<ValueId> loads = ir::loads_of(e);
  if (loads.empty() && equal_by_index(wrapped, n)) return wrapped;  // holds from the next round on
  if (loads.empty() && wrapped->kind == ir::ExprKind::index && ir::as_int(n)) {
    ExprRef extent = wrapped->args[0];
    TFCC_TRY_VOID(require_ge0(ir::sub(n, extent), fmt::format("{} must be at most {}", shown(extent), shown(n))));
    return wrapped;
  }
  std::vector<ValueId> sources = ir::loads_of(ir::expand(graph, e, [](ValueId) { return true; }));
  std::string name = sources.empty() ? "index of " + value_name(0) : graph.value(sources[0]).name;
  std::string message = fmt::format("{}: a value lies outside [0, {})", name, shown(n));
  auto it = std::find(graph.flags.begin(), graph.flags.end(), message);
  const int64_t flag = it - graph.flags.begin();
  if (it == graph.flags.end()) graph.flags.push_back(message);
  return ir::bounded(wrapped, n, flag);
}

Result<size_t> Importer::axis_of(int64_t axis, size_t rank) const {
  const int64_t r = static_cast<int64_t>(rank);
  if (axis < -r || axis >= r) return fail(ErrorCode::shape, fmt::format("axis {} is out of range for rank {}", axis, rank));
  return static_cast<size_t>(axis < 0 ? axis + r : axis);
}

std::string Importer::value_name(size_t output) const {
  return output < node->outputs.size() ? node->outputs[output] : std::string("value");
}

ValueId Importer::add_pointwise(ExprRef free_body, DType dtype, const Dims& dims, std::string name) {
  // What has no elements reads none: its indices divide by sizes of 0.
  if (std::any_of(dims.begin(), dims.end(), [](ExprRef d) { return ir::is_int(d, 0); })) free_body = zero_of(*this, ir::scalar_of(dtype));
  ir::Captured c = ir::capture(free_body);
  return graph.add_pointwise(std::move(c.operands), c.body, {dtype, dims}, std::move(name), node->name);
}

ValueId Importer::pointwise(ExprRef free_body, DType dtype, const Dims& dims, std::string_view suffix) {
  return add_pointwise(free_body, dtype, dims, value_name(0) + std::string(suffix));
}

ValueId Importer::define(size_t output, ExprRef free_body, DType dtype, const Dims& dims) {
  ValueId v = add_pointwise(free_body, dtype, dims, value_name(output));
  define(output, v);
  return v;
}

void Importer::define(size_t output, ValueId v) {
  if (output < node->outputs.size() && !node->outputs[output].empty()) values[node->outputs[output]] = v;
}

ValueId transpose(Importer& im, ValueId v, const std::vector<size_t>& perm, std::string_view suffix) {
  Dims to;
  for (size_t p : perm) to.push_back(im.dims(v)[p]);
  const Indices at = im.index_vars(to);
  Indices from(perm.size());
  for (size_t k = 0; k < perm.size(); ++k) from[perm[k]] = at[k];
  return im.pointwise(im.element(v, from), im.type(v).dtype, to, suffix);
}

ValueId reduction(Importer& im, ir::ReduceKind kind, ExprRef free_body, const Dims& extents, const Type& type, std::string_view suffix) {
  ir::ReduceAttrs attrs;
  attrs.kind = kind;
  attrs.extents = extents;
  ir::Captured c = ir::capture(free_body);
  attrs.body = c.body;
  return im.graph.add(ir::OpKind::reduce, c.operands, attrs, type, im.value_name(0) + std::string(suffix), im.node->name);
}

Indices variables(Importer& im, const Dims& dims, size_t first) {
  Indices at;
  for (size_t k = 0; k < dims.size(); ++k) at.push_back(im.pool().index(static_cast<int64_t>(first + k), dims[k]));
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

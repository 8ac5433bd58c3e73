// SPDX-License-Identifier: Apache-2.0
#include "ir/elements.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

namespace tfcc::ir {

ExprRef load_of(const Graph& graph, ValueId v, std::vector<ExprRef> indices) {
  return graph.pool().load(v.value, graph.value(v).type.dtype, std::move(indices));
}

ExprRef free_expr(const Graph& graph, OpId o, ExprRef expr, const std::vector<ExprRef>& indices) {
  const Op& op = graph.op(o);
  return rewrite(expr, [&](ExprRef n) -> ExprRef {
    if (n->kind == ExprKind::load)
      return n->pool->load(op.operands[n->value].value, n->dtype, n->args);
    if (n->kind == ExprKind::index && static_cast<size_t>(n->value) < indices.size())
      return indices[n->value];
    return n->has_load || n->has_index ? nullptr : n;
  });
}

bool has_elements(const Graph& graph, ValueId v) {
  const Op* op = graph.def(v);
  return op && op->kind == OpKind::pointwise;
}

ExprRef element_of(const Graph& graph, ValueId v, const std::vector<ExprRef>& indices) {
  TFCC_CHECK(has_elements(graph, v));
  return free_expr(graph, graph.value(v).def, graph.def(v)->as<PointwiseAttrs>().body, indices);
}

namespace {

// A definition is expanded once per load. The reach keeps the cost of a chain of a hundred thousand
// ops at its length, not its square, and the stack shallow.
class Expander {
 public:
  Expander(const Graph& graph, const InlinePolicy& inline_it, Reach reach)
      : graph_(graph), inline_it_(inline_it), reach_(reach) {}

  ExprRef run(ExprRef e) {
    return rewrite(e, [this](ExprRef n) -> ExprRef {
      return n->kind == ExprKind::load ? inlined(n) : n->has_load ? nullptr : n;
    });
  }

 private:
  ExprRef inlined(ExprRef load) {
    const ValueId v{static_cast<uint32_t>(load->value)};
    if (!has_elements(graph_, v) || !inline_it_(v)) return nullptr;
    if (auto it = memo_.find(load); it != memo_.end()) return it->second;
    if (depth_ == reach_.depth || inlined_ == reach_.loads) return nullptr;
    ++depth_;
    ++inlined_;
    ExprRef e = run(element_of(graph_, v, load->args));
    --depth_;
    memo_.emplace(load, e);
    return e;
  }

  const Graph& graph_;
  const InlinePolicy& inline_it_;
  std::unordered_map<ExprRef, ExprRef> memo_;
  Reach reach_;
  size_t depth_ = 0, inlined_ = 0;
};

}  // namespace

ExprRef expand(const Graph& graph, ExprRef free, const InlinePolicy& inline_it, Reach reach) {
  return Expander(graph, inline_it, reach).run(free);
}

std::vector<ValueId> loads_of(ExprRef free) {
  std::vector<ValueId> out;
  if (!free->has_load) return out;
  for_each_node(free, [&](ExprRef n) {
    if (n->kind != ExprKind::load) return;
    const ValueId v{static_cast<uint32_t>(n->value)};
    if (std::find(out.begin(), out.end(), v) == out.end()) out.push_back(v);
  });
  return out;
}

std::vector<ExprRef> capture(const std::vector<ExprRef>& free, std::vector<ValueId>& operands) {
  std::vector<ExprRef> bodies;
  const size_t fixed = operands.size();
  const auto find = [&](ValueId v) {
    return std::find(operands.begin() + fixed, operands.end(), v);
  };
  for (ExprRef e : free) {
    if (!e) {
      bodies.push_back(nullptr);
      continue;
    }
    for (ValueId v : loads_of(e)) {
      if (find(v) == operands.end()) operands.push_back(v);
    }
    bodies.push_back(rewrite(e, [&](ExprRef n) -> ExprRef {
      if (n->kind != ExprKind::load) return n->has_load ? nullptr : n;
      auto it = find(ValueId{static_cast<uint32_t>(n->value)});
      return n->pool->load(it - operands.begin(), n->dtype, n->args);
    }));
  }
  return bodies;
}

Captured capture(ExprRef free) {
  Captured c;
  c.body = capture(std::vector<ExprRef>{free}, c.operands)[0];
  return c;
}

namespace {

// The expressions among attributes that load operands.
struct BodyCollector {
  std::vector<ExprRef*>& out;
  void operator()(const char*, ExprRef& e) {
    if (e) out.push_back(&e);
  }
  void operator()(const char*, OptionalExpr& e) { (*this)("", e.expr); }
  template <class T> void operator()(const char*, T&) {}
};

}  // namespace

std::vector<ExprRef*> expressions_of(Op& op) {
  std::vector<ExprRef*> found;
  std::visit([&](auto& attrs) { attrs.visit(BodyCollector{found}); }, op.attrs);
  return found;
}

Poison poison_in(const Graph& graph, OpId o) {
  Op op = graph.op(o);
  for (ExprRef* e : expressions_of(op)) {
    if (poison_of(*e) != Poison::none) return poison_of(*e);
  }
  for (ValueId v : op.results) {
    for (ExprRef d : graph.value(v).type.dims) {
      if (poison_of(d) != Poison::none) return poison_of(d);
    }
  }
  return Poison::none;
}

ExprRef padded_element(const Graph& graph, ValueId row, ValueId packed,
                       std::vector<ExprRef> indices, int64_t flag) {
  ExprPool& pool = graph.pool();
  ExprRef at = load_of(graph, row, {indices[0], indices[1]});
  indices[0] = pool.integer(0);
  indices[1] = bounded(at, graph.value(packed).type.dims[1], flag);
  ExprRef element = load_of(graph, packed, std::move(indices));
  // A select, which loads nothing where there is no row: of conditions too, in numbers, for `and`
  // is not lazy.
  const bool condition = element->type == Scalar::boolean;
  if (condition) element = convert(element, Scalar::f32);
  ExprRef found = select(le(pool.integer(0), at), element, convert(pool.integer(0), element->type));
  return condition ? convert(found, Scalar::boolean) : found;
}

bool is_ragged(const Graph& graph) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(),
                     [&](ValueId v) { return graph.value(v).role == InputRole::cu_seqlens; });
}

void merge_operands(Graph& graph, OpId o) {
  const std::vector<ValueId> old = graph.op(o).operands;
  const size_t first = std::min(first_loaded(graph.op(o)), old.size());
  std::vector<ValueId> loaded(old.begin() + first, old.end());
  std::sort(loaded.begin(), loaded.end(), [](ValueId a, ValueId b) { return a.value < b.value; });
  if (std::adjacent_find(loaded.begin(), loaded.end()) == loaded.end()) return;
  const std::vector<ExprRef*> bodies = expressions_of(graph.op(o));
  if (bodies.empty()) return;
  std::vector<ExprRef> free;
  for (ExprRef* e : bodies) free.push_back(free_expr(graph, o, *e, {}));
  std::vector<ValueId> operands(old.begin(), old.begin() + first);
  free = capture(free, operands);
  for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
  graph.set_operands(o, operands);
}

bool has_loads(ExprRef e) { return e->has_load; }

bool has_reals(ExprRef e) {
  bool found = false;
  for_each_node(
      e, [&](ExprRef n) { found = found || n->type == Scalar::f32 || n->type == Scalar::f64; });
  return found;
}

bool uses_index(ExprRef e, int64_t number) {
  bool found = false;
  for_each_node(e, [&](ExprRef n) {
    found |= n->kind == ExprKind::index && (number < 0 || n->value == number);
  });
  return found;
}

namespace {

// Among attributes, each expression.
struct Transfer {
  ExprPool& pool;
  void operator()(const char*, ExprRef& e) {
    if (e) e = transfer(e, pool);
  }
  void operator()(const char*, std::vector<ExprRef>& list) {
    for (ExprRef& e : list) e = transfer(e, pool);
  }
  void operator()(const char*, OptionalExpr& e) { (*this)("", e.expr); }
  void operator()(const char*, OptionalDims& d) { (*this)("", d.dims); }
  template <class T> void operator()(const char*, T&) {}
};

}  // namespace

Graph with_own_pool(const Graph& graph) {
  Graph out(graph.name);
  ExprPool& pool = out.pool();
  for (SizeSymbol s : graph.symbols) {
    pool.set_range(s.name, graph.pool().range(s.name));
    if (s.formula) s.formula = transfer(s.formula, pool);
    if (s.bound) s.bound = transfer(s.bound, pool);
    out.symbols.push_back(std::move(s));
  }
  const auto type_of = [&](ValueId v) {
    Type t = graph.value(v).type;
    for (ExprRef& d : t.dims) d = transfer(d, pool);
    return t;
  };
  std::vector<ValueId> at(graph.value_count());
  for (ValueId v : graph.inputs()) {
    at[v.value] = out.add_input(graph.value(v).name, type_of(v));
    out.set_role(at[v.value], graph.value(v).role);
  }
  for (OpId o : graph.order()) {
    const Op& op = graph.op(o);
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(at[v.value]);
    std::vector<Type> types;
    std::vector<std::string> names;
    for (ValueId v : op.results) {
      types.push_back(type_of(v));
      names.push_back(graph.value(v).name);
    }
    Attrs attrs = op.attrs;
    std::visit([&](auto& a) { a.visit(Transfer{pool}); }, attrs);
    const OpId made = out.add_op(op.kind, std::move(operands), std::move(attrs), std::move(types),
                                 std::move(names), op.origin);
    for (size_t k = 0; k < op.results.size(); ++k) at[op.results[k].value] = out.result(made, k);
  }
  for (const SizeCheck& c : graph.checks)
    out.checks.push_back({transfer(c.condition, pool), c.message});
  out.flags = graph.flags;
  for (const Graph::Output& o : graph.outputs) out.outputs.push_back({o.name, at[o.value.value]});
  return out;
}

ExprRef summed_count(const CumsumAttrs& attrs, ExprRef k, ExprRef n) {
  ExprRef one = k->pool->integer(1), before = attrs.reverse ? sub(sub(n, one), k) : k;
  return attrs.exclusive ? before : add(before, one);
}

std::span<const StateOf> states_of(const Op& op) {
  static constexpr StateOf kCache[] = {{0, 0}, {1, 1}}, kSums[] = {{6, 1}}, kRows[] = {{4, 1}};
  switch (op.kind) {
    case OpKind::kv_append:
    case OpKind::rope_append: return kCache;
    case OpKind::linear_attention_step: return kSums;
    case OpKind::earlier_rows: return kRows;
    default: return {};
  }
}

bool is_state_before(const Graph& graph, ValueId v) {
  return std::any_of(graph.value(v).users.begin(), graph.value(v).users.end(), [&](OpId u) {
    const auto states = states_of(graph.op(u));
    return std::any_of(states.begin(), states.end(),
                       [&](StateOf s) { return graph.op(u).operands[s.operand] == v; });
  });
}

bool is_state(const Graph& graph, ValueId v) {
  return graph.def(v) && state_before(graph, v).valid();
}

ValueId state_before(const Graph& graph, ValueId v) {
  const Op& op = *graph.def(v);
  for (StateOf s : states_of(op)) {
    if (op.results[s.result] == v) return op.operands[s.operand];
  }
  return {};
}

size_t plain_outputs(const Graph& graph) {
  const auto is_it = [&](const Graph::Output& o) { return is_state(graph, o.value); };
  return static_cast<size_t>(std::find_if(graph.outputs.begin(), graph.outputs.end(), is_it) -
                             graph.outputs.begin());
}

bool normalises(const LinearAttentionAttrs& attrs) {
  bool found = false;
  if (attrs.epilogue)
    for_each_node(attrs.epilogue,
                  [&](ExprRef n) { found |= n->kind == ExprKind::param && n->name == "z"; });
  return found;
}

bool decays_apart(const Graph& graph, const LinearAttentionAttrs& attrs) {
  if (!attrs.decay || attrs.heads == attrs.kv_heads) return false;
  ExprPool& pool = graph.pool();
  ExprRef h = pool.index(kOfHead, pool.integer(attrs.heads)),
          group = pool.integer(attrs.heads / attrs.kv_heads),
          g = pool.index(kOfChannel + 1, pool.integer(attrs.kv_heads)),
          own = pool.index(kOfChannel + 2, group);
  ExprRef decay =
      rewrite(attrs.decay, [&](ExprRef n) { return n == h ? add(mul(g, group), own) : nullptr; });
  return uses_index(decay, kOfChannel + 2);
}

std::vector<ExprRef> indices_of(const Graph& graph, ValueId v) {
  return indices_of(graph.pool(), graph.value(v).type.dims);
}

std::vector<ExprRef> broadcast_indices(ExprPool& pool, const std::vector<ExprRef>& dims,
                                       std::span<const ExprRef> at) {
  std::vector<ExprRef> own;
  const size_t skip = at.size() - dims.size();
  for (size_t k = 0; k < dims.size(); ++k)
    own.push_back(is_int(dims[k], 1) ? pool.integer(0) : at[skip + k]);
  return own;
}

ExprRef linear_index(ExprPool& pool, const std::vector<ExprRef>& indices,
                     const std::vector<ExprRef>& dims) {
  ExprRef position = pool.integer(0);
  for (size_t k = 0; k < dims.size(); ++k) position = add(mul(position, dims[k]), indices[k]);
  return position;
}

namespace {

ExprRef product(ExprPool& pool, const std::vector<ExprRef>& dims, size_t first, size_t last) {
  ExprRef p = pool.integer(1);
  for (size_t k = first; k < last; ++k) p = mul(p, dims[k]);
  return p;
}

// Ends [i, j) of the next groups of equal product in a and b.
void next_group(ExprPool& pool, const std::vector<ExprRef>& a, const std::vector<ExprRef>& b,
                size_t& i, size_t& j) {
  ExprRef pa = pool.integer(1), pb = pool.integer(1);
  const size_t i0 = i, j0 = j;
  auto take_a = [&] { pa = mul(pa, a[i++]); };
  auto take_b = [&] { pb = mul(pb, b[j++]); };
  while (true) {
    const bool more_a = i < a.size(), more_b = j < b.size();
    if (more_a && i == i0) take_a();
    else if (more_b && j == j0) take_b();
    else if (pa == pb || (!more_a && !more_b)) return;
    else if (more_a && (!more_b || exact_div(pb, pa))) take_a();
    else if (!more_a || exact_div(pa, pb)) take_b();
    else take_a(), take_b();
  }
}

}  // namespace

std::vector<ExprRef> reshape_indices(ExprPool& pool, const std::vector<ExprRef>& indices,
                                     const std::vector<ExprRef>& to,
                                     const std::vector<ExprRef>& from) {
  // Dims of 1 carry no index; what is left is matched group by group.
  std::vector<ExprRef> to_dims, to_index, from_dims;
  std::vector<size_t> from_axis;
  for (size_t k = 0; k < to.size(); ++k) {
    if (is_int(to[k], 1)) continue;
    to_dims.push_back(to[k]);
    to_index.push_back(indices[k]);
  }
  for (size_t k = 0; k < from.size(); ++k) {
    if (is_int(from[k], 1)) continue;
    from_dims.push_back(from[k]);
    from_axis.push_back(k);
  }
  std::vector<ExprRef> result(from.size(), pool.integer(0));
  size_t i = 0, j = 0;
  while (i < from_dims.size() || j < to_dims.size()) {
    const size_t i0 = i, j0 = j;
    next_group(pool, from_dims, to_dims, i, j);
    ExprRef position = pool.integer(0);
    for (size_t k = j0; k < j; ++k) position = add(mul(position, to_dims[k]), to_index[k]);
    for (size_t k = i0; k < i; ++k) {
      ExprRef q = div(position, product(pool, from_dims, k + 1, i));
      result[from_axis[k]] = k == i0 ? q : mod(q, from_dims[k]);
    }
  }
  return result;
}

std::optional<Band> band_of(ExprRef condition, ExprRef queries, ExprRef keys) {
  if (condition->kind != ExprKind::ge0) return std::nullopt;
  ExprPool& pool = *condition->pool;
  const std::vector<ExprRef> at = indices_of(pool, {queries, queries, queries, keys});
  ExprRef ahead = add(sub(at[2], at[3]),
                      sub(keys, queries));  // j <= i + keys - queries exactly if this is >= 0
  if (auto n = as_int(sub(condition->args[0], ahead)); n && *n >= 0) return Band{false, *n};
  if (auto n = as_int(add(condition->args[0], ahead)); n && *n >= 0) return Band{true, *n};
  return std::nullopt;
}

namespace {

struct Values {
  DType dtype;
  std::vector<int64_t> dims;
  std::vector<std::byte> bytes;
  int64_t count = 1;
};

ExprRef literal(ExprPool& pool, const Values& v, int64_t i) {
  if (is_float(v.dtype))
    return pool.real(read_real(v.dtype, v.bytes.data(), i), scalar_of(v.dtype));
  if (v.dtype == DType::boolean) return pool.boolean(read_int(v.dtype, v.bytes.data(), i) != 0);
  return pool.integer(read_int(v.dtype, v.bytes.data(), i));
}

bool uniform(const Values& v) {
  const size_t n = size_of(v.dtype);
  for (int64_t i = 1; i < v.count; ++i) {
    if (!std::equal(v.bytes.begin(), v.bytes.begin() + n, v.bytes.begin() + i * n)) return false;
  }
  return true;
}

std::vector<int64_t> strides_of(const std::vector<int64_t>& dims) {
  std::vector<int64_t> s(dims.size(), 1);
  for (size_t k = dims.size(); k-- > 1;) s[k - 1] = s[k] * dims[k];
  return s;
}

// value[i...] = first + sum of step[k] * i[k]: position and token type buffers.
ExprRef affine(ExprPool& pool, const Values& v, const std::vector<ExprRef>& indices) {
  if (!is_integer(v.dtype)) return nullptr;
  auto at = [&](int64_t i) { return read_int(v.dtype, v.bytes.data(), i); };
  const std::vector<int64_t> strides = strides_of(v.dims);
  std::vector<int64_t> step(v.dims.size(), 0);
  for (size_t k = 0; k < v.dims.size(); ++k) {
    if (v.dims[k] > 1) step[k] = at(strides[k]) - at(0);
  }
  for (int64_t i = 0; i < v.count; ++i) {
    int64_t expected = at(0), rest = i;
    for (size_t k = 0; k < v.dims.size(); ++k) {
      expected += step[k] * (rest / strides[k]);
      rest %= strides[k];
    }
    if (at(i) != expected) return nullptr;
  }
  ExprRef e = pool.integer(at(0));
  for (size_t k = 0; k < v.dims.size(); ++k) e = add(e, mul(pool.integer(step[k]), indices[k]));
  return e;
}

// Two values that depend on the distance of the last index from the one before it alone: a tril, or
// a window around the diagonal.
ExprRef band(ExprPool& pool, const Values& v, const std::vector<ExprRef>& indices) {
  const size_t rank = v.dims.size();
  if (rank < 2) return nullptr;
  const int64_t rows = v.dims[rank - 2], columns = v.dims[rank - 1];
  if (rows < 2 || columns < 2 || v.count != rows * columns) return nullptr;
  const size_t n = size_of(v.dtype);
  auto same = [&](int64_t a, int64_t b) {
    return std::equal(v.bytes.begin() + a * n, v.bytes.begin() + (a + 1) * n,
                      v.bytes.begin() + b * n);
  };
  auto at_distance = [&](int64_t t) { return t < 0 ? -t * columns : t; };
  // Where the value along the first column upwards and the first row changes: at most twice, and
  // back to what it was.
  std::vector<int64_t> changes;
  for (int64_t t = 2 - rows; t < columns; ++t) {
    if (!same(at_distance(t - 1), at_distance(t))) changes.push_back(t);
    if (changes.size() > 2) return nullptr;
  }
  if (changes.empty()) return nullptr;  // cost: the next loop would find a difference
  const int64_t outside = at_distance(1 - rows), inside = at_distance(changes[0]);
  if (changes.size() == 2 && !same(outside, at_distance(changes[1]))) return nullptr;
  for (int64_t i = 0; i < v.count; ++i) {
    if (!same(i, at_distance(i % columns - i / columns))) return nullptr;
  }
  ExprRef row = indices[rank - 2], column = indices[rank - 1];
  auto from = [&](int64_t t) { return le(add(row, pool.integer(t)), column); };
  if (changes.size() == 1)
    return select(logical_not(from(changes[0])), literal(pool, v, outside),
                  literal(pool, v, inside));
  return select(logical_and(from(changes[0]), logical_not(from(changes[1]))),
                literal(pool, v, inside), literal(pool, v, outside));
}

}  // namespace

ExprRef constant_element(ExprPool& pool, const Constant& c, const std::vector<ExprRef>& indices,
                         int64_t largest) {
  Values v{c.result_dtype(), c.result_dims(), {}, c.element_count()};
  if (v.count == 0 || v.count * static_cast<int64_t>(size_of(v.dtype)) > largest) return nullptr;
  if (c.source != Constant::Source::bytes && c.source != Constant::Source::file) return nullptr;
  auto bytes = materialize(c);
  if (!bytes) return nullptr;
  v.bytes = *std::move(bytes);
  bool all_constant = true;
  int64_t position = 0;
  for (size_t k = 0; k < indices.size(); ++k) {
    auto i = as_int(indices[k]);
    if (!i || *i < 0 || *i >= v.dims[k]) {
      all_constant = false;
      break;
    }
    position = position * v.dims[k] + *i;
  }
  if (all_constant) return literal(pool, v, position);
  if (uniform(v)) return literal(pool, v, 0);
  if (ExprRef e = affine(pool, v, indices)) return e;
  return band(pool, v, indices);
}

}  // namespace tfcc::ir

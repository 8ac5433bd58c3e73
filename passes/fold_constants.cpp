// SPDX-License-Identifier: Apache-2.0
// fold-constants: a small op whose operands are all constants becomes a constant.
//   before: const @a : f32[2] = [1.0, 2.0]        %y = pointwise(@a) {body = (i) => @a[i] * 2.0} : f32[2]
//   after:  const @y : f32[2] = [2.0, 4.0]
// Requires: every operand constant and at most 64 KiB; the result's dims known and at most 64 KiB;
// no size in the body, no random source, no flag raised. A sum over an integer constant, read at
// plain indices, is folded whatever its size: the column sums of a quantised weight, with which a
// zero point of the activations is multiplied.
//   before: const @w : i8[2,2] = [1, 2, 3, 4]     %s = reduce(@w) {body = (i,j) => @w[j,i], extents = [2], kind = sum} : i32[2]
//   after:  const @s : i32[2] = [4, 6]
// So is an integer constant plus a number, by a step of its recipe: what is multiplied of an
// unsigned weight. CPUs multiply signed ones fastest.
//   before: const @w : u8[2,2] = [..]             %s = pointwise(@w) {body = (i,j) => @w[i,j] - 128} : i8[2,2]
//   after:  const @s : i8[2,2] = [..] |> add(-128, i8)
#include "ir/ir.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kLargest = 64 * 1024;

std::optional<std::vector<int64_t>> known_dims(const ir::Type& t) {
  std::vector<int64_t> dims;
  int64_t bytes = static_cast<int64_t>(size_of(t.dtype));
  for (ExprRef d : t.dims) {
    auto n = ir::as_int(d);
    if (!n) return std::nullopt;
    dims.push_back(*n);
    bytes *= *n;
    if (bytes > kLargest) return std::nullopt;
  }
  return dims;
}

// Values of the operands, or nothing if one is not a small constant.
std::optional<std::vector<std::vector<std::byte>>> operand_bytes(const Graph& g, const ir::Op& op) {
  std::vector<std::vector<std::byte>> out;
  for (ValueId v : op.operands) {
    const ir::Constant* c = g.constant(v);
    if (!c || (c->source != ir::Constant::Source::bytes && c->source != ir::Constant::Source::file))
      return std::nullopt;
    if (!known_dims(g.value(v).type))
      return std::nullopt;  // cost: large operands of a small result
    auto bytes = ir::materialize(*c);
    if (!bytes) return std::nullopt;
    out.push_back(*std::move(bytes));
  }
  return out;
}

// Row-major position of indices in an operand.
size_t position(const Graph& g, ValueId v, std::span<const int64_t> at) {
  const auto& dims = g.value(v).type.dims;
  int64_t p = 0;
  for (size_t k = 0; k < dims.size(); ++k) p = p * *ir::as_int(dims[k]) + at[k];
  return static_cast<size_t>(p);
}

bool reads_a_size(ExprRef e) {
  bool any = false;
  ir::for_each_node(e, [&](ExprRef n) { any |= n->kind == ir::ExprKind::symbol; });
  return any;
}

bool fold(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const ValueId result = op.results[0];
  const ir::Type type = g.value(result).type;
  if (op.operands.empty()) return false;  // sizes and literals are inlined, not stored
  auto dims = known_dims(type);
  if (!dims) return false;
  const ExprRef body = op.as<ir::PointwiseAttrs>().body;
  if (reads_a_size(body))
    return false;  // a row of a table picked by a size: known when the model runs
  auto operands = operand_bytes(g, op);
  if (!operands) return false;
  int64_t count = 1;
  for (int64_t d : *dims) count *= d;
  std::vector<std::byte> bytes(count * size_of(type.dtype));
  std::vector<int64_t> at(dims->size());
  ir::ScalarEnv env;
  env.load = [&](int64_t slot, std::span<const int64_t> i, int64_t& integer, double& real) {
    const ValueId v = op.operands[slot];
    const DType t = g.value(v).type.dtype;
    const size_t p = position(g, v, i);
    if (is_float(t)) real = ir::read_real(t, (*operands)[slot].data(), p);
    else integer = ir::read_int(t, (*operands)[slot].data(), p);
  };
  bool flagged = false;
  env.flag = [&](int64_t) { flagged = true; };
  for (int64_t p = 0; p < count; ++p) {
    int64_t rest = p;
    for (size_t k = at.size(); k-- > 0; rest /= (*dims)[k]) at[k] = rest % (*dims)[k];
    env.indices = at;
    const ir::ScalarValue v = ir::eval_expr(body, env);
    if (is_float(type.dtype)) ir::write_real(type.dtype, bytes.data(), p, v.r);
    else ir::write_int(type.dtype, bytes.data(), p, v.i);
  }
  if (flagged) return false;
  ValueId c = g.add_constant(g.value(result).name,
                             ir::constant_from_bytes(type.dtype, *dims, std::move(bytes)));
  g.replace_uses(result, c);
  return true;
}

// Sizes and distances in memory of the index variables of a load from a constant.
struct Walk {
  std::vector<int64_t> extents, strides;
  int64_t start = 0;
};

std::optional<Walk> walk_of(ExprRef load, const std::vector<int64_t>& dims,
                            const std::vector<ExprRef>& extents) {
  Walk w{{}, std::vector<int64_t>(extents.size(), 0), 0};
  for (ExprRef e : extents) {
    auto n = ir::as_int(e);
    if (!n) return std::nullopt;
    w.extents.push_back(*n);
  }
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0; stride *= dims[d]) {
    ExprRef i = load->args[d];
    if (i->kind == ir::ExprKind::index) w.strides[static_cast<size_t>(i->value)] += stride;
    else if (auto n = ir::as_int(i)) w.start += *n * stride;
    else return std::nullopt;
  }
  return w;
}

// Calls f(position) for all indices from number `from` on.
template <class F>
void for_each_position(const Walk& w, size_t from, int64_t position, const F& f) {
  if (from == w.extents.size()) return f(position);
  for (int64_t i = 0; i < w.extents[from]; ++i)
    for_each_position(w, from + 1, position + i * w.strides[from], f);
}

bool fold_sum(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const auto& attrs = op.as<ir::ReduceAttrs>();
  const ir::Type type = g.value(op.results[0]).type;
  if (attrs.kind != ir::ReduceKind::sum || attrs.body->kind != ir::ExprKind::load) return false;
  const ir::Constant* c = g.constant(op.operands[0]);
  if (!c || is_float(type.dtype)) return false;
  std::vector<ExprRef> extents = type.dims;
  extents.insert(extents.end(), attrs.extents.begin(), attrs.extents.end());
  const DType from = c->result_dtype();
  auto walk = walk_of(attrs.body, c->result_dims(), extents);
  if (!walk) return false;
  auto values = ir::materialize(*c);
  if (!values) return false;
  Walk outer = *walk;
  outer.extents.resize(type.rank());
  std::vector<std::byte> sums;
  for_each_position(outer, 0, walk->start, [&](int64_t start) {
    uint64_t sum = 0;  // wraps
    for_each_position(*walk, type.rank(), start, [&](int64_t p) {
      sum += static_cast<uint64_t>(ir::read_int(from, values->data(), static_cast<size_t>(p)));
    });
    sums.resize(sums.size() + size_of(type.dtype));
    ir::write_int(type.dtype, sums.data(), sums.size() / size_of(type.dtype) - 1,
                  static_cast<int64_t>(sum));
  });
  const std::vector<int64_t> dims(walk->extents.begin(),
                                  walk->extents.begin() + static_cast<long>(type.rank()));
  g.replace_uses(op.results[0],
                 g.add_constant(g.value(op.results[0]).name,
                                ir::constant_from_bytes(type.dtype, dims, std::move(sums))));
  return true;
}

bool fold_number(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const ValueId y = op.results[0];
  const ExprRef body = op.as<ir::PointwiseAttrs>().body;
  if (body->terms.size() != 1) return false;  // no sum, or of several
  const ir::Term& term = body->terms[0];
  const bool plain = term.coefficient == 1 && term.atoms.size() == 1 &&
                     term.atoms[0]->kind == ir::ExprKind::load &&
                     term.atoms[0]->args == ir::indices_of(g, y);
  if (!plain) return false;
  const ir::Constant* c = g.constant(op.operands[0]);  // what is loaded is the only operand
  if (!c || g.value(op.operands[0]).type.dims != g.value(y).type.dims) return false;
  ir::Constant sum = *c;
  sum.steps.push_back({ir::ConstantStep::Kind::add, {body->value}, g.value(y).type.dtype});
  g.replace_uses(y, g.add_constant(g.value(y).name, sum));
  return true;
}

}  // namespace

PassReport fold_constants(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind == OpKind::pointwise)
      report.rewrites += fold(graph, o) || fold_number(graph, o);
    if (graph.op(o).kind == OpKind::reduce) report.rewrites += fold_sum(graph, o);
  }
  return report;
}

}  // namespace tfcc::passes

// SPDX-License-Identifier: Apache-2.0
// convert-precision-f16: f32 tensors inside the graph are stored as f16, and products multiply f16
// with f32 accumulation.
//   before: %h = matmul(%x, @w) : f32[B,S,64]
//   after:  const @w.f16 : f16[64,64] = ... |> cast(f16);  %h = matmul(%x.f16, @w.f16) : f16[B,S,64]
// convert-precision-bf16: the same with bf16. convert-precision-f32: the other way round, 16-bit
// tensors are stored as f32, for a target without 16-bit products. What only element expressions
// read and that gains nothing from 16 bits stays f32: single values, constant vectors (scales of
// quantised tensors), and integers turned into reals, which 16 bits cannot hold past 2048. Angles
// (what sin and cos are taken of) and tables of a rotary embedding stay f32. What is rounded to
// integers next (quantised) stays f32, with all that it is computed from up to the products; masks
// written as numbers beyond f16 stay within half of its range, since an infinity would make NaN of
// a row without keys. Graph inputs and outputs keep their types, but caches, which only attention
// reads. Running sums stay f32 with what they add up, in the same manner, and so do copies and
// differences of them. Expressions are not touched: they compute in f32, so a score's constants are
// never narrowed. Integers, booleans and f64 stay.
#include <algorithm>
#include <ranges>
#include <set>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// A pointwise copy of v in another type.
ValueId converted(Graph& g, ValueId v, DType to, const std::string& name) {
  ir::Captured c = ir::capture(ir::load_of(g, v, ir::indices_of(g, v)));
  return g.add_pointwise(c.operands, c.body, {to, g.value(v).type.dims}, name);
}

// `users` read `to` in place of `from`, whose type differs.
void read_instead(Graph& g, ValueId from, ValueId to, std::vector<OpId> users) {
  for (OpId u : users) {
    std::vector<ValueId> operands = g.op(u).operands;
    std::replace(operands.begin(), operands.end(), from, to);
    g.set_operands(u, operands);
  }
}

void read_instead(Graph& g, ValueId from, ValueId to) {
  read_instead(g, from, to, g.value(from).users);
}

// A product of integers, which an epilogue made real.
bool multiplies_integers(const Graph& g, const ir::Op& op) {
  if (op.kind != OpKind::matmul)
    return false;  // cost: other ops whose first operand is an integer compute in f32 anyway
  return is_integer(g.value(op.operands[0]).type.dtype);
}

// Its first result may have another type than what it reads: no conversion is needed after it.
bool stores_any_type(const Graph& g, const ir::Op& op) {
  switch (op.kind) {
    case OpKind::matmul: return multiplies_integers(g, op);
    case OpKind::pointwise:
    case OpKind::cumsum:
    case OpKind::norm: return true;
    default: return false;
  }
}

// Whatever type its operands have.
bool reads_any_type(const ir::Op& op) {
  return op.kind == OpKind::pointwise || op.kind == OpKind::reduce || op.kind == OpKind::cumsum;
}

bool is_narrow(DType t) { return t == DType::f16 || t == DType::bf16; }
bool is_single(DType t) { return t == DType::f32; }

// Expressions and sums take any mixture of types, and compute in f32; so do the epilogues of
// integers.
bool read_by_expressions(const Graph& g, ValueId v) {
  const auto& users = g.value(v).users;
  return std::all_of(users.begin(), users.end(), [&](OpId u) {
    return reads_any_type(g.op(u)) || multiplies_integers(g, g.op(u));
  });
}

bool stays_single(const Graph& g, ValueId v) {
  const ir::Op& op = *g.def(v);
  const auto& dims = g.value(v).type.dims;
  const bool one_value = ir::is_int(ir::element_count(g.pool(), dims), 1);
  const bool vector = op.kind == OpKind::constant && dims.size() == 1;
  const bool from_integer =
      op.kind == OpKind::pointwise && op.as<ir::PointwiseAttrs>().body->kind == ir::ExprKind::i2f;
  return (one_value || vector || from_integer) && read_by_expressions(g, v);
}

// The sums of a linear attention grow with the tokens: they are f32 in every program, before a step
// and after it.
bool has_sums(const ir::Op& op) { return ir::is_linear(op.kind) && op.results.size() == 2; }
bool takes_sums(const ir::Op& op, ValueId v) {
  return has_sums(op) && op.operands[op.kind == OpKind::linear_attention ? 3 : 6] == v;
}
bool is_sums(const Graph& g, ValueId v) {
  const ir::Op* def = g.def(v);
  if (def && has_sums(*def) && def->results[1] == v) return true;
  return std::ranges::any_of(g.value(v).users, [&](OpId u) { return takes_sums(g.op(u), v); });
}

// What is computed of sums by themselves, or of an input for them, is f32 too: they would be rounded
// where they enter, or leave.
bool makes_sums(const Graph& g, OpId o) {
  return g.op(o).kind == OpKind::pointwise && is_sums(g, g.result(o));
}
bool shows_sums(const Graph& g, ValueId v) {
  const ir::Op& op = *g.def(v);
  return op.kind == OpKind::pointwise && op.operands.size() == 1 && is_sums(g, op.operands[0]) &&
         read_by_expressions(g, v);
}

// What a linear attention takes for its decays or betas: products of thousands of them.
bool gates(const ir::Op& op, ValueId v) {
  if (!ir::is_linear(op.kind)) return false;
  const auto& attrs = op.as<ir::LinearAttentionAttrs>();
  bool found = false;
  for (ExprRef e : {attrs.decay, attrs.beta}) {
    if (!e) continue;
    ir::for_each_node(e, [&](ExprRef n) {
      found |= n->kind == ExprKind::load && op.operands[static_cast<size_t>(n->value)] == v;
    });
  }
  return found;
}

bool has_angles(const ir::Op& op) {
  bool found = false;
  const auto look = [&](ExprRef body) {
    ir::for_each_node(
        body, [&](ExprRef n) { found |= n->kind == ExprKind::sin || n->kind == ExprKind::cos; });
  };
  if (op.kind == OpKind::pointwise) look(op.as<ir::PointwiseAttrs>().body);
  if (op.kind == OpKind::reduce) look(op.as<ir::ReduceAttrs>().body);
  return found;
}

bool rotates(const ir::Op& op) { return op.kind == OpKind::rope || op.kind == OpKind::rope_append; }
// Whether operand i of such an op is one of its two tables.
bool is_table(const ir::Op& op, size_t i) {
  const size_t first = op.kind == OpKind::rope ? 1 : 6;
  return i == first || i == first + 1;
}

// Reads v inside a rounding to integers, as a quantisation does.
bool rounds(const ir::Op& op, ValueId v) {
  ExprRef body = op.kind == OpKind::pointwise ? op.as<ir::PointwiseAttrs>().body
                 : op.kind == OpKind::matmul  ? op.as<ir::MatmulAttrs>().epilogue
                                              : nullptr;
  bool found = false;
  if (body)
    ir::for_each_node(body, [&](ExprRef n) {
      if (n->kind != ExprKind::rint) return;
      ir::for_each_node(n, [&](ExprRef inner) {
        found |=
            inner->kind == ExprKind::load && op.operands[static_cast<size_t>(inner->value)] == v;
      });
    });
  return found;
}

// What a product multiplies: of one 16-bit type. What its epilogue loads may have any type, but for
// a bias alone, which libraries want in the type of the result.
bool is_factor(const ir::Op& op, ValueId v) {
  return op.kind == OpKind::matmul &&
         (op.operands[0] == v || (op.operands[1] == v && !op.as<ir::MatmulAttrs>().weight));
}
bool is_bias(const Graph& g, const ir::Op& product, ValueId v) {
  return ir::bias_of(g, product) == v;
}

// May v be f32 while products and attentions read 16 bits? A bias has the type of the result;
// softmax has one type for what it reads and writes.
bool may_stay_single(const Graph& g, ValueId v) {
  const OpId def = g.value(v).def;
  const ir::Op* op = g.def(v);
  if (!op || stores_any_type(g, *op) || op->kind == OpKind::reduce || op->kind == OpKind::constant)
    return true;
  const bool product = op->kind == OpKind::matmul;
  if (!product && op->kind != OpKind::softmax) return false;
  return std::ranges::all_of(op->operands, [&](ValueId x) {
    if (product && !is_bias(g, *op, x)) return true;
    const bool free = std::ranges::all_of(
        g.value(x).users, [&](OpId u) { return u == def || reads_any_type(g.op(u)); });
    return free && may_stay_single(g, x);
  });
}

// What sines and cosines are taken of, and the tables that rotate: an angle of thousands has no
// fraction left in 16 bits. Every reader of such a value must be one that may read several types;
// of a product both factors stay or none.
std::set<ValueId> angles(const Graph& g) {
  std::set<ValueId> keep;
  const auto may_stay = [&](ValueId v) {
    return std::ranges::all_of(g.value(v).users, [&](OpId u) {
      const ir::Op& op = g.op(u);
      const auto at = std::ranges::find(op.operands, v) - op.operands.begin();
      const bool mixed =
          reads_any_type(op) || (rotates(op) && is_table(op, static_cast<size_t>(at)));
      return mixed || std::ranges::all_of(op.results, [&](ValueId r) { return keep.count(r) > 0; });
    });
  };
  const auto& order = g.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const ir::Op& op = g.op(*it);
    const bool kept = std::ranges::all_of(op.results, [&](ValueId r) { return keep.count(r) > 0; });
    if (!kept && !has_angles(op) && !rotates(op)) continue;
    const auto stays = [&](ValueId v) { return may_stay(v) && may_stay_single(g, v); };
    const bool factors =
        std::ranges::all_of(op.operands, [&](ValueId v) { return !is_factor(op, v) || stays(v); });
    for (ValueId v : op.operands) {
      if (is_factor(op, v) ? factors : stays(v)) keep.insert(v);
    }
  }
  return keep;
}

// Whether the op reads v where it may have any type: in an expression, but for a bias alone, or in a
// sum.
bool reads_beside(const Graph& g, const ir::Op& op, ValueId v) {
  if (reads_any_type(op)) return true;
  switch (op.kind) {
    case OpKind::matmul: return !is_factor(op, v) && !is_bias(g, op, v);
    case OpKind::attention:
    case OpKind::linear_attention:
    case OpKind::linear_attention_step:
    case OpKind::norm: {
      const auto own = op.operands.begin() + static_cast<ptrdiff_t>(ir::first_loaded(op));
      return std::find(op.operands.begin(), own, v) == own;
    }
    default: return false;
  }
}

// What an expression adds up: whether nothing else is computed, and whether a running sum is among
// it. Parts of it may be masked.
struct Addends {
  const ir::Op& op;
  const std::set<ValueId>& sums;
  bool only = true, has_sum = false;
  std::set<ExprRef> seen = {};

  void look(ExprRef e) {
    if (!seen.insert(e).second) return;  // cost: seen before
    switch (e->kind) {
      case ExprKind::load:
        has_sum |= sums.count(op.operands[static_cast<size_t>(e->value)]) > 0;
        break;
      case ExprKind::fconst: break;
      case ExprKind::select: look(e->args[1]), look(e->args[2]); break;
      case ExprKind::fadd:
      case ExprKind::fsub: look(e->args[0]), look(e->args[1]); break;
      case ExprKind::fneg: look(e->args[0]); break;
      default: only = false;
    }
  }
};

// Adds to the running sums among `keep` what their readers copy or subtract, up to the first who
// computes anything else.
void keep_differences(const Graph& g, std::set<ValueId>& keep) {
  std::set<ValueId> sums;
  for (OpId o : g.order()) {
    const ir::Op& op = g.op(o);
    const ValueId v = op.results[0];
    if (op.kind == OpKind::cumsum && keep.count(v)) sums.insert(v);
    if (op.kind != OpKind::pointwise) continue;
    Addends body{op, sums};
    body.look(op.as<ir::PointwiseAttrs>().body);
    if (body.only && body.has_sum &&
        std::ranges::all_of(g.value(v).users, [&](OpId u) { return reads_beside(g, g.op(u), v); }))
      sums.insert(v);
  }
  keep.merge(sums);
}

// What is rounded to integers next: half of a unit of 16 bits decides for another integer, and a
// whole step of the quantisation is far more. And running sums: of a thousand terms 16 bits have no
// digit left for the differences that readers take, such as the decays of a gated attention. Such
// values, and what they are computed from up to the products, stay f32. So do decays and betas.
std::set<ValueId> rounded_or_summed(const Graph& g) {
  std::set<ValueId> keep;
  const auto look = [&](ValueId v) {
    if (!is_single(g.value(v).type.dtype)) return;  // cost: others are not converted
    if (!may_stay_single(g, v)) return;
    const ir::Op* def = g.def(v);
    const bool sum = def && def->kind == OpKind::cumsum;
    bool any = sum;
    const bool all = std::ranges::all_of(g.value(v).users, [&](OpId u) {
      const ir::Op& user = g.op(u);
      const bool factor = is_factor(user, v) || user.kind == OpKind::attention;
      const bool gate = gates(user, v);
      const bool beside = (sum || gate || user.kind == OpKind::matmul || reads_any_type(user)) &&
                          reads_beside(g, user, v);
      const bool goes_on = !factor && std::ranges::all_of(user.results, [&](ValueId r) {
        return keep.count(r) > 0;
      });
      any |= goes_on || gate || rounds(user, v);
      return goes_on || beside;
    });
    if (any && all) keep.insert(v);
  };
  for (OpId o : g.order() | std::views::reverse) std::ranges::for_each(g.op(o).results, look);
  std::ranges::for_each(g.inputs(), look);
  keep_differences(g, keep);
  return keep;
}

// Masks are written as numbers that f16 does not have (finfo.min of f32), which would be stored as
// infinity; a row of nothing else would then be NaN. Half of the largest f16 lies as far below
// every score, and two masks can be added.
constexpr double kLargestF16 = 65504;

bool leaves_range(ExprRef body) {
  bool found = false;
  ir::for_each_node(body, [&](ExprRef n) {
    found |=
        n->kind == ExprKind::fconst && std::isfinite(n->real) && std::abs(n->real) > kLargestF16;
  });
  return found;
}

// v, whose definition may leave the range of f16, stays within half of it.
void keep_in_range(Graph& g, ValueId v) {
  ir::Op* op = &g.op(g.value(v).def);
  if (op->kind == OpKind::matmul &&
      (op->as<ir::MatmulAttrs>().epilogue || op->as<ir::MatmulAttrs>().gate)) {
    auto& attrs = op->as<ir::MatmulAttrs>();
    ExprRef& e = attrs.gate ? attrs.gate : attrs.epilogue;
    if (leaves_range(e))
      e = ir::min(ir::max(e, g.pool().real(-kLargestF16 / 2, e->type)),
                  g.pool().real(kLargestF16 / 2, e->type));
    return;
  }
  if (op->kind != OpKind::pointwise || !leaves_range(op->as<ir::PointwiseAttrs>().body)) return;
  const ExprRef e = ir::element_of(g, v, ir::indices_of(g, v));
  const auto limit = [&](double x) { return g.pool().real(x, e->type); };
  ir::Captured c =
      ir::capture(ir::min(ir::max(e, limit(-kLargestF16 / 2)), limit(kLargestF16 / 2)));
  g.replace_uses(v,
                 g.add_pointwise(c.operands, c.body, g.value(v).type, g.value(v).name, op->origin));
}

// Who reads sums as one of several operands of one type, as a product does.
std::vector<OpId> readers_of_one_type(const Graph& g, ValueId v) {
  std::vector<OpId> readers = g.value(v).users;
  std::erase_if(readers,
                [&](OpId u) { return reads_beside(g, g.op(u), v) || takes_sums(g.op(u), v); });
  return readers;
}

// Sums that stay f32 have a copy for such readers.
void copy_sums(Graph& g, ValueId v, DType to) {
  const std::vector<OpId> readers = readers_of_one_type(g, v);
  if (readers.empty()) return;  // cost: nobody would read the copy
  read_instead(g, v, converted(g, v, to, g.value(v).name + "." + to_string(to)), readers);
}

// An input enters through a conversion. Outputs leave through one.
void convert_input(Graph& graph, ValueId v, DType to) {
  if (is_sums(graph, v)) return copy_sums(graph, v, to);
  std::vector<OpId> users = graph.value(v).users;
  std::erase_if(users, [&](OpId u) { return makes_sums(graph, u); });
  if (users.empty()) return;            // cost: nobody would read it
  if (ir::is_state_before(graph, v)) {  // a cache holds what attention reads
    graph.set_type(v, {to, graph.value(v).type.dims});
    return;
  }
  read_instead(graph, v, converted(graph, v, to, graph.value(v).name + "." + to_string(to)), users);
}

PassReport convert_precision(Graph& graph, bool (*from)(DType), DType to) {
  PassReport report;
  std::set<ValueId> keep;
  if (to != DType::f32) {
    keep = angles(graph);
    keep.merge(rounded_or_summed(graph));
  }
  std::vector<DType> declared;
  for (const ir::Graph::Output& out : graph.outputs)
    declared.push_back(graph.value(out.value).type.dtype);
  const bool narrows = size_of(to) < size_of(DType::f32);
  for (OpId o : std::vector<OpId>(graph.order())) {
    const ir::Op op = graph.op(o);
    if (op.kind == OpKind::constant) {
      ir::Constant c = op.as<ir::ConstantAttrs>().constant;
      if (!from(c.result_dtype()) || graph.value(op.results[0]).users.empty() ||
          keep.count(op.results[0]))
        continue;
      if (narrows && stays_single(graph, op.results[0])) continue;
      if (is_sums(graph, op.results[0])) {
        copy_sums(graph, op.results[0], to);
        continue;
      }
      c.steps.push_back({ir::ConstantStep::Kind::cast, {}, to});
      read_instead(graph, op.results[0], graph.add_constant(graph.value(op.results[0]).name, c));
      ++report.rewrites;
      continue;
    }
    for (ValueId v : op.results) {
      if (!from(graph.value(v).type.dtype) || keep.count(v)) continue;
      if (narrows && stays_single(graph, v)) continue;
      if (shows_sums(graph, v)) continue;
      if (is_sums(graph, v)) {
        copy_sums(graph, v, to);
        continue;
      }
      graph.set_type(v, {to, graph.value(v).type.dims});
      if (to == DType::f16) keep_in_range(graph, v);
      ++report.rewrites;
    }
  }
  for (ValueId v : graph.inputs()) {
    if (from(graph.value(v).type.dtype) && !keep.count(v)) convert_input(graph, v, to);
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    ir::Graph::Output& out = graph.outputs[i];
    if (graph.value(out.value).type.dtype == declared[i] || ir::is_state(graph, out.value))
      continue;
    const ir::Op* op = graph.def(out.value);
    const bool own = stores_any_type(graph, *op) && op->results[0] == out.value &&
                     graph.use_count(out.value) == 1;
    if (own) graph.set_type(out.value, {declared[i], graph.value(out.value).type.dims});
    else
      out.value = converted(graph, out.value, declared[i],
                            graph.value(out.value).name + "." + to_string(declared[i]));
  }
  return report;
}

}  // namespace

PassReport convert_precision_f16(Graph& graph) {
  return convert_precision(graph, is_single, DType::f16);
}
PassReport convert_precision_bf16(Graph& graph) {
  return convert_precision(graph, is_single, DType::bf16);
}
PassReport convert_precision_f32(Graph& graph) {
  return convert_precision(graph, is_narrow, DType::f32);
}

}  // namespace tfcc::passes

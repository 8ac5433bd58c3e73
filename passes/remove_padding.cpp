// SPDX-License-Identifier: Apache-2.0
// remove-padding: what attention over a padded batch and all that follows from it by rows is
// computed for real tokens alone.
//   before: %h = norm(@g, @b, %ids, ..) {body = (i,j,k) => @word[bounded(%ids[i,j], ..),k] + ..} : f32[B,S,64]
//           %a = attention(%q, %k, %v, %mask) {key_padding = true, visible = (b,h,i,j) => 0 != %mask[b,j], ..} : f32[B,S,64]
//           return last = %n
//   after:  %row, %cu, %keys, %order, %seq, %pos = pack(%mask) {live = (i,j) => 0 != %mask[i,j]}
//           %h = norm(@g, @b, %ids, %seq, %pos, ..) {body = (i,j,k) => @word[bounded(%ids[%seq[j],%pos[j]], ..),k] + ..} : f32[1,T,64]
//           %a = attention(%q, %k, %v, %cu, %keys, %order, %pos) {packed = [B,S], ..} : f32[1,T,64]
//           return last, = 0 where a row is padding
// So a linear_attention whose `visible` is a condition of integers, without a decay. Requires
// (passes/padded_rows.h): all attentions with padding are of the same tokens and have one condition
// on keys, which counts no tokens; a real token sees itself; what follows from attention is read at
// its own row, at a row of each sequence that the inputs name, or whole numbers made of them (that
// row is kept), by a sum or a product over tokens that padding does not change, among them one with
// the probabilities of a softmax that hides padding, as keys of another attention that hides it, or
// as an output.
#include <algorithm>
#include <map>

#include "ir/pack.h"
#include "passes/padded_rows.h"
#include "passes/passes.h"
#include "passes/row_ops.h"

namespace tfcc::passes {
namespace {

class Packer {
 public:
  Packer(Graph& g, const PaddedRows& rows) : g_(g), rows_(rows) {}

  void run() {
    add_pack();
    for (OpId o : std::vector<OpId>(g_.order())) {
      if (rows_.packed.count(g_.op(o).results.empty() ? UINT32_MAX : g_.result(o).value))
        pack_op(o);
    }
    for (const PaddedRows::Reader& r : rows_.readers) rewrite_reader(r);
    for (Graph::Output& output : g_.outputs) {
      if (rows_.packed.count(output.value.value)) output.value = unpacked(output.value);
    }
  }

 private:
  void add_pack() {
    ExprRef live = rows_.live;
    if (ExprRef m = rows_.binary) {
      g_.flags.push_back(g_.value(*loaded(m)).name +
                         ": a mask value is neither 0 nor 1; compile with --keep-padding");
      const auto is = [&](int64_t v) {
        return ir::eq(m, ir::convert(g_.pool().integer(v), m->type));
      };
      live = ir::logical_and(live, ir::asserted(ir::logical_or(is(0), is(1)),
                                                static_cast<int64_t>(g_.flags.size()) - 1));
    }
    pack_ = ir::add_pack(g_, live, rows_.kept, rows_.batch, rows_.length);
    ExprRef t = g_.pool().index(1, pack_.total);
    seq_ = pack_.sequence(g_, t);
    pos_ = pack_.place(g_, t);
  }

  // Packed values take the names of those that they stand for, which nobody needs any more.
  std::string name_of(ValueId v) {
    std::string name = g_.value(v).name;
    g_.rename(v, name + ".with_padding");
    return name;
  }

  void stands_for(ValueId padded, ValueId packed) {
    packed_[padded.value] = packed;
    g_.set_replacement(padded, packed);
  }

  ir::Type packed_type(ValueId v) const {
    ir::Type t = g_.value(v).type;
    t.dims[0] = g_.pool().integer(1);
    t.dims[1] = pack_.total;
    return t;
  }

  // A free expression over rows (b, s) of a padded tensor as one over packed rows, whose other
  // indices are `own`.
  ExprRef over_packed(ExprRef free, const Indices& own) {
    Indices by = own;
    by[0] = seq_;
    by[1] = pos_;
    return ir::rewrite(ir::substitute_indices(free, by), [&](ExprRef n) -> ExprRef {
      const auto v = loaded(n);
      const auto it = v ? packed_.find(v->value) : packed_.end();
      if (it == packed_.end()) return nullptr;
      Indices at = n->args;
      if (at[0] != seq_ || at[1] != pos_)
        return rows_.packed.count(v->value) ? padded_element(*v, at, false) : nullptr;
      at[0] = own[0];
      at[1] = own[1];
      return ir::load_of(g_, it->second, std::move(at));
    });
  }

  // The value in packed rows: computed so, or gathered from the padded tensor (or from one that all
  // sequences share).
  ValueId packed_value(ValueId v) {
    const auto it = packed_.find(v.value);
    if (it != packed_.end()) return it->second;
    const ir::Type type = packed_type(v);
    const Indices own = ir::indices_of(g_.pool(), type.dims);
    Indices at = own;
    at[0] = ir::is_int(g_.value(v).type.dims[0], 1) ? g_.pool().integer(0) : seq_;
    at[1] = pos_;
    ir::Captured c = ir::capture(ir::load_of(g_, v, at));
    const ValueId gathered =
        g_.add_pointwise(c.operands, c.body, type, g_.value(v).name + ".packed");
    return packed_[v.value] = gathered;
  }

  void pack_op(OpId o) {
    if (g_.op(o).kind == OpKind::attention || g_.op(o).kind == OpKind::linear_attention)
      return pack_attention(o);
    const ir::Op old = g_.op(o);
    std::vector<ir::Type> types;
    std::vector<std::string> names;
    for (ValueId r : old.results) {
      types.push_back(packed_type(r));
      names.push_back(name_of(r));
    }
    Indices own = ir::indices_of(g_.pool(), types[0].dims);
    ir::Op op = old;
    std::vector<ValueId> operands;
    const std::vector<ExprRef*> bodies = ir::expressions_of(op);
    for (size_t i = 0; i < ir::first_loaded(op); ++i)
      operands.push_back(is_row_operand(op, i) ? packed_value(op.operands[i]) : op.operands[i]);
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies) free.push_back(over_packed(ir::free_expr(g_, o, *body, {}), own));
    free = ir::capture(free, operands);
    for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
    const OpId made = g_.add_op(op.kind, operands, op.attrs, types, names, old.origin);
    for (size_t k = 0; k < old.results.size(); ++k) stands_for(old.results[k], g_.result(made, k));
  }

  void pack_attention(OpId o) {
    const ir::Op old = g_.op(o);
    ir::Op op = old;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < 3; ++i) operands.push_back(packed_value(old.operands[i]));
    for (ValueId v : pack_.operands()) operands.push_back(v);
    ExprRef* const visible = pack_attrs(op.attrs);
    const std::vector<ExprRef*> bodies = ir::expressions_of(op);
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies)
      free.push_back(body == visible ? key_condition(g_, o).rest
                                     : of_real_tokens(ir::free_expr(g_, o, *body, {})));
    free = ir::capture(free, operands);
    for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
    const ValueId y = old.results[0];
    stands_for(y, g_.add(op.kind, operands, op.attrs, packed_type(y), name_of(y), old.origin));
  }

  // A score, whose query and key are real tokens: `row` has a row for each, and a flag, which is
  // looked at for every pair of tokens, has nothing to say.
  ExprRef of_real_tokens(ExprRef free) {
    return ir::rewrite(free, [&](ExprRef n) -> ExprRef {
      const auto v = loaded(n);
      if (!v || !rows_.packed.count(v->value)) return nullptr;
      Indices at = n->args;
      ExprRef row = ir::load_of(g_, pack_.row, {at[0], at[1]}), one = g_.pool().integer(1);
      at[0] = g_.pool().integer(0);
      at[1] = ir::max(g_.pool().integer(0), ir::min(row, ir::sub(pack_.total, one)));
      return ir::load_of(g_, packed_.at(v->value), std::move(at));
    });
  }

  // The attributes but for `visible`, which is returned.
  ExprRef* pack_attrs(ir::Attrs& attrs) const {
    const auto pack = [&](auto& a) {
      a.packed = {rows_.batch, rows_.length};
      return &a.visible;
    };
    if (auto* sums = std::get_if<ir::LinearAttentionAttrs>(&attrs)) return pack(*sums);
    auto& a = std::get<ir::AttentionAttrs>(attrs);
    a.key_padding = false;
    return pack(a);
  }

  // The element of a packed value at a place in the padded tensor, whose row was dropped or is
  // known to be there.
  ExprRef padded_element(ValueId v, Indices at, bool there) {
    if (!there)
      return ir::padded_element(g_, pack_.row, packed_.at(v.value), std::move(at), pack_.flag);
    ExprRef row = ir::load_of(g_, pack_.row, {at[0], at[1]});
    at[0] = g_.pool().integer(0);
    at[1] = ir::bounded(row, pack_.total, pack_.flag);
    return ir::load_of(g_, packed_.at(v.value), std::move(at));
  }

  void rewrite_reader(const PaddedRows::Reader& r) {
    ir::Op op = g_.op(r.op);
    if (r.read == OutsideRead::factor) {
      std::ranges::replace(op.operands, r.value, unpacked(r.value));
      g_.set_operands(r.op, op.operands);
      return;
    }
    ExprRef& body = *ir::expressions_of(op)[0];
    ExprRef free = ir::rewrite(ir::free_expr(g_, r.op, body, {}), [&](ExprRef n) -> ExprRef {
      if (loaded(n) != r.value) return nullptr;
      return padded_element(r.value, n->args, r.read == OutsideRead::fixed);
    });
    std::vector<ValueId> operands;
    body = ir::capture({free}, operands)[0];
    g_.op(r.op).attrs = op.attrs;
    g_.set_operands(r.op, operands);
  }

  ValueId unpacked(ValueId v) {
    const auto it = unpacked_.find(v.value);
    if (it != unpacked_.end()) return it->second;
    const ir::Type type = g_.value(v).type;
    ir::Captured c = ir::capture(padded_element(v, ir::indices_of(g_.pool(), type.dims), false));
    return unpacked_[v.value] = g_.add_pointwise(c.operands, c.body, type,
                                                 g_.value(packed_.at(v.value)).name + ".padded");
  }

  Graph& g_;
  const PaddedRows& rows_;
  ir::Packing pack_;
  ExprRef seq_ = nullptr, pos_ = nullptr;          // of the row that index 1 is
  std::map<uint32_t, ValueId> packed_, unpacked_;  // by value of the padded graph
};

}  // namespace

PassReport remove_padding(Graph& graph) {
  PassReport report;
  if (graph.size_with(SizeRole::packed))
    return report;  // cost: packed before, its attentions know no padding
  std::optional<PaddingKept> kept;
  auto rows = find_padded_rows(graph, kept);
  if (rows && !rows->flattened.empty()) {
    Graph asked = graph;
    ask_for_own_tokens(asked, rows->flattened, "compile with --keep-padding");
    const OpId reader = rows->flattened.begin()->first;
    rows = find_padded_rows(asked, kept);
    if (rows && rows->flattened.empty()) graph = std::move(asked);
    else if (rows)
      kept = PaddingKept{reader, "it reads a token of the flattened batch otherwise"}, rows.reset();
  }
  if (kept) report.misses.push_back({label(graph, kept->node), kept->reason});
  if (!rows) return report;
  Packer(graph, *rows).run();
  report.rewrites = rows->attentions.size();
  return report;
}

}  // namespace tfcc::passes

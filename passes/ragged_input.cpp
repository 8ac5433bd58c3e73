// SPDX-License-Identifier: Apache-2.0
// ragged-input: a packed encoder (remove-padding) as one that is given its tokens without padding.
//   before: graph(%ids: i64[B,S], %mask: i64[B,S])
//           %row, %cu, %keys, %order, %seq, %pos = pack(%mask) {live = (i,j) => 0 != %mask[i,j]}
//           %h = norm(.., %ids) {body = (i,j,k) => @word[%ids[%seq[j],%pos[j]],k] + .., ..} : f32[1,T,64]
//           return last = %n.padded : f32[B,S,64]
//   after:  graph(%ids: i64[T], %cu_seqlens: i32[B + 1], %seqlens: i32[B], %longest_first: i32[B],
//                 %row_sequences: i32[T], %row_positions: i32[T], %longest: i32[S])
//           %h = norm(.., %ids) {body = (i,j,k) => @word[%ids[j],k] + .., ..} : f32[1,T,64]
//           return last = %n : f32[T,64]
// All but the tokens follows from cu_seqlens: what `pack` would have made of sequences padded on
// the right, and with `longest` the length that these would have. So the graph means what it meant:
// the mask is 1 at tokens that are given and 0 behind them, its sum is the number of tokens, and the
// rest is substituted. What `live` asserts of tokens that are read by themselves holds: a sequence
// has a token, and a place behind the last one is refused. Requires:
//   - which tokens are real is said by one input alone, at its own place: 1 (or 0) is proved to make
//     it true and the other false. It is a mask, no ids, and finds no element. Or it is s < n, where
//     n is lengths[b] of an input, or the sum of a mask over its row;
//   - other inputs over tokens are read at real tokens alone, or row by row by what is read so. A
//     running sum over tokens is such a reader (positions counted from ids); the rest scans the padded
//     row;
//   - batch and length are sizes of the run.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "passes/dropped_rows.h"
#include "passes/passes.h"
#include "passes/row_ops.h"

namespace tfcc::passes {
namespace {

class Ragged {
 public:
  Ragged(Graph& g, PassReport& report) : g_(g), pool_(g.pool()), report_(report) {}

  bool run() {
    if (!find_pack() || !find_mask()) return false;
    make_inputs();
    own_flag();
    const std::vector<OpId> ops = g_.order();
    find_counts();
    for (OpId o : ops) {
      if (!rewrite_op(o)) return false;
    }
    for (size_t k = 1; k < 6; ++k) g_.replace_uses(old_[k], new_[k]);
    for (ValueId v : {mask_, lengths_, old_[0]}) replace_whole(v);
    for (Graph::Output& output : g_.outputs) {
      if (!rewrite_output(output)) return false;
    }
    finish();
    return true;
  }

 private:
  bool miss(const std::string& node, std::string reason) {
    report_.misses.push_back({node, std::move(reason)});
    return false;
  }

  // ---- what there is ----

  bool find_pack() {
    for (OpId o : g_.order()) {
      if (g_.op(o).kind == OpKind::pack) pack_ = o;
    }
    if (!pack_.valid()) return miss(g_.name, "no attention hides padding");
    for (size_t k = 0; k < 6; ++k) old_[k] = g_.result(pack_, k);
    const auto& dims = g_.value(old_[0]).type.dims;
    batch_ = dims[0];
    length_ = dims[1];
    total_ = g_.value(old_[4]).type.dims[0];
    for (const auto& [size, what] : {std::pair(batch_, "batch"), std::pair(length_, "length")}) {
      if (!is_read(size))
        return miss(g_.name, fmt::format("its {} is {}, no size of a run", what, ir::print(size)));
    }
    if (batch_ == length_) return miss(g_.name, "its batch is its length");
    for (ValueId v : g_.inputs()) {
      if (has_rows(v)) padded_.push_back(v);
    }
    return true;
  }

  bool is_read(ExprRef size) const {
    return std::any_of(g_.symbols.begin(), g_.symbols.end(),
                       [&](const ir::SizeSymbol& s) { return pool_.symbol(s.name) == size; });
  }

  bool is_padded(ValueId v) const {
    return std::find(padded_.begin(), padded_.end(), v) != padded_.end();
  }

  ExprRef live() const {
    return without_assertions(ir::free_expr(g_, pack_, g_.op(pack_).as<ir::PackAttrs>().live, {}));
  }

  // The mask of which live counts the tokens: s < sum over k of mask[b,k].
  bool counts_mask() {
    ExprRef b = pool_.index(0, batch_), s = pool_.index(1, length_);
    ExprRef counted = ir::expand(g_, live(), [](ValueId) { return true; });
    // No more than the length, so that it fits 32 bits.
    counted = ir::rewrite(counted, [](ExprRef n) {
      return n->kind == ExprKind::wrap && n->value == 32 ? n->args[0] : nullptr;
    });
    for (ValueId v : ir::loads_of(counted)) {
      const ExprRef count = load_at(v, {b});
      if (count && counted == ir::lt(s, count)) mask_ = summed_mask(v);
    }
    return mask_.valid();
  }

  // Whole numbers that count the tokens of a sequence.
  void find_counts() {
    if (!mask_.valid() || real_ != 1) return;
    for (OpId o : g_.order()) {
      const ValueId v = g_.result(o);
      const DType type = g_.value(v).type.dtype;
      if (type != DType::i64 && type != DType::i32) continue;
      if (summed_mask(v) == mask_) counts_.insert(v.value);
    }
  }

  // What v sums up over tokens, if that is a padded input at its own place.
  ValueId summed_mask(ValueId v) const {
    const ir::Op* op = g_.def(v);
    if (!op || op->kind != OpKind::reduce) return {};
    const auto& sum = op->as<ir::ReduceAttrs>();
    if (sum.extents != std::vector<ExprRef>{length_}) return {};
    const ExprRef body = ir::free_expr(g_, g_.value(v).def, sum.body, {});
    const auto rank = static_cast<int64_t>(g_.value(v).type.rank());
    const auto mask = loaded_at(body, {pool_.index(0, batch_), pool_.index(rank, length_)});
    return sum.kind == ir::ReduceKind::sum && mask && is_padded(*mask) ? *mask : ValueId{};
  }

  // Null if it has another rank.
  ExprRef load_at(ValueId v, const Indices& at) const {
    return g_.value(v).type.dims.size() == at.size() ? ir::load_of(g_, v, at) : nullptr;
  }

  // The input that says which tokens are real.
  bool find_mask() {
    if (counts_mask()) return true;
    const std::vector<ValueId> loads = ir::loads_of(live());
    const std::string name = label(g_, pack_);
    if (loads.size() != 1 || g_.def(loads[0]))
      return miss(
          name,
          "what says which tokens are real is neither one mask nor a length of each sequence");
    const ValueId v = loads[0];
    for (const int64_t real : {1, 0}) {
      if (is_padded(v) && is_at_own_place(live(), v) && live_if(v, real)->kind == ExprKind::btrue &&
          live_if(v, 1 - real)->kind == ExprKind::bfalse) {
        if (is_more_than_mask(v))
          return miss(name, fmt::format("'{}' says which tokens are real, and is no mask: its "
                                        "values are read too, which such a program would not have",
                                        g_.value(v).name));
        mask_ = v;
        real_ = real;
        return true;
      }
    }
    ExprRef b = pool_.index(0, batch_), s = pool_.index(1, length_);
    const ExprRef length = load_at(v, {b});
    if (length && live() == ir::lt(s, length)) {
      lengths_ = v;
      return true;
    }
    return miss(name,
                fmt::format("'{}' does not say by 0 and 1 at its place whether a token is real",
                            g_.value(v).name));
  }

  // Ids of which one means padding: 1 and 0 are not all that they are. A mask is 0 and 1, whoever
  // reads it; of an input that does not say what it is, only who asks whether it is 0.
  bool is_more_than_mask(ValueId v) const {
    const InputRole role = g_.value(v).role;
    if (role == InputRole::mask) return false;
    if (role != InputRole::none) return true;
    bool index = false;
    for (OpId o : g_.order()) {
      ir::Op copy = g_.op(o);
      for (ExprRef* body : ir::expressions_of(copy)) {
        ExprRef all = ir::expand(g_, ir::free_expr(g_, o, *body, {}), [](ValueId) { return true; });
        ir::for_each_node(all, [&](ExprRef n) {
          if (n->kind != ExprKind::load) return;
          for (ExprRef a : n->args)
            ir::for_each_node(a, [&](ExprRef m) { index |= loaded(m) == v; });
        });
      }
    }
    return index;
  }

  bool is_at_own_place(ExprRef e, ValueId v) const {
    const ExprRef own = load_at(v, {pool_.index(0, batch_), pool_.index(1, length_)});
    bool other = false;
    ir::for_each_node(e, [&](ExprRef n) { other |= loaded(n) == v && n != own; });
    return !other;
  }

  ExprRef live_if(ValueId mask, int64_t is) const {
    return ir::rewrite(live(), [&](ExprRef n) -> ExprRef {
      return loaded(n) == mask ? ir::convert(pool_.integer(is), n->type) : nullptr;
    });
  }

  // ---- the inputs ----

  ValueId add_input(std::string name, DType dtype, std::vector<ExprRef> dims, InputRole role) {
    while (g_.find_value(name).valid()) name += "_";
    made_.push_back(g_.add_input(name, {dtype, std::move(dims)}));
    g_.set_role(made_.back(), role);
    return made_.back();
  }

  void make_inputs() {
    const std::vector<ValueId> before = g_.inputs();
    for (ValueId v : padded_) {
      if (v == mask_) continue;
      const ir::Value& old = g_.value(v);
      const std::string name = old.name;
      std::vector<ExprRef> dims{total_};
      dims.insert(dims.end(), old.type.dims.begin() + 2, old.type.dims.end());
      g_.rename(v, name + ".with_padding");
      ragged_[v.value] = add_input(name, old.type.dtype, dims, old.role);
    }
    for (ValueId v : before) {
      if (!is_padded(v) && v != lengths_) made_.push_back(v);
    }
    new_[1] = add_input("cu_seqlens", DType::i32, {ir::add(batch_, pool_.integer(1))},
                        InputRole::cu_seqlens);
    new_[2] = add_input("seqlens", DType::i32, {batch_}, InputRole::seqlens);
    new_[3] = add_input("longest_first", DType::i32, {batch_}, InputRole::longest_first);
    new_[4] = add_input("row_sequences", DType::i32, {total_}, InputRole::row_sequences);
    new_[5] = add_input("row_positions", DType::i32, {total_}, InputRole::row_positions);
    add_input("longest", DType::i32, {length_}, InputRole::longest);
  }

  // The flag of remove-padding: here a place in a sequence raises it that an input names.
  void own_flag() {
    for (OpId o : g_.order()) {
      ir::Op copy = g_.op(o);
      for (ExprRef* body : ir::expressions_of(copy)) {
        ir::for_each_node(ir::free_expr(g_, o, *body, {}), [&](ExprRef n) {
          const auto v = n->kind == ExprKind::bounded ? loaded(n->args[0]) : std::nullopt;
          if (v && (*v == old_[0] || *v == old_[4] || *v == old_[5])) flag_ = n->value;
        });
      }
    }
    if (!flag_) {
      flag_ = static_cast<int64_t>(g_.flags.size());
      g_.flags.emplace_back();
    }
    g_.flags[static_cast<size_t>(*flag_)] =
        "a place in a sequence is read that lies behind its last token";
  }

  // ---- expressions ----

  // The packed row whose (b, s) these are: t of (seq[t], pos[t]); null if none.
  ExprRef row_at(const Indices& at) const {
    ExprRef rows[2];
    for (size_t k = 0; k < 2; ++k) {
      ExprRef e = at[k];
      if (e->kind == ExprKind::bounded) e = e->args[0];
      const auto v = loaded(e);
      if (!v || (*v != old_[4 + k] && *v != new_[4 + k])) return nullptr;
      rows[k] = e->args[0];
    }
    return rows[0] == rows[1] ? rows[0] : nullptr;
  }

  ExprRef has_token(ExprRef b, ExprRef s) const { return ir::lt(s, ir::load_of(g_, new_[2], {b})); }
  // The row of (b, s), where it has one.
  ExprRef row_of(ExprRef b, ExprRef s) const { return ir::add(ir::load_of(g_, new_[1], {b}), s); }
  ExprRef mask_at(ExprRef b, ExprRef s, Scalar type) const {
    return ir::select(has_token(b, s), ir::convert(pool_.integer(real_), type),
                      ir::convert(pool_.integer(1 - real_), type));
  }

  // A free expression with counts of the mask as the tokens of a sequence, which has one at least.
  ExprRef counted(ExprRef e) const {
    return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
      const auto v = loaded(n);
      if (!v || !counts_.count(v->value)) return nullptr;
      return ir::max(pool_.integer(1), ir::load_of(g_, new_[2], {n->args[0]}));
    });
  }

  // A free expression with the inputs as they are given now. What a padded input has at no real
  // token is 0; who reads that is in doubtful_.
  ExprRef given(ExprRef e) const {
    return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
      const auto v = loaded(n);
      if (!v) return nullptr;
      if (*v == lengths_) return ir::load_of(g_, new_[2], n->args);
      if (*v != old_[0] && !is_padded(*v)) return nullptr;
      const Indices at{given(n->args[0]), given(n->args[1])};
      ExprRef t = row_at(at);
      if (*v == old_[0])
        return t ? t : ir::select(has_token(at[0], at[1]), row_of(at[0], at[1]), pool_.integer(-1));
      if (*v == mask_)
        return t ? ir::convert(pool_.integer(real_), n->type) : mask_at(at[0], at[1], n->type);
      Indices own{t ? t : ir::bounded(row_of(at[0], at[1]), total_, *flag_)};
      for (size_t k = 2; k < n->args.size(); ++k) own.push_back(given(n->args[k]));
      ExprRef element = ir::load_of(g_, ragged_.at(v->value), own);
      if (t) return element;
      return ir::select(has_token(at[0], at[1]), element,
                        ir::convert(pool_.integer(0), element->type));
    });
  }

  // ---- ops ----

  // May there be something else at padding than in a padded batch?
  bool is_doubtful(ValueId v) const {
    return (is_padded(v) && v != mask_) || doubtful_.count(v.value) > 0;
  }
  bool scans(OpId o, ValueId v) {
    return miss(label(g_, o),
                fmt::format("it reads '{}' at other places than real tokens", before(v)));
  }
  std::string before(ValueId v) const {
    const auto it = ragged_.find(v.value);
    return g_.value(it == ragged_.end() ? v : it->second).name;
  }

  bool rewrite_op(OpId o) {
    const ir::Op& op = g_.op(o);
    if (op.kind == OpKind::constant || o == pack_) return true;
    bool doubtful = false;
    const bool by_rows = computes_by_rows(op);
    for (size_t i = 0; i < std::min(ir::first_loaded(op), op.operands.size()); ++i) {
      if (!is_doubtful(op.operands[i])) continue;
      const bool running = op.kind == OpKind::cumsum && !op.as<ir::CumsumAttrs>().reverse &&
                           op.as<ir::CumsumAttrs>().axis == 1;
      const bool own_row = by_rows && is_row_operand(op, i);
      if ((!running && !own_row) || is_padded(op.operands[i])) return scans(o, op.operands[i]);
      doubtful = true;
    }
    ir::Op copy = op;
    const std::vector<ExprRef*> bodies = ir::expressions_of(copy);
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies) {
      free.push_back(counted(ir::free_expr(g_, o, *body, {})));
      if (!is_right(o, free.back(), by_rows, doubtful)) return false;
      free.back() = given(free.back());
      if (doubtful) free.back() = guarded(o, free.back());
    }
    if (doubtful) {
      for (ValueId r : op.results) doubtful_.insert(r.value);
    }
    if (bodies.empty()) return true;
    std::vector<ValueId> operands(
        op.operands.begin(), op.operands.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                       ir::first_loaded(op), op.operands.size())));
    free = ir::capture(free, operands);
    for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
    g_.op(o).attrs = copy.attrs;
    g_.set_operands(o, operands);
    return true;
  }

  // What is computed of padding raises no flag: it is 0 there.
  ExprRef guarded(OpId o, ExprRef e) const {
    bool flags = false;
    ir::for_each_node(
        e, [&](ExprRef n) { flags |= n->kind == ExprKind::bounded && n->value != flag_; });
    const Indices own = ir::indices_of(g_, g_.result(o));
    return flags ? ir::select(has_token(own[0], own[1]), e, ir::convert(pool_.integer(0), e->type))
                 : e;
  }

  // Whether all results have a row for each place of the padded batch, computed by itself.
  bool computes_by_rows(const ir::Op& op) const {
    return (op.kind == OpKind::pointwise || computes_rows(g_, op)) &&
           std::all_of(op.results.begin(), op.results.end(),
                       [&](ValueId r) { return has_rows(r); });
  }

  // What is read of a padded input, or of what is computed from it place by place, is of a real
  // token, or of the own place of an op that computes by rows, whose result is doubtful then.
  bool is_right(OpId o, ExprRef free, bool by_rows, bool& doubtful) {
    const Indices own = ir::indices_of(g_, g_.result(o));
    std::optional<ValueId> wrong;
    bool from_the_end = false, behind_the_first = false;
    ir::for_each_node(free, [&](ExprRef n) {
      const auto v = loaded(n);
      from_the_end |= v == old_[0] && names_length(n->args[1]);
      behind_the_first |= v == old_[0] && place_of(n->args[1]).value_or(0) != 0;
      if (!v || !is_doubtful(*v) || (n->args.size() >= 2 && row_at(n->args))) return;
      if (by_rows && n->args.size() >= 2 && is_at_rows(n, own)) doubtful = true;
      else wrong = v;
    });
    if (from_the_end)
      return miss(label(g_, o),
                  "it reads a place at the end of the batch, which is padding of short sequences");
    if (behind_the_first)
      return miss(label(g_, o), "it reads a place that a short sequence does not have");
    return !wrong || scans(o, *wrong);
  }

  // A place that is a number.
  static std::optional<int64_t> place_of(ExprRef e) {
    return ir::as_int(e->kind == ExprKind::bounded ? e->args[0] : e);
  }

  // Whether a place depends on the length, and not by its range alone.
  bool names_length(ExprRef e) const {
    if (e == length_) return true;
    if (e->kind == ExprKind::index) return false;
    if (e->kind == ExprKind::bounded) return names_length(e->args[0]);
    const auto below = [&](ExprRef a) { return names_length(a); };
    return std::any_of(e->args.begin(), e->args.end(), below) ||
           std::any_of(e->terms.begin(), e->terms.end(), [&](const ir::Term& t) {
             return std::any_of(t.atoms.begin(), t.atoms.end(), below);
           });
  }

  bool has_rows(ValueId v) const {
    const auto& d = g_.value(v).type.dims;
    return Indices(d.begin(), d.begin() + std::min<std::ptrdiff_t>(std::ssize(d), 2)) ==
           Indices{batch_, length_};
  }

  // For those that want it as a whole: a running sum of the mask, an output.
  void replace_whole(ValueId v) {
    if (!v.valid() || g_.use_count(v) == 0) return;  // cost: nobody reads it
    const ir::Type type = g_.value(v).type;
    const ExprRef element = given(ir::load_of(g_, v, ir::indices_of(pool_, type.dims)));
    ir::Captured c = ir::capture(ir::convert(element, ir::scalar_of(type.dtype)));
    g_.replace_uses(v, g_.add_pointwise(c.operands, c.body, type, g_.value(v).name));
  }

  // ---- outputs ----

  bool rewrite_output(Graph::Output& output) {
    const ir::Type old = g_.value(output.value).type;
    const bool rows = has_rows(output.value);
    if (std::any_of(old.dims.begin() + (rows ? 2 : 0), old.dims.end(),
                    [&](ExprRef d) { return names_length(d); }))
      return miss(output.name, "it has places for padding");
    if (!rows) return true;
    const auto it = outputs_.find(output.value.value);
    if (it != outputs_.end()) {
      output.value = it->second;
      return true;
    }
    std::vector<ExprRef> dims{total_};
    dims.insert(dims.end(), old.dims.begin() + 2, old.dims.end());
    Indices at = ir::indices_of(pool_, dims);
    const Indices t{at[0]};
    at[0] = ir::bounded(ir::load_of(g_, new_[4], t), batch_, *flag_);
    at.insert(at.begin() + 1, ir::bounded(ir::load_of(g_, new_[5], t), length_, *flag_));
    return gather(output, at, {old.dtype, dims});
  }

  bool gather(Graph::Output& output, const Indices& at, const ir::Type& type) {
    const ValueId v = output.value;
    ExprRef element =
        given(ir::has_elements(g_, v) ? ir::element_of(g_, v, at) : ir::load_of(g_, v, at));
    // What stood for row[b,s], of the (b, s) of a row.
    ExprRef t = pool_.index(0, total_);
    ExprRef has = has_token(at[0], at[1]), row = row_of(at[0], at[1]);
    element = ir::rewrite(element, [&](ExprRef n) -> ExprRef {
      return n == has ? pool_.boolean(true) : n == row ? t : nullptr;
    });
    ir::Captured c = ir::capture(element);
    std::string name = g_.value(v).name;
    if (const size_t end = name.rfind(".padded"); end != name.npos) name.resize(end);
    output.value = outputs_[v.value] = g_.add_pointwise(c.operands, c.body, type, name + ".rows");
    return true;
  }

  // ---- the graph ----

  void finish() {
    const auto source = [&](ValueId v) {
      return static_cast<uint32_t>(std::find(made_.begin(), made_.end(), v) - made_.begin());
    };
    std::vector<ir::SizeSymbol> symbols;
    ir::SizeSymbol tokens;
    for (ir::SizeSymbol s : g_.symbols) {
      ExprRef size = pool_.symbol(s.name);
      if (s.role == SizeRole::tokens) continue;  // batch times length, which is not what there is
      if (s.made()) {
        tokens.name = s.name;
        tokens.role = SizeRole::tokens;
        tokens.input = source(new_[4]);
        continue;
      }
      // Which sizes they are, whatever other inputs have a batch or a length of their own.
      if (s.role == SizeRole::batch || s.role == SizeRole::length) s.role = SizeRole::none;
      if (size == batch_ || size == length_) {
        const bool batch = size == batch_;
        s = {s.name, source(batch ? new_[2] : made_.back()), 0,
             batch ? SizeRole::batch : SizeRole::length};
      } else if (s.read()) {
        const auto ragged = ragged_.find(g_.inputs()[s.input].value);
        s.input = source(ragged == ragged_.end() ? g_.inputs()[s.input] : ragged->second);
        if (ragged != ragged_.end()) --s.axis;  // batch and length have become one
      }
      symbols.push_back(s);
    }
    symbols.insert(symbols.begin(), tokens);
    g_.symbols = std::move(symbols);
    g_.set_inputs(made_);
    g_.clean();
  }

  Graph& g_;
  ExprPool& pool_;
  PassReport& report_;
  OpId pack_;
  ExprRef batch_ = nullptr, length_ = nullptr, total_ = nullptr;
  std::vector<ValueId> padded_;          // inputs [B,S,..]
  ValueId mask_, lengths_;               // what says which tokens are real: one of these
  int64_t real_ = 1;                     // the mask of a real token
  ValueId old_[6], new_[6];              // results of pack, and the inputs in their places
  std::map<uint32_t, ValueId> ragged_;   // inputs, by padded ones
  std::vector<ValueId> made_;            // inputs from now on
  std::set<uint32_t> doubtful_;          // at padding
  std::set<uint32_t> counts_;            // of the tokens of each sequence
  std::map<uint32_t, ValueId> outputs_;  // by padded ones
  std::optional<int64_t> flag_;
};

}  // namespace

namespace {

// As many as a padded batch may have.
std::optional<int64_t> most_tokens(const Graph& graph) {
  const auto most = [&](SizeRole role) -> std::optional<int64_t> {
    const ir::SizeSymbol* size = graph.size_with(role);
    return size ? graph.pool().range(size->name).max : std::nullopt;
  };
  if (const auto told = most(SizeRole::tokens)) return told;
  const auto batch = most(SizeRole::batch), length = most(SizeRole::length);
  if (!batch || !length || *batch > ir::kLargestSize / *length) return std::nullopt;
  return *batch * *length;
}

}  // namespace

PassReport ragged_input(Graph& graph) {
  PassReport report;
  const std::optional<int64_t> most = most_tokens(graph);
  Graph attempt = graph;
  if (!Ragged(attempt, report).run()) return report;
  graph = ir::with_own_pool(attempt);  // which has the sizes of the new inputs alone
  const std::string& name = graph.size_with(SizeRole::tokens)->name;
  graph.pool().set_range(name, {1, most.value_or(ir::kLargestSize)});
  report.rewrites = 1;
  return report;
}

}  // namespace tfcc::passes

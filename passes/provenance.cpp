// SPDX-License-Identifier: Apache-2.0
#include "passes/provenance.h"

#include <algorithm>
#include <optional>
#include <set>

#include "passes/match.h"

namespace tfcc::passes {
namespace {

/// One pass: the graph before and after it, and who took over what.
class Step {
 public:
  Step(const Graph& before, const Graph& now)
      : before_(before), now_(now), live_(now.op_count()), is_replacement_(now.value_count()) {
    for (OpId o : now.order()) live_[o.value] = now.op(o).kind != OpKind::constant;
    for (size_t v = 0; v < before.value_count(); ++v) {
      const ValueId id{static_cast<uint32_t>(v)};
      if (const ValueId h = replacement(id); h != id) is_replacement_[h.value] = true;
    }
  }

  bool is_new(OpId o) const { return o.value >= before_.op_count(); }
  bool is_live(OpId o) const { return live_[o.value]; }

  /// Whether an op that was there before computes in another way now.
  bool changed(OpId o) const {
    const ir::Op &a = before_.op(o), &b = now_.op(o);
    if (a.operands.size() != b.operands.size() || attributes_key(a) != attributes_key(b))
      return true;
    for (size_t i = 0; i < a.operands.size(); ++i) {
      if (replacement(a.operands[i]) != b.operands[i]) return true;
    }
    return std::any_of(b.results.begin(), b.results.end(),
                       [&](ValueId v) { return before_.value(v).type != now_.value(v).type; });
  }

  /// For each op that is gone, the live ops that took it over.
  std::vector<std::pair<OpId, std::vector<OpId>>> taken_over() {
    std::vector<std::pair<OpId, std::vector<OpId>>> out;
    std::vector<std::vector<OpId>> owners(before_.op_count());
    const auto& order = before_.order();
    for (auto it = order.rbegin(); it != order.rend(); ++it) {  // readers first
      const OpId o = *it;
      if (live_[o.value] || before_.op(o).kind == OpKind::constant) continue;
      std::vector<OpId>& mine = owners[o.value];
      for (ValueId v : before_.op(o).results) add(mine, behind(now_.value(replacement(v)).def));
      for (size_t i = 0; i < before_.op(o).results.size() && mine.empty(); ++i) {
        for (OpId user : before_.value(before_.op(o).results[i]).users) {
          if (!live_[user.value]) add(mine, owners[user.value]);
          else if (changed(user)) add(mine, behind(user));
        }
      }
      std::sort(mine.begin(), mine.end());
      mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    }
    std::vector<Leaves> leaves(before_.op_count());
    for (OpId o : order) {  // producers first
      if (live_[o.value] || before_.op(o).kind == OpKind::constant) continue;
      leaves[o.value] = leaves_of(o, leaves);
      std::vector<OpId> mine;
      for (OpId owner : owners[o.value]) mine.push_back(side_of(owner, leaves[o.value]));
      out.push_back({o, mine});
    }
    return out;
  }

 private:
  /// Values that are left of what an op that is gone was computed from; nothing if they are many.
  using Leaves = std::optional<std::set<ValueId>>;
  static constexpr size_t kMostLeaves = 4;

  Leaves leaves_of(OpId gone, const std::vector<Leaves>& known) const {
    std::set<ValueId> all;
    for (ValueId v : before_.op(gone).operands) {
      const OpId def = before_.value(v).def;
      if (before_.is_constant(v)) continue;
      if (!def.valid() || live_[def.value]) all.insert(replacement(v));
      else if (!known[def.value]) return std::nullopt;
      else all.insert(known[def.value]->begin(), known[def.value]->end());
    }
    return all.size() > kMostLeaves ? Leaves() : Leaves(std::move(all));
  }

  // The op that prepares one operand of `owner`, if a pass made such a one and it alone reads all
  // of these leaves: a bias and a view of q belong there, not to the attention.
  OpId side_of(OpId owner, const Leaves& leaves) const {
    if (!leaves || leaves->empty() || !is_new(owner)) return owner;
    OpId side = owner;
    for (ValueId v : now_.op(owner).operands) {
      const OpId def = now_.value(v).def;
      if (!def.valid() || !is_new(def) || is_replacement_[v.value] ||
          now_.op(def).kind != OpKind::pointwise || def == side)
        continue;
      const auto& reads = now_.op(def).operands;
      const bool all = std::all_of(leaves->begin(), leaves->end(), [&](ValueId l) {
        return std::find(reads.begin(), reads.end(), l) != reads.end();
      });
      if (!all) continue;
      if (side != owner) return owner;
      side = def;
    }
    return side;
  }

  ValueId replacement(ValueId v) const {
    for (size_t steps = 0; steps < now_.value_count() && now_.value(v).replacement.valid(); ++steps)
      v = now_.value(v).replacement;
    return v;
  }

  static void add(std::vector<OpId>& to, const std::vector<OpId>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  // The op that does the work where an op stands now: passes put views around a new op, so the new
  // ops behind it that are no views come first, then the op itself. Stops at what took the place of
  // something else.
  std::vector<OpId> behind(OpId o) const {
    if (!o.valid() || !live_[o.value]) return {};
    std::vector<OpId> open{o}, found;
    std::set<OpId> seen{o};
    while (!open.empty()) {
      const OpId at = open.back();
      open.pop_back();
      if (now_.op(at).kind == OpKind::pack) continue;  // it numbers rows for all
      if (is_new(at) && now_.op(at).kind != OpKind::pointwise) found.push_back(at);
      for (ValueId v : now_.op(at).operands) {
        const OpId def = now_.value(v).def;
        if (!def.valid() || !is_new(def) || !live_[def.value] || is_replacement_[v.value] ||
            !seen.insert(def).second)
          continue;
        open.push_back(def);
      }
    }
    return found.empty() ? std::vector<OpId>{o} : found;
  }

  const Graph& before_;
  const Graph& now_;
  std::vector<bool> live_;            // now, constants left out
  std::vector<bool> is_replacement_;  // values that took the place of another
};

void add_pass(std::vector<std::string>& to, const std::string& pass) {
  if (std::find(to.begin(), to.end(), pass) == to.end()) to.push_back(pass);
}

}  // namespace

Provenance::Provenance(const Graph& start) : sources_(start.op_count()) {
  for (OpId o : start.order()) {
    if (start.op(o).kind != OpKind::constant) sources_[o.value].ops = {o};
  }
}

void Provenance::update(std::string_view pass, const Graph& before, const Graph& now) {
  Step step(before, now);
  sources_.resize(now.op_count());
  std::vector<bool> touched(now.op_count());
  for (OpId o : now.order()) {
    if (step.is_live(o)) touched[o.value] = step.is_new(o) || step.changed(o);
  }
  for (const auto& [gone, owners] : step.taken_over()) {
    for (OpId o : owners) {
      const Source& from = sources_[gone.value];
      Source& to = sources_[o.value];
      to.ops.insert(to.ops.end(), from.ops.begin(), from.ops.end());
      for (const std::string& p : from.passes) add_pass(to.passes, p);
      touched[o.value] = true;
    }
  }
  for (size_t o = 0; o < touched.size(); ++o) {
    if (!touched[o]) continue;
    std::vector<OpId>& ops = sources_[o].ops;
    std::sort(ops.begin(), ops.end());
    ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
    add_pass(sources_[o].passes, std::string(pass));
  }
}

const Provenance::Source& Provenance::of(OpId op) const {
  static const Source kNone;
  return op.value < sources_.size() ? sources_[op.value] : kNone;
}

}  // namespace tfcc::passes

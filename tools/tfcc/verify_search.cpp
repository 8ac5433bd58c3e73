// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/verify_search.h"

#include <algorithm>

namespace tfcc::tools {
namespace {

using ir::ValueId;

class Search {
 public:
  Search(const ir::Graph& graph, ValueId wrong, const Measure& measure,
         const SearchOptions& options)
      : graph_(graph),
        measure_(measure),
        options_(options),
        state_(graph.value_count()),
        place_(graph.value_count(), 0) {
    size_t place = 0;
    for (ir::OpId o : graph.order()) {
      for (ValueId v : graph.op(o).results) place_[v.value] = ++place;
    }
    found_.value = wrong;
    state_[wrong.value].kind = Kind::wrong;
  }

  Result<FirstWrong> run() {
    size_t total = 0;
    for (size_t round = 0;; ++round) {
      const std::vector<ValueId> open = before(found_.value, Kind::open);
      if (total == 0) total = open.size();
      if (options_.progress)
        options_.progress("looking for the first op that differs",
                          total - std::min(total, open.size()), total);
      found_.narrowed = open.empty();
      if (open.empty() || round == options_.most) break;
      const std::vector<ValueId> probes = spread(open);
      TFCC_TRY(auto differences, measure_(probes));
      for (size_t i = 0; i < probes.size(); ++i) note(probes[i], differences[i]);
    }
    tell_operands();
    return std::move(found_);
  }

 private:
  enum class Kind : uint8_t { open, right, wrong, unknown };
  struct State {
    Kind kind = Kind::open;
    std::optional<Difference> difference;
  };

  void note(ValueId v, std::optional<Difference>& d) {
    State& s = state_[v.value];
    s.kind = !d ? Kind::unknown : d->relative <= options_.tolerance ? Kind::right : Kind::wrong;
    s.difference = std::move(d);
    // The earliest in the order of the program; the search goes on before it.
    if (s.kind == Kind::wrong && place_[v.value] < place_[found_.value.value]) found_.value = v;
  }

  // Values of this kind that `from` is computed from, not looking behind those that are right; in
  // the order of the program.
  std::vector<ValueId> before(ValueId from, Kind kind) const {
    std::vector<ValueId> out, stack{from};
    std::vector<bool> seen(graph_.value_count());
    while (!stack.empty()) {
      const ir::Op* op = graph_.def(stack.back());
      stack.pop_back();
      if (!op || op->kind == ir::OpKind::constant) continue;
      for (ValueId v : op->operands) {
        const ir::Op* made_by = graph_.def(v);
        if (seen[v.value] || !made_by || made_by->kind == ir::OpKind::constant) continue;
        seen[v.value] = true;
        const Kind is = state_[v.value].kind;
        if (is == kind) out.push_back(v);
        if (is != Kind::right) stack.push_back(v);
      }
    }
    std::sort(out.begin(), out.end(),
              [&](ValueId a, ValueId b) { return place_[a.value] < place_[b.value]; });
    return out;
  }

  std::vector<ValueId> spread(const std::vector<ValueId>& open) const {
    if (open.size() <= options_.width) return open;
    std::vector<ValueId> out;
    for (size_t i = 0; i < options_.width; ++i)
      out.push_back(open[(i + 1) * open.size() / (options_.width + 1)]);
    return out;
  }

  void tell_operands() {
    found_.difference = state_[found_.value.value].difference;
    found_.unknown = before(found_.value, Kind::unknown);
    if (!found_.narrowed) return;
    for (ValueId v : before(found_.value, Kind::right))
      found_.operands = std::max(found_.operands.value_or(0), state_[v.value].difference->relative);
  }

  const ir::Graph& graph_;
  const Measure& measure_;
  const SearchOptions& options_;
  std::vector<State> state_;
  std::vector<size_t> place_;
  FirstWrong found_;
};

}  // namespace

Result<Differences> measured_in_parts(const std::vector<ValueId>& values, const Attempt& attempt) {
  TFCC_TRY(std::optional<Differences> all, attempt(values));
  if (all) return *std::move(all);
  if (values.size() == 1) return Differences(1);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  TFCC_TRY(Differences out, measured_in_parts({values.begin(), middle}, attempt));
  TFCC_TRY(Differences rest, measured_in_parts({middle, values.end()}, attempt));
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

Result<FirstWrong> find_first_wrong(const ir::Graph& graph, ValueId wrong, const Measure& measure,
                                    const SearchOptions& options) {
  return Search(graph, wrong, measure, options).run();
}

}  // namespace tfcc::tools

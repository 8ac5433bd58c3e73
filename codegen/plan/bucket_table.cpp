// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/bucket_table.h"

#include <algorithm>
#include <bit>

#include "codegen/plan/sizes.h"
#include "ir/elements.h"

namespace tfcc::codegen {
namespace {

using ir::ExprRef;
using ir::SizeSymbol;
using runtime::kLargestCap;

int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}
int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
int64_t eighth(int64_t n) { return round_up(n, power_of_two(n) / 8); }
// Powers of two and what is in the middle of them.
int64_t half_step(int64_t n) {
  return std::min(power_of_two(n), round_up(n, power_of_two(n) / 4 * 3));
}

// Caps of the sizes of a range, each the next of the one before.
template <class Next> std::vector<int64_t> steps(ir::SymbolRange range, Next next) {
  const int64_t largest = std::min(range.max.value_or(kLargestCap), kLargestCap);
  std::vector<int64_t> caps;
  if (range.min == 0) caps.push_back(0);
  for (int64_t n = std::max<int64_t>(range.min, 1); n <= largest; n = caps.back() + 1)
    caps.push_back(std::min(next(n), largest));
  return caps;
}

class Table {
 public:
  Table(const ir::Graph& graph, const std::vector<int64_t>& lengths)
      : graph_(graph),
        lengths_(lengths),
        cached_(graph.size_with(SizeRole::past) != nullptr ||
                ir::plain_outputs(graph) < graph.outputs.size()),
        ragged_(ir::is_ragged(graph)) {}

  runtime::BucketTable run() const {
    runtime::BucketTable table;
    for (const SizeSymbol* s : Sizes::told(graph_)) {
      runtime::SizeCaps caps;
      if (s->made()) caps.cap = cap_of_bound(*s);
      else if (s->role == SizeRole::batch && rows_of() != nullptr) caps.cap = most_rows();
      else caps.caps = caps_of(*s);
      table.sizes.push_back(std::move(caps));
    }
    return table;
  }

 private:
  std::vector<int64_t> caps_of(const SizeSymbol& s) const {
    const ir::SymbolRange range = graph_.pool().range(s.name);
    if (ragged_) return ragged_caps(s.role, range);
    switch (s.role) {
      case SizeRole::length: return length_caps(range);
      case SizeRole::tokens:
        return steps(range, [this](int64_t n) {
          return cached_ && n < 64 ? power_of_two(n) : n <= 512 ? round_up(n, 64) : eighth(n);
        });
      case SizeRole::past:
      case SizeRole::context:
        return steps(range, [](int64_t n) { return std::max<int64_t>(power_of_two(n), 16); });
      case SizeRole::batch:
      case SizeRole::packed:
      case SizeRole::none: break;
    }
    return steps(range, [](int64_t n) { return n <= 16 ? n : eighth(n); });
  }

  // Sequences, the longest and all tokens vary apart. Kernels read the tokens that there are, so that
  // coarse steps cost blocks that end at once.
  std::vector<int64_t> ragged_caps(SizeRole role, ir::SymbolRange range) const {
    if (role == SizeRole::length && !lengths_.empty()) return lengths_;
    return steps(range, [role](int64_t n) {
      if (role == SizeRole::tokens) return half_step(std::max<int64_t>(n, 64));
      return std::max<int64_t>(power_of_two(n), role == SizeRole::length ? 16 : 1);
    });
  }

  // The bound of a size that an op makes, at the caps of the others.
  runtime::SizeExpr cap_of_bound(const SizeSymbol& s) const {
    Sizes sizes(graph_);
    std::vector<std::string> values =
        sizes.names();  // caps, then least values, which it needs none of
    for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back("the least " + values[i]);
    return size_program(sizes.restate(s.bound), values);
  }

  // Those that the user named; what is longer is refused before a bucket is looked for.
  std::vector<int64_t> length_caps(ir::SymbolRange range) const {
    if (!lengths_.empty()) return lengths_;
    return steps(range,
                 [this](int64_t n) { return std::max<int64_t>(power_of_two(n), cached_ ? 1 : 4); });
  }

  // The computed size that the batch is a factor of, if caps of its own bound it.
  const SizeSymbol* rows_of() const {
    const SizeSymbol *batch = graph_.size_with(SizeRole::batch),
                     *tokens = graph_.size_with(SizeRole::tokens);
    if (batch == nullptr || tokens == nullptr) return nullptr;
    const auto factors = Sizes::factors(*tokens);
    const bool among = std::any_of(factors.begin(), factors.end(),
                                   [&](ExprRef f) { return f->name == batch->name; });
    return among ? tokens : nullptr;
  }

  // tokens / the least values of its other factors: the most sequences there are where each is at
  // least so long.
  runtime::SizeExpr most_rows() const {
    const SizeSymbol& batch = *graph_.size_with(SizeRole::batch);
    std::vector<std::string> values;  // caps, then least values
    for (const SizeSymbol* s : Sizes::told(graph_)) values.push_back(s->name);
    for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back("the least " + values[i]);
    ir::ExprPool pool;
    ExprRef least = pool.integer(1);
    for (ExprRef f : Sizes::factors(*rows_of())) {
      if (f->name != batch.name)
        least = ir::mul(least, ir::max(pool.symbol("the least " + f->name), pool.integer(1)));
    }
    ExprRef rows = ir::max(ir::div(pool.symbol(rows_of()->name), least), pool.integer(1));
    if (const auto most = graph_.pool().range(batch.name).max)
      rows = ir::min(rows, pool.integer(*most));
    runtime::SizeExpr cap = size_program(rows, values);
    std::erase(cap.text, '"');  // around names with a space
    return cap;
  }

  const ir::Graph& graph_;
  const std::vector<int64_t>& lengths_;
  const bool cached_;  // there is a past, or a cache: runs of few tokens
  const bool ragged_;  // tokens come without padding
};

}  // namespace

runtime::BucketTable bucket_table(const ir::Graph& graph, const std::vector<int64_t>& lengths) {
  return Table(graph, lengths).run();
}

}  // namespace tfcc::codegen

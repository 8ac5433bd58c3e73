// SPDX-License-Identifier: Apache-2.0
// The import context, its facts about sizes: what must be equal, what must not be negative, which
// indices are in range.
#include "frontend/import/importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

// 64*B*S = 2048*B says S = 32, since no size B is 0: the equation without the sizes that all its
// terms share.
ExprRef without_common_sizes(Importer& im, ExprRef difference) {
  if (difference->kind != ir::ExprKind::poly || difference->value != 0 ||
      difference->terms.size() != 2)
    return difference;
  for (ExprRef atom : difference->terms[0].atoms) {
    if (!ir::prove_ge0(ir::sub(atom, im.integer(1)))) continue;
    if (std::optional<ExprRef> q = ir::exact_div(difference, atom))
      return without_common_sizes(im, *q);
  }
  return difference;
}

constexpr int64_t kMostParts = 1 << 16;  // elements of a part that an axis is cut into

// A product of sizes as a number and atoms; a number of 0 if it is none.
std::pair<int64_t, std::vector<ExprRef>> size_product(ExprRef e) {
  if (const auto n = ir::as_int(e)) return {*n, {}};
  if (e->kind == ir::ExprKind::symbol) return {1, {e}};
  if (e->kind != ir::ExprKind::poly || e->value != 0 || e->terms.size() != 1) return {0, {}};
  return {e->terms[0].coefficient, e->terms[0].atoms};
}

// The size and the value that `difference` = 0 gives it, for c * S + k.
std::optional<std::pair<std::string, int64_t>> solved(ExprRef difference) {
  if (difference->kind != ir::ExprKind::poly || difference->terms.size() != 1) return std::nullopt;
  const ir::Term& t = difference->terms[0];
  if (t.atoms.size() != 1 || t.atoms[0]->kind != ir::ExprKind::symbol ||
      difference->value % t.coefficient != 0)
    return std::nullopt;
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
  if (e->terms[0].coefficient + e->terms[1].coefficient != 0 ||
      std::abs(e->terms[0].coefficient) != 1)
    return std::nullopt;
  return std::pair{e->terms[0].atoms[0], e->terms[1].atoms[0]};
}
}  // namespace

// One name for two sizes; what this round knows already is followed first, so that names never go
// in a circle.
void Importer::same_size(const std::string& a, const std::string& b) {
  auto root = [&](std::string name) {
    for (auto it = found.alias.find(name); it != found.alias.end(); it = found.alias.find(name))
      name = it->second;
    return name;
  };
  const std::string kept = root(a), gone = root(b);
  if (kept != gone) found.alias[gone] = kept;
}

bool Importer::equal_to_sum(ExprRef symbol, ExprRef sum) {
  if (symbol->kind != ir::ExprKind::symbol || sum->kind != ir::ExprKind::poly ||
      sum->terms.empty() || known_.equal.count(symbol->name))
    return false;
  bool free = sum->value >= 0 && is_size_expression(sum);
  for (const ir::Term& t : sum->terms) free = free && t.coefficient > 0;
  ir::for_each_node(
      sum, [&](ExprRef n) { free = free && n != symbol && n->kind != ir::ExprKind::index; });
  if (free) found.equal[symbol->name] = ir::print(sum);
  return free;
}

void Importer::expect_multiple(ExprRef product, ExprRef divisor) {
  auto [have, atoms] = size_product(product);
  const auto [want, by] = size_product(divisor);
  if (have <= 0 || want <= 0) return;
  for (ExprRef atom : by) {
    const auto it = std::find(atoms.begin(), atoms.end(), atom);
    if (it == atoms.end()) return;
    atoms.erase(it);
  }
  const int64_t left = want / std::gcd(have, want);
  if (left <= 1 || left > kMostParts || atoms.size() != 1 || atoms[0]->kind != ir::ExprKind::symbol)
    return;
  found.multiple[atoms[0]->name] = left;
  found.reason[atoms[0]->name] = fmt::format(
      "node '{}' cuts it into parts", escaped(node->name.empty() ? node->outputs[0] : node->name));
}

Result<ExprRef> Importer::unify(ExprRef a, ExprRef b, const std::string& what) {
  if (a == b) return a;
  ExprRef difference = ir::sub(a, b);
  if (ir::as_int(difference) || ir::eq(a, b)->kind == ir::ExprKind::bfalse)
    return fail(ErrorCode::shape, what);
  if (a->kind == ir::ExprKind::imin || b->kind == ir::ExprKind::imin) {
    // min(128, S) against S: S <= 128 in every run.
    ExprRef m = a->kind == ir::ExprKind::imin ? a : b;
    ExprRef other = m == a ? b : a;
    if (m->args[0] == other || m->args[1] == other) {
      ExprRef limit = m->args[0] == other ? m->args[1] : m->args[0];
      // A mask cut to the keys there are, min(P + S, T): a longer T has no use, and T = P + S is
      // what the next round can compute with.
      if (equal_to_sum(limit, other)) return other;
      if (limit->kind == ir::ExprKind::symbol && other->kind == ir::ExprKind::symbol) {
        same_size(other->name, limit->name);
        return other;
      }
      TFCC_TRY_VOID(
          require_ge0(ir::sub(limit, other),
                      fmt::format("{} must be at most {}", ir::print(other), ir::print(limit))));
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
    found.reason.emplace(
        fixed->first,
        fmt::format("size {} is always {}: {} must equal {} at node '{}'", fixed->first,
                    fixed->second, ir::print(a), ir::print(b), node->name));
    return ir::as_int(a) ? a : b;
  }
  for (auto [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
    if (x->kind != ir::ExprKind::symbol) continue;
    const std::optional<int64_t> limit = upper_bound(y);
    if (limit && !ir::prove_ge0(ir::sub(integer(*limit), x))) {
      TFCC_TRY_VOID(require_ge0(ir::sub(integer(*limit), x),
                                fmt::format("{} must be at most {}", ir::print(x), *limit)));
      return x;
    }
  }
  graph.checks.push_back(
      {ir::eq(a, b), fmt::format("{} must equal {}", ir::print(a), ir::print(b))});
  return a;
}

namespace {

// True if `e` cannot fall when a size in it grows: sums and quotients by constants, as windows
// count.
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

constexpr int64_t kLargestLeast =
    int64_t{1} << 20;  // of a size: a second of audio is some ten thousand samples

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
  auto holds = [&](int64_t size) {
    return ir::eval_size(e, [&](std::string_view) { return size; }) >= 0;
  };
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

// b*T + j into a flattened [B, M], or j < T into [.., M], with T from other inputs: what the graph
// means is M = T. Stricter than an index in range, and said as a size that differs instead of a bad
// index. True if a symbol of n is now known in terms of others.
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
  if (ir::prove_in(wrapped, n)) return wrapped;
  if (ir::as_int(wrapped) && ir::as_int(n))
    return fail(ErrorCode::shape,
                fmt::format("index {} lies outside [0, {})", ir::print(e), ir::print(n)));
  std::vector<ValueId> loads = ir::loads_of(e);
  if (loads.empty() && equal_by_index(wrapped, n)) return wrapped;  // holds from the next round on
  if (loads.empty() && wrapped->kind == ir::ExprKind::index && ir::as_int(n)) {
    ExprRef extent = wrapped->args[0];
    TFCC_TRY_VOID(require_ge0(
        ir::sub(n, extent), fmt::format("{} must be at most {}", ir::print(extent), ir::print(n))));
    return wrapped;
  }
  // What is clamped must have somewhere to go.
  TFCC_TRY_VOID(require_ge0(ir::sub(n, integer(1)),
                            fmt::format("{} must be at least 1: it is indexed", ir::print(n))));
  std::vector<ValueId> sources = ir::loads_of(ir::expand(graph, e, [](ValueId) { return true; }));
  std::string name = sources.empty() ? "index of " + value_name(0) : graph.value(sources[0]).name;
  const std::string bound = ir::print(n),
                    least = bound.find_first_of(" +*/") == bound.npos
                                ? "-" + bound
                                : "-(" + bound + ")";  // those below 0 count from the end
  std::string message = fmt::format("{}: a value lies outside [{}, {})", name, least, bound);
  auto it = std::find(graph.flags.begin(), graph.flags.end(), message);
  const int64_t flag = it - graph.flags.begin();
  if (it == graph.flags.end()) graph.flags.push_back(message);
  return ir::bounded(wrapped, n, flag);
}

}  // namespace tfcc::frontend

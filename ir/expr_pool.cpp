// SPDX-License-Identifier: Apache-2.0
// The pool: hash-consing, structural order, ranges of symbols, leaves.
#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "ir/expr.h"
#include "ir/expr_poly.h"
#include "ir/range.h"

namespace tfcc::ir {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdULL;
  return h ^ (h >> 33);
}

uint64_t hash_text(std::string_view s) {
  uint64_t h = 1469598103934665603ULL;
  for (unsigned char c : s) h = (h ^ c) * 1099511628211ULL;
  return h;
}

uint64_t structural_hash(const Node& n) {
  uint64_t h = mix(static_cast<uint64_t>(n.kind), static_cast<uint64_t>(n.type));
  h = mix(h, static_cast<uint64_t>(n.value));
  h = mix(h, std::bit_cast<uint64_t>(n.real));
  h = mix(h, hash_text(n.name));
  for (ExprRef a : n.args) h = mix(h, a->hash);
  for (const Term& t : n.terms) {
    h = mix(h, static_cast<uint64_t>(t.coefficient));
    for (ExprRef a : t.atoms) h = mix(h, a->hash);
  }
  return h;
}

bool same_terms(const std::vector<Term>& a, const std::vector<Term>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].coefficient != b[i].coefficient || a[i].atoms != b[i].atoms) return false;
  }
  return true;
}

// Reals are equal when their bits are, so that 0.0 and -0.0 stay apart and NaN equals itself.
bool same_node(const Node& a, const Node& b) {
  return a.kind == b.kind && a.type == b.type && a.value == b.value && a.dtype == b.dtype &&
         std::bit_cast<uint64_t>(a.real) == std::bit_cast<uint64_t>(b.real) && a.name == b.name &&
         a.args == b.args && same_terms(a.terms, b.terms);
}

template <class T> int three_way(const T& a, const T& b) { return a < b ? -1 : (b < a ? 1 : 0); }

int compare_lists(const std::vector<ExprRef>& a, const std::vector<ExprRef>& b) {
  if (int c = three_way(a.size(), b.size())) return c;
  for (size_t i = 0; i < a.size(); ++i) {
    if (int c = compare(a[i], b[i])) return c;
  }
  return 0;
}

}  // namespace

int compare(ExprRef a, ExprRef b) {
  if (a == b) return 0;
  if (int c = three_way(a->kind, b->kind)) return c;
  if (int c = three_way(a->value, b->value)) return c;
  if (int c = three_way(a->type, b->type)) return c;
  if (int c = three_way(a->dtype, b->dtype)) return c;
  if (int c = a->name.compare(b->name)) return c < 0 ? -1 : 1;
  if (int c = three_way(std::bit_cast<uint64_t>(a->real), std::bit_cast<uint64_t>(b->real)))
    return c;
  if (int c = compare_lists(a->args, b->args)) return c;
  if (int c = three_way(a->terms.size(), b->terms.size())) return c;
  for (size_t i = 0; i < a->terms.size(); ++i) {
    if (int c = three_way(a->terms[i].coefficient, b->terms[i].coefficient)) return c;
    if (int c = compare_lists(a->terms[i].atoms, b->terms[i].atoms)) return c;
  }
  return 0;
}

namespace {
struct PairHash {
  size_t operator()(const std::pair<ExprRef, ExprRef>& p) const {
    return mix(p.first->hash, p.second->hash);
  }
};
struct ListHash {
  size_t operator()(const std::vector<ExprRef>& list) const {
    uint64_t hash = list.size();
    for (ExprRef e : list) hash = mix(hash, e->hash);
    return hash;
  }
};
}  // namespace

struct ExprPool::Impl {
  std::deque<Node> nodes;
  // Open addressing; the number of slots is a power of two, and at most two thirds of them are
  // taken.
  struct Slot {
    uint64_t hash = 0;
    ExprRef node = nullptr;
  };
  std::vector<Slot> table = std::vector<Slot>(1024);

  // Where the node with these fields is, or would be.
  Slot& slot_of(const Node& node) {
    size_t at = node.hash & (table.size() - 1);
    for (; table[at].node; at = (at + 1) & (table.size() - 1)) {
      if (table[at].hash == node.hash && same_node(*table[at].node, node)) break;
    }
    return table[at];
  }

  void grow() {
    std::vector<Slot> old(2 * table.size());
    old.swap(table);
    for (const Slot& s : old) {
      size_t at = s.hash & (table.size() - 1);
      while (s.node && table[at].node) at = (at + 1) & (table.size() - 1);
      if (s.node) table[at] = s;
    }
  }

  std::map<std::string, SymbolRange, std::less<>> ranges;
  std::unordered_map<std::vector<ExprRef>, bool, ListHash> proofs;
  std::unordered_map<std::pair<ExprRef, ExprRef>, ExprRef, PairHash> quotients;
  Known known;
  std::vector<ExprRef> assumed;
  std::unordered_set<ExprRef> is_assumed;
};

ExprPool::ExprPool() : impl_(new Impl) {}
ExprPool::~ExprPool() { delete impl_; }

ExprRef ExprPool::intern(Node&& node) {
  node.pool = this;
  node.depth = 1;
  node.has_load = node.kind == ExprKind::load;
  node.has_index = node.kind == ExprKind::index;
  Poison spread = Poison::none;
  auto over = [&](ExprRef a) {
    if (spread == Poison::none) spread = poison_of(a);
    node.depth = std::max(node.depth, a->depth + 1);
    node.has_load |= a->has_load;
    node.has_index |= a->has_index;
  };
  for (ExprRef a : node.args) over(a);
  for (const Term& t : node.terms) {
    for (ExprRef a : t.atoms) over(a);
  }
  if (spread != Poison::none) return poison(spread, node.type);
  node.hash = structural_hash(node);
  Impl::Slot& slot = impl_->slot_of(node);
  if (slot.node) return slot.node;
  impl_->nodes.push_back(std::move(node));
  ExprRef result = &impl_->nodes.back();
  slot = {result->hash, result};
  if (3 * impl_->nodes.size() > 2 * impl_->table.size()) impl_->grow();
  return result;
}

namespace {
Node make(ExprKind kind, Scalar type) {
  Node n{};
  n.kind = kind;
  n.type = type;
  return n;
}
}  // namespace

ExprRef ExprPool::integer(int64_t v) {
  Node n = make(ExprKind::poly, Scalar::i64);
  n.value = v;
  return intern(std::move(n));
}

ExprRef ExprPool::real(double v, Scalar type) {
  if (type != Scalar::f32 && type != Scalar::f64) return poison(Poison::ill_typed, Scalar::f32);
  Node n = make(ExprKind::fconst, type);
  n.real = type == Scalar::f32 ? static_cast<double>(static_cast<float>(v)) : v;
  if (std::isnan(n.real)) n.real = std::nan("");
  return intern(std::move(n));
}

ExprRef ExprPool::boolean(bool v) {
  return intern(make(v ? ExprKind::btrue : ExprKind::bfalse, Scalar::boolean));
}

ExprRef ExprPool::index(int64_t number, ExprRef extent) {
  if (is_int(extent, 1)) return integer(0);
  if (extent->type != Scalar::i64) return poison(Poison::ill_typed, Scalar::i64);
  Node n = make(ExprKind::index, Scalar::i64);
  n.value = number;
  n.args = {extent};
  return intern(std::move(n));
}

ExprRef ExprPool::symbol(std::string_view name) {
  Node n = make(ExprKind::symbol, Scalar::i64);
  n.name = name;
  return intern(std::move(n));
}

ExprRef ExprPool::param(std::string_view name, Scalar type) {
  Node n = make(ExprKind::param, type);
  n.name = name;
  return intern(std::move(n));
}

ExprRef ExprPool::poison(Poison why, Scalar type) {
  Node n = make(ExprKind::poison, type);
  n.value = static_cast<int64_t>(why);
  return intern(std::move(n));
}

std::string_view to_string(Poison why) {
  switch (why) {
    case Poison::none: return "it has a value";
    case Poison::ill_typed: return "operands of these types do not go together";
    case Poison::overflow: return "an integer does not fit 64 bits";
    case Poison::too_large: return "an integer is too large an expression";
  }
  return "";
}

ExprRef ExprPool::load(int64_t slot, Scalar type, std::vector<ExprRef> indices) {
  switch (type) {
    case Scalar::i64: return load(slot, DType::i64, std::move(indices));
    case Scalar::f32: return load(slot, DType::f32, std::move(indices));
    case Scalar::f64: return load(slot, DType::f64, std::move(indices));
    default: return load(slot, DType::boolean, std::move(indices));
  }
}

ExprRef ExprPool::load(int64_t slot, DType dtype, std::vector<ExprRef> indices) {
  for (ExprRef i : indices) {
    if (i->type != Scalar::i64) return poison(Poison::ill_typed, scalar_of(dtype));
  }
  Node n = make(ExprKind::load, scalar_of(dtype));
  n.dtype = n.type == Scalar::f32 ? DType::f32 : dtype;
  n.value = slot;
  n.args = std::move(indices);
  return intern(std::move(n));
}

void ExprPool::set_range(std::string_view symbol, SymbolRange range) {
  impl_->ranges[std::string(symbol)] = range;
  impl_->proofs.clear();
  impl_->quotients.clear();
  impl_->known = {};
}

SymbolRange ExprPool::range(std::string_view symbol) const {
  auto it = impl_->ranges.find(symbol);
  return it == impl_->ranges.end() ? SymbolRange{} : it->second;
}

std::optional<bool> ExprPool::proof(const std::vector<ExprRef>& claim) const {
  auto it = impl_->proofs.find(claim);
  return it == impl_->proofs.end() ? std::nullopt : std::optional(it->second);
}

void ExprPool::keep_proof(std::vector<ExprRef> claim, bool proved) {
  impl_->proofs.emplace(std::move(claim), proved);
}

ExprRef ExprPool::quotient(ExprRef a, ExprRef b) const {
  auto it = impl_->quotients.find({a, b});
  return it == impl_->quotients.end() ? nullptr : it->second;
}

ExprPool::Known& ExprPool::known() { return impl_->known; }

void ExprPool::assume_size(ExprRef magnitude) {
  if (impl_->is_assumed.insert(magnitude).second) impl_->assumed.push_back(magnitude);
}

const std::vector<ExprRef>& ExprPool::assumed() const { return impl_->assumed; }

void ExprPool::keep_quotient(ExprRef a, ExprRef b, ExprRef result) {
  impl_->quotients.emplace(std::pair(a, b), result);
}

std::optional<int64_t> as_int(ExprRef e) {
  if (e->kind == ExprKind::poly && e->terms.empty()) return e->value;
  return std::nullopt;
}

std::optional<double> as_real(ExprRef e) {
  if (e->kind == ExprKind::fconst) return e->real;
  return std::nullopt;
}

}  // namespace tfcc::ir

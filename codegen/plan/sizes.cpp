// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/sizes.h"

#include <algorithm>

#include "ir/elements.h"
#include "runtime/result.h"

namespace tfcc::codegen {
namespace {

using ir::ExprKind;
using ir::ExprRef;
using runtime::SizeCode;
using Names = std::vector<std::string>;

void encode(ExprRef e, const Names& symbols, std::vector<int64_t>& code);

void encode(const ir::Term& t, const Names& symbols, std::vector<int64_t>& code) {
  for (size_t i = 0; i < t.atoms.size(); ++i) {
    encode(t.atoms[i], symbols, code);
    if (i > 0) code.push_back(static_cast<int64_t>(SizeCode::mul));
  }
  if (t.coefficient == 1) return;
  code.insert(code.end(), {static_cast<int64_t>(SizeCode::push), t.coefficient,
                           static_cast<int64_t>(SizeCode::mul)});
}

// A number that is >= 0 where the condition holds.
void encode_condition(ExprRef c, const Names& symbols, std::vector<int64_t>& code) {
  auto emit = [&](SizeCode s) { code.push_back(static_cast<int64_t>(s)); };
  auto push = [&](int64_t v) {
    emit(SizeCode::push);
    code.push_back(v);
  };
  switch (c->kind) {
    case ExprKind::btrue: return push(0);
    case ExprKind::bfalse: return push(-1);
    case ExprKind::ge0: return encode(c->args[0], symbols, code);
    case ExprKind::eq0:
      encode(c->args[0], symbols, code);
      emit(SizeCode::abs);
      return emit(SizeCode::negate);
    case ExprKind::bnot:  // -1 - c
      push(-1);
      encode_condition(c->args[0], symbols, code);
      emit(SizeCode::negate);
      return emit(SizeCode::add);
    case ExprKind::band:
    case ExprKind::bor:
      for (size_t i = 0; i < c->args.size(); ++i) {
        encode_condition(c->args[i], symbols, code);
        if (i > 0) emit(c->kind == ExprKind::band ? SizeCode::min : SizeCode::max);
      }
      return;
    default: TFCC_CHECK(false && "no condition over sizes");
  }
}

void encode(ExprRef e, const Names& symbols, std::vector<int64_t>& code) {
  auto emit = [&](SizeCode c) { code.push_back(static_cast<int64_t>(c)); };
  auto push = [&](int64_t v) {
    emit(SizeCode::push);
    code.push_back(v);
  };
  auto binary = [&](SizeCode c) {
    encode(e->args[0], symbols, code);
    encode(e->args[1], symbols, code);
    emit(c);
  };
  switch (e->kind) {
    case ExprKind::poly: {
      bool first = true;
      for (const ir::Term& t : e->terms) {
        encode(t, symbols, code);
        if (!first) emit(SizeCode::add);
        first = false;
      }
      if (first) return push(e->value);
      if (e->value != 0) {
        push(e->value);
        emit(SizeCode::add);
      }
      return;
    }
    case ExprKind::symbol: {
      const auto it = std::find(symbols.begin(), symbols.end(), e->name);
      TFCC_CHECK(it != symbols.end() && "a size names an unknown symbol");
      emit(SizeCode::symbol);
      code.push_back(it - symbols.begin());
      return;
    }
    case ExprKind::floordiv: return binary(SizeCode::floordiv);
    case ExprKind::imin: return binary(SizeCode::min);
    case ExprKind::imax: return binary(SizeCode::max);
    case ExprKind::iabs: encode(e->args[0], symbols, code); return emit(SizeCode::abs);
    case ExprKind::select: {
      ExprRef c = e->args[0];
      const bool negated = c->kind == ExprKind::bnot;
      if (negated) c = c->args[0];
      encode_condition(c, symbols, code);
      encode(e->args[negated ? 2 : 1], symbols, code);
      encode(e->args[negated ? 1 : 2], symbols, code);
      return emit(SizeCode::select);
    }
    case ExprKind::poison:  // the runtime refuses what overflows
      code.insert(code.end(), {static_cast<int64_t>(SizeCode::push), INT64_MAX,
                               static_cast<int64_t>(SizeCode::push), INT64_MAX});
      return emit(SizeCode::mul);
    default: TFCC_CHECK(false && "no size expression");
  }
}

}  // namespace

std::string why_no_program(ExprRef e) {
  constexpr size_t kLargest =
      4096;  // a program has no variables: what is used twice is there twice
  std::string why;
  ir::for_each_node(e, [&](ExprRef n) {
    switch (n->kind) {
      case ExprKind::poly:
      case ExprKind::symbol:
      case ExprKind::floordiv:
      case ExprKind::imin:
      case ExprKind::imax:
      case ExprKind::iabs:
      case ExprKind::btrue:
      case ExprKind::bfalse:
      case ExprKind::ge0:
      case ExprKind::eq0:
      case ExprKind::band:
      case ExprKind::bor:
      case ExprKind::bnot: return;
      case ExprKind::select:
        if (n->type != ir::Scalar::i64) why = "goes through floating point";
        return;
      case ExprKind::load: why = "depends on data"; return;
      case ExprKind::bitand_: why = "masks bits"; return;
      case ExprKind::wrap: why = "wraps to fewer bits"; return;
      default: why = "goes through floating point";
    }
  });
  if (why.empty() && ir::tree_size(e, kLargest + 1) > kLargest) why = "is too large an expression";
  return why;
}

runtime::SizeExpr size_program(ExprRef e, const Names& symbols) {
  runtime::SizeExpr out;
  encode(e, symbols, out.code);
  out.text = ir::print(e);
  return out;
}

std::vector<ExprRef> Sizes::factors(const ir::SizeSymbol& s) {
  if (!s.computed() || s.formula->kind != ExprKind::poly || s.formula->value != 0 ||
      s.formula->terms.size() != 1)
    return {};
  const ir::Term& t = s.formula->terms[0];
  const bool plain = t.coefficient == 1 && t.atoms.size() > 1 &&
                     std::all_of(t.atoms.begin(), t.atoms.end(),
                                 [](ExprRef a) { return a->kind == ExprKind::symbol; }) &&
                     std::adjacent_find(t.atoms.begin(), t.atoms.end()) == t.atoms.end();
  return plain ? t.atoms : std::vector<ExprRef>{};
}

ExprRef Sizes::at_bounds(const ir::Graph& graph, ExprRef e) {
  for (const ir::SizeSymbol& s : graph.symbols) {
    if (!s.made()) continue;
    ExprRef size = graph.pool().symbol(s.name);
    e = ir::rewrite(e, [&](ExprRef n) { return n == size ? s.bound : nullptr; });
  }
  return e;
}

std::vector<const ir::SizeSymbol*> Sizes::told(const ir::Graph& graph) {
  std::vector<const ir::SizeSymbol*> out;
  for (const ir::SizeSymbol& s : graph.symbols) {
    if (!s.computed() || !factors(s).empty()) out.push_back(&s);
  }
  return out;
}

Sizes::Sizes(const ir::Graph& graph) : pool_(graph.pool_ptr()) {
  for (const ir::SizeSymbol* s : told(graph)) {
    names_.push_back(s->name);
    if (s->computed()) products_.push_back({s->name, factors(*s)});
  }
  if (products_.empty()) return;
  pool_ = std::make_shared<ir::ExprPool>();
  for (const ir::SizeSymbol& s : graph.symbols) {
    ir::SymbolRange range = graph.pool().range(s.name);
    if (s.computed()) range.min = 0;  // the runtime holds it to its largest value alone
    pool_->set_range(s.name, range);
  }
}

ExprRef Sizes::restate(ExprRef e) {
  if (e->pool == pool_.get()) return e;
  if (const auto known = restated_.find(e); known != restated_.end()) return known->second;
  ExprRef r = ir::transfer(e, *pool_, [this](ExprRef n) {
    return n->kind == ExprKind::poly && !n->terms.empty() ? restate_sum(n) : nullptr;
  });
  restated_.emplace(e, r);
  return r;
}

// Of each term a product is taken out as often as it divides the term.
ExprRef Sizes::restate_sum(ExprRef e) {
  ExprRef sum = pool_->integer(e->value);
  for (const ir::Term& t : e->terms) {
    std::vector<ExprRef> left = t.atoms;
    ExprRef product = pool_->integer(t.coefficient);
    for (const Product& p : products_) {
      const auto in = [&](ExprRef f) {
        return std::find(left.begin(), left.end(), f) != left.end();
      };
      while (std::all_of(p.factors.begin(), p.factors.end(), in)) {
        for (ExprRef f : p.factors) left.erase(std::find(left.begin(), left.end(), f));
        product = ir::mul(product, pool_->symbol(p.name));
      }
    }
    for (ExprRef a : left) product = ir::mul(product, restate(a));
    sum = ir::add(sum, product);
  }
  return sum;
}

runtime::SizeExpr Sizes::program(ExprRef e) {
  runtime::SizeExpr out = size_program(restate(e), names_);
  out.text = ir::print(e);
  return out;
}

}  // namespace tfcc::codegen

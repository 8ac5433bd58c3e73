// SPDX-License-Identifier: Apache-2.0
// Text of an expression, on one line; ir/README.md has the grammar. Subexpressions used more than
// once are named by let.
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "ir/expr.h"
#include "ir/expr_poly.h"

namespace tfcc::ir {
namespace {

// Precedence, low to high.
enum Level { kOr = 1, kAnd, kNot, kCompare, kSum, kProduct, kUnary, kAtom };
constexpr int kQuotient = -1;  // of a summand alone: a product that a minus sign must not break up

bool is_plain_name(std::string_view s) {
  if (s.empty() || (s[0] >= '0' && s[0] <= '9')) return false;
  for (char c : s) {
    if (!(std::isalnum(static_cast<unsigned char>(c)) || c == '_')) return false;
  }
  return true;
}

std::string real_text(double v, Scalar type) {
  std::string s;
  if (std::isnan(v)) {
    s = "nan";
  } else if (std::isinf(v)) {
    s = v < 0 ? "-inf" : "inf";
  } else {
    char buffer[64];
    auto end = type == Scalar::f32 ? std::to_chars(buffer, buffer + 64, static_cast<float>(v)).ptr
                                   : std::to_chars(buffer, buffer + 64, v).ptr;
    s.assign(buffer, end);
    if (s.find_first_of(".e") == std::string::npos) s += ".0";
  }
  return type == Scalar::f64 ? s + "d" : s;
}

class Printer {
 public:
  explicit Printer(const PrintNames& names) : names_(names) {}

  std::string run(ExprRef e) {
    count(e);
    std::string lets;
    for_each_node(e, [&](ExprRef n) {
      if (n == e || uses_[n] < 2 || !worth_naming(n)) return;
      std::string text = at(n, kOr);
      std::string name = "t" + std::to_string(shared_.size());
      lets += (lets.empty() ? "let " : ", ") + name + " = " + text;
      shared_[n] = name;
    });
    std::string body = at(e, kOr);
    return lets.empty() ? body : lets + " in " + body;
  }

 private:
  void count(ExprRef e) {
    for_each_node(e, [&](ExprRef n) {
      for (ExprRef a : n->args) {
        if (n->kind != ExprKind::index) ++uses_[a];
      }
      for (const Term& t : n->terms) {
        for (ExprRef a : t.atoms) ++uses_[a];
      }
    });
  }

  static bool worth_naming(ExprRef n) {
    switch (n->kind) {
      case ExprKind::index:
      case ExprKind::symbol:
      case ExprKind::param:
      case ExprKind::fconst:
      case ExprKind::btrue:
      case ExprKind::bfalse: return false;
      case ExprKind::poly: return n->depth > 3;
      case ExprKind::load: return n->depth > 4;
      default: return n->depth > 3;
    }
  }

  std::string at(ExprRef e, int level) {
    auto it = shared_.find(e);
    if (it != shared_.end()) return it->second;
    auto [text, own] = write(e);
    return own < level ? "(" + text + ")" : text;
  }

  std::string binary(ExprRef a, const char* op, ExprRef b, int level) {
    return at(a, level) + op + at(b, level + 1);
  }

  std::string call(const char* name, std::initializer_list<ExprRef> args) {
    std::string s = std::string(name) + "(";
    const char* separator = "";
    for (ExprRef a : args) {
      s += separator + at(a, kOr);
      separator = ", ";
    }
    return s + ")";
  }

  std::string joined(ExprRef e, const char* op, int level) {
    std::string s;
    for (ExprRef a : e->args) s += (s.empty() ? "" : op) + at(a, level + 1);
    return s;
  }

  static std::string quoted(const std::string& s) { return is_plain_name(s) ? s : '"' + s + '"'; }

  std::pair<std::string, int> write(ExprRef e) {
    const auto& a = e->args;
    switch (e->kind) {
      case ExprKind::poly: return write_poly(to_poly(e));
      case ExprKind::index:
        return {names_.index ? names_.index(e->value) : "i" + std::to_string(e->value), kAtom};
      case ExprKind::symbol:
      case ExprKind::param: return {quoted(e->name), kAtom};
      case ExprKind::load: return {write_load(e), kAtom};
      case ExprKind::floordiv: return {binary(a[0], " / ", a[1], kProduct), kProduct};
      case ExprKind::imin:
      case ExprKind::fmin: return {call("min", {a[0], a[1]}), kAtom};
      case ExprKind::imax:
      case ExprKind::fmax: return {call("max", {a[0], a[1]}), kAtom};
      case ExprKind::iabs:
      case ExprKind::fabs: return {call("abs", {a[0]}), kAtom};
      case ExprKind::bounded:
        return {"bounded(" + at(a[0], kOr) + ", " + at(a[1], kOr) + ", " +
                    std::to_string(e->value) + ")",
                kAtom};
      case ExprKind::f2i: return {call("i64", {a[0]}), kAtom};
      case ExprKind::i2f:
      case ExprKind::f2f: return {call(e->type == Scalar::f32 ? "f32" : "f64", {a[0]}), kAtom};
      case ExprKind::select: return {call("select", {a[0], a[1], a[2]}), kAtom};
      case ExprKind::btrue: return {"true", kAtom};
      case ExprKind::poison: return {"poison", kAtom};
      case ExprKind::bfalse: return {"false", kAtom};
      case ExprKind::ge0: return {comparison(a[0], " <= "), kCompare};
      case ExprKind::eq0: return {comparison(a[0], " == "), kCompare};
      case ExprKind::bnot:
        if (a[0]->kind == ExprKind::eq0 && !shared_.count(a[0]))
          return {comparison(a[0]->args[0], " != "), kCompare};
        return {"not " + at(a[0], kNot + 1), kNot};
      case ExprKind::band: return {joined(e, " and ", kAnd), kAnd};
      case ExprKind::bor: return {joined(e, " or ", kOr), kOr};
      case ExprKind::flt:
        return {at(a[0], kCompare + 1) + " < " + at(a[1], kCompare + 1), kCompare};
      case ExprKind::fle:
        return {at(a[0], kCompare + 1) + " <= " + at(a[1], kCompare + 1), kCompare};
      case ExprKind::feq:
        return {at(a[0], kCompare + 1) + " == " + at(a[1], kCompare + 1), kCompare};
      case ExprKind::isnan: return {call("isnan", {a[0]}), kAtom};
      case ExprKind::bitand_: return {call("bitand", {a[0], a[1]}), kAtom};
      case ExprKind::wrap:
        return {
            call(((e->value > 0 ? "i" : "u") + std::to_string(std::abs(e->value))).c_str(), {a[0]}),
            kAtom};
      default: return write_real(e);
    }
  }

  std::pair<std::string, int> write_real(ExprRef e) {
    const auto& a = e->args;
    switch (e->kind) {
      case ExprKind::fconst: {
        std::string s = real_text(e->real, e->type);
        return {s, s[0] == '-' ? kUnary : kAtom};
      }
      case ExprKind::fadd: return {binary(a[0], " + ", a[1], kSum), kSum};
      case ExprKind::fsub: return {binary(a[0], " - ", a[1], kSum), kSum};
      case ExprKind::fmul: return {binary(a[0], " * ", a[1], kProduct), kProduct};
      case ExprKind::fdiv: return {binary(a[0], " / ", a[1], kProduct), kProduct};
      case ExprKind::fneg: return {"-" + at(a[0], kUnary + 1), kUnary};
      case ExprKind::fpow: return {call("pow", {a[0], a[1]}), kAtom};
      case ExprKind::fmod: return {call("fmod", {a[0], a[1]}), kAtom};
      case ExprKind::round_f16: return {call("f16", {a[0]}), kAtom};
      case ExprKind::round_bf16: return {call("bf16", {a[0]}), kAtom};
      default: break;
    }
    const UnaryFunction* f = unary_function(e->kind);
    return {f ? call(f->name.data(), {a[0]}) : "?", kAtom};
  }

  std::string write_load(ExprRef e) {
    std::string s = names_.slot ? names_.slot(e->value) : "%" + std::to_string(e->value);
    s += "[";
    for (size_t i = 0; i < e->args.size(); ++i) s += (i ? "," : "") + at(e->args[i], kOr);
    return s + "]";
  }

  // Numbers below zero are written with a minus in front of their magnitude, but for the smallest,
  // which has none.
  static bool is_negated(int64_t k) { return k < 0 && k != INT64_MIN; }
  static int64_t magnitude(int64_t k) { return is_negated(k) ? -k : k; }

  // p >= 0 or p == 0, with the negative terms moved to the left.
  std::string comparison(ExprRef p, const char* op) {
    Poly left, right;
    if (op[1] == '<' && p->has_load) {  // as it is evaluated, so that it reads back as the same
      const auto [large, small] = sides(p);
      return at(small, kCompare + 1) + op + at(large, kCompare + 1);
    }
    const Poly poly = to_poly(p);
    for (Term t : poly.terms) {
      if (is_negated(t.coefficient)) {
        t.coefficient = -t.coefficient;
        left.terms.push_back(t);
      } else {
        right.terms.push_back(t);
      }
    }
    (is_negated(poly.constant) ? left : right).constant = magnitude(poly.constant);
    if (op[1] == '=' && left.terms.empty()) std::swap(left, right);
    auto side = [&](const Poly& q) {
      auto [text, own] = write_poly(q);
      return own <= kCompare ? "(" + text + ")" : text;
    };
    return side(left) + op + side(right);
  }

  std::string product(int64_t k, const std::vector<ExprRef>& atoms) {
    std::string s = k == 1 && !atoms.empty() ? "" : std::to_string(k);
    for (ExprRef x : atoms) s += (s.empty() ? "" : "*") + at(x, kProduct + 1);
    return s;
  }

  std::pair<std::string, int> write_poly(Poly p) {
    std::vector<ModPart> mods = extract_mods(p);
    std::string s;
    int level = kAtom, parts = 0;
    auto append = [&](const std::string& text, bool negative, int own) {
      // Minus binds tighter than / and %: -(a / b) is not (-a) / b.
      if (s.empty()) s = negative ? (own == kQuotient ? "-(" + text + ")" : "-" + text) : text;
      else s += (negative ? " - " : " + ") + text;
      level = ++parts > 1 ? kSum : (negative ? kUnary : own == kQuotient ? kProduct : own);
    };
    for (const Term& t : p.terms) {
      const int64_t k = magnitude(t.coefficient);
      const bool alone = k == 1 && t.atoms.size() == 1;
      // A lone atom keeps its own level; as a summand it must bind tighter than a sum.
      std::string text = alone ? at(t.atoms[0], kProduct) : product(k, t.atoms);
      const bool quotient =
          alone && !shared_.count(t.atoms[0]) && t.atoms[0]->kind == ExprKind::floordiv;
      append(text, is_negated(t.coefficient), quotient ? kQuotient : alone ? kAtom : kProduct);
    }
    for (const ModPart& m : mods) {
      std::string text = at(m.dividend, kProduct + 1) + " % " + at(m.divisor, kProduct + 1);
      const int64_t k = magnitude(m.factor.coefficient);
      if (k != 1 || !m.factor.atoms.empty()) text = product(k, m.factor.atoms) + "*(" + text + ")";
      append(text, is_negated(m.factor.coefficient),
             k == 1 && m.factor.atoms.empty() ? kQuotient : kProduct);
    }
    if (p.constant != 0 || s.empty()) {
      const int64_t k = p.constant;
      if (s.empty()) return {std::to_string(k), k < 0 ? kUnary : kAtom};
      append(std::to_string(magnitude(k)), is_negated(k), kAtom);
    }
    return {s, level};
  }

  const PrintNames& names_;
  std::unordered_map<ExprRef, int> uses_;
  std::unordered_map<ExprRef, std::string> shared_;
};

}  // namespace

std::string print(ExprRef e, const PrintNames& names) { return Printer(names).run(e); }

}  // namespace tfcc::ir

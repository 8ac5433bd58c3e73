// SPDX-License-Identifier: Apache-2.0
#include "codegen/emit/expr.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "ir/elements.h"
#include "ir/range.h"

namespace tfcc::codegen {
namespace {

using ir::ExprKind;
using ir::ExprRef;
using ir::Scalar;

std::string integer(int64_t v) {
  if (v >= INT32_MIN && v <= INT32_MAX)
    return v < 0 ? "(" + std::to_string(v) + ")" : std::to_string(v);
  if (v == INT64_MIN) return "(-9223372036854775807LL - 1)";
  return "((i64)" + std::to_string(v) + "LL)";
}

std::string real(double v, Scalar type) {
  const bool twice = type == Scalar::f64;
  if (std::isnan(v)) return twice ? "((f64)kNan)" : "kNan";
  if (std::isinf(v)) return std::string(v < 0 ? "(-" : "(") + (twice ? "(f64)kInf)" : "kInf)");
  char buffer[64];
  auto end = twice ? std::to_chars(buffer, buffer + 64, v).ptr
                   : std::to_chars(buffer, buffer + 64, static_cast<float>(v)).ptr;
  std::string s(buffer, end);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  if (!twice) s += "f";
  return v < 0 || std::signbit(v) ? "(" + s + ")" : s;
}

const char* function_of(ExprKind kind) {
  switch (kind) {
    case ExprKind::imin: return "imin";
    case ExprKind::imax: return "imax";
    case ExprKind::iabs: return "iabs";
    case ExprKind::bitand_: return "ibitand";
    case ExprKind::f2i: return "f2i";
    case ExprKind::fmin: return "fmin_";
    case ExprKind::fmax: return "fmax_";
    case ExprKind::fpow: return "fpow";
    case ExprKind::fmod: return "fmod_";
    case ExprKind::fabs: return "fabs_";
    case ExprKind::round_f16: return "round_f16";
    case ExprKind::round_bf16: return "round_bf16";
    case ExprKind::isnan: return "fisnan";
#define TFCC_UNARY(name, value, costly) \
  case ExprKind::name:                  \
    return "f" #name;
#include "ir/unary.def"
#undef TFCC_UNARY
    default: return nullptr;
  }
}

const char* operator_of(ExprKind kind) {
  switch (kind) {
    case ExprKind::fadd: return " + ";
    case ExprKind::fsub: return " - ";
    case ExprKind::fmul: return " * ";
    case ExprKind::fdiv: return " / ";
    case ExprKind::flt: return " < ";
    case ExprKind::fle: return " <= ";
    case ExprKind::feq: return " == ";
    case ExprKind::band: return " && ";
    case ExprKind::bor: return " || ";
    default: return nullptr;
  }
}

class Emitter {
 public:
  explicit Emitter(const CppNames& names) : names_(names) {}

  std::string body(ExprRef e) {
    count_uses(e);
    mark_unconditional(e);
    std::string out;
    ir::for_each_node(e, [&](ExprRef n) {
      if (n == e || uses_[n] < 2 || is_leaf(n) || named_.count(n)) return;
      if (!unconditional_.count(n) && n->has_load) return;
      const std::string text = write(n);
      const std::string name = "t" + std::to_string(named_.size());
      out += "const auto " + name + " = " + text + "; ";
      named_[n] = name;
    });
    return out + "return " + at(e) + ";";
  }

  /// Names the largest parts that load, are evaluated in every case and do not use that index;
  /// adds their statements.
  void hoist(ExprRef e, int64_t column, std::vector<std::string>& statements) {
    if (!e->has_load || named_.count(e) || !hoisted_.insert(e).second) return;
    if (!uses_column(e, column)) {
      const std::string text = write(e);
      named_[e] = "r" + std::to_string(named_.size());
      statements.push_back("const auto " + named_[e] + " = " + text + ";");
      return;
    }
    const bool lazy =
        e->kind == ExprKind::select || e->kind == ExprKind::band || e->kind == ExprKind::bor;
    if (lazy) return hoist(e->args[0], column, statements);
    children(e, [&](ExprRef c) { hoist(c, column, statements); });
  }

  /// Names the loads of neighbours that are evaluated in every case; returns their statements. Needs
  /// a column that starts at a multiple of vec.
  std::vector<std::string> packs(ExprRef e, int64_t column, int64_t vec) {
    mark_unconditional(e);
    std::vector<std::string> statements;
    ir::for_each_node(e, [&](ExprRef n) {
      if (named_.count(n) || !unconditional_.count(n)) return;
      ExprRef first = first_of_pack(n, column, vec);
      if (!first) return;
      const std::string name = "p" + std::to_string(statements.size());
      statements.push_back(
          fmt::format("const auto {} = {}<vec>({} + {});", name,
                      names_.of_caller(n->value) ? "read_pack_anywhere" : "read_pack",
                      names_.pointer(n->value), poly(first, Width::index)));
      named_[n] = name + "[k]";
    });
    return statements;
  }

  std::string at(ExprRef e) {
    auto it = named_.find(e);
    return it != named_.end() ? it->second : write(e);
  }

 private:
  static bool is_leaf(ExprRef n) {
    switch (n->kind) {
      case ExprKind::index:
      case ExprKind::symbol:
      case ExprKind::param:
      case ExprKind::fconst:
      case ExprKind::btrue:
      case ExprKind::bfalse: return true;
      case ExprKind::poly: return n->terms.empty();
      default: return false;
    }
  }

  // p >= 0 of data is written as a comparison of two sides, whose difference may not fit.
  static bool has_sides(ExprRef n) {
    return n->kind == ExprKind::ge0 && n->has_load && n->args[0]->kind == ExprKind::poly;
  }

  // Extents of indices are types' business, not part of what is computed.
  template <class F> static void children(ExprRef n, F f) {
    if (n->kind == ExprKind::index) return;
    if (has_sides(n)) n = n->args[0];
    for (ExprRef a : n->args) f(a);
    for (const ir::Term& t : n->terms) {
      for (ExprRef a : t.atoms) f(a);
    }
  }

  void count_uses(ExprRef e) {
    if (named_.count(e)) return;
    children(e, [&](ExprRef c) {
      if (++uses_[c] == 1) count_uses(c);
    });
  }

  void mark_unconditional(ExprRef e) {
    if (!unconditional_.insert(e).second) return;
    if (e->kind == ExprKind::select) return mark_unconditional(e->args[0]);
    if (e->kind == ExprKind::band || e->kind == ExprKind::bor)
      return mark_unconditional(e->args[0]);
    children(e, [&](ExprRef c) { mark_unconditional(c); });
  }

  // Reads nothing and reports nothing: both sides of a select may be computed.
  bool computes_alone(ExprRef e) {
    bool reports = false;
    ir::for_each_node(e, [&](ExprRef n) { reports |= n->kind == ExprKind::bounded; });
    return !reports && !e->has_load;
  }

  std::string call(const char* name, ExprRef e) {
    std::string s = std::string(name) + "(";
    for (size_t i = 0; i < e->args.size(); ++i) s += (i ? ", " : "") + at(e->args[i]);
    return s + ")";
  }

  std::string joined(const char* op, ExprRef e) {
    std::string s = "(";
    for (size_t i = 0; i < e->args.size(); ++i) s += (i ? op : "") + at(e->args[i]);
    return s + ")";
  }

  // The position at these indices, computed modulo 2^64: right for every element there is, also where
  // the numbers of its polynomial do not fit.
  std::string wrapping_position(const std::vector<ExprRef>& indices,
                                const std::vector<ExprRef>& dims) {
    std::string s = "(u64)" + at(indices[0]);
    for (size_t d = 1; d < dims.size(); ++d)
      s = "(" + s + ") * (u64)" + at(dims[d]) + " + (u64)" + at(indices[d]);
    return "(i64)(" + s + ")";
  }

  // Found for all parts at once: they may be shared, and deep.
  bool uses_column(ExprRef e, int64_t column) {
    const auto known = uses_column_.find(e);
    if (known != uses_column_.end()) return known->second;
    ir::for_each_node(e, [&](ExprRef n) {
      bool uses = n->kind == ExprKind::index && n->value == column;
      children(n, [&](ExprRef c) { uses |= uses_column_[c]; });
      uses_column_[n] = uses;
    });
    return uses_column_[e];
  }

  // The position of a load whose neighbours along the column are neighbours in memory, and which
  // is a multiple of vec where the column is one; bools are read one by one, which makes bytes true
  // or false.
  ExprRef first_of_pack(ExprRef n, int64_t column, int64_t vec) {
    if (n->kind != ExprKind::load || n->type == Scalar::boolean || n->args.empty()) return nullptr;
    ExprRef position = ir::linear_index(*n->pool, n->args, names_.dims(n->value));
    if (ir::poison_of(position) != ir::Poison::none) return nullptr;
    const ir::Poly p = ir::to_poly(position);
    bool once = false;
    for (const ir::Term& t : p.terms) {
      const bool is_column = t.atoms.size() == 1 && is_index(t.atoms[0], column);
      if (is_column && t.coefficient == 1) once = true;
      else if (t.coefficient % vec != 0 ||
               std::any_of(t.atoms.begin(), t.atoms.end(), [&](ExprRef a) {
                 return uses_column(a, column) && !is_one_of_pack(a, column, vec);
               }))
        return nullptr;
    }
    return once && p.constant % vec == 0 ? position : nullptr;
  }

  static bool is_index(ExprRef e, int64_t column) {
    return e->kind == ExprKind::index && e->value == column;
  }
  // The quotient of the column by a multiple of vec: packs, which begin at one, are within it.
  static bool is_one_of_pack(ExprRef e, int64_t column, int64_t vec) {
    if (e->kind != ExprKind::floordiv || !is_index(e->args[0], column)) return false;
    const auto by = ir::as_int(e->args[1]);
    return by && *by > 0 && *by % vec == 0;
  }

  // 1 + erf(x) of a GELU.
  ExprRef erf_beside_one(ExprRef e) const {
    if (e->kind != ExprKind::fadd || e->type != Scalar::f32) return nullptr;
    for (size_t k : {0, 1}) {
      ExprRef erf = e->args[1 - k];
      if (ir::as_real(e->args[k]) == 1.0 && erf->kind == ExprKind::erf && !named_.count(erf))
        return erf->args[0];
    }
    return nullptr;
  }

  bool divides_unsigned(ExprRef dividend, ExprRef divisor) const {
    return names_.unsigned_quotients && ir::as_int(divisor).value_or(0) > 0 &&
           ir::prove_ge0(dividend);
  }

  std::string load(ExprRef e) {
    const std::vector<ExprRef> dims = names_.dims(e->value);
    ExprRef position = ir::linear_index(*e->pool, e->args, dims);
    const bool plain = position->kind == ExprKind::poly && !named_.count(position);
    const std::string index = ir::poison_of(position) != ir::Poison::none
                                  ? wrapping_position(e->args, dims)
                              : plain ? poly(position, Width::index)
                                      : at(position);
    const std::string pointer = names_.pointer(e->value);
    return e == names_.unconverted ? pointer + "[" + index + "]"
                                   : "load(" + pointer + ", " + index + ")";
  }

  std::string write(ExprRef e) {
    if (ExprRef x = names_.short_result ? erf_beside_one(e) : nullptr)
      return "one_plus_erf_short(" + at(x) + ")";
    if (names_.fast && e->type == Scalar::f32 && e->kind == ExprKind::exp)
      return call("fexp_short", e);
    if (names_.fast && e->type == Scalar::f32 && e->kind == ExprKind::fdiv)
      return call("fdiv_short", e);
    if (e->kind == ExprKind::f2i && ir::range_of(e).inside(INT32_MIN, INT32_MAX))
      return call("f2i_small", e);
    if (const char* f = function_of(e->kind)) return call(f, e);
    const bool ordered = e->kind == ExprKind::flt || e->kind == ExprKind::fle;
    if (ordered && !names_.fast && (ir::as_real(e->args[0]) || ir::as_real(e->args[1])))
      return call(e->kind == ExprKind::flt ? "flt" : "fle", e);
    if (const char* op = operator_of(e->kind)) return joined(op, e);
    switch (e->kind) {
      case ExprKind::poly: return poly(e, width_of(e));
      case ExprKind::index: return names_.index(e->value);
      case ExprKind::symbol: return names_.symbol(e->name);
      case ExprKind::param: return e->name;
      case ExprKind::load: return load(e);
      case ExprKind::floordiv:
        return call(divides_unsigned(e->args[0], e->args[1]) ? "quotient" : "floordiv", e);
      case ExprKind::bounded:
        return "bounded(" + at(e->args[0]) + ", " + at(e->args[1]) + ", flags + " +
               std::to_string(e->value) + ")";
      case ExprKind::select:
        if (names_.fast && e->type == Scalar::f32 && computes_alone(e)) return call("either", e);
        return "(" + at(e->args[0]) + " ? " + at(e->args[1]) + " : " + at(e->args[2]) + ")";
      case ExprKind::btrue: return "true";
      case ExprKind::bfalse: return "false";
      case ExprKind::ge0: {
        if (!has_sides(e)) return "(" + at(e->args[0]) + " >= 0)";
        const auto [large, small] = ir::sides(e->args[0]);
        return "(" + at(large) + " >= " + at(small) + ")";
      }
      case ExprKind::wrap:
        return fmt::format("{}<{}>({})", e->value > 0 ? "wrap_signed" : "wrap_unsigned",
                           std::abs(e->value), at(e->args[0]));
      case ExprKind::eq0: return "(" + at(e->args[0]) + " == 0)";
      case ExprKind::bnot: return "!" + at(e->args[0]);
      case ExprKind::fconst: return real(e->real, e->type);
      case ExprKind::fneg: return "(-" + at(e->args[0]) + ")";
      case ExprKind::i2f:
        if (names_.convert_by_bits && e->type == Scalar::f32 &&
            ir::prove_in(e->args[0], e->pool->integer(1 << 16)))
          return by_bits(e->args[0]);
        [[fallthrough]];
      case ExprKind::f2f:
        return std::string(e->type == Scalar::f64 ? "(f64)(" : "(f32)(") + at(e->args[0]) + ")";
      default: return "?";
    }
  }

  // How a sum of products is computed: as its parts come (of 32 bits where indices are), widened to
  // 64, or modulo 2^64 where it may wrap, which C++ leaves open for signed integers.
  enum class Width { index, wide, wrapping };

  // Every product and every sum of some of them lies between these: x + 4 - 5 may fit where x + 4
  // does not.
  static bool parts_lie_within(const ir::Poly& p, ir::ExprPool& pool, int64_t lowest,
                               int64_t highest) {
    __int128 least = std::min<int64_t>(p.constant, 0), most = std::max<int64_t>(p.constant, 0);
    for (const ir::Term& t : p.terms) {
      ExprRef product = ir::from_poly(pool, {{t}, 0});
      if (!ir::fits(product)) return false;
      const ir::Interval i = ir::range_of(product);
      least += std::min<int64_t>(i.lo, 0);
      most += std::max<int64_t>(i.hi, 0);
    }
    return lowest <= least && most <= highest;
  }

  // A number that fits 16 bits, as a real; the lowest bits of another one in the same operation.
  std::string by_bits(ExprRef e) {
    ir::Poly p = ir::to_poly(e);
    const std::vector<ir::ModPart> mods = ir::extract_mods(p);
    if (p.terms.empty() && p.constant == 0 && mods.size() == 1 && mods[0].factor.atoms.empty() &&
        mods[0].factor.coefficient == 1 && !named_.count(e)) {
      const int64_t n = ir::as_int(mods[0].divisor).value_or(0);
      if (n > 0 && (n & (n - 1)) == 0)
        return fmt::format("real_by_bits<{}>({})", n - 1, at(mods[0].dividend));
    }
    return "real_by_bits(" + at(e) + ")";
  }

  Width width_of(ExprRef e) {
    if (!ir::fits(e)) return Width::wrapping;
    const ir::Poly p = ir::to_poly(e);
    if (e->has_load && !parts_lie_within(p, *e->pool, INT64_MIN, INT64_MAX)) return Width::wrapping;
    if (!names_.narrow_indices || p.terms.empty() ||
        parts_lie_within(p, *e->pool, INT32_MIN, INT32_MAX))
      return Width::index;
    const bool counted = std::any_of(names_.counts.begin(), names_.counts.end(),
                                     [&](ExprRef n) { return ir::prove_in(e, n); });
    return counted ? Width::index : Width::wide;
  }

  std::string poly(ExprRef e, Width width) {
    const char* cast = width == Width::wrapping ? "(u64)" : width == Width::wide ? "(i64)" : "";
    ir::Poly p = ir::to_poly(e);
    const std::vector<ir::ModPart> mods = ir::extract_mods(p);
    std::string s;
    auto append = [&](int64_t k, const std::string& text) {
      const bool minus = k < 0 && k != INT64_MIN;
      s += s.empty() ? (minus ? "-" : "") : (minus ? " - " : " + ");
      s += text;
    };
    auto product = [&](int64_t k, const std::vector<ExprRef>& atoms, const std::string& last) {
      std::string t;
      for (ExprRef a : atoms) t += (t.empty() ? cast : std::string(" * ")) + at(a);
      if (!last.empty()) t += (t.empty() ? cast : std::string(" * ")) + last;
      const int64_t magnitude = k < 0 && k != INT64_MIN ? -k : k;
      if (magnitude != 1) t += " * " + integer(magnitude);
      append(k, t);
    };
    for (const ir::Term& t : p.terms) product(t.coefficient, t.atoms, "");
    for (const ir::ModPart& m : mods) {
      const char* of = divides_unsigned(m.dividend, m.divisor) ? "remainder" : "floormod";
      product(m.factor.coefficient, m.factor.atoms,
              fmt::format("{}({}, {})", of, at(m.dividend), at(m.divisor)));
    }
    if (p.constant != 0 || s.empty()) {
      const bool minus = p.constant < 0 && p.constant != INT64_MIN && !s.empty();
      if (s.empty()) s = integer(p.constant);
      else append(p.constant, integer(minus ? -p.constant : p.constant));
    }
    // A negative number alone: -n[0], -i0.
    const bool negation = p.terms.size() + mods.size() == 1 && p.constant == 0 && s[0] == '-';
    if (negation && width != Width::wrapping) return "ineg(" + s.substr(1) + ")";
    const bool one = p.terms.size() + mods.size() + (p.constant != 0) <= 1 &&
                     s.find_first_of(" -") == std::string::npos;
    if (width == Width::wrapping) return "(i64)(" + s + ")";
    return one ? s : "(" + s + ")";
  }

  const CppNames& names_;
  std::unordered_map<ExprRef, int> uses_;
  std::unordered_set<ExprRef> unconditional_;
  std::unordered_map<ExprRef, std::string> named_;
  std::unordered_set<ExprRef> hoisted_;
  std::unordered_map<ExprRef, bool> uses_column_;
};

}  // namespace

std::string cpp_body(ExprRef e, const CppNames& names) { return Emitter(names).body(e); }
CppRowBody cpp_row_body(ExprRef e, int64_t column, int64_t vec, const CppNames& names) {
  Emitter emitter(names);
  CppRowBody out;
  emitter.hoist(e, column, out.row);
  if (vec > 1) out.packs = emitter.packs(e, column, vec);
  out.column = emitter.body(e);
  return out;
}
std::string cpp_expr(ExprRef e, const CppNames& names) { return Emitter(names).at(e); }

}  // namespace tfcc::codegen

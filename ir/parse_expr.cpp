// SPDX-License-Identifier: Apache-2.0
// Text to element expressions, by precedence climbing. Every node is made by the builders of
// expr.h, so what is read is simplified; types are checked here, because the builders take
// well-typed arguments for granted.
#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include "ir/ir.h"
#include "ir/lexer.h"

namespace tfcc::ir {
namespace {

constexpr int kMaxNesting = 500;  // stays well inside the call stack

enum Level { kOr = 1, kAnd, kNot, kCompare, kSum, kProduct, kUnary };

struct Operator {
  std::string_view text;
  Level level;
};
constexpr Operator kOperators[] = {
    {"or", kOr},      {"and", kAnd},   {"==", kCompare}, {"!=", kCompare}, {"<", kCompare},
    {"<=", kCompare}, {">", kCompare}, {">=", kCompare}, {"+", kSum},      {"-", kSum},
    {"*", kProduct},  {"/", kProduct}, {"%", kProduct}};

std::string_view spelled(Scalar t) {
  constexpr std::string_view kNames[] = {"i64", "f32", "f64", "bool"};
  return kNames[static_cast<int>(t)];
}

bool is_real(ExprRef e) { return e->type == Scalar::f32 || e->type == Scalar::f64; }
bool is_number(ExprRef e) { return e->type != Scalar::boolean; }

class ExprParser {
 public:
  ExprParser(Lexer& lexer, ExprPool& pool, const NameScope& name, const SlotScope& slot)
      : lexer_(lexer), pool_(pool), name_(name), slot_(slot) {}

  /// A whole expression, with its `let`.
  Result<ExprRef> whole() {
    if (!lexer_.accept("let")) return binary(kOr);
    do {
      const Token name = lexer_.next();
      if (name.kind != TokenKind::word) return lexer_.error("expected a name after 'let'");
      TFCC_TRY_VOID(lexer_.expect("="));
      TFCC_TRY(ExprRef e, binary(kOr));
      lets_[std::string(name.text)] = e;
    } while (lexer_.accept(","));
    TFCC_TRY_VOID(lexer_.expect("in"));
    return binary(kOr);
  }

 private:
  struct Nesting {
    explicit Nesting(int& depth) : depth_(++depth) {}
    ~Nesting() { --depth_; }
    int& depth_;
  };

  const Operator* here() const {
    for (const Operator& o : kOperators) {
      if (lexer_.is(o.text)) return &o;
    }
    return nullptr;
  }

  Result<ExprRef> binary(int level) {
    const Nesting nesting(depth_);
    if (depth_ > kMaxNesting)
      return lexer_.error(fmt::format("nested more than {} deep", kMaxNesting));
    TFCC_TRY(ExprRef left, operand(level));
    while (const Operator* o = here()) {
      if (o->level < level) break;
      lexer_.next();
      TFCC_TRY(ExprRef right, binary(o->level + 1));
      TFCC_TRY(left, combine(o->text, left, right));
      if (o->level == kCompare && here() && here()->level == kCompare) {
        return lexer_.error("comparisons do not chain; use 'and'");
      }
    }
    return left;
  }

  Result<ExprRef> operand(int level) {
    if (level <= kNot && lexer_.accept("not")) {
      TFCC_TRY(ExprRef e, binary(kCompare));
      TFCC_TRY_VOID(want(e, Scalar::boolean, "not"));
      return logical_not(e);
    }
    if (lexer_.is("-") &&
        (lexer_.peek(1).kind == TokenKind::integer || lexer_.peek(1).kind == TokenKind::real)) {
      lexer_.next();
      return number(true);
    }
    if (lexer_.accept("-")) {
      TFCC_TRY(ExprRef e, binary(kUnary));
      if (!is_number(e)) return lexer_.error_before("'-' needs a number");
      return neg(e);
    }
    return primary();
  }

  Result<void> want(ExprRef e, Scalar t, std::string_view where) {
    if (e->type == t) return {};
    return lexer_.error_before(fmt::format("'{}' needs a value of type {}, found {}", where,
                                           spelled(t), spelled(e->type)));
  }

  Result<void> same_numbers(std::string_view where, ExprRef a, ExprRef b) {
    if (is_number(a) && a->type == b->type) return {};
    return lexer_.error_before(fmt::format("'{}' needs two numbers of one type, found {} and {}",
                                           where, spelled(a->type), spelled(b->type)));
  }

  Result<ExprRef> combine(std::string_view o, ExprRef a, ExprRef b) {
    if (o == "and" || o == "or") {
      TFCC_TRY_VOID(want(a, Scalar::boolean, o));
      TFCC_TRY_VOID(want(b, Scalar::boolean, o));
      return o == "and" ? logical_and(a, b) : logical_or(a, b);
    }
    TFCC_TRY_VOID(same_numbers(o, a, b));
    if (o == "+") return add(a, b);
    if (o == "-") return sub(a, b);
    if (o == "*") return mul(a, b);
    if (o == "/") return div(a, b);
    if (o == "==") return eq(a, b);
    if (o == "!=") return logical_not(eq(a, b));
    if (o == "<") return lt(a, b);
    if (o == "<=") return le(a, b);
    if (o == ">") return lt(b, a);
    if (o == ">=") return le(b, a);
    TFCC_TRY_VOID(want(a, Scalar::i64, o));
    return mod(a, b);
  }

  Result<ExprRef> number(bool negative) {
    const Token token = lexer_.peek();
    std::string text = negative ? "-" : "";
    text += token.text;
    const bool wide = text.back() == 'd';
    if (wide) text.pop_back();
    if (token.kind == TokenKind::integer) {
      int64_t v = 0;
      const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), v);
      if (status != std::errc{}) return lexer_.error(fmt::format("{} does not fit 64 bits", text));
      lexer_.next();
      return pool_.integer(v);
    }
    double v = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (status != std::errc{}) return lexer_.error(fmt::format("{} does not fit a double", text));
    lexer_.next();
    return pool_.real(v, wide ? Scalar::f64 : Scalar::f32);
  }

  Result<ExprRef> primary() {
    const Token token = lexer_.peek();
    switch (token.kind) {
      case TokenKind::integer:
      case TokenKind::real: return number(false);
      case TokenKind::value:
      case TokenKind::constant: return load();
      case TokenKind::string: return named(unquote(token.text));
      case TokenKind::word: return word();
      default: break;
    }
    if (!lexer_.accept("("))
      return lexer_.error(fmt::format("expected an expression, found {}", lexer_.found()));
    TFCC_TRY(ExprRef e, binary(kOr));
    TFCC_TRY_VOID(lexer_.expect(")"));
    return e;
  }

  Result<ExprRef> named(const std::string& name) {
    ExprRef e = name_ ? name_(name) : nullptr;
    if (!e) return lexer_.error(fmt::format("unknown name '{}'", name));
    lexer_.next();
    return e;
  }

  Result<ExprRef> word() {
    const std::string name(lexer_.peek().text);
    if (lexer_.is("(", 1)) {
      lexer_.next();
      TFCC_TRY(std::vector<ExprRef> args, list("(", ")"));
      return call(name, args);
    }
    if (const auto it = lets_.find(name); it != lets_.end()) return lexer_.next(), it->second;
    constexpr double kInf = std::numeric_limits<double>::infinity(),
                     kNan = std::numeric_limits<double>::quiet_NaN();
    if (name == "true" || name == "false") return lexer_.next(), pool_.boolean(name == "true");
    if (name == "inf" || name == "infd") return lexer_.next(), pool_.real(kInf, real_type(name));
    if (name == "nan" || name == "nand") return lexer_.next(), pool_.real(kNan, real_type(name));
    return named(name);
  }

  static Scalar real_type(std::string_view word) {
    return word.size() == 4 ? Scalar::f64 : Scalar::f32;
  }

  Result<std::vector<ExprRef>> list(std::string_view open, std::string_view close) {
    TFCC_TRY_VOID(lexer_.expect(open));
    std::vector<ExprRef> out;
    if (lexer_.accept(close)) return out;
    do {
      TFCC_TRY(ExprRef e, binary(kOr));
      out.push_back(e);
    } while (lexer_.accept(","));
    TFCC_TRY_VOID(lexer_.expect(close));
    return out;
  }

  Result<ExprRef> load() {
    const Token token = lexer_.peek();
    const std::string name = token.quoted ? unquote(token.text) : std::string(token.text);
    const auto slot = slot_ ? slot_(name) : std::nullopt;
    if (!slot) return lexer_.error(fmt::format("{} is not an operand of this op", lexer_.found()));
    lexer_.next();
    TFCC_TRY(std::vector<ExprRef> indices, list("[", "]"));
    for (ExprRef i : indices) TFCC_TRY_VOID(want(i, Scalar::i64, "[]"));
    return pool_.load(slot->first, slot->second, std::move(indices));
  }

  Result<ExprRef> call(const std::string& f, const std::vector<ExprRef>& a) {
    if (a.size() == 1) return call_unary(f, a[0]);
    if (a.size() == 2 && (f == "min" || f == "max")) {
      TFCC_TRY_VOID(same_numbers(f, a[0], a[1]));
      return f == "min" ? min(a[0], a[1]) : max(a[0], a[1]);
    }
    if (a.size() == 2 && f == "bitand") {
      TFCC_TRY_VOID(want(a[0], Scalar::i64, f));
      TFCC_TRY_VOID(want(a[1], Scalar::i64, f));
      return bit_and(a[0], a[1]);
    }
    if (a.size() == 2 && (f == "pow" || f == "fmod")) {
      TFCC_TRY_VOID(same_numbers(f, a[0], a[1]));
      if (!is_real(a[0])) return lexer_.error_before(fmt::format("'{}' needs reals", f));
      return f == "pow" ? pow(a[0], a[1]) : mod(a[0], a[1]);
    }
    if (a.size() == 3 && f == "select") {
      TFCC_TRY_VOID(want(a[0], Scalar::boolean, f));
      TFCC_TRY_VOID(want(a[2], a[1]->type, f));
      return select(a[0], a[1], a[2]);
    }
    if (a.size() == 3 && f == "bounded") {
      TFCC_TRY_VOID(want(a[0], Scalar::i64, f));
      TFCC_TRY_VOID(want(a[1], Scalar::i64, f));
      const auto flag = a[2]->type == Scalar::i64 ? as_int(a[2]) : std::nullopt;
      if (!flag) return lexer_.error_before("the flag of 'bounded' must be an integer");
      return bounded(a[0], a[1], *flag);
    }
    return lexer_.error_before(fmt::format("unknown function '{}' of {} arguments", f, a.size()));
  }

  // Of i2 to i32 and u2 to u32, negative if unsigned; else 0.
  static int wrapped_bits(std::string_view f) {
    int bits = 0;
    if (f.size() < 2 || (f[0] != 'i' && f[0] != 'u')) return 0;
    const auto [end, status] = std::from_chars(f.data() + 1, f.data() + f.size(), bits);
    if (status != std::errc{} || end != f.data() + f.size() || bits < 2 || bits > 32) return 0;
    return f[0] == 'i' ? bits : -bits;
  }

  Result<ExprRef> call_unary(const std::string& f, ExprRef a) {
    if (f == "i64") return convert(a, Scalar::i64);
    if (f == "f32") return convert(a, Scalar::f32);
    if (f == "f64") return convert(a, Scalar::f64);
    if (f == "bool") return convert(a, Scalar::boolean);
    if (const int bits = wrapped_bits(f); bits != 0) {
      TFCC_TRY_VOID(want(a, Scalar::i64, f));
      return wrap(a, std::abs(bits), bits > 0);
    }
    if (f == "abs" && is_number(a)) return abs(a);
    if (f == "isnan" && is_real(a)) return is_nan(a);
    std::optional<ExprKind> kind;
    if (f == "f16") kind = ExprKind::round_f16;
    if (f == "bf16") kind = ExprKind::round_bf16;
    for (const UnaryFunction& u : unary_functions()) {
      if (u.name == f) kind = u.kind;
    }
    if (kind && !is_real(a))
      return lexer_.error_before(fmt::format("'{}' needs a real, found {}", f, spelled(a->type)));
    if (kind) return unary(*kind, a);
    return lexer_.error_before(fmt::format("unknown function '{}' of one {}", f, spelled(a->type)));
  }

  Lexer& lexer_;
  ExprPool& pool_;
  const NameScope& name_;
  const SlotScope& slot_;
  std::map<std::string, ExprRef, std::less<>> lets_;
  int depth_ = 0;
};

}  // namespace

Result<ExprRef> parse_expr(Lexer& lexer, ExprPool& pool, const NameScope& name,
                           const SlotScope& slot) {
  TFCC_TRY(ExprRef e, ExprParser(lexer, pool, name, slot).whole());
  if (const Poison why = poison_of(e); why != Poison::none)
    return lexer.error_before(fmt::format("this expression has no value: {}", to_string(why)));
  return e;
}

Result<ExprRef> parse_expr(std::string_view text, ExprPool& pool, const NameScope& name,
                           const SlotScope& slot) {
  TFCC_TRY(Lexer lexer, Lexer::split(text, "<expression>"));
  TFCC_TRY(ExprRef e, parse_expr(lexer, pool, name, slot));
  if (lexer.peek().kind != TokenKind::end)
    return lexer.error(fmt::format("unexpected {} after the expression", lexer.found()));
  return e;
}

}  // namespace tfcc::ir

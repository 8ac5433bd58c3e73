// SPDX-License-Identifier: Apache-2.0
// Text to graph: the grammar of ir/README.md, by recursive descent over tokens. Types stand right
// of the attributes that need them (index variables range over dims), so an op is read with a look
// ahead.
#include <fmt/format.h>

#include <map>

#include "ir/elements.h"
#include "ir/ir.h"
#include "ir/lexer.h"
#include "ir/parse_words.h"
#include "ir/signature.h"

namespace tfcc::ir {
namespace {

class GraphParser : WordParser {
 public:
  GraphParser(Lexer& lexer, ConstantSources& sources) : WordParser(lexer), sources_(sources) {}

  Result<Graph> run() {
    TFCC_TRY_VOID(header());
    while (!lexer_.is("return")) TFCC_TRY_VOID(line());
    TFCC_TRY_VOID(outputs());
    TFCC_TRY_VOID(lexer_.expect("}"));
    if (!sources_.inside && lexer_.peek().kind != TokenKind::end)
      return unexpected("the end of the text");
    return std::move(graph_);
  }

 private:
  ExprRef symbol(std::string_view name) {
    for (const SizeSymbol& s : graph_.symbols) {
      if (s.name == name) return graph_.pool().symbol(name);
    }
    return nullptr;
  }

  Result<ExprRef> size() {
    TFCC_TRY(ExprRef e,
             parse_expr(
                 lexer_, graph_.pool(), [this](std::string_view n) { return symbol(n); }, nullptr));
    if (e->type != Scalar::i64) return lexer_.error_before("a size must be an integer");
    return e;
  }

  Result<std::vector<ExprRef>> sizes() {
    TFCC_TRY_VOID(lexer_.expect("["));
    std::vector<ExprRef> out;
    if (lexer_.accept("]")) return out;
    do {
      TFCC_TRY(ExprRef e, size());
      out.push_back(e);
    } while (lexer_.accept(","));
    TFCC_TRY_VOID(lexer_.expect("]"));
    return out;
  }

  Result<Type> type() {
    TFCC_TRY(DType t, dtype());
    TFCC_TRY(std::vector<ExprRef> dims, sizes());
    return Type{t, std::move(dims)};
  }

  /// A name that nothing has yet.
  Result<std::string> new_name(TokenKind kind) {
    if (lexer_.peek().kind != kind) return unexpected(kind == TokenKind::value ? "%name" : "@name");
    std::string name = name_of(lexer_.peek());
    if (graph_.find_value(name).valid())
      return lexer_.error(fmt::format("{} is defined twice", lexer_.found()));
    lexer_.next();
    return name;
  }

  Result<ValueId> value() {
    const Token token = lexer_.peek();
    if (token.kind != TokenKind::value && token.kind != TokenKind::constant)
      return unexpected("a value");
    const ValueId v = graph_.find_value(name_of(token));
    if (!v.valid() || graph_.is_constant(v) != (token.kind == TokenKind::constant)) {
      return lexer_.error(fmt::format("{} is not defined before this use", lexer_.found()));
    }
    lexer_.next();
    return v;
  }

  // ---- header ----
  Result<void> header() {
    TFCC_TRY_VOID(lexer_.expect("graph"));
    if (lexer_.peek().kind != TokenKind::constant) return unexpected("@name of the graph");
    graph_ = Graph(name_of(lexer_.next()));
    // Ranges of symbols stand after the inputs but must be known before the first dim is built; a
    // check that a range follows from must be built without it, or it would fold to true.
    const size_t inputs = lexer_.position();
    if (!lexer_.is("(")) return unexpected("'('");
    TFCC_TRY_VOID(lexer_.skip_brackets());
    std::vector<Source> sources;
    if (lexer_.accept("symbols")) TFCC_TRY_VOID(symbols(sources));
    TFCC_TRY_VOID(lexer_.expect("{"));
    while (lexer_.accept("check")) TFCC_TRY_VOID(check());
    for (const auto& [name, range] : ranges_) graph_.pool().set_range(name, range);
    const size_t body = lexer_.position();
    lexer_.seek(inputs + 1);
    while (!lexer_.accept(")")) {
      if (!graph_.inputs().empty()) TFCC_TRY_VOID(lexer_.expect(","));
      TFCC_TRY(std::string name, new_name(TokenKind::value));
      TFCC_TRY_VOID(lexer_.expect(":"));
      TFCC_TRY(Type t, type());
      TFCC_TRY(const InputRole role, role_of_input());
      graph_.set_role(graph_.add_input(std::move(name), std::move(t)), role);
    }
    for (size_t i = 0; i < sources.size(); ++i)
      TFCC_TRY_VOID(resolve(graph_.symbols[i], sources[i]));
    lexer_.seek(body);
    return {};
  }

  // What stands after the = of a symbol: the name of an input, or no name and a formula; after <= a
  // bound.
  struct Source {
    std::string input;
    size_t at;
    bool made;
  };

  Result<void> symbols(std::vector<Source>& sources) {
    TFCC_TRY_VOID(lexer_.expect("("));
    do {
      if (is_reserved_name(lexer_.peek().text)) {
        return lexer_.error(
            fmt::format("{} cannot name a symbol: the text form uses it", lexer_.found()));
      }
      TFCC_TRY(std::string name, plain_name("the name of a symbol"));
      if (symbol(name)) return lexer_.error_before(fmt::format("symbol {} is defined twice", name));
      const bool made = lexer_.accept("<=");
      if (!made) TFCC_TRY_VOID(lexer_.expect("="));
      const size_t at = lexer_.position();
      std::string input;
      uint32_t axis = 0;
      int64_t multiple = 1;
      if (made || lexer_.is("(")) {  // read by resolve(), when the ranges are known
        TFCC_TRY_VOID(lexer_.skip_brackets());
      } else {
        TFCC_TRY(input, plain_name("the name of an input, or a formula in brackets"));
        TFCC_TRY_VOID(lexer_.expect("."));
        TFCC_TRY(axis, integer<uint32_t>("an axis"));
        if (lexer_.accept("/")) {
          TFCC_TRY(multiple, integer("how many times the size the axis is"));
          if (multiple < 1 || multiple > kLargestSize)
            return lexer_.error_before("an axis is at least once the size");
        }
      }
      TFCC_TRY_VOID(lexer_.expect("in"));
      SymbolRange range;
      TFCC_TRY(range.min, integer("the smallest size"));
      TFCC_TRY_VOID(lexer_.expect(".."));
      if (lexer_.peek().kind == TokenKind::integer) {
        TFCC_TRY(range.max, integer("the largest size"));
      }
      graph_.pool().set_range(name, {0, std::nullopt});
      ranges_.emplace_back(name, range);
      TFCC_TRY(SizeRole role, role_of_size());
      graph_.symbols.push_back({name, 0, axis, role});
      graph_.symbols.back().multiple = multiple;
      sources.push_back({std::move(input), at, made});
    } while (lexer_.accept(","));
    return lexer_.expect(")");
  }

  Result<InputRole> role_of_input() {
    if (!lexer_.accept("as")) return InputRole::none;
    for (int i = 1; i < kInputRoleCount; ++i) {
      if (lexer_.accept(to_string(static_cast<InputRole>(i)))) return static_cast<InputRole>(i);
    }
    return unexpected("ids, mask, positions or types");
  }

  Result<SizeRole> role_of_size() {
    if (!lexer_.accept("as")) return SizeRole::none;
    for (int i = 1; i < kSizeRoleCount; ++i) {
      if (lexer_.accept(to_string(static_cast<SizeRole>(i)))) return static_cast<SizeRole>(i);
    }
    return unexpected("batch, length, tokens, past, context or packed");
  }

  Result<void> resolve(SizeSymbol& size, const Source& source) {
    if (source.input.empty()) {
      lexer_.seek(source.at);
      ExprRef& e = source.made ? size.bound : size.formula;
      TFCC_TRY(
          e, parse_expr(
                 lexer_, graph_.pool(), [this](std::string_view n) { return symbol(n); }, nullptr));
      return e->type == Scalar::i64 ? Result<void>()
                                    : lexer_.error_before("a size must be an integer");
    }
    const ValueId v = graph_.find_value(source.input);
    if (!v.valid() || size.axis >= graph_.value(v).type.rank()) {
      lexer_.seek(source.at);
      return lexer_.error(
          fmt::format("symbol {}: no input {} with axis {}", size.name, source.input, size.axis));
    }
    size.input = v.value;  // inputs are the first values
    return {};
  }

  // ---- lines ----
  Result<void> line() {
    if (lexer_.accept("flag")) return flag();
    if (lexer_.accept("const")) return constant_line();
    if (lexer_.peek().kind == TokenKind::value) return op_line();
    return unexpected("an op, 'const', 'flag' or 'return'");
  }

  Result<void> check() {
    TFCC_TRY(ExprRef e,
             parse_expr(
                 lexer_, graph_.pool(), [this](std::string_view n) { return symbol(n); }, nullptr));
    if (e->type != Scalar::boolean) return lexer_.error_before("a check must be a condition");
    TFCC_TRY_VOID(lexer_.expect(","));
    TFCC_TRY(std::string message, string("the message of the check"));
    graph_.checks.push_back({e, std::move(message)});
    return {};
  }

  Result<void> flag() {
    TFCC_TRY(size_t number, integer<size_t>("the number of the flag"));
    if (number != graph_.flags.size())
      return lexer_.error_before(fmt::format("flag {} is out of order", number));
    TFCC_TRY(std::string message, string("the message of the flag"));
    graph_.flags.push_back(std::move(message));
    return {};
  }

  Result<void> outputs() {
    TFCC_TRY_VOID(lexer_.expect("return"));
    if (lexer_.is("}")) return {};
    do {
      TFCC_TRY(std::string name, plain_name("the name of an output"));
      TFCC_TRY_VOID(lexer_.expect("="));
      TFCC_TRY(ValueId v, value());
      graph_.outputs.push_back({std::move(name), v});
    } while (lexer_.accept(","));
    return {};
  }

  Result<void> constant_line() {
    TFCC_TRY(std::string name, new_name(TokenKind::constant));
    TFCC_TRY_VOID(lexer_.expect(":"));
    TFCC_TRY(DType declared, dtype());
    TFCC_TRY(std::vector<int64_t> dims, integers("[", "]"));
    TFCC_TRY_VOID(lexer_.expect("="));
    TFCC_TRY(Constant c, parse_constant(lexer_, declared, dims, sources_));
    graph_.add_constant(std::move(name), std::move(c));
    return {};
  }

  // ---- ops ----
  /// What is known of an op when its attributes are read.
  struct OpText {
    Op op{OpKind::constant, {}, {}, {}, {}};            // without results
    std::vector<Type> types;                            // of the results
    std::map<std::string, size_t, std::less<>> fields;  // where each attribute's value begins
  };

  Result<void> op_line() {
    OpText op;
    std::vector<std::string> names;
    do {
      TFCC_TRY(std::string name, new_name(TokenKind::value));
      names.push_back(std::move(name));
    } while (lexer_.accept(","));
    TFCC_TRY_VOID(lexer_.expect("="));
    TFCC_TRY(op.op.attrs, op_kind(op.op.kind));
    TFCC_TRY_VOID(lexer_.expect("("));
    while (!lexer_.accept(")")) {
      if (!op.op.operands.empty()) TFCC_TRY_VOID(lexer_.expect(","));
      TFCC_TRY(ValueId v, value());
      op.op.operands.push_back(v);
    }
    const size_t braces = lexer_.position();
    if (lexer_.is("{")) TFCC_TRY_VOID(lexer_.skip_brackets());
    TFCC_TRY_VOID(lexer_.expect(":"));
    do {
      TFCC_TRY(Type t, type());
      op.types.push_back(std::move(t));
    } while (lexer_.accept(","));
    if (op.types.size() != names.size()) {
      return lexer_.error_before(
          fmt::format("{} results, {} types", names.size(), op.types.size()));
    }
    const size_t end = lexer_.position();
    lexer_.seek(braces);
    TFCC_TRY_VOID(attributes(op));
    lexer_.seek(end);
    graph_.add_op(op.op.kind, std::move(op.op.operands), std::move(op.op.attrs),
                  std::move(op.types), std::move(names));
    return {};
  }

  Result<Attrs> op_kind(OpKind& kind) {
#define TFCC_OP(name, attrs, summary)                             \
  if (OpKind::name != OpKind::constant && lexer_.accept(#name)) { \
    kind = OpKind::name;                                          \
    return Attrs(attrs{});                                        \
  }
#include "ir/ops.def"
#undef TFCC_OP
    return unexpected("the name of an op");
  }

  /// Notes where the value of each attribute begins.
  Result<void> find_fields(OpText& op) {
    if (!lexer_.accept("{")) return {};
    while (!lexer_.accept("}")) {
      if (!op.fields.empty()) TFCC_TRY_VOID(lexer_.expect(","));
      if (lexer_.peek().kind != TokenKind::word) return unexpected("the name of an attribute");
      const std::string key(lexer_.next().text);
      TFCC_TRY_VOID(lexer_.expect("="));
      if (!op.fields.emplace(key, lexer_.position()).second) {
        return lexer_.error(fmt::format("attribute '{}' is given twice", key));
      }
      TFCC_TRY_VOID(skip_value());
    }
    return {};
  }

  /// Moves past a value: to a ',' or '}' outside brackets and outside `let ... in`.
  Result<void> skip_value() {
    int lets = 0;
    while (!(lets == 0 && (lexer_.is(",") || lexer_.is("}")))) {
      if (lexer_.peek().kind == TokenKind::end) return unexpected("'}'");
      if (lexer_.is("(") || lexer_.is("[") || lexer_.is("{")) {
        TFCC_TRY_VOID(lexer_.skip_brackets());
        continue;
      }
      if (lexer_.is("let")) ++lets;
      if (lexer_.is("in") && lets > 0) --lets;
      lexer_.next();
    }
    return {};
  }

  template <class T>
  static constexpr bool is_expression =
      std::is_same_v<T, ExprRef> || std::is_same_v<T, OptionalExpr>;

  /// Expressions are read last: what they are written over depends on the other attributes.
  Result<void> attributes(OpText& op) {
    TFCC_TRY_VOID(find_fields(op));
    const size_t end = lexer_.position();
    std::optional<Error> error;
    size_t seen = 0;
    const auto field = [&](bool expressions, std::string_view key, auto& value) {
      if (error || expressions != is_expression<std::decay_t<decltype(value)>>) return;
      const auto it = op.fields.find(key);
      if (it == op.fields.end()) {
        if constexpr (requires { value.has_value(); }) return;
        lexer_.seek(end);
        error =
            lexer_.error(fmt::format("{}: attribute '{}' is missing", to_string(op.op.kind), key));
        return;
      }
      ++seen;
      lexer_.seek(it->second);
      if (auto r = read(op, key, value); !r) {
        error = r.error();
      } else if (!lexer_.is(",") && !lexer_.is("}")) {
        error = unexpected("',' or '}' after an attribute");
      }
    };
    for (const bool expressions : {false, true}) {
      std::visit(
          [&](auto& a) { a.visit([&](auto key, auto& value) { field(expressions, key, value); }); },
          op.op.attrs);
    }
    if (error) return *error;
    if (seen != op.fields.size()) {
      lexer_.seek(end);
      return lexer_.error_before(fmt::format("{}: {} attributes given, it has {}",
                                             to_string(op.op.kind), op.fields.size(), seen));
    }
    return {};
  }

  Result<void> read(const OpText&, std::string_view, bool& v) {
    TFCC_TRY(v, truth());
    return {};
  }
  Result<void> read(const OpText&, std::string_view, int64_t& v) {
    TFCC_TRY(v, integer("an integer"));
    return {};
  }
  template <class T>
  Result<void> read(const OpText& op, std::string_view key, std::optional<T>& v) {
    return read(op, key, v.emplace());
  }
  Result<void> read(const OpText&, std::string_view, double& v) {
    TFCC_TRY(v, real());
    return {};
  }
  Result<void> read(const OpText&, std::string_view key, ReduceKind& v) {
    return choice(key, kReduceKindNames, v);
  }
  Result<void> read(const OpText&, std::string_view key, NormKind& v) {
    return choice(key, kNormKindNames, v);
  }
  Result<void> read(const OpText&, std::string_view key, FeatureSoftmax& v) {
    return choice(key, kFeatureSoftmaxNames, v);
  }

  template <class E, size_t N>
  Result<void> choice(std::string_view key, const std::string_view (&names)[N], E& v) {
    for (size_t i = 0; i < N; ++i) {
      if (!lexer_.accept(names[i])) continue;
      v = static_cast<E>(i);
      return {};
    }
    return unexpected(fmt::format("{} for '{}'", fmt::join(names, ", "), key));
  }

  Result<void> read(const OpText&, std::string_view, std::vector<ExprRef>& v) {
    TFCC_TRY(v, sizes());
    return {};
  }

  Result<void> read(const OpText& op, std::string_view key, OptionalDims& v) {
    return read(op, key, v.dims);
  }
  Result<void> read(const OpText& op, std::string_view key, OptionalFlag& v) {
    return read(op, key, v.on);
  }
  Result<void> read(const OpText& op, std::string_view key, OptionalExpr& e) {
    return read(op, key, e.expr);
  }
  /// (i,j,k) => expression
  Result<void> read(const OpText& op, std::string_view key, ExprRef& e) {
    if (lexer_.accept("none")) return {};
    TFCC_TRY_VOID(lexer_.expect("("));
    std::vector<std::string> parameters;
    while (!lexer_.accept(")")) {
      if (!parameters.empty()) TFCC_TRY_VOID(lexer_.expect(","));
      if (lexer_.peek().kind != TokenKind::word) return unexpected("the name of an index");
      parameters.emplace_back(lexer_.next().text);
    }
    TFCC_TRY_VOID(lexer_.expect("=>"));
    std::map<std::string, ExprRef, std::less<>> scope;
    TFCC_TRY_VOID(bind(op, key, parameters, scope));
    const auto name = [&](std::string_view n) -> ExprRef {
      const auto it = scope.find(n);
      return it != scope.end() ? it->second : symbol(n);
    };
    const auto slot = [&](std::string_view n) -> std::optional<std::pair<int64_t, DType>> {
      const ValueId v = graph_.find_value(n);
      // What expressions load stands behind an op's own operands, also where it is one of them: a
      // factor, a beta.
      const std::vector<ValueId>& operands = op.op.operands;
      const auto at = operands.rend() - std::find(operands.rbegin(), operands.rend(), v) - 1;
      const size_t first =
          op.fields.contains("weight") ? 1 : first_loaded(op.op);  // or is yet to be read
      if (at < static_cast<std::ptrdiff_t>(first)) return std::nullopt;
      return std::pair(at, graph_.value(v).type.dtype);
    };
    TFCC_TRY(e, parse_expr(lexer_, graph_.pool(), name, slot));
    return {};
  }

  /// Gives the parameters of a body their meaning: scalars of the op, then index variables.
  Result<void> bind(const OpText& op, std::string_view key,
                    const std::vector<std::string>& parameters,
                    std::map<std::string, ExprRef, std::less<>>& scope) {
    const Result<Signature> over = signature(graph_, op.op, op.types, key);
    if (!over) return lexer_.error(over.error().message);
    const size_t scalars = over->params.size(), indices = over->extents.size();
    if (parameters.size() != scalars + indices) {
      return lexer_.error_before(fmt::format("'{}' has {} parameters, {} expected", key,
                                             parameters.size(), scalars + indices));
    }
    for (size_t k = 0; k < scalars; ++k)
      scope[parameters[k]] = graph_.pool().param(over->params[k].name, over->params[k].type);
    for (size_t k = 0; k < indices; ++k) {
      scope[parameters[k + scalars]] =
          graph_.pool().index(static_cast<int64_t>(k), over->extents[k]);
    }
    return {};
  }

  Graph graph_;
  std::vector<std::pair<std::string, SymbolRange>> ranges_;
  ConstantSources& sources_;
};

}  // namespace

Result<Graph> parse(std::string_view text, const std::string& name) {
  TFCC_TRY(Lexer lexer, Lexer::split(text, name));
  ConstantSources sources;
  return GraphParser(lexer, sources).run();
}

Result<Graph> parse_inner_graph(Lexer& lexer, ConstantSources& sources) {
  sources.inside = true;
  Result<Graph> graph = GraphParser(lexer, sources).run();
  sources.inside = false;
  return graph;
}

}  // namespace tfcc::ir

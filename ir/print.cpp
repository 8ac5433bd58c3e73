// SPDX-License-Identifier: Apache-2.0
// Graph to text. ir/README.md has the grammar; parse.cpp reads what this writes.
#include <fmt/format.h>

#include <cmath>

#include "ir/computed.h"
#include "ir/ir.h"
#include "ir/lexer.h"
#include "ir/signature.h"

namespace tfcc::ir {
namespace {

constexpr int64_t kMaxInlineElements = 64;

/// Shortest digits that read back to the same number, always recognisable as a real.
template <class T> std::string real_text(T v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  std::string s = fmt::format("{}", v);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

std::string numbers_text(const std::vector<int64_t>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

std::string source_type(const Constant& c) {
  return fmt::format("{}[{}]", tfcc::to_string(c.dtype), numbers_text(c.dims));
}

std::string base64(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? std::to_integer<uint32_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k)
      out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
  }
  return out;
}

std::string element_text(DType t, const std::byte* data, size_t i) {
  if (t == DType::boolean) return read_int(t, data, i) ? "true" : "false";
  if (!is_float(t)) return fmt::format("{}", read_int(t, data, i));
  const double v = read_real(t, data, i);
  return t == DType::f64 ? real_text(v) : real_text(static_cast<float>(v));
}

std::string constant_text(const Constant& c);

/// Lines of a graph within a line of another one, without the end of the last.
std::string indented(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, text.size() - 1)) {
    out += c;
    if (c == '\n') out += "  ";
  }
  return out;
}

std::string source_text(const Constant& c) {
  if (c.source == Constant::Source::file) {
    return fmt::format("file({}, {}, {})", quote(c.file ? c.file->name : ""), source_type(c),
                       c.offset);
  }
  // Without steps the declared type is that of the source.
  const std::string prefix = c.steps.empty() ? "" : source_type(c) + " ";
  if (c.source == Constant::Source::concat) {
    std::string out = fmt::format("{}concat({}", prefix, c.axis);
    for (const Constant& part : c.parts) {
      out += fmt::format(", {}[{}] {}", tfcc::to_string(part.result_dtype()),
                         numbers_text(part.result_dims()), constant_text(part));
    }
    return out + ")";
  }
  if (c.source == Constant::Source::random) return fmt::format("{}random({})", prefix, c.seed);
  if (c.source == Constant::Source::graph) return prefix + indented(print(c.computed->graph()));
  if (c.element_count() > kMaxInlineElements)
    return fmt::format("{}base64(\"{}\")", prefix, base64(*c.bytes));
  std::string out = prefix + "[";
  for (int64_t i = 0; i < c.element_count(); ++i) {
    if (i) out += ", ";
    out += element_text(c.dtype, c.bytes->data(), i);
  }
  return out + "]";
}

std::string constant_text(const Constant& c) {
  std::string out = source_text(c);
  for (const ConstantStep& step : c.steps) {
    switch (step.kind) {
      case ConstantStep::Kind::transpose:
        out += fmt::format(" |> transpose({})", numbers_text(step.numbers));
        break;
      case ConstantStep::Kind::reshape:
        out += fmt::format(" |> reshape({})", numbers_text(step.numbers));
        break;
      case ConstantStep::Kind::add:
        out += fmt::format(" |> add({}, {})", step.numbers[0], tfcc::to_string(step.dtype));
        break;
      case ConstantStep::Kind::cast:
        out += fmt::format(" |> cast({})", tfcc::to_string(step.dtype));
        break;
    }
  }
  return out;
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string run() {
    header();
    for (const SizeCheck& check : graph_.checks) {
      out_ += fmt::format("  check {}, {}\n", print(check.condition), quote(check.message));
    }
    for (size_t i = 0; i < graph_.flags.size(); ++i)
      out_ += fmt::format("  flag {} {}\n", i, quote(graph_.flags[i]));
    for (OpId o : graph_.order()) op(graph_.op(o));
    out_ += "  return";
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const Graph::Output& output = graph_.outputs[i];
      out_ += fmt::format("{} {} = {}", i ? "," : "", symbol_name(output.name), name(output.value));
    }
    return out_ + "\n}\n";
  }

  std::vector<std::pair<std::string, std::string>> attribute_texts(const Op& op) {
    Attrs attrs = op.attrs;  // visit() names fields for reading and writing alike, so it needs
                             // something mutable
    std::vector<std::pair<std::string, std::string>> out;
    const auto field = [&](std::string_view key, auto& value) {
      if constexpr (requires { value.has_value(); }) {
        if (!value.has_value()) return;
      }
      out.emplace_back(key, text(op, key, value));
    };
    std::visit([&](auto& a) { a.visit(field); }, attrs);
    return out;
  }

 private:
  std::string name(ValueId v) const {
    return (graph_.is_constant(v) ? "@" : "%") + value_name(graph_.value(v).name);
  }

  void header() {
    out_ += "graph @" + value_name(graph_.name) + "(";
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      const ValueId v = graph_.inputs()[i];
      const Value& in = graph_.value(v);
      out_ += fmt::format("{}{}: {}", i ? ", " : "", name(v), to_string(in.type));
      if (in.role != InputRole::none) out_ += fmt::format(" as {}", to_string(in.role));
    }
    out_ += ")";
    if (!graph_.symbols.empty()) {
      out_ += " symbols(";
      for (size_t i = 0; i < graph_.symbols.size(); ++i)
        out_ += (i ? ", " : "") + symbol(graph_.symbols[i]);
      out_ += ")";
    }
    out_ += " {\n";
  }

  std::string symbol(const SizeSymbol& s) const {
    const SymbolRange range = graph_.pool().range(s.name);
    const std::string source =
        s.made() ? fmt::format("({})", print(s.bound))
        : s.computed()
            ? fmt::format("({})", print(s.formula))
            : fmt::format("{}.{}{}", symbol_name(graph_.value(graph_.inputs()[s.input]).name),
                          s.axis, s.multiple == 1 ? "" : fmt::format(" / {}", s.multiple));
    return fmt::format("{} {} {} in {}..{}{}{}", symbol_name(s.name), s.made() ? "<=" : "=", source,
                       range.min, range.max ? fmt::format("{}", *range.max) : "",
                       s.role == SizeRole::none ? "" : " as ",
                       s.role == SizeRole::none ? "" : to_string(s.role));
  }

  void op(const Op& op) {
    if (op.kind == OpKind::constant) {
      const ValueId v = op.results[0];
      out_ += fmt::format("  const {} : {} = {}\n", name(v), to_string(graph_.value(v).type),
                          constant_text(op.as<ConstantAttrs>().constant));
      return;
    }
    std::string results, operands, types;
    for (ValueId v : op.results) {
      results += (results.empty() ? "" : ", ") + name(v);
      types += (types.empty() ? "" : ", ") + to_string(graph_.value(v).type);
    }
    for (ValueId v : op.operands) operands += (operands.empty() ? "" : ", ") + name(v);
    out_ += fmt::format("  {} = {}({}){} : {}\n", results, to_string(op.kind), operands,
                        attributes(op), types);
  }

  std::string attributes(const Op& op) {
    std::string out;
    for (const auto& [key, text] : attribute_texts(op))
      out += fmt::format("{}{} = {}", out.empty() ? "" : ", ", key, text);
    return out.empty() ? "" : " {" + out + "}";
  }

  std::string text(const Op&, std::string_view, bool v) { return v ? "true" : "false"; }
  std::string text(const Op&, std::string_view, int64_t v) { return fmt::format("{}", v); }
  std::string text(const Op&, std::string_view, double v) { return real_text(v); }
  template <class T>
  std::string text(const Op& op, std::string_view key, const std::optional<T>& v) {
    return text(op, key, *v);
  }
  std::string text(const Op&, std::string_view, ReduceKind v) {
    return std::string(kReduceKindNames[static_cast<int>(v)]);
  }
  std::string text(const Op&, std::string_view, NormKind v) {
    return std::string(kNormKindNames[static_cast<int>(v)]);
  }
  std::string text(const Op&, std::string_view, FeatureSoftmax v) {
    return std::string(kFeatureSoftmaxNames[static_cast<int>(v)]);
  }

  std::string text(const Op&, std::string_view, const std::vector<ExprRef>& v) {
    std::string out;
    for (ExprRef e : v) out += (out.empty() ? "" : ",") + print(e);
    return "[" + out + "]";
  }

  std::string text(const Op& op, std::string_view key, const OptionalDims& v) {
    return text(op, key, v.dims);
  }
  std::string text(const Op& op, std::string_view key, const OptionalFlag& v) {
    return text(op, key, v.on);
  }
  std::string text(const Op& op, std::string_view key, const OptionalExpr& e) {
    return text(op, key, e.expr);
  }
  std::string text(const Op& op, std::string_view key, ExprRef e) {
    if (!e) return "none";
    PrintNames names;
    names.slot = [&](int64_t slot) { return name(op.operands[slot]); };
    const Signature over = signature(graph_, op, key);
    names.index = [&](int64_t k) {
      const auto n = static_cast<size_t>(k);
      return n < over.indices.size() ? over.indices[n] : index_name(k);
    };
    std::string parameters;
    for (const Signature::Param& p : over.params)
      parameters += fmt::format("{}{}", parameters.empty() ? "" : ",", p.name);
    for (const std::string& i : over.indices) parameters += (parameters.empty() ? "" : ",") + i;
    return fmt::format("({}) => {}", parameters, print(e, names));
  }

  const Graph& graph_;
  std::string out_;
};

}  // namespace

std::string print(const Graph& graph) { return Printer(graph).run(); }

std::vector<std::pair<std::string, std::string>> attribute_texts(const Graph& graph, const Op& op) {
  return Printer(graph).attribute_texts(op);
}

std::string recipe_text(const Constant& constant) { return constant_text(constant); }

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// Constants of .tfir: sources (elements, base64, file, random) and the steps after them.
#include <algorithm>

#include "ir/computed.h"
#include "ir/parse_words.h"

namespace tfcc::ir {
namespace {

Result<std::vector<std::byte>> decode_base64(std::string_view s, const Lexer& lexer) {
  std::vector<std::byte> out;
  uint32_t group = 0;
  int bits = 0;
  for (char c : s) {
    int digit = c == '+' ? 62 : c == '/' ? 63 : -1;
    if (c >= 'A' && c <= 'Z') digit = c - 'A';
    if (c >= 'a' && c <= 'z') digit = c - 'a' + 26;
    if (c >= '0' && c <= '9') digit = c - '0' + 52;
    if (c == '=') break;
    if (digit < 0) return lexer.error(fmt::format("'{}' is no base64 digit", c));
    group = group << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out.push_back(static_cast<std::byte>(group >> bits & 0xff));
    }
  }
  return out;
}

/// Elements of `dims`, or nothing if negative or too many to address.
std::optional<int64_t> count_of(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) {
    if (d < 0 || __builtin_mul_overflow(n, d, &n) || n > INT64_MAX / 8) return std::nullopt;
  }
  return n;
}

class ConstantParser : WordParser {
 public:
  ConstantParser(Lexer& lexer, ConstantSources& sources) : WordParser(lexer), sources_(sources) {}

  Result<Constant> run(DType declared, const std::vector<int64_t>& dims) {
    Constant c;
    c.dtype = declared;
    c.dims = dims;
    if (lexer_.accept("file")) {
      TFCC_TRY_VOID(file_source(c));
    } else {
      TFCC_TRY_VOID(own_source(c));
    }
    while (lexer_.accept("|>")) TFCC_TRY_VOID(step(c));
    if (c.result_dtype() != declared || c.result_dims() != dims) {
      return lexer_.error_before(
          "the recipe does not give the type that the constant is declared with");
    }
    return c;
  }

 private:
  Result<void> source_type(Constant& c) {
    TFCC_TRY(c.dtype, dtype());
    TFCC_TRY(c.dims, integers("[", "]"));
    return {};
  }

  Result<void> file_source(Constant& c) {
    c.source = Constant::Source::file;
    TFCC_TRY_VOID(lexer_.expect("("));
    TFCC_TRY(std::string path, string("the name of a file"));
    TFCC_TRY_VOID(lexer_.expect(","));
    TFCC_TRY_VOID(source_type(c));
    TFCC_TRY_VOID(lexer_.expect(","));
    TFCC_TRY(c.offset, integer<uint64_t>("an offset"));
    c.file = source_file(path);
    if (!count_of(c.dims)) return lexer_.error_before("the dims of the constant are too large");
    return lexer_.expect(")");
  }

  Result<void> own_source(Constant& c) {
    if (!lexer_.is("[") && !lexer_.is("base64") && !lexer_.is("random") && !lexer_.is("concat") &&
        !lexer_.is("graph"))
      TFCC_TRY_VOID(source_type(c));
    const auto count = count_of(c.dims);
    if (!count) return lexer_.error_before("the dims of the constant are too large");
    if (lexer_.accept("concat")) return concat_source(c);
    if (lexer_.is("graph")) return graph_source(c);
    if (lexer_.accept("random")) {
      c.source = Constant::Source::random;
      TFCC_TRY_VOID(lexer_.expect("("));
      TFCC_TRY(c.seed, integer<uint64_t>("a seed"));
      return lexer_.expect(")");
    }
    std::vector<std::byte> bytes;
    if (lexer_.accept("base64")) {
      TFCC_TRY_VOID(lexer_.expect("("));
      if (lexer_.peek().kind != TokenKind::string) return unexpected("a string");
      TFCC_TRY(bytes, decode_base64(lexer_.peek().text, lexer_));
      lexer_.next();
      TFCC_TRY_VOID(lexer_.expect(")"));
    } else {
      TFCC_TRY(bytes, elements(c.dtype));
    }
    if (bytes.size() != static_cast<uint64_t>(*count) * size_of(c.dtype)) {
      return lexer_.error_before(
          fmt::format("{} elements expected, {} given", *count, bytes.size() / size_of(c.dtype)));
    }
    c.bytes = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    return {};
  }

  Result<void> graph_source(Constant& c) {
    if (sources_.inside) return lexer_.error("a graph within the graph of a constant");
    TFCC_TRY(Graph graph, parse_inner_graph(lexer_, sources_));
    if (const std::string problem = ComputedConstant::problem(graph); !problem.empty())
      return lexer_.error_before("the graph of a constant " + problem);
    Constant made = constant_of(std::make_shared<const ComputedConstant>(std::move(graph)));
    if (made.dtype != c.dtype || made.dims != c.dims)
      return lexer_.error_before("the graph does not make the constant");
    c = std::move(made);
    return {};
  }

  Result<void> concat_source(Constant& c) {
    TFCC_TRY_VOID(lexer_.expect("("));
    TFCC_TRY(const int64_t axis, integer("an axis"));
    std::vector<Constant> parts;
    while (lexer_.accept(",")) {
      TFCC_TRY(const DType t, dtype());
      TFCC_TRY(const std::vector<int64_t> dims, integers("[", "]"));
      if (!count_of(dims)) return lexer_.error_before("the dims of the constant are too large");
      TFCC_TRY(Constant part, parse_constant(lexer_, t, dims, sources_));
      std::vector<int64_t> expected = c.dims;
      const bool fits =
          axis >= 0 && axis < static_cast<int64_t>(dims.size()) && dims.size() == expected.size();
      if (fits) expected[axis] = dims[axis];
      if (!fits || dims != expected || t != c.dtype)
        return lexer_.error_before("a part of concat does not fit the others");
      parts.push_back(std::move(part));
    }
    if (parts.empty()) return unexpected("a part");
    Constant joined = concat_constants(std::move(parts), axis);
    if (joined.dims != c.dims) return lexer_.error_before("the parts do not make the constant");
    c = std::move(joined);
    return lexer_.expect(")");
  }

  Result<std::vector<std::byte>> elements(DType t) {
    std::vector<std::byte> bytes;
    TFCC_TRY_VOID(lexer_.expect("["));
    if (lexer_.accept("]")) return bytes;
    do {
      const size_t i = bytes.size() / size_of(t);
      bytes.resize(bytes.size() + size_of(t));
      if (is_float(t)) {
        TFCC_TRY(double v, real());
        write_real(t, bytes.data(), i, v);
      } else if (t == DType::boolean) {
        TFCC_TRY(bool v, truth());
        write_int(t, bytes.data(), i, v);
      } else {
        TFCC_TRY(int64_t v, integer("an integer"));
        write_int(t, bytes.data(), i, v);
        if (read_int(t, bytes.data(), i) != v)
          return lexer_.error_before(fmt::format("{} does not fit {}", v, tfcc::to_string(t)));
      }
    } while (lexer_.accept(","));
    TFCC_TRY_VOID(lexer_.expect("]"));
    return bytes;
  }

  Result<void> step(Constant& c) {
    ConstantStep step{ConstantStep::Kind::cast, {}, DType::f32};
    if (lexer_.accept("cast")) {
      TFCC_TRY_VOID(lexer_.expect("("));
      TFCC_TRY(step.dtype, dtype());
      TFCC_TRY_VOID(lexer_.expect(")"));
    } else if (lexer_.accept("transpose")) {
      step.kind = ConstantStep::Kind::transpose;
      TFCC_TRY(step.numbers, integers("(", ")"));
      std::vector<int64_t> sorted = step.numbers;
      std::sort(sorted.begin(), sorted.end());
      for (size_t i = 0; i < sorted.size(); ++i) {
        if (sorted[i] != static_cast<int64_t>(i))
          return lexer_.error_before("transpose needs a permutation");
      }
      if (sorted.size() != c.result_dims().size())
        return lexer_.error_before("transpose needs one number for each dim");
    } else if (lexer_.accept("reshape")) {
      step.kind = ConstantStep::Kind::reshape;
      TFCC_TRY(step.numbers, integers("(", ")"));
      if (count_of(step.numbers) != count_of(c.dims))
        return lexer_.error_before("reshape changes the number of elements");
    } else if (lexer_.accept("add")) {
      step.kind = ConstantStep::Kind::add;
      TFCC_TRY_VOID(lexer_.expect("("));
      TFCC_TRY(const int64_t number, integer("an integer"));
      step.numbers = {number};
      TFCC_TRY_VOID(lexer_.expect(","));
      TFCC_TRY(step.dtype, dtype());
      if (!is_integer(step.dtype) || !is_integer(c.result_dtype()))
        return lexer_.error_before("add is for integers");
      TFCC_TRY_VOID(lexer_.expect(")"));
    } else {
      return unexpected("cast, transpose, reshape or add");
    }
    c.steps.push_back(std::move(step));
    return {};
  }

  /// One mapping per name; a file that is not there keeps its name, and materialize says so if its
  /// bytes are wanted.
  std::shared_ptr<const SourceFile> source_file(const std::string& path) {
    auto& file = sources_.files[path];
    if (file) return file;
    if (auto mapped = map_source_file(path)) return file = *mapped;
    auto named = std::make_shared<SourceFile>();
    named->name = path;
    return file = named;
  }

  ConstantSources& sources_;
};

}  // namespace

Result<Constant> parse_constant(Lexer& lexer, DType dtype, const std::vector<int64_t>& dims,
                                ConstantSources& sources) {
  return ConstantParser(lexer, sources).run(dtype, dims);
}

}  // namespace tfcc::ir

// SPDX-License-Identifier: Apache-2.0
// Sizes as postfix programs over the symbols of a run. Codegen prints dim expressions into them
// (manifest.proto, SizeExpr); the runtime evaluates them when shapes change, with checked
// arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tfcc::runtime {

/// Codes of a program. Numbers are those of the file.
enum class SizeCode : int64_t {
  push = 0,    ///< the next number is the constant
  symbol = 1,  ///< the next number is its index
  add = 2,
  mul = 3,
  floordiv = 4,
  min = 5,
  max = 6,
  abs = 7,
  select = 8,  ///< c a b: c >= 0 ? a : b
  negate = 9,
};

/// Values that a program may hold at once.
inline constexpr size_t kMaxSizeDepth = 64;

/// A field that the schema has as sint64.
struct Zigzag {
  std::vector<int64_t>& values;
};

/// A size. An empty program is 0.
struct SizeExpr {
  std::vector<int64_t> code;
  std::string text;  // for messages; may be empty

  template <class V> void visit(V&& v) {
    v(1, Zigzag{code});
    v(2, text);
  }

  /// True if the program is well formed and names symbols below `symbols` only.
  bool valid(size_t symbols) const;
  /// f of the index of each symbol that it names. Needs valid().
  template <class F> void for_each_symbol(F f) const {
    for (size_t i = 0; i < code.size(); ++i) {
      const auto c = static_cast<SizeCode>(code[i]);
      if (c != SizeCode::push && c != SizeCode::symbol) continue;
      ++i;
      if (c == SizeCode::symbol) f(static_cast<size_t>(code[i]));
    }
  }
  /// The value, or nothing on overflow or division by zero in a branch that is used. Needs valid().
  std::optional<int64_t> evaluate(std::span<const int64_t> symbols) const;
  /// The constant, if no symbol is used.
  std::optional<int64_t> constant() const;
  /// The index of the symbol, if the program is that symbol alone.
  std::optional<size_t> lone_symbol() const;
  /// The text, or a spelling of the constant.
  std::string print() const;

  bool operator==(const SizeExpr&) const = default;
};

/// a * b of sizes that are not negative, or nothing if it does not fit.
std::optional<int64_t> checked_product(std::span<const int64_t> sizes);

}  // namespace tfcc::runtime

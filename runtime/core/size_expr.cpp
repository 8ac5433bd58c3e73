// SPDX-License-Identifier: Apache-2.0
// Evaluator of size programs.
#include "runtime/core/size_expr.h"

#include <algorithm>
#include <array>

namespace tfcc::runtime {
namespace {

// A value that may have gone wrong. Both branches of a select are computed, and only the one taken
// may fail.
struct Number {
  int64_t value = 0;
  bool ok = true;
};

struct CodeShape {
  int numbers;  // that follow the code
  int pops;
};

std::optional<CodeShape> shape_of(int64_t code) {
  switch (static_cast<SizeCode>(code)) {
    case SizeCode::push:
    case SizeCode::symbol: return CodeShape{1, 0};
    case SizeCode::abs:
    case SizeCode::negate: return CodeShape{0, 1};
    case SizeCode::add:
    case SizeCode::mul:
    case SizeCode::floordiv:
    case SizeCode::min:
    case SizeCode::max: return CodeShape{0, 2};
    case SizeCode::select: return CodeShape{0, 3};
  }
  return std::nullopt;
}

Number floordiv(Number a, Number b) {
  if (!a.ok || !b.ok || b.value == 0 || (a.value == INT64_MIN && b.value == -1)) return {0, false};
  int64_t q = a.value / b.value;
  if (a.value % b.value != 0 && (a.value < 0) != (b.value < 0)) --q;
  return {q, true};
}

Number binary(SizeCode code, Number a, Number b) {
  Number r{0, a.ok && b.ok};
  switch (code) {
    case SizeCode::add: r.ok &= !__builtin_add_overflow(a.value, b.value, &r.value); break;
    case SizeCode::mul: r.ok &= !__builtin_mul_overflow(a.value, b.value, &r.value); break;
    case SizeCode::floordiv: return floordiv(a, b);
    case SizeCode::min: r.value = std::min(a.value, b.value); break;
    default: r.value = std::max(a.value, b.value); break;
  }
  return r;
}

Number negated(Number a) {
  Number r{0, a.ok};
  r.ok &= !__builtin_sub_overflow(int64_t{0}, a.value, &r.value);
  return r;
}

}  // namespace

bool SizeExpr::valid(size_t symbols) const {
  if (code.empty()) return true;
  size_t depth = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    auto shape = shape_of(code[i]);
    if (!shape || depth < static_cast<size_t>(shape->pops)) return false;
    bool is_symbol = code[i] == static_cast<int64_t>(SizeCode::symbol);
    if (shape->numbers == 1) {
      if (++i == code.size()) return false;
      if (is_symbol && static_cast<uint64_t>(code[i]) >= symbols) return false;
    }
    depth += 1 - static_cast<size_t>(shape->pops);
    if (depth > kMaxSizeDepth) return false;
  }
  return depth == 1;
}

std::optional<int64_t> SizeExpr::evaluate(std::span<const int64_t> symbols) const {
  if (code.empty()) return 0;
  std::array<Number, kMaxSizeDepth> stack;
  size_t top = 0;  // number of values
  for (size_t i = 0; i < code.size(); ++i) {
    auto c = static_cast<SizeCode>(code[i]);
    switch (c) {
      case SizeCode::push: stack[top++] = {code[++i], true}; break;
      case SizeCode::symbol: stack[top++] = {symbols[static_cast<size_t>(code[++i])], true}; break;
      case SizeCode::negate: stack[top - 1] = negated(stack[top - 1]); break;
      case SizeCode::abs:
        if (stack[top - 1].value < 0) stack[top - 1] = negated(stack[top - 1]);
        break;
      case SizeCode::select: {
        Number condition = stack[top - 3];
        Number taken = condition.value >= 0 ? stack[top - 2] : stack[top - 1];
        taken.ok &= condition.ok;
        top -= 2;
        stack[top - 1] = taken;
        break;
      }
      default: --top; stack[top - 1] = binary(c, stack[top - 1], stack[top]);
    }
  }
  if (!stack[0].ok) return std::nullopt;
  return stack[0].value;
}

std::optional<int64_t> SizeExpr::constant() const {
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i] == static_cast<int64_t>(SizeCode::symbol)) return std::nullopt;
    if (code[i] == static_cast<int64_t>(SizeCode::push)) ++i;
  }
  return evaluate({});
}

std::optional<size_t> SizeExpr::lone_symbol() const {
  if (code.size() != 2 || code[0] != static_cast<int64_t>(SizeCode::symbol)) return std::nullopt;
  return static_cast<size_t>(code[1]);
}

std::string SizeExpr::print() const {
  if (!text.empty()) return text;
  auto c = constant();
  return c ? std::to_string(*c) : "?";
}

std::optional<int64_t> checked_product(std::span<const int64_t> sizes) {
  int64_t product = 1;
  bool overflow = false;
  for (int64_t size : sizes) {
    if (size == 0) return 0;
    overflow |= __builtin_mul_overflow(product, size, &product);
  }
  if (overflow) return std::nullopt;
  return product;
}

}  // namespace tfcc::runtime

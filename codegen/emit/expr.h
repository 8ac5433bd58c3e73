// SPDX-License-Identifier: Apache-2.0
// Element expressions as C++: what stubs hand to templates.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tfcc::codegen {

/// How the parts of an expression are spelled.
struct CppNames {
  std::function<std::string(int64_t)> index;                   // index variable k
  std::function<std::string(const std::string&)> symbol;       // a size
  std::function<std::string(int64_t slot)> pointer;            // operand of a load
  std::function<std::vector<ir::ExprRef>(int64_t slot)> dims;  // its dims
  /// Indices and sizes have 32 bits (CUDA): other numbers made of them are widened unless they are
  /// proved to fit, or to lie below one of `counts`, the elements of tensors, which the runtime
  /// holds to 32 bits.
  bool narrow_indices = false;
  /// The result is stored in 16 bits: 1 + erf(x) need not be right in the last bits of f32.
  bool short_result = false;
  /// And so for what is evaluated for each feature of a kernel that tensor cores wait for: e^x and
  /// quotients within a few units of the last place, comparisons without the test for NaN that
  /// ptxas needs after |x| and squares.
  bool fast = false;
  /// Numbers of a few bits become reals by those: conversions take longer (CUDA).
  bool convert_by_bits = false;
  /// Quotients and remainders of what is proved not to be negative are those of unsigned numbers.
  bool unsigned_quotients = false;
  std::vector<ir::ExprRef> counts;
  /// A load, of an element as it is stored.
  ir::ExprRef unconverted = nullptr;
  /// Operands whose memory is the caller's and may be misaligned.
  std::function<bool(int64_t slot)> of_caller;
};

/// The statements of a function body that returns e: shared parts as `const auto t0 = ...;`, then
/// `return ...;`. A part that loads is only shared if it is evaluated in every case, because select
/// is lazy.
std::string cpp_body(ir::ExprRef e, const CppNames& names);
/// The same in parts: what does not depend on index variable `column`, as statements that are run
/// once for a row; where vec > 1, the loads of vec neighbours along the column from a multiple of
/// vec on, as packs p0, p1, ..; and the body of a function of the column, and of k where it reads a
/// pack.
struct CppRowBody {
  std::vector<std::string> row, packs;
  std::string column;
};
CppRowBody cpp_row_body(ir::ExprRef e, int64_t column, int64_t vec, const CppNames& names);
/// e as one C++ expression.
std::string cpp_expr(ir::ExprRef e, const CppNames& names);

}  // namespace tfcc::codegen

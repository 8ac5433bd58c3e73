// SPDX-License-Identifier: Apache-2.0
// Element expressions: the one scalar language of tfcc, for dims, indices, masks, scores and kernel
// bodies. docs/expressions.md is the contract (types, semantics, text form).
//
// Nodes are hash-consed in an ExprPool: two expressions that are built equal are the same pointer.
// Every builder below simplifies as it builds, so there is no separate "simplify" step. Integers
// are canonical polynomials.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/dtype.h"

namespace tfcc::ir {

/// Type of a scalar. i64 indices, sizes and integer data; f32/f64 reals; boolean truth values.
enum class Scalar : uint8_t { i64, f32, f64, boolean };

/// What a node computes. Semantics in docs/expressions.md.
enum class ExprKind : uint8_t {
  // integers
  poly,    // terms() : sum of coefficient * product of atoms; constants are polys too
  index,   // value() = number, args[0] = extent; ranges over [0, extent-1]
  symbol,  // name(): a size of an input, known at run time
  load,    // value() = slot, args = indices: one element of operand `slot`; any scalar type
  param,  // name(): a scalar given by the context (the dot product `s` of an attention score, the sum of a product)
  floordiv,  // rounds to minus infinity; divisor > 0
  imin,
  imax,
  iabs,
  bounded,  // bounded(e, n): e if 0 <= e < n, else clamped, and flag value() is raised
  f2i,      // truncates; saturates at the ends of i64, NaN is 0
  select,   // select(c, a, b): lazy; any scalar type
  // booleans
  btrue,
  bfalse,
  ge0,
  eq0,  // of an i64
  band,
  bor,
  bnot,
  flt,
  fle,
  feq,
  isnan,
  // reals
  fconst,  // real()
  fadd,
  fsub,
  fmul,
  fdiv,
  fpow,
  fmin,
  fmax,
  fmod,
  fneg,
  fabs,
#define TFCC_UNARY(name, value, costly) name,
#include "ir/unary.def"
#undef TFCC_UNARY
  i2f,
  f2f,  // to type()
  round_f16,
  round_bf16,  // a Cast of the graph to 16 bits: value rounded, type unchanged
  bitand_,     // of two i64, in two's complement
  wrap,    // the low bits of an i64 as an integer of value() bits, unsigned if value() is negative
  poison,  // no value: an expression that could not be built, for the reason poison_of() gives
};

/// Why there is no expression. A builder that cannot give one returns a poison node of the type that
/// it should have; whatever is built from that and depends on its value is a poison of the same
/// reason. So a graph without
/// poison (rule E7) was built without such an error, and an attempt that came to nothing leaves no
/// trace.
enum class Poison : uint8_t {
  none,
  ill_typed,  // operands of types that do not go together
  overflow,   // an integer without data in it does not fit 64 bits
  too_large,  // a polynomial has too many terms or factors
};
/// "an integer does not fit 64 bits"
std::string_view to_string(Poison why);

/// A real function of one real (ir/unary.def): its name in text, and whether it is dear.
struct UnaryFunction {
  ExprKind kind;
  std::string_view name;
  bool costly;
};
std::span<const UnaryFunction> unary_functions();
/// The function of this kind; null for any other kind.
const UnaryFunction* unary_function(ExprKind kind);

/// The scalar type in which an element of this type computes: i64, f32, f64 or boolean.
Scalar scalar_of(DType t);

class ExprPool;
struct Node;
/// A node of some pool; equality of pointers is equality of expressions.
using ExprRef = const Node*;

/// coefficient * product of atoms (sorted, with repetition).
struct Term {
  std::vector<ExprRef> atoms;
  int64_t coefficient;
};

/// One hash-consed node. Immutable; owned by its pool.
struct Node {
  ExprKind kind;
  Scalar type;
  uint32_t depth;  // 1 + the largest depth of args
  uint64_t hash;   // of the structure, the same in every process
  ExprPool* pool;
  std::vector<ExprRef> args;
  int64_t value = 0;  // index number, load slot, flag, poly constant, bits of a wrap, a Poison
  double real = 0;    // fconst
  std::string name;   // symbol, param
  std::vector<Term> terms;  // poly, without the constant
  DType dtype =
      DType::i64;  // load: of the tensor's elements, the reals but f64 as f32; it bounds the value
  bool has_load = false;  // itself or below; a walk that looks for loads alone need not go further
  bool has_index = false;
};

/// Value of a constant integer, if it is one.
std::optional<int64_t> as_int(ExprRef e);
/// Value of a constant real, if it is one.
std::optional<double> as_real(ExprRef e);
inline bool is_int(ExprRef e, int64_t v) {
  return e->kind == ExprKind::poly && e->terms.empty() && e->value == v;
}

/// Why e has no value; none if it has one.
inline Poison poison_of(ExprRef e) {
  return e->kind == ExprKind::poison ? static_cast<Poison>(e->value) : Poison::none;
}

/// No size of an input is larger; the runtime refuses a run with one that is.
inline constexpr int64_t kLargestSize = int64_t{1} << 30;

/// Smallest and largest value of a symbol; facts narrow them.
struct SymbolRange {
  int64_t min = 1;
  std::optional<int64_t> max;
};

/// Owns nodes and the facts about symbols that simplification may use.
class ExprPool {
 public:
  ExprPool();
  ~ExprPool();
  ExprPool(const ExprPool&) = delete;
  ExprPool& operator=(const ExprPool&) = delete;

  ExprRef integer(int64_t v);
  ExprRef real(double v, Scalar type = Scalar::f32);  // rounded to f32 unless type is f64
  ExprRef boolean(bool v);
  /// Index variable `number` over [0, extent-1].
  ExprRef index(int64_t number, ExprRef extent);
  ExprRef symbol(std::string_view name);
  ExprRef param(std::string_view name, Scalar type);
  /// An element of a tensor of this type, which bounds the value; with a scalar alone an integer
  /// may be any of 64 bits.
  ExprRef load(int64_t slot, DType dtype, std::vector<ExprRef> indices);
  ExprRef load(int64_t slot, Scalar type, std::vector<ExprRef> indices);
  ExprRef poison(Poison why, Scalar type);

  /// Ranges must be set before expressions over the symbol are built.
  void set_range(std::string_view symbol, SymbolRange range);
  SymbolRange range(std::string_view symbol) const;

  /// Internal: the unique node with these fields; a poison if one of its arguments is.
  ExprRef intern(Node&& node);
  /// Internal: what was found out with the ranges as they are, since the same is asked again and
  /// again: whether the prover proved that claim[0] >= 0 where all others are, and what a / b
  /// simplifies to (null: not known).
  std::optional<bool> proof(const std::vector<ExprRef>& claim) const;
  void keep_proof(std::vector<ExprRef> claim, bool proved);
  ExprRef quotient(ExprRef a, ExprRef b) const;
  void keep_quotient(ExprRef a, ExprRef b, ExprRef result);
  /// Internal: ir/range.cpp's results, until a range changes.
  struct Known;
  Known& known();
  /// Sums of products of sizes that proofs took to fit 64 bits (ir/range.h). A run must check the
  /// sum that assumed_sizes() makes of them.
  void assume_size(ExprRef magnitude);
  const std::vector<ExprRef>& assumed() const;

 private:
  struct Impl;
  Impl* impl_;
};

// ---- builders; all simplify ----
ExprRef add(ExprRef a, ExprRef b);
ExprRef sub(ExprRef a, ExprRef b);
ExprRef mul(ExprRef a, ExprRef b);
/// Integers: floor division; reals: division.
ExprRef div(ExprRef a, ExprRef b);
/// Integers: a - b * floordiv(a, b) (sign of the divisor); reals: C fmod.
ExprRef mod(ExprRef a, ExprRef b);
ExprRef neg(ExprRef a);
ExprRef min(ExprRef a, ExprRef b);
ExprRef max(ExprRef a, ExprRef b);
ExprRef abs(ExprRef a);
ExprRef pow(ExprRef a, ExprRef b);
/// e modulo 2^bits, as a signed or an unsigned integer of so many bits (2 to 32): what a cast to it
/// keeps.
ExprRef wrap(ExprRef e, int bits, bool is_signed);
/// The bits that both integers have.
ExprRef bit_and(ExprRef a, ExprRef b);
/// Any real unary kind: exp, log, sqrt, erf, tanh, sin, cos, atan, floor, ceil, rint, sign,
/// round_f16, round_bf16.
ExprRef unary(ExprKind kind, ExprRef a);
/// e if 0 <= e < n by proof, else a node that clamps and raises flag `flag`.
ExprRef bounded(ExprRef e, ExprRef n, int64_t flag);
/// True where the condition holds, else false and flag `flag` is raised. So it is true in every run
/// that no flag ends.
ExprRef asserted(ExprRef condition, int64_t flag);
/// Is e made by asserted()?
bool is_assertion(ExprRef e);
ExprRef select(ExprRef c, ExprRef a, ExprRef b);
ExprRef logical_and(ExprRef a, ExprRef b);
ExprRef logical_or(ExprRef a, ExprRef b);
ExprRef logical_not(ExprRef a);
ExprRef lt(ExprRef a, ExprRef b);
ExprRef le(ExprRef a, ExprRef b);
ExprRef eq(ExprRef a, ExprRef b);
ExprRef is_nan(ExprRef a);
/// Conversion between scalar types; boolean <-> number as 0/1 and != 0.
ExprRef convert(ExprRef a, Scalar to);

// ---- proofs ----
// They speak of what a machine computes, which wraps at 64 bits: loads have the full range of their
// type, and a sum or product that may leave 64 bits is nothing but an integer. `assume` lists
// polynomials whose mathematical value is known to be >= 0. Never true without proof; each gives up
// after a bounded number of steps.

/// True if p >= 0 for every value of its indices, symbols and loads.
bool prove_ge0(ExprRef p, const std::vector<ExprRef>& assume = {});
/// True if a <= b. Says more than prove_ge0(sub(b, a)), which needs a difference that fits 64 bits.
bool prove_le(ExprRef a, ExprRef b, const std::vector<ExprRef>& assume = {});
/// True if 0 <= e < n.
bool prove_in(ExprRef e, ExprRef n, const std::vector<ExprRef>& assume = {});
/// True if the size e does not shrink when symbols in it grow within their ranges, each by itself.
bool never_decreases(ExprRef e);
/// Exact quotient a / b if b divides a as a polynomial.
std::optional<ExprRef> exact_div(ExprRef a, ExprRef b);

// ---- traversal ----
/// Rebuilds e bottom-up (and so simplifies again); `leaf` may replace an index, symbol, param, load
/// (its indices already rewritten) or any other node by returning non-null. `pool` is where the
/// result lives.
using Rewrite = std::function<ExprRef(ExprRef)>;
ExprRef rewrite(ExprRef e, const Rewrite& leaf);
/// The same expression in another pool. `replacement` may give what stands there in place of a
/// node; symbols keep their names.
ExprRef transfer(ExprRef e, ExprPool& pool, const Rewrite& replacement = {});
/// Whether this node alone, not what is below it, is a function that takes many instructions.
bool is_costly(ExprRef node);
/// Calls f once for every distinct node, children first.
void for_each_node(ExprRef e, const std::function<void(ExprRef)>& f);
/// Number of distinct nodes.
size_t node_count(ExprRef e);
/// Number of nodes when each is written wherever it occurs; at most `limit`.
size_t tree_size(ExprRef e, size_t limit);
/// Replaces index variable k by `by[k]` where by[k] is set.
ExprRef substitute_indices(ExprRef e, const std::vector<ExprRef>& by);
/// Total order on structure, the same in every process.
int compare(ExprRef a, ExprRef b);

// ---- text ----
/// How names appear in text; see print(). Defaults print i0, i1, ... and %0[...].
struct PrintNames {
  std::function<std::string(int64_t)> index;  // name of index variable k
  std::function<std::string(int64_t)> slot;   // name of operand `slot`, with its sigil
};
/// One line; shared subexpressions are written once as `let`. parse(print(e)) == e.
std::string print(ExprRef e, const PrintNames& names = {});

}  // namespace tfcc::ir

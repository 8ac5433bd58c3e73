// SPDX-License-Identifier: Apache-2.0
// The source of one kernel as a value: a template, its Spec, the functors it is given, and the
// call. This file and stub.cpp are the only place that knows how CUDA and the CPU spell a kernel.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "codegen/emit/context.h"
#include "codegen/emit/expr.h"

namespace tfcc::codegen {

/// The values in order, each where it stands first.
std::vector<ValueId> each_once(const std::vector<ValueId>& values);

/// Arguments of a kernel are the values it reads, then those it writes. An emitter adds to a stub;
/// print() gives its text:
///
///     #include "cuda/norm.cuh"       the template, from the name
///     struct Epilogue { .. };              functors
///     struct Spec { .. };                  facts of this launch, by name
///     TFCC_KERNEL(128, NAME, ..) { norm<Spec>(..); }
class Stub {
 public:
  /// Calls `function`, which the template of that name defines. Loads of functors have operands of
  /// `slots`; each value of `reads` stands there once. `context` is used while functors and
  /// arguments are added, not later.
  Stub(const EmitContext& context, std::string function, const std::vector<ValueId>& slots,
       std::vector<ValueId> reads, std::vector<ValueId> writes);
  /// Of an op: its operands are slots and, each once, what is read.
  Stub(const EmitContext& context, std::string function, OpId op);
  /// A copy of v, which is one argument for what is read and one for the copy, in memory of the
  /// caller.
  static Stub copy(const EmitContext& context, ValueId v);

  // ---- Spec, in this order ----
  void type(const std::string& name, const std::string& cpp);
  void type(const std::string& name, DType t) { type(name, storage_type(t)); }
  void field(const std::string& name, int64_t value);
  void field(const std::string& name, bool value);
  void field_f32(const std::string& name, double value);
  /// A condition on Spec, without which the kernel does not compile.
  void require(const std::string& condition, const std::string& message);

  // ---- functors ----
  using Index = std::function<std::string(int64_t)>;
  /// A functor type `name` with call parameters `params` ("idx i0, idx i1") that computes `body`;
  /// index k is spelled index(k), and dims(slot) are the dims that a load's indices are for, if not
  /// the operand's own.
  void functor(const std::string& name, const std::string& params, ExprRef body, Scalar result,
               const Index& index = index_name,
               const std::function<std::vector<ExprRef>(int64_t)>& dims = {});
  /// Functors from here on compute for tensor cores (CppNames::fast).
  void compute_fast() { fast_ = cuda_; }
  /// The same in two steps, for templates that walk rows: called with the row's indices i0, i1, ...
  /// it computes what all of the row shares, and returns the function of index i`column`. CUDA: that
  /// function fills an array of `vec` neighbours, from a multiple of vec on.
  void row_functor(const std::string& name, ExprRef body, int64_t column, int64_t vec = 1);

  /// A functor type of two steps, over indices 0 to 3: shared(i0, i1) computes the parts `shared`,
  /// and value(shared, i2, i3) is `value`, which has them as parameters v0, v1, .. So have the
  /// functions `more`, by their names, which need no indices.
  void shared_functor(const std::string& name, std::vector<ExprRef> shared, ExprRef value,
                      const std::vector<std::pair<std::string, ExprRef>>& more = {});

  // ---- arguments of the call ----
  std::string in(ValueId v, int64_t offset = 0) const;  // a typed pointer
  std::string out(size_t k = 0) const;                  // to result k
  std::string packed(const std::string& type,
                     size_t k) const;  // to the k-th buffer after the arguments
  std::string size(ExprRef e) const;
  std::string sizes(const std::vector<ExprRef>& dims) const;
  std::string object(const std::string& functor) const;  // made of its members
  /// CUDA: the same, read before the wait; the name of the variable that has them.
  std::string sizes_before_wait(const std::string& name, const std::vector<ExprRef>& dims);
  /// CUDA: vectors that every block reads as a whole are brought to its L1 cache before its wait.
  void constants_near() { near_ = true; }
  /// A functor without arguments that gives a size where the template asks for it: after its wait.
  std::string late_size(ExprRef e) const;
  /// The same before it, for a template that asks while the launches before this one still run:
  /// past the caches that these share.
  std::string early_size(ExprRef e) const;
  /// Where kernels find a size, for the one that makes it: "(i64*)n + 2".
  std::string address_of(ExprRef size) const;
  /// CUDA: memory of the launch alone, behind reads and writes; it holds anything before.
  std::string scratch(const std::string& type);
  /// CUDA: the number of multiprocessors, then numbers by which blocks of a launch meet. These are
  /// zero before it, and it leaves them so.
  std::string counters() const;
  /// The call. The CPU has its range of work items in the place of `rest`, sizes that bound what a
  /// thread of CUDA does.
  void call(std::vector<std::string> arguments, const std::vector<ExprRef>& rest);
  /// CUDA: the template waits for the launch before it by itself.
  void waits_itself() { waits_itself_ = true; }
  /// What is printed from here on is read before that wait: addresses of the caller's tensors, too,
  /// where all multiprocessors see the same. What wrote it must have ended by then
  /// (EmitContext::made_before_last).
  void reads_early() { reads_early_ = true; }

  /// CUDA: which of its tiles to take, a table for the template (runtime/core/tile_table.h), of
  /// `words` numbers.
  std::string tiles_by_rows(int words);

  /// CUDA: `blocks` of it share a multiprocessor.
  void resident(int blocks) { resident_ = blocks; }
  /// CUDA: it has tensor maps m0, m1, ...
  void maps(size_t count) { maps_ = count; }

  const std::string& function() const { return function_; }
  const std::vector<ValueId>& reads() const { return reads_; }
  const std::vector<ValueId>& writes() const { return writes_; }
  /// The text of a kernel of this name with this many threads in a block.
  std::string print(const std::string& name, uint32_t threads) const;

 private:
  struct Argument {
    std::string type;
    bool written, callers;
  };
  size_t position(ValueId v) const;
  std::string pointer(size_t k) const;
  /// CUDA: ", const f16* a0, f16* a1".
  std::string parameters() const;
  CppNames names(const Index& index) const;
  /// The head of a functor's type: the members that its body needs, which object() fills in.
  std::string raw_functions(std::vector<ExprRef>& shared, std::string& aliases);
  std::string members(const std::string& name, const std::vector<ExprRef>& bodies);
  void constant(const std::string& type, const std::string& name, const std::string& value);

  const EmitContext* context_;
  bool cuda_;
  std::string function_;
  std::vector<ValueId> slots_, reads_, writes_;
  std::vector<Argument> arguments_;
  std::vector<std::pair<size_t, int64_t>>
      constants_read_;       // CUDA: arguments that are read as a whole, and their bytes
  std::string before_wait_;  // CUDA
  std::string functors_, conditions_, call_;
  std::vector<std::string> types_;
  std::vector<std::pair<std::string, std::string>>
      constants_;                                       // a C++ type and "hidden = 768, vec = 8"
  std::map<std::string, std::vector<size_t>> members_;  // arguments that each functor holds
  bool fast_ = false;
  int resident_ = 0;  // 0: any number
  bool waits_itself_ = false, reads_early_ = false, near_ = false;
  size_t maps_ = 0;
  int tiles_by_rows_ = 0;
  std::string scratch_;  // its type, if there is any
};

/// The text of the kernel that writes sizes and the caller's pointers, `values` together, into the
/// device block.
std::string bind_source(const std::string& name, size_t values);

}  // namespace tfcc::codegen

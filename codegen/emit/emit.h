// SPDX-License-Identifier: Apache-2.0
// What an emitter returns: the launches of an op as values. An emitter is a function of an op and
// where it is lowered; it changes nothing, so that its result can be printed and compared.
// PlanBuilder makes a plan of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "codegen/emit/stub.h"
#include "ir/constant.h"

namespace tfcc::codegen {

/// How a kernel launch is sized. CUDA uses grid, threads and shared_bytes, the CPU work and grain.
struct LaunchSize {
  std::vector<ExprRef> grid;
  uint32_t threads = 256;
  uint32_t shared_bytes = 0;
  ExprRef work = nullptr;
  uint32_t grain = 1;
  uint32_t resident =
      0;  // blocks that a multiprocessor has at most, each one tile after the other; 0: a block for each tile
  uint32_t cluster =
      0;  // CUDA 9.0 and later: blocks along z, all that there are, that reach each other's shared memory
};

/// A constant in another layout, made by steps that `change` adds to its recipe. One buffer for
/// each name of a layout.
struct PackedWeight {
  ValueId weight;
  std::string layout;
  std::function<void(ir::Constant&)> change;
};

/// A matrix that a kernel reads by TMA, in boxes.
struct MatrixView {
  ValueId value;
  ExprRef rows, columns;
  uint32_t box_rows, box_columns;
};

/// Memory of a launch alone.
struct Scratch {
  DType dtype;
  ExprRef count;
};

/// A kernel has several tiles, and the runtime tells it which to take: by rows of the run.
struct TileChoice {
  ExprRef rows;
  int64_t columns;
  std::vector<runtime::Tile> tiles;
  std::string what;  // the product and its tiles, alike in all files
};

struct KernelLaunch {
  std::string kernel;  // its name, unless a kernel with the same text has one: "norm__f16_h768"
  Stub stub;
  LaunchSize size;
  ExprRef flops = nullptr;
  std::vector<PackedWeight> packed = {};
  std::vector<MatrixView> maps = {};
  std::vector<std::string> parts = {};   // what was fused into it, said beside the op
  F32Products f32 = F32Products::exact;  // how it multiplies f32
  ExprRef of_states =
      nullptr;  // bytes of its states that it reads and writes, if not all of their buffers
  ExprRef of_constants = nullptr;        // the same of its constants
  ExprRef makes = nullptr;               // the size that it writes for the launches after it
  std::optional<Scratch> scratch = {};   // Stub::scratch()
  uint32_t counters = 0;                 // so many of Stub::counters()
  std::optional<TileChoice> tiles = {};  // Stub::tiles_by_rows()
};

/// D = alpha A B + bias by the target's library.
struct LibraryLaunch {
  ValueId a, b, d;
  std::optional<ValueId> bias;
  ExprRef m, n, k, batch, stride_a, stride_b;
  bool trans_a, trans_b, in_order, side_by_side;
  double alpha;
};

/// A size that launches at the caps of a bucket must not find smaller than that of any run below
/// them.
struct Growth {
  ExprRef size;
  std::string what;  // "the number of rows of product 'x'"
};

/// What was chosen and why, for `tfcc inspect --why`, and where that is decided.
struct Reason {
  std::string text;
  const char* file = "";
  int line = 0;
};

/// The launches of one op, in order.
struct Emission {
  std::vector<std::variant<KernelLaunch, LibraryLaunch>> launches;
  std::vector<Growth> grows;
  std::string no_buckets;  // why the plan has no buckets of shapes; empty: it may
  std::optional<Reason> reason;

  static Emission of(KernelLaunch launch) {
    Emission e;
    e.launches.emplace_back(std::move(launch));
    return e;
  }
};

/// One emitter per op, of its name. Errors: unsupported.
#define TFCC_OP(name, attrs, summary) Result<Emission> emit_##name(const EmitContext& c, OpId o);
#include "ir/ops.def"
#undef TFCC_OP

/// The launch of a stub of template pointwise, each element of whose result is what body says, a
/// free expression over the indices of `like`, which the result is as. A scalar is a row of one.
KernelLaunch pointwise_launch(const EmitContext& c, std::string name, Stub stub, ValueId like,
                              ExprRef body);
/// What copies v to an output in memory of the caller.
KernelLaunch copy_of(const EmitContext& c, ValueId v);

/// CUDA: whether an attention over pages, or a step of a linear one, may have another form in a
/// bucket of few tokens (decode_blocks).
bool decodes_few_tokens(const Graph& graph, OpId op);
/// Of so many tokens at most several blocks may share the keys of a sequence.
inline constexpr int64_t kFewestTokens = 2;
/// How many do in a bucket of at most `most_tokens` tokens, by an attention that decodes them; 0:
/// any number of tokens, which it does not. 1 for a step of a linear attention, which has a tile of
/// its own there.
int64_t decode_blocks(const Graph& graph, OpId op, const TargetClass& target, int64_t most_tokens);
/// CUDA: the lengths of sequences up to which an attention has a tile or a form of its own, rising.
std::vector<int64_t> attention_lengths(const Graph& graph, OpId op, const TargetClass& target);

/// The emitter of the op's kind. A constant, and what its readers read in place, has no launch.
Result<Emission> emit(const EmitContext& context, OpId op);

/// Whether and how a kernel of a rope normalises heads: `units` threads of a row's `of_row` have one.
void add_head_norm(Stub& stub, const ir::RopeAttrs& attrs, int64_t units, int64_t of_row);

}  // namespace tfcc::codegen

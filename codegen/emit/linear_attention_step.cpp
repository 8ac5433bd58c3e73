// SPDX-License-Identifier: Apache-2.0
// linear_attention_step: q, k and v are read in place where they are slices of a wider product. And
// a linear_attention with a state or a beta, whose sequences are those of a batch.
// templates/*/linear_attention_step.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "codegen/emit/emit.h"
#include "codegen/emit/linear_functors.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kLargestHead = 512;
constexpr int64_t kSharedFloats = 4096;  // of a block of CUDA, for the tokens on their way

struct StepTile {
  int64_t columns = 0, tokens = 1;  // channels of v of a block; CUDA: tokens at a time
  int64_t
      parts = 1,
      rows = 4,
      together =
          1;  // CUDA: threads that hold rows of the state together, rows that each holds, tokens of one sum over parts
  uint32_t threads = 0, shared_bytes = 0;
  int resident = 1;    // blocks that share a multiprocessor
  bool ahead = false;  // CUDA: as many blocks as there are at a time, the next state on its way
  int64_t places = 2;  // with ahead: for states, those on their way and the one in use
  int64_t least = 0, most = std::numeric_limits<int32_t>::max();  // CUDA: tokens of its sequences
};

bool is_step(const ir::Op& op) { return op.kind == ir::OpKind::linear_attention_step; }
/// The operand with the sums before, if there is one.
std::optional<size_t> sums_of(const ir::Op& op) {
  if (is_step(op)) return 6;
  return op.as<ir::LinearAttentionAttrs>().state ? std::optional<size_t>(3) : std::nullopt;
}
/// Where any number of tokens may come, sequences with so many or fewer have a launch of their own.
constexpr int64_t kFewTokens = 4;

// As LinearStepShape counts them. What counts where sequences have a token each is how much of
// their states is on its way at a time: registers of as many threads as there are. A prompt's
// tokens follow each other, in few rows of many small blocks and several at once, so that one does
// not wait for the sum of the other. Neither changes a bit.
StepTile choose_step(const EmitContext& c, int64_t d, int64_t dv, int64_t group, int64_t bytes,
                     const ir::LinearAttentionAttrs& attrs, bool few) {
  const bool normalises = ir::normalises(attrs);
  if (!c.cuda()) return {std::min<int64_t>(64, dv)};
  StepTile tile;
  while (tile.parts * 4 < d && tile.parts < 32) tile.parts *= 2;
  const int64_t width = (d + 4 * tile.parts - 1) / (4 * tile.parts) * 4 * tile.parts;
  const bool wide = width > 4 * tile.parts;
  tile.rows = few && !wide ? 8 : 4;
  tile.together = few || wide || group > 1 || attrs.beta ? 1 : 4;
  tile.columns = std::min(
      (dv + tile.rows - 1) / tile.rows * tile.rows,
      tile.rows * std::max<int64_t>(2, (few && c.target.has_wgmma ? 128 : 64) / tile.parts));
  tile.threads = static_cast<uint32_t>((tile.columns / tile.rows * tile.parts + 31) / 32 * 32);
  const int64_t elements = width * (1 + group) + tile.columns,
                floats = elements + 4 + group * (tile.columns + 4);
  const auto fits = [&] {
    return tile.tokens * floats <= kSharedFloats &&
           tile.tokens * elements * bytes <= 160 * tile.threads;
  };
  for (tile.tokens = few ? 4 : 16; tile.tokens > tile.together && !fits();) tile.tokens /= 2;
  const int64_t seen = 4 * tile.tokens * (4 + group * (tile.columns + 4)),
                row = ((d * (1 + group) + tile.columns) * bytes + 15) / 16 * 16,
                ahead = seen +
                        tile.places * (4 * d * (tile.columns + normalises) + tile.tokens * row + 8);
  tile.ahead = few && d % 4 == 0 && c.target.processors > 0 && ahead <= c.target.shared_bytes;
  tile.shared_bytes = static_cast<uint32_t>(tile.ahead ? ahead : 4 * tile.tokens * floats);
  const bool softens = attrs.softmax && !tile.ahead;  // rows in shared memory, all at once
  const int64_t resident_threads = bytes == 4 || softens ? 256
                                   : few                 ? (normalises ? 448 : 512)
                                         : 384;  // 255, 144, 128 or 168 registers each
  tile.resident = static_cast<int>(
      std::max<int64_t>(1, resident_threads * 4 * tile.parts / width / tile.threads));
  return tile;
}

// q, k and v: tensors of their own, or slices of one that are read in place.
struct StepRows {
  std::vector<RowSlice> parts;
  std::vector<ValueId> reads;  // by the kernel, but for the state
  bool aligned;                // rows begin at multiples of 16 bytes
};

StepRows step_rows(const EmitContext& c, const ir::Op& op, int64_t d, int64_t dv) {
  const auto bytes = static_cast<int64_t>(size_of(c.type(op.operands[0]).dtype));
  std::vector<RowSlice> parts;
  bool aligned = d * bytes % 16 == 0 && dv * bytes % 16 == 0;
  std::vector<ValueId> reads;
  const auto read = [&](ValueId v) {
    if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
  };
  for (size_t i = 0; i < 3; ++i) {
    const ValueId v = op.operands[i];
    parts.push_back(row_slice(c.graph, v).value_or(RowSlice{v, 0, *c.known(c.dims(v)[2])}));
    read(parts.back().base);
    aligned &= !c.callers.has(parts.back().base) && parts.back().offset * bytes % 16 == 0 &&
               parts.back().stride * bytes % 16 == 0;
  }
  for (size_t i = 3; i < op.operands.size(); ++i) {
    if (!is_step(op) || i != sums_of(op)) read(op.operands[i]);  // a step's are written
  }
  return {std::move(parts), std::move(reads), aligned};
}

// Whether it asks for its first states before the launches before it have ended. They were there
// before the run, and so was what says which rows and slots a sequence has: no launch of the run
// writes either, but this one what it leaves, in slots that it does not read. The run begins with a
// launch that writes sizes and addresses and lets nothing begin before it has ended; what makes the
// queries stands between. Of all else it is told the address before its wait, which is known then
// where the caller does not choose it.
bool begins_early(const EmitContext& c, const ir::Op& op, const StepRows& x, const StepTile& tile) {
  const auto given = [&](ValueId v) { return c.callers.has(v) && !c.graph.def(v); };
  const auto callers = [&](ValueId v) { return c.callers.has(v); };
  const auto first = op.operands.begin();
  return is_step(op) && tile.ahead && c.target.has_wgmma && c.graph.def(*first) &&
         !c.graph.is_constant(*first) && std::all_of(first + 3, first + 7, given) &&
         !callers(op.results[0]) && std::none_of(first + 7, op.operands.end(), callers) &&
         std::none_of(x.parts.begin(), x.parts.end(),
                      [&](const RowSlice& part) { return callers(part.base); });
}

// What the template is told of the op and of its tile.
void add_step_spec(Stub& stub, const EmitContext& c, const ir::Op& op, const StepRows& x,
                   const StepTile& tile, int64_t d, int64_t dv) {
  const auto& attrs = op.as<ir::LinearAttentionAttrs>();
  stub.type("T", c.type(op.operands[0]).dtype);
  stub.type("Out", c.type(op.results[0]).dtype);
  for (const auto& [name, value] : {std::pair{"heads", attrs.heads},
                                    {"kv_heads", attrs.kv_heads},
                                    {"head_dim", d},
                                    {"v_dim", dv},
                                    {"q_stride", x.parts[0].stride},
                                    {"k_stride", x.parts[1].stride},
                                    {"v_stride", x.parts[2].stride},
                                    {"out_stride", dv * attrs.heads},
                                    {"columns", tile.columns}}) {
    stub.field(name, value);
  }
  stub.field("decays", attrs.decay != nullptr);
  stub.field("delta", attrs.beta != nullptr);
  stub.field("normalises", ir::normalises(attrs));
  stub.field("q_softmax", attrs.q_softmax());
  stub.field("k_softmax", attrs.k_softmax());
  if (c.cuda()) {
    // States of a generator are; what a caller gives or takes may not be.
    const auto sums = sums_of(op);
    stub.field("sums_aligned",
               is_step(op) || !sums ||
                   (!c.callers.has(op.operands[*sums]) && !c.callers.has(op.results[1])));
    stub.field("aligned", x.aligned);
    stub.field("parts", tile.parts);
    stub.field("rows", tile.rows);
    stub.field("together", tile.together);
    stub.field("tokens", tile.tokens);
    stub.field("ahead", tile.ahead);
    stub.field("places", tile.places);
    stub.field("early", begins_early(c, op, x, tile));
    stub.field("least", tile.least);
    stub.field("most", tile.most);
    stub.require(
        fmt::format(
            "LinearStepShape<Spec>::threads == {} && LinearStepShape<Spec>::shared_bytes == {}",
            tile.threads, tile.shared_bytes),
        "the plan has other sizes");
  }
}

// Rows and slots of sequences, and their sums.
std::string tables_of(Stub& stub, const EmitContext& c, const ir::Op& op) {
  std::vector<std::string> parts;
  std::vector<ExprRef> sizes;
  if (is_step(op)) {
    parts.push_back(stub.out(1));
    for (size_t i : {3, 4, 5}) parts.push_back(stub.in(op.operands[i]));
    if (c.cuda()) sizes.push_back(c.dims(op.operands[4])[0]);
    sizes.push_back(c.dims(op.operands[6])[0]);
  } else {
    const auto sums = sums_of(op);
    parts = {sums ? stub.in(op.operands[*sums]) : "nullptr", sums ? stub.out(1) : "nullptr"};
    if (c.cuda()) sizes.push_back(c.dims(op.operands[0])[0]);
    sizes.push_back(c.dims(op.operands[0])[1]);
  }
  for (ExprRef n : sizes) parts.push_back(fmt::format("(idx)({})", stub.size(n)));
  const char* type = !is_step(op) ? "BatchStates" : c.cuda() ? "StepTables" : "SlotStates";
  return fmt::format("{}{{{}}}", type, fmt::join(parts, ", "));
}

// The template's arguments. On CUDA the tables are made by functors, one of them for before the wait.
void call_step(Stub& stub, const EmitContext& c, const ir::Op& op, const StepRows& x,
               const StepTile& tile) {
  std::string tables = tables_of(stub, c, op);
  std::vector<std::string> arguments{stub.out(0)};
  for (const RowSlice& part : x.parts) arguments.push_back(stub.in(part.base, part.offset));
  if (c.cuda()) {
    arguments.push_back(fmt::format("[&] {{ return {}; }}", tables));
    const bool early = begins_early(c, op, x, tile);
    if (early) {
      stub.waits_itself(), stub.reads_early();
      tables = tables_of(stub, c, op);  // as they are read then
    }
    arguments.push_back(early ? fmt::format("[&, n = FreshSizes{{n}}] {{ return {}; }}", tables)
                              : "0");
  } else {
    arguments.push_back(std::move(tables));
  }
  const std::vector<std::string> functors =
      linear_functors(stub, op.as<ir::LinearAttentionAttrs>());
  for (size_t i : {0, 1, 3, 5, 4}) arguments.push_back(functors[i]);
  stub.call(std::move(arguments), {});
}

KernelLaunch launch_of(const EmitContext& c, OpId o, const StepTile& tile, int64_t d, int64_t dv) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::LinearAttentionAttrs>();
  const StepRows x = step_rows(c, op, d, dv);
  Stub stub(c, "linear_attention_step", op.operands, x.reads, op.results);
  add_step_spec(stub, c, op, x, tile, d, dv);
  call_step(stub, c, op, x, tile);
  if (c.cuda()) stub.resident(tile.resident);

  const ir::Type& q = c.type(op.operands[0]);
  ExprRef sequences = is_step(op) ? c.dims(op.operands[4])[0] : q.dims[0],
          rows = ir::mul(q.dims[0], q.dims[1]);
  LaunchSize size;
  size.threads = tile.threads;
  size.shared_bytes = tile.shared_bytes;
  ExprRef blocks = c.integer((dv + tile.columns - 1) / tile.columns),
          kv_heads = c.integer(attrs.kv_heads);
  ExprRef listed =
      tile.least ? ir::min(sequences, ir::div(rows, c.integer(tile.least))) : sequences;
  size.grid = {blocks, kv_heads, listed};
  size.work = ir::mul(ir::mul(listed, kv_heads), blocks);
  if (tile.ahead) {
    size.grid = {size.work};
    size.resident = static_cast<uint32_t>(tile.resident);
  }
  KernelLaunch launch{fmt::format("linear_attention_step__{}_d{}", c.storage(op.operands[0]), d),
                      std::move(stub), std::move(size),
                      ir::mul(rows, c.integer((attrs.beta ? 6 : 4) * attrs.heads * d * dv))};
  if (is_step(op))
    launch.of_states =
        ir::mul(sequences, c.integer(2 * 4 * attrs.kv_heads * (dv + ir::normalises(attrs)) * d));
  return launch;
}

}  // namespace

// Beside prompts, sequences with few tokens have a launch of their own, which waits for states alone.
Result<Emission> emit_linear_attention_step(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::LinearAttentionAttrs>();
  const auto of_query = ir::linear_attention_extents(c.graph, op, "q_map"),
             of_result = ir::linear_attention_extents(c.graph, op, "epilogue");
  const int64_t d = *c.known(of_query[ir::kElement]), dv = *c.known(of_result[ir::kElement]),
                group = attrs.heads / attrs.kv_heads;
  if (d > kLargestHead)
    return c.unsupported(o, fmt::format("heads of {} are over {}", d, kLargestHead));
  const auto bytes = static_cast<int64_t>(size_of(c.type(op.operands[0]).dtype));
  const auto chosen = [&](bool few) { return choose_step(c, d, dv, group, bytes, attrs, few); };
  const bool few_tokens = is_step(op) && c.bucket.most_tokens > 0;
  StepTile tile = chosen(few_tokens), of_few = chosen(true);
  if (c.cuda() && tile.shared_bytes > c.target.shared_bytes)
    return c.unsupported(o,
                         fmt::format("{} heads of {} share a key, which are too many", group, d));
  if (!c.cuda() || !is_step(op) || few_tokens || !of_few.ahead)
    return Emission::of(launch_of(c, o, tile, d, dv));
  of_few.most = kFewTokens, tile.least = kFewTokens + 1;
  Emission emission = Emission::of(launch_of(c, o, of_few, d, dv));
  KernelLaunch of_prompts = launch_of(c, o, tile, d, dv);
  of_prompts.of_states = c.integer(0);  // the first launch counts them
  emission.launches.emplace_back(std::move(of_prompts));
  return emission;
}

}  // namespace tfcc::codegen

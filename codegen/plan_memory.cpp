// SPDX-License-Identifier: Apache-2.0
// Memory at compile time: buffers whose lifetimes do not overlap share a slot. Sizes are expressions, so a slot is as large
// as the largest of its buffers, whatever the run's shapes; which buffers share is decided once, at a representative shape.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/lowering.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

// Batch 16, everything else 128, within the range of the symbol.
int64_t representative(ExprPool& pool, std::string_view name, size_t position) {
  const ir::SymbolRange r = pool.range(name);
  const int64_t wanted = position == 0 ? 16 : 128;
  return std::clamp(wanted, r.min, r.max.value_or(INT64_MAX));
}

}  // namespace

void Lowering::plan_memory() {
  std::map<std::string, int64_t, std::less<>> shape;
  for (size_t i = 0; i < symbols_.size(); ++i) shape[symbols_[i]] = representative(pool(), symbols_[i], i);
  auto value = [&](ExprRef e) { return ir::eval_size(e, [&](std::string_view s) { return shape.find(s)->second; }); };

  struct Slot {
    ExprRef bytes;
    int busy_until;
  };
  std::vector<Slot> slots;
  const int launches = static_cast<int>(out_.plan.buckets[0].launches.size());
  std::vector<std::vector<uint32_t>> starting(launches);
  for (uint32_t b = 0; b < out_.plan.buffers.size(); ++b) {
    if (out_.plan.buffers[b].place == runtime::BufferClass::arena && lifetime_[b].first >= 0) starting[lifetime_[b].first].push_back(b);
  }
  for (int t = 0; t < launches; ++t) {
    for (uint32_t b : starting[t]) {
      // The free slot that fits with least waste, else the one that has to grow least, else a new one.
      const int64_t size = value(bytes_[b]);
      int best = -1;
      int64_t best_cost = INT64_MAX;
      for (size_t s = 0; s < slots.size(); ++s) {
        if (slots[s].busy_until >= t) continue;
        const int64_t have = value(slots[s].bytes);
        const int64_t cost = have >= size ? have - size : size - have + (int64_t{1} << 50);
        if (cost < best_cost) best = static_cast<int>(s), best_cost = cost;
      }
      if (best < 0) {
        best = static_cast<int>(slots.size());
        slots.push_back({bytes_[b], -1});
      }
      slots[best].bytes = ir::max(slots[best].bytes, bytes_[b]);
      slots[best].busy_until = lifetime_[b].second;
      runtime::Buffer& buffer = out_.plan.buffers[b];
      buffer.index = static_cast<uint32_t>(best);
      buffer.first_use = static_cast<uint32_t>(lifetime_[b].first);
      buffer.last_use = static_cast<uint32_t>(lifetime_[b].second);
    }
  }
  for (const Slot& s : slots) out_.plan.slots.push_back(encode(s.bytes));

  // The launch with the most live bytes at the representative shape names the expression of the peak.
  ExprRef peak = integer(0);
  int64_t peak_value = -1;
  for (int t = 0; t < launches; ++t) {
    ExprRef live = integer(0);
    for (uint32_t b = 0; b < out_.plan.buffers.size(); ++b) {
      const bool alive = out_.plan.buffers[b].place == runtime::BufferClass::arena && lifetime_[b].first <= t && t <= lifetime_[b].second;
      if (alive) live = ir::add(live, bytes_[b]);
    }
    if (value(live) > peak_value) peak = live, peak_value = value(live);
  }
  out_.plan.live_bytes = encode(peak);
}

// CUDA kernels index with 32 bits, and a grid has limits: sizes beyond them are refused before a launch.
void Lowering::add_limits() {
  if (!cuda()) return;
  std::vector<ExprRef> counts;
  auto add = [&](ExprRef e) {
    for (ExprRef have : counts) {
      if (ir::prove_le(e, have)) return;
    }
    std::erase_if(counts, [&](ExprRef have) { return ir::prove_le(have, e); });
    if (!ir::as_int(e)) counts.push_back(e);
  };
  for (OpId o : graph.order()) {
    if (graph.op(o).kind == OpKind::constant) continue;
    for (ValueId v : graph.op(o).results) add(count(v));
  }
  for (ValueId v : graph.inputs()) add(count(v));
  for (ExprRef e : counts) {
    runtime::Check c;
    c.value = encode(ir::sub(integer(INT32_MAX), e));
    c.message = fmt::format("{} elements are more than the 2147483647 that the CUDA kernels can index; use a smaller batch", ir::print(e));
    out_.plan.limits.push_back(std::move(c));
  }
  for (OpId o : graph.order()) {
    if (graph.op(o).kind != OpKind::attention) continue;
    ExprRef batch = dims(graph.op(o).operands[0])[0];
    if (ir::prove_le(batch, integer(65535))) continue;
    runtime::Check c;
    c.value = encode(ir::sub(integer(65535), batch));
    c.message = fmt::format("{} must be at most 65535 on a GPU", ir::print(batch));
    out_.plan.limits.push_back(std::move(c));
    break;
  }
}

// The kernel that writes sizes and the caller's pointers into the device block.
void Lowering::add_bind() {
  const size_t values = symbols_.size() + graph.inputs().size() + graph.outputs.size();
  std::string text = fmt::format(
      "// bind of graph {1}\n#include \"cuda/bind.cuh\"\nstruct BlockValues {{ i64 v[{0}]; }};\n"
      "extern \"C\" __global__ void tfcc_bind(const __grid_constant__ BlockValues values, i64* block) {{ bind<{0}>(values.v, block); }}\n",
      values, graph.name);
  out_.plan.has_bind = true;
  out_.plan.bind = static_cast<uint32_t>(out_.plan.kernels.size());
  out_.kernels.push_back({"tfcc_bind", text});
  out_.plan.kernels.push_back({"tfcc_bind", "bind", 128, 0});
}

}  // namespace tfcc::codegen

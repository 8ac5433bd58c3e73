// SPDX-License-Identifier: Apache-2.0
// Memory at compile time: where each buffer of the arena lies. Sizes are expressions, so an offset is one too: the largest
// end of the buffers that live at the same time and were put below. What lies below what is decided once, at a usual shape.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "codegen/lowering.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

// What the user named, else batch 16 and everything else 128, within the range of the symbol.
int64_t representative(ExprPool& pool, const LowerOptions& options, const std::string& name, SizeRole role) {
  const ir::SymbolRange r = pool.range(name);
  const auto named = options.sizes.find(name);
  int64_t wanted = role == SizeRole::batch ? 16 : 128;
  if (named != options.sizes.end() && named->second.typical > 0) wanted = named->second.typical;
  return std::clamp(wanted, r.min, r.max.value_or(INT64_MAX));
}

using Bytes = std::array<int64_t, 3>;   // at each of the shapes that a layout is judged by
constexpr int64_t kAlignment = 256;
constexpr size_t kLongestOffset = 200;  // codes of a program; beyond, buffers get slots of their own

struct Item {
  uint32_t buffer;
  int first, last;             // launches
  Bytes bytes;                 // rounded up
  ExprRef size;                // the same as an expression
};

bool meet(const Item& a, const Item& b) { return a.first <= b.last && b.first <= a.last; }

// For each item those that lie below it in memory and live at the same time. An item begins where the last of them ends,
// whatever their sizes are: what lies below what is chosen at one shape and holds at all.
using Below = std::vector<std::vector<size_t>>;

// One item after the other at the lowest place where it fits at the usual shape.
Below place(const std::vector<Item>& items, const std::vector<size_t>& order) {
  Below below(items.size());
  std::vector<int64_t> at(items.size(), -1);
  for (size_t x : order) {
    std::vector<size_t> others;                    // placed, alive with x, from low to high
    for (size_t y = 0; y < items.size(); ++y) {
      if (at[y] >= 0 && meet(items[x], items[y])) others.push_back(y);
    }
    std::sort(others.begin(), others.end(), [&](size_t a, size_t b) { return at[a] < at[b]; });
    int64_t offset = 0;
    for (size_t y : others) {
      if (at[y] - offset >= items[x].bytes[0] && at[y] > offset) break;
      offset = std::max(offset, at[y] + items[y].bytes[0]);
    }
    at[x] = offset;
    for (size_t y : others) {
      if (at[y] < offset) below[x].push_back(y);
      else below[y].push_back(x);
    }
  }
  return below;
}

// Items so that those below come first.
std::vector<size_t> upwards(const Below& below) {
  std::vector<size_t> order;
  std::vector<bool> done(below.size());
  std::function<void(size_t)> visit = [&](size_t x) {
    if (done[x]) return;
    done[x] = true;
    for (size_t y : below[x]) visit(y);
    order.push_back(x);
  };
  for (size_t x = 0; x < below.size(); ++x) visit(x);
  return order;
}

// Bytes of the whole at its worst shape, in terms of what is alive at once.
double worst_ratio(const std::vector<Item>& items, const Below& below, const Bytes& live) {
  double worst = 0;
  const std::vector<size_t> order = upwards(below);
  for (size_t shape = 0; shape < live.size(); ++shape) {
    std::vector<int64_t> end(items.size());
    int64_t total = 0;
    for (size_t x : order) {
      int64_t offset = 0;
      for (size_t y : below[x]) offset = std::max(offset, end[y]);
      end[x] = offset + items[x].bytes[shape];
      total = std::max(total, end[x]);
    }
    worst = std::max(worst, static_cast<double>(total) / static_cast<double>(std::max<int64_t>(live[shape], 1)));
  }
  return worst;
}

// In the order of launches, by size, by duration and by both: whichever needs least at its worst shape.
Below best_place(const std::vector<Item>& items, const Bytes& live) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Below best = place(items, order);
  double least = worst_ratio(items, best, live);
  auto try_by = [&](auto key) {
    std::vector<size_t> sorted = order;
    std::stable_sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) { return key(items[a]) > key(items[b]); });
    Below other = place(items, sorted);
    const double ratio = worst_ratio(items, other, live);
    if (ratio < least) best = std::move(other), least = ratio;
  };
  try_by([](const Item& i) { return i.bytes[0]; });
  try_by([](const Item& i) { return i.last - i.first; });
  try_by([](const Item& i) { return i.bytes[0] * (i.last - i.first + 1); });
  return best;
}

}  // namespace

// Shapes at which a packing is judged: the usual one, one row of it, and rows four times as long.
std::vector<std::map<std::string, int64_t, std::less<>>> Lowering::judged_shapes() const {
  std::vector<std::map<std::string, int64_t, std::less<>>> shapes(3);
  for (const ir::SizeSymbol& s : graph.symbols) {
    if (s.computed()) continue;                    // buffers say what it is computed from
    const bool rows = s.role == SizeRole::batch;
    const ir::SymbolRange r = pool().range(s.name);
    const int64_t usual = representative(pool(), options_, s.name, s.role);
    const int64_t most = r.max.value_or(INT64_MAX);
    shapes[0][s.name] = usual;
    shapes[1][s.name] = rows ? std::min(std::max<int64_t>(r.min, 1), most) : usual;
    shapes[2][s.name] = rows ? usual : std::min(4 * usual, most);
  }
  const ir::SizeSymbol *batch = graph.size_with(SizeRole::batch), *tokens = graph.size_with(SizeRole::tokens);
  const int64_t most = tokens ? pool().range(tokens->name).max.value_or(0) : 0;
  for (auto& shape : shapes) {
    if (!batch || !tokens || !tokens->computed() || most == 0) break;
    const int64_t each = ir::eval_size(tokens->formula, [&](std::string_view n) { return n == batch->name ? 1 : shape.find(n)->second; });
    int64_t& rows = shape[batch->name];
    rows = std::clamp<int64_t>(most / std::max<int64_t>(each, 1), 1, rows);
  }
  return shapes;
}

void Lowering::plan_memory() {
  ExprPool& pool = sizes_.pool();            // of restated sizes: an offset must hold at the caps of a bucket too
  const auto shapes = judged_shapes();
  std::vector<Item> items;
  for (uint32_t b = 0; b < out_.plan.buffers.size(); ++b) {
    runtime::Buffer& buffer = out_.plan.buffers[b];
    if (buffer.place != runtime::BufferClass::arena || lifetime_[b].first < 0) continue;
    ExprRef size = sizes_.restate(bytes_[b]);
    grows(size, "buffer '" + buffer.name + "'");
    size = ir::mul(ir::div(ir::add(size, pool.integer(kAlignment - 1)), pool.integer(kAlignment)), pool.integer(kAlignment));
    items.push_back({b, lifetime_[b].first, lifetime_[b].second, {}, size});
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int64_t bytes = ir::eval_size(bytes_[b], [&](std::string_view s) { return shapes[i].find(s)->second; });
      items.back().bytes[i] = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    buffer.first_use = static_cast<uint32_t>(lifetime_[b].first);
    buffer.last_use = static_cast<uint32_t>(lifetime_[b].second);
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.first < b.first; });

  // The launch with the most live bytes at the usual shape names the expression of the peak.
  Bytes live{};
  int peak = 0;
  for (int t = 0; t < static_cast<int>(out_.plan.buckets.back().launches.size()); ++t) {
    Bytes now{};
    for (const Item& it : items) {
      for (size_t i = 0; i < now.size() && it.first <= t && t <= it.last; ++i) now[i] += it.bytes[i];
    }
    if (now[0] > live[0]) peak = t;
    for (size_t i = 0; i < now.size(); ++i) live[i] = std::max(live[i], now[i]);
  }
  ExprRef live_bytes = integer(0);
  for (const Item& it : items) {
    if (it.first <= peak && peak <= it.last) live_bytes = ir::add(live_bytes, bytes_[it.buffer]);
  }
  out_.plan.live_bytes = encode(live_bytes);
  if (items.empty()) return;

  const Below below = best_place(items, live);
  std::vector<ExprRef> end(items.size());
  ExprRef total = pool.integer(0);
  for (size_t x : upwards(below)) {
    ExprRef offset = pool.integer(0);
    for (size_t y : below[x]) offset = ir::max(offset, end[y]);
    runtime::SizeExpr program = sizes_.restated_program(offset);
    ExprRef grown = ir::max(total, ir::add(offset, items[x].size));
    // Sizes that compare in no way make programs that are long, or deeper than the runtime's stack.
    if (program.code.size() > kLongestOffset || !program.valid(symbols_.size()) || !sizes_.restated_program(grown).valid(symbols_.size())) {
      end[x] = pool.integer(0);
      out_.plan.buffers[items[x].buffer].index = static_cast<uint32_t>(out_.plan.slots.size() + 1);
      out_.plan.slots.push_back(encode(items[x].size));
      continue;
    }
    out_.plan.buffers[items[x].buffer].index = 0;
    out_.plan.buffers[items[x].buffer].offset = std::move(program);
    grows(offset, "the place of buffer '" + out_.plan.buffers[items[x].buffer].name + "'");
    end[x] = ir::add(offset, items[x].size);
    total = grown;
  }
  out_.plan.slots.insert(out_.plan.slots.begin(), encode(total));
}

// Whether the promise about tokens alone keeps a count within 32 bits.
bool Lowering::fits_by_tokens(ExprRef count) const {
  const ir::SizeSymbol* tokens = graph.size_with(SizeRole::tokens);
  const bool told = tokens && !Sizes::factors(*tokens).empty();  // so that the runtime holds a run to it
  const int64_t most = told ? pool().range(tokens->name).max.value_or(0) : 0;
  if (most == 0) return false;
  const auto each = ir::exact_div(count, tokens->formula);
  const auto number = each ? ir::as_int(*each) : std::nullopt;
  return number && *number <= INT32_MAX / most;
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
    if (fits_by_tokens(e)) continue;
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

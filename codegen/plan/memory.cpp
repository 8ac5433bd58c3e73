// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/memory.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

using ir::ExprPool;
using ir::ExprRef;
using Bytes = std::array<
    int64_t, std::tuple_size_v<JudgedShapes>>;  // at each of the shapes that a layout is judged by
constexpr int64_t kAlignment = 256;

struct Item {
  size_t buffer;
  int first, last;  // launches
  Bytes bytes;      // rounded up
};

bool meet(const Item& a, const Item& b) { return a.first <= b.last && b.first <= a.last; }

// For each item those that lie below it in memory and live at the same time. An item begins where
// the last of them ends, whatever their sizes are: what lies below what is chosen at one shape and
// holds at all.
using Below = std::vector<std::vector<size_t>>;

// One item after the other at the lowest place where it fits at the usual shape.
Below place(const std::vector<Item>& items, const std::vector<size_t>& order) {
  Below below(items.size());
  std::vector<int64_t> at(items.size(), -1);
  for (size_t x : order) {
    std::vector<size_t> others;  // placed, alive with x, from low to high
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
    worst = std::max(
        worst, static_cast<double>(total) / static_cast<double>(std::max<int64_t>(live[shape], 1)));
  }
  return worst;
}

// In the order of launches, by size, by duration and by both: whichever needs least at its worst
// shape.
Below best_place(const std::vector<Item>& items, const Bytes& live) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Below best = place(items, order);
  double least = worst_ratio(items, best, live);
  auto try_by = [&](auto key) {
    std::vector<size_t> sorted = order;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](size_t a, size_t b) { return key(items[a]) > key(items[b]); });
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

ExprRef aligned_bytes(ExprPool& pool, ExprRef bytes) {
  ExprRef alignment = pool.integer(kAlignment);
  return ir::mul(ir::div(ir::add(bytes, pool.integer(kAlignment - 1)), alignment), alignment);
}

namespace {

std::vector<Item> items_of(const std::vector<ArenaBuffer>& buffers, const JudgedShapes& shapes) {
  std::vector<Item> items;
  for (size_t b = 0; b < buffers.size(); ++b) {
    Item item{b, buffers[b].first, buffers[b].last, {}};
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int64_t bytes = ir::eval_size(
          buffers[b].bytes, [&](std::string_view s) { return shapes[i].find(s)->second; });
      item.bytes[i] = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    items.push_back(item);
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.first < b.first; });
  return items;
}

// The most bytes that are alive at once at each shape, and the launch with the most at the usual
// one.
struct Peak {
  Bytes live{};
  int launch = 0;
};

Peak peak_of(const std::vector<Item>& items) {
  Peak peak;
  int last = -1;
  for (const Item& it : items) last = std::max(last, it.last);
  for (int t = 0; t <= last; ++t) {
    Bytes now{};
    for (const Item& it : items) {
      for (size_t i = 0; i < now.size() && it.first <= t && t <= it.last; ++i)
        now[i] += it.bytes[i];
    }
    if (now[0] > peak.live[0]) peak.launch = t;
    for (size_t i = 0; i < now.size(); ++i) peak.live[i] = std::max(peak.live[i], now[i]);
  }
  return peak;
}

}  // namespace

ArenaLayout plan_memory(const std::vector<ArenaBuffer>& buffers, const JudgedShapes& shapes,
                        ExprPool& graph_pool, ExprPool& pool,
                        const std::function<bool(ExprRef, ExprRef)>& short_enough) {
  const std::vector<Item> items = items_of(buffers, shapes);
  const Peak peak = peak_of(items);
  ArenaLayout layout{std::vector<ExprRef>(buffers.size()), pool.integer(0), graph_pool.integer(0)};
  for (const Item& it : items) {  // its launch names the expression of the peak
    if (it.first <= peak.launch && peak.launch <= it.last)
      layout.live_bytes = ir::add(layout.live_bytes, buffers[it.buffer].bytes);
  }
  if (items.empty()) return layout;
  const Below below = best_place(items, peak.live);
  std::vector<ExprRef> end(items.size());
  for (size_t x : upwards(below)) {
    const ArenaBuffer& buffer = buffers[items[x].buffer];
    ExprRef offset = pool.integer(0);
    for (size_t y : below[x]) offset = ir::max(offset, end[y]);
    end[x] = ir::add(offset, aligned_bytes(pool, buffer.restated));
    ExprRef total = ir::max(layout.total, end[x]);
    if (short_enough(offset, total)) {
      layout.offsets[items[x].buffer] = offset;
      layout.total = total;
    } else {
      end[x] = pool.integer(0);
    }
  }
  return layout;
}

}  // namespace tfcc::codegen

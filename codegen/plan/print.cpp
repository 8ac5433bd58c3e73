// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/print.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tfcc::codegen {
namespace {

std::string print(const std::vector<runtime::SizeExpr>& sizes) {
  std::vector<std::string> texts;
  for (const runtime::SizeExpr& s : sizes) texts.push_back(s.print());
  return fmt::format("[{}]", fmt::join(texts, ","));
}

std::string print(size_t number, const runtime::Buffer& b) {
  static constexpr const char* kPlaces[] = {"input", "output", "arena", "constant", "state"};
  std::string s = fmt::format("buffer {}: {} {} {}{}", number, kPlaces[static_cast<int>(b.place)],
                              b.name, tfcc::to_string(b.dtype), print(b.dims));
  if (b.place != runtime::BufferClass::arena) return s + fmt::format(", number {}\n", b.index);
  return s + fmt::format(" at {} in slot {}, launches {} to {}\n",
                         b.offset.code.empty() ? "0" : b.offset.print(), b.index, b.first_use,
                         b.last_use);
}

std::string print(const runtime::Plan& plan, const runtime::KernelLaunch& k) {
  std::string s = fmt::format("{}({})", plan.kernels[k.kernel].name, fmt::join(k.args, ", "));
  for (const runtime::TensorMap& m : k.maps) {
    s += fmt::format(" map of {} [{},{}] in boxes of {} x {}", m.buffer, m.rows.print(),
                     m.columns.print(), m.box_rows, m.box_columns);
  }
  if (k.tiles) s += fmt::format(" tiles by {} of {}", k.tiles->rows.print(), k.tiles->what);
  if (k.resident != 0)
    return s + fmt::format(" grid {}, at most {} a multiprocessor", print(k.grid), k.resident);
  return s + (plan.family == Family::cuda ? " grid " + print(k.grid)
                                          : fmt::format(" work {} by {}", k.work.print(), k.grain));
}

std::string print(const runtime::MatmulLaunch& g) {
  std::string s = fmt::format("{} = {} {} {}{}", g.d, g.alpha, g.a, g.trans_a ? "^T " : "", g.b);
  if (g.trans_b) s += "^T";
  if (g.has_bias) s += fmt::format(" + {}", g.bias);
  if (g.in_order) s += " in order";
  if (g.tf32) s += " in tf32";
  if (g.side_by_side) s += " side by side";
  return s + fmt::format(" of m = {}, n = {}, k = {}, {} times, strides {} and {}", g.m.print(),
                         g.n.print(), g.k.print(), g.batch.print(), g.stride_a.print(),
                         g.stride_b.print());
}

}  // namespace

std::string print(const runtime::Plan& plan) {
  std::string s = fmt::format("plan {} {}\n", plan.name, plan.precision);
  for (size_t i = 0; i < plan.buffers.size(); ++i) s += print(i, plan.buffers[i]);
  for (size_t i = 0; i < plan.slots.size(); ++i)
    s += fmt::format("slot {}: {} bytes\n", i, plan.slots[i].print());
  s += fmt::format("live: {} bytes\n", plan.live_bytes.print());
  if (plan.counters) s += fmt::format("counters: {}\n", plan.counters);
  for (const runtime::Check& c : plan.limits) s += fmt::format("limit: {}\n", c.message);
  for (const runtime::Kernel& k : plan.kernels) {
    s += fmt::format("kernel {} of {}", k.name, k.op);
    if (k.threads)
      s += fmt::format(", {} threads, {} bytes shared{}", k.threads, k.shared_bytes,
                       k.starts_early ? ", starts early" : "");
    if (k.cluster > 1) s += fmt::format(", clusters of {}", k.cluster);
    s += "\n";
  }
  for (const runtime::Bucket& b : plan.buckets) {
    s += fmt::format("bucket {}:", b.name);
    for (const runtime::Check& c : b.limits) s += " " + c.message + ";";
    s += "\n";
    for (const runtime::Launch& l : b.launches) {
      s += fmt::format("  {} = {}: {}{}\n", l.name, fmt::join(l.ops, "+"),
                       l.kernel ? print(plan, *l.kernel) : print(*l.matmul),
                       l.makes ? fmt::format(" makes size {}", l.makes - 1) : "");
    }
  }
  if (!plan.no_bucket_table.empty())
    s += fmt::format("no buckets of shapes: {}\n", plan.no_bucket_table);
  return s;
}

}  // namespace tfcc::codegen

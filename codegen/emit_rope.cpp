// SPDX-License-Identifier: Apache-2.0
// rope: x is read in place where it is a slice of a wider product. templates/cuda/rope.cuh, templates/cpu/rope.h.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/lowering.h"

namespace tfcc::codegen {

Result<void> emit_rope(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::RopeAttrs>();
  const ValueId x = op.operands[0], cos = op.operands[1], sin = op.operands[2], y = op.results[0];
  const int64_t width = l.known(l.dims(x)[2]).value_or(0), dim = width / attrs.heads, half = attrs.rotary / 2;
  Lowering::RowSlice part{x, 0, width};
  if (auto slice = l.row_slice(x)) part = *slice;
  std::vector<ValueId> reads{part.base};
  for (ValueId v : {cos, sin}) {
    if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
  }
  l.begin(o, reads, {y});
  int64_t vec = l.any_io() ? 1 : 16 / static_cast<int64_t>(size_of(l.type(x).dtype));
  while (half % vec != 0 || dim % vec != 0 || part.stride % vec != 0 || part.offset % vec != 0) vec /= 2;
  ExprRef rows = l.rows(y), tables = ir::is_int(l.dims(cos)[0], 1) ? l.dims(cos)[1] : rows;
  std::string text = l.include("rope");
  text += fmt::format("struct Spec {{ using T = {}; using Table = {}; static constexpr int heads = {}, dim = {}, rotary = {}, x_stride = {}, vec = {};\n"
                      "  static constexpr bool interleaved = {}, wide = {}; }};\n",
                      l.storage(x), l.storage(cos), attrs.heads, dim, attrs.rotary, part.stride, vec, attrs.interleaved,
                      ir::is_int(l.dims(cos)[2], attrs.rotary));
  const std::string from = part.offset ? fmt::format("{} + {}", l.pointer(0), part.offset) : l.pointer(0);
  text += l.header(256) + fmt::format("rope<Spec>({}, {}, {}, {}, {}{});\n}}\n", l.pointer(reads.size()), from, l.pointer(l.arg_of(cos)), l.pointer(l.arg_of(sin)),
                                      l.cuda() ? l.size(rows) + ", " : "", l.size(tables) + (l.cuda() ? "" : ", begin, end"));
  LaunchSize s;
  s.grid = {l.ceil_div(ir::mul(rows, l.integer(attrs.heads * (half + dim - attrs.rotary) / vec)), 256)};
  s.work = rows;
  s.grain = 4;
  l.launch(fmt::format("rope__{}_d{}{}", l.storage(x), dim, attrs.interleaved ? "_pairs" : ""), "rope", text, s, ir::mul(l.count(y), l.integer(3)));
  return {};
}

}  // namespace tfcc::codegen

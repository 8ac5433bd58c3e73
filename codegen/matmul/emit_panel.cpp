// SPDX-License-Identifier: Apache-2.0
// Products by a weight on the CPU (templates/cpu/matmul_panel.h): the weight is packed by its recipe, so that the file holds it
// once and in the layout that is read, and the epilogue is applied before a result leaves the cache.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kBlockRows = 128;    // as in the template
constexpr int64_t kItemFlops = 4 << 20;  // what makes a work item worth a thread

// [n / panel, k, panel]
uint32_t packed_weight(Lowering& l, ValueId v, int64_t n, int64_t k, int64_t panel, bool transposed) {
  return l.weight_in_layout(v, fmt::format("panel{}{}", panel, transposed ? "t" : ""), [&](ir::Constant& c) {
    using Kind = ir::ConstantStep::Kind;
    const std::vector<int64_t> split = transposed ? std::vector<int64_t>{n / panel, panel, k} : std::vector<int64_t>{k, n / panel, panel};
    c.steps.push_back({Kind::reshape, split, {}});
    c.steps.push_back({Kind::transpose, transposed ? std::vector<int64_t>{0, 2, 1} : std::vector<int64_t>{1, 0, 2}, {}});
  });
}

}  // namespace

Result<void> emit_matmul_panel(Lowering& l, OpId o, const MatmulDesc& x, const MatmulConfig& config) {
  const ir::Op& op = l.graph.op(o);
  const ValueId a = op.operands[0], y = op.results[0];
  const int64_t n = *l.known(x.n), k = *l.known(x.k), panel = config.panel;
  std::vector<ValueId> reads{a};
  for (size_t i = 2; i < op.operands.size(); ++i) {
    if (std::find(reads.begin(), reads.end(), op.operands[i]) == reads.end()) reads.push_back(op.operands[i]);
  }
  l.begin(o, reads, {y});
  std::string text = l.include("matmul_panel");
  text += fmt::format("struct Spec {{ static constexpr int n = {}, k = {}, panel = {}; }};\n", n, k, panel);
  text += epilogue_functor(l, x);
  text += l.header(0) + fmt::format("matmul_panel<Spec>({}, {}, (const f32*)a[{}], {}, {}, begin, end);\n}}\n", l.pointer(reads.size()), l.pointer(0),
                                    reads.size() + 1, l.size(x.m), l.functor_value("Epilogue"));
  LaunchSize s;
  s.work = ir::mul(l.ceil_div(x.m, kBlockRows), l.integer(n / panel));
  s.grain = static_cast<uint32_t>(std::max<int64_t>(1, kItemFlops / (2 * kBlockRows * panel * k)));
  l.launch(fmt::format("matmul_panel__f32_{}x{}", k, n), "matmul_panel", text, s, ir::mul(l.integer(2 * n * k), x.m),
           {packed_weight(l, op.operands[1], n, k, panel, x.trans_b)}, fused_parts(x));
  return {};
}

}  // namespace tfcc::codegen

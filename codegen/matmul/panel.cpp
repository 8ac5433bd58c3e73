// SPDX-License-Identifier: Apache-2.0
// Products by a weight on the CPU (templates/cpu/matmul_panel.h): the weight is packed by its
// recipe, so that the file holds it once and in the layout that is read, and the epilogue is
// applied before a result leaves the cache.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kBlockRows = 128;      // as in the template
constexpr int64_t kItemFlops = 4 << 20;  // what makes a work item worth a thread

}  // namespace

PackedWeight codes_in_panels(ValueId v, int64_t n, int64_t k, int64_t panel) {
  return {v, fmt::format("codes{}", panel), [=](ir::Constant& c) {
            using Kind = ir::ConstantStep::Kind;
            c.steps.push_back({Kind::reshape, {n / panel, panel, k}, {}});
            c.steps.push_back({Kind::transpose, {0, 2, 1}, {}});
          }};
}

PackedWeight weight_in_panels(ValueId v, int64_t n, int64_t k, int64_t panel, bool transposed) {
  return {v, fmt::format("panel{}{}", panel, transposed ? "t" : ""), [=](ir::Constant& c) {
            using Kind = ir::ConstantStep::Kind;
            const std::vector<int64_t> split = transposed
                                                   ? std::vector<int64_t>{n / panel, panel, k}
                                                   : std::vector<int64_t>{k, n / panel, panel};
            c.steps.push_back({Kind::reshape, split, {}});
            c.steps.push_back(
                {Kind::transpose,
                 transposed ? std::vector<int64_t>{0, 2, 1} : std::vector<int64_t>{1, 0, 2},
                 {}});
          }};
}

PackedWeight packed_panels(ValueId weight, const MatmulDesc& x, const MatmulConfig& config) {
  return weight_in_panels(weight, *ir::as_int(x.n), *ir::as_int(x.k), config.panel, x.trans_b);
}

Result<Emission> emit_matmul_panel(const EmitContext& c, OpId o, const MatmulDesc& x,
                                   const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0];
  const int64_t n = *c.known(x.n), k = *c.known(x.k), panel = config.panel;
  std::vector<ValueId> reads = beside_operands(op);
  std::erase(reads, a);
  if (x.packed) std::erase(reads, op.operands[x.packed->slot]);
  if (x.narrow) std::erase(reads, op.operands[x.narrow->slot]);
  reads.insert(reads.begin(), a);
  Stub stub = product_stub(c, o, "matmul_panel", std::move(reads));
  add_epilogue(stub, x, x.body);
  stub.field("n", n);
  stub.field("k", k);
  stub.field("panel", panel);
  if (x.packed) add_weight(stub, *x.packed);
  const DType stored = x.narrow ? x.narrow->stored : DType::f32;
  if (!x.packed) stub.type("B", stored);
  const std::string weight =
      x.packed ? fmt::format("PackedPanels<Spec, Weight>{{{}, {}}}", stub.packed("Spec::Code", 0),
                             stub.object("Weight"))
               : fmt::format("StoredPanels<Spec>{{{}}}", stub.packed("Spec::B", 0));
  stub.call({stub.out(), stub.in(a), weight, stub.size(x.m), stub.object("Epilogue")}, {});
  LaunchSize size;
  size.work = ir::mul(c.ceil_div(x.m, kBlockRows), c.integer(n / panel));
  size.grain =
      static_cast<uint32_t>(std::max<int64_t>(1, kItemFlops / (2 * kBlockRows * panel * k)));
  return Emission::of(
      {fmt::format("matmul_panel__{}_{}x{}",
                   x.packed ? fmt::format("w{}", 8 / x.packed->per) : tfcc::to_string(stored), k,
                   n),
       std::move(stub),
       std::move(size),
       ir::mul(c.integer(2 * n * k), x.m),
       {x.packed ? codes_in_panels(op.operands[x.packed->slot], n, k / x.packed->per, panel)
                 : packed_panels(op.operands[x.narrow ? x.narrow->slot : 1], x, config)},
       {},
       fused_parts(x)});
}

}  // namespace tfcc::codegen

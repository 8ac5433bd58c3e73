// SPDX-License-Identifier: Apache-2.0
// matmul: a library product, the one launch that is no kernel of ours. A weight shared by the whole batch makes the batch more
// rows of one product; other leading dims become strides (legalise has expanded what does not fit).
#include "codegen/lowering.h"

namespace tfcc::codegen {

void Lowering::gemm(OpId o) {
  const ir::Op& op = graph.op(o);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const ValueId a = op.operands[0], b = op.operands[1], d = op.results[0];
  auto batch_of = [&](ValueId v) {
    const auto& x = dims(v);
    return ir::element_count(pool(), std::vector<ExprRef>(x.begin(), x.end() - 2));
  };
  ExprRef m = dims(d)[dims(d).size() - 2], n = dims(d).back();
  ExprRef k = dims(a)[dims(a).size() - (attrs.trans_a ? 2 : 1)];
  ExprRef batch = batch_of(d), batch_a = batch_of(a), batch_b = batch_of(b);
  ExprRef stride_a = ir::is_int(batch_a, 1) ? integer(0) : ir::mul(m, k);
  ExprRef stride_b = ir::is_int(batch_b, 1) ? integer(0) : ir::mul(k, n);
  if (ir::is_int(batch_b, 1) && !attrs.trans_a) {  // one weight for all: the batch is more rows
    m = ir::mul(batch, m);
    batch = integer(1);
    stride_a = integer(0);
  }
  runtime::GemmLaunch g;
  g.a = buffer_of(a);
  g.b = buffer_of(b);
  g.d = buffer_of(d);
  std::vector<uint32_t> reads{g.a, g.b};
  if (op.operands.size() > 2) {
    g.has_bias = true;
    g.bias = buffer_of(op.operands[2]);
    reads.push_back(g.bias);
  }
  g.m = encode(m);
  g.n = encode(n);
  g.k = encode(k);
  g.batch = encode(batch);
  g.stride_a = encode(stride_a);
  g.stride_b = encode(stride_b);
  g.trans_a = attrs.trans_a;
  g.trans_b = attrs.trans_b;
  g.alpha = static_cast<float>(attrs.alpha);
  runtime::Launch launch;
  launch.name = graph.value(d).name;
  launch.ops = {"matmul"};
  launch.gemm = std::move(g);
  launch.flops = encode(ir::mul(ir::mul(integer(2), batch), ir::mul(ir::mul(m, n), k)));
  ExprRef bytes = integer(0);
  for (uint32_t r : reads) bytes = ir::add(bytes, bytes_[r]);
  launch.bytes = encode(ir::add(bytes, bytes_[buffer_of(d)]));
  add_launch(std::move(launch), reads, {buffer_of(d)});
}

}  // namespace tfcc::codegen

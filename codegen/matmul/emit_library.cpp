// SPDX-License-Identifier: Apache-2.0
// Products by the target's library: the one launch that is no kernel of ours.
#include <fmt/format.h>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

// What a product is for k = 0, where the runtime leaves the library's launch out: zeros, or the bias. A launch of no work for any
// other k.
void sum_over_nothing(Lowering& l, OpId o, const MatmulDesc& x) {
  const ir::Op& op = l.graph.op(o);
  const ValueId y = op.results[0];
  const Scalar type = ir::scalar_of(x.d);
  const bool has_bias = x.epilogue == Epilogue::bias;
  const auto at = ir::indices_of(l.pool(), l.dims(y));
  ExprRef value = has_bias ? l.pool().load(2, type, {at.back()}) : l.pool().real(0, type);
  l.begin(o, has_bias ? std::vector<ValueId>{op.operands[2]} : std::vector<ValueId>{}, {y});
  std::string parameters;
  for (size_t i = 0; i < at.size(); ++i) parameters += fmt::format("{}idx i{}", i ? ", " : "", i);
  std::string text = l.include("pointwise");
  text += l.functor("Body", parameters, value, type, [](int64_t i) { return fmt::format("i{}", i); });
  text += fmt::format("struct Spec {{ using Out = {}; static constexpr int rank = {}, vec = 1; }};\n", l.storage(y), at.size());
  text += l.header(256) + fmt::format("pointwise<Spec>({}, {}, {}{});\n}}\n", l.pointer(has_bias ? 1 : 0), l.sizes(l.dims(y)), l.functor_value("Body"),
                                      l.cuda() ? "" : ", begin, end");
  ExprRef nothing = ir::max(l.integer(0), ir::sub(l.integer(1), x.k));
  LaunchSize s;
  s.grid = {ir::mul(l.ceil_div(l.count(y), 256), nothing)};
  s.work = ir::mul(l.rows(y), nothing);
  s.grain = 8;
  l.launch(fmt::format("sum_over_nothing__{}_r{}", l.storage(y), at.size()), "pointwise", text, s, ir::mul(l.count(y), nothing));
}

}  // namespace

void note_rows(Lowering& l, const std::string& name, const MatmulDesc& x) {
  for (ExprRef e : {x.n, x.k, x.batch, x.stride_a, x.stride_b}) {
    if (!l.known(e)) return l.no_buckets(fmt::format("product '{}' has a size other than its rows, {}, that depends on the shapes", name, ir::print(e)));
  }
  if (l.known(x.m)) return;
  if (x.trans_a || !ir::is_int(x.batch, 1)) return l.no_buckets(fmt::format("product '{}' has rows that do not lie one behind the other", name));
  l.grows(x.m, "the number of rows of product '" + name + "'");
}

Result<void> emit_matmul_library(Lowering& l, OpId o, const MatmulDesc& x) {
  const ir::Op& op = l.graph.op(o);
  const std::string& name = l.graph.value(op.results[0]).name;
  runtime::GemmLaunch g;
  g.a = l.buffer_of(op.operands[0]);
  g.b = l.buffer_of(op.operands[1]);
  g.d = l.buffer_of(op.results[0]);
  std::vector<uint32_t> reads{g.a, g.b};
  if (x.epilogue == Epilogue::bias) {
    g.has_bias = true;
    g.bias = l.buffer_of(op.operands[2]);
    reads.push_back(g.bias);
  }
  note_rows(l, name, x);
  g.m = l.encode(x.m);
  g.n = l.encode(x.n);
  g.k = l.encode(x.k);
  g.batch = l.encode(x.batch);
  g.stride_a = l.encode(x.stride_a);
  g.stride_b = l.encode(x.stride_b);
  g.trans_a = x.trans_a;
  g.trans_b = x.trans_b;
  g.alpha = static_cast<float>(x.alpha);
  runtime::Launch launch;
  launch.name = name;
  launch.ops = {"matmul"};
  const uint32_t d = g.d;
  launch.gemm = std::move(g);
  launch.flops = l.encode(ir::mul(ir::mul(l.integer(2), x.batch), ir::mul(ir::mul(x.m, x.n), x.k)));
  ExprRef bytes = l.integer(0);
  for (uint32_t r : reads) bytes = ir::add(bytes, l.bytes_of(r));
  launch.bytes = l.encode(ir::add(bytes, l.bytes_of(d)));
  l.add_launch(std::move(launch), reads, {d});
  if (!ir::prove_ge0(ir::sub(x.k, l.integer(1)))) sum_over_nothing(l, o, x);
  return {};
}

}  // namespace tfcc::codegen

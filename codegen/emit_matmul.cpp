// SPDX-License-Identifier: Apache-2.0
// matmul: of reals a library product, the one launch that is no kernel of ours. A weight shared by the whole batch makes the
// batch more rows of one product; other leading dims become strides (legalise has expanded what does not fit). Of integers a
// kernel (templates/*/matmul), which reads its operands by their own indices.
#include <fmt/format.h>

#include "codegen/lowering.h"

namespace tfcc::codegen {
namespace {

// Element (row, column) of operand v, whose leading dims broadcast to those of the result.
ExprRef element(Lowering& l, size_t slot, ValueId v, const std::vector<ExprRef>& at, ExprRef row, ExprRef column) {
  const auto& d = l.dims(v);
  std::vector<ExprRef> own;
  const size_t skip = at.size() - d.size();
  for (size_t k = 0; k + 2 < d.size(); ++k) own.push_back(ir::is_int(d[k], 1) ? l.integer(0) : at[skip + k]);
  own.push_back(row);
  own.push_back(column);
  return l.pool().load(static_cast<int64_t>(slot), Scalar::i64, own);
}

}  // namespace

Result<void> emit_matmul(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const size_t rank = l.dims(y).size();
  const auto at = ir::indices_of(l.pool(), l.dims(y));
  ExprRef inner = l.dims(a)[l.dims(a).size() - (attrs.trans_a ? 2 : 1)];
  ExprRef p = l.pool().index(static_cast<int64_t>(rank), inner);
  ExprRef i = at[rank - 2], j = at[rank - 1];
  l.begin(o, a == b ? std::vector<ValueId>{a} : std::vector<ValueId>{a, b}, {y});
  std::string parameters;
  for (size_t k = 0; k <= rank; ++k) parameters += fmt::format("{}idx i{}", k ? ", " : "", k);
  const auto index_name = [](int64_t k) { return fmt::format("i{}", k); };
  std::string text = l.include("matmul");
  text += l.functor("A", parameters, attrs.trans_a ? element(l, 0, a, at, p, i) : element(l, 0, a, at, i, p), Scalar::i64, index_name);
  text += l.functor("B", parameters, attrs.trans_b ? element(l, 1, b, at, j, p) : element(l, 1, b, at, p, j), Scalar::i64, index_name);
  text += fmt::format("struct Spec {{ using Out = {}; using Acc = {}; static constexpr int rank = {}; static constexpr bool ",
                      l.storage(y), size_of(l.type(y).dtype) == 4 ? "u32" : "u64", rank);
  text += l.cuda() ? fmt::format("a_across = {}, b_across = {}; }};\n", attrs.trans_a, !attrs.trans_b)
                   : fmt::format("across = {}; }};\n", !attrs.trans_b);
  text += l.header(256) + fmt::format("matmul<Spec>({}, {}, {}, {}, {}{});\n}}\n", l.pointer(a == b ? 1 : 2), l.sizes(l.dims(y)),
                                      l.size(inner), l.functor_value("A"), l.functor_value("B"), l.cuda() ? "" : ", begin, end");
  LaunchSize s;
  ExprRef matrices = ir::element_count(l.pool(), std::vector<ExprRef>(l.dims(y).begin(), l.dims(y).end() - 2));
  s.grid = {ir::mul(matrices, ir::mul(l.ceil_div(l.dims(y)[rank - 2], 64), l.ceil_div(l.dims(y)[rank - 1], 64)))};
  s.work = l.rows(y);
  s.grain = 4;
  l.launch(fmt::format("matmul__{}_{}_{}", l.storage(a), l.storage(b), l.storage(y)), "matmul", text, s,
           ir::mul(l.integer(2), ir::mul(l.count(y), inner)));
  return {};
}

// At the caps of a bucket a product computes more rows than a run has, from what lies behind the last; nobody reads them. That is so
// if more rows only append: no other size of the product depends on the shapes, and rows of A are not the columns of what is stored.
void Lowering::rows_append(const std::string& product, ExprRef m, const std::vector<ExprRef>& fixed, bool trans_a) {
  for (ExprRef e : fixed) {
    if (!known(e)) return no_buckets(fmt::format("product '{}' has a size other than its rows, {}, that depends on the shapes", product, ir::print(e)));
  }
  if (known(m)) return;
  if (trans_a || *known(fixed[2]) != 1) return no_buckets(fmt::format("product '{}' has rows that do not lie one behind the other", product));
  grows(m, "the number of rows of product '" + product + "'");
}

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
  rows_append(graph.value(d).name, m, {n, k, batch, stride_a, stride_b}, attrs.trans_a);
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
  if (!ir::prove_ge0(ir::sub(k, integer(1)))) sum_over_nothing(o, k);
}

// What a product is for k = 0, where the runtime leaves the library's launch out: zeros, or the bias. A launch of no work for any
// other k.
void Lowering::sum_over_nothing(OpId o, ExprRef k) {
  const ir::Op& op = graph.op(o);
  const ValueId y = op.results[0];
  const Scalar type = ir::scalar_of(graph.value(y).type.dtype);
  const bool has_bias = op.operands.size() > 2;
  const auto at = ir::indices_of(pool(), dims(y));
  ExprRef value = has_bias ? pool().load(2, type, {at.back()}) : pool().real(0, type);
  begin(o, has_bias ? std::vector<ValueId>{op.operands[2]} : std::vector<ValueId>{}, {y});
  std::string parameters;
  for (size_t i = 0; i < at.size(); ++i) parameters += fmt::format("{}idx i{}", i ? ", " : "", i);
  std::string text = include("pointwise");
  text += functor("Body", parameters, value, type, [](int64_t i) { return fmt::format("i{}", i); });
  text += fmt::format("struct Spec {{ using Out = {}; static constexpr int rank = {}, vec = 1; }};\n", storage(y), at.size());
  text += header(256) + fmt::format("pointwise<Spec>({}, {}, {}{});\n}}\n", pointer(has_bias ? 1 : 0), sizes(dims(y)), functor_value("Body"),
                                    cuda() ? "" : ", begin, end");
  ExprRef nothing = ir::max(integer(0), ir::sub(integer(1), k));
  LaunchSize s;
  s.grid = {ir::mul(ceil_div(count(y), 256), nothing)};
  s.work = ir::mul(rows(y), nothing);
  s.grain = 8;
  launch(fmt::format("sum_over_nothing__{}_r{}", storage(y), at.size()), "pointwise", text, s, ir::mul(count(y), nothing));
}

}  // namespace tfcc::codegen

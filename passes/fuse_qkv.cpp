// SPDX-License-Identifier: Apache-2.0
// fuse-qkv: the products that make q, k and v of one input become one product; q, k and v are
// slices of its result, which the attention kernels read in place.
//   before: %q = matmul(%x, @wq, @bq) {epilogue = (s,i,j,k) => s + @bq[k]}; %k = ..; %v = ..; %ctx = attention(%q, %k, %v)
//   after:  %qkv = matmul(%x, concat(1, @wq, @wk, @wv), @b) {epilogue = (s,i,j,k) => s + @b[k]}, @b = concat(0, @bq, @bk, @bv); %q = %qkv[i,j,k]; %k = %qkv[i,j,k+64]; ...
// Requires: weights are constants of rank 2, or computed from constants column by column
// (passes/sibling_products.h), the attributes agree, all or none have a bias, and every product is
// read by this attention alone, as q, k or v (or by the cache that it reads), or by the rotary
// embedding of q or k alone. Pieces of one product (GPT-2, BLOOM) are left as they are. Runs after:
// fuse-linear-bias.
#include "passes/passes.h"
#include "passes/sibling_products.h"

namespace tfcc::passes {
namespace {

// Are they pieces of one product already (GPT-2, BLOOM)?
bool are_pieces(const Graph& g, const std::vector<ValueId>& operands) {
  std::vector<ValueId> sources;
  for (ValueId v : operands) {
    const ir::Op* op = g.def(v);
    if (op && op->kind == OpKind::pointwise && op->operands.size() == 1)
      sources.push_back(op->operands[0]);
  }
  if (sources.size() != 3 || sources[0] != sources[1] || sources[1] != sources[2]) return false;
  const ir::Op* product = g.def(sources[0]);
  return product && product->kind == OpKind::matmul;
}

bool fuse(Graph& g, OpId o, PassReport& report) {
  auto miss = [&](const std::string& reason) {
    report.misses.push_back({label(g, o), reason});
    return false;
  };
  std::vector<ValueId> operands(g.op(o).operands.begin(), g.op(o).operands.begin() + 3);
  std::vector<OpId> readers(3, o);
  if (ir::is_state(g, operands[1]) &&
      g.value(operands[1]).def == g.value(operands[2]).def) {  // new keys and values go to a cache
    const OpId append = g.value(operands[1]).def;
    const ir::Op& op = g.op(append);
    if (op.kind == OpKind::rope_append &&
        g.value(operands[0]).def == append) {  // and q is rotated by the way
      readers[0] = append;
      operands[0] = op.operands[5];
    }
    readers[1] = readers[2] = append;
    operands[1] = op.operands[2];
    operands[2] = op.operands[3];
  }
  for (size_t i = 0; i < 3; ++i) {
    const ir::Op* op = g.def(operands[i]);
    if (!op || op->kind != OpKind::rope) continue;
    readers[i] = g.value(operands[i]).def;
    operands[i] = op->operands[0];
  }
  if (are_pieces(g, operands)) return false;
  if (operands[0] == operands[1] || operands[1] == operands[2] || operands[0] == operands[2])
    return miss("q, k and v are not three tensors");
  std::vector<OpId> products;
  std::string reason;
  for (size_t i = 0; i < 3; ++i) {
    auto p = joinable_product(g, operands[i], readers[i], "q, k or v", reason);
    if (!p) return miss(reason);
    if (!products.empty() && !are_siblings(g, products[0], *p))
      return miss("the products differ in input, bias or attributes");
    products.push_back(*p);
  }

  std::vector<ExprRef> starts;
  const std::string origin = g.op(products[0]).origin;
  const ValueId qkv = join_products(g, products, g.value(g.result(o)).name + ".qkv", starts);
  for (size_t i = 0; i < 3; ++i) {
    const ir::Type part = g.value(operands[i]).type;
    Indices at = ir::indices_of(g.pool(), part.dims);
    at.back() = ir::add(at.back(), starts[i]);
    ir::Captured c = ir::capture(ir::load_of(g, qkv, at));
    g.replace_uses(operands[i], g.add_pointwise(c.operands, c.body, part,
                                                g.value(operands[i]).name + ".slice", origin));
  }
  return true;
}

}  // namespace

PassReport fuse_qkv(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind == OpKind::attention || ir::is_linear(graph.op(o).kind))
      report.rewrites += fuse(graph, o, report);
  }
  return report;
}

}  // namespace tfcc::passes

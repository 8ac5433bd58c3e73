// SPDX-License-Identifier: Apache-2.0
// Products by a weight on the CPU: kernels of ours (templates/cpu/product.h), with the weight packed by its recipe, so that the
// file holds it once and in the layout that is read, and with a bias and a GELU applied before the result leaves the cache.
// Products of two activations, and weights whose columns do not fill a vector, stay with oneDNN.
#include <fmt/format.h>

#include "codegen/lowering.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kBlockRows = 128;    // as in the template
constexpr int64_t kItemFlops = 4 << 20;  // what makes a work item worth a thread

/// Columns of a panel: the most that divide n, 0 if none do.
int64_t panel_of(int64_t n) {
  for (int64_t panel : {64, 48, 32, 16}) {
    if (n % panel == 0) return panel;
  }
  return 0;
}

bool is_f32(const Lowering& l, ValueId v) { return l.type(v).dtype == DType::f32; }

bool is_unary_gelu(const ir::Op& op) { return op.kind == OpKind::gelu || op.kind == OpKind::bias_gelu; }

}  // namespace

bool Lowering::is_weight_product(OpId o) const {
  const ir::Op& op = graph.op(o);
  if (cuda() || op.kind != OpKind::matmul || op.as<ir::MatmulAttrs>().trans_a) return false;
  const ValueId a = op.operands[0], b = op.operands[1], d = op.results[0];
  for (ValueId v : op.operands) {
    if (!is_f32(*this, v)) return false;
  }
  auto n = known(dims(d).back()), k = known(dims(a).back());
  if (!is_f32(*this, d) || !graph.is_constant(b) || !n || !k || *k == 0 || panel_of(*n) == 0) return false;
  const bool same_rows = std::vector<ExprRef>(dims(a).begin(), dims(a).end() - 1) == std::vector<ExprRef>(dims(d).begin(), dims(d).end() - 1);
  return same_rows && ir::is_int(count(b), *n * *k);
}

std::optional<OpId> Lowering::product_before_gelu(OpId o) const {
  const ir::Op& op = graph.op(o);
  const ValueId x = op.operands[0];
  if (!is_unary_gelu(op) || !graph.def(x) || graph.is_output(x) || graph.use_count(x) != 1 || !is_f32(*this, op.results[0])) return std::nullopt;
  const OpId product = graph.value(x).def;
  if (!is_weight_product(product)) return std::nullopt;
  if (op.kind == OpKind::bias_gelu && (graph.op(product).operands.size() > 2 || !is_f32(*this, op.operands[1]))) return std::nullopt;
  return product;
}

bool Lowering::is_in_gelu(OpId product) const {
  const auto& users = graph.value(graph.op(product).results[0]).users;
  return users.size() == 1 && product_before_gelu(users[0]) == product;
}

uint32_t Lowering::packed_weight(ValueId v, int64_t n, int64_t k, int64_t panel, bool transposed) {
  auto it = packed_.find({v.value, transposed});
  if (it != packed_.end()) return it->second;
  ir::Constant c = *graph.constant(v);
  c.steps.push_back({ir::ConstantStep::Kind::reshape, transposed ? std::vector<int64_t>{n / panel, panel, k} : std::vector<int64_t>{k, n / panel, panel}, {}});
  c.steps.push_back({ir::ConstantStep::Kind::transpose, transposed ? std::vector<int64_t>{0, 2, 1} : std::vector<int64_t>{1, 0, 2}, {}});
  runtime::Buffer b;
  b.name = graph.value(v).name + ".packed";
  b.dtype = DType::f32;
  for (int64_t d : {n / panel, k, panel}) b.dims.push_back(encode(integer(d)));
  b.place = runtime::BufferClass::constant;
  b.index = weights_.add(b.name, c);
  packed_[{v.value, transposed}] = add_buffer(std::move(b), integer(4 * n * k));
  return packed_[{v.value, transposed}];
}

void Lowering::weight_product(OpId o, std::optional<OpId> gelu) {
  const ir::Op& op = graph.op(o);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const ValueId a = op.operands[0], d = gelu ? graph.op(*gelu).results[0] : op.results[0];
  const int64_t n = *known(dims(d).back()), k = *known(dims(a).back()), panel = panel_of(n);
  std::vector<ValueId> reads{a};
  if (op.operands.size() > 2) reads.push_back(op.operands[2]);
  if (gelu && graph.op(*gelu).operands.size() > 1) reads.push_back(graph.op(*gelu).operands[1]);
  begin(gelu.value_or(o), reads, {d});
  const size_t weight_arg = reads.size() + 1;

  std::string value = attrs.alpha == 1.0 ? "x" : fmt::format("x * {}", cpp_expr(pool().real(attrs.alpha, Scalar::f32), {}));
  if (reads.size() > 1) value += " + load(bias, j)";
  std::string text = include("product");
  if (gelu) {
    text = "#include \"cpu/gelu.h\"\n" + text;
    value = fmt::format("gelu_value<{}>({})", graph.op(*gelu).as<ir::GeluAttrs>().approx == ir::GeluKind::tanh, value);
  }
  text += fmt::format("struct Spec {{ static constexpr int n = {}, k = {}, panel = {}; }};\n", n, k, panel);
  text += fmt::format("struct Finish {{\n  const f32* bias;\n  TFCC_FN f32 operator()(f32 x, [[maybe_unused]] idx j) const {{ return {}; }}\n}};\n", value);
  text += header(0) + fmt::format("product<Spec>({}, {}, (const f32*)a[{}], {}, Finish{{{}}}, begin, end);\n}}\n", pointer(reads.size()), pointer(0), weight_arg,
                                  size(rows(d)), reads.size() > 1 ? pointer(1) : "nullptr");
  LaunchSize s;
  s.work = ir::mul(ceil_div(rows(d), kBlockRows), integer(n / panel));
  s.grain = static_cast<uint32_t>(std::max<int64_t>(1, kItemFlops / (2 * kBlockRows * panel * k)));
  const uint32_t weight = packed_weight(op.operands[1], n, k, panel, attrs.trans_b);
  launch(fmt::format("{}__f32_{}x{}", gelu ? "product_gelu" : "product", k, n), "product", text, s,
         ir::mul(integer(2 * n * k), rows(d)), {weight});
  auto& made = out_.plan.buckets.back().launches.back();
  made.ops = {"matmul"};
  ExprRef bytes = bytes_[weight];
  for (ValueId v : args_) bytes = ir::add(bytes, bytes_[buffer_of(v)]);
  made.bytes = encode(bytes);
  if (gelu) made.ops.push_back(std::string(ir::to_string(graph.op(*gelu).kind)));
}

}  // namespace tfcc::codegen

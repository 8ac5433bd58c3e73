// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {
namespace {

ExprRef matrices(const Graph& g, ValueId v) {
  const auto& d = g.value(v).type.dims;
  return ir::element_count(g.pool(), std::vector<ExprRef>(d.begin(), d.end() - 2));
}

// Does e use an index anywhere but in the indices of its loads?
bool computes_with_indices(ExprRef e) {
  if (e->kind == ir::ExprKind::load || !e->has_index) return false;
  if (e->kind == ir::ExprKind::index) return true;
  const auto in_term = [](const ir::Term& t) {
    return std::any_of(t.atoms.begin(), t.atoms.end(), computes_with_indices);
  };
  return std::any_of(e->args.begin(), e->args.end(), computes_with_indices) ||
         std::any_of(e->terms.begin(), e->terms.end(), in_term);
}

// An epilogue over rows and columns of [batch * m, n], or null if it reads anything but what stands
// beside the sum.
ExprRef beside(const Graph& g, const ir::Op& op, ExprRef epilogue, MatmulDesc& desc) {
  ir::ExprPool& pool = g.pool();
  const ir::Type& type = g.value(op.results[0]).type;
  const auto own = ir::indices_of(pool, type.dims);
  ExprRef rows = ir::mul(desc.batch, desc.m);
  ExprRef row = pool.index(0, rows), column = pool.index(1, desc.n);
  bool ok = !computes_with_indices(epilogue);
  ExprRef body = ir::rewrite(epilogue, [&](ExprRef n) -> ExprRef {
    if (n->kind != ir::ExprKind::load) return nullptr;
    const auto& [dtype, dims] = g.value(op.operands[static_cast<size_t>(n->value)]).type;
    std::vector<ExprRef> to, at;
    if (n->args == own && dims == type.dims) {
      desc.reads_matrix |= dtype == desc.a;
      to = {rows, desc.n};
      at = {row, column};
    } else if (n->args.size() == 1 && n->args[0] == own.back() && dims[0] == type.dims.back()) {
      to = {desc.n};
      at = {column};
    } else if (!is_float(desc.a) && n->args == std::vector<ExprRef>(own.begin(), own.end() - 1) &&
               dims == std::vector<ExprRef>(type.dims.begin(), type.dims.end() - 1)) {
      to = {rows};
      at = {row};
    } else if (std::none_of(n->args.begin(), n->args.end(),
                            [](ExprRef i) { return !ir::as_int(i); })) {
      to = dims;
      at = n->args;
    } else {
      ok = false;
      return nullptr;
    }
    auto& known = desc.operand_dims[static_cast<size_t>(n->value)];
    if (!known.empty() && known != to) ok = false;
    known = to;
    return pool.load(n->value, n->dtype, at);
  });
  return ok ? body : nullptr;
}

bool is_token_count(const Graph& g, ExprRef rows) {
  const ir::SizeSymbol* tokens = g.size_with(SizeRole::tokens);
  return tokens && rows == (tokens->computed() ? tokens->formula : g.pool().symbol(tokens->name));
}

// A check of the graph says that there are at most as many rows as tokens.
bool bounded_by_tokens(const Graph& g, ExprRef rows) {
  const ir::SizeSymbol* tokens = g.size_with(SizeRole::tokens);
  if (!tokens) return false;
  ExprRef bounded =
      ir::le(rows, tokens->computed() ? tokens->formula : g.pool().symbol(tokens->name));
  return std::any_of(g.checks.begin(), g.checks.end(),
                     [&](const ir::SizeCheck& c) { return c.condition == bounded; });
}

constexpr int64_t kMostRows = int64_t{1} << 40;

// The most of a known number, of tokens, or of what is at most as many.
std::optional<int64_t> largest_count(const Graph& g, ExprRef rows, int64_t most_tokens) {
  if (auto n = ir::as_int(rows)) return n;
  const ir::SizeSymbol* packed = g.size_with(SizeRole::packed);
  if (packed && rows == g.pool().symbol(packed->name)) rows = packed->bound;
  if (auto n = ir::as_int(rows)) return n;  // packed rows of a fixed shape
  if (!is_token_count(g, rows) && !bounded_by_tokens(g, rows)) return std::nullopt;
  const std::optional<int64_t> most = g.pool().range(g.size_with(SizeRole::tokens)->name).max;
  return most_tokens && most ? std::min(most_tokens, *most)
         : most_tokens       ? std::optional(most_tokens)
                             : most;
}

// What an op computes of its sums, `scaled` with its factor.
void describe_end(const Graph& g, const ir::Op& op, ExprRef sum, ExprRef scaled, MatmulDesc& x) {
  const auto& attrs = op.as<ir::MatmulAttrs>();
  ir::ExprPool& pool = g.pool();
  if (attrs.scaled) x.scaled = beside(g, op, attrs.scaled, x);
  if (attrs.gate) {
    x.epilogue = Epilogue::gate;
    ExprRef t = pool.param("t", sum->type);
    x.body = ir::with_sums(attrs.gate, scaled,
                           attrs.alpha == 1 ? t : ir::mul(t, pool.real(attrs.alpha, t->type)));
    return;
  }
  if (!attrs.epilogue) {
    x.body = scaled;
    return;
  }
  x.body = beside(g, op, attrs.epilogue, x);
  x.epilogue = x.body ? Epilogue::beside : Epilogue::other;
  if (x.body) x.body = ir::with_sum(x.body, scaled);
  if (const auto bias = ir::bias_of(g, op); bias && g.value(*bias).type.dtype == x.d)
    x.epilogue = Epilogue::bias;
}

}  // namespace

std::optional<int64_t> largest_rows(const Graph& g, ExprRef rows, int64_t most_tokens) {
  if (auto n = largest_count(g, rows, most_tokens)) return n;
  std::vector<ExprRef> sizes;
  for (const ir::SizeSymbol& s : g.symbols) {
    sizes.push_back(s.computed() ? s.formula : g.pool().symbol(s.name));
  }
  for (ExprRef size : sizes) {
    const auto quotient = ir::exact_div(rows, size);
    const int64_t each = quotient ? ir::as_int(*quotient).value_or(0) : 0;
    const auto n = each > 1 ? largest_count(g, size, most_tokens) : std::nullopt;
    if (n && *n <= kMostRows / each) return each * *n;
  }
  return std::nullopt;
}

MatmulDesc describe(const Graph& g, OpId product, int64_t most_tokens, const ProductRules& rules) {
  const ir::Op& op = g.op(product);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const ValueId a = op.operands[0], b = op.operands[1], d = op.results[0];
  const auto& da = g.value(a).type.dims;
  const auto& dd = g.value(d).type.dims;
  ir::ExprPool& pool = g.pool();
  MatmulDesc x;
  x.a = g.value(a).type.dtype;
  x.b = ir::second_factor(g, op).dtype;
  x.d = g.value(d).type.dtype;
  x.m = dd[dd.size() - 2];
  x.n = attrs.gate ? ir::mul(pool.integer(2), dd.back()) : dd.back();
  x.k = da[da.size() - (attrs.trans_a ? 2 : 1)];
  x.batch = matrices(g, d);
  x.stride_a = ir::is_int(matrices(g, a), 1) ? pool.integer(0) : ir::mul(x.m, x.k);
  x.stride_b = attrs.weight || ir::is_int(matrices(g, b), 1) ? pool.integer(0) : ir::mul(x.k, x.n);
  x.trans_a = attrs.trans_a;
  x.trans_b = attrs.trans_b;
  if (attrs.heads) {
    x.side_by_side = true;
    x.m = ir::mul(x.batch, x.m);
    x.batch = pool.integer(*attrs.heads);
    x.n = g.value(b).type.dims[1];
    x.k = x.stride_a = ir::div(x.k, x.batch);
    x.stride_b = ir::mul(x.k, x.n);
  }
  x.weight = g.is_constant(b);
  x.computed = attrs.weight;
  x.packed = packed_factor(g, op);
  x.narrow = narrow_factor(g, op);
  x.alpha = attrs.alpha;
  if (x.a == DType::f32 && x.b == DType::f32) x.f32 = rules.f32;
  x.in_order = !rules.any_order && ir::plain_outputs(g) < g.outputs.size();
  const bool same_rows = std::vector<ExprRef>(da.begin(), da.end() - 2) ==
                         std::vector<ExprRef>(dd.begin(), dd.end() - 2);
  if (!attrs.heads && ir::is_int(x.stride_b, 0) && !attrs.trans_a &&
      same_rows) {  // one weight for all: the batch is more rows
    x.m = ir::mul(x.batch, x.m);
    x.batch = pool.integer(1);
    x.stride_a = pool.integer(0);
  }
  x.most_rows = largest_rows(g, x.m, most_tokens);
  x.token_rows = is_token_count(g, x.m);
  const ir::SizeSymbol* packed = g.size_with(SizeRole::packed);
  x.made_rows = packed ? x.m == pool.symbol(packed->name) : x.token_rows && ir::is_ragged(g);
  ExprRef sum = ir::matmul_sum(pool, x.a, x.d),
          scaled = attrs.alpha == 1 ? sum : ir::mul(sum, pool.real(attrs.alpha, sum->type));
  x.norm = attrs.norm;
  x.operand_dims.assign(op.operands.size(), {});
  describe_end(g, op, sum, scaled, x);
  return x;
}

bool is_costly(const MatmulDesc& x) {
  bool costly = false;
  if (x.body) ir::for_each_node(x.body, [&](ExprRef e) { costly |= ir::is_costly(e); });
  return costly;
}

std::string print(const MatmulDesc& x) {
  const auto matrix = [](ExprRef rows, ExprRef columns, bool transposed) {
    return transposed ? fmt::format("[{},{}]^T", ir::print(columns), ir::print(rows))
                      : fmt::format("[{},{}]", ir::print(rows), ir::print(columns));
  };
  return fmt::format("{}{} {} x {}{} -> {}, epilogue {}{}{}{}",
                     ir::is_int(x.batch, 1) ? "" : ir::print(x.batch) + " of ",
                     tfcc::to_string(x.a), matrix(x.m, x.k, x.trans_a), matrix(x.k, x.n, x.trans_b),
                     x.packed ? fmt::format(" of a weight of {} bits", 8 / x.packed->per)
                     : x.narrow
                         ? fmt::format(" of a weight of {}", tfcc::to_string(x.narrow->stored))
                     : x.computed ? " of a computed weight"
                     : x.weight   ? " of a weight"
                                  : "",
                     tfcc::to_string(x.d), kEpilogueNames[static_cast<int>(x.epilogue)],
                     x.side_by_side ? ", heads side by side"
                     : x.norm       ? ", of normalised rows"
                                    : "",
                     x.scaled ? ", and moments of rows" : "",
                     x.made_rows  ? ", rows that the run counts"
                     : x.in_order ? ", sums in order"
                                  : "");
}

std::vector<std::string> fused_parts(const MatmulDesc& x) {
  std::vector<std::string> parts;
  if (x.epilogue == Epilogue::beside) parts.emplace_back("epilogue");
  if (x.epilogue == Epilogue::gate) parts.emplace_back("gate");
  if (x.norm) parts.emplace_back("norm");
  if (x.scaled) parts.emplace_back("moments");
  return parts;
}

void add_epilogue(Stub& stub, const MatmulDesc& desc, ExprRef body, const std::string& name,
                  const std::string& params) {
  const std::string sum = is_integer(desc.a)          ? "i64 s"
                          : body->type == Scalar::f64 ? "f64 s"
                                                      : "f32 s";
  stub.functor(
      name,
      (params.empty() ? sum : params) + ", [[maybe_unused]] idx row, [[maybe_unused]] idx column",
      body, body->type, [](int64_t k) { return std::string(k == 0 ? "row" : "column"); },
      [&](int64_t slot) { return desc.operand_dims[static_cast<size_t>(slot)]; });
}

std::vector<ValueId> beside_operands(const ir::Op& product) {
  std::vector<ValueId> values;
  for (size_t i = ir::first_loaded(product); i < product.operands.size(); ++i) {
    if (std::find(values.begin(), values.end(), product.operands[i]) == values.end())
      values.push_back(product.operands[i]);
  }
  return values;
}

Stub product_stub(const EmitContext& c, OpId product, const std::string& function,
                  std::vector<ValueId> reads) {
  const ir::Op& op = c.graph.op(product);
  return {c, function, op.operands, std::move(reads), op.results};
}

void note_rows(const EmitContext& c, const std::string& name, const MatmulDesc& x,
               Emission& emission) {
  for (ExprRef e : {x.n, x.k, x.batch, x.stride_a, x.stride_b}) {
    if (c.known(e)) continue;
    emission.no_buckets =
        fmt::format("product '{}' has a size other than its rows, {}, that depends on the shapes",
                    name, ir::print(e));
    return;
  }
  if (c.known(x.m)) return;
  if (x.trans_a || (!x.side_by_side && !ir::is_int(x.batch, 1)))
    emission.no_buckets =
        fmt::format("product '{}' has rows that do not lie one behind the other", name);
  else emission.grows.push_back({x.m, "the number of rows of product '" + name + "'"});
}

}  // namespace tfcc::codegen

// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/plan/sizes.h"
#include "ir/elements.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

using ir::ExprPool;
using ir::ExprRef;
using ir::Graph;

// Whether the promise about tokens alone keeps a count within 32 bits.
bool fits_by_tokens(const Graph& graph, ExprRef count) {
  const ir::SizeSymbol* tokens = graph.size_with(SizeRole::tokens);
  const bool told =
      tokens && !Sizes::factors(*tokens).empty();  // so that the runtime holds a run to it
  const int64_t most = told ? graph.pool().range(tokens->name).max.value_or(0) : 0;
  if (most == 0) return false;
  const auto each = ir::exact_div(count, tokens->formula);
  const auto number = each ? ir::as_int(*each) : std::nullopt;
  return number && *number <= INT32_MAX / most;
}

// Elements of inputs and results, without those that are never more than others. Caches, which may
// be larger, are indexed by pages.
std::vector<ExprRef> largest_counts(const Graph& graph) {
  std::vector<ExprRef> counts;
  const auto add = [&](ir::ValueId v) {
    ExprRef e = Sizes::at_bounds(graph, ir::element_count(graph.pool(), graph.value(v).type.dims));
    if (std::any_of(counts.begin(), counts.end(),
                    [&](ExprRef have) { return ir::prove_le(e, have); }))
      return;
    std::erase_if(counts, [&](ExprRef have) { return ir::prove_le(have, e); });
    if (!ir::as_int(e)) counts.push_back(e);
  };
  for (ir::OpId o : graph.order()) {
    if (graph.op(o).kind == ir::OpKind::constant) continue;
    for (ir::ValueId v : graph.op(o).results) {
      if (!ir::is_state(graph, v)) add(v);
    }
  }
  for (ir::ValueId v : graph.inputs()) {
    if (!ir::is_state_before(graph, v)) add(v);
  }
  return counts;
}

int64_t usual_size(const ExprPool& pool, const LowerOptions& options, const ir::SizeSymbol& s) {
  const ir::SymbolRange r = pool.range(s.name);
  const auto named = options.sizes.find(s.name);
  int64_t wanted = s.role == SizeRole::batch ? 16 : 128;
  if (named != options.sizes.end() && named->second.typical > 0) wanted = named->second.typical;
  return std::clamp(wanted, r.min, r.max.value_or(INT64_MAX));
}

}  // namespace

std::vector<SizeLimit> cuda_limits(const Graph& graph) {
  ExprPool& pool = graph.pool();
  std::vector<SizeLimit> limits;
  for (ExprRef e : largest_counts(graph)) {
    if (fits_by_tokens(graph, e)) continue;
    limits.push_back(
        {ir::sub(pool.integer(INT32_MAX), e),
         fmt::format(
             "{} elements are more than the 2147483647 that the CUDA kernels can index; use a smaller batch",
             ir::print(e))});
  }
  for (ir::OpId o : graph.order()) {
    const ir::Op& op = graph.op(o);
    ExprRef batch = op.kind == ir::OpKind::attention ? ir::attention_extents(graph, op)[ir::kBatch]
                    : op.kind == ir::OpKind::linear_attention_step
                        ? graph.value(op.operands[4]).type.dims[0]
                    : op.kind == ir::OpKind::linear_attention
                        ? ir::linear_attention_extents(graph, op, "q_map")[ir::kOfBatch]
                        : nullptr;
    ExprRef most = pool.integer(65535);
    if (!batch) continue;
    if (ir::prove_le(batch, most)) continue;
    limits.push_back(
        {ir::sub(most, batch), fmt::format("{} must be at most 65535 on a GPU", ir::print(batch))});
    break;
  }
  return limits;
}

JudgedShapes judged_shapes(const Graph& graph, const LowerOptions& options) {
  ExprPool& pool = graph.pool();
  JudgedShapes shapes;
  for (const ir::SizeSymbol& s : graph.symbols) {
    if (!s.read()) continue;  // buffers say what it is computed from, or bounded by
    const bool rows = s.role == SizeRole::batch;
    const ir::SymbolRange r = pool.range(s.name);
    const int64_t usual = usual_size(pool, options, s), most = r.max.value_or(INT64_MAX);
    shapes[0][s.name] = usual;
    shapes[1][s.name] = rows ? std::min(std::max<int64_t>(r.min, 1), most) : usual;
    shapes[2][s.name] = rows ? usual : std::min(4 * usual, most);
  }
  const ir::SizeSymbol *batch = graph.size_with(SizeRole::batch),
                       *tokens = graph.size_with(SizeRole::tokens);
  const int64_t most = tokens ? pool.range(tokens->name).max.value_or(0) : 0;
  for (auto& shape : shapes) {
    if (!batch || !tokens || !tokens->computed() || most == 0) break;
    const int64_t each = ir::eval_size(tokens->formula, [&](std::string_view n) {
      return n == batch->name ? 1 : shape.find(n)->second;
    });
    int64_t& rows = shape[batch->name];
    rows = std::clamp<int64_t>(most / std::max<int64_t>(each, 1), 1, rows);
  }
  return shapes;
}

}  // namespace tfcc::codegen

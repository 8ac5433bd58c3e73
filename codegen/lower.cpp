// SPDX-License-Identifier: Apache-2.0
// The walk from ops to launches: the forms of a graph, the buckets of each, an emission for every
// op.
#include "codegen/lower.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"
#include "codegen/fold_norm.h"
#include "codegen/legalise.h"
#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"
#include "codegen/plan/bucket_table.h"
#include "codegen/plan/builder.h"
#include "codegen/plan/limits.h"
#include "codegen/tied_tables.h"

namespace tfcc::codegen {
namespace {

// Every size can be a program, so that nothing after this needs to ask.
Result<void> check_sizes(const Graph& g) {
  auto check = [&](ExprRef e, const std::string& of) -> Result<void> {
    const std::string why = why_no_program(e);
    if (why.empty()) return {};
    return Error{
        ErrorCode::unsupported,
        fmt::format("a size of '{}' {}: it cannot be computed at run time; fix that dim at export",
                    of, why)};
  };
  for (OpId o : g.order()) {
    for (ValueId v : g.op(o).results) {
      for (ExprRef d : g.value(v).type.dims) TFCC_TRY_VOID(check(d, g.value(v).name));
    }
  }
  for (const ir::SizeCheck& c : g.checks) TFCC_TRY_VOID(check(c.condition, c.message));
  return {};
}

// A form of the graph, for runs of at most so many tokens (0: any number), where other arms execute
// products than elsewhere.
struct Form {
  Graph graph;
  int64_t most_tokens;
};

// How the products of a graph are executed.
std::vector<MatmulKernel> choices(const Graph& graph, const TargetClass& target,
                                  int64_t most_tokens, const ProductRules& rules) {
  std::vector<MatmulKernel> all;
  for (OpId o : graph.order()) {
    if (graph.op(o).kind == OpKind::grouped_matmul && target.cuda()) {
      MatmulKernel kernel;
      kernel.ordered = grouped_tiles(graph, o, target, most_tokens);
      all.push_back(kernel);
    }
    if (graph.op(o).kind != OpKind::matmul) continue;
    all.push_back(choose(describe(graph, o, most_tokens, rules), target));
  }
  return all;
}

// How its attentions are, where they have forms for few tokens.
std::vector<int64_t> attentions(const Graph& graph, const TargetClass& target,
                                int64_t most_tokens) {
  std::vector<int64_t> all;
  for (OpId o : graph.order()) {
    if (decodes_few_tokens(graph, o)) all.push_back(decode_blocks(graph, o, target, most_tokens));
  }
  return all;
}

constexpr int64_t kStreamedWeight = int64_t{4} << 20;

// Elements of the constants that its products multiply by.
std::vector<int64_t> weights_of(const Graph& graph) {
  std::vector<int64_t> sizes;
  for (OpId o : graph.order()) {
    if (graph.op(o).kind != OpKind::matmul || !graph.is_constant(graph.op(o).operands[1])) continue;
    ExprRef size = ir::element_count(graph.pool(), ir::second_factor(graph, graph.op(o)).dims);
    sizes.push_back(ir::as_int(size).value_or(0));
  }
  return sizes;
}

// Is a weight so large that reading it is what a product of few rows costs? Then a form whose weights
// stream is faster than one whose norms are parts of products: a step of a LLaMA with 22 layers of
// 2048 takes 1.27 ms on an H200 where it took 1.93. BERT-base, of 2.4 Mi at most, and BERT-large, of
// 4 Mi, are as fast by either.
bool streams(const Graph& graph) {
  const std::vector<int64_t> sizes = weights_of(graph);
  return std::any_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= kStreamedWeight; });
}

// Are most of its weights such? A form for few tokens, and one that has norms as launches of their
// own, are worth more then than equal bits in all forms.
bool is_mostly_large(const Graph& graph) {
  int64_t all = 0, large = 0;
  for (int64_t n : weights_of(graph)) {
    all += n;
    if (n > kStreamedWeight) large += n;
  }
  return 2 * large > all;
}

// Does it keep sums in order by the arm of that name, whose tiles change with the rows?
bool orders(const Graph& graph, const TargetClass& target, const ProductRules& rules) {
  return std::any_of(graph.order().begin(), graph.order().end(), [&](OpId o) {
    if (graph.op(o).kind != OpKind::matmul) return false;
    const MatmulDesc desc = describe(graph, o, 0, rules);
    return desc.in_order && choose(desc, target).arm == Arm::ordered;
  });
}

// Does a run count the rows of its products, as those without padding?
bool counts_rows(const Graph& graph) {
  return graph.size_with(SizeRole::packed) || ir::is_ragged(graph);
}

// The form for few tokens whose norms are parts of products, where those of more tokens cannot be.
Result<std::optional<Form>> folded_form(const Graph& graph, const TargetClass& target,
                                        const ProductRules& rules) {
  if (!graph.size_with(SizeRole::tokens)) return std::optional<Form>();
  Form form{graph, kFewRows};
  TFCC_TRY(const int norms, fold_norms(form.graph, target, form.most_tokens));
  if (norms == 0) return std::optional<Form>();
  legalise(form.graph, target, form.most_tokens, {false, rules.f32});
  return std::optional(std::move(form));
}

// A form for runs of at most each of these numbers of tokens, each made of the one before; equal
// ones are one.
std::vector<Form> split_forms(const Graph& graph, const TargetClass& target,
                              const std::vector<int64_t>& limits, const ProductRules& rules) {
  std::vector<Form> forms;
  for (int64_t limit : limits) {
    Graph form = forms.empty() ? graph : forms.back().graph;
    legalise(form, target, limit, rules);
    const bool same =
        !forms.empty() &&
        attentions(form, target, limit) == attentions(form, target, forms.back().most_tokens) &&
        choices(form, target, limit, rules) ==
            choices(forms.back().graph, target, forms.back().most_tokens, rules);
    if (!same) forms.push_back({std::move(form), limit});
    else if (limit == 0 || (forms.back().most_tokens != 0 && forms.back().most_tokens < limit))
      forms.back().most_tokens = limit;
  }
  return forms;
}

// Whether `other` launches what has this form's names.
bool has_launches_of(const Graph& other, const Graph& form) {
  return std::all_of(form.order().begin(), form.order().end(), [&](OpId o) {
    return form.op(o).kind == OpKind::constant ||
           other.find_value(form.value(form.result(o)).name).valid();
  });
}

// The forms share the values of a name, their buffers and the arena. Each is made of the one before
// it, by splitting more: the last does by most launches what the others do by fewer. Of rows that a
// run counts, norms are folded in all of them, so that a row has the same bits in each. Of others,
// and of large weights, they are in a form for few tokens that is made apart, and only where the last
// has its launches.
Result<std::vector<Form>> forms_of(const Graph& graph, const TargetClass& target,
                                   const ProductRules& rules) {
  const bool steps =
      target.cuda() && (orders(graph, target, rules) ||
                        std::any_of(graph.order().begin(), graph.order().end(),
                                    [&](OpId o) { return decodes_few_tokens(graph, o); }));
  std::vector<int64_t> limits = {0};
  if (target.has_wgmma && counts_rows(graph)) limits = {0, kSomeRows, kFewRows};
  else if (target.cuda() && graph.size_with(SizeRole::tokens) &&
           (target.has_wgmma || steps || rules.f32 == F32Products::tf32x3))
    limits = {kFewRows, 0};
  if (graph.size_with(SizeRole::tokens) && (steps || (target.has_wgmma && streams(graph))))
    limits.insert(limits.begin(), kStreamRows);
  if (graph.size_with(SizeRole::tokens) && steps) limits.insert(limits.begin(), kFewestTokens);
  Graph base = graph;
  if (!counts_rows(graph) || !is_mostly_large(graph)) TFCC_TRY_VOID(fold_norms(base, target, 0));
  TFCC_TRY(std::optional<Form> folded, folded_form(base, target, rules));
  std::vector<int64_t> others = limits;
  std::erase(others, kFewRows);
  if (folded) {
    std::vector<Form> forms = split_forms(base, target, others, rules);
    if (has_launches_of(forms.back().graph, folded->graph)) {
      const auto larger = std::find_if(forms.begin(), forms.end(), [&](const Form& f) {
        return f.most_tokens == 0 || f.most_tokens > folded->most_tokens;
      });
      forms.insert(larger, *std::move(folded));
      return forms;
    }
  }
  return split_forms(base, target, limits, rules);
}

// CUDA: the lengths up to which attention has a tile of its own, for the first whose queries are a
// size of the run; 0: any length.
struct Lengths {
  ExprRef size = nullptr;
  std::vector<int64_t> buckets = {0};
};

Lengths lengths_of(const Graph& graph, const TargetClass& target, const LowerOptions& options) {
  for (OpId o : graph.order()) {
    if (!target.cuda() || graph.op(o).kind != OpKind::attention) continue;
    ExprRef queries = ir::attention_extents(graph, graph.op(o))[ir::kQuery];
    if (queries->kind != ir::ExprKind::symbol) continue;
    const std::optional<int64_t> most = graph.pool().range(queries->name).max;
    std::vector<int64_t> buckets =
        options.lengths.empty() ? attention_lengths(graph, o, target) : options.lengths;
    std::erase_if(buckets, [&](int64_t n) { return most && n >= *most; });  // would never be used
    buckets.push_back(0);
    return {queries, std::move(buckets)};
  }
  return {};
}

runtime::Check at_most(PlanBuilder& plan, ExprPool& pool, ExprRef size, int64_t most) {
  return {plan.encode(ir::sub(pool.integer(most), size)), false,
          fmt::format("{} must be at most {}", ir::print(size), most)};
}

runtime::Bucket bucket_of(PlanBuilder& plan, const Graph& graph, const BucketLimits& limits) {
  runtime::Bucket bucket;
  bucket.name = limits.longest ? fmt::format("s{}", limits.longest) : "any";
  if (limits.most_tokens) {
    const ir::SizeSymbol& tokens = *graph.size_with(SizeRole::tokens);
    ExprRef size = tokens.computed() ? tokens.formula : graph.pool().symbol(tokens.name);
    bucket.name = limits.longest ? fmt::format("s{}.t{}", limits.longest, limits.most_tokens)
                                 : fmt::format("t{}", limits.most_tokens);
    bucket.limits.push_back(at_most(plan, graph.pool(), size, limits.most_tokens));
  }
  if (limits.longest)
    bucket.limits.push_back(at_most(plan, graph.pool(), limits.length, limits.longest));
  return bucket;
}

// What a form computes at once lies where the first form does the last part of it. So a form runs
// in the order of the first, or what is dead in one when something is written might be alive in the
// other.
std::vector<OpId> launch_order(const Graph& graph, const PlanBuilder& plan, bool first_form) {
  std::vector<OpId> order = graph.order();
  if (first_form) return order;
  const auto place = [&](OpId o) {
    return plan.place_of(graph.value(graph.op(o).results[0]).name);
  };
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) { return place(a) < place(b); });
  return order;
}

Result<void> lower_bucket(PlanBuilder& plan, const EmitContext& context, bool first_form) {
  plan.begin_bucket(bucket_of(plan, context.graph, context.bucket), first_form);
  for (OpId o : launch_order(context.graph, plan, first_form)) {
    TFCC_TRY(const Emission emission, emit(context, o));
    plan.add(context, o, emission);
  }
  for (size_t i = 0; i < ir::plain_outputs(context.graph); ++i) plan.add_output(context, i);
  return {};
}

ProductRules rules_of(const TargetClass& target, const LowerOptions& options) {
  return {options.batch_variance,
          target.cuda() ? f32_products(options.precision) : F32Products::exact};
}

Result<void> lower_forms(PlanBuilder& plan, const std::vector<Form>& forms,
                         const TargetClass& target, const LowerOptions& options) {
  const Lengths lengths = lengths_of(forms.back().graph, target, options);
  std::vector<const Graph*> graphs;
  for (const Form& f : forms) graphs.push_back(&f.graph);
  const CallerMemory callers(graphs);
  std::vector<std::pair<int64_t, size_t>> places;  // most tokens of each bucket, any number last
  for (size_t f = forms.size(); f-- > 0;) {
    for (int64_t longest : lengths.buckets) {
      const EmitContext context{forms[f].graph,
                                target,
                                callers,
                                plan.symbols(),
                                {forms[f].most_tokens, lengths.size, longest},
                                rules_of(target, options)};
      places.emplace_back(forms[f].most_tokens ? forms[f].most_tokens : INT64_MAX, places.size());
      TFCC_TRY_VOID(lower_bucket(plan, context, f + 1 == forms.size()));
    }
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<size_t> order;
  for (const auto& [most, place] : places) order.push_back(place);
  plan.order_buckets(order);
  return {};
}

}  // namespace

Result<Lowered> lower(const Graph& graph, const TargetClass& target, WeightPool& weights,
                      const LowerOptions& options) {
  TFCC_TRY_VOID(check_sizes(graph));
  TFCC_TRY(std::vector<Form> forms, forms_of(graph, target, rules_of(target, options)));
  for (Form& form : forms) tie_tables(form.graph, target);
  PlanBuilder plan(target, graph, weights, options.precision);
  TFCC_TRY_VOID(lower_forms(plan, forms, target, options));
  plan.place_buffers(judged_shapes(graph, options));
  if (!target.cuda()) return plan.finish();
  for (const SizeLimit& l : cuda_limits(forms.back().graph))
    plan.limit({plan.encode(l.at_least_zero), false, l.message});
  const size_t sizes = plan.symbols().size();
  plan.add_bind(sizes + graph.inputs().size() + ir::plain_outputs(graph));
  if (sizes > runtime::kMaxBucketSizes)
    plan.no_buckets(fmt::format("the inputs have more than {} sizes", runtime::kMaxBucketSizes));
  if (plan.may_have_buckets()) plan.set_bucket_table(bucket_table(graph, options.lengths));
  return plan.finish();
}

}  // namespace tfcc::codegen

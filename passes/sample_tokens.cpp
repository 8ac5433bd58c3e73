// SPDX-License-Identifier: Apache-2.0
// sample-tokens: a decoder that was lifted chooses the token after each row of logits itself, so
// that only ids leave the device, and the next step may begin before anybody has seen them.
//   before: return logits = %y, cache.0.keys = %keys, ..
//   after:  %tokens, %log_probabilities = sample(%y, %ids, %wanted, %positions, %sampling, %draw, %seen)
//           return logits = %y, tokens = %tokens, log_probabilities = %log_probabilities, cache.0.keys = %keys, ..
// Logits that are a copy of others in another type are those: what is chosen is the same.
//   before: %y = pointwise(%h) {body = (i,j,k) => %h[i,j,k]} : f32[1,R,V]; return logits = %y, ..     %h : f16[1,R,V]
//   after:  %tokens, %log_probabilities = sample(%h, ..); return logits = %h, ..
// Requires: the inputs of lift-kv-cache by name, ids [1,T], positions [T] and wanted [R], and the
// logits of R rows as first output. Runs last: what it reads are the logits as the program gives
// them, so that a caller who chooses by himself sees what it chose from.
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

std::optional<ValueId> input(const Graph& g, std::string_view name, size_t rank) {
  const ValueId v = g.find_value(name);
  if (!v.valid() || g.def(v)) return std::nullopt;
  const ir::Type& type = g.value(v).type;
  return type.rank() == rank && !is_float(type.dtype) ? std::optional(v) : std::nullopt;
}

ValueId add_input(Graph& g, const std::string& name, DType dtype, std::vector<ExprRef> dims) {
  if (const ValueId holder = g.find_value(name); holder.valid())
    g.rename(holder, name + ".of_model");
  return g.add_input(name, {dtype, std::move(dims)});
}

// The value whose elements v has, in a type that v's can hold.
ValueId copied(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  if (!op || op->kind != OpKind::pointwise) return v;
  std::vector<ExprRef> at = ir::indices_of(g, v);
  at[0] = g.pool().integer(0);  // the one batch
  const ExprRef body = ir::expand(g, ir::load_of(g, v, at), [&](ValueId x) { return x == v; });
  if (body->kind != ExprKind::load || body->args != at) return v;
  const ValueId from = *loaded(body);
  const ir::Type &type = g.value(v).type, &before = g.value(from).type;
  const bool widens = before.dtype == type.dtype || type.dtype == DType::f64 ||
                      (type.dtype == DType::f32 && before.dtype != DType::f64);
  const bool holds = widens && is_float(before.dtype) && before.dims == type.dims;
  return holds ? from : v;
}

// The words of 32 tokens that a row has of what was seen: at least one.
ExprRef add_words(Graph& g) {
  ir::SizeSymbol words;
  words.name = "seen_words";
  const auto taken = [&](const ir::SizeSymbol& s) { return s.name == words.name; };
  while (std::any_of(g.symbols.begin(), g.symbols.end(), taken)) words.name += "_";
  words.input = static_cast<uint32_t>(g.inputs().size());  // the next one
  words.axis = 1;
  g.symbols.push_back(words);
  g.pool().set_range(words.name, {1, ir::kLargestSize});
  return g.pool().symbol(words.name);
}

}  // namespace

PassReport sample_tokens(Graph& g) {
  PassReport report;
  const auto miss = [&](const std::string& reason) {
    report.misses.push_back({g.name, reason});
    return report;
  };
  const auto ids = input(g, "ids", 2), positions = input(g, "positions", 1),
             wanted = input(g, "wanted", 1);
  if (!ids || !positions || !wanted) return miss("it has no ids, positions and wanted rows");
  ValueId logits = g.outputs[0].value;
  const ir::Type type = g.value(logits).type;
  ExprRef rows = g.value(*wanted).type.dims[0];
  if (type.rank() != 3 || !is_float(type.dtype) || type.dims[1] != rows)
    return miss("its first output has no row of logits for each token that is wanted");
  logits = copied(g, logits);
  ExprRef four = g.pool().integer(4);
  const ValueId sampling = add_input(g, "sampling", DType::f32, {rows, four}),
                draw = add_input(g, "draw", DType::i32, {rows, four}),
                seen = add_input(g, "seen", DType::i32, {rows, add_words(g)});
  const OpId o = g.add_op(
      OpKind::sample, {logits, *ids, *wanted, *positions, sampling, draw, seen}, ir::SampleAttrs{},
      {{g.value(*ids).type.dtype, {g.pool().integer(1), rows}}, {DType::f32, {rows}}},
      {"tokens", "log_probabilities"});
  g.outputs[0] = {"logits", logits};
  g.outputs.insert(g.outputs.begin() + 1,
                   {{"tokens", g.result(o, 0)}, {"log_probabilities", g.result(o, 1)}});
  ++report.rewrites;
  return report;
}

}  // namespace tfcc::passes

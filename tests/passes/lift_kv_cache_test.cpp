// SPDX-License-Identifier: Apache-2.0
// The lifted form of a decoder in steps, by the evaluator, beside the graph as it was over the
// whole sequence.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "ir/ir.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using ir::HostTensor;
using Tensors = std::map<std::string, HostTensor>;
using Ints = std::vector<int64_t>;

// The graph of this name in lift_kv_cache.tfir, or in the file of that suffix, before the pass.
ir::Graph graph_of(const std::string& name, const std::string& suffix = "") {
  std::ifstream stream(TFCC_SOURCE_DIR "/tests/passes/lift_kv_cache" + suffix + ".tfir");
  std::stringstream all;
  all << stream.rdbuf();
  const std::string text = all.str();
  const size_t begin = text.find("graph @" + name + "("), end = text.find("\n}\n", begin);
  auto g = ir::parse(text.substr(begin, end + 3 - begin));
  EXPECT_TRUE(g) << g.error().message;
  return *std::move(g);
}

// Of a tensor whose dims are constants but for these.
std::vector<int64_t> dims_of(const ir::Graph& g, ir::ValueId v,
                             const std::map<std::string, int64_t>& sizes) {
  std::vector<int64_t> dims;
  for (ir::ExprRef d : g.value(v).type.dims)
    dims.push_back(ir::eval_size(d, [&](std::string_view s) { return sizes.at(std::string(s)); }));
  return dims;
}

HostTensor ints(DType type, std::vector<int64_t> dims, Ints values) {
  return {type, std::move(dims), {}, std::move(values)};
}

std::vector<double> whole(const ir::Graph& g, const Ints& ids) {
  const auto n = static_cast<int64_t>(ids.size());
  Tensors in;
  for (ir::ValueId v : g.inputs()) {
    const ir::Value& value = g.value(v);
    const auto dims = dims_of(g, v, {{"B", 1}, {"S", n}, {"P", 0}});
    if (value.name == "ids") in["ids"] = ints(value.type.dtype, dims, ids);
    else if (value.name == "mask")
      in["mask"] = ints(value.type.dtype, dims, Ints(static_cast<size_t>(n), 1));
    else {  // pasts of no token, and rows in front of the first
      size_t count = 1;
      for (int64_t d : dims) count *= static_cast<size_t>(d);
      in[value.name] = {value.type.dtype, dims, std::vector<double>(count), {}};
    }
  }
  const auto out = ir::eval(g, in);
  EXPECT_TRUE(out) << out.error().message;
  return out ? out->at("logits").reals : std::vector<double>();
}

// In steps of so many tokens, on pages that lie anywhere.
std::vector<double> in_steps(const ir::Graph& g, const Ints& ids, int64_t chunk) {
  const Ints pages = {5, 2, 7};
  Tensors states;
  for (ir::ValueId v : g.inputs()) {
    const ir::Value& value = g.value(v);
    if (!value.name.starts_with("cache.") && !value.name.starts_with("state.")) continue;
    const auto dims = dims_of(g, v, {{"cache_pages", 8}, {"state_slots", 3}});
    states[value.name] = {
        value.type.dtype,
        dims,
        std::vector<double>(static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]),
                            std::nan("")),
        {}};
  }
  std::vector<double> logits;
  for (int64_t at = 0; at < static_cast<int64_t>(ids.size()); at += chunk) {
    const int64_t n = std::min<int64_t>(chunk, static_cast<int64_t>(ids.size()) - at);
    Ints now(ids.begin() + at, ids.begin() + at + n), positions, slots, wanted;
    for (int64_t t = 0; t < n; ++t) {
      positions.push_back(at + t);
      slots.push_back(pages[static_cast<size_t>((at + t) / 64)] * 64 + (at + t) % 64);
      wanted.push_back(t);
    }
    Tensors in = states;
    in["ids"] = ints(DType::i64, {1, n}, now);
    in["positions"] = ints(DType::i32, {n}, positions);
    in["slots"] = ints(DType::i32, {n}, slots);
    in["context"] = ints(DType::i32, {1}, {at + n});
    in["first"] = ints(DType::i32, {2}, {0, n});
    in["order"] = ints(DType::i32, {1}, {0});
    in["table"] = ints(DType::i32, {1, 3}, pages);
    in["state_from"] = ints(DType::i32, {1}, {at == 0 ? -1 : 1 + at / chunk % 2});
    in["state_to"] = ints(DType::i32, {1}, {2 - at / chunk % 2});
    std::erase_if(in, [&](const auto& x) { return !g.find_value(x.first).valid(); });
    in["wanted"] = ints(DType::i32, {n}, wanted);
    const auto out = ir::eval(g, in);
    EXPECT_TRUE(out) << out.error().message;
    if (!out) return {};
    logits.insert(logits.end(), out->at("logits").reals.begin(), out->at("logits").reals.end());
    for (auto& [name, t] : states) t = out->at(name);
  }
  return logits;
}

void steps_are_the_whole(const std::string& name, size_t length, const std::string& suffix = "") {
  const ir::Graph before = graph_of(name, suffix);
  for (const bool all_passes : {false, true}) {
    ir::Graph lifted = before;
    const std::vector<std::string> passes = all_passes ? generation_passes(default_pipeline())
                                                       : std::vector<std::string>{"lift-kv-cache"};
    const auto reports = run_passes(lifted, passes);
    ASSERT_TRUE(reports);
    ASSERT_GE((*reports)[0].rewrites, 1u) << name;
    for (const auto& problem : ir::verify(lifted)) ADD_FAILURE() << to_string(problem);
    std::mt19937 random(1);
    Ints ids;
    for (size_t i = 0; i < length; ++i) ids.push_back(static_cast<int64_t>(random() % 9));
    const std::vector<double> want = whole(before, ids);
    for (const int64_t chunk : {1, 3, 7, 1000}) {
      const std::vector<double> got = in_steps(lifted, ids, chunk);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-9)
            << name << " in chunks of " << chunk << ", element " << i;
    }
  }
}

TEST(LiftKvCache, StepsAreTheWhole) {
  steps_are_the_whole("lifts_a_past", 70);
  steps_are_the_whole("lifts_whole_sequences", 32);
  steps_are_the_whole("lifts_sums", 70, "_sums");
  steps_are_the_whole("lifts_sums_and_a_cache", 70, "_sums");
  steps_are_the_whole("lifts_sums_that_decay_together", 20, "_sums");
  steps_are_the_whole("lifts_sums_of_shared_keys", 20, "_sums");
}

TEST(LiftKvCache, StepsAreTheWholeOfAContext) {
  for (const char* name :
       {"lifts_a_latent", "lifts_a_norm_of_a_latent", "lifts_a_softmax_of_a_latent",
        "lifts_norms_of_heads", "lifts_sums_of_heads", "lifts_products_of_heads",
        "lifts_a_present_by_other_ops", "lifts_slices_of_a_latent", "lifts_products_as_keys",
        "lifts_products_as_keys_and_values"})
    steps_are_the_whole(name, 30, "_context");
}

TEST(LiftKvCache, StepsAreTheWholeOfScoresFromTheLastKey) {
  steps_are_the_whole("lifts_a_table_from_the_last_key", 30, "_scores");
  steps_are_the_whole("lifts_distances_from_the_last_key", 70, "_scores");
}

TEST(LiftKvCache, StepsAreTheWholeOfEarlierRows) {
  for (const char* name :
       {"lifts_a_convolution", "lifts_a_shift_behind_the_attention",
        "lifts_a_product_of_turned_rows", "lifts_shifted_rows", "lifts_rows_of_heads",
        "lifts_a_number_of_each_token", "lifts_one_row", "lifts_sums_of_listed_rows",
        "lifts_padding_at_both_ends", "lifts_a_sum_over_more_places"})
    steps_are_the_whole(name, 30, "_rows");
}

TEST(LiftKvCache, SaysWhatIsPastTheEndOfATable) {
  ir::Graph lifted = graph_of("lifts_whole_sequences");
  ASSERT_TRUE(run_passes(lifted, {"lift-kv-cache"}));
  EXPECT_EQ(in_steps(lifted, Ints(32, 1), 8).size(), 32u * 9u);
  EXPECT_NE(std::find(lifted.flags.begin(), lifted.flags.end(),
                      "positions: a token lies outside of what the model has a position for"),
            lifted.flags.end());
}

TEST(LiftKvCache, IsTriedOnCopies) {
  ir::Graph g = graph_of("scores_by_step");
  g.clean();  // in the order that passes leave
  const std::string before = ir::print(g);
  const auto reports = run_passes(g, {"lift-kv-cache"});
  ASSERT_TRUE(reports);
  EXPECT_EQ((*reports)[0].rewrites, 0u);
  EXPECT_EQ(ir::print(g), before);
}

}  // namespace
}  // namespace tfcc::passes

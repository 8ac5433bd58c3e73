// SPDX-License-Identifier: Apache-2.0
// A file may say anything of its program for generation: what schedulers rely on is looked at when
// it is opened.
#include "runtime/core/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace tfcc::runtime {
namespace {

struct Ports {
  std::vector<TensorInfo> inputs, outputs;
  TensorInfo& operator[](const std::string& name) {
    return *std::find_if(inputs.begin(), inputs.end(),
                         [&](const TensorInfo& t) { return t.name == name; });
  }
};

DimInfo any(const char* name) { return {name, 1, 0}; }
DimInfo is(int64_t n) { return {std::to_string(n), n, n}; }

Ports good() {
  Ports p;
  p.inputs = {{"ids", DType::i64, {is(1), any("T")}}};
  for (const char* name : {"positions", "slots", "context", "first", "order"})
    p.inputs.push_back({name, DType::i32, {any("T")}});
  p.inputs.push_back({"table", DType::i32, {any("N"), any("W")}});
  p.inputs.push_back({"wanted", DType::i32, {any("R")}});
  p.inputs.push_back({"sampling", DType::f32, {any("R"), is(4)}});
  for (const char* name : {"draw", "seen"})
    p.inputs.push_back({name, DType::i32, {any("R"), any("W")}});
  for (const char* name : {"cache.0.keys", "cache.0.values"})
    p.inputs.push_back({name, DType::f16, {any("C"), is(2), is(64), is(16)}, true});
  p.outputs = {{"logits", DType::f32, {is(1), any("R"), is(100)}},
               {"tokens", DType::i64, {is(1), any("R")}},
               {"log_probabilities", DType::f32, {any("R")}}};
  return p;
}

std::string after(const std::function<void(Ports&)>& change) {
  Ports p = good();
  change(p);
  return no_generation_program(p.inputs, p.outputs);
}

TEST(Generation, IsOneOfThisVersion) {
  EXPECT_EQ(after([](Ports&) {}), "");
  EXPECT_EQ(after([](Ports& p) { p["ids"].dtype = p.outputs[1].dtype = DType::i32; }), "");
}

TEST(Generation, SaysWhatIsWrong) {
  for (const char* name : {"ids", "positions", "slots", "context", "first", "order", "table",
                           "wanted", "sampling", "draw", "seen"}) {
    const std::string what = std::string("its input '") + name + "'";
    EXPECT_EQ(after([&](Ports& p) { p[name].name = "x"; }), what + " is missing");
    EXPECT_EQ(after([&](Ports& p) { p[name].dims.push_back(is(1)); }), what + " has other dims");
    EXPECT_EQ(after([&](Ports& p) { p[name].dims.clear(); }), what + " has other dims");
    EXPECT_EQ(after([&](Ports& p) { p[name].state = true; }), what + " has other dims");
    EXPECT_EQ(after([&](Ports& p) { p[name].dtype = DType::f16; }), what + " has another type");
  }
  EXPECT_EQ(after([](Ports& p) { p["positions"].dtype = DType::i64; }),
            "its input 'positions' has another type");
  const std::string keys = "its cache 'cache.0.keys' has other dims",
                    values = "its cache 'cache.0.values' has other dims";
  EXPECT_EQ(after([](Ports& p) { p["cache.0.keys"].dims.pop_back(); }), keys);
  for (size_t k : {1, 2, 3}) {
    for (int64_t n : {int64_t{0}, int64_t{-1}, int64_t{1} << 25})
      EXPECT_EQ(after([&](Ports& p) { p["cache.0.keys"].dims[k] = is(n); }), keys);
    EXPECT_EQ(after([&](Ports& p) { p["cache.0.keys"].dims[k] = any("X"); }), keys);
  }
  EXPECT_EQ(
      after([](Ports& p) { p["cache.0.keys"].dims[1] = p["cache.0.keys"].dims[3] = is(1 << 20); }),
      keys);
  EXPECT_EQ(after([](Ports& p) { p["cache.0.values"].dims[2] = is(32); }), values)
      << "pages of one length";
  EXPECT_EQ(after([](Ports& p) { p["cache.0.keys"].state = p["cache.0.values"].state = false; }),
            "it has no cache");
  EXPECT_EQ(after([](Ports& p) {
              p.inputs.push_back({"state_from", DType::i32, {any("N")}});
            }),
            "its input 'state_from' is of a state that it has not");
  const std::string output = "its first output is not the logits of a vocabulary",
                    all = "its outputs are not logits, tokens and log_probabilities";
  EXPECT_EQ(after([](Ports& p) { p.outputs.clear(); }), output);
  EXPECT_EQ(after([](Ports& p) { p.outputs[0].name = "x"; }), output);
  EXPECT_EQ(after([](Ports& p) { p.outputs.push_back(p.outputs[0]); }), all);
  EXPECT_EQ(after([](Ports& p) { p.outputs.resize(1); }), all);
  EXPECT_EQ(after([](Ports& p) { p["ids"].dtype = DType::i32; }), all) << "tokens are of its type";
  for (size_t i : {1, 2}) {
    EXPECT_EQ(after([&](Ports& p) { p.outputs[i].name = "x"; }), all);
    EXPECT_EQ(after([&](Ports& p) { p.outputs[i].dims.push_back(is(1)); }), all);
    EXPECT_EQ(after([&](Ports& p) { p.outputs[i].dtype = DType::f16; }), all);
  }
  EXPECT_EQ(after([](Ports& p) { p.outputs[0].dims.pop_back(); }), output);
  EXPECT_EQ(after([](Ports& p) { p.outputs[0].dims[2] = any("V"); }), output);
  EXPECT_EQ(after([](Ports& p) { p.outputs[0].dtype = DType::i64; }), output);
}

// A program whose attentions are all linear: sums and no cache.
TEST(Generation, HasSumsOrACacheOrBoth) {
  const auto with_sums = [](Ports& p) {
    for (const char* name : {"state_from", "state_to"})
      p.inputs.push_back({name, DType::i32, {any("N")}});
    p.inputs.push_back({"state.0", DType::f32, {any("C"), is(4), is(17), is(16)}, true});
  };
  const auto alone = [&](Ports& p) {
    with_sums(p);
    std::erase_if(p.inputs, [](const TensorInfo& t) {
      return t.name.starts_with("cache.") || t.name == "slots" || t.name == "order" ||
             t.name == "table";
    });
  };
  EXPECT_EQ(after(with_sums), "");
  EXPECT_EQ(after(alone), "");
  const auto then = [&](const std::function<void(Ports&)>& change) {
    return after([&](Ports& p) { alone(p), change(p); });
  };
  EXPECT_EQ(then([](Ports& p) { p["state.0"].dims[3] = any("X"); }),
            "its state 'state.0' has other dims");
  EXPECT_EQ(then([](Ports& p) { p["state.0"].dims.pop_back(); }),
            "its state 'state.0' has other dims");
  EXPECT_EQ(then([](Ports& p) {
              p.inputs.push_back({"more", DType::f32, {any("C"), is(4), is(17), is(16)}, true});
            }),
            "its state 'more' has other dims");
  EXPECT_EQ(then([](Ports& p) { p["state_to"].name = "x"; }), "its input 'state_to' is missing");
  EXPECT_EQ(then([](Ports& p) { p["state_from"].dtype = DType::i64; }),
            "its input 'state_from' has another type");
  EXPECT_EQ(then([](Ports& p) {
              p.inputs.push_back({"table", DType::i32, {any("N"), any("W")}});
            }),
            "its input 'table' is of a state that it has not");
}

}  // namespace
}  // namespace tfcc::runtime

// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/roles.h"

#include <gtest/gtest.h>

namespace tfcc::generate {
namespace {

TensorInfo tensor(const std::string& name, DType type, const std::vector<std::string>& dims,
                  InputRole role = InputRole::none) {
  TensorInfo out{name, type, {}};
  out.role = role;
  for (const std::string& d : dims) {
    const int64_t fixed = std::atoll(d.c_str());
    out.dims.push_back({d, fixed, fixed});
    if (!fixed) out.dims.back() = {d, 1, 0};
  }
  return out;
}

const TensorInfo kIds = tensor("input_ids", DType::i64, {"B", "S"}, InputRole::ids),
                 kMask = tensor("attention_mask", DType::i64, {"B", "P + S"}, InputRole::mask),
                 kPositions = tensor("position_ids", DType::i64, {"B", "S"}, InputRole::positions),
                 kLogits = tensor("logits", DType::f32, {"B", "S", "288"});

std::vector<TensorInfo> pasts(const std::string& pattern) {
  std::vector<TensorInfo> out;
  for (const std::string layer : {"0", "1", "10"})
    for (const std::string kind : {"key", "value"}) {
      std::string name = pattern;
      name.replace(name.find('#'), 1, layer).replace(name.find('@'), 1, kind);
      out.push_back(
          tensor(name, DType::f32, {"B", "2", name.starts_with("past") ? "P" : "P + S", "16"}));
    }
  return out;
}

std::vector<TensorInfo> joined(std::vector<TensorInfo> a, const std::vector<TensorInfo>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string refusal(const std::vector<TensorInfo>& in, const std::vector<TensorInfo>& out,
                    std::vector<std::pair<std::string, std::string>> given = {}) {
  const auto roles = find_roles(in, out, given);
  return roles ? "accepted" : roles.error().message;
}

TEST(Roles, AreThoseOfInputs) {
  const auto roles = find_roles(joined({kIds, kMask, kPositions}, pasts("past_key_values.#.@")),
                                joined({kLogits}, pasts("present.#.@")), {});
  ASSERT_TRUE(roles) << roles.error().message;
  EXPECT_EQ(roles->ids.name, "input_ids");
  EXPECT_EQ(roles->mask.name, "attention_mask");
  EXPECT_EQ(roles->positions.name, "position_ids");
  EXPECT_EQ(roles->vocabulary, 288);
  ASSERT_EQ(roles->caches.size(), 6u);
  for (const Cache& c : roles->caches) EXPECT_EQ(c.past.name.substr(15), c.present.substr(7));
  EXPECT_EQ(roles->caches[0].past_axis, 2u);
}

TEST(Roles, TakeOtherSpellingsOfPresent) {
  EXPECT_TRUE(find_roles(joined({kIds}, pasts("past_key_values.#.@")),
                         joined({kLogits}, pasts("present_key_values.#.@")), {}));
  EXPECT_TRUE(
      find_roles(joined({kIds}, pasts("past_#_@")), joined({kLogits}, pasts("present_@_#")), {}));
}

// As the model builder of onnxruntime-genai names them.
TEST(Roles, OfStatesOfOneSize) {
  const auto states = [](const std::string& side, const std::string& last = "3") {
    return std::vector<TensorInfo>{
        tensor(side + ".0.conv", DType::f32, {"B", "64", last}),
        tensor(side + ".0.recurrent", DType::f32, {"B", "4", "16", "16"}),
        tensor(side + ".3.conv", DType::f32, {"B", "64", last})};
  };
  const auto roles =
      find_roles(joined(joined({kIds}, states("past")), pasts("past_key_values.#.@")),
                 joined(joined({kLogits}, pasts("present.#.@")), states("present")), {});
  ASSERT_TRUE(roles) << roles.error().message;
  ASSERT_EQ(roles->caches.size(), 9u);
  for (const Cache& c : roles->caches) {
    const bool grows = c.present.ends_with("key") || c.present.ends_with("value");
    EXPECT_EQ(c.grows(), grows) << c.present;
    if (!grows) EXPECT_EQ(c.past.name.substr(4), c.present.substr(7));
  }
  EXPECT_TRUE(find_roles({kIds, tensor("conv_state_in_2", DType::f32, {"B", "8", "3"})},
                         {kLogits, tensor("conv_state_out_2", DType::f32, {"B", "8", "3"})}, {}));
  for (const std::string side : {"present", "present_key_values"})
    EXPECT_TRUE(
        find_roles(joined(joined({kIds}, states("past_key_values")), pasts("past_key_values.#.@")),
                   joined(joined({kLogits}, pasts("present.#.@")), states(side)), {}))
        << side;
  EXPECT_NE(refusal({kIds, tensor("past.0.key", DType::f32, {"B", "2", "64", "16"})},
                    {kLogits, tensor("present.0.key", DType::f32, {"B", "2", "64", "16"})})
                .find("'past.0.key' has no axis that grows"),
            std::string::npos);
  EXPECT_NE(refusal(joined({kIds}, states("past")), joined({kLogits}, states("present", "4")))
                .find("'present.0.conv' and its past 'past.0.conv' are of different types"),
            std::string::npos);
}

TEST(Roles, OfPositionsOfSeveralAxes) {
  const auto roles =
      find_roles({kIds, tensor("position_ids", DType::i64, {"3", "B", "S"})}, {kLogits}, {});
  ASSERT_TRUE(roles) << roles.error().message;
  EXPECT_EQ(roles->positions.dims.size(), 3u);
  EXPECT_EQ(refusal({kIds, tensor("other", DType::i64, {"3", "B", "S"})}, {kLogits}),
            "the model is no decoder that can generate: the input 'other' is neither ids, mask, "
            "positions nor past; --role NAME=ids|mask|positions|types|logits tells what a name is");
}

TEST(Roles, OfAGraphWithoutPast) {
  const auto roles = find_roles({kIds}, {kLogits}, {});
  ASSERT_TRUE(roles);
  EXPECT_TRUE(roles->caches.empty());
  EXPECT_TRUE(roles->mask.name.empty());
}

TEST(Roles, MayBeGiven) {
  const TensorInfo odd = tensor("a", DType::i64, {"B", "S"}),
                   other = tensor("b", DType::i64, {"B", "S"});
  const auto roles = find_roles(
      {odd, other}, {kLogits},
      std::vector<std::pair<std::string, std::string>>{{"b", "positions"}, {"a", "ids"}});
  ASSERT_TRUE(roles) << roles.error().message;
  EXPECT_EQ(roles->positions.name, "b");
  const auto pair = find_roles(joined({kIds}, {tensor("k_in", DType::f32, {"B", "2", "P", "16"})}),
                               {kLogits, tensor("k_out", DType::f32, {"B", "2", "P + S", "16"})},
                               std::vector<std::pair<std::string, std::string>>{{"k_out", "k_in"}});
  ASSERT_TRUE(pair) << pair.error().message;
  EXPECT_EQ(pair->caches.at(0).present, "k_out");
}

TEST(Roles, SayWhatIsMissing) {
  const std::string tail = "; --role NAME=ids|mask|positions|types|logits tells what a name is";
  const std::string head = "the model is no decoder that can generate: ";
  EXPECT_EQ(refusal({kMask}, {kLogits}),
            head + "no input of token ids, whole numbers of [batch, length]" + tail);
  EXPECT_EQ(refusal({kIds}, {tensor("pooled", DType::f32, {"B", "32"})}),
            head + "no output of logits, numbers of [batch, length, vocabulary]" + tail);
  EXPECT_EQ(
      refusal({kIds}, {tensor("out0", DType::f32, {"B", "S", "288"})}),
      head +
          "no output of logits, numbers of [batch, length, vocabulary] (if 'out0' is it, say --role out0=logits)" +
          tail);
  EXPECT_EQ(refusal({kIds, tensor("pixels", DType::f32, {"B", "9"})}, {kLogits}),
            head + "the input 'pixels' is neither ids, mask, positions nor past" + tail);
  EXPECT_EQ(
      refusal(joined({kIds}, pasts("past_key_values.#.@")), {kLogits}),
      head +
          "the input 'past_key_values.0.key' has no output that would be it a step later (give it one with --role OUTPUT=past_key_values.0.key)" +
          tail);
  EXPECT_EQ(
      refusal({kIds}, {kLogits}, {{"nothing", "ids"}}),
      "a role is given for 'nothing', which is none of the inputs 'input_ids' and outputs 'logits'");
}

}  // namespace
}  // namespace tfcc::generate

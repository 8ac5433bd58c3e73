// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/tekken.h"

#include "runtime/text/base64.h"
#include "runtime/text/vocabulary.h"

namespace tfcc::text {
namespace {

// Those of files that do not list theirs (up to v7), in the order of their ids.
constexpr const char* kOldSpecials[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "[INST]",
                                        "[/INST]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[TOOL_CALLS]",
                                        "[IMG]",
                                        "<pad>",
                                        "[IMG_BREAK]",
                                        "[IMG_END]",
                                        "[PREFIX]",
                                        "[MIDDLE]",
                                        "[SUFFIX]",
                                        "[SYSTEM_PROMPT]",
                                        "[/SYSTEM_PROMPT]",
                                        "[TOOL_CONTENT]"};

Json specials_of(const Json& file, int64_t count) {
  std::vector<std::string> names(static_cast<size_t>(count));
  for (size_t id = 0; id < names.size(); ++id) names[id] = "<SPECIAL_" + std::to_string(id) + ">";
  const auto set = [&](int64_t id, const std::string& name) {
    if (id >= 0 && id < count) names[static_cast<size_t>(id)] = name;
  };
  const auto listed = file.find("special_tokens");
  if (listed != file.end() && !listed->is_null())
    for (const Json& token : *listed)
      set(token.at("rank").get<int64_t>(), token.at("token_str").get<std::string>());
  else
    for (int64_t id = 0; const char* name : kOldSpecials) set(id++, name);
  Json out = Json::array();
  for (size_t id = 0; id < names.size(); ++id)
    out.push_back({{"id", id}, {"content", names[id]}, {"special", true}});
  return out;
}

}  // namespace

bool is_tekken(const Json& file) {
  return file.is_object() && file.contains("config") && file.contains("vocab") &&
         file["config"].is_object() && file["config"].contains("default_num_special_tokens");
}

Result<Json> read_tekken(const Json& file) {
  const Json& config = file.at("config");
  const auto specials = config.at("default_num_special_tokens").get<int64_t>(),
             size = config.at("default_vocab_size").get<int64_t>();
  constexpr int64_t kMostSpecials = 1 << 14;  // each is looked for in a text
  if (specials < 0 || specials > kMostSpecials || size <= specials || size > Vocabulary::kMaxId)
    return Error{ErrorCode::bad_file, "it has " + std::to_string(size) + " tokens, " +
                                          std::to_string(specials) + " of them special"};
  Json vocabulary = Json::object(), ranks = Json::array();
  for (int64_t id = 0; id < specials; ++id) ranks.push_back(-1);
  for (const Json& token : file.at("vocab")) {
    const auto rank = token.at("rank").get<int64_t>();
    if (rank < 0 || rank >= size - specials) continue;  // not of this model
    const auto bytes = from_base64(token.at("token_bytes").get<std::string>());
    if (!bytes || bytes->empty())
      return Error{ErrorCode::bad_file,
                   "the bytes of the token of rank " + std::to_string(rank) + " are not base64"};
    vocabulary[in_byte_alphabet(*bytes)] = specials + rank;
  }
  if (vocabulary.size() != static_cast<size_t>(size - specials))
    return Error{ErrorCode::bad_file, "it has " + std::to_string(vocabulary.size()) +
                                          " tokens of text, not " +
                                          std::to_string(size - specials)};
  for (int64_t rank = 0; rank < size - specials; ++rank) ranks.push_back(rank);
  const Json added = specials_of(file, specials);
  const auto id_of = [&](const char* name) -> int64_t {
    for (const Json& token : added)
      if (token["content"] == name) return token["id"].get<int64_t>();
    return -1;
  };
  Json single = Json::array({{{"Sequence", {{"id", "A"}}}}}), tokens = Json::object();
  if (const int64_t begin = id_of("<s>"); begin >= 0) {
    single.insert(single.begin(), Json{{"SpecialToken", {{"id", "<s>"}}}});
    tokens["<s>"] = {{"ids", Json::array({begin})}};
  }
  const Json words = {{"type", "Split"},
                      {"pattern", {{"Regex", config.at("pattern").get<std::string>()}}},
                      {"behavior", "Isolated"}},
             bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return Json{
      {"end_id", id_of("</s>")},
      {"added_tokens", added},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({words, bytes})}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", std::move(vocabulary)},
        {"ranks", std::move(ranks)},
        {"ignore_merges", true}}},
      {"post_processor",
       {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}}},
      {"decoder", {{"type", "ByteLevel"}}}};
}

}  // namespace tfcc::text

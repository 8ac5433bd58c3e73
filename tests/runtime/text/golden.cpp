// SPDX-License-Identifier: Apache-2.0
// tokenizer_golden FILE..: encodes and decodes the cases of files that make_golden.py wrote, and
// fails on a difference.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "runtime/text/tokenizer.h"

using Json = nlohmann::json;
using tfcc::text::TextStream;
using tfcc::text::Tokenizer;

namespace {

// The text that comes out id by id: what all ids together give, but for U+FFFD, which a stream
// gives late.
bool streams(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
             const std::string& whole) {
  TextStream stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) {
    const auto more = stream.push(id);
    if (!more) return false;
    text += *more;
  }
  const auto rest = stream.finish();
  return rest && text + *rest == whole;
}

int check(const char* path) {
  std::ifstream stream(path);
  const Json file = Json::parse(stream);
  // A tokenizer that is no tokenizer.json lies beside the file.
  const std::string beside = std::filesystem::path(path).parent_path() / file.value("file", "");
  const auto tokenizer = file.contains("file")
                             ? Tokenizer::load(beside)
                             : Tokenizer::from_json(file.at("tokenizer").dump(), path);
  if (!tokenizer) {
    std::printf("%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  int wrong = 0;
  for (const Json& item : file.at("cases")) {
    std::string text = item.at("text");
    if (item.contains("bytes")) {  // that are no UTF-8, of which `text` is what they are read as
      const auto bytes = item.at("bytes").get<std::vector<uint8_t>>();
      text.assign(bytes.begin(), bytes.end());
    }
    const auto ids = tokenizer->encode(text);
    const auto decoded = ids ? tokenizer->decode(*ids) : tfcc::Result<std::string>(ids.error());
    const char* what = !ids || *ids != item.at("ids").get<std::vector<int32_t>>() ? "ids"
                       : !decoded || *decoded != item.value("decoded", *decoded)  ? "text"
                       : !streams(*tokenizer, *ids, *decoded)                     ? "text id by id"
                                                                                  : nullptr;
    if (!what) continue;
    if (++wrong <= 3)
      std::printf("%s: other %s of %s\n  wanted %s\n  got    %s, %s\n", path, what,
                  item.at("text").dump().c_str(), item.dump().c_str(),
                  ids ? Json(*ids).dump().c_str() : ids.error().message.c_str(),
                  decoded ? Json(*decoded).dump().c_str() : decoded.error().message.c_str());
  }
  if (wrong) std::printf("%s: %d of %zu cases are wrong\n", path, wrong, file.at("cases").size());
  return wrong > 0;
}

}  // namespace

int main(int count, char** paths) {
  int failed = count < 2;
  for (int i = 1; i < count; ++i) failed += check(paths[i]);
  return failed > 0;
}

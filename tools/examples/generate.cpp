// SPDX-License-Identifier: Apache-2.0
// Several prompts at once, answered by a compiled decoder. Texts if the file keeps a tokenizer
// (`tfcc compile --tokenizer`), else ids:
//     generate model.tfcc "The three laws of" "Once upon a time"
//     generate model.tfcc 5,6,7
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/generate.h"
#include "runtime/text/tokenizer.h"

namespace {

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) ids.push_back(std::atoi(word.c_str()));
  return ids;
}

tfcc::Result<void> answer(const char* file, const std::vector<std::string>& prompts) {
  TFCC_TRY(const tfcc::Model model, tfcc::Model::load(file));
  TFCC_TRY(tfcc::Generator generator, tfcc::Generator::make(model));
  const auto json = model.attachment("tokenizer.json");
  const auto tokenizer = json ? tfcc::text::Tokenizer::from_json(*json, file)
                              : tfcc::Result<tfcc::text::Tokenizer>(json.error());
  tfcc::GenerateOptions options;
  options.max_tokens = 12;
  std::vector<tfcc::Generator::Id> requests;  // all are under way before the first is waited for
  for (const std::string& prompt : prompts) {
    const auto ids = tokenizer ? tokenizer->encode(prompt) : parse_ids(prompt);
    if (!ids) return ids.error();
    TFCC_TRY(const auto id, generator.submit(*ids, options));
    requests.push_back(id);
  }
  for (const tfcc::Generator::Id id : requests) {
    TFCC_TRY(const tfcc::Generated got, generator.wait(id));
    if (got.end == tfcc::GenerateEnd::failed) return got.error;
    if (tokenizer) {
      TFCC_TRY(const std::string text, tokenizer->decode(got.tokens));
      std::printf("%s\n", text.c_str());
    } else {
      for (const int32_t token : got.tokens) std::printf("%d ", token);
      std::printf("\n");
    }
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: generate MODEL.tfcc PROMPT...\n");
    return 2;
  }
  const auto done = answer(argv[1], {argv + 2, argv + argc});
  if (done) return 0;
  std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return 1;
}

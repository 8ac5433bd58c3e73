// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a tokenizer.json, a tekken.json, a SentencePiece model or a GGUF file, and a text. One
// that loads gives ids of its own, and a text of ids is the same at once and as they come. The input
// is a byte, 0 for JSON, the length of the file in four bytes, the file, the text.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>

#include "runtime/text/tokenizer.h"

using tfcc::text::TextStream;
using tfcc::text::Tokenizer;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 5;
  if (size < kHead) return 0;
  uint32_t length = 0;
  std::memcpy(&length, data + 1, sizeof length);
  const std::string_view rest(reinterpret_cast<const char*>(data) + kHead, size - kHead);
  const std::string_view file = rest.substr(0, length), text = rest.substr(file.size());
  const auto tokenizer =
      data[0] == 0 ? Tokenizer::from_json(file, "fuzz") : Tokenizer::from_bytes(file, "fuzz");
  std::istringstream stream_of_file{std::string(file)};
  const auto metadata = tfcc::text::gguf_metadata(stream_of_file);
  if (file.starts_with("GGUF") && tokenizer)
    require(metadata && Tokenizer::from_gguf(*metadata, "fuzz"), "a GGUF file without its tensors");
  if (!tokenizer) {
    require(!tokenizer.error().message.empty(), "an error without a message");
    return 0;
  }
  const auto ids = tokenizer->encode(text);
  if (!ids) return 0;
  for (const int32_t id : *ids) require(id >= 0 && id < tokenizer->size(), "an id outside");
  const auto whole = tokenizer->decode(*ids);
  if (!whole) return 0;
  TextStream stream(*tokenizer);
  std::string pieces;
  for (const int32_t id : *ids) {
    const auto more = stream.push(id);
    require(static_cast<bool>(more), "a stream fails where a text does not");
    pieces += *more;
  }
  const auto more = stream.finish();
  require(static_cast<bool>(more), "the end of a stream fails");
  require(pieces + *more == *whole, "a stream gives another text");
  return 0;
}

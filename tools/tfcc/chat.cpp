// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/chat.h"

#include <nlohmann/json.hpp>

namespace tfcc::tools {

Result<ChatPieces> ChatPieces::from_json(const std::string& json) {
  ChatPieces out;
  try {
    const auto file = nlohmann::json::parse(json);
    out.start_ = file.value("start", "");
    out.default_system_ = file.value("default_system", "");
    for (size_t i = 0; i < 2; ++i) {
      out.system_[i] = file.at("system").at(i).get<std::string>();
      out.user_[i] = file.at("user").at(i).get<std::string>();
    }
    out.answer_ = file.at("answer").get<std::string>();
  } catch (const nlohmann::json::exception& e) {
    return Error{ErrorCode::bad_file,
                 std::string("chat.json: not the pieces of a chat template (docs/generate.md): ") +
                     e.what()};
  }
  return out;
}

std::string ChatPieces::conversation(const std::string& system, const std::string& user) const {
  std::string out = start_;
  out += system.empty() ? default_system_ : system_[0] + system + system_[1];
  return out + user_[0] + user + user_[1] + answer_;
}

}  // namespace tfcc::tools

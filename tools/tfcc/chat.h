// SPDX-License-Identifier: Apache-2.0
// A model's chat template as plain pieces: chat.json, which tools/chat_pieces.py makes from the
// Jinja template.
#pragma once

#include <string>
#include <vector>

#include "runtime/result.h"

namespace tfcc::tools {

/// {"start": "..", "default_system": "..", "system": ["before", "after"], "user": [..],
/// "assistant": [..], "answer": ".."}: what stands at the start, around each message, and before
/// the answer.
class ChatPieces {
 public:
  /// Errors: bad_file.
  static Result<ChatPieces> from_json(const std::string& json);
  /// What the model is to go on from. An empty system message is the template's own, if it has one.
  std::string conversation(const std::string& system, const std::string& user) const;

 private:
  std::string start_, default_system_, system_[2], user_[2], answer_;
};

}  // namespace tfcc::tools

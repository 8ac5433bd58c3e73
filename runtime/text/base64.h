// SPDX-License-Identifier: Apache-2.0
// RFC 4648, section 4.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tfcc::text {

std::string to_base64(std::string_view bytes);
/// Up to the first '='. Nothing if a character is none of its digits.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace tfcc::text

// SPDX-License-Identifier: Apache-2.0
// The two families of machines: how code is made, loaded and launched.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tfcc {

enum class Family : uint8_t { cpu, cuda };

inline constexpr std::string_view kFamilyNames[] = {"cpu", "cuda"};
inline std::string_view to_string(Family f) { return kFamilyNames[static_cast<int>(f)]; }

/// Nothing for a name that is none of them.
inline std::optional<Family> family_of(std::string_view name) {
  if (name == "cpu") return Family::cpu;
  if (name == "cuda") return Family::cuda;
  return std::nullopt;
}

}  // namespace tfcc

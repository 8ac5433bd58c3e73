// SPDX-License-Identifier: Apache-2.0
// A manifest as the bytes that runtime/core/manifest.h reads: Protobuf's wire format of
// runtime/core/manifest.proto. Fields that have their default are left out.
#pragma once

#include <string>

#include "runtime/core/manifest.h"

namespace tfcc::codegen {

/// Needs nothing of `manifest` but that it is complete; changes nothing in it.
std::string manifest_bytes(runtime::Manifest& manifest);

}  // namespace tfcc::codegen

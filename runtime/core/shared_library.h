// SPDX-License-Identifier: Apache-2.0
// Opening of vendor libraries at run time, so that one binary starts on machines that lack them.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

#include "runtime/result.h"

namespace tfcc::runtime {

/// The first of `names` that opens; it stays open. Errors: device, naming the first and the
/// loader's words.
inline Result<void*> open_library(std::initializer_list<const char*> names, const char* way_out) {
  std::string error;
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    const char* text = dlerror();
    if (error.empty()) error = text != nullptr ? text : name;
  }
  return Error{ErrorCode::device, "cannot open " + error + "; " + way_out};
}

/// Finds one function. Errors: device.
template <class Function>
Result<void> find_function(void* library, const char* name, Function& out, const char* way_out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  if (out != nullptr) return {};
  return Error{ErrorCode::device, std::string("the library has no ") + name + "; " + way_out};
}

}  // namespace tfcc::runtime

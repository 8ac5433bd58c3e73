// SPDX-License-Identifier: Apache-2.0
// What the functions of the C API share: handles, and failures as status codes with a message for
// the thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "runtime/tfcc.h"
#include "runtime/tfcc_c.h"

struct tfcc_model {
  tfcc::Model model;
  std::vector<std::vector<tfcc_dim_info>> dims;  // of the inputs, then of the outputs
};

namespace tfcc::c_api {

/// Keeps the message for tfcc_last_error().
tfcc_status failed(const Error& error);
tfcc_status misused(const char* what);

// No exception crosses the boundary: memory may run out in any of the calls.
template <class Body> tfcc_status guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return failed({ErrorCode::memory, "out of memory"});
  } catch (...) {
    return failed({ErrorCode::internal, "an exception left the runtime"});
  }
}

/// The caller's options, of a caller that was built against an older header too, which gives fewer
/// members: the rest keep their defaults.
template <class Options> Options given(const Options* options, void (*init)(Options*)) {
  Options all;
  init(&all);
  if (options != nullptr) std::memcpy(&all, options, std::min(options->struct_size, sizeof all));
  return all;
}

}  // namespace tfcc::c_api

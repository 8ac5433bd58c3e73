// SPDX-License-Identifier: Apache-2.0
// NumPy's .npz files: a zip archive of .npy files, stored without compression (what numpy.savez
// writes). Output is byte for byte the same for the same arrays: no dates are written.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/support/npy.h"

namespace tfcc::tools {

/// Writes arrays under their names, in this order, whole or not at all. Members beyond 4 GiB use
/// zip64.
/// Errors: io, invalid_argument (two arrays of one name).
Result<void> write_npz(const std::string& path,
                       const std::vector<std::pair<std::string, ArrayView>>& arrays);

/// Reads all arrays of an uncompressed .npz and checks their CRCs.
/// Errors: io, bad_file, unsupported (compressed members).
Result<std::vector<std::pair<std::string, Array>>> read_npz(const std::string& path);

/// CRC-32 as in zip; `crc` continues an earlier call.
uint32_t crc32(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace tfcc::tools

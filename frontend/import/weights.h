// SPDX-License-Identifier: Apache-2.0
// Where the values of a model's tensors come from: spans of the model file, files beside it
// (external data) and values written out in the message. Used by onnx_reader.cpp alone.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/onnx/onnx_reader.h"
#include "ir/constant.h"
#include "runtime/result.h"

namespace onnx {
class TensorProto;
}

namespace tfcc::frontend {

using FileRef = std::shared_ptr<const ir::SourceFile>;

/// Maps a regular file read-only. The source's name is the last part of `path`. Errors: io; the
/// reason alone.
Result<FileRef> map_file(const std::string& path);

/// The data files of a model. A location is taken only if it stays inside the model's folder:
/// relative, without "..", and no part of it a symbolic link.
class ExternalFiles {
 public:
  /// `model_path`: the file whose folder bounds the locations.
  explicit ExternalFiles(const std::string& model_path);
  /// Those of a model in memory: it has no folder, and so no files.
  ExternalFiles() = default;

  /// The file at `location`, mapped once. Errors: io, bad_file; the reason alone.
  Result<FileRef> open(const std::string& location);
  /// The files opened so far, from the model's folder.
  std::vector<std::string> names() const;

 private:
  std::string folder_;  // empty: none
  std::map<std::string, FileRef, std::less<>> files_;
};

/// A tensor as a constant, as packed bytes, or what keeps it from being either.
struct TensorValue {
  std::optional<ir::Constant> constant;
  std::optional<PackedTensor> packed;
  std::string unsupported;  // "has type STRING, which is not supported"
};

/// Decodes a tensor that strip_tensor (strip_weights.h) has prepared. Errors: bad_file, io; the
/// reason alone.
Result<TensorValue> read_tensor(const onnx::TensorProto& tensor, const FileRef& model,
                                ExternalFiles& external);

}  // namespace tfcc::frontend

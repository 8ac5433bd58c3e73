// SPDX-License-Identifier: Apache-2.0
// `tfcc verify --against onnxruntime`: another runtime on the same inputs, and the ONNX node where
// it and the imported graph part. The float64 reference of verify shares the importer with the
// compiler; this does not.
#pragma once

#include <set>
#include <string>

#include "tools/tfcc/peer.h"
#include "tools/tfcc/verify_bisect.h"

namespace tfcc::tools {

struct AgainstOptions {
  std::string kind;   // "onnxruntime"
  std::string model;  // the .onnx file
  std::string python;
  int threads = 0;  // 0: one per core
};

class Against {
 public:
  /// Loads the model with the inputs of one case. Errors: usage (no such peer, no .onnx), as
  /// Peer::start().
  static Result<Against> start(const AgainstOptions& options, const HostTensors& inputs);

  /// "onnxruntime 1.31.1 CPUExecutionProvider".
  const std::string& name() const { return peer_.name(); }
  /// The outputs by name. Errors: as Peer.
  Result<HostTensors> run(const HostTensors& inputs);

  /// The op of the imported graph, by an ONNX value that both have, where the peer and float64
  /// begin to differ by more than `tolerance`. Errors: as Peer, ir::eval.
  Result<std::optional<WrongOp>> first_difference(const ir::Graph& imported, const VerifyCase& c,
                                                  const std::string& output, double tolerance,
                                                  const SearchProgress& progress);

 private:
  explicit Against(Peer peer) : peer_(std::move(peer)) {}
  Result<HostTensors> outputs();
  Peer peer_;
  std::set<std::string> names_;  // of the values that nodes compute
};

}  // namespace tfcc::tools

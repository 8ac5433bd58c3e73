// SPDX-License-Identifier: Apache-2.0
// Another implementation of a model in a process of its own: tools/peers/worker.py under a Python,
// spoken to in lines of JSON. It gets the inputs as .npy files in a temporary folder and times runs
// on request.
#pragma once

#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/result.h"
#include "tools/support/npy.h"

namespace tfcc::tools {

struct PeerOptions {
  std::string kind;   // "onnxruntime", "torch"
  std::string model;  // what it loads; see worker.py
  std::string onnx;   // the model as ONNX where there is one, for a user's script
  std::string mode;   // torch: "compile", "eager"
  std::string python;
  std::string device;  // "cpu", "cuda:0"
  std::string dtype;   // "f32", "f16", "bf16"
  int threads = 1;
};

class Peer {
 public:
  /// Starts the process, which loads the model and runs it. Errors: io, device, invalid_argument:
  /// what the process told.
  static Result<Peer> start(const PeerOptions& options,
                            const std::vector<std::pair<std::string, Array>>& inputs);
  Peer(Peer&& other) noexcept;
  Peer& operator=(Peer&&) = delete;
  ~Peer();

  /// "onnxruntime 1.31.1 CPUExecutionProvider".
  const std::string& name() const { return name_; }
  /// Whether it times by events on the GPU, else by the clock of the host.
  bool by_events() const { return by_events_; }
  /// Milliseconds of `runs` runs after `warm` others. Errors: as start().
  Result<std::vector<double>> run(int runs, int warm);
  /// Other inputs for the runs from here on, of the same names. Errors: as start().
  Result<void> feed(const std::vector<std::pair<std::string, Array>>& inputs);
  /// onnxruntime: these values of the graph are its outputs from here on. Errors: as start().
  Result<void> keep(const std::vector<std::string>& values);
  /// Outputs of one more run; those without a name are in order. Errors: as start().
  Result<std::vector<std::pair<std::optional<std::string>, Array>>> outputs();

 private:
  Peer() = default;
  Result<nlohmann::json> write_inputs(
      const std::vector<std::pair<std::string, Array>>& inputs) const;
  Result<void> spawn(const PeerOptions& options);
  Result<nlohmann::json> ask(const nlohmann::json& request);
  Error gone() const;

  std::string kind_, python_, folder_, name_;
  bool by_events_ = false;
  pid_t pid_ = -1;
  int socket_ = -1;
  std::string received_;  // after the last whole line
};

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/verify_against.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "frontend/onnx/onnx_reader.h"
#include "tools/tfcc/command.h"

namespace tfcc::tools {
namespace {

constexpr size_t kKeptAtOnce = 64;

NamedArrays arrays_of(const HostTensors& tensors) {
  NamedArrays out;
  for (const auto& [name, t] : tensors) out.emplace_back(name, to_array(t));
  return out;
}

}  // namespace

Result<Against> Against::start(const AgainstOptions& o, const HostTensors& inputs) {
  if (o.kind != "onnxruntime")
    return usage_error(fmt::format("--against takes onnxruntime, not '{}'", o.kind));
  if (!o.model.ends_with(".onnx"))
    return usage_error(fmt::format("--against onnxruntime needs an .onnx model, not {}", o.model));
  PeerOptions p;
  p.kind = o.kind;
  p.model = p.onnx = o.model;
  p.python = o.python;
  p.device = "cpu";
  p.dtype = "f32";
  p.threads = o.threads > 0 ? o.threads
                            : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  TFCC_TRY(const frontend::Model model, frontend::read_onnx(o.model));
  TFCC_TRY(Peer peer, Peer::start(p, arrays_of(inputs)));
  Against against(std::move(peer));
  for (const frontend::Node& n : model.nodes)
    against.names_.insert(n.outputs.begin(), n.outputs.end());
  return against;
}

Result<HostTensors> Against::run(const HostTensors& inputs) {
  TFCC_TRY_VOID(peer_.feed(arrays_of(inputs)));
  return outputs();
}

Result<HostTensors> Against::outputs() {
  TFCC_TRY(auto arrays, peer_.outputs());
  HostTensors out;
  for (const auto& [name, array] : arrays) {
    if (name) out[*name] = to_host_tensor(array);
  }
  return out;
}

Result<std::optional<WrongOp>> Against::first_difference(const ir::Graph& imported,
                                                         const VerifyCase& c,
                                                         const std::string& output,
                                                         double tolerance,
                                                         const SearchProgress& progress) {
  TFCC_TRY_VOID(peer_.feed(arrays_of(c.inputs)));
  const auto attempt =
      [&](const std::vector<ir::ValueId>& values) -> Result<std::optional<Differences>> {
    ir::Graph kept = imported;
    kept.outputs.clear();
    std::vector<std::string> names;
    for (ir::ValueId v : values) {
      const std::string& name = imported.value(v).name;
      if (!names_.count(name)) return std::optional<Differences>{};  // the importer's own
      names.push_back(name);
      kept.outputs.push_back({name, v});
    }
    if (!peer_.keep(names)) return std::optional<Differences>{};
    TFCC_TRY(HostTensors theirs, outputs());
    TFCC_TRY(HostTensors exact, ir::eval(kept, c.inputs));
    Differences out;
    for (const std::string& name : names) {
      const auto it = theirs.find(name);
      out.push_back(it == theirs.end()
                        ? std::nullopt
                        : std::optional(compare(it->second, exact.at(name), c.defined)));
    }
    return std::optional(std::move(out));
  };
  const Measure measure = [&](const std::vector<ir::ValueId>& values) {
    return measured_in_parts(values, attempt);
  };
  const SearchOptions options{tolerance, kKeptAtOnce, 40, progress};
  return first_wrong_op(imported, output, measure, options);
}

}  // namespace tfcc::tools

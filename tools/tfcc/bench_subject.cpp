// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tools/tfcc/bench.h"

namespace tfcc::tools {

double Series::quantile(double q) const {
  std::vector<double> s = ms;
  std::sort(s.begin(), s.end());
  return s[std::min(s.size() - 1, static_cast<size_t>(q * static_cast<double>(s.size())))];
}

double Series::mean() const {
  return std::accumulate(ms.begin(), ms.end(), 0.0) / static_cast<double>(ms.size());
}

nlohmann::json json_of(const Series& s) {
  if (s.ms.empty()) return nullptr;
  return {{"min", s.quantile(0)},   {"max", s.quantile(1)},   {"mean", s.mean()},
          {"median", s.median()},   {"p10", s.quantile(0.1)}, {"p90", s.quantile(0.9)},
          {"p99", s.quantile(0.99)}};
}

void Stage::update(double share) {
  if (ms_since(last_) < 200) return;
  last_ = Clock::now();
  progress_.update(name_ + ", percent", static_cast<size_t>(100 * std::clamp(share, 0.0, 1.0)),
                   100);
}

Result<Subject> Subject::make(const BenchOptions& o, const Model& model, NamedArrays& inputs) {
  TFCC_TRY(Executor executor, model.executor());
  Subject s(model, std::move(executor));
  if (model.device() == "cpu") {
    for (auto& [name, a] : inputs)
      TFCC_TRY_VOID(s.executor_.set(name, {a.bytes.data(), a.dtype, a.shape, Place::host}));
    return s;
  }
  const size_t colon = o.device.find(':');
  TFCC_TRY(Device device,
           Device::open(colon == std::string::npos ? 0 : std::atoi(o.device.c_str() + colon + 1)));
  TFCC_TRY_VOID(s.place_on(std::move(device), inputs));
  return s;
}

Result<void> Subject::place_on(Device device, NamedArrays& inputs) {
  Shapes shapes;
  for (auto& [name, a] : inputs) {
    const auto info = std::ranges::find(model_.inputs(), name, &TensorInfo::name);
    if (info != model_.inputs().end() && info->role == InputRole::cu_seqlens) {
      TFCC_TRY_VOID(executor_.set(name, {a.bytes.data(), a.dtype, a.shape, Place::host}));
      shapes.emplace_back(name, a.shape);
      continue;
    }
    TFCC_TRY(void* p, device.upload(a.bytes.data(), a.bytes.size()));
    TFCC_TRY_VOID(executor_.set(name, {p, a.dtype, a.shape, Place::device}));
    shapes.emplace_back(name, a.shape);
  }
  TFCC_TRY_VOID(executor_.prepare(shapes));
  for (const TensorInfo& out : model_.outputs()) {
    TFCC_TRY(auto shape, executor_.output_shape(out.name));
    size_t bytes = size_of(out.dtype);
    for (int64_t d : shape) bytes *= static_cast<size_t>(d);
    TFCC_TRY(void* p, device.upload(nullptr, bytes));
    outputs_.emplace_back(out, TensorRef{p, out.dtype, shape, Place::device});
    TFCC_TRY_VOID(executor_.set(out.name, outputs_.back().second));
  }
  device_ = std::move(device);
  return {};
}

Result<void> Subject::once(Measured& to) {
  const auto t = Clock::now();
  if (to.started_ms.empty()) to.begin = t;
  to.started_ms.push_back(std::chrono::duration<double, std::milli>(t - to.begin).count());
  if (on_host()) {
    TFCC_TRY_VOID(executor_.run());
    to.latency.ms.push_back(ms_since(t));
    return {};
  }
  TFCC_TRY_VOID(device_->start());
  TFCC_TRY_VOID(executor_.enqueue(device_->stream()));
  to.enqueue.ms.push_back(ms_since(t));
  TFCC_TRY(float gpu, device_->stop());
  to.gpu.ms.push_back(static_cast<double>(gpu));
  to.latency.ms.push_back(ms_since(t));
  return {};
}

Result<NamedArrays> Subject::outputs() {
  NamedArrays all;
  if (on_host()) {
    for (const TensorInfo& info : model_.outputs()) {
      TFCC_TRY(Tensor t, executor_.output(info.name));
      Array a = make_array(t.dtype, t.shape);
      if (t.bytes > 0) std::memcpy(a.bytes.data(), t.data, t.bytes);
      all.emplace_back(info.name, std::move(a));
    }
    return all;
  }
  TFCC_TRY_VOID(executor_.status());  // waits
  for (const auto& [info, ref] : outputs_) {
    Array a = make_array(ref.dtype, ref.shape);
    TFCC_TRY_VOID(device_->download(a.bytes.data(), ref.data, a.bytes.size()));
    all.emplace_back(info.name, std::move(a));
  }
  return all;
}

}  // namespace tfcc::tools

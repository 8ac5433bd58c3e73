// SPDX-License-Identifier: Apache-2.0
// node_tests DIR...: runs cases as the onnx package has them (model.onnx,
// test_data_set_0/{input,output}_N.pb) through the importer and the float64 evaluator. A line each,
// "ok", "refused" with the reason, "differs" where it is known why (kErrata), or "WRONG"; the exit
// status is 1 if any is wrong. No CTest, since the package is not ours to have; tests/README.md
// says how to run it.
#include <fmt/format.h>
#include <onnx/onnx.pb.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "frontend/import/import.h"
#include "frontend/onnx/onnx_reader.h"
#include "ir/ir.h"

namespace {

using tfcc::DType;
using tfcc::ir::HostTensor;
namespace fs = std::filesystem;

using Tensors = std::map<std::string, HostTensor>;

int wrong = 0, refused = 0, passed = 0, theirs = 0;

// Cases of onnx 1.19 whose numbers are not what the operators are defined to give, or not in
// float64.
struct Erratum {
  std::string_view prefix, why;
};
constexpr Erratum kErrata[] = {
    {"test_qlinearmatmul_2D_int8", "the package wraps where QLinearMatMul saturates"},
    {"test_qlinearmatmul_3D_int8", "the package wraps where QLinearMatMul saturates"},
    {"test_attention_3d_with_past_and_present_qk_matmul_bias",
     "the package has modes 1 and 2 of qk_matmul_output_mode the other way round (onnx issue 7865)"},
    {"test_attention_4d_with_past_and_present_qk_matmul_bias",
     "the package has modes 1 and 2 of qk_matmul_output_mode the other way round (onnx issue 7865)"},
    {"test_attention_4d_with_qk_matmul_bias",
     "the package has modes 1 and 2 of qk_matmul_output_mode the other way round (onnx issue 7865)"},
    {"test_attention_3d_with_past_and_present_qk_matmul_softcap",
     "the package adds the mask before the soft cap (onnx issue 7865)"},
    {"test_dynamicquantizelinear",
     "quotients that are halves in f32, where kernels divide, and not in float64"},
    {"test_attention_4d_with_qk_matmul_softcap",
     "the package adds the mask before the soft cap (onnx issue 7865)"},
};

const Erratum* erratum(std::string_view name) {
  for (const Erratum& e : kErrata) {
    if (name.starts_with(e.prefix)) return &e;
  }
  return nullptr;
}

void report(const char* what, const std::string& name, const std::string& why) {
  fmt::print("{} {}{}{}\n", what, name, why.empty() ? "" : ": ", why);
}

double tolerance_of(DType t) { return t == DType::f16 ? 2e-3 : t == DType::bf16 ? 2e-2 : 1e-4; }

std::string difference(const HostTensor& got, const HostTensor& want) {
  if (got.dtype != want.dtype)
    return fmt::format("type {}, expected {}", to_string(got.dtype), to_string(want.dtype));
  if (got.dims != want.dims)
    return fmt::format("shape [{}], expected [{}]", fmt::join(got.dims, ","),
                       fmt::join(want.dims, ","));
  for (size_t i = 0; i < want.ints.size(); ++i) {
    if (got.ints[i] != want.ints[i])
      return fmt::format("element {} is {}, expected {}", i, got.ints[i], want.ints[i]);
  }
  const double tolerance = tolerance_of(want.dtype);
  double scale = 0;
  for (double v : want.reals) {
    if (std::isfinite(v)) scale = std::max(scale, std::fabs(v));
  }
  for (size_t i = 0; i < want.reals.size(); ++i) {
    const double a = got.reals[i], b = want.reals[i];
    const bool same = a == b || (std::isnan(a) && std::isnan(b)) ||
                      std::fabs(a - b) <= tolerance * std::max(std::fabs(b), 1e-2 * scale);
    if (!same) return fmt::format("element {} is {}, expected {}", i, a, b);
  }
  return "";
}

tfcc::ir::Constant constant_of(const HostTensor& t) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.element_count()) * size_of(t.dtype));
  for (size_t i = 0; i < t.ints.size(); ++i)
    tfcc::ir::write_int(t.dtype, bytes.data(), i, t.ints[i]);
  for (size_t i = 0; i < t.reals.size(); ++i)
    tfcc::ir::write_real(t.dtype, bytes.data(), i, t.reals[i]);
  return tfcc::ir::constant_from_bytes(t.dtype, t.dims, std::move(bytes));
}

// The onnx package feeds axes and shapes as inputs; exporters have them as initializers. Small
// inputs from the given one on.
tfcc::frontend::Model with_constants(tfcc::frontend::Model model, const Tensors& inputs,
                                     size_t from) {
  for (size_t i = model.inputs.size(); i-- > from;) {
    const auto it = inputs.find(model.inputs[i].name);
    if (it == inputs.end() || it->second.element_count() > 64) continue;
    model.initializers.emplace_back(it->first, constant_of(it->second));
    model.inputs.erase(model.inputs.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return model;
}

void check(const std::string& name, const fs::path& model_path, Tensors inputs,
           const Tensors& want) {
  const auto model = tfcc::frontend::read_onnx(model_path.string());
  if (!model) return ++refused, report("refused", name, model.error().message);
  auto graph = tfcc::frontend::import_onnx(*model);
  for (size_t from : {1, 0}) {
    if (graph) break;
    if (auto again = tfcc::frontend::import_onnx(with_constants(*model, inputs, from)))
      graph = std::move(again);
  }
  if (!graph) {
    const bool broken = graph.error().code == tfcc::ErrorCode::internal;
    broken ? ++wrong : ++refused;
    return report(broken ? "WRONG" : "refused", name, graph.error().message);
  }
  std::erase_if(inputs, [&](const auto& in) {
    return std::none_of(graph->inputs().begin(), graph->inputs().end(),
                        [&](auto v) { return graph->value(v).name == in.first; });
  });
  const auto got = tfcc::ir::eval(*graph, inputs);
  if (!got) return ++wrong, report("WRONG", name, got.error().message);
  for (const auto& [output, tensor] : want) {
    const auto it = got->find(output);
    const std::string why = it == got->end() ? "is missing" : difference(it->second, tensor);
    if (why.empty()) continue;
    if (const Erratum* e = erratum(name))
      return ++theirs, report("differs", name, fmt::format("{}: {}; {}", output, why, e->why));
    return ++wrong, report("WRONG", name, output + ": " + why);
  }
  ++passed;
  report("ok", name, "");
}

// ---- folders of the onnx package ----

template <class T> T element(const std::string& raw, size_t i) {
  T v;
  std::memcpy(&v, raw.data() + i * sizeof(T), sizeof(T));
  return v;
}

bool to_host(const onnx::TensorProto& t, HostTensor& out) {
  const auto dtype = tfcc::frontend::dtype_of_onnx(t.data_type());
  if (!dtype) return false;
  out.dtype = *dtype;
  out.dims.assign(t.dims().begin(), t.dims().end());
  const size_t count = static_cast<size_t>(out.element_count());
  const bool raw = t.has_raw_data();
  for (size_t i = 0; i < count; ++i) {
    const int k = static_cast<int>(i);
    if (raw && is_float(*dtype))
      out.reals.push_back(
          tfcc::ir::read_real(*dtype, reinterpret_cast<const std::byte*>(t.raw_data().data()), i));
    else if (raw)
      out.ints.push_back(
          tfcc::ir::read_int(*dtype, reinterpret_cast<const std::byte*>(t.raw_data().data()), i));
    else if (*dtype == DType::f32) out.reals.push_back(t.float_data(k));
    else if (*dtype == DType::f64) out.reals.push_back(t.double_data(k));
    else if (*dtype == DType::i64) out.ints.push_back(t.int64_data(k));
    else if (is_float(*dtype)) {
      const uint16_t bits = static_cast<uint16_t>(t.int32_data(k));
      out.reals.push_back(
          tfcc::ir::read_real(*dtype, reinterpret_cast<const std::byte*>(&bits), 0));
    } else out.ints.push_back(t.int32_data(k));
  }
  return true;
}

std::optional<HostTensor> read_tensor(const fs::path& path) {
  onnx::TensorProto proto;
  std::ifstream in(path, std::ios::binary);
  HostTensor t;
  if (!in || !proto.ParseFromIstream(&in) || !to_host(proto, t)) return std::nullopt;
  return t;
}

void run_folder(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const auto model = tfcc::frontend::read_onnx((folder / "model.onnx").string());
  if (!model) return ++refused, report("refused", name, model.error().message);
  Tensors inputs, outputs;
  const auto load = [&](const char* kind, const std::vector<tfcc::frontend::ValueInfo>& declared,
                        Tensors& into) {
    for (size_t i = 0; i < declared.size(); ++i) {
      const fs::path path = folder / "test_data_set_0" / fmt::format("{}_{}.pb", kind, i);
      if (!fs::exists(path)) continue;
      if (!declared[i].is_tensor || !declared[i].dtype) continue;
      if (auto t = read_tensor(path)) into[declared[i].name] = *std::move(t);
    }
  };
  load("input", model->inputs, inputs);
  load("output", model->outputs, outputs);
  check(name, folder / "model.onnx", std::move(inputs), outputs);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) run_folder(argv[i]);
  fmt::print("{} ok, {} refused, {} differ for known reasons, {} wrong\n", passed, refused, theirs,
             wrong);
  return wrong > 0 || passed == 0;
}

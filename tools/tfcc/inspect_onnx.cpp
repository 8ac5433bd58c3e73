// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/inspect_onnx.h"

#include <fmt/format.h>
#include <onnx/onnx.pb.h>

#include <algorithm>

#include "frontend/onnx/element_types.h"
#include "ir/ir.h"

namespace tfcc::tools {
namespace {

constexpr const char* kDomain = "tfcc";

void set_type(onnx::ValueInfoProto& info, const std::string& name, const ir::Type& type) {
  info.set_name(name);
  auto& tensor = *info.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(frontend::onnx_type_of(type.dtype));
  for (ir::ExprRef d : type.dims) {
    auto& dim = *tensor.mutable_shape()->add_dim();
    if (const auto n = ir::as_int(d)) dim.set_dim_value(*n);
    else dim.set_dim_param(ir::print(d));
  }
}

void add_attribute(onnx::NodeProto& node, const std::string& key, const std::string& text) {
  onnx::AttributeProto& a = *node.add_attribute();
  a.set_name(key);
  a.set_type(onnx::AttributeProto::STRING);
  a.set_s(text);
}

class Writer {
 public:
  explicit Writer(const ir::Graph& graph) : graph_(graph) {}

  onnx::ModelProto run() {
    onnx::ModelProto model;
    model.set_ir_version(onnx::IR_VERSION);
    model.set_producer_name("tfcc");
    for (const char* domain : {"", kDomain}) {
      auto& opset = *model.add_opset_import();
      opset.set_domain(domain);
      opset.set_version(domain[0] ? 1 : 21);
    }
    out_ = model.mutable_graph();
    out_->set_name("main");
    for (ir::ValueId v : graph_.inputs())
      set_type(*out_->add_input(), graph_.value(v).name, graph_.value(v).type);
    for (ir::OpId o : graph_.order()) {
      if (graph_.op(o).kind == ir::OpKind::constant) constant(graph_.op(o));
      else op(graph_.op(o));
    }
    for (const ir::Graph::Output& output : graph_.outputs) returned(output);
    return model;
  }

 private:
  onnx::NodeProto& node(const ir::Op& op) {
    onnx::NodeProto& n = *out_->add_node();
    n.set_name(graph_.value(op.results[0]).name);
    n.set_op_type(std::string(ir::to_string(op.kind)));
    n.set_domain(kDomain);
    for (ir::ValueId v : op.operands) n.add_input(graph_.value(v).name);
    for (ir::ValueId v : op.results) n.add_output(graph_.value(v).name);
    return n;
  }

  void op(const ir::Op& op) {
    onnx::NodeProto& n = node(op);
    for (const auto& [key, text] : ir::attribute_texts(graph_, op)) add_attribute(n, key, text);
    for (ir::ValueId v : op.results)
      set_type(*out_->add_value_info(), graph_.value(v).name, graph_.value(v).type);
  }

  void constant(const ir::Op& op) {
    const ir::Constant& c = op.as<ir::ConstantAttrs>().constant;
    const std::string& name = graph_.value(op.results[0]).name;
    const bool in_file = c.source == ir::Constant::Source::file;
    if (!c.steps.empty() || (!in_file && c.source != ir::Constant::Source::bytes)) {
      add_attribute(node(op), "recipe", ir::recipe_text(c));
      set_type(*out_->add_value_info(), name, graph_.value(op.results[0]).type);
      return;
    }
    onnx::TensorProto& t = *out_->add_initializer();
    t.set_name(name);
    t.set_data_type(frontend::onnx_type_of(c.dtype));
    for (int64_t d : c.dims) t.add_dims(d);
    if (!in_file) return t.set_raw_data(c.bytes->data(), c.bytes->size());
    t.set_data_location(onnx::TensorProto::EXTERNAL);
    const auto entry = [&](const char* key, const std::string& value) {
      auto& e = *t.add_external_data();
      e.set_key(key);
      e.set_value(value);
    };
    entry("location", c.file->name);
    entry("offset", std::to_string(c.offset));
    entry("length", std::to_string(static_cast<uint64_t>(c.element_count()) * size_of(c.dtype)));
  }

  // An output has a name of its own; a state, which is an input too, one that tells them apart.
  void returned(const ir::Graph::Output& output) {
    const ir::Value& v = graph_.value(output.value);
    if (v.name == output.name) return set_type(*out_->add_output(), v.name, v.type);
    std::string name = output.name;
    while (graph_.find_value(name).value < graph_.value_count() ||
           std::ranges::count(graph_.outputs, name, &ir::Graph::Output::name) >
               (name == output.name))
      name += ".after";
    set_type(*out_->add_output(), name, v.type);
    onnx::NodeProto& n = *out_->add_node();
    n.set_op_type("Identity");
    n.add_input(v.name);
    n.add_output(name);
  }

  const ir::Graph& graph_;
  onnx::GraphProto* out_ = nullptr;
};

}  // namespace

Result<OnnxView> inspect_onnx(const InspectedFile& file) {
  if (file.manifest.plans.empty())
    return Error{ErrorCode::bad_file, file.path + ": there is no plan"};
  const std::string name =
      fmt::format("ir/{}{}.tfir", to_string(file.manifest.plans[0].family), file.suffix());
  TFCC_TRY(const std::string text, file.text(name));
  TFCC_TRY(const ir::Graph graph, ir::parse(text, name));
  const onnx::ModelProto model = Writer(graph).run();
  OnnxView view{model.SerializeAsString(), {}};
  for (const onnx::TensorProto& t : model.graph().initializer()) {
    for (const auto& e : t.external_data()) {
      if (e.key() == "location" && std::ranges::count(view.weights, e.value()) == 0)
        view.weights.push_back(e.value());
    }
  }
  return view;
}

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/inline_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

namespace tfcc::frontend {
namespace {

constexpr size_t kMaxInlinedNodes = 1 << 16;
constexpr int kMaxDepth = 64;

using Rename = std::function<std::string(const std::string&)>;

// One call being expanded: what names and attributes of the function's nodes become.
struct Call {
  const Node* node = nullptr;
  const Function* function = nullptr;
  std::string prefix;
  std::map<std::string, std::string> names;  // of inputs and outputs
};

class Inliner {
 public:
  explicit Inliner(const Model& model) : model_(model) {
    for (const Function& f : model.functions) functions_.emplace(std::pair{f.domain, f.name}, &f);
  }

  Result<Model> run() {
    Model out = model_;
    out.functions.clear();
    out.nodes.clear();
    for (const Node& n : model_.nodes) TFCC_TRY_VOID(expand(n, out.nodes, 0));
    return out;
  }

 private:
  Error fail(ErrorCode code, const Node& n, const std::string& why) const {
    return {code, fmt::format("{}: node '{}' ({}): {}", model_.path, escaped(n.name),
                              escaped(n.op_type), why)};
  }

  Result<void> expand(const Node& n, std::vector<Node>& out, int depth) {
    const auto it = functions_.find({n.domain, n.op_type});
    if (it == functions_.end()) {
      if (++count_ > kMaxInlinedNodes)
        return fail(ErrorCode::unsupported, n,
                    fmt::format("functions expand to more than {} nodes", kMaxInlinedNodes));
      out.push_back(n);
      return expand_bodies(out.back(), depth);
    }
    if (depth > kMaxDepth || !open_.insert(it->second).second)
      return fail(ErrorCode::bad_file, n, "the function calls itself");
    TFCC_TRY_VOID(expand_call(n, *it->second, out, depth));
    open_.erase(it->second);
    return {};
  }

  Result<void> expand_bodies(Node& n, int depth) {
    for (Attribute& a : n.attributes) {
      if (!a.graph || depth > kMaxDepth) continue;
      auto body = std::make_shared<Body>(*a.graph);
      body->nodes.clear();
      for (const Node& inner : a.graph->nodes) TFCC_TRY_VOID(expand(inner, body->nodes, depth + 1));
      a.graph = std::move(body);
    }
    return {};
  }

  Result<void> expand_call(const Node& n, const Function& f, std::vector<Node>& out, int depth) {
    Call call{&n,
              &f,
              fmt::format("{}/{}/", n.name.empty() && !n.outputs.empty() ? n.outputs[0] : n.name,
                          calls_++),
              {}};
    if (n.inputs.size() > f.inputs.size() || n.outputs.size() > f.outputs.size()) {
      return fail(ErrorCode::bad_file, n, "has more inputs or outputs than the function");
    }
    for (size_t i = 0; i < f.inputs.size(); ++i)
      call.names[f.inputs[i]] = i < n.inputs.size() ? n.inputs[i] : "";
    for (size_t i = 0; i < f.outputs.size(); ++i) {
      const std::string& name = i < n.outputs.size() ? n.outputs[i] : std::string();
      if (call.names.count(f.outputs[i])) {
        TFCC_TRY_VOID(pass_through(n, call.names.at(f.outputs[i]), name, out));
      } else if (!name.empty()) {
        call.names[f.outputs[i]] = name;
      }
    }
    for (const Node& inner : f.nodes) TFCC_TRY_VOID(expand(renamed(inner, call), out, depth + 1));
    return {};
  }

  // An output that is an input of the function.
  Result<void> pass_through(const Node& n, const std::string& from, const std::string& to,
                            std::vector<Node>& out) {
    if (to.empty()) return {};
    if (from.empty())
      return fail(ErrorCode::bad_file, n,
                  "an output of the function is an input that is not given");
    Node copy;
    copy.op_type = "Identity";
    copy.name = n.name;
    copy.inputs = {from};
    copy.outputs = {to};
    out.push_back(std::move(copy));
    return {};
  }

  static std::string name_in(const std::string& name, const Call& call) {
    if (name.empty()) return name;
    const auto it = call.names.find(name);
    return it != call.names.end() ? it->second : call.prefix + name;
  }

  static Node renamed(const Node& n, const Call& call) {
    Node out = n;
    out.name = call.prefix + n.name;
    const auto opset = call.function->opsets.find(n.domain);
    if (opset != call.function->opsets.end()) out.opset = opset->second;
    for (std::string& name : out.inputs) name = name_in(name, call);
    for (std::string& name : out.outputs) name = name_in(name, call);
    out.attributes.clear();
    for (const Attribute& a : n.attributes) {
      const Attribute* value = a.reference.empty() ? &a : given(call, a.reference);
      if (!value) continue;  // the caller left it out: the operator's default
      out.attributes.push_back(*value);
      out.attributes.back().name = a.name;
      if (value->graph)
        out.attributes.back().graph = std::make_shared<const Body>(renamed(*value->graph, call));
    }
    return out;
  }

  // A body inside a function may use the function's values by name.
  static Body renamed(const Body& body, const Call& call) {
    Body out = body;
    for (std::string& name : out.outputs) name = name_in(name, call);
    for (auto& [name, constant] : out.initializers) name = name_in(name, call);
    for (Node& n : out.nodes) n = renamed(n, call);
    return out;
  }

  static const Attribute* given(const Call& call, const std::string& name) {
    if (const Attribute* a = call.node->find(name)) return a;
    const auto& defaults = call.function->defaults;
    const auto it = std::find_if(defaults.begin(), defaults.end(),
                                 [&](const Attribute& a) { return a.name == name; });
    return it == defaults.end() ? nullptr : &*it;
  }

  const Model& model_;
  std::map<std::pair<std::string, std::string>, const Function*> functions_;
  std::set<const Function*> open_;
  size_t count_ = 0, calls_ = 0;
};

}  // namespace

Result<Model> inline_functions(const Model& model) { return Inliner(model).run(); }

}  // namespace tfcc::frontend

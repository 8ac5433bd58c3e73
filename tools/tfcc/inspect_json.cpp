// SPDX-License-Identifier: Apache-2.0
// The manifest as JSON, field by field; docs/inspect-json.md describes it.
#include "tools/tfcc/inspect.h"

namespace tfcc::tools {
namespace {

using nlohmann::json;
using runtime::SizeExpr;

class Writer {
 public:
  explicit Writer(const InspectedFile& file) : file_(file), manifest_(file.manifest) {}

  json write() const {
    json j;
    j["schema"] = 1;
    j["file"] = file_.path;
    j["file_bytes"] = file_.artifact.file.size();
    j["format"] =
        std::to_string(runtime::kMajorVersion) + "." + std::to_string(file_.artifact.minor);
    j["producer"] = manifest_.producer;
    j["model"] = manifest_.model;
    j["symbols"] = symbols();
    j["inputs"] = tensors(manifest_.inputs);
    j["outputs"] = tensors(manifest_.outputs);
    j["checks"] = checks(manifest_.checks);
    j["flags"] = json::array();
    for (const runtime::Flag& f : manifest_.flags) j["flags"].push_back(f.message);
    j["weights"] = weights();
    j["sections"] = sections();
    j["targets"] = targets();
    j["generates"] = !manifest_.generation.empty() || manifest_.generation_alone;
    j["no_generation"] = manifest_.no_generation;
    j["ragged"] = !manifest_.ragged.empty();
    j["no_ragged"] = manifest_.no_ragged;
    j["plans"] = json::array();
    for (const runtime::Plan& p : manifest_.plans) j["plans"].push_back(plan(p));
    j["texts"] = json::array();
    for (const runtime::Text& t : manifest_.texts) {
      j["texts"].push_back({{"name", t.name}, {"bytes", t.size}});
    }
    j["report"] = shallow_json(manifest_.report);
    if (j["report"].is_discarded()) j["report"] = nullptr;
    return j;
  }

 private:
  // A size as its text and its value at the sizes asked for.
  json size(const SizeExpr& e) const {
    const auto v = file_.at(e);
    return {{"text", e.print()}, {"value", v ? json(*v) : json()}};
  }

  static json dims(const std::vector<SizeExpr>& dims) {
    json j = json::array();
    for (const SizeExpr& d : dims) j.push_back(d.print());
    return j;
  }

  json symbols() const {
    json j = json::array();
    for (size_t i = 0; i < manifest_.symbols.size(); ++i) {
      const runtime::Symbol& s = manifest_.symbols[i];
      j.push_back({{"name", s.name},
                   {"min", s.min},
                   {"max", s.max ? json(s.max) : json()},
                   {"min_from", s.min_from.empty() ? json() : json(s.min_from)},
                   {"max_from", s.max_from.empty() ? json() : json(s.max_from)},
                   {"typical", s.typical ? json(s.typical) : json()},
                   {"role", s.role == SizeRole::none ? json() : json(to_string(s.role))},
                   {"input", s.derived() ? json() : json(manifest_.inputs[s.input].name)},
                   {"axis", s.derived() ? json() : json(s.axis)},
                   {"multiple", s.times()},
                   {"made", s.made},
                   {"value", file_.sizes[i]}});
    }
    return j;
  }

  // A list of numbers for each size, or the expression that computes its cap.
  json bucket_caps(const runtime::Plan& p) const {
    if (!p.bucket_table) return json();
    json j = json::object();
    for (size_t i = 0; i < p.bucket_table->sizes.size(); ++i) {
      const runtime::SizeCaps& s = p.bucket_table->sizes[i];
      j[manifest_.symbols[i].name] = s.caps.empty() ? json(s.cap.print()) : json(s.caps);
    }
    return j;
  }

  static json tensors(const std::vector<runtime::TensorType>& list) {
    json j = json::array();
    for (const runtime::TensorType& t : list) {
      j.push_back({{"name", t.name}, {"dtype", to_string(t.dtype)}, {"dims", dims(t.dims)}});
      if (t.role != InputRole::none) j.back()["role"] = to_string(t.role);
    }
    return j;
  }

  static json checks(const std::vector<runtime::Check>& list) {
    json j = json::array();
    for (const runtime::Check& c : list) {
      j.push_back(
          {{"condition", c.value.print() + (c.equal ? " == 0" : " >= 0")}, {"message", c.message}});
    }
    return j;
  }

  json weights() const {
    json list = json::array();
    for (const runtime::Weight& w : manifest_.weights) {
      list.push_back({{"name", w.name},
                      {"dtype", to_string(w.dtype)},
                      {"shape", w.shape},
                      {"offset", w.offset},
                      {"bytes", w.size}});
    }
    return {{"count", list.size()}, {"bytes", file_.weight_bytes()}, {"tensors", std::move(list)}};
  }

  json sections() const {
    constexpr const char* kKinds[] = {"unknown", "weights", "code", "text"};
    json j = json::array();
    for (const runtime::Section& s : file_.artifact.sections) {
      const auto kind = static_cast<uint32_t>(s.kind);
      j.push_back({{"kind", kKinds[kind < 4 ? kind : 0]}, {"offset", s.offset}, {"bytes", s.size}});
    }
    return j;
  }

  json targets() const {
    json j = json::array();
    for (const runtime::Target& t : manifest_.targets) {
      j.push_back({{"name", t.name},
                   {"plan", t.plan},
                   {"section", t.section},
                   {"images", t.images.size()},
                   {"code_bytes", file_.code_bytes(t)},
                   {"min_driver", t.min_driver ? json(t.min_driver) : json()}});
    }
    return j;
  }

  json buffer(const runtime::Buffer& b) const {
    json j = {{"name", b.name},
              {"class", class_name(b.place)},
              {"dtype", to_string(b.dtype)},
              {"dims", dims(b.dims)}};
    if (b.place == runtime::BufferClass::arena) {
      j["slot"] = b.index;
      j["offset"] = size(b.offset);
      j["first_use"] = b.first_use;
      j["last_use"] = b.last_use;
    } else {
      j["index"] = b.index;
    }
    return j;
  }

  json launch(const runtime::Plan& p, const runtime::Launch& l) const {
    json j = {{"name", l.name},
              {"ops", l.ops},
              {"flops", size(l.flops)},
              {"bytes", size(l.bytes)},
              {"why", l.why}};
    if (l.kernel) {
      j["kernel"] = p.kernels[l.kernel->kernel].name;
      j["args"] = l.kernel->args;
      if (l.kernel->resident != 0) j["resident"] = l.kernel->resident;
      if (const auto& t = l.kernel->tiles) j["tiles"] = {{"rows", size(t->rows)}, {"of", t->what}};
      j["grid"] = json::array();
      for (const SizeExpr& g : l.kernel->grid) j["grid"].push_back(size(g));
      j["work"] = size(l.kernel->work);
      j["maps"] = json::array();
      for (const runtime::TensorMap& m : l.kernel->maps)
        j["maps"].push_back(
            {{"buffer", m.buffer}, {"rows", size(m.rows)}, {"columns", size(m.columns)}});
    } else {
      const runtime::MatmulLaunch& g = *l.matmul;
      j["product"] = {{"a", g.a},
                      {"b", g.b},
                      {"d", g.d},
                      {"bias", g.has_bias ? json(g.bias) : json()},
                      {"m", size(g.m)},
                      {"n", size(g.n)},
                      {"k", size(g.k)},
                      {"batch", size(g.batch)},
                      {"trans_a", g.trans_a},
                      {"trans_b", g.trans_b},
                      {"alpha", g.alpha},
                      {"in_order", g.in_order},
                      {"tf32", g.tf32},
                      {"side_by_side", g.side_by_side}};
    }
    return j;
  }

  json plan(const runtime::Plan& p) const {
    json j = {{"family", to_string(p.family)},
              {"name", p.name},
              {"precision", p.precision},
              {"limits", checks(p.limits)},
              {"caps", bucket_caps(p)},
              {"no_caps", p.no_bucket_table.empty() ? json() : json(p.no_bucket_table)},
              {"live_bytes", size(p.live_bytes)}};
    const auto arena = file_.arena_bytes(p);
    j["arena_bytes"] = arena ? json(*arena) : json();
    const auto live = file_.live_bytes(p);
    j["live_bytes"]["value"] = live ? json(*live) : json();
    const auto ratio = file_.arena_ratio(p);
    j["arena_ratio"] = ratio ? json(*ratio) : json();
    j["bind"] = p.has_bind ? json(p.kernels[p.bind].name) : json();
    for (const char* key : {"slots", "buffers", "kernels", "buckets", "quadratic_buffers"})
      j[key] = json::array();
    for (const SizeExpr& s : p.slots) j["slots"].push_back(size(s));
    for (const runtime::Buffer& b : p.buffers) j["buffers"].push_back(buffer(b));
    for (const runtime::Kernel& k : p.kernels) {
      j["kernels"].push_back({{"name", k.name},
                              {"op", k.op},
                              {"threads", k.threads},
                              {"shared_bytes", k.shared_bytes},
                              {"starts_early", k.starts_early},
                              {"cluster", k.cluster}});
    }
    for (const runtime::Bucket& b : p.buckets) {
      json launches = json::array();
      for (const runtime::Launch& l : b.launches) launches.push_back(launch(p, l));
      const auto layers = file_.layers(p, b);
      j["buckets"].push_back(
          {{"name", b.name},
           {"limits", checks(b.limits)},
           {"launches", launches},
           {"layers",
            layers ? json{{"count", layers->count}, {"launches", layers->launches}} : json()}});
    }
    for (const runtime::Buffer* b : file_.quadratic_buffers(p))
      j["quadratic_buffers"].push_back(b->name);
    return j;
  }

  const InspectedFile& file_;
  const runtime::Manifest& manifest_;
};

}  // namespace

json shallow_json(std::string_view text) {
  constexpr int kDeepest = 32;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    else if (quoted) i += c == '\\';
    else if (c == '[' || c == '{') ++depth;
    else if (c == ']' || c == '}') --depth;
    if (depth > kDeepest) return json(json::value_t::discarded);
  }
  return json::parse(text, nullptr, false);
}

json to_json(const InspectedFile& file) { return Writer(file).write(); }

}  // namespace tfcc::tools

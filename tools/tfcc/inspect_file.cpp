// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "runtime/binding.h"
#include "tools/tfcc/inspect.h"

namespace tfcc::tools {

using runtime::Buffer;
using runtime::Plan;
using runtime::SizeExpr;

namespace {

constexpr int64_t kBatch = 16,
                  kLength = 128;         // where bytes are given unless --shapes says otherwise
constexpr int64_t kSlotAlignment = 256;  // slots follow each other at multiples of this

std::optional<int64_t> elements(const Buffer& b, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> dims;
  for (const SizeExpr& d : b.dims) {
    const auto v = d.evaluate(sizes);
    if (!v || *v < 0) return std::nullopt;
    dims.push_back(*v);
  }
  return runtime::checked_product(dims);
}

}  // namespace

Result<InspectedFile> InspectedFile::open(const std::string& path) {
  InspectedFile f;
  f.path = path;
  TFCC_TRY(f.map, runtime::MappedFile::open(path));
  TFCC_TRY(f.artifact, runtime::read_artifact(f.map.bytes(), path));
  TFCC_TRY(f.manifest, runtime::read_manifest(f.artifact.manifest, path));
  TFCC_TRY_VOID(runtime::check_manifest(f.manifest, f.artifact, path));
  return f;
}

Result<void> InspectedFile::set_sizes(const NamedShapes& shapes) {
  sizes.clear();
  for (const runtime::Symbol& s : manifest.symbols) {
    const int64_t usual = s.typical ? s.typical : s.axis == 0 ? kBatch : kLength;
    const int64_t wanted = std::max(s.min, usual);
    sizes.push_back(s.max > 0 ? std::min(wanted, s.max) : wanted);
  }
  within_tokens();
  for (const auto& [name, shape] : shapes) {
    const auto input = std::find_if(manifest.inputs.begin(), manifest.inputs.end(),
                                    [&](const auto& i) { return i.name == name; });
    if (input == manifest.inputs.end()) {
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("--shapes: the model has no input '{}'; `tfcc inspect {}` lists them", name,
                      path)};
    }
    if (input->dims.size() != shape.size()) {
      return Error{ErrorCode::shape, fmt::format("--shapes: '{}' has {} dims, not {}", name,
                                                 input->dims.size(), shape.size())};
    }
    for (size_t k = 0; k < shape.size(); ++k) {
      if (const auto s = input->dims[k].lone_symbol()) sizes[*s] = shape[k];
      const auto c = input->dims[k].constant();
      if (c && *c != shape[k]) {
        return Error{ErrorCode::shape,
                     fmt::format("--shapes: axis {} of '{}' is {}, not {}", k, name, *c, shape[k])};
      }
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const runtime::Symbol& s = manifest.symbols[i];
    if (s.derived()) continue;
    if (sizes[i] < s.min || (s.max > 0 && sizes[i] > s.max)) {
      return Error{ErrorCode::shape,
                   fmt::format("--shapes: {} = {} lies outside {}..{}", s.name, sizes[i], s.min,
                               s.max ? std::to_string(s.max) : "")};
    }
  }
  if (!runtime::derive_symbols(manifest, sizes)) {
    return Error{ErrorCode::shape, "--shapes: a size overflows; use smaller shapes"};
  }
  return {};
}

// Fewer rows where the file takes fewer tokens than the usual sizes have.
void InspectedFile::within_tokens() {
  const auto& symbols = manifest.symbols;
  if (symbols.empty() || !symbols.back().derived() || symbols.back().max == 0) return;
  auto at_axis = [&](uint32_t axis) {
    auto s = std::find_if(symbols.begin(), symbols.end(),
                          [&](const auto& x) { return !x.derived() && x.axis == axis; });
    return static_cast<size_t>(s - symbols.begin());
  };
  const size_t batch = at_axis(0), length = at_axis(1);
  if (batch + 1 >= sizes.size() && length + 1 >= sizes.size()) return;
  const int64_t rows = symbols.back().max / std::max<int64_t>(sizes[length], 1);
  sizes[batch] = std::max(std::min(sizes[batch], rows), std::max<int64_t>(symbols[batch].min, 1));
}

std::optional<int64_t> InspectedFile::live_bytes(const Plan& plan) const {
  const runtime::Bucket* b = bucket(plan);
  if (b == nullptr) b = &plan.buckets.back();
  std::vector<int64_t> live(b->launches.size() + 1);
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.place != runtime::BufferClass::arena) continue;
    const auto n = elements(buffer, sizes);
    if (!n || *n > INT64_MAX / 1024 / static_cast<int64_t>(plan.buffers.size())) return std::nullopt;
    for (size_t t = buffer.first_use; t <= buffer.last_use && t < live.size(); ++t) {
      live[t] += *n * static_cast<int64_t>(size_of(buffer.dtype));
    }
  }
  return *std::max_element(live.begin(), live.end());
}

std::optional<double> InspectedFile::arena_ratio(const Plan& plan) const {
  const auto arena = arena_bytes(plan), live = live_bytes(plan);
  if (!arena || !live || *live == 0) return std::nullopt;
  return static_cast<double>(*arena) / static_cast<double>(*live);
}

namespace {

// What a launch does, without the tensors that it does it to.
std::string signature(const Plan& plan, const runtime::Launch& l) {
  if (l.kernel) return plan.kernels[l.kernel->kernel].name;
  const runtime::GemmLaunch& g = *l.gemm;
  std::string s = g.has_bias ? "product with bias" : "product";
  for (const SizeExpr* e : {&g.m, &g.n, &g.k, &g.batch}) s += " " + e->print();
  return s;
}

}  // namespace

std::optional<InspectedFile::Layers> InspectedFile::layers(const Plan& plan, const runtime::Bucket& bucket) const {
  std::vector<std::string> what;
  for (const runtime::Launch& l : bucket.launches) what.push_back(signature(plan, l));
  size_t period = 0, most = 0, end = 0;            // launches that are equal to the one a period before, in a row
  for (size_t p = 1; p < what.size(); ++p) {
    size_t run = 0;
    for (size_t i = p; i < what.size(); ++i) {
      run = what[i] == what[i - p] ? run + 1 : 0;
      if (run > most) most = run, period = p, end = i + 1;
    }
  }
  if (most < 2) return std::nullopt;
  return Layers{(most + period + period / 2) / period, period, end - most - period};
}

std::optional<int64_t> InspectedFile::arena_bytes(const Plan& plan) const {
  int64_t sum = 0;
  for (const SizeExpr& slot : plan.slots) {
    const auto bytes = at(slot);
    if (!bytes || __builtin_add_overflow(sum, *bytes + kSlotAlignment - 1, &sum))
      return std::nullopt;
    sum = sum / kSlotAlignment * kSlotAlignment;
  }
  return sum;
}

const runtime::Bucket* InspectedFile::bucket(const Plan& plan) const {
  for (const runtime::Bucket& b : plan.buckets) {
    const bool holds = std::all_of(b.limits.begin(), b.limits.end(), [&](const runtime::Check& c) {
      const auto v = at(c.value);
      return v && (c.equal ? *v == 0 : *v >= 0);
    });
    if (holds) return &b;
  }
  return nullptr;
}

std::vector<const Buffer*> InspectedFile::quadratic_buffers(const Plan& plan) const {
  // The second difference of a polynomial of degree 2 at steps of v is 2 a v^2; a linear one has
  // none, and rounding in a division leaves far less than v^2.
  constexpr int64_t v = 256;
  std::vector<const Buffer*> out;
  for (const Buffer& b : plan.buffers) {
    if (b.place != runtime::BufferClass::arena) continue;
    for (size_t s = 0; s < sizes.size(); ++s) {
      if (manifest.symbols[s].derived()) continue;
      std::vector<int64_t> at(sizes.size(), 1);
      int64_t f[3] = {};
      bool fits = true;
      for (int i = 0; i < 3; ++i) {
        at[s] = (i + 1) * v;
        fits = fits && runtime::derive_symbols(manifest, at);
        const auto n = elements(b, at);
        fits = fits && n;
        f[i] = n.value_or(0);
      }
      if (fits && f[2] - 2 * f[1] + f[0] < v * v) continue;
      out.push_back(&b);
      break;
    }
  }
  return out;
}

Result<std::string> InspectedFile::text(const std::string& name) const {
  const runtime::Section* section = artifact.find(runtime::SectionKind::text);
  for (const runtime::Text& t : manifest.texts) {
    if (t.name != name || !section) continue;
    TFCC_TRY_VOID(runtime::verify_section(artifact, *section, path));
    const auto bytes = artifact.bytes(*section).subspan(t.offset, t.size);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (manifest.texts.empty()) {
    return Error{ErrorCode::invalid_argument,
                 path + ": holds no text; it was compiled with --strip, compile it again without"};
  }
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("{}: holds no text '{}'; `tfcc inspect --texts` lists them", path, name)};
}

uint64_t InspectedFile::code_bytes(const runtime::Target& target) const {
  uint64_t sum = 0;
  for (const runtime::Image& i : target.images) sum += i.size;
  return sum;
}

uint64_t InspectedFile::weight_bytes() const {
  uint64_t sum = 0;
  for (const runtime::Weight& w : manifest.weights) sum += w.size;
  return sum;
}

const char* class_name(runtime::BufferClass place) {
  constexpr const char* kNames[] = {"in", "out", "arena", "constant", "state"};
  return kNames[static_cast<int>(place)];
}

std::string dims_text(const std::vector<SizeExpr>& dims) {
  std::string s;
  for (const SizeExpr& d : dims) s += (s.empty() ? "" : ",") + d.print();
  return "[" + s + "]";
}

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "runtime/core/binding.h"
#include "tools/tfcc/inspect.h"
#include "tools/support/output_file.h"

namespace tfcc::tools {

using runtime::Buffer;
using runtime::Plan;
using runtime::SizeExpr;

namespace {

constexpr int64_t kBatch = 16,
                  kLength = 128;         // where bytes are given unless --shapes says otherwise
constexpr int64_t kSlotAlignment = 256;  // slots follow each other at multiples of this
constexpr size_t kMostSizes = 64;        // whose squares are looked for; a model has some ten

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
  TFCC_TRY_VOID(note_input(path));
  TFCC_TRY(runtime::MappedFile map, runtime::MappedFile::open(path));
  TFCC_TRY(InspectedFile f, read(map.bytes(), path));
  f.map = std::move(map);
  return f;
}

Result<InspectedFile> InspectedFile::read(std::span<const std::byte> bytes,
                                          const std::string& path) {
  InspectedFile f;
  f.path = path;
  TFCC_TRY(f.artifact, runtime::read_artifact(bytes, path));
  TFCC_TRY(f.manifest, runtime::read_manifest(f.artifact.manifest, path));
  TFCC_TRY_VOID(runtime::check_manifest(f.manifest, f.artifact, path));
  f.generation = f.manifest.generation_alone;
  return f;
}

Result<void> InspectedFile::show_generation() {
  if (manifest.generation.empty() && !manifest.generation_alone) {
    const std::string why = manifest.no_generation.empty() ? "" : ": " + manifest.no_generation;
    return Error{ErrorCode::unsupported, path + ": has no program for generation" + why};
  }
  manifest = runtime::generation_of(manifest);
  generation = true;
  return {};
}

Result<void> InspectedFile::show_ragged() {
  if (manifest.ragged.empty()) {
    return Error{
        ErrorCode::unsupported,
        path + ": has no program without padding: " +
            (manifest.no_ragged.empty() ? "compile it with --ragged" : manifest.no_ragged)};
  }
  manifest = runtime::ragged_of(manifest);
  ragged = true;
  return {};
}

Result<void> InspectedFile::set_sizes(const WantedSizes& wanted) {
  sizes.clear();
  for (const runtime::Symbol& s : manifest.symbols) {
    const int64_t usual = s.typical ? s.typical : s.role == SizeRole::batch ? kBatch : kLength;
    const int64_t at_least = std::max(s.min, usual);
    sizes.push_back(s.max > 0 ? std::min(at_least, s.max) : at_least);
  }
  within_tokens();
  std::vector<InputDims> inputs;
  for (const auto& input : manifest.inputs) {
    inputs.emplace_back(input.name, std::vector<WantedDim>());
    for (const SizeExpr& d : input.dims) inputs.back().second.push_back(WantedDim::of(d.print()));
  }
  const auto usual = [&](const std::string& name) -> Usual {
    for (size_t i = 0; i < sizes.size(); ++i)
      if (manifest.symbols[i].name == name) return {sizes[i], manifest.symbols[i].role};
    return {kLength};
  };
  TFCC_TRY(const SizesByName given, solve_sizes(inputs, wanted, usual));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (const auto it = given.find(manifest.symbols[i].name); it != given.end())
      sizes[i] = it->second;
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
  const runtime::Symbol* batch = with_role(manifest, SizeRole::batch);
  const runtime::Symbol* tokens = with_role(manifest, SizeRole::tokens);
  if (batch == nullptr || tokens == nullptr || tokens->max == 0) return;
  int64_t& rows = sizes[static_cast<size_t>(batch - manifest.symbols.data())];
  const int64_t usual = rows;
  rows = 1;
  const int64_t each = tokens->value.evaluate(sizes).value_or(1);
  rows = std::max(std::min(usual, tokens->max / std::max<int64_t>(each, 1)),
                  std::max<int64_t>(batch->min, 1));
}

std::optional<int64_t> InspectedFile::live_bytes(const Plan& plan) const {
  const runtime::Bucket* b = &plan.buckets.back();  // whose launches first_use and last_use count
  // What each launch adds to what is live before it; what is live at all of them is the sum up to
  // there.
  std::vector<int64_t> change(b->launches.size() + 2);
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.place != runtime::BufferClass::arena) continue;
    const auto n = elements(buffer, sizes);
    if (!n || *n > INT64_MAX / 1024 / static_cast<int64_t>(plan.buffers.size()))
      return std::nullopt;
    const size_t first = buffer.first_use,
                 behind = std::min<size_t>(size_t{buffer.last_use} + 1, change.size() - 1);
    if (first >= behind) continue;
    change[first] += *n * static_cast<int64_t>(size_of(buffer.dtype));
    change[behind] -= *n * static_cast<int64_t>(size_of(buffer.dtype));
  }
  int64_t live = 0, most = 0;
  for (int64_t c : change) most = std::max(most, live += c);
  return most;
}

std::optional<double> InspectedFile::arena_ratio(const Plan& plan) const {
  const auto arena = arena_bytes(plan), live = live_bytes(plan);
  if (!arena || !live || *live == 0) return std::nullopt;
  return static_cast<double>(*arena) / static_cast<double>(*live);
}

namespace {

// Launches as numbers: two that do the same, apart from the tensors that they do it to, have the
// same.
std::vector<size_t> kinds_of(const Plan& plan, const runtime::Bucket& bucket) {
  std::map<std::string, size_t> products;
  std::vector<size_t> kinds;
  for (const runtime::Launch& l : bucket.launches) {
    if (l.kernel) {
      kinds.push_back(l.kernel->kernel);
      continue;
    }
    const runtime::MatmulLaunch& g = *l.matmul;
    std::string s = g.has_bias ? "product with bias" : "product";
    for (const SizeExpr* e : {&g.m, &g.n, &g.k, &g.batch}) s += " " + e->print();
    kinds.push_back(plan.kernels.size() +
                    products.emplace(std::move(s), products.size()).first->second);
  }
  return kinds;
}

/// The longest stretch of launches that comes twice, the two as close as such stretches come: its
/// length, how far apart they are and where the second ends. One that repeats with a period
/// overlaps itself. Takes n log n steps, by sums over stretches.
class Repeat {
 public:
  explicit Repeat(const std::vector<size_t>& kinds)
      : sums_(kinds.size() + 1), powers_(kinds.size() + 1, 1) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      sums_[i + 1] = add(times(sums_[i], kBase), kinds[i] + 1);
      powers_[i + 1] = times(powers_[i], kBase);
    }
    size_t most = kinds.size();
    while (length < most) {
      const size_t middle = length + (most - length + 1) / 2;
      if (find(middle)) length = middle;
      else most = middle - 1;
    }
    (void)(length > 0 && find(length));
  }

  size_t length = 0, period = 0, end = 0;

 private:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1, kBase = 0x1d3f84a5b7c69e21 % kPrime;
  __extension__ using u128 = unsigned __int128;

  static uint64_t times(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(u128{a} * b % kPrime);
  }
  static uint64_t add(uint64_t a, uint64_t b) { return (a + b) % kPrime; }
  uint64_t sum(size_t begin, size_t n) const {
    return add(sums_[begin + n], kPrime - times(sums_[begin], powers_[n]));
  }

  // The closest two equal stretches of n launches, the first such pair.
  bool find(size_t n) {
    std::unordered_map<uint64_t, size_t> last(sums_.size() - n);
    size_t closest = 0, behind = 0;
    for (size_t i = 0; i + n < sums_.size(); ++i) {
      const auto [it, added] = last.emplace(sum(i, n), i);
      if (!added && (closest == 0 || i - it->second < closest))
        closest = i - it->second, behind = i + n;
      it->second = i;
    }
    if (closest > 0) period = closest, end = behind;
    return closest > 0;
  }

  std::vector<uint64_t> sums_, powers_;
};

}  // namespace

std::optional<InspectedFile::Layers> InspectedFile::layers(const Plan& plan,
                                                           const runtime::Bucket& bucket) const {
  const Repeat repeat(kinds_of(plan, bucket));
  if (repeat.length < 2) return std::nullopt;
  return Layers{(repeat.length + repeat.period + repeat.period / 2) / repeat.period, repeat.period,
                repeat.end - repeat.length - repeat.period};
}

std::optional<int64_t> InspectedFile::arena_bytes(const Plan& plan) const {
  int64_t sum = 0;
  for (const SizeExpr& slot : plan.slots) {
    const auto bytes = at(slot);
    if (!bytes || *bytes < 0 || __builtin_add_overflow(sum, *bytes, &sum) ||
        __builtin_add_overflow(sum, kSlotAlignment - 1, &sum))
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
  std::vector<bool> grows(plan.buffers.size());
  size_t looked_at = 0;
  for (size_t s = 0; s < sizes.size() && looked_at < kMostSizes; ++s) {
    if (manifest.symbols[s].derived()) continue;
    ++looked_at;
    std::array<std::vector<int64_t>, 3> at;
    bool fits = true;
    for (size_t i = 0; i < at.size(); ++i) {
      at[i].assign(sizes.size(), 1);
      at[i][s] = static_cast<int64_t>(i + 1) * v;
      fits = fits && runtime::derive_symbols(manifest, at[i]);
    }
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      if (plan.buffers[b].place != runtime::BufferClass::arena || grows[b]) continue;
      std::array<int64_t, 3> f = {};
      bool counted = fits;
      for (size_t i = 0; i < f.size() && counted; ++i) {
        const auto n = elements(plan.buffers[b], at[i]);
        counted = n.has_value() && *n <= INT64_MAX / 4;
        f[i] = n.value_or(0);
      }
      grows[b] = !counted || f[2] - 2 * f[1] + f[0] >= v * v;
    }
  }
  std::vector<const Buffer*> out;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (grows[b]) out.push_back(&plan.buffers[b]);
  }
  return out;
}

Result<std::string> InspectedFile::text(const runtime::Text& t) const {
  const runtime::Section* section = artifact.find(runtime::SectionKind::text);
  if (!section) return std::string();  // check_manifest(): it has no bytes
  if (!texts_verified_) TFCC_TRY_VOID(runtime::verify_section(artifact, *section, path));
  texts_verified_ = true;
  const auto bytes = artifact.bytes(*section).subspan(t.offset, t.size);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::string> InspectedFile::text(const std::string& name) const {
  if (text_index_.empty()) {
    for (const runtime::Text& t : manifest.texts) text_index_.emplace(t.name, &t);
  }
  if (const auto it = text_index_.find(name); it != text_index_.end()) return text(*it->second);
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

uint64_t InspectedFile::weight_bytes() const { return runtime::weight_bytes(manifest); }

const char* class_name(runtime::BufferClass place) {
  constexpr const char* kNames[] = {"in", "out", "arena", "constant", "state"};
  return kNames[static_cast<int>(place)];
}

std::string dims_text(const std::vector<SizeExpr>& dims) {
  std::string s;
  for (const SizeExpr& d : dims) s += (s.empty() ? "" : ",") + d.print();
  return "[" + s + "]";
}

std::string caps_text(const runtime::SizeCaps& caps) {
  constexpr size_t kShown = 5;
  if (caps.caps.empty()) return caps.cap.print();
  std::string s;
  for (size_t i = 0; i < caps.caps.size(); ++i) {
    if (i == kShown && caps.caps.size() > kShown + 2) s += ", ..";
    if (i < kShown || i + 1 == caps.caps.size() || caps.caps.size() <= kShown + 2)
      s += (i ? ", " : "") + std::to_string(caps.caps[i]);
  }
  return s;
}

}  // namespace tfcc::tools

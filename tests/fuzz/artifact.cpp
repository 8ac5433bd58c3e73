// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any manifest and texts as a .tfcc file whose checksums are right (artifact_input.h),
// through all that reads a file without running it: the reader, the choice of a target, the sizes
// and launches of every plan, the buckets, and `tfcc inspect` in all its forms. No code is mapped
// or run.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/core/binding.h"
#include "runtime/core/bucket_finder.h"
#include "runtime/core/model.h"
#include "tests/fuzz/artifact_input.h"
#include "tools/tfcc/inspect.h"
#include "tools/tfcc/inspect_page.h"

namespace {

using namespace tfcc::runtime;
using tfcc::tools::InspectedFile;

constexpr size_t kZeros = 8 << 20;  // of weights and of code: pages that nobody touches

// Header and zeros once, then texts and manifest of each input behind them.
std::span<const std::byte> file_of(const tfcc::fuzz::ArtifactInput& in) {
  static std::vector<std::byte> file(kFirstSection + kZeros);
  file.resize(kFirstSection + kZeros);
  const auto append = [&](std::span<const uint8_t> bytes) {
    const auto* p = reinterpret_cast<const std::byte*>(bytes.data());
    file.insert(file.end(), p, p + bytes.size());
  };
  append(in.texts);
  const size_t manifest = file.size();
  append(in.manifest);
  std::vector<Section> sections;
  for (uint8_t kind : in.kinds) {
    Section s{static_cast<SectionKind>(kind), 0, kFirstSection, kZeros, 0};
    if (s.kind == SectionKind::text) {
      s.offset = kFirstSection + kZeros;
      s.size = in.texts.size();
      s.checksum = checksum(std::span(file).subspan(s.offset, s.size));
    }
    sections.push_back(s);
  }
  Header h = {};
  std::memcpy(h.magic, kMagic, sizeof h.magic);
  h.major = kMajorVersion;
  h.file_bytes = file.size();
  h.manifest_offset = manifest;
  h.manifest_bytes = in.manifest.size();
  h.manifest_checksum = checksum(std::span(file).subspan(manifest));
  h.sections = static_cast<uint32_t>(sections.size());
  h.checksum = header_checksum(h, sections);
  std::memcpy(file.data(), &h, sizeof h);
  if (!sections.empty())
    std::memcpy(file.data() + kHeaderBytes, sections.data(), sections.size() * sizeof(Section));
  return file;
}

// Every plan for these sizes, as a run with inputs of such shapes would have them.
void bind(const Manifest& m, std::vector<int64_t> symbols) {
  if (!derive_symbols(m, symbols)) return;
  std::vector<Shape> shapes(m.inputs.size());
  std::vector<const Shape*> pointers;
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (!evaluate_dims(m.inputs[i], symbols, shapes[i])) return;
    pointers.push_back(&shapes[i]);
  }
  std::vector<int64_t> read;
  const bool agree = static_cast<bool>(read_symbols(m, pointers, read));
  if (agree) symbols = read;  // a size may be one that no input has
  (void)print_symbols(m, symbols);
  for (const Plan& plan : m.plans) {
    (void)arena_size(plan, symbols);
    Binding binding(m, plan);
    if (agree) (void)binding.bind(symbols);
    const BucketFinder buckets(m, plan);
    std::vector<int64_t> largest;
    if (buckets.possible() && buckets.find(symbols, largest)) (void)binding.bind_caps(largest);
    if (buckets.possible()) (void)buckets.up_to(symbols, 1024);
  }
}

void bind_all(const Manifest& m) {
  std::vector<int64_t> least, typical, greatest;
  for (const Symbol& s : m.symbols) {
    least.push_back(s.min);
    greatest.push_back(s.max);
    typical.push_back(s.typical ? s.typical : std::max<int64_t>(s.min, 3));
  }
  for (const auto& symbols : {least, typical, greatest}) bind(m, symbols);
}

// The page takes ten times as long as all the rest: one input in eight, by its bytes, so that a
// finding is one again.
void inspect(InspectedFile& file) {
  if (!file.set_sizes({})) return;
  const uint64_t choice = checksum(file.artifact.manifest) % 8;
  (void)tfcc::tools::inspect_text(file, {});
  if (choice == 0) (void)tfcc::tools::inspect_page(file);
  if (choice > 2) return;
  (void)tfcc::tools::inspect_text(
      file, {.launches = true, .kernels = true, .ir = true, .texts = true, .values = true});
  for (const Text& t : file.manifest.texts) (void)file.text(t.name);
  (void)to_json(file).dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto in = tfcc::fuzz::ArtifactInput::parse({data, size});
  if (!in) return 0;
  auto file = InspectedFile::read(file_of(*in), "file");
  if (!file) return 0;
  (void)choose_target(file->manifest, "cpu", "file");
  bind_all(file->manifest);
  inspect(*file);
  return 0;
}

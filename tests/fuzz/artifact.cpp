// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a .tfcc file, up to the point where its code would be loaded: container, manifest, choice of a
// target and the sizes of every plan. No code is mapped or run. Checksums are made right first; else nothing gets past them.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/binding.h"
#include "runtime/model.h"

namespace {

using namespace tfcc::runtime;

void repair(std::vector<std::byte>& file) {
  Header h;
  if (file.size() < kFirstSection) return;
  std::memcpy(&h, file.data(), sizeof h);
  h.file_bytes = file.size();
  if (h.sections > kMaxSections) return;
  if (h.manifest_offset <= file.size()) {
    h.manifest_bytes = std::min<uint64_t>(h.manifest_bytes, file.size() - h.manifest_offset);
    h.manifest_checksum = checksum(std::span(file).subspan(h.manifest_offset, h.manifest_bytes));
  }
  std::vector<Section> sections(h.sections);
  if (!sections.empty()) std::memcpy(sections.data(), file.data() + kHeaderBytes, sections.size() * sizeof(Section));
  h.checksum = header_checksum(h, sections);
  std::memcpy(file.data(), &h, sizeof h);
}

// Every plan at the least and at the greatest sizes of its symbols.
void bind(const Manifest& m) {
  for (const bool greatest : {false, true}) {
    std::vector<int64_t> symbols;
    for (const Symbol& s : m.symbols) symbols.push_back(greatest ? s.max : s.min);
    if (!derive_symbols(m, symbols)) continue;
    for (const Plan& plan : m.plans) {
      Binding binding(m, plan);
      (void)binding.bind(symbols);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> file(size);
  std::transform(data, data + size, file.begin(), [](uint8_t b) { return std::byte{b}; });
  repair(file);
  auto artifact = read_artifact(file, "file");
  if (!artifact) return 0;
  auto manifest = read_manifest(artifact->manifest, "file");
  if (!manifest || !check_manifest(*manifest, *artifact, "file")) return 0;
  (void)choose_target(*manifest, "cpu", "file");
  bind(*manifest);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Changes the manifest of a .tfcc file field by field, and its texts one by one, so that what
// libFuzzer tries is nearly always a manifest and often one that the reader takes. One time in
// sixteen bytes change instead.
#include <algorithm>
#include <string>
#include <vector>

#include "runtime/core/manifest.pb.h"
#include "tests/fuzz/artifact_input.h"
#include "tests/fuzz/message_mutator.h"

namespace {

// Other bytes for one text, the rest where it was: offsets and sizes follow.
void change_text(tfcc::manifest::Manifest& m, std::string& texts, tfcc::fuzz::Mutator& mutator) {
  if (m.texts_size() == 0) return;
  auto* text =
      m.mutable_texts(static_cast<int>(mutator.below(static_cast<size_t>(m.texts_size()))));
  if (text->offset() > texts.size() || text->size() > texts.size() - text->offset()) return;
  const size_t offset = text->offset(), size = text->size();
  std::string changed = texts.substr(offset, size);
  changed.resize(size + 64);
  changed.resize(
      LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(changed.data()), size, changed.size()));
  texts.replace(offset, size, changed);
  for (auto& t : *m.mutable_texts()) {
    if (t.offset() > offset) t.set_offset(t.offset() + changed.size() - size);
  }
  text->set_size(changed.size());
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  tfcc::fuzz::Mutator mutator(seed);
  const auto in = tfcc::fuzz::ArtifactInput::parse({data, size});
  tfcc::manifest::Manifest manifest;
  if (mutator.below(16) == 0 || !in ||
      !manifest.ParseFromArray(in->manifest.data(), static_cast<int>(in->manifest.size()))) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::string texts(in->texts.begin(), in->texts.end());
  for (size_t changes = 1 + mutator.below(3); changes > 0; --changes) {
    if (mutator.below(6) == 0) change_text(manifest, texts, mutator);
    else mutator.change(manifest);
  }
  std::string out(data, data + 1 + in->kinds.size());
  const auto texts_size = static_cast<uint32_t>(texts.size());
  out.append(reinterpret_cast<const char*>(&texts_size), sizeof texts_size);
  out += texts;
  if (!manifest.AppendToString(&out) || out.size() > max_size)
    return LLVMFuzzerMutate(data, size, max_size);
  std::copy(out.begin(), out.end(), data);
  return out.size();
}

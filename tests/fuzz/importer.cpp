// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as an ONNX file, through the reader and the importer. What imports must be
// a well-formed graph.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "frontend/import/import.h"
#include "ir/ir.h"

namespace {

namespace fs = std::filesystem;

// A folder with nothing else in it, so that no input reaches other files as external data.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "tfcc-fuzz-XXXXXX").string();
    if (!mkdtemp(name.data())) std::abort();
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  const std::string file = folder.path / "model.onnx";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  auto model = tfcc::frontend::read_onnx(file);
  if (!model) return 0;
  auto graph = tfcc::frontend::import_onnx(*model);
  if (!graph) {
    if (graph.error().code != tfcc::ErrorCode::internal) return 0;
    std::fprintf(stderr, "%s\n", graph.error().message.c_str());
    std::abort();
  }
  if (const auto problems = verify(*graph); !problems.empty()) {
    std::fprintf(stderr, "imported, but not well formed: %s\n", to_string(problems[0]).c_str());
    std::abort();
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// onnx_from_text IN OUT: models in ONNX's text form to binary ones, each as its graph's name, its
// size and its bytes. A program of its own, since libonnx and the importer each bring the schema. A
// model begins with a line "<ir_version".
#include <onnx/defs/parser.h>

#include <fstream>
#include <iostream>
#include <sstream>

namespace {

bool convert(const std::string& text, std::ostream& out) {
  onnx::ModelProto model;
  onnx::OnnxParser parser(text.c_str());
  const auto status = parser.Parse(model);
  if (!status.IsOK()) {
    std::cerr << status.ErrorMessage() << "\nin\n" << text;
    return false;
  }
  const std::string bytes = model.SerializeAsString();
  out << model.graph().name() << ' ' << bytes.size() << '\n' << bytes << '\n';
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::ifstream in(argv[1]);
  std::ofstream out(argv[2], std::ios::binary);
  std::string line, text;
  bool ok = true;
  while (std::getline(in, line)) {
    if (line.starts_with("<ir_version") && !text.empty()) {
      ok = convert(text, out) && ok;
      text.clear();
    }
    if (!line.starts_with("#")) text += line + "\n";
  }
  return ok && !text.empty() && convert(text, out) && out.flush() ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
// Every operator that the importer knows is in a model of tests/frontend/import or tests/frontend/operators.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "frontend/import/import.h"

namespace tfcc::frontend {
namespace {

TEST(Operators, EachHasAnImportTest) {
  std::ostringstream text;
  for (const char* folder : {"/tests/frontend/import", "/tests/frontend/operators"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(TFCC_SOURCE_DIR) + folder)) {
      if (entry.path().extension() != ".onnxtxt" || entry.path().stem() == "errors") continue;
      text << std::ifstream(entry.path()).rdbuf();
    }
  }
  const std::string models = text.str();
  for (const OperatorInfo& op : supported_operators()) {
    const std::string name = op.domain.empty() ? op.name : op.domain + "." + op.name;
    bool used = false;
    for (const char* next : {"(", "<", " (", " <"})
      used = used || models.find(" " + name + next) != std::string::npos;
    EXPECT_TRUE(used) << name;
  }
}

}  // namespace
}  // namespace tfcc::frontend

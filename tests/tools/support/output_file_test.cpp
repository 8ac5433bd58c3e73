// SPDX-License-Identifier: Apache-2.0
// No output takes the place of an input or of another output, by whatever name the two go.
#include "tools/support/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tfcc-output-test-XXXXXX").string();
    ASSERT_TRUE(mkdtemp(name.data()));
    dir_ = name + "/";
    fs::create_directory(dir_ + "sub");
    std::ofstream(dir_ + "model") << "precious";
    fs::create_symlink("model", dir_ + "symlink");
    fs::create_hard_link(dir_ + "model", dir_ + "hardlink");
    process_files().forget();
  }
  void TearDown() override {
    process_files().forget();
    fs::remove_all(dir_);
  }

  static void expect_refused(const Result<void>& planned, const std::string& text) {
    ASSERT_FALSE(planned) << text;
    EXPECT_EQ(planned.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(planned.error().message.find(text), std::string::npos) << planned.error().message;
  }

  std::string dir_;
};

TEST_F(OutputFileTest, AnInputIsNoOutput) {
  ASSERT_TRUE(note_input(dir_ + "model"));
  for (const char* name : {"model", "./model", "sub/../model", "symlink", "hardlink"}) {
    expect_refused(plan_output("--report", dir_ + name),
                   "--report: " + dir_ + name + " is the file");
    EXPECT_FALSE(OutputFile::create(dir_ + name)) << name;
  }
  EXPECT_TRUE(plan_output("--report", dir_ + "other"));
  EXPECT_TRUE(plan_output("--html", ""));
}

TEST_F(OutputFileTest, AnInputFoundLaterIsNoOutputEither) {
  ASSERT_TRUE(plan_output("-o", dir_ + "hardlink"));
  expect_refused(note_input(dir_ + "model"),
                 "-o: " + dir_ + "hardlink is the file " + dir_ + "model, which is read");
}

TEST_F(OutputFileTest, OutputsThatAreNotThereYetAreToldApartByTheirPlace) {
  ASSERT_TRUE(plan_output("-o", dir_ + "new"));
  expect_refused(plan_output("--report", dir_ + "sub/../new"), "which -o writes");
  EXPECT_TRUE(plan_output("--report", dir_ + "sub/new"));
  std::ofstream(dir_ + "new") << "written since";
  expect_refused(plan_output("--html", dir_ + "new"), "which -o writes");
}

TEST_F(OutputFileTest, AReplacedFileKeepsItsPlace) {
  ASSERT_TRUE(plan_output("-o", dir_ + "model"));
  auto file = OutputFile::create(dir_ + "model");
  ASSERT_TRUE(file && file->commit());  // the name has another inode now
  expect_refused(plan_output("--report", dir_ + "model"), "which -o writes");
}

TEST_F(OutputFileTest, AFileWithTheTemporaryNameStays) {
  const std::string taken = dir_ + "new.tmp." + std::to_string(getpid());
  fs::create_symlink("model", taken);
  auto file = OutputFile::create(dir_ + "new");
  ASSERT_TRUE(file && file->write("x", 1) && file->commit());
  EXPECT_TRUE(fs::is_symlink(taken));
  EXPECT_EQ(fs::file_size(dir_ + "model"), 8u);
  EXPECT_EQ(fs::file_size(dir_ + "new"), 1u);
}

TEST_F(OutputFileTest, PipesAndDevicesAreNobodys) {
  ASSERT_EQ(mkfifo((dir_ + "pipe").c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/null"), dir_ + "pipe"}) {
    EXPECT_TRUE(note_input(path));
    EXPECT_TRUE(plan_output("-o", path));
    EXPECT_TRUE(plan_output("--report", path));
  }
}

}  // namespace
}  // namespace tfcc::tools

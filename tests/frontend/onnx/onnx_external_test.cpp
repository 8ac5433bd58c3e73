// SPDX-License-Identifier: Apache-2.0
// External data: files beside the model, and locations and ranges that are refused.
#include <sys/stat.h>

#include "tests/frontend/onnx/onnx_fixture.h"

namespace tfcc::frontend {
namespace {

TEST_F(OnnxReader, reads_external_data) {
  write("w.bin", "1234" + bytes_of({1, 2, 3}) + "rest");
  for (const char* location : {"w.bin", "./w.bin"}) {
    Result<Model> m = read_external(location, "4", "12");
    ASSERT_TRUE(m) << m.error().message;
    const ir::Constant& c = m->initializers[0].second;
    EXPECT_EQ(c.file->name, "w.bin");
    EXPECT_EQ(c.offset, 4u);
    EXPECT_EQ(floats_of(c), (std::vector<float>{1, 2, 3}));
  }
  fs::create_directory(folder_ / "m/sub");
  write("sub/w.bin", bytes_of({4, 5, 6}));
  Result<Model> m = read_external("sub/w.bin");
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(floats_of(m->initializers[0].second), (std::vector<float>{4, 5, 6}));
}

TEST_F(OnnxReader, maps_an_external_file_once) {
  write("w.bin", bytes_of({1, 2, 3}));
  onnx::ModelProto m = small_model();
  onnx::TensorProto t = raw_tensor("a", {1}, {});
  t.clear_raw_data();
  t.set_data_location(onnx::TensorProto::EXTERNAL);
  t.add_external_data()->set_key("location");
  t.mutable_external_data(0)->set_value("w.bin");
  *m.mutable_graph()->add_initializer() = t;
  t.set_name("b");
  t.mutable_external_data(0)->set_value(".//w.bin");
  *m.mutable_graph()->add_initializer() = t;
  Result<Model> model = read(m);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->initializers[1].second.file, model->initializers[2].second.file);
}

TEST_F(OnnxReader, refuses_locations_outside_of_the_folder) {
  std::ofstream(folder_ / "secret.bin") << "0123456789abcdef";
  write("w.bin", bytes_of({1, 2, 3}));
  fs::create_directory(folder_ / "m/sub");
  fs::create_symlink(folder_ / "secret.bin", folder_ / "m/link.bin");
  fs::create_symlink("w.bin", folder_ / "m/inner.bin");
  fs::create_symlink(folder_, folder_ / "m/up");
  ASSERT_EQ(mkfifo((folder_ / "m/pipe").c_str(), 0600), 0);
  const auto check = [&](const std::string& location, const std::string& reason) {
    const Result<Model> m = read_external(location);
    EXPECT_EQ(error_of(m),
              "model.onnx: initializer 'w': external data '" + escaped(location) + "' " + reason);
  };
  const std::string outside = "contains '..'; only files in the model's folder are read";
  const std::string link = "is a symbolic link; put the file itself into the model's folder";
  check("../secret.bin", outside);
  check("..", outside);
  check("sub/../../secret.bin", outside);
  check((folder_ / "secret.bin").string(),
        "is an absolute path; only files in the model's folder are read");
  check("link.bin", link);
  check("inner.bin", link);
  check("up/secret.bin", link);
  check("sub", "is a directory; give the file");
  check(".", "names a directory; export the model again");
  check("", "has no location; export the model again");
  check(std::string("w.bin\0x", 7), "has a NUL in its location");
  check("pipe", "is not a regular file; copy it to one");
  check("missing.bin", "is missing; put it into the model's folder");
  check("w.bin/x", "cannot be opened (Not a directory)");
}

TEST_F(OnnxReader, refuses_external_ranges_that_lie) {
  write("w.bin", bytes_of({1, 2, 3}));
  const auto message = [&](const char* offset, const char* length) {
    return error_of(read_external("w.bin", offset, length));
  };
  const std::string start = "model.onnx: initializer 'w': ";
  EXPECT_EQ(message("1", ""), start +
                                  "external data 'w.bin' has 12 bytes, too few for 12 at offset 1; "
                                  "copy the file again");
  EXPECT_EQ(message("-1", ""),
            start + "has the offset '-1', which is not a number from 0 to 2^63-1");
  EXPECT_EQ(message("9223372036854775807", "").find(start + "external data"), 0u);
  EXPECT_EQ(message("99999999999999999999", "").find(start + "has the offset"), 0u);
  EXPECT_EQ(message("0x0", "").find(start + "has the offset"), 0u);
  EXPECT_EQ(message("0", "-12").find(start + "has the length"), 0u);
  EXPECT_EQ(message("0", "8").find(start + "holds 8 bytes where f32[3] needs 12"), 0u);
  EXPECT_EQ(message("0", "9223372036854775807").find(start + "holds"), 0u);
}

}  // namespace
}  // namespace tfcc::frontend

// SPDX-License-Identifier: Apache-2.0
// .npy and .npz: round trips of every dtype, files that must be refused, and NumPy as the judge
// where it is installed.
#include "tools/support/npy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "tools/support/npz.h"
#include "tools/support/output_file.h"

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;

class NpyTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tfcc-npy-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  static Result<Array> parse(const std::string& bytes) {
    return parse_npy(std::as_bytes(std::span(bytes)), "x.npy");
  }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

Array numbered(DType dtype, std::vector<int64_t> shape) {
  Array a = make_array(dtype, std::move(shape));
  for (size_t i = 0; i < a.bytes.size(); ++i)
    a.bytes[i] = static_cast<std::byte>(dtype == DType::boolean ? i % 2 : (i * 7) % 120);
  return a;
}

void expect_equal(const Array& a, const Array& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.bytes, b.bytes);
}

std::string file_of(const std::string& dict, size_t data_bytes, char version = 1) {
  std::string out = "\x93NUMPY";
  out += version;
  out += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) out += static_cast<char>(dict.size() >> (8 * i));
  return out + dict + std::string(data_bytes, '\1');
}

TEST_F(NpyTest, RoundTripsEveryDtypeAndShape) {
  for (int t = 0; t < kDTypeCount; ++t) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {3}, {2, 5}, {2, 0, 4}, {1, 2, 3, 4}}) {
      const Array a = numbered(static_cast<DType>(t), shape);
      ASSERT_TRUE(write_npy(path("a.npy"), a));
      const Result<Array> b = read_npy(path("a.npy"));
      ASSERT_TRUE(b) << b.error().message;
      expect_equal(a, *b);
    }
  }
}

TEST_F(NpyTest, HeaderIsAlignedTo64Bytes) {
  for (int64_t n = 1; n < 1000000000000; n *= 10)
    EXPECT_EQ(npy_header(DType::f32, std::vector<int64_t>{n, n}).size() % 64, 0u) << n;
}

TEST_F(NpyTest, ReadsVersionTwoAndThree) {
  for (char version : {2, 3}) {
    const Result<Array> a =
        parse(file_of("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n", 8, version));
    ASSERT_TRUE(a) << a.error().message;
    EXPECT_EQ(a->shape, std::vector<int64_t>{2});
  }
}

TEST_F(NpyTest, RefusesWithTheReason) {
  struct Case {
    std::string file;
    ErrorCode code;
    const char* text;
  };
  const std::string shape2 = "'shape': (2,)}";
  const Case cases[] = {
      {"", ErrorCode::bad_file, "no NUMPY magic"},
      {"PK\3\4 this is a zip", ErrorCode::bad_file, "no NUMPY magic"},
      {file_of("", 0, 9), ErrorCode::bad_file, "version 9"},
      {file_of("{'descr': '<f4', 'fortran_order': True, " + shape2, 8), ErrorCode::unsupported,
       "ascontiguousarray"},
      {file_of("{'descr': '>f4', 'fortran_order': False, " + shape2, 8), ErrorCode::unsupported,
       "big-endian"},
      {file_of("{'descr': '<c8', 'fortran_order': False, " + shape2, 16), ErrorCode::unsupported,
       "'<c8'"},
      {file_of("{'descr': [('a', '<f4')], 'fortran_order': False, " + shape2, 8),
       ErrorCode::bad_file, "header"},
      {file_of("{'descr': '<f4', " + shape2, 8), ErrorCode::bad_file, "header"},
      {file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2", 8), ErrorCode::bad_file,
       "header"},
      {file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8), ErrorCode::bad_file,
       "header"},
      {file_of("{'descr': '<f4', 'fortran_order': False, " + shape2, 7), ErrorCode::bad_file,
       "truncated"},
      {file_of("{'descr': '<f4', 'fortran_order': False, " + shape2, 9), ErrorCode::bad_file,
       "too long"},
      {file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999, 9999999999999)}",
               8),
       ErrorCode::bad_file, "too large"},
      {file_of("{'descr': '<f4', 'fortran_order': False, " + shape2, 8).substr(0, 30),
       ErrorCode::bad_file, "truncated"},
  };
  for (const Case& c : cases) {
    const Result<Array> a = parse(c.file);
    ASSERT_FALSE(a) << c.text;
    EXPECT_EQ(a.error().code, c.code) << a.error().message;
    EXPECT_NE(a.error().message.find(c.text), std::string::npos) << a.error().message;
    EXPECT_EQ(a.error().message.find("x.npy: "), 0u) << a.error().message;
  }
}

TEST_F(NpyTest, EveryTruncationIsAnError) {
  const Array a = numbered(DType::i16, {3, 4});
  ASSERT_TRUE(write_npy(path("a.npy"), a));
  const std::vector<std::byte> file = *read_file(path("a.npy"));
  for (size_t n = 0; n < file.size(); ++n)
    EXPECT_FALSE(parse_npy(std::span(file).first(n), "x.npy")) << n;
}

TEST_F(NpyTest, MissingFileAndFolderAreNamed) {
  const Result<Array> a = read_npy(path("none.npy"));
  ASSERT_FALSE(a);
  EXPECT_EQ(a.error().code, ErrorCode::io);
  EXPECT_NE(a.error().message.find("none.npy: cannot open"), std::string::npos);
  const Result<void> b = write_npy(path("none/a.npy"), numbered(DType::f32, {2}));
  ASSERT_FALSE(b);
  EXPECT_NE(b.error().message.find("check that the folder exists"), std::string::npos);
  EXPECT_FALSE(write_npy(folder_.string(), numbered(DType::f32, {2})));
}

TEST_F(NpyTest, FullDiskIsReportedAndNothingIsLeft) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const Result<void> r = write_npy("/dev/full", numbered(DType::f32, {2}));
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("free space"), std::string::npos) << r.error().message;
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  {
    Result<OutputFile> file = OutputFile::create(path("half.npy"));
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("abc", 3));
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(NpyTest, NpzRoundTripsInOrder) {
  const Array a = numbered(DType::f32, {2, 3}), b = numbered(DType::i64, {}),
              c = numbered(DType::f16, {5});
  ASSERT_TRUE(write_npz(path("a.npz"), {{"zeta", a}, {"alpha.0", b}, {"with/slash", c}}));
  EXPECT_EQ(files(), 1u);
  const auto read = read_npz(path("a.npz"));
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->size(), 3u);
  EXPECT_EQ((*read)[0].first, "zeta");
  EXPECT_EQ((*read)[2].first, "with/slash");
  expect_equal((*read)[0].second, a);
  expect_equal((*read)[1].second, b);
  expect_equal((*read)[2].second, c);
  EXPECT_FALSE(write_npz(path("b.npz"), {{"x", a}, {"x", b}}));
  EXPECT_EQ(files(), 1u);
}

TEST_F(NpyTest, NpzOfNothingIsReadable) {
  ASSERT_TRUE(write_npz(path("a.npz"), {}));
  const auto read = read_npz(path("a.npz"));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->empty());
}

TEST_F(NpyTest, NpzDamageIsFound) {
  ASSERT_TRUE(write_npz(path("a.npz"), {{"x", numbered(DType::u8, {40})}}));
  const std::vector<std::byte> whole = *read_file(path("a.npz"));
  const auto store = [&](const std::vector<std::byte>& bytes) {
    put("b.npz", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  };
  for (size_t n = 0; n < whole.size(); ++n) {
    store({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)});
    EXPECT_FALSE(read_npz(path("b.npz"))) << n;
  }
  std::vector<std::byte> flipped = whole;
  flipped[150] ^= std::byte{1};  // inside the data
  store(flipped);
  const auto read = read_npz(path("b.npz"));
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("CRC"), std::string::npos) << read.error().message;
}

TEST_F(NpyTest, Crc32HasTheCheckValue) {
  EXPECT_EQ(crc32("123456789", 9), 0xcbf43926u);
  EXPECT_EQ(crc32("6789", 4, crc32("12345", 5)), 0xcbf43926u);
}

TEST_F(NpyTest, AgreesWithNumpy) {
  if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0)
    GTEST_SKIP() << "python3 with numpy is not installed";
  std::vector<std::pair<std::string, ArrayView>> views;
  std::vector<Array> arrays;
  for (int t = 0; t < kDTypeCount; ++t)
    if (static_cast<DType>(t) != DType::bf16)
      arrays.push_back(numbered(static_cast<DType>(t), {2, 3, 1}));
  for (const Array& a : arrays) views.emplace_back(to_string(a.dtype), a);
  ASSERT_TRUE(write_npz(path("a.npz"), views));
  ASSERT_TRUE(write_npy(path("a.npy"), arrays[0]));
  std::ofstream(path("t.py"))
      << "import numpy as np, sys\n"
         "f = sys.argv[1]\n"
         "z = dict(np.load(f + '/a.npz'))\n"
         "want = dict(f32='f4', f16='f2', f64='f8', i64='i8', i32='i4', i16='i2', i8='i1', u8='u1', bool='?')\n"
         "assert sorted(z) == sorted(want), sorted(z)\n"
         "assert all(z[k].dtype == np.dtype(want[k]) and z[k].shape == (2, 3, 1) for k in z)\n"
         "assert (np.load(f + '/a.npy') == z['f32']).all()\n"
         "assert z['i64'].ravel()[0] == int.from_bytes(bytes(i * 7 % 120 for i in range(8)), 'little')\n"
         "np.savez(f + '/b.npz', **z)\n"
         "np.save(f + '/f.npy', np.asfortranarray(np.ones((2, 3))))\n";
  ASSERT_EQ(std::system(("python3 " + path("t.py") + " " + folder_.string()).c_str()), 0);
  const auto back = read_npz(path("b.npz"));
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(back->size(), arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) expect_equal((*back)[i].second, arrays[i]);
  EXPECT_FALSE(read_npy(path("f.npy")));
}

}  // namespace
}  // namespace tfcc::tools

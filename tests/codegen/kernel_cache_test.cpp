// SPDX-License-Identifier: Apache-2.0
// The kernel cache: what is put is got, by anybody, and nothing that happens to the folder is an
// error.
#include "codegen/kernel_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "codegen/templates.h"

namespace {

namespace fs = std::filesystem;
using namespace tfcc::codegen;

class KernelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tfcc-cache-test-XXXXXX").string();
    ASSERT_TRUE(mkdtemp(name.data()));
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  static std::vector<std::byte> bytes(size_t size, int seed) {
    std::vector<std::byte> b(size);
    for (size_t i = 0; i < size; ++i)
      b[i] = static_cast<std::byte>((i * 31 + static_cast<size_t>(seed) * 7) & 255);
    return b;
  }
  static CacheKey key(int k) {
    return {{static_cast<uint64_t>(k), 5}, "kernel " + std::to_string(k)};
  }
  std::string entry(int k) const { return dir_ + "/kernels/" + key(k).hex(); }
  KernelCache open(uint64_t max_bytes = 1 << 30) const {
    return KernelCache({dir_, true, max_bytes});
  }

  std::string dir_;
};

TEST_F(KernelCacheTest, FindsWhatAnotherPutThere) {
  EXPECT_FALSE(open().get(key(1)));
  open().put(key(1), bytes(1000, 1));
  open().put(key(2), {});
  ASSERT_TRUE(open().get(key(1)));
  EXPECT_EQ(*open().get(key(1)), bytes(1000, 1));
  ASSERT_TRUE(open().get(key(2)));
  EXPECT_TRUE(open().get(key(2))->empty());
  EXPECT_FALSE(open().get(key(3)));
}

TEST_F(KernelCacheTest, AnotherContentOfTheSameHashIsNotFound) {
  CacheKey other = key(1);
  other.content = "kernel l";
  open().put(key(1), bytes(10, 1));
  EXPECT_FALSE(open().get(other));
  EXPECT_TRUE(open().get(key(1)));
  open().put(other, bytes(10, 2));
  EXPECT_EQ(*open().get(other), bytes(10, 2));
  EXPECT_FALSE(open().get(key(1)));
}

TEST_F(KernelCacheTest, EveryDamagedByteIsNoticedAndTheEntryRemoved) {
  const size_t size = 32 + 8 + 40;
  for (size_t at = 0; at < size; ++at) {
    open().put(key(1), bytes(40, 1));
    std::fstream f(entry(1), std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    char c = static_cast<char>(f.get() ^ 0x10);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(c);
    f.close();
    EXPECT_FALSE(open().get(key(1))) << "byte " << at;
    EXPECT_FALSE(fs::exists(entry(1))) << "byte " << at;
  }
}

TEST_F(KernelCacheTest, TruncatedEntries) {
  for (size_t size : {0, 10, 31, 32, 39, 40, 79}) {
    open().put(key(1), bytes(40, 1));
    fs::resize_file(entry(1), size);
    EXPECT_FALSE(open().get(key(1))) << size;
  }
  open().put(key(1), bytes(40, 1));
  EXPECT_TRUE(open().get(key(1)));
}

TEST_F(KernelCacheTest, OldestEntriesGoWhenItIsFull) {
  const size_t entry_size = 10000;
  for (int k = 0; k < 20; ++k) {
    open().put(key(k), bytes(entry_size, k));
    fs::last_write_time(entry(k),
                        fs::file_time_type::clock::now() - std::chrono::seconds(1000 - k));
  }
  ASSERT_TRUE(open().get(key(0))) << "and so it is the newest now";
  KernelCache small = open(100000);
  small.put(key(100), bytes(60000, 100));  // more than half: looks at the folder at once
  uint64_t total = 0;
  for (const auto& e : fs::directory_iterator(dir_ + "/kernels")) total += e.file_size();
  EXPECT_LE(total, 100000u);
  EXPECT_TRUE(small.get(key(100)));
  EXPECT_TRUE(small.get(key(0)));
  EXPECT_FALSE(small.get(key(1)));
  EXPECT_FALSE(small.get(key(5)));
}

TEST_F(KernelCacheTest, ManyThreadsAndNoTemporaryFilesLeft) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) {
        open().put(key(k % 5), bytes(5000, k % 5));
        if (auto got = open().get(key(k % 5))) EXPECT_EQ(*got, bytes(5000, k % 5));
        else ADD_FAILURE() << "an entry that was put is missing";
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ + "/kernels"), fs::directory_iterator()), 5);
}

TEST_F(KernelCacheTest, OffOrUnwritableFindsNothingAndDoesNotFail) {
  KernelCache off({dir_, false, 1 << 20});
  off.put(key(1), bytes(10, 1));
  EXPECT_FALSE(off.get(key(1)));
  EXPECT_TRUE(fs::is_empty(dir_));
  std::ofstream(dir_ + "/file") << "x";
  KernelCache nowhere({dir_ + "/file/below", true, 1 << 20});
  nowhere.put(key(1), bytes(10, 1));
  EXPECT_FALSE(nowhere.get(key(1)));
}

TEST_F(KernelCacheTest, DefaultFolderFollowsXdg) {
  const char* old = std::getenv("XDG_CACHE_HOME");
  std::string saved = old ? old : "";
  setenv("XDG_CACHE_HOME", dir_.c_str(), 1);
  EXPECT_EQ(KernelCache().dir(), dir_ + "/tfcc/kernels");
  // A path that is not absolute is ignored, as the XDG specification asks.
  const char* home = std::getenv("HOME");
  const std::string saved_home = home ? home : "";
  setenv("HOME", dir_.c_str(), 1);
  for (const char* ignored : {"relative", "./here", ""}) {
    setenv("XDG_CACHE_HOME", ignored, 1);
    EXPECT_EQ(KernelCache().dir(), dir_ + "/.cache/tfcc/kernels") << ignored;
  }
  home ? setenv("HOME", saved_home.c_str(), 1) : unsetenv("HOME");
  old ? setenv("XDG_CACHE_HOME", saved.c_str(), 1) : unsetenv("XDG_CACHE_HOME");
}

TEST_F(KernelCacheTest, WhatIsNoFileIsNotFound) {
  const KernelCache cache = open();
  ASSERT_EQ(mkfifo(entry(1).c_str(), 0600), 0);
  fs::create_symlink(entry(1), entry(2));
  fs::create_directory(entry(3));
  fs::create_symlink("/dev/zero", entry(4));
  for (int k = 1; k <= 4; ++k) EXPECT_FALSE(cache.get(key(k))) << k;
  cache.put(key(1), bytes(10, 1));
  EXPECT_EQ(cache.get(key(1)), bytes(10, 1));
}

TEST_F(KernelCacheTest, NoMemoryIsAskedForWhatAHeaderPromises) {
  open().put(key(1), bytes(10, 1));
  fs::resize_file(entry(1), uint64_t{1} << 40);  // a file with a hole
  std::fstream file(entry(1), std::ios::binary | std::ios::in | std::ios::out);
  const uint64_t size = (uint64_t{1} << 40) - 40;
  file.seekp(16).write(reinterpret_cast<const char*>(&size), sizeof size);
  file.close();
  EXPECT_FALSE(open().get(key(1)));
}

TEST(KernelKey, DependsOnEveryPart) {
  CacheKey base = kernel_key(tfcc::Family::cpu, "clang 19", "x86-64-v4", "text");
  EXPECT_EQ(base, kernel_key(tfcc::Family::cpu, "clang 19", "x86-64-v4", "text"));
  EXPECT_NE(base, kernel_key(tfcc::Family::cuda, "clang 19", "x86-64-v4", "text"));
  EXPECT_NE(base, kernel_key(tfcc::Family::cpu, "clang 20", "x86-64-v4", "text"));
  EXPECT_NE(base, kernel_key(tfcc::Family::cpu, "clang 19", "x86-64-v3", "text"));
  EXPECT_NE(base, kernel_key(tfcc::Family::cpu, "clang 19", "x86-64-v4", "texT"));
  EXPECT_NE(kernel_key(tfcc::Family::cpu, "ab", "c", ""),
            kernel_key(tfcc::Family::cpu, "a", "bc", ""))
      << "parts must not run together";
  EXPECT_EQ(base.hex().size(), 32u);
  for (const char* part : {"cpu", "clang 19", "x86-64-v4", "text"})
    EXPECT_NE(base.content.find(part), std::string::npos);
}

std::vector<std::string> included(tfcc::Family family, std::string_view source) {
  std::vector<std::string> paths;
  for (const TemplateFile* file : included_templates(family, source))
    paths.emplace_back(file->path);
  return paths;
}

// Editing one template must compile again what is made of it, and nothing else.
TEST(KernelKey, DependsOnTheTemplatesThatTheSourceIncludes) {
  using Paths = std::vector<std::string>;
  EXPECT_EQ(included(tfcc::Family::cuda, "#include \"cuda/norm.cuh\"\n"),
            (Paths{"cuda/norm.cuh", "cuda/prelude.cuh", "expr.h"}));
  EXPECT_EQ(included(tfcc::Family::cpu, "#include \"cpu/softmax.h\"\n#include \"cpu/norm.h\"\n"),
            (Paths{"cpu/math.h", "cpu/norm.h", "cpu/prelude.h", "cpu/reduce.h", "cpu/softmax.h",
                   "expr.h"}));
  EXPECT_EQ(included(tfcc::Family::cuda, "extern \"C\" __global__ void k() {}"), Paths{});
  EXPECT_NE(kernel_key(tfcc::Family::cuda, "", "", "#include \"cuda/norm.cuh\"\n"),
            kernel_key(tfcc::Family::cuda, "", "", "#include \"cuda/rope.cuh\"\n"));
}

}  // namespace

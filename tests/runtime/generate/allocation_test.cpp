// SPDX-License-Identifier: Apache-2.0
// A step of sequences that go on allocates nothing on the host. Every use of `new` of this program
// is counted.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>

#include "runtime/generate.h"

namespace {

std::atomic<int64_t> news = 0;

void* counted(size_t size, size_t alignment) {
  ++news;
  void* const p =
      alignment > alignof(std::max_align_t)
          ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
          : std::malloc(size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(size_t size) { return counted(size, 1); }
void* operator new[](size_t size) { return counted(size, 1); }
void* operator new(size_t size, std::align_val_t a) {
  return counted(size, static_cast<size_t>(a));
}
void* operator new[](size_t size, std::align_val_t a) {
  return counted(size, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace tfcc {
namespace {

// Of `llama`, whose products are all tfcc's own: oneDNN makes objects in every call. Prefixes are
// not shared: a page that others may find is remembered, once in 64 tokens.
TEST(Allocations, TenThousandStepsMakeNone) {
  const std::string file = std::filesystem::temp_directory_path() /
                           ("tfcc-allocations-" + std::to_string(getpid()) + ".tfcc");
  ASSERT_EQ(std::system((TFCC_BINARY_DIR "/tfcc compile " TFCC_SOURCE_DIR
                                         "/tests/models/llama/model.onnx -o " +
                         file + " --target cpu --cpu native -q")
                            .c_str()),
            0);
  LoadOptions load;
  load.device = "cpu";
  load.threads = 1;
  const auto model = Model::load(file, load);
  ASSERT_TRUE(model) << model.error().message;
  for (const bool ahead : {false, true}) {
    auto generator = *Generator::make(
        *model,
        {.max_context = 3000, .max_sequences = 3, .prefix_sharing = false, .run_ahead = ahead});
    int64_t steps = 0;
    while (steps < 10'000) {
      std::vector<Generator::Id> ids;
      GenerateOptions options{.max_tokens = 2900};
      for (int32_t i = 0; i < 3; ++i) {
        options.sampling.temperature = static_cast<float>(i);
        options.sampling.repetition_penalty = i == 2 ? 1.1f : 1;
        options.log_probabilities = i > 0;
        ids.push_back(*generator.submit(std::vector<int32_t>{5, 6 + i, 7}, options));
      }
      const auto after = [&](int64_t step) {
        while (generator.stats().steps < step) std::this_thread::yield();
        return news.load();
      };
      const int64_t first = generator.stats().steps + 50;
      const int64_t before = after(first);
      EXPECT_GT(before, 0) << "the library's own calls are counted";
      EXPECT_EQ(after(first + 2800) - before, 0) << (ahead ? "ahead" : "one at a time");
      steps += 2800;
      for (const auto id : ids) EXPECT_EQ(generator.wait(id)->tokens.size(), 2900u);
    }
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tfcc

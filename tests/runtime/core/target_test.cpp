// SPDX-License-Identifier: Apache-2.0
// Choice of the target: names, which code runs on which GPU, drivers that are too old.
#include <gtest/gtest.h>

#include "runtime/core/model.h"

namespace tfcc::runtime {
namespace {

Manifest file_with(std::vector<std::string> names, uint32_t min_driver = 0) {
  Manifest m;
  m.plans.resize(2);
  m.plans[0].family = Family::cuda;
  m.plans[1].family = Family::cpu;
  for (auto& name : names) {
    Target& t = m.targets.emplace_back();
    t.name = name;
    t.plan = name.starts_with("x86") ? 1 : 0;
    t.min_driver = min_driver;
  }
  return m;
}

std::string best(const Manifest& m, int major, int minor, int driver = 13000) {
  const Target* t = best_for_gpu(m, {"gpu", major, minor, driver});
  return t != nullptr ? t->name : "";
}

TEST(Target, reads_names) {
  auto t = parse_cuda_target("sm_90");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->major, 9);
  EXPECT_EQ(t->minor, 0);
  EXPECT_FALSE(t->ptx || t->exact);
  EXPECT_EQ(parse_cuda_target("sm_120")->major, 12);
  EXPECT_TRUE(parse_cuda_target("compute_80")->ptx);
  EXPECT_TRUE(parse_cuda_target("sm_90a")->exact);
  for (const char* bad :
       {"sm_", "sm_9", "sm_90b", "sm_90aa", "x86-64-v4", "compute_", "sm_-80", "sm_99999999999"}) {
    EXPECT_FALSE(parse_cuda_target(bad)) << bad;
  }
}

TEST(Target, takes_the_closest_machine_code_of_the_same_major) {
  Manifest m = file_with({"sm_80", "sm_86", "sm_90", "x86-64-v2"});
  EXPECT_EQ(best(m, 8, 0), "sm_80");
  EXPECT_EQ(best(m, 8, 6), "sm_86");
  EXPECT_EQ(best(m, 8, 9), "sm_86");
  EXPECT_EQ(best(m, 9, 0), "sm_90");
  EXPECT_EQ(best(m, 10, 0), "");
  EXPECT_EQ(best(m, 7, 5), "");
}

TEST(Target, falls_back_to_ptx) {
  Manifest m = file_with({"compute_80", "sm_90", "compute_90"});
  EXPECT_EQ(best(m, 8, 6), "compute_80");
  EXPECT_EQ(best(m, 9, 0), "sm_90");
  EXPECT_EQ(best(m, 12, 0), "compute_90");
}

TEST(Target, variant_code_runs_on_its_own_gpu_only) {
  Manifest m = file_with({"sm_90", "sm_90a", "sm_100a"});
  EXPECT_EQ(best(m, 9, 0), "sm_90a");
  EXPECT_EQ(best(m, 10, 3), "");
}

TEST(Target, needs_the_driver_of_the_code) {
  Manifest m = file_with({"sm_90"}, 13000);
  EXPECT_EQ(best(m, 9, 0, 12080), "");
  EXPECT_EQ(best(m, 9, 0, 13000), "sm_90");
}

TEST(Target, takes_the_highest_level_of_the_cpu) {
  EXPECT_EQ(best_for_cpu(file_with({"sm_90"})), nullptr);
  EXPECT_EQ(best_for_cpu(file_with({"x86-64-v9", "native:abc"})), nullptr);
  Manifest m = file_with({"sm_90", "x86-64", "x86-64-v2"});
  const Target* t = best_for_cpu(m);
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->name, __builtin_cpu_supports("x86-64-v2") ? "x86-64-v2" : "x86-64");
}

TEST(Target, takes_the_best_of_all_levels_or_says_what_is_there) {
  const std::vector<std::string> levels = {"x86-64-v2", "x86-64-v3", "x86-64-v4"};
  const bool has[] = {__builtin_cpu_supports("x86-64-v2") != 0,
                      __builtin_cpu_supports("x86-64-v3") != 0,
                      __builtin_cpu_supports("x86-64-v4") != 0};
  const Manifest all = file_with(levels);
  const Target* best = nullptr;
  for (size_t i = 0; i < levels.size(); ++i) {
    if (has[i]) best = &all.targets[i];
    const Manifest alone = file_with({levels[i]});
    EXPECT_EQ(best_for_cpu(alone) != nullptr, has[i]) << levels[i];
  }
  EXPECT_EQ(best_for_cpu(all), best);
  auto none = choose_target(file_with({"x86-64-v9"}), "cpu", "m.tfcc");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::device);
  EXPECT_NE(none.error().message.find(
                "m.tfcc: no code for this CPU: it has code for x86-64-v9, here is an x86-64"),
            std::string::npos)
      << none.error().message;
  EXPECT_NE(none.error().message.find("--cpu=all"), std::string::npos);
}

// A file that was compiled elsewhere, or for a GPU, may run at a fraction of what is possible: the
// log says so.
TEST(Target, notes_what_is_slower_than_it_could_be) {
  const auto note = [](std::vector<std::string> targets, const char* device) {
    const Manifest m = file_with(targets);
    auto choice = choose_target(m, device, "m.tfcc");
    return choice ? choice->note : choice.error().message;
  };
  if (__builtin_cpu_supports("x86-64-v3")) {
    EXPECT_NE(
        note({"x86-64-v2"}, "auto").find("m.tfcc: runs code for x86-64-v2, here is an x86-64-v"),
        std::string::npos)
        << note({"x86-64-v2"}, "auto");
    EXPECT_NE(note({"x86-64-v2"}, "cpu").find("--cpu=native"), std::string::npos);
  }
  EXPECT_EQ(note({"x86-64-v2", "x86-64-v3", "x86-64-v4"}, "cpu"), "");
  if (!query_gpu(0)) {
    EXPECT_NE(
        note({"sm_90", "x86-64-v2", "x86-64-v3", "x86-64-v4"}, "auto").find("; using the cpu"),
        std::string::npos);
  }
}

}  // namespace
}  // namespace tfcc::runtime

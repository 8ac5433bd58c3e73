// SPDX-License-Identifier: Apache-2.0
// A real CPU file from load to results: right answers, and one clear error for everything a caller
// can get wrong.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <new>
#include <thread>

#include "tests/runtime/core/small_model.h"

// Counts what operator new gives, to show that a prepared run asks for nothing.
namespace {
std::atomic<long> news{0};
}
__attribute__((noinline)) void* operator new(size_t size) {
  ++news;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace tfcc {
namespace {

using namespace testing_support;

// From here on this process cannot make memory files.
bool forbid_memory_files() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter = {4, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

class ExecutorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_plugin()) GTEST_SKIP() << "built without the CPU target";
    write_small_model(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Model load() {
    auto model = Model::load(path_, options_);
    EXPECT_TRUE(model) << model.error().message;
    return *std::move(model);
  }
  Executor executor() {
    auto e = load().executor();
    EXPECT_TRUE(e) << e.error().message;
    return *std::move(e);
  }
  static void expect_right(Executor& e, int64_t batch, int64_t length) {
    SmallCase c(batch, length);
    ASSERT_TRUE(e.set("x", c.x_ref()));
    ASSERT_TRUE(e.set("ids", c.ids_ref()));
    auto ran = e.run();
    ASSERT_TRUE(ran) << ran.error().message;
    auto out = e.output("out");
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ(out->shape, (std::vector<int64_t>{batch, length, kO}));
    EXPECT_EQ(values_of(*out), c.expected) << batch << "x" << length;
  }
  template <class T>
  static void expect_error(const Result<T>& r, ErrorCode code, const std::string& text) {
    ASSERT_FALSE(r) << text;
    EXPECT_EQ(r.error().code, code) << r.error().message;
    EXPECT_NE(r.error().message.find(text), std::string::npos) << r.error().message;
  }

  std::string path_ = temporary_path("executor.tfcc");
  LoadOptions options_ = {.device = "cpu",
                          .threads = 2,
                          .verify_weights = true,
                          .code_dir = "",
                          .timing_cache = "",
                          .log = {}};
};

TEST_F(ExecutorTest, describes_the_model) {
  Model m = load();
  EXPECT_EQ(m.target(), host_level());
  EXPECT_EQ(m.device(), "cpu");
  ASSERT_EQ(m.inputs().size(), 2u);
  EXPECT_EQ(m.inputs()[0].dims[0].text, "batch_size");
  EXPECT_EQ(m.inputs()[0].dims[0].max, kMaxBatch);
  EXPECT_EQ(m.inputs()[0].dims[2].min, kC);
  EXPECT_EQ(m.inputs()[1].dtype, DType::i64);
  EXPECT_EQ(m.inputs()[1].role, InputRole::ids) << "a file without roles: by its name";
  EXPECT_EQ(m.inputs()[0].role, InputRole::none);
  EXPECT_EQ(m.outputs()[0].name, "out");
}

TEST_F(ExecutorTest, computes_over_changing_shapes) {
  Executor e = executor();
  for (auto [b, s] : {std::pair{1, 1}, {2, 3}, {8, 16}, {2, 3}, {1, 16}, {3, 5}})
    expect_right(e, b, s);
}

TEST_F(ExecutorTest, writes_into_the_callers_memory) {
  Executor e = executor();
  SmallCase c(2, 3);
  std::vector<float> out(c.expected.size(), -1);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  ASSERT_TRUE(e.set("out", {out.data(), DType::f32, {2, 3, kO}}));
  ASSERT_TRUE(e.run());
  EXPECT_EQ(out, c.expected);
  EXPECT_EQ(e.output("out")->data, out.data());
  ASSERT_TRUE(e.set("out", {out.data(), DType::f32, {3, 2, kO}}));
  expect_error(e.run(), ErrorCode::shape, "output 'out': shape is [3, 2, 3], must be [2, 3, 3]");
}

TEST_F(ExecutorTest, loads_from_memory_at_any_alignment) {
  auto bytes = read_file(path_);
  std::vector<std::byte> shifted(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  auto model = Model::load(std::span(shifted).subspan(1), options_);
  ASSERT_TRUE(model) << model.error().message;
  auto e = model->executor();
  ASSERT_TRUE(e);
  expect_right(*e, 2, 2);
}

TEST_F(ExecutorTest, two_models_hold_their_own_code) {
  Executor first = executor(), second = executor();
  expect_right(first, 2, 2);
  expect_right(second, 2, 2);
}

TEST_F(ExecutorTest, a_model_gives_back_its_code) {
  auto open_files = [] {
    auto files = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  load();  // opens the plug-in, which stays
  auto before = open_files();
  for (int i = 0; i < 3; ++i) load();
  EXPECT_EQ(open_files(), before);
}

TEST_F(ExecutorTest, prepare_makes_the_arena) {
  Executor e = executor();
  Shapes shapes = {{"x", {8, 16, kC}}, {"ids", {8, 16}}};
  EXPECT_EQ(e.arena_bytes(), 0u);
  EXPECT_EQ(*e.workspace_bytes(shapes), 2048u + 1536u);
  ASSERT_TRUE(e.prepare(shapes));
  EXPECT_EQ(e.arena_bytes(), 2048u + 1536u);
  expect_right(e, 1, 2);
  EXPECT_EQ(e.arena_bytes(), 2048u + 1536u) << "the arena is kept";
  expect_error(e.prepare({{"x", {1, 1, kC}}}), ErrorCode::invalid_argument,
               "input 'ids' has no shape");
  expect_error(e.prepare({{"z", {1}}}), ErrorCode::invalid_argument, "no input is named 'z'");
}

TEST_F(ExecutorTest, names_what_is_wrong_with_a_tensor) {
  Executor e = executor();
  SmallCase c(2, 3);
  expect_error(e.set("mask", c.ids_ref()), ErrorCode::invalid_argument,
               "no input or output is named 'mask'; inputs: x, ids; outputs: out");
  expect_error(e.set("ids", {c.ids.data(), DType::i32, {2, 3}}), ErrorCode::invalid_argument,
               "input 'ids': dtype is i32, must be i64");
  expect_error(e.set("ids", {c.ids.data(), DType::i64, {6}}), ErrorCode::shape,
               "rank is 1, must be 2");
  expect_error(e.set("x", {c.x.data(), DType::f32, {2, 3, 5}}), ErrorCode::shape,
               "dim 2 is 5, must be 4");
  expect_error(e.set("ids", {c.ids.data(), DType::i64, {-2, 3}}), ErrorCode::shape,
               "must be 0 or more");
  expect_error(e.set("ids", {c.ids.data(), DType::i64, {int64_t{1} << 40, int64_t{1} << 40}}),
               ErrorCode::shape, "too many elements");
  expect_error(e.set("ids", {nullptr, DType::i64, {2, 3}}), ErrorCode::invalid_argument,
               "data is null");
  expect_error(e.set("ids", {c.ids.data(), DType::i64, {2, 3}, Place::device}),
               ErrorCode::invalid_argument, "device memory");
}

TEST_F(ExecutorTest, names_a_missing_input) {
  Executor e = executor();
  SmallCase c(2, 3);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  expect_error(e.run(), ErrorCode::invalid_argument, "input 'ids' is not set");
  expect_error(e.output("out"), ErrorCode::invalid_argument, "call run() first");
  expect_error(e.output("x"), ErrorCode::invalid_argument, "no output is named 'x'");
}

TEST_F(ExecutorTest, names_inputs_that_disagree) {
  Executor e = executor();
  SmallCase a(2, 3), b(2, 4);
  ASSERT_TRUE(e.set("x", a.x_ref()));
  ASSERT_TRUE(e.set("ids", b.ids_ref()));
  expect_error(e.run(), ErrorCode::shape,
               "input 'ids': dim 1 is 4, but dim 1 of 'x' gives sequence_length = 3");
}

TEST_F(ExecutorTest, names_limits_that_are_passed) {
  Executor e = executor();
  SmallCase wide(9, 1), longer(1, 17);
  ASSERT_TRUE(e.set("x", wide.x_ref()));
  ASSERT_TRUE(e.set("ids", wide.ids_ref()));
  expect_error(e.run(), ErrorCode::shape, "dim 0 (batch_size) is 9, must be at most 8");
  ASSERT_TRUE(e.set("x", longer.x_ref()));
  ASSERT_TRUE(e.set("ids", longer.ids_ref()));
  expect_error(e.run(), ErrorCode::shape,
               "sequence_length must be at most 16 (batch_size = 1, sequence_length = 17)");
  expect_right(e, 8, 16);
}

TEST_F(ExecutorTest, a_raised_flag_is_an_error_once) {
  Executor e = executor();
  SmallCase c(2, 3);
  c.ids[4] = 5;
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  expect_error(e.run(), ErrorCode::invalid_argument, "ids: a value lies outside [0, 5)");
  EXPECT_TRUE(e.status());
  expect_right(e, 2, 3);
}

// Each run has memory of its own for results, so that those of one are read while the next goes on.
TEST_F(ExecutorTest, two_runs_are_under_way) {
  Executor e = executor();
  const auto set = [&](SmallCase& c) {
    ASSERT_TRUE(e.set("x", c.x_ref()));
    ASSERT_TRUE(e.set("ids", c.ids_ref()));
  };
  SmallCase first(2, 3), second(4, 5), third(1, 2);
  set(first);
  expect_error(e.finish(), ErrorCode::invalid_argument, "no run is under way");
  ASSERT_TRUE(e.start());
  expect_error(e.run(), ErrorCode::invalid_argument, "finish() it before run()");
  const Shapes shapes = {{"x", {8, 16, kC}}, {"ids", {8, 16}}};
  expect_error(e.prepare(shapes), ErrorCode::invalid_argument, "finish() it before prepare()");
  expect_error(e.prepare_all(), ErrorCode::invalid_argument, "finish() it before prepare_all()");
  set(second);
  ASSERT_TRUE(e.start());
  expect_error(e.start(), ErrorCode::invalid_argument, "two runs are under way");
  ASSERT_TRUE(e.finish());
  const Tensor of_first = *e.output("out");
  set(third);
  ASSERT_TRUE(e.finish());
  EXPECT_EQ(values_of(of_first), first.expected);
  EXPECT_EQ(values_of(*e.output("out")), second.expected);
  ASSERT_TRUE(e.start());
  EXPECT_EQ(values_of(*e.output("out")), second.expected) << "until the next is finished";
  ASSERT_TRUE(e.finish());
  const Tensor of_third = *e.output("out");
  expect_right(e, 3, 5);
  EXPECT_EQ(values_of(of_third), third.expected) << "a run() has the other side";
  ASSERT_TRUE(e.prepare(shapes));
  expect_error(e.output("out"), ErrorCode::invalid_argument, "there is no result");
}

// What could not be begun is not under way.
TEST_F(ExecutorTest, a_run_that_cannot_begin_changes_nothing) {
  Executor e = executor();
  SmallCase good(2, 3), large(kMaxBatch + 1, 3);
  ASSERT_TRUE(e.set("x", good.x_ref()));
  ASSERT_TRUE(e.set("ids", good.ids_ref()));
  ASSERT_TRUE(e.start());
  ASSERT_TRUE(e.set("x", large.x_ref()));
  ASSERT_TRUE(e.set("ids", large.ids_ref()));
  EXPECT_FALSE(e.start());
  ASSERT_TRUE(e.finish());
  EXPECT_EQ(values_of(*e.output("out")), good.expected);
  expect_error(e.finish(), ErrorCode::invalid_argument, "no run is under way");
  expect_right(e, 3, 5);
}

TEST_F(ExecutorTest, a_flag_is_of_its_run) {
  Executor e = executor();
  SmallCase good(2, 3), wrong(2, 3);
  wrong.ids[4] = 5;
  for (const bool first : {false, true}) {
    for (const bool is_wrong : {first, !first}) {
      SmallCase& c = is_wrong ? wrong : good;
      ASSERT_TRUE(e.set("x", c.x_ref()));
      ASSERT_TRUE(e.set("ids", c.ids_ref()));
      ASSERT_TRUE(e.start());
    }
    for (const bool is_wrong : {first, !first}) {
      if (is_wrong)
        expect_error(e.finish(), ErrorCode::invalid_argument, "ids: a value lies outside [0, 5)");
      else EXPECT_TRUE(e.finish());
    }
  }
}

TEST_F(ExecutorTest, names_what_an_output_cannot_be) {
  Executor e = executor();
  const auto fed = [&](const char* output, const char* input) {
    return e.feed_back(output, input);
  };
  expect_error(fed("out", "x"), ErrorCode::invalid_argument, "there is no run that gives it");
  expect_right(e, 2, 3);
  expect_error(fed("out", "x"), ErrorCode::shape, "input 'x'");
  expect_error(fed("out", "ids"), ErrorCode::invalid_argument, "input 'ids': dtype is f32");
  expect_error(fed("out", "y"), ErrorCode::invalid_argument, "no input is named 'y'");
  expect_error(fed("x", "ids"), ErrorCode::invalid_argument, "no output is named 'x'");
  SmallCase c(2, 3);
  ASSERT_TRUE(e.set("out", {c.x.data(), DType::f32, {2, 3, kO}}));
  expect_error(fed("out", "x"), ErrorCode::invalid_argument, "goes to memory that was set");
}

TEST_F(ExecutorTest, empty_batch_or_sequence_gives_empty_outputs) {
  Executor e = executor();
  expect_right(e, 2, 3);
  expect_right(e, 0, 3);
  expect_right(e, 2, 0);
  expect_right(e, 0, 0);
  expect_right(e, 2, 3);
  EXPECT_TRUE(e.set("ids", {nullptr, DType::i64, {0, 4}}));
}

// Zeros would be an answer that nobody computed.
TEST_F(ExecutorTest, an_output_without_the_empty_size_is_refused) {
  write_small_model(path_, [](pb::Manifest& m) {
    for (int i : {0, 1}) {
      m.mutable_outputs(0)->mutable_dims(i)->clear_code();
      size(m.mutable_outputs(0)->mutable_dims(i), {0, 2});
    }
  });
  Executor e = executor();
  ASSERT_TRUE(e.set("x", {nullptr, DType::f32, {0, 2, kC}}));
  ASSERT_TRUE(e.set("ids", {nullptr, DType::i64, {0, 2}}));
  expect_error(
      e.run(), ErrorCode::shape,
      "input 'x': dim 0 (batch_size) is 0, which leaves output 'out' with elements; the file was "
      "compiled for sizes from 1 on");
}

TEST_F(ExecutorTest, output_shape_before_a_run) {
  Executor e = executor();
  expect_error(e.output_shape("out"), ErrorCode::invalid_argument, "'x' is not set");
  SmallCase c(2, 3);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  EXPECT_EQ(*e.output_shape("out"), (std::vector<int64_t>{2, 3, kO}));
}

TEST_F(ExecutorTest, buckets_are_tried_in_order) {
  write_small_model(path_, [](pb::Manifest& m) {
    pb::Plan& plan = *m.mutable_plans(0);
    *plan.add_buckets() = plan.buckets(0);
    for (auto [i, most] : {std::pair{0, 4}, {1, 8}}) {
      pb::Check* limit = plan.mutable_buckets(i)->add_limits();
      size(limit->mutable_value(), {0, most, 1, 1, 9, 2});
      limit->set_message("sequence_length must be at most " + std::to_string(most));
    }
  });
  Executor e = executor();
  expect_right(e, 2, 4);
  expect_right(e, 2, 8);
  SmallCase c(2, 9);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  expect_error(e.run(), ErrorCode::shape,
               "larger than the file was compiled for: sequence_length must be at most 8");
}

TEST_F(ExecutorTest, a_plan_that_does_not_fit_itself_does_not_run) {
  auto run_changed = [&](const std::function<void(pb::Plan&)>& change) {
    write_small_model(path_, [&](pb::Manifest& m) { change(*m.mutable_plans(0)); });
    Executor e = executor();
    SmallCase c(2, 3);
    EXPECT_TRUE(e.set("x", c.x_ref()));
    EXPECT_TRUE(e.set("ids", c.ids_ref()));
    return e.run();
  };
  expect_error(run_changed([](pb::Plan& p) { p.mutable_slots(1)->set_code(6, 11); }),
               ErrorCode::internal, "buffer 'y' needs 18 elements and has 66 bytes");
  expect_error(run_changed([](pb::Plan& p) {
                 p.mutable_buckets(0)->mutable_launches(1)->mutable_matmul()->mutable_n()->set_code(
                     1, 4);
               }),
               ErrorCode::internal, "reaches outside its buffers");
  expect_error(
      run_changed([](pb::Plan& p) { p.mutable_buffers(3)->mutable_dims(0)->set_code(1, 5); }),
      ErrorCode::internal, "buffer 'w' needs 15 elements");
}

TEST_F(ExecutorTest, copies_pieces_of_memory) {
  Model model = load();
  for (const bool of_host : {false, true}) {
    Memory memory = *(of_host ? model.allocate_host(100) : model.allocate(100));
    EXPECT_EQ(memory.place(), Place::host);
    std::vector<char> in(10, 'a'), other(5, 'b'), out(7, '-');
    const Memory::Piece pieces[] = {{90, in.data(), 10}, {0, other.data(), 5}};
    ASSERT_TRUE(memory.write(pieces));
    const Memory::Piece back[] = {{95, out.data(), 5}, {4, out.data() + 5, 1}, {100, nullptr, 0}};
    ASSERT_TRUE(memory.read(back));
    EXPECT_EQ(std::string(out.begin(), out.end()), "aaaaab-");
    const Memory::Piece wrong[] = {{0, out.data(), 1}, {91, in.data(), 10}};
    expect_error(memory.read(wrong), ErrorCode::invalid_argument,
                 "bytes 91 to 101 of a memory of 100");
    const Memory::Piece far[] = {{SIZE_MAX, in.data(), 2}};
    expect_error(memory.write(far), ErrorCode::invalid_argument, "of a memory of 100");
  }
}

TEST_F(ExecutorTest, executors_work_on_their_own_threads) {
  Model m = load();
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      auto e = m.executor();
      ASSERT_TRUE(e);
      for (int i = 0; i < 50; ++i) expect_right(*e, 1 + (i + t) % 8, 1 + (i * 3 + t) % 16);
    });
  }
  for (auto& t : threads) t.join();
}

TEST_F(ExecutorTest, an_executor_outlives_its_model) {
  std::optional<Executor> e;
  {
    Model m = load();
    e.emplace(*m.executor());
  }
  expect_right(*e, 2, 3);
}

TEST_F(ExecutorTest, a_file_without_cpu_code_does_not_run_on_the_cpu) {
  write_small_model(path_, nullptr, {});
  expect_error(Model::load(path_, options_), ErrorCode::device,
               "no code for this CPU: it has no code");
  options_.device = "auto";
  expect_error(Model::load(path_, options_), ErrorCode::device, "compile with --target cpu");
}

TEST_F(ExecutorTest, names_devices_that_are_not_there) {
  options_.device = "tpu";
  expect_error(Model::load(path_, options_), ErrorCode::invalid_argument,
               "device 'tpu' is not known");
  options_.device = "cuda:x";
  expect_error(Model::load(path_, options_), ErrorCode::invalid_argument,
               "use auto, cpu, cuda or cuda:N");
  options_.device = "cuda";
  expect_error(Model::load(path_, options_), ErrorCode::device, "no code for any GPU");
  options_.device = "auto";
  EXPECT_TRUE(Model::load(path_, options_)) << "the cpu is taken";
}

TEST_F(ExecutorTest, a_prepared_run_allocates_nothing) {
  // Without the product: oneDNN makes objects of its own in every call.
  write_small_model(path_, [](pb::Manifest& m) {
    m.mutable_plans(0)->mutable_buckets(0)->mutable_launches()->DeleteSubrange(1, 1);
  });
  long at_start = news;
  Executor e = executor();
  EXPECT_GT(news, at_start) << "the runtime's own calls are counted";
  SmallCase small(2, 3), large(8, 16);
  std::vector<float> out(8 * 16 * kO);
  for (SmallCase* c : {&large, &small, &large, &small}) {
    TensorRef x = c->x_ref(), ids = c->ids_ref();
    ASSERT_TRUE(e.set("x", x));
    ASSERT_TRUE(e.set("ids", ids));
    ASSERT_TRUE(e.set("out", {out.data(), DType::f32, {c->batch, c->length, kO}}));
    ASSERT_TRUE(e.run());
    long before = news;
    bool ok = static_cast<bool>(e.run());
    EXPECT_EQ(news - before, 0) << "same shapes again";
    ASSERT_TRUE(ok);
  }
}

TEST_F(ExecutorTest, code_dir_serves_where_memory_files_are_forbidden) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto run_without_memory_files = [&](const std::string& code_dir) {
    if (!forbid_memory_files()) std::exit(3);
    options_.code_dir = code_dir;
    auto model = Model::load(path_, options_);
    if (!model) {
      std::fprintf(stderr, "%s\n", model.error().message.c_str());
      std::exit(1);
    }
    Executor e = *model->executor();
    expect_right(e, 2, 3);
    std::exit(HasFailure() ? 2 : 0);
  };
  auto code = [](int c) { return testing::ExitedWithCode(c); };
  EXPECT_EXIT(run_without_memory_files(""), code(1),
              "name a folder that allows it in LoadOptions::code_dir");
  EXPECT_EXIT(run_without_memory_files("/nonexistent"), code(1),
              "LoadOptions::code_dir '/nonexistent'");
  EXPECT_EXIT(run_without_memory_files(testing::TempDir()), code(0), "");
}

TEST_F(ExecutorTest, enqueue_needs_a_gpu) {
  Executor e = executor();
  expect_error(e.enqueue(nullptr), ErrorCode::unsupported, "call run()");
}

// Read into memory, a file may be overwritten or cut off while the model runs.
TEST_F(ExecutorTest, file_in_memory_may_change) {
  options_.in_memory = true;
  options_.verify_weights = true;
  const auto bytes = read_file(path_);
  for (const bool cut : {false, true}) {
    write_file(path_, bytes);
    Model model = load();
    auto first = model.executor();
    expect_right(*first, 2, 3);
    if (cut) {
      std::filesystem::resize_file(path_, 0);
    } else {
      std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary)
          << std::string(bytes.size(), '\0');
    }
    expect_right(*first, 2, 3);
    expect_right(*first, 8, 16);
    auto second = model.executor();
    ASSERT_TRUE(second) << second.error().message;
    expect_right(*second, 4, 5);
    auto again = Model::load(path_, options_);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, ErrorCode::bad_file);
  }
}

TEST_F(ExecutorTest, bytes_in_memory_may_go) {
  options_.in_memory = true;
  auto bytes = read_file(path_);
  auto model = Model::load(bytes, options_);
  ASSERT_TRUE(model) << model.error().message;
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  bytes = {};
  auto e = model->executor();
  expect_right(*e, 8, 16);
}

TEST_F(ExecutorTest, what_cannot_be_read_into_memory_is_an_error) {
  options_.in_memory = true;
  for (const std::string& path : {std::string("/nowhere/m.tfcc"), testing::TempDir()}) {
    auto model = Model::load(path, options_);
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, ErrorCode::io);
    EXPECT_NE(model.error().message.find("cannot read"), std::string::npos)
        << model.error().message;
  }
}

}  // namespace
}  // namespace tfcc

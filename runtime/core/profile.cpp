// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/profile.h"

#include <algorithm>
#include <set>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>

#include "runtime/cpu/physical_cores.h"
#include "runtime/core/executor_impl.h"

namespace tfcc {
inline namespace v1 {

// As run(), with marks around the launches.
Result<void> Executor::Impl::run_marked(std::vector<double>& ms) {
  void* stream = queue->own_stream();
  runtime::Stopwatch& stopwatch = queue->stopwatch();
  TFCC_TRY_VOID(stopwatch.close_gate(stream));
  auto issued = begin_run(stream);
  if (issued) issued = stopwatch.mark(stream);
  for (size_t i = 0; i < binding.launches().size() && issued; ++i) {
    if (binding.launches()[i].skip) continue;
    issued = issue_launch(stream, binding, binding.launches()[i]);
    if (issued) issued = stopwatch.mark(stream);
    if (issued) issued = take_made_size(binding, i);
  }
  stopwatch.open_gate();
  auto read = stopwatch.marked(ms);
  return issued ? read : issued;
}

Result<void> Executor::Impl::ready_to_profile() {
  TFCC_TRY_VOID(idle("profile"));
  ran = false;
  TFCC_TRY_VOID(bind_set());
  if (binding.empty()) {
    return Error{ErrorCode::invalid_argument, "an empty run has no launches; give larger shapes"};
  }
  TFCC_TRY_VOID(plain_ready(false));
  TFCC_TRY_VOID(ports.own_memory(binding));
  TFCC_TRY_VOID(ports.choose_addresses(true));
  return ports.copy_in(queue->own_stream());
}

}  // namespace v1

namespace runtime {
namespace {

// At most this long for one limit.
constexpr double kLimitMs = 400;

DType type_of(const std::string& precision) {
  for (DType t : {DType::f16, DType::bf16, DType::f64}) {
    if (precision == to_string(t)) return t;
  }
  return DType::f32;
}

int64_t value_of(const SizeExpr& e, std::span<const int64_t> symbols) {
  return e.evaluate(symbols).value_or(0);
}

LaunchProfile describe(const Executor::Impl& e, const BoundLaunch& bound,
                       std::span<const int64_t> symbols) {
  const Launch& l = *bound.launch;
  LaunchProfile p;
  p.name = l.name;
  p.op = l.ops.empty() ? "" : l.ops.front();
  p.flops = value_of(l.flops, symbols);
  p.bytes = value_of(l.bytes, symbols);
  p.arithmetic = type_of(e.model->plan->precision);
  if (l.kernel) {
    p.kernel = e.model->plan->kernels[l.kernel->kernel].name;
  } else {
    p.sizes = {bound.matmul.batch, bound.matmul.m, bound.matmul.n, bound.matmul.k};
    p.arithmetic = bound.matmul.a;
  }
  return p;
}

// Numbers of magnitude 1/2 to 4, either sign, every bit of the fraction random: a GPU draws less
// power, and clocks higher, on zeros.
uint64_t next(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

void fill_random(DType type, std::vector<std::byte>& out, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  const size_t size = size_of(type);
  const int fraction = type == DType::f16    ? 10
                       : type == DType::bf16 ? 7
                       : type == DType::f64  ? 52
                                             : 23;
  const uint64_t low = type == DType::f16 ? 14 : type == DType::f64 ? 1022 : 126;
  for (size_t i = 0; i + size <= out.size(); i += size) {
    uint64_t r = next(state);
    if (is_float(type)) {
      const uint64_t sign = r >> 63, exponent = low + (r >> 60) % 3;
      r = (sign << (size * 8 - 1)) | (exponent << fraction) | (r & ((uint64_t{1} << fraction) - 1));
    }
    std::memcpy(out.data() + i, &r, size);
  }
}

/// Memory of a queue, given back at the end.
class Scratch {
 public:
  explicit Scratch(Queue& queue) : queue_(queue) {}
  ~Scratch() {
    for (void* p : held_) queue_.release(p);
  }
  Result<void*> get(size_t bytes) {
    TFCC_TRY(void* p, queue_.allocate(bytes, "measuring the limits"));
    held_.push_back(p);
    return p;
  }

 private:
  Queue& queue_;
  std::vector<void*> held_;
};

// Least milliseconds of `once`: repeated for a while, and at least three times after the first.
template <class F> Result<double> least_ms(Queue& queue, F once) {
  void* stream = queue.own_stream();
  Stopwatch& stopwatch = queue.stopwatch();
  TFCC_TRY_VOID(once(stream));
  TFCC_TRY_VOID(queue.wait());
  double best = 0, spent = 0;
  std::vector<double> ms;
  for (int i = 0; i < 3 || (spent < kLimitMs && i < 200); ++i) {
    TFCC_TRY_VOID(stopwatch.mark(stream));
    TFCC_TRY_VOID(once(stream));
    TFCC_TRY_VOID(stopwatch.mark(stream));
    TFCC_TRY_VOID(stopwatch.marked(ms));
    spent += ms[0];
    best = i == 0 ? ms[0] : std::min(best, ms[0]);
  }
  return best;
}

}  // namespace

DType precision_of(const Executor& executor) {
  return type_of(ExecutorAccess::of(executor).model->plan->precision);
}

int tf32_products(const Executor& executor) {
  const std::string& precision = ExecutorAccess::of(executor).model->plan->precision;
  return precision == kTf32 ? 1 : precision == kTf32x3 ? 3 : 0;
}

Result<std::vector<LaunchProfile>> profile_launches(Executor& executor, int warm_up, int runs) {
  Executor::Impl& e = ExecutorAccess::of(executor);
  TFCC_TRY_VOID(e.ready_to_profile());
  std::vector<std::vector<double>> taken(static_cast<size_t>(runs));
  std::vector<double> ms;
  for (int run = 0; run < warm_up + runs; ++run)
    TFCC_TRY_VOID(e.run_marked(run < warm_up ? ms : taken[static_cast<size_t>(run - warm_up)]));
  TFCC_TRY_VOID(e.queue->end_run(e.side));
  TFCC_TRY_VOID(e.flag_error());
  std::vector<int64_t> sizes(e.binding.symbols().size());
  TFCC_TRY_VOID(e.queue->read_sizes(sizes));  // after the runs, which make some of them
  std::vector<LaunchProfile> out;
  for (const BoundLaunch& l : e.binding.launches()) {
    if (l.skip) continue;
    out.push_back(describe(e, l, sizes));
    for (const auto& run : taken) out.back().ms.push_back(run[out.size() - 1]);
  }
  return out;
}

Result<double> measured_product_rate(Executor& executor, DType type) {
  Queue& queue = *ExecutorAccess::of(executor).queue;
  const int64_t n = ExecutorAccess::of(executor).on_host() ? 2048 : 8192;
  MatmulShape shape;
  shape.m = shape.n = shape.k = n;
  shape.a = shape.b = shape.bias = type;
  shape.d = is_float(type) ? type : DType::i32;
  const int in_tf32 = type == DType::f32 ? tf32_products(executor) : 0;
  shape.tf32 = in_tf32 > 0;
  TFCC_TRY(size_t handle, queue.prepare_matmul(shape));
  const size_t elements = static_cast<size_t>(n * n);
  Scratch scratch(queue);
  MatmulOperands operands;
  std::vector<std::byte> host(elements * size_of(type));
  uint64_t seed = 1;
  for (const void** p : {&operands.a, &operands.b}) {
    TFCC_TRY(void* memory, scratch.get(host.size()));
    fill_random(type, host, seed++);
    TFCC_TRY_VOID(queue.copy_in(queue.own_stream(), memory, host.data(), host.size()));
    TFCC_TRY_VOID(queue.wait());  // before the host bytes change
    *p = memory;
  }
  TFCC_TRY(operands.d, scratch.get(elements * size_of(shape.d)));
  TFCC_TRY(double ms,
           least_ms(queue, [&](void* stream) { return queue.matmul(stream, handle, operands); }));
  const auto size = static_cast<double>(n);
  return 2 * size * size * size / (ms / 1000) / std::max(1, in_tf32);
}

namespace {

// Sums bytes, so that they have to be read.
uint64_t sum_of(std::span<const std::byte> bytes) {
  typedef uint64_t Words __attribute__((vector_size(16), aligned(8)));
  Words a{}, b{}, c{}, d{};
  for (size_t at = 0; at + 4 * sizeof(Words) <= bytes.size(); at += 4 * sizeof(Words)) {
    const Words* words = reinterpret_cast<const Words*>(bytes.data() + at);
    a += words[0];
    b += words[1];
    c += words[2];
    d += words[3];
  }
  const Words sum = a + b + c + d;
  return sum[0] + sum[1];
}

double read_ms(std::span<const std::byte> bytes, int threads) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<uint64_t> sum = 0;
  std::vector<std::thread> readers;
  const size_t part = bytes.size() / static_cast<size_t>(threads) / 64 * 64;
  for (int t = 0; t < threads; ++t)
    readers.emplace_back(
        [&, t] { sum += sum_of(bytes.subspan(part * static_cast<size_t>(t), part)); });
  for (std::thread& t : readers) t.join();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

namespace {

// Bytes of the weights that products read; of tables few rows are read.
size_t product_weight_bytes(const Model::Impl& model) {
  std::set<uint32_t> weights;
  const auto note = [&](uint32_t buffer) {
    const Buffer& b = model.plan->buffers[buffer];
    if (b.place == BufferClass::constant) weights.insert(b.index);
  };
  for (const Launch& l : model.plan->buckets.back().launches) {
    if (l.matmul) note(l.matmul->b), note(l.matmul->a);
    else if (std::find(l.ops.begin(), l.ops.end(), "matmul") != l.ops.end())
      std::for_each(l.kernel->args.begin(), l.kernel->args.end(), note);
    for (size_t i = 0; l.kernel && i < l.kernel->maps.size(); ++i) note(l.kernel->maps[i].buffer);
  }
  size_t bytes = 0;
  for (uint32_t w : weights) bytes += model.manifest.weights[w].size;
  return bytes;
}

}  // namespace

Result<double> weight_read_ms(Executor& executor) {
  const Model::Impl& model = *ExecutorAccess::of(executor).model;
  const Section* section = model.artifact.find(SectionKind::weights);
  const size_t bytes = product_weight_bytes(model);
  if (!section || bytes == 0) return 0.0;
  if (!ExecutorAccess::of(executor).on_host()) {
    TFCC_TRY(const double rate, measured_copy_rate(executor));
    return static_cast<double>(bytes) / rate * 1000;
  }
  const int threads = model.options.threads > 0 ? model.options.threads : cpu::physical_cores();
  const auto some = model.artifact.bytes(*section).first(std::min<size_t>(bytes, section->size));
  double best = read_ms(some, threads);
  for (int i = 0; i < 2; ++i) best = std::min(best, read_ms(some, threads));
  return best;
}

Result<double> measured_copy_rate(Executor& executor) {
  Queue& queue = *ExecutorAccess::of(executor).queue;
  const size_t bytes = size_t{ExecutorAccess::of(executor).on_host() ? 256u : 1024u} << 20;
  Scratch scratch(queue);
  std::vector<std::byte> host(bytes);
  fill_random(DType::i64, host, 1);
  TFCC_TRY(void* from, scratch.get(bytes));
  TFCC_TRY(void* to, scratch.get(bytes));
  TFCC_TRY_VOID(queue.copy_in(queue.own_stream(), from, host.data(), bytes));
  TFCC_TRY(double ms, least_ms(queue, [&](void* stream) {
             return queue.stopwatch().copy(stream, to, from, bytes);
           }));
  return 2 * static_cast<double>(bytes) / (ms / 1000);
}

}  // namespace runtime
}  // namespace tfcc

// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/products.h"

#include <omp.h>

#include <algorithm>
#include <new>

#include "runtime/cpu/fork_guard.h"

namespace tfcc::cpu {
namespace {

using dims = dnnl::memory::dims;
constexpr auto kF32 = dnnl::memory::data_type::f32;

// What a kernel counts for in the cache: oneDNN does not tell. Measured with 2.6.3 on AVX-512: 21
// to 53 KB, code and descriptions, for sizes of 1 to 200.
constexpr size_t kKernelBytes = 64 << 10;

// Below this a part is not worth waking a thread for: some 10 us.
constexpr int64_t kPartFlops = 1 << 20;
constexpr int64_t kLeastRows = 16, kLeastColumns = 64;  // of a part

// oneDNN takes the thread count of the calling thread; the caller's own setting is put back.
class OneThread {
 public:
  OneThread() : saved_(omp_get_max_threads()) {
    if (saved_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (saved_ != 1) omp_set_num_threads(saved_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int saved_;
};

// One for the process, under a ForkGuard at first. AMX is never used: in virtual machines cpuid may
// show it and its code still dies with SIGILL. oneDNN's own cache of primitives, 1024 of them,
// would keep what ours has forgotten.
const dnnl::engine& engine() {
  static const auto& made = *[] {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    dnnl::set_primitive_cache_capacity(0);
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return made;
}

// A stored r x c matrix, or its transpose, as oneDNN sees it; a shared operand has a batch of 1,
// which broadcasts.
dnnl::memory::desc operand(int64_t batch, int64_t stride, int64_t rows, int64_t columns,
                           int64_t row, bool trans) {
  dims strides = trans ? dims{1, row} : dims{row, 1};
  if (batch == 1) return {dims{rows, columns}, kF32, strides};
  const bool shared = stride == 0;
  strides.insert(strides.begin(), shared ? rows * columns : stride);
  return {dims{shared ? 1 : batch, rows, columns}, kF32, strides};
}

// alpha, then the bias, as oneDNN's operations behind the sum. Returns the argument of the bias.
int add_alpha(dnnl::post_ops& ops, const BlockShape& s, const dnnl::memory::desc& bias) {
#if DNNL_VERSION_MAJOR >= 3
  ops.append_eltwise(dnnl::algorithm::eltwise_linear, s.alpha, 0.0f);
#else
  ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, s.alpha, 0.0f);
#endif
  if (!s.has_bias) return 0;
  ops.append_binary(dnnl::algorithm::binary_add, bias);
  return DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1;
}

dnnl::matmul::primitive_desc describe(const BlockKernel& k, bool plain_bias,
                                      const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  if (plain_bias) return {engine(), k.a, k.b, k.bias, k.d, attr};
  return {engine(), k.a, k.b, k.d, attr};
#else
  if (plain_bias) return {{k.a, k.b, k.bias, k.d}, attr, engine()};
  return {{k.a, k.b, k.d}, attr, engine()};
#endif
}

// How a product is split: over its batch, its rows or its columns. One product of many rows is
// split by rows, which leaves both operands as they lie.
struct Split {
  enum Axis { batch, rows, columns } axis = batch;
  int64_t parts = 1;
};

Split split(const TfccCpuMatmul& g, int64_t threads) {
  const double flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) *
                       static_cast<double>(g.k) * static_cast<double>(g.batch);
  const int64_t most =
      std::clamp<int64_t>(static_cast<int64_t>(std::min(flops / kPartFlops, 1e6)), 1, threads);
  if (g.batch % most == 0 || g.batch >= 4 * most) return {Split::batch, most};
  const int64_t by_rows = std::min(most, g.m / kLeastRows),
                by_columns = std::min(most, g.n / kLeastColumns);
  Split best{Split::batch, std::min(most, g.batch)};
  if (by_rows > best.parts) best = {Split::rows, by_rows};
  if (by_columns > best.parts) best = {Split::columns, by_columns};
  return best;
}

}  // namespace

BlockKernel::BlockKernel(const BlockShape& s) {
  a = operand(s.batch, s.stride_a, s.m, s.k, s.row_a, s.trans_a);
  b = operand(s.batch, s.stride_b, s.k, s.n, s.row_b, s.trans_b);
  d = operand(s.batch, s.stride_d, s.m, s.n, s.row_d, false);
  bias = {s.batch == 1 ? dims{1, s.n} : dims{1, 1, s.n}, kF32,
          s.batch == 1 ? dims{s.n, 1} : dims{s.n, s.n, 1}};
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops ops;
  if (s.alpha != 1.0f) {
    bias_arg = add_alpha(ops, s, bias);
    attr.set_post_ops(ops);
  } else if (s.has_bias) {
    bias_arg = DNNL_ARG_BIAS;
  }
  auto pd = describe(*this, bias_arg == DNNL_ARG_BIAS, attr);
  scratch = pd.scratchpad_desc();
  primitive = dnnl::matmul(pd);
}

std::shared_ptr<const BlockKernel> ProductCache::get(const BlockShape& shape) {
  ForkGuard guard;
  {
    std::lock_guard lock(mutex_);
    if (auto found = index_.find(shape); found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->second;
    }
  }
  // Others may look up theirs meanwhile; that two make the same is rare and does no harm.
  auto made = std::make_shared<const BlockKernel>(shape);
  std::lock_guard lock(mutex_);
  if (auto found = index_.find(shape); found != index_.end()) return found->second->second;
  entries_.emplace_front(shape, made);
  index_[shape] = entries_.begin();
  for (auto last = std::prev(entries_.end());
       entries_.size() * kKernelBytes > limit_ && last != entries_.begin();) {
    const auto next = std::prev(last);
    if (last->second.use_count() == 1) {
      index_.erase(last->first);
      entries_.erase(last);
    }
    last = next;
  }
  return made;
}

size_t ProductCache::bytes() const {
  ForkGuard guard;
  std::lock_guard lock(mutex_);
  return entries_.size() * kKernelBytes;
}

void Worker::reserve(size_t part, size_t bytes) {
  if (scratch.size() <= part) scratch.resize(part + 1);
  Scratch& s = scratch[part];
  if (bytes <= s.bytes) return;
  const size_t rounded = (bytes + 63) / 64 * 64;
  s.bytes = 0;
  s.memory.reset();
  s.memory.reset(std::aligned_alloc(64, rounded));
  if (s.memory == nullptr) throw std::bad_alloc();
  s.bytes = rounded;
}

Product::Product(Worker& worker, ProductCache& cache, const TfccCpuMatmul& g) : worker_(worker) {
  OneThread one;
  TfccCpuMatmul whole = g;
  int64_t repeat = 1;  // products with the same operands, one after the other
  if (g.stride_a == 0 && g.stride_b == 0) std::swap(whole.batch, repeat);
  BlockShape s = {whole.batch,
                  g.m,
                  g.n,
                  g.k,
                  g.stride_a,
                  g.stride_b,
                  g.m * g.n,
                  g.trans_a ? g.m : g.k,
                  g.trans_b ? g.k : g.n,
                  g.n,
                  g.trans_a != 0,
                  g.trans_b != 0,
                  g.has_bias != 0,
                  g.alpha};
  const Split how = split(whole, worker.pool.threads());
  for (int64_t i = 0; i < how.parts; ++i) {
    auto range = [&](int64_t size, int64_t& from) {
      from = size * i / how.parts;
      return size * (i + 1) / how.parts - from;
    };
    BlockShape block = s;
    Part part;
    int64_t from = 0;
    if (how.axis == Split::batch) {
      block.batch = range(s.batch, from);
      part.from_a = from * s.stride_a, part.from_b = from * s.stride_b,
      part.from_d = from * s.stride_d;
      part.repeat = repeat, part.step_d = s.stride_d;
    } else {
      // Block by block: a batch of blocks whose rows are not dense falls to a slower kernel.
      part.repeat = s.batch * repeat, part.step_a = s.stride_a, part.step_b = s.stride_b,
      part.step_d = s.stride_d;
      block.batch = 1;
      block.stride_a = block.stride_b = block.stride_d = 0;
      if (how.axis == Split::rows) {
        block.m = range(s.m, from);
        part.from_a = s.trans_a ? from : from * s.row_a, part.from_d = from * s.row_d;
      } else {
        // oneDNN's better kernels want dense results: they are copied to their columns.
        block.n = block.row_d = range(s.n, from);
        part.from_b = s.trans_b ? from * s.row_b : from, part.from_bias = part.from_d = from;
        part.rows = s.m, part.columns = block.n, part.row_d = s.row_d;
      }
    }
    if (block.batch == 1) block.stride_a = block.stride_b = block.stride_d = 0;
    add_part(cache, block, std::move(part));
  }
}

void Product::add_part(ProductCache& cache, const BlockShape& shape, Part part) {
  part.kernel = cache.get(shape);
  const BlockKernel& k = *part.kernel;
  part.a = dnnl::memory(k.a, engine(), nullptr);
  part.b = dnnl::memory(k.b, engine(), nullptr);
  part.d = dnnl::memory(k.d, engine(), nullptr);
  part.bias = dnnl::memory(k.bias, engine(), nullptr);
  part.scratch = dnnl::memory(k.scratch, engine(), nullptr);
  part.stream = dnnl::stream(engine());
  part.scratch_bytes = (k.scratch.get_size() + 63) / 64 * 64;
  worker_.reserve(parts_.size(), part.scratch_bytes +
                                     static_cast<size_t>(part.rows * part.columns) * sizeof(float));
  parts_.push_back(std::move(part));
}

// The C interface of oneDNN: its C++ one builds a hash map for every call.
void Product::execute(Part& p, size_t index, const Operands& o) {
  auto set = [](dnnl::memory& m, const void* data) {
    return dnnl_memory_set_data_handle(m.get(), const_cast<void*>(data));
  };
  const int bias_arg = p.kernel->bias_arg;
  set(p.scratch, worker_.scratch[index].memory.get());
  if (bias_arg != 0) set(p.bias, o.bias + p.from_bias);
  const dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, p.a.get()},
                                   {DNNL_ARG_WEIGHTS, p.b.get()},
                                   {DNNL_ARG_DST, p.d.get()},
                                   {DNNL_ARG_SCRATCHPAD, p.scratch.get()},
                                   {bias_arg, p.bias.get()}};
  p.status = 0;
  auto* dense = reinterpret_cast<float*>(
      static_cast<std::byte*>(worker_.scratch[index].memory.get()) + p.scratch_bytes);
  for (int64_t i = 0; i < p.repeat && p.status == 0; ++i) {
    float* d = o.d + p.from_d + i * p.step_d;
    set(p.a, o.a + p.from_a + i * p.step_a);
    set(p.b, o.b + p.from_b + i * p.step_b);
    set(p.d, p.rows > 0 ? dense : d);
    p.status = static_cast<int>(dnnl_primitive_execute(p.kernel->primitive.get(), p.stream.get(),
                                                       bias_arg != 0 ? 5 : 4, args));
    for (int64_t r = 0; r < p.rows; ++r)
      std::copy_n(dense + r * p.columns, p.columns, d + r * p.row_d);
  }
  if (p.status == 0) p.status = static_cast<int>(dnnl_stream_wait(p.stream.get()));
}

int Product::run(const void* a, const void* b, const void* bias, void* d) {
  OneThread one;
  struct Context {
    Product* product;
    Operands operands;
  } context = {this,
               {static_cast<const float*>(a), static_cast<const float*>(b),
                static_cast<const float*>(bias), static_cast<float*>(d)}};
  auto part = [](void* p, int i) {
    auto& c = *static_cast<Context*>(p);
    c.product->execute(c.product->parts_[static_cast<size_t>(i)], static_cast<size_t>(i),
                       c.operands);
  };
  worker_.pool.run(static_cast<int>(parts_.size()), part, &context);
  for (const Part& p : parts_) {
    if (p.status != 0) return p.status;
  }
  return 0;
}

}  // namespace tfcc::cpu

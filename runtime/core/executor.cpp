// SPDX-License-Identifier: Apache-2.0
// Executor: the arena, and the walk over the launches of the bound plan. On shapes seen last time, or
// prepared, a run allocates nothing.
#include "runtime/core/executor_impl.h"

#include <utility>

namespace tfcc {

using runtime::Buffer;
using runtime::BufferClass;
using runtime::role;

inline namespace v1 {

Executor::Impl::~Impl() {
  if (!model->here()) {  // the driver knows nothing of it in this process
    ports.abandon();
    (void)queue.release();
    return;
  }
  drop_graphs();
  queue->release(arena.data);
}

// Shapes and buffers for new symbols; nothing to do if they are those of the last run.
Result<void> Executor::Impl::bind(std::span<const int64_t> wanted) {
  if (binding.bound_to(wanted)) return {};
  graph = nullptr;
  return binding.bind_shapes(wanted);
}

Result<void> Executor::Impl::bind_set() {
  TFCC_TRY_VOID(ports.symbols(symbols));
  TFCC_TRY_VOID(bind(symbols));
  return ports.check_outputs(binding);
}

Result<void> Executor::Impl::make_ready(void* stream, bool prepared) {
  if (binding.empty()) return {};
  if (!captures(stream)) {
    graph = nullptr;
  } else if (graph == nullptr) {
    TFCC_TRY(graph, graph_for(binding.symbols(), prepared));
  }
  return graph != nullptr ? Result<void>() : plain_ready(prepared);
}

Result<void> Executor::Impl::plain_ready(bool prepared) {
  if (!binding.has_launches()) {
    queue->trim();
    auto done = binding.bind_launches();
    if (done) done = prepare_products(binding);
    if (!done) {
      binding.unbind();
      return done;
    }
  }
  return grow_arena(binding.arena_bytes(), prepared);
}

Result<void> Executor::Impl::prepare_products(Binding& of, size_t first) {
  for (BoundLaunch& l : of.launches().subspan(first)) {
    if (!l.launch->matmul || l.skip) continue;
    auto handle = queue->prepare_matmul(l.matmul);
    if (!handle) {
      return Error{handle.error().code,
                   "product '" + l.launch->name + "': " + handle.error().message};
    }
    l.handle = *handle;
  }
  return {};
}

// Captured launches hold addresses of the arena: they are captured again when it moves.
Result<void> Executor::Impl::grow_arena(size_t bytes, bool prepared) {
  if (bytes <= arena.bytes) return {};
  const auto captured = drop_graphs();
  queue->release(arena.data);
  size_t before = arena.bytes;
  arena = {};
  arena_held.store(0, std::memory_order_relaxed);
  TFCC_TRY(arena.data, queue->allocate(bytes, "the arena"));
  arena.bytes = bytes;
  arena_held.store(bytes, std::memory_order_relaxed);
  if (!prepared && before > 0 && model->options.log) {
    model->options.log(model->name + ": arena grew to " + std::to_string(bytes) + " bytes for " +
                       runtime::print_symbols(model->manifest, binding.symbols()) +
                       "; prepare() the largest shapes first");
  }
  for (const auto& b : captured) {
    auto again = capture(b);
    if (!again && prepared) return again.error();  // otherwise when it is needed
  }
  return {};
}

void* Executor::Impl::address(const Binding& of, uint32_t index) const {
  const Buffer& b = model->plan->buffers[index];
  switch (b.place) {
    case BufferClass::arena: return static_cast<std::byte*>(arena.data) + of.offset(index);
    case BufferClass::constant:
      return const_cast<std::byte*>(model->backend->weights() +
                                    model->manifest.weights[b.index].offset);
    default: break;
  }
  size_t port = b.index + (b.place == BufferClass::output ? model->manifest.inputs.size() : 0);
  void* slot = queue->io_slot(port);
  return slot != nullptr ? slot : ports.addresses()[port];
}

Result<void> Executor::Impl::issue_kernel(void* stream, const Binding& of, const BoundLaunch& l) {
  const runtime::KernelLaunch& k = *l.launch->kernel;
  args.clear();
  for (uint32_t buffer : k.args) args.push_back(address(of, buffer));
  maps.clear();
  for (size_t i = 0; i < l.maps.size(); ++i) {
    const runtime::BoundMap& m = l.maps[i];
    maps.push_back({address(of, m.buffer), model->plan->buffers[m.buffer].dtype, m.rows, m.columns,
                    k.maps[i].box_rows, k.maps[i].box_columns});
  }
  runtime::KernelCall call{k.kernel, args, l.grid, l.work, k.grain, maps, k.resident};
  call.behind_skipped = l.behind_skipped;
  if (k.tiles) call.tiles = &tiles.at(k.tiles->what).up_to(l.rows);
  return queue->launch(stream, call);
}

Result<void> Executor::Impl::issue_matmul(void* stream, const Binding& of, const BoundLaunch& l) {
  const runtime::MatmulLaunch& g = *l.launch->matmul;
  void* bias = g.has_bias ? address(of, g.bias) : nullptr;
  return queue->matmul(stream, l.handle,
                       {address(of, g.a), address(of, g.b), bias, address(of, g.d)});
}

namespace {

class Range {
 public:
  Range(const RangeHooks& hooks, const std::string& name) : hooks_(hooks) {
    if (hooks_.push) hooks_.push(name.c_str());
  }
  ~Range() {
    if (hooks_.pop) hooks_.pop();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  const RangeHooks& hooks_;
};

}  // namespace

Result<void> Executor::Impl::issue(void* stream) {
  if (binding.empty()) return {};  // no output has elements
  const Range range(model->options.ranges, model->manifest.model);
  TFCC_TRY_VOID(begin_run(stream));
  count(graph != nullptr ? counted.graph_runs : counted.plain_runs);
  return graph != nullptr ? queue->recorder()->replay(stream, graph)
                          : issue_launches(stream, binding);
}

Result<void> Executor::Impl::begin_run(void* stream) {
  values.assign(binding.symbols().begin(), binding.symbols().end());
  for (void* p : ports.addresses())
    values.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(p)));
  return queue->begin(stream, values);
}

Result<void> Executor::Impl::issue_launches(void* stream, Binding& of, size_t most) {
  for (size_t i = 0; i < std::min(most, of.launches().size()); ++i) {
    if (of.launches()[i].skip) continue;
    TFCC_TRY_VOID(issue_launch(stream, of, of.launches()[i]));
    TFCC_TRY_VOID(take_made_size(of, i));
  }
  return {};
}

// On a GPU the size stays there: kernels read it, and launches are for its bound.
Result<void> Executor::Impl::take_made_size(Binding& of, size_t i) {
  const uint32_t makes = of.launches()[i].launch->makes;
  if (makes == 0 || !on_host()) return {};
  TFCC_TRY_VOID(of.bind_made(i + 1, makes - 1, values[makes - 1]));
  return prepare_products(of, i + 1);
}

Result<void> Executor::Impl::issue_launch(void* stream, const Binding& of, const BoundLaunch& l) {
  const Range range(model->options.ranges, l.launch->name);
  auto done = l.launch->matmul ? issue_matmul(stream, of, l) : issue_kernel(stream, of, l);
  if (done) return {};
  return Error{done.error().code, "'" + l.launch->name + "': " + done.error().message};
}

Result<void> Executor::Impl::flag_error() {
  TFCC_TRY_VOID(
      queue->take_flags(flags, side));  // even if there are none: it reports failed kernels
  std::string message;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != 0) message += (message.empty() ? "" : "; ") + model->manifest.flags[i].message;
  }
  if (message.empty()) return {};
  return Error{ErrorCode::invalid_argument, message};
}

Result<Executor> Model::executor() const {
  TFCC_TRY_VOID(impl_->here());
  TFCC_TRY(auto queue, impl_->backend->queue());
  auto impl = std::make_unique<Executor::Impl>(impl_, std::move(queue));
  impl->modules_before = impl_->backend->modules_loaded();
  impl->flags.resize(impl_->manifest.flags.size());
  impl->values.reserve(impl_->manifest.symbols.size() + impl->ports.addresses().size());
  return Executor(std::move(impl));
}

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;
Executor::~Executor() = default;

// Reads what never changes: any thread may ask.
Result<size_t> Executor::workspace_bytes(const Shapes& shapes) const {
  std::vector<int64_t> symbols;
  TFCC_TRY_VOID(impl_->ports.symbols_for(shapes, symbols));
  if (runtime::is_empty_run(impl_->model->manifest, symbols)) return size_t{0};
  return runtime::arena_size(*impl_->model->plan, symbols);
}

Result<void> Executor::Impl::idle(const char* call) const {
  if (under_way == 0) return {};
  return Error{
      ErrorCode::invalid_argument,
      std::string("a run that start() began is under way; finish() it before ") + call + "()"};
}

Result<void> Executor::Impl::run() {
  TFCC_TRY_VOID(idle("run"));
  ran = false;
  TFCC_TRY_VOID(begin(ports.feeds() || ports.turned() ? 1 - ports.last_side() : ports.side()));
  return finish();
}

Result<void> Executor::Impl::start() {
  if (under_way == 2) {
    return Error{ErrorCode::invalid_argument,
                 "two runs are under way; finish() one before the next start()"};
  }
  return begin(1 - ports.last_side());
}

Result<void> Executor::Impl::begin(size_t on_side) {
  TFCC_TRY_VOID(bind_set());
  ports.use(on_side);
  auto issued = issue_all(queue->own_stream());
  if (!issued) {  // copies of a part of it may read and write what the next one will
    ports.forget_feeds();
    if (on_side == side) ran = false;
    (void)queue->wait();
    return issued;
  }
  begun[under_way++] = on_side;
  return {};
}

Result<void> Executor::Impl::issue_all(void* stream) {
  TFCC_TRY_VOID(make_ready(stream, false));
  TFCC_TRY_VOID(ports.own_memory(binding));
  TFCC_TRY_VOID(ports.choose_addresses(true));
  TFCC_TRY_VOID(ports.copy_in(stream));
  TFCC_TRY_VOID(issue(stream));
  TFCC_TRY_VOID(ports.copy_out(stream, binding));
  return queue->end_run(ports.side());
}

Result<void> Executor::Impl::finish() {
  if (under_way == 0) {
    return Error{ErrorCode::invalid_argument, "no run is under way; start() begins one"};
  }
  side = std::exchange(begun[0], begun[1]);
  --under_way;
  ran = false;
  TFCC_TRY_VOID(queue->wait_run(side));
  if (on_host()) TFCC_TRY_VOID(flag_error());
  ran = true;
  return {};
}

Result<void> Executor::Impl::enqueue(void* stream) {
  if (on_host()) {
    return Error{ErrorCode::unsupported,
                 "enqueue() needs a GPU, this model runs on the cpu; call run()"};
  }
  TFCC_TRY_VOID(idle("enqueue"));
  ran = false;
  TFCC_TRY_VOID(bind_set());
  TFCC_TRY_VOID(ports.copy_tables(stream));
  TFCC_TRY_VOID(ports.choose_addresses(false));
  TFCC_TRY_VOID(make_ready(stream, false));
  return issue(stream);
}

Result<Shape> Executor::Impl::shape_of_output(std::string_view name) {
  TFCC_TRY(const Port* p, ports.require(name, true));
  std::vector<int64_t> of_inputs;
  TFCC_TRY_VOID(ports.symbols(of_inputs));
  Shape shape;
  TFCC_TRY_VOID(runtime::evaluate_dims(*p->type, of_inputs, shape));
  return shape;
}

Result<const Tensor*> Executor::Impl::output(std::string_view name) {
  TFCC_TRY(const Port* p, ports.require(name, true));
  if (!ran) {
    return Error{ErrorCode::invalid_argument, role(*p) + ": there is no result; call run() first"};
  }
  const Tensor& result = p->result[side];
  if (result.data == nullptr && result.bytes > 0) {
    return Error{ErrorCode::invalid_argument,
                 role(*p) + " was written to the device memory that set() named; read it there"};
  }
  return &result;
}

// The public calls: each holds the executor, so that a second one at the same time is an error.
namespace {

template <class Body> auto held(Executor::Impl& e, const Body& body) -> decltype(body()) {
  runtime::OneCall call(e.in_use);
  TFCC_TRY_VOID(call.error());
  TFCC_TRY_VOID(e.model->here());
  return body();
}

}  // namespace

Result<void> Executor::set(std::string_view name, const TensorRef& tensor) {
  return held(*impl_, [&] { return impl_->ports.set(name, tensor); });
}
Result<void> Executor::set(std::string_view name, const TensorRef& tokens,
                           std::span<const int64_t> cu_seqlens) {
  return held(*impl_, [&] { return impl_->ports.set(name, tokens, cu_seqlens); });
}
Result<void> Executor::set(std::string_view name,
                           std::span<const std::span<const int64_t>> sequences) {
  return held(*impl_, [&] { return impl_->ports.set(name, sequences); });
}
Result<void> Executor::clear(std::string_view name) {
  return held(*impl_, [&] { return impl_->ports.clear(name); });
}
Result<void> Executor::prepare(const Shapes& shapes) {
  return held(*impl_, [&] { return impl_->prepare(shapes); });
}
Result<void> Executor::prepare_all(const Shapes& largest) {
  return held(*impl_, [&] { return impl_->prepare_all(largest); });
}
Result<void> Executor::run() {
  return held(*impl_, [&] { return impl_->run(); });
}
Result<void> Executor::start() {
  return held(*impl_, [&] { return impl_->start(); });
}
Result<void> Executor::finish() {
  return held(*impl_, [&] { return impl_->finish(); });
}
Result<void> Executor::feed_back(std::string_view output, std::string_view input) {
  return held(*impl_, [&] { return impl_->ports.feed_back(output, input); });
}
Result<void> Executor::enqueue(void* stream) {
  return held(*impl_, [&] { return impl_->enqueue(stream); });
}
Result<std::vector<int64_t>> Executor::output_shape(std::string_view name) const {
  return held(*impl_, [&] { return impl_->shape_of_output(name); });
}
Result<Tensor> Executor::output(std::string_view name) const {
  return held(*impl_, [&]() -> Result<Tensor> {
    TFCC_TRY(const Tensor* const out, impl_->output(name));
    return *out;
  });
}
Result<const void*> Executor::output_data(std::string_view name) const {
  return held(*impl_, [&]() -> Result<const void*> {
    TFCC_TRY(const Tensor* const out, impl_->output(name));
    return out->data;
  });
}
Result<void> Executor::status() {
  return held(*impl_, [&] { return impl_->flag_error(); });
}

ExecutorStats Executor::stats() const {
  auto read = [](uint64_t& counter) {
    return std::atomic_ref(counter).load(std::memory_order_relaxed);
  };
  ExecutorStats& c = impl_->counted;
  ExecutorStats s;
  s.graphs_made = read(c.graphs_made);
  s.plain_runs = read(c.plain_runs);
  s.graph_runs = read(c.graph_runs);
  s.device_allocations = impl_->queue->allocations();
  s.modules_loaded = impl_->model->backend->modules_loaded() - impl_->modules_before;
  return s;
}

size_t Executor::arena_bytes() const { return impl_->arena_held.load(std::memory_order_relaxed); }

}  // namespace v1
}  // namespace tfcc

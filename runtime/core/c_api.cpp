// SPDX-License-Identifier: Apache-2.0
// The C API over the C++ one: handles, status codes, and the message of the thread's last failure.
#include "runtime/core/c_api.h"

#include <algorithm>
#include <map>

#include "runtime/core/one_call.h"

struct tfcc_executor {
  tfcc::Executor executor;
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes;  // of the outputs read since
  tfcc::runtime::InUse in_use;  // the shapes, by tfcc_executor_output
};

namespace tfcc::c_api {
namespace {

thread_local std::string last_error;

}  // namespace

tfcc_status failed(const Error& error) {
  last_error = error.message;
  return static_cast<tfcc_status>(static_cast<int>(error.code) + 1);
}

tfcc_status misused(const char* what) { return failed({ErrorCode::invalid_argument, what}); }

}  // namespace tfcc::c_api

namespace {

using tfcc::DType;
using tfcc::ErrorCode;
using tfcc::c_api::failed;
using tfcc::c_api::guarded;
using tfcc::c_api::misused;

static_assert(TFCC_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument) + 1);
static_assert(TFCC_INTERNAL == static_cast<int>(ErrorCode::internal) + 1);
static_assert(TFCC_F32 == static_cast<int>(DType::f32) &&
              TFCC_BOOL == static_cast<int>(DType::boolean));

tfcc_status finished(const tfcc::Result<void>& done) {
  return done ? TFCC_OK : failed(done.error());
}

tfcc::LoadOptions options_of(const tfcc_load_options* given) {
  const tfcc_load_options all = tfcc::c_api::given(given, tfcc_load_options_init);
  tfcc::LoadOptions o;
  if (all.device != nullptr) o.device = all.device;
  o.threads = all.threads;
  o.verify_weights = all.verify_weights != 0;
  o.graphs = all.graphs != 0;
  o.in_memory = all.in_memory != 0;
  o.cache_bytes = static_cast<size_t>(all.cache_bytes);
  if (all.code_dir != nullptr) o.code_dir = all.code_dir;
  if (all.log != nullptr) {
    o.log = [log = all.log, user = all.log_user](std::string_view line) {
      log(std::string(line).c_str(), user);
    };
  }
  return o;
}

tfcc_status take(tfcc::Result<tfcc::Model> loaded, tfcc_model** out) {
  if (!loaded) return failed(loaded.error());
  auto made = std::make_unique<tfcc_model>(tfcc_model{*std::move(loaded), {}});
  for (const std::vector<tfcc::TensorInfo>* side :
       {&made->model.inputs(), &made->model.outputs()}) {
    for (const tfcc::TensorInfo& t : *side) {
      std::vector<tfcc_dim_info>& dims = made->dims.emplace_back();
      for (const tfcc::DimInfo& d : t.dims) dims.push_back({d.text.c_str(), d.min, d.max});
    }
  }
  *out = made.release();
  return TFCC_OK;
}

tfcc_status describe(const tfcc_model* model, bool input, size_t index, tfcc_tensor_info* info) {
  if (model == nullptr || info == nullptr) return misused("model or info is NULL");
  const auto& side = input ? model->model.inputs() : model->model.outputs();
  if (index >= side.size()) {
    return guarded([&] {
      return failed({ErrorCode::invalid_argument,
                     std::string(input ? "input " : "output ") + std::to_string(index) +
                         " does not exist; there are " + std::to_string(side.size())});
    });
  }
  const std::vector<tfcc_dim_info>& dims =
      model->dims[(input ? 0 : model->model.inputs().size()) + index];
  *info = {side[index].name.c_str(), static_cast<tfcc_dtype>(side[index].dtype), dims.size(),
           dims.data()};
  return TFCC_OK;
}

// Far more dims than any input has: a rank beyond is a mistake, and so much is not copied from the
// caller's memory.
constexpr size_t kMostDims = 64;

tfcc_status bad_rank(size_t rank) {
  return guarded([&] {
    return failed({ErrorCode::invalid_argument, "the tensor's rank is " + std::to_string(rank) +
                                                    "; no input has more than " +
                                                    std::to_string(kMostDims) + " dims"});
  });
}

bool is_dtype(int number) { return number >= 0 && number < tfcc::kDTypeCount; }

tfcc_status prepare_with(tfcc_executor* executor, size_t count, const char* const* names,
                         const tfcc_tensor* shapes,
                         tfcc::Result<void> (tfcc::Executor::*function)(const tfcc::Shapes&)) {
  if (executor == nullptr || (count > 0 && (names == nullptr || shapes == nullptr)))
    return misused("executor, names or shapes is NULL");
  return guarded([&] {
    tfcc::Shapes given;
    for (size_t k = 0; k < count; ++k) {
      if (names[k] == nullptr || (shapes[k].rank > 0 && shapes[k].shape == nullptr))
        return misused("a name or a shape is NULL");
      if (shapes[k].rank > kMostDims) return bad_rank(shapes[k].rank);
      given.emplace_back(names[k],
                         std::vector<int64_t>(shapes[k].shape, shapes[k].shape + shapes[k].rank));
    }
    return finished((executor->executor.*function)(given));
  });
}

}  // namespace

extern "C" {

const char* tfcc_version(void) { return TFCC_VERSION; }

const char* tfcc_last_error(void) { return tfcc::c_api::last_error.c_str(); }

const char* tfcc_status_name(tfcc_status status) {
  if (status == TFCC_OK) return "ok";
  if (status < TFCC_OK || status > TFCC_INTERNAL) return "unknown";
  return tfcc::to_string(static_cast<ErrorCode>(static_cast<int>(status) - 1));
}

const char* tfcc_dtype_name(tfcc_dtype dtype) {
  return is_dtype(dtype) ? tfcc::to_string(static_cast<DType>(dtype)) : nullptr;
}

size_t tfcc_dtype_size(tfcc_dtype dtype) {
  return is_dtype(dtype) ? tfcc::size_of(static_cast<DType>(dtype)) : 0;
}

void tfcc_load_options_init(tfcc_load_options* options) {
  if (options != nullptr) {
    *options = {sizeof(tfcc_load_options),      "auto", 0, 0, 1, nullptr, nullptr, nullptr, 0,
                tfcc::LoadOptions().cache_bytes};
  }
}

tfcc_status tfcc_model_load(const char* path, const tfcc_load_options* options,
                            tfcc_model** model) {
  if (path == nullptr || model == nullptr) return misused("path or model is NULL");
  return guarded([&] { return take(tfcc::Model::load(path, options_of(options)), model); });
}

tfcc_status tfcc_model_load_memory(const void* file, size_t bytes, const tfcc_load_options* options,
                                   tfcc_model** model) {
  if (file == nullptr || model == nullptr) return misused("file or model is NULL");
  return guarded([&] {
    return take(tfcc::Model::load(std::span(static_cast<const std::byte*>(file), bytes),
                                  options_of(options)),
                model);
  });
}

tfcc_status tfcc_model_ragged(const tfcc_model* model, tfcc_model** ragged) {
  if (model == nullptr || ragged == nullptr) return misused("model or ragged is NULL");
  return guarded([&] { return take(model->model.ragged(), ragged); });
}

void tfcc_model_free(tfcc_model* model) { delete model; }

size_t tfcc_model_input_count(const tfcc_model* model) {
  return model == nullptr ? 0 : model->model.inputs().size();
}

size_t tfcc_model_output_count(const tfcc_model* model) {
  return model == nullptr ? 0 : model->model.outputs().size();
}

tfcc_status tfcc_model_input(const tfcc_model* model, size_t index, tfcc_tensor_info* info) {
  return describe(model, true, index, info);
}

tfcc_status tfcc_model_output(const tfcc_model* model, size_t index, tfcc_tensor_info* info) {
  return describe(model, false, index, info);
}

const char* tfcc_model_target(const tfcc_model* model) {
  return model == nullptr ? "" : model->model.target().c_str();
}

const char* tfcc_model_device(const tfcc_model* model) {
  return model == nullptr ? "" : model->model.device().c_str();
}

tfcc_status tfcc_executor_create(const tfcc_model* model, tfcc_executor** executor) {
  if (model == nullptr || executor == nullptr) return misused("model or executor is NULL");
  return guarded([&] {
    tfcc::Result<tfcc::Executor> made = model->model.executor();
    if (!made) return failed(made.error());
    *executor = new tfcc_executor{*std::move(made), {}, {}};
    return TFCC_OK;
  });
}

void tfcc_executor_free(tfcc_executor* executor) { delete executor; }

tfcc_status tfcc_executor_set(tfcc_executor* executor, const char* name,
                              const tfcc_tensor* tensor) {
  if (executor == nullptr || name == nullptr || tensor == nullptr)
    return misused("executor, name or tensor is NULL");
  if (tensor->rank > 0 && tensor->shape == nullptr) return misused("the tensor's shape is NULL");
  if (tensor->rank > kMostDims) return bad_rank(tensor->rank);
  if (!is_dtype(tensor->dtype)) return misused("the tensor's dtype is none of tfcc_dtype");
  if (tensor->place != TFCC_HOST && tensor->place != TFCC_ON_DEVICE)
    return misused("the tensor's place is none of tfcc_place");
  return guarded([&] {
    tfcc::TensorRef t;
    t.data = tensor->data;
    t.dtype = static_cast<DType>(tensor->dtype);
    t.shape.assign(tensor->shape, tensor->shape + tensor->rank);
    t.place = tensor->place == TFCC_HOST ? tfcc::Place::host : tfcc::Place::device;
    return finished(executor->executor.set(name, t));
  });
}

tfcc_status tfcc_executor_clear(tfcc_executor* executor, const char* name) {
  if (executor == nullptr || name == nullptr) return misused("executor or name is NULL");
  return guarded([&] { return finished(executor->executor.clear(name)); });
}

tfcc_status tfcc_executor_prepare(tfcc_executor* executor, size_t count, const char* const* names,
                                  const tfcc_tensor* shapes) {
  return prepare_with(executor, count, names, shapes, &tfcc::Executor::prepare);
}

tfcc_status tfcc_executor_prepare_all(tfcc_executor* executor, size_t count,
                                      const char* const* names, const tfcc_tensor* largest) {
  return prepare_with(executor, count, names, largest, &tfcc::Executor::prepare_all);
}

tfcc_status tfcc_executor_run(tfcc_executor* executor) {
  if (executor == nullptr) return misused("executor is NULL");
  return guarded([&] { return finished(executor->executor.run()); });
}

tfcc_status tfcc_executor_enqueue(tfcc_executor* executor, void* stream) {
  if (executor == nullptr) return misused("executor is NULL");
  return guarded([&] { return finished(executor->executor.enqueue(stream)); });
}

tfcc_status tfcc_executor_output_shape(const tfcc_executor* executor, const char* name,
                                       size_t capacity, int64_t* shape, size_t* rank) {
  if (executor == nullptr || name == nullptr || rank == nullptr ||
      (capacity > 0 && shape == nullptr)) {
    return misused("executor, name, shape or rank is NULL");
  }
  return guarded([&] {
    const tfcc::Result<std::vector<int64_t>> found = executor->executor.output_shape(name);
    if (!found) return failed(found.error());
    *rank = found->size();
    for (size_t k = 0; k < std::min(capacity, found->size()); ++k) shape[k] = (*found)[k];
    return TFCC_OK;
  });
}

tfcc_status tfcc_executor_output(tfcc_executor* executor, const char* name, tfcc_tensor* tensor) {
  if (executor == nullptr || name == nullptr || tensor == nullptr)
    return misused("executor, name or tensor is NULL");
  return guarded([&] {
    tfcc::runtime::OneCall call(executor->in_use);
    if (auto held = call.error(); !held) return failed(held.error());
    tfcc::Result<tfcc::Tensor> found = executor->executor.output(name);
    if (!found) return failed(found.error());
    std::vector<int64_t>& shape = executor->shapes[name];
    shape = std::move(found->shape);
    // C has no way to say "const unless you own it"; the header says that the memory is the
    // executor's.
    *tensor = {const_cast<void*>(found->data), static_cast<tfcc_dtype>(found->dtype), TFCC_HOST,
               shape.size(), shape.data()};
    return TFCC_OK;
  });
}

tfcc_status tfcc_executor_status(tfcc_executor* executor) {
  if (executor == nullptr) return misused("executor is NULL");
  return guarded([&] { return finished(executor->executor.status()); });
}

tfcc_status tfcc_executor_get_stats(const tfcc_executor* executor, tfcc_executor_stats* stats) {
  if (executor == nullptr || stats == nullptr) return misused("executor or stats is NULL");
  const tfcc::ExecutorStats s = executor->executor.stats();
  *stats = {s.graphs_made, s.device_allocations, s.modules_loaded, s.plain_runs, s.graph_runs};
  return TFCC_OK;
}

size_t tfcc_executor_arena_bytes(const tfcc_executor* executor) {
  return executor == nullptr ? 0 : executor->executor.arena_bytes();
}

}  // extern "C"

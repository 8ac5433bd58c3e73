// SPDX-License-Identifier: Apache-2.0
// A server's thread pool: one shared model, one executor per thread, a queue of requests. Sends
// made-up requests of many lengths through it and compares every answer, bit for bit, with that of
// a single executor.
//
//     serve_threads MODEL.tfcc [THREADS [REQUESTS]]
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/tfcc.h"

namespace {

using tfcc::DType;
using tfcc::Error;
using tfcc::Result;

using Ids = std::vector<int64_t>;
using Answer = Result<std::vector<std::byte>>;  // the first output

// Runs one sequence.
Answer answer(const tfcc::Model& model, tfcc::Executor& executor, Ids ids) {
  const int64_t length = static_cast<int64_t>(ids.size());
  Ids ones(ids.size(), 1), zeros(ids.size(), 0);
  for (const tfcc::TensorInfo& input : model.inputs()) {
    Ids& values = input.name == "input_ids" ? ids : input.name == "attention_mask" ? ones : zeros;
    TFCC_TRY_VOID(executor.set(input.name, {values.data(), DType::i64, {1, length}}));
  }
  TFCC_TRY_VOID(executor.run());
  TFCC_TRY_VOID(executor.status());
  TFCC_TRY(const tfcc::Tensor out, executor.output(model.outputs().front().name));
  const auto* bytes =
      static_cast<const std::byte*>(out.data);  // the executor's, until its next run
  return std::vector<std::byte>(bytes, bytes + out.bytes);
}

class Pool {
 public:
  // Makes the executors here, so that a lack of memory is known before the first request.
  static Result<std::unique_ptr<Pool>> make(const tfcc::Model& model, int threads) {
    std::unique_ptr<Pool> pool(new Pool(model));
    for (int i = 0; i < threads; ++i) {
      TFCC_TRY(tfcc::Executor executor, model.executor());
      pool->threads_.emplace_back(
          [p = pool.get(), e = std::move(executor)]() mutable { p->work(e); });
    }
    return pool;
  }

  // Answers what was submitted, then ends.
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  std::future<Answer> submit(Ids ids) {
    Request request{std::move(ids), {}};
    std::future<Answer> future = request.promise.get_future();
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(request));
    }
    wake_.notify_one();
    return future;
  }

 private:
  struct Request {
    Ids ids;
    std::promise<Answer> promise;
  };

  explicit Pool(const tfcc::Model& model) : model_(model) {}

  void work(tfcc::Executor& executor) {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Request request = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      request.promise.set_value(answer(model_, executor, std::move(request.ids)));
    }
  }

  const tfcc::Model model_;  // a copy shares weights and code
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Request> queue_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

// The longest sequence the model takes, at most 64.
int64_t longest(const tfcc::Model& model) {
  int64_t n = 64;
  for (const tfcc::TensorInfo& input : model.inputs())
    if (input.dims.size() == 2 && input.dims[1].max > 0) n = std::min(n, input.dims[1].max);
  return n;
}

Result<void> serve(const std::string& path, int threads, int requests) {
  tfcc::LoadOptions options;
  options.threads = 1;  // CPU: the pool is what runs in parallel
  TFCC_TRY(const tfcc::Model model, tfcc::Model::load(path, options));
  for (const tfcc::TensorInfo& input : model.inputs())
    if (input.dtype != DType::i64 || input.dims.size() != 2)
      return Error{tfcc::ErrorCode::unsupported, "input '" + input.name +
                                                     "' is not i64[batch, sequence]; give an "
                                                     "encoder of token ids"};

  std::vector<Ids> ids;
  for (int i = 0; i < requests; ++i) {
    ids.emplace_back(static_cast<size_t>(1 + i * 7 % longest(model)));
    for (size_t k = 0; k < ids.back().size(); ++k)
      ids.back()[k] = static_cast<int64_t>((i + k * 3) % 16);
  }

  std::vector<std::future<Answer>> futures;
  TFCC_TRY(const std::unique_ptr<Pool> pool, Pool::make(model, threads));
  for (const Ids& sequence : ids) futures.push_back(pool->submit(sequence));

  TFCC_TRY(tfcc::Executor alone, model.executor());
  for (size_t i = 0; i < ids.size(); ++i) {
    TFCC_TRY(const std::vector<std::byte> got, futures[i].get());
    TFCC_TRY(const std::vector<std::byte> want, answer(model, alone, ids[i]));
    if (got.size() != want.size() || std::memcmp(got.data(), want.data(), got.size()) != 0)
      return Error{tfcc::ErrorCode::internal,
                   "request " + std::to_string(i) + ": the pool's answer differs"};
  }
  std::printf("%s: %d requests on %d threads, every answer equal to that of one executor\n",
              model.device().c_str(), requests, threads);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 2 ? std::atoi(argv[2]) : 4;
  const int requests = argc > 3 ? std::atoi(argv[3]) : 100;
  if (argc < 2 || argc > 4 || threads < 1 || requests < 1) {
    std::fprintf(stderr, "usage: serve_threads MODEL.tfcc [THREADS [REQUESTS]]\n");
    return 2;
  }
  const Result<void> done = serve(argv[1], threads, requests);
  if (!done) std::fprintf(stderr, "serve_threads: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}

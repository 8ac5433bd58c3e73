// SPDX-License-Identifier: Apache-2.0
// Steps of the program that lift-kv-cache made (passes/lift_kv_cache.cpp): a token has a position and a slot of the cache, a sequence a
// number of keys and a table of pages.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/generate/engine.h"
#include "runtime/generate/numbers.h"
#include "runtime/generate/pages.h"

namespace tfcc::generate {
namespace {

constexpr double kShareOfFree = 0.5;   // of the memory that is free, for a cache of no size given

class PagedEngine : public Engine {
 public:
  PagedEngine(Executor executor, Memory memory, std::vector<TensorInfo> states, const TensorInfo& ids, TensorInfo logits, int64_t page, int64_t pages,
              int64_t table_width, const PagedOptions& options)
      : executor_(std::move(executor)), memory_(std::move(memory)), states_(std::move(states)), ids_type_(ids.dtype), logits_(std::move(logits)), page_(page),
        table_width_(table_width), options_(options), pool_(pages) {}

  Result<void> prepare() {
    size_t offset = 0;
    for (const TensorInfo& s : states_) {
      const std::vector<int64_t> shape = shape_of(s);
      TFCC_TRY_VOID(executor_.set(s.name, {static_cast<std::byte*>(memory_.data()) + offset, s.dtype, shape, memory_.place()}));
      offset += bytes_of(s, pool_.count());
    }
    const auto tokens = options_.most_tokens, sequences = options_.max_sequences;
    Shapes shapes = {{"ids", {1, tokens}}, {"positions", {tokens}}, {"slots", {tokens}}, {"context", {sequences}}, {"first", {sequences + 1}}, {"order", {sequences}},
                     {"table", {sequences, table_width_}}, {"wanted", {sequences}}};
    for (const TensorInfo& s : states_) shapes.emplace_back(s.name, shape_of(s));
    return executor_.prepare(shapes);
  }

  /// Bytes of a state of so many pages, up to where the next may begin.
  static size_t bytes_of(const TensorInfo& state, int64_t pages) {
    size_t n = size_of(state.dtype) * static_cast<size_t>(pages);
    for (size_t k = 1; k < state.dims.size(); ++k) n *= static_cast<size_t>(state.dims[k].max);
    return (n + 255) / 256 * 256;
  }

  std::unique_ptr<Engine::Sequence> start(std::span<const int32_t> tokens) override {
    auto out = std::make_unique<Held>(*this);
    // The last token is computed in any case, for its logits.
    for (size_t at = 0; options_.prefix_sharing && at + static_cast<size_t>(page_) < tokens.size(); at += static_cast<size_t>(page_)) {
      const auto content = tokens.subspan(at, static_cast<size_t>(page_));
      const auto page = pool_.find(out->pages.empty() ? -1 : out->pages.back(), content);
      if (!page) break;
      out->pages.push_back(*page);
      out->tokens.insert(out->tokens.end(), content.begin(), content.end());
    }
    out->length = static_cast<int64_t>(out->tokens.size());
    shared_ += out->length;
    return out;
  }

  bool has_place(int64_t tokens) const override { return (tokens + page_ - 1) / page_ <= pool_.count() - pool_.held(); }

  bool reserve(Engine::Sequence& sequence, int64_t tokens) override {
    auto& held = static_cast<Held&>(sequence);
    while (static_cast<int64_t>(held.pages.size()) * page_ < tokens) {
      const auto page = pool_.take();
      if (!page) return false;
      held.pages.push_back(*page);
    }
    held.bytes = held.pages.size() * page_bytes();
    return true;
  }

  Result<void> step(std::span<Work> works) override {
    const auto count = static_cast<int64_t>(works.size());
    ids_.clear();
    for (auto* list : {&positions_, &slots_, &context_, &order_, &wanted_}) list->clear();
    first_.assign(1, 0);
    table_.assign(static_cast<size_t>(count * table_width_), 0);
    for (int64_t i = 0; i < count; ++i) {
      const Work& w = works[static_cast<size_t>(i)];
      auto& held = static_cast<Held&>(*w.sequence);
      for (size_t t = 0; t < w.tokens.size(); ++t) {
        const int64_t at = held.length + static_cast<int64_t>(t);
        append_number(w.tokens[t], ids_type_, ids_);
        positions_.push_back(static_cast<int32_t>(at));
        slots_.push_back(static_cast<int32_t>(held.pages[static_cast<size_t>(at / page_)] * page_ + at % page_));
      }
      std::copy(held.pages.begin(), held.pages.end(), table_.begin() + i * table_width_);
      context_.push_back(static_cast<int32_t>(held.length + static_cast<int64_t>(w.tokens.size())));
      first_.push_back(static_cast<int32_t>(slots_.size()));
      if (w.wants_logits) wanted_.push_back(first_.back() - 1);
    }
    const size_t rows = wanted_.size();
    if (rows == 0) wanted_.push_back(0);   // a run has a row at least
    order_.resize(works.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return works[static_cast<size_t>(a)].tokens.size() > works[static_cast<size_t>(b)].tokens.size(); });

    const auto tokens = static_cast<int64_t>(slots_.size());
    TFCC_TRY_VOID(executor_.set("ids", {ids_.data(), ids_type_, {1, tokens}, Place::host}));
    TFCC_TRY_VOID(give("positions", positions_, {tokens}));
    TFCC_TRY_VOID(give("slots", slots_, {tokens}));
    TFCC_TRY_VOID(give("context", context_, {count}));
    TFCC_TRY_VOID(give("first", first_, {count + 1}));
    TFCC_TRY_VOID(give("order", order_, {count}));
    TFCC_TRY_VOID(give("table", table_, {count, table_width_}));
    TFCC_TRY_VOID(give("wanted", wanted_, {static_cast<int64_t>(wanted_.size())}));
    TFCC_TRY_VOID(executor_.run());
    TFCC_TRY_VOID(executor_.status());
    for (const Work& w : works) advance(static_cast<Held&>(*w.sequence), w.tokens);
    return rows > 0 ? give_logits(works) : Result<void>();
  }

  size_t most_at_once() const override { return static_cast<size_t>(options_.max_sequences); }
  int64_t most_tokens() const override { return pool_.count() * page_; }
  int64_t pages() const override { return pool_.count(); }
  int64_t pages_held() const override { return pool_.held(); }
  int64_t shared_tokens() const override { return shared_; }
  const std::string& name() const override { return name_; }

 private:
  struct Held : Engine::Sequence {
    explicit Held(PagedEngine& of) : engine(of) {}
    ~Held() override {
      for (size_t i = pages.size(); i-- > 0;) engine.pool_.release(pages[i]);  // the last first: it is of least use to others
    }
    PagedEngine& engine;
    std::vector<int32_t> pages, tokens;
  };

  std::vector<int64_t> shape_of(const TensorInfo& s) const {
    std::vector<int64_t> shape{pool_.count()};
    for (size_t k = 1; k < s.dims.size(); ++k) shape.push_back(s.dims[k].max);
    return shape;
  }

  size_t page_bytes() const { return memory_.bytes() / static_cast<size_t>(pool_.count()); }

  Result<void> give(const char* name, std::vector<int32_t>& values, std::vector<int64_t> shape) {
    return executor_.set(name, {values.data(), DType::i32, std::move(shape), Place::host});
  }

  // Pages that are full now may be found by others.
  void advance(Held& held, std::span<const int32_t> tokens) {
    const size_t before = held.tokens.size(), page = static_cast<size_t>(page_);
    held.tokens.insert(held.tokens.end(), tokens.begin(), tokens.end());
    held.length = static_cast<int64_t>(held.tokens.size());
    for (size_t i = before / page; options_.prefix_sharing && (i + 1) * page <= held.tokens.size(); ++i) {
      pool_.publish(held.pages[i], i == 0 ? -1 : held.pages[i - 1], std::span(held.tokens).subspan(i * page, page));
    }
  }

  Result<void> give_logits(std::span<Work> works) {
    TFCC_TRY(const Tensor all, executor_.output(logits_.name));
    const auto width = static_cast<size_t>(logits_.dims[2].max);
    logits_out_.resize(wanted_.size() * width);
    numbers_from(all.data, all.dtype, 0, logits_out_);
    size_t row = 0;
    for (Work& w : works) {
      if (w.wants_logits) w.logits = std::span(logits_out_).subspan(row++ * width, width);
    }
    return {};
  }

  Executor executor_;
  Memory memory_;
  std::vector<TensorInfo> states_;
  DType ids_type_;
  TensorInfo logits_;
  int64_t page_, table_width_, shared_ = 0;
  PagedOptions options_;
  Pages pool_;
  std::string name_ = "pages";
  Bytes ids_;
  std::vector<int32_t> positions_, slots_, context_, first_, order_, table_, wanted_;
  std::vector<float> logits_out_;
};

const TensorInfo* find(const std::vector<TensorInfo>& infos, const char* name) {
  const auto it = std::find_if(infos.begin(), infos.end(), [&](const TensorInfo& i) { return i.name == name; });
  return it == infos.end() ? nullptr : &*it;
}

}  // namespace

int64_t vocabulary_of(const Model& generation) { return generation.outputs().empty() ? 0 : generation.outputs()[0].dims.back().max; }

Result<std::unique_ptr<Engine>> make_paged_engine(const Model& generation, const PagedOptions& options) {
  const TensorInfo* ids = find(generation.inputs(), "ids");
  std::vector<TensorInfo> states;
  for (const TensorInfo& in : generation.inputs()) {
    if (in.state) states.push_back(in);
  }
  const int64_t page = states[0].dims[2].max, width = (options.max_context + page - 1) / page;
  size_t page_bytes = 0;
  for (const TensorInfo& s : states) page_bytes += PagedEngine::bytes_of(s, 1);
  const auto wanted = static_cast<size_t>(options.max_sequences * width);
  size_t pages = options.cache_bytes / page_bytes;
  if (options.cache_bytes == 0) {
    const auto most = static_cast<size_t>(static_cast<double>(generation.free_bytes()) * kShareOfFree) / page_bytes;
    pages = most == 0 ? wanted : std::min(wanted, most);
  }
  pages = std::min({pages, wanted, static_cast<size_t>(INT32_MAX / page)});  // more could not be used, or would have slots that are no i32
  if (pages == 0 || pages > (size_t{1} << 62) / page_bytes) {
    return Error{ErrorCode::memory, "a cache of " + std::to_string(options.cache_bytes) + " bytes has no place for a page, which takes " + std::to_string(page_bytes) +
                                        "; " + std::to_string(page_bytes * wanted) + " bytes are for " + std::to_string(options.max_sequences) + " sequences of " +
                                        std::to_string(options.max_context) + " tokens"};
  }
  size_t bytes = 0;
  for (const TensorInfo& s : states) bytes += PagedEngine::bytes_of(s, static_cast<int64_t>(pages));
  TFCC_TRY(Memory memory, generation.allocate(bytes));
  TFCC_TRY(Executor executor, generation.executor());
  auto engine = std::make_unique<PagedEngine>(std::move(executor), std::move(memory), std::move(states), *ids, generation.outputs()[0], page, static_cast<int64_t>(pages), width, options);
  TFCC_TRY_VOID(engine->prepare());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace tfcc::generate

// SPDX-License-Identifier: Apache-2.0
// Steps of the program that lift-kv-cache made (passes/lift_kv_cache.cpp): a token has a position
// and a slot of the cache, a sequence a number of keys and a table of pages. Where the program has
// sums of linear attentions, a sequence has two slots of them: a step reads one and writes the
// other, so that a step that failed has changed nothing. It has three, in turns, where a step may
// begin before the one before it is known to be good.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/core/generation.h"
#include "runtime/generate/engine.h"
#include "runtime/generate/host_slots.h"
#include "runtime/generate/numbers.h"
#include "runtime/generate/pages.h"

namespace tfcc::generate {
namespace {

constexpr int32_t kBits = 32;                 // of a word of what was seen
constexpr int64_t kReservedTokens = 1 << 16;  // longer sequences grow
constexpr double kShareOfFree = 0.5;  // of the memory that is free, for a cache of no size given

/// Bytes of so many pages or slots of a state, up to where the next state may begin.
size_t bytes_of(const TensorInfo& state, int64_t count) {
  size_t n = size_of(state.dtype) * static_cast<size_t>(count);
  for (size_t k = 1; k < state.dims.size(); ++k) n *= static_cast<size_t>(state.dims[k].max);
  return (n + 255) / 256 * 256;
}

/// What there is place for.
struct Room {
  int64_t page = 0, pages = 0;  // 0: the program has no cache
  int64_t table_width = 0;
  int64_t sets = 0;   // of slots, one for a sequence; 0: the program has no sums
  int64_t slots = 2;  // of a set
  int64_t count(const TensorInfo& state) const {
    return runtime::is_cache(state) ? pages : sets * slots;
  }
};

class PagedEngine : public Engine {
 public:
  PagedEngine(const Model& model, Executor executor, Memory memory, std::vector<TensorInfo> states,
              const TensorInfo& ids, TensorInfo logits, const Room& room,
              const PagedOptions& options, bool runs_ahead)
      : executor_(std::move(executor)),
        memory_(std::move(memory)),
        states_(std::move(states)),
        ids_type_(ids.dtype),
        logits_(std::move(logits)),
        room_(room),
        page_(room.page),
        options_(options),
        runs_ahead_(runs_ahead),
        pool_(room.pages),
        page_bytes_(bytes_of_each(states_, true)),
        slot_bytes_(bytes_of_each(states_, false)),
        host_left_(options.swap_bytes.value_or(page_bytes_ * static_cast<size_t>(room.pages) +
                                               slot_bytes_ * static_cast<size_t>(room.sets))),
        host_pages_(model, page_bytes_, host_left_),
        host_slots_(model, slot_bytes_, host_left_) {
    for (int64_t i = room.sets; i-- > 0;) sets_.push_back(static_cast<int32_t>(room.slots * i));
    if (sums()) options_.prefix_sharing = false;  // sums of a prefix are not kept
    words_ = (logits_.dims[2].max + kBits - 1) / kBits;
  }

  /// `logits` is memory for those of a step, where they are not the executor's.
  Result<void> prepare(std::optional<Memory> logits) {
    logits_memory_ = std::move(logits);
    size_t offset = 0;
    for (const TensorInfo& s : states_) {
      const std::vector<int64_t> shape = shape_of(s);
      TFCC_TRY_VOID(executor_.set(s.name, {static_cast<std::byte*>(memory_.data()) + offset,
                                           s.dtype, shape, memory_.place()}));
      offset += bytes_of(s, room_.count(s));
    }
    const auto tokens = options_.most_tokens, sequences = options_.max_sequences;
    Shapes shapes = {{"ids", {1, tokens}},     {"positions", {tokens}},
                     {"context", {sequences}}, {"first", {sequences + 1}},
                     {"wanted", {sequences}},  {"sampling", {sequences, 4}},
                     {"draw", {sequences, 4}}, {"seen", {sequences, 1}}};
    if (cached())
      shapes.insert(
          shapes.end(),
          {{"slots", {tokens}}, {"order", {sequences}}, {"table", {sequences, room_.table_width}}});
    if (sums())
      shapes.insert(shapes.end(), {{"state_from", {sequences}}, {"state_to", {sequences}}});
    for (const TensorInfo& s : states_) shapes.emplace_back(s.name, shape_of(s));
    if (logits_memory_) TFCC_TRY_VOID(set_logits(sequences));
    return executor_.prepare(shapes);
  }

  std::unique_ptr<Engine::Sequence> start(std::span<const int32_t> tokens) override {
    auto out = std::make_unique<Held>(*this);
    out->pages.reserve(static_cast<size_t>(room_.table_width));
    out->tokens.reserve(static_cast<size_t>(std::min(options_.max_context, kReservedTokens)));
    // The last token is computed in any case, for its logits.
    for (size_t at = 0; options_.prefix_sharing && at + static_cast<size_t>(page_) < tokens.size();
         at += static_cast<size_t>(page_)) {
      const auto content = tokens.subspan(at, static_cast<size_t>(page_));
      const auto page = pool_.find(out->pages.empty() ? -1 : out->pages.back(), content);
      if (!page) break;
      out->pages.push_back(*page);
      out->tokens.insert(out->tokens.end(), content.begin(), content.end());
    }
    out->length = out->begun = static_cast<int64_t>(out->tokens.size());
    shared_ += out->length;
    return out;
  }

  bool has_place(int64_t tokens) const override {
    return (!cached() || (tokens + page_ - 1) / page_ <= pool_.count() - pool_.held()) &&
           (!sums() || !sets_.empty());
  }

  bool reserve(Engine::Sequence& sequence, int64_t tokens) override {
    auto& held = static_cast<Held&>(sequence);
    if (sums() && held.slot < 0) {
      if (sets_.empty()) return false;
      held.set = held.slot = held.begun_slot = sets_.back();
      sets_.pop_back();
    }
    while (static_cast<int64_t>(held.pages.size()) * page_ < (cached() ? tokens : 0)) {
      const auto page = pool_.take();
      if (!page) return false;
      held.pages.push_back(*page);
    }
    count_bytes(held);
    return true;
  }

  bool swap_out(Engine::Sequence& sequence) override {
    auto& held = static_cast<Held&>(sequence);
    const size_t pages = cached() ? static_cast<size_t>((held.length + page_ - 1) / page_) : 0,
                 slots = sums() && held.length > 0 ? 1 : 0;
    if (pages + slots == 0) return false;  // there is nothing to keep
    held.host_pages = host_pages_.take(pages);
    held.host_slots = host_slots_.take(slots);
    std::vector<Memory::Piece> pieces;
    for (size_t i = 0; i < held.host_pages.size(); ++i) add_pieces(held, i, pieces);
    for (size_t i = 0; i < held.host_slots.size(); ++i) add_sums(held, pieces);
    if (held.host_pages.size() < pages || held.host_slots.size() < slots || !memory_.read(pieces)) {
      host_pages_.release(held.host_pages);
      host_slots_.release(held.host_slots);
      return false;
    }
    held.give_back();
    count_bytes(held);
    return true;
  }

  // A page that others have, or that nobody needed meanwhile, is there still.
  bool swap_in(Engine::Sequence& sequence) override {
    auto& held = static_cast<Held&>(sequence);
    std::vector<Memory::Piece> pieces;
    if (!held.host_slots.empty()) {
      if (!reserve(held, 0)) return false;
      add_sums(held, pieces);
    }
    for (size_t i = 0; i < held.host_pages.size(); ++i) {
      if (const auto known = find_page(held, i)) {
        held.pages.push_back(*known);
        continue;
      }
      const auto page = pool_.take();
      if (!page) return false;
      held.pages.push_back(*page);
      add_pieces(held, i, pieces);
    }
    if (!memory_.write(pieces)) return false;
    for (size_t i = 0; i < held.pages.size(); ++i) publish(held, i);
    host_pages_.release(held.host_pages);
    host_slots_.release(held.host_slots);
    count_bytes(held);
    return true;
  }

  Result<void> begin(std::span<const Work> works, bool follows) override {
    const auto count = static_cast<int64_t>(works.size());
    clear();
    table_.assign(static_cast<size_t>(count * room_.table_width), 0);
    for (size_t i = 0; i < works.size(); ++i)
      add(works[i], i, follows ? 1 : works[i].tokens.size());
    if (wanted_.empty()) {  // a run has a row at least
      wanted_.push_back(0);
      add_choice({});
    }
    add_seen(works);
    order_.resize(works.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      const auto tokens = [&](int32_t i) {
        return first_[static_cast<size_t>(i) + 1] - first_[static_cast<size_t>(i)];
      };
      return tokens(a) != tokens(b) ? tokens(a) > tokens(b) : a < b;
    });
    TFCC_TRY_VOID(give_all(count, follows));
    TFCC_TRY_VOID(executor_.start());
    ++under_way_;
    for (size_t i = 0; i < works.size(); ++i) {
      auto& held = static_cast<Held&>(*works[i].sequence);
      held.begun += first_[i + 1] - first_[i];
      if (sums()) held.begun_slot = to_[i];
    }
    return {};
  }

  Result<void> finish(std::span<Work> works) override {
    auto done = executor_.finish();
    --under_way_;
    if (done) done = executor_.status();
    if (!done) {
      for (; under_way_ > 0; --under_way_) (void)executor_.finish();
      for (const Work& w : works) {
        auto& held = static_cast<Held&>(*w.sequence);
        held.begun = held.length;
        held.begun_slot = held.slot;
      }
      return done;
    }
    for (const Work& w : works) advance(static_cast<Held&>(*w.sequence), w.tokens);
    TFCC_TRY(const void* const tokens, executor_.output_data("tokens"));
    TFCC_TRY(const void* const logs, executor_.output_data("log_probabilities"));
    size_t row = 0;
    for (Work& w : works) {
      if (!w.wants_token) continue;
      w.token = whole_number_from(tokens, ids_type_, row);
      w.log_probability = static_cast<const float*>(logs)[row++];
    }
    return options_.logits ? give_logits(works, row) : Result<void>();
  }

  bool may_follow() const override { return runs_ahead_; }

  size_t most_at_once() const override { return static_cast<size_t>(options_.max_sequences); }
  int64_t most_tokens() const override {
    return cached() ? pool_.count() * page_ : options_.max_context;
  }
  int64_t pages() const override { return pool_.count(); }
  int64_t pages_held() const override { return pool_.held(); }
  int64_t shared_tokens() const override { return shared_; }
  const std::string& name() const override { return name_; }

 private:
  struct Held : Engine::Sequence {
    explicit Held(PagedEngine& of) : engine(of) {}
    ~Held() override {
      give_back();
      engine.host_pages_.release(host_pages);
      engine.host_slots_.release(host_slots);
    }
    void give_back() {
      for (size_t i = pages.size(); i-- > 0;)
        engine.pool_.release(pages[i]);  // the last first: it is of least use to others
      pages.clear();
      if (set >= 0) engine.sets_.push_back(set);
      set = slot = begun_slot = -1;
    }
    int32_t after(int32_t at) const {
      return set + (at - set + 1) % static_cast<int32_t>(engine.room_.slots);
    }
    PagedEngine& engine;
    int64_t begun = 0;  // tokens computed or under way
    std::vector<int32_t> pages, tokens;
    int32_t set = -1, slot = -1;  // the first of its slots, and the one with its sums
    int32_t begun_slot = -1;      // which a step under way writes, else the same
    std::vector<size_t> host_pages, host_slots;  // what it has in memory of the host
  };

  static size_t bytes_of_each(const std::vector<TensorInfo>& states, bool caches) {
    size_t bytes = 0;
    for (const TensorInfo& s : states) bytes += runtime::is_cache(s) == caches ? bytes_of(s, 1) : 0;
    return bytes;
  }
  void count_bytes(Held& held) const {
    held.bytes = held.pages.size() * page_bytes_ +
                 (held.set >= 0 ? static_cast<size_t>(room_.slots) * slot_bytes_ : 0);
  }

  // The page or slot `number` of each cache, or of each sum, beside a slot of the host.
  void add_copies(bool caches, int64_t number, std::byte* host,
                  std::vector<Memory::Piece>& pieces) const {
    size_t offset = 0;
    for (const TensorInfo& s : states_) {
      const size_t each =
          size_of(s.dtype) * static_cast<size_t>(s.dims[1].max * s.dims[2].max * s.dims[3].max);
      if (runtime::is_cache(s) == caches) {
        pieces.push_back({offset + static_cast<size_t>(number) * each, host, each});
        host += bytes_of(s, 1);
      }
      offset += bytes_of(s, room_.count(s));
    }
  }
  void add_pieces(const Held& held, size_t page, std::vector<Memory::Piece>& pieces) const {
    add_copies(true, held.pages[page], host_pages_.data(held.host_pages[page]), pieces);
  }
  void add_sums(const Held& held, std::vector<Memory::Piece>& pieces) const {
    add_copies(false, held.slot, host_slots_.data(held.host_slots[0]), pieces);
  }

  // The tokens of a full page.
  std::span<const int32_t> content_of(const Held& held, size_t page) const {
    const auto size = static_cast<size_t>(page_);
    const std::span<const int32_t> all = held.tokens;
    return (page + 1) * size <= all.size() ? all.subspan(page * size, size)
                                           : std::span<const int32_t>();
  }
  std::optional<int32_t> find_page(const Held& held, size_t page) {
    const auto content = content_of(held, page);
    if (!options_.prefix_sharing || content.empty()) return std::nullopt;
    return pool_.find(page == 0 ? -1 : held.pages[page - 1], content);
  }
  // Once it is full it may be found by others.
  void publish(const Held& held, size_t page) {
    const auto content = content_of(held, page);
    if (!options_.prefix_sharing || content.empty()) return;
    pool_.publish(held.pages[page], page == 0 ? -1 : held.pages[page - 1], content);
  }

  std::vector<int64_t> shape_of(const TensorInfo& s) const {
    std::vector<int64_t> shape{room_.count(s)};
    for (size_t k = 1; k < s.dims.size(); ++k) shape.push_back(s.dims[k].max);
    return shape;
  }

  bool cached() const { return room_.pages > 0; }
  bool sums() const { return room_.sets > 0; }

  void clear() {
    ids_.clear();
    for (auto* list : {&positions_, &slots_, &context_, &order_, &from_, &to_, &wanted_, &draw_})
      list->clear();
    sampling_.clear();
    first_.assign(1, 0);
  }

  // Work i of a step, which has so many tokens.
  void add(const Work& w, size_t i, size_t tokens) {
    const auto& held = static_cast<const Held&>(*w.sequence);
    for (const int32_t id : w.tokens) append_number(id, ids_type_, ids_);
    for (size_t t = 0; t < tokens; ++t) {
      const int64_t at = held.begun + static_cast<int64_t>(t);
      positions_.push_back(static_cast<int32_t>(at));
      if (cached())
        slots_.push_back(
            static_cast<int32_t>(held.pages[static_cast<size_t>(at / page_)] * page_ + at % page_));
    }
    std::copy(held.pages.begin(), held.pages.end(),
              table_.begin() + static_cast<std::ptrdiff_t>(i) * room_.table_width);
    context_.push_back(static_cast<int32_t>(held.begun + static_cast<int64_t>(tokens)));
    from_.push_back(held.begun == 0 ? -1 : held.begun_slot);
    to_.push_back(held.after(held.begun_slot));
    first_.push_back(static_cast<int32_t>(positions_.size()));
    if (!w.wants_token) return;
    wanted_.push_back(first_.back() - 1);
    add_choice(w);
  }

  void add_choice(const Work& w) {
    const Sampling& s = w.sampling;
    sampling_.insert(sampling_.end(), {s.temperature, s.top_p, s.min_p, s.repetition_penalty});
    draw_.insert(draw_.end(), {s.top_k, static_cast<int32_t>(static_cast<uint32_t>(s.seed)),
                               static_cast<int32_t>(static_cast<uint32_t>(s.seed >> 32)),
                               static_cast<int32_t>(w.wants_log_probability)});
  }

  // A bit for each token that was there, where a row has a use for them. The last one is known to
  // the program.
  void add_seen(std::span<const Work> works) {
    const auto penalised = [](const Work& w) {
      return w.wants_token && w.sampling.repetition_penalty != 1;
    };
    row_words_ = std::any_of(works.begin(), works.end(), penalised) ? words_ : 1;
    seen_.assign(wanted_.size() * static_cast<size_t>(row_words_), 0);
    size_t row = 0;
    for (const Work& w : works) {
      if (!w.wants_token) continue;
      uint32_t* bits = seen_.data() + row++ * static_cast<size_t>(row_words_);
      if (!penalised(w)) continue;
      for (const int32_t id : w.history)
        bits[static_cast<size_t>(id / kBits)] |= uint32_t{1} << (id % kBits);
    }
  }

  Result<void> give_all(int64_t count, bool follows) {
    const auto tokens = static_cast<int64_t>(positions_.size()),
               rows = static_cast<int64_t>(wanted_.size());
    TFCC_TRY_VOID(follows ? executor_.feed_back("tokens", "ids")
                          : give("ids", ids_.data(), ids_type_, {1, tokens}));
    TFCC_TRY_VOID(give("positions", positions_, {tokens}));
    TFCC_TRY_VOID(give("context", context_, {count}));
    TFCC_TRY_VOID(give("first", first_, {count + 1}));
    if (cached()) {
      TFCC_TRY_VOID(give("slots", slots_, {tokens}));
      TFCC_TRY_VOID(give("order", order_, {count}));
      TFCC_TRY_VOID(give("table", table_, {count, room_.table_width}));
    }
    if (sums()) {
      TFCC_TRY_VOID(give("state_from", from_, {count}));
      TFCC_TRY_VOID(give("state_to", to_, {count}));
    }
    TFCC_TRY_VOID(give("wanted", wanted_, {rows}));
    TFCC_TRY_VOID(give("draw", draw_, {rows, 4}));
    TFCC_TRY_VOID(give("sampling", sampling_.data(), DType::f32, {rows, 4}));
    TFCC_TRY_VOID(give("seen", seen_.data(), DType::i32, {rows, row_words_}));
    return logits_memory_ ? set_logits(rows) : Result<void>();
  }

  // Nobody reads them: they stay on the device.
  Result<void> set_logits(int64_t rows) {
    return give(logits_.name.c_str(), logits_memory_->data(), logits_.dtype,
                {1, rows, logits_.dims[2].max}, Place::device);
  }

  Result<void> give_logits(std::span<Work> works, size_t rows) {
    TFCC_TRY(const Tensor all, executor_.output(logits_.name));
    const auto width = static_cast<size_t>(logits_.dims[2].max);
    logits_out_.resize(rows * width);
    numbers_from(all.data, all.dtype, 0, logits_out_);
    size_t row = 0;
    for (Work& w : works) {
      if (w.wants_token) w.logits = std::span(logits_out_).subspan(row++ * width, width);
    }
    return {};
  }

  Result<void> give(const char* name, void* data, DType dtype, std::initializer_list<int64_t> shape,
                    Place place = Place::host) {
    given_.data = data;
    given_.dtype = dtype;
    given_.shape.assign(shape);
    given_.place = place;
    return executor_.set(name, given_);
  }
  Result<void> give(const char* name, std::vector<int32_t>& values,
                    std::initializer_list<int64_t> shape) {
    return give(name, values.data(), DType::i32, shape);
  }

  void advance(Held& held, std::span<const int32_t> tokens) {
    const size_t before = held.tokens.size(),
                 page = static_cast<size_t>(std::max<int64_t>(page_, 1));
    held.tokens.insert(held.tokens.end(), tokens.begin(), tokens.end());
    held.length = static_cast<int64_t>(held.tokens.size());
    held.begun = std::max(held.begun, held.length);
    if (sums()) held.slot = held.after(held.slot);
    for (size_t i = before / page; cached() && i < held.tokens.size() / page; ++i) publish(held, i);
  }

  Executor executor_;
  Memory memory_;
  std::vector<TensorInfo> states_;
  DType ids_type_;
  TensorInfo logits_;
  Room room_;
  int64_t page_, shared_ = 0;
  PagedOptions options_;
  bool runs_ahead_;
  Pages pool_;
  size_t page_bytes_, slot_bytes_;  // of all caches, of all sums
  size_t host_left_;                // bytes of the host for both
  HostSlots host_pages_, host_slots_;
  std::vector<int32_t> sets_;  // of slots that no sequence has, by the first of each
  std::string name_ = "pages";
  Bytes ids_;
  TensorRef given_;  // its shape keeps its memory
  std::vector<int32_t> positions_, slots_, context_, first_, order_, table_, from_, to_, wanted_,
      draw_;
  std::vector<float> sampling_, logits_out_;
  std::vector<uint32_t> seen_;           // [wanted, row_words_]
  int64_t words_ = 0, row_words_ = 1;    // of the vocabulary, of a row in this step
  std::optional<Memory> logits_memory_;  // on a device, where nobody reads them
  size_t under_way_ = 0;                 // steps
};

const TensorInfo* find(const std::vector<TensorInfo>& infos, const char* name) {
  const auto it =
      std::find_if(infos.begin(), infos.end(), [&](const TensorInfo& i) { return i.name == name; });
  return it == infos.end() ? nullptr : &*it;
}

// Sums take at most half where there is a cache too, but for those of one sequence: its pages
// decide how many sequences of what length there may be.
Result<Room> make_room(const std::vector<TensorInfo>& states, size_t free, bool runs_ahead,
                       const PagedOptions& options) {
  Room room;
  room.slots = runs_ahead ? 3 : 2;
  size_t page_bytes = 0, set_bytes = 0;
  for (const TensorInfo& s : states) {
    const bool cache = runtime::is_cache(s);
    (cache ? page_bytes : set_bytes) += bytes_of(s, cache ? 1 : room.slots);
    if (cache) room.page = s.dims[2].max;
  }
  room.table_width = page_bytes > 0 ? (options.max_context + room.page - 1) / room.page : 0;
  const auto sequences = static_cast<size_t>(options.max_sequences),
             wanted = sequences * static_cast<size_t>(room.table_width);
  const auto no_place = [&](const std::string& what) {
    return Error{ErrorCode::memory,
                 "a cache of " + std::to_string(options.cache_bytes) + " bytes has no place for " +
                     what + "; " + std::to_string(page_bytes * wanted + set_bytes * sequences) +
                     " bytes are for " + std::to_string(options.max_sequences) + " sequences of " +
                     std::to_string(options.max_context) + " tokens"};
  };
  constexpr size_t kMost = size_t{1} << 62;
  const bool given = options.cache_bytes != 0;
  size_t bytes =
      given ? options.cache_bytes : static_cast<size_t>(static_cast<double>(free) * kShareOfFree);
  if (set_bytes > 0) {
    size_t sets = std::min(sequences, (page_bytes > 0 ? bytes / 2 : bytes) / set_bytes);
    if (sets == 0 && bytes >= set_bytes + page_bytes) sets = 1;
    if (sets == 0 && !given) sets = sequences;  // it is not known what is free
    if (sets == 0 || sets > kMost / set_bytes)
      return no_place("the sums of a sequence, which take " + std::to_string(set_bytes));
    room.sets = static_cast<int64_t>(sets);
    bytes -= std::min(bytes, sets * set_bytes);
  }
  if (page_bytes > 0) {
    size_t pages = bytes / page_bytes;
    if (pages == 0 && !given) pages = wanted;
    pages =
        std::min({pages, wanted,
                  static_cast<size_t>(
                      INT32_MAX /
                      room.page)});  // more could not be used, or would have slots that are no i32
    if (pages == 0 || pages > kMost / page_bytes)
      return no_place(
          "a page, which takes " + std::to_string(page_bytes) +
          (set_bytes > 0 ? " beside the sums of a sequence, which take " + std::to_string(set_bytes)
                         : ""));
    room.pages = static_cast<int64_t>(pages);
  }
  return room;
}

}  // namespace

int64_t vocabulary_of(const Model& generation) {
  return generation.outputs().empty() ? 0 : generation.outputs()[0].dims.back().max;
}

Result<std::unique_ptr<Engine>> make_paged_engine(const Model& generation,
                                                  const PagedOptions& options) {
  const TensorInfo* ids = find(generation.inputs(), "ids");
  std::vector<TensorInfo> states;
  for (const TensorInfo& in : generation.inputs()) {
    if (in.state) states.push_back(in);
  }
  const bool runs_ahead = options.run_ahead.value_or(generation.device() != "cpu");
  TFCC_TRY(const Room room,
           make_room(states, options.cache_bytes != 0 ? 0 : generation.free_bytes(), runs_ahead,
                     options));
  size_t bytes = 0;
  for (const TensorInfo& s : states) bytes += bytes_of(s, room.count(s));
  auto memory = generation.allocate(bytes);
  if (!memory)
    return Error{memory.error().code, "the cache takes " + std::to_string(bytes) +
                                          " bytes: " + memory.error().message +
                                          "; or make it with fewer cache_bytes"};
  std::optional<Memory> logits;
  if (memory->place() == Place::device && !options.logits) {
    const TensorInfo& out = generation.outputs()[0];
    TFCC_TRY(logits,
             generation.allocate(static_cast<size_t>(options.max_sequences * out.dims[2].max) *
                                 size_of(out.dtype)));
  }
  TFCC_TRY(Executor executor, generation.executor());
  auto engine = std::make_unique<PagedEngine>(generation, std::move(executor), *std::move(memory),
                                              std::move(states), *ids, generation.outputs()[0],
                                              room, options, runs_ahead);
  TFCC_TRY_VOID(engine->prepare(std::move(logits)));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace tfcc::generate

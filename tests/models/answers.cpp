// SPDX-License-Identifier: Apache-2.0
// The ids that a decoder is known to answer, computed in every way that a generator has; and the
// logits of its program for generation beside those of the graph as it was exported, in f32.
//
//     answers FILE REFERENCE DEVICE PROMPT IDS ROW,ALL [ids]
//
// PROMPT and IDS are numbers with commas between. With `ids` the answer must be IDS: of the graph as
// it was exported and of the program for generation, in chunks of 1, 3, 7 and 512, alone and beside
// five others, and in a cache that is too small for all, swapped and computed again. Each row of
// logits over PROMPT and IDS may differ by ROW, and all rows together by ALL, relative, in the L2
// norm, in chunks of 1 and 7.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/generate.h"
#include "runtime/generate/engine.h"

using namespace tfcc;
using Ids = std::vector<int32_t>;

namespace {

template <class T> T must(Result<T> r) {
  if (!r) throw std::runtime_error(r.error().message);
  return *std::move(r);
}

Ids parse(const char* text) {
  Ids out;
  std::stringstream numbers(text);
  for (std::string n; std::getline(numbers, n, ',');) out.push_back(std::atoi(n.c_str()));
  return out;
}

struct Known {
  Ids prompt, ids;
};

void expect(Generator& g, const Known& known, const std::string& how) {
  GenerateOptions options;
  options.max_tokens = static_cast<int64_t>(known.ids.size());
  const Generated got = must(g.wait(must(g.submit(known.prompt, options))));
  if (got.tokens == known.ids) return;
  std::string ids;
  for (int32_t id : got.tokens) ids += " " + std::to_string(id);
  throw std::runtime_error(how + ": the answer is" + ids + " " + got.error.message);
}

// Others that are computed meanwhile.
std::vector<Generator::Id> submit_others(Generator& g, int count, size_t length, int64_t tokens) {
  std::vector<Generator::Id> out;
  GenerateOptions options;
  options.max_tokens = tokens;
  for (int i = 0; i < count; ++i)
    out.push_back(must(g.submit(Ids(length + static_cast<size_t>(i), 3 + i), options)));
  return out;
}

void check_chunks(const Model& model, const Known& known, bool literal) {
  for (const int64_t chunk : {1, 3, 7, 512}) {
    const std::string how =
        std::string(literal ? "as exported" : "lifted") + ", chunks of " + std::to_string(chunk);
    Generator g = must(Generator::make(model, {.prompt_chunk = chunk, .literal = literal}));
    if (!literal && g.engine() != "pages") throw std::runtime_error("it is not lifted");
    expect(g, known, how);
    const auto others = submit_others(g, 5, 3, 12);
    expect(g, known, how + ", beside five");
    for (const auto id : others) must(g.wait(id));
  }
}

// How often a sequence was pre-empted. Sums alone are kept until the end, and a table of 48 positions
// ends before the second page.
int64_t check_preemption(const Model& model, const Known& known, bool swaps) {
  size_t page = 0;
  for (const TensorInfo& t : must(model.generation()).inputs())
    if (t.state)
      page += size_of(t.dtype) * static_cast<size_t>(t.dims[1].max * t.dims[2].max * t.dims[3].max);
  int64_t preempted = 0;
  for (const size_t pages : {4, 6}) {  // of keys; sums take half of them
    GeneratorOptions options;
    options.cache_bytes = page * pages;
    options.prefix_sharing = false;
    if (!swaps) options.swap_bytes = 0;
    Generator g = must(Generator::make(model, options));
    for (int round = 0; round < 3; ++round) {
      const auto others = submit_others(g, 5, 50, 60);
      expect(g, known, swaps ? "swapped" : "computed again");
      for (const auto id : others) must(g.wait(id));
    }
    preempted += g.stats().preempted;
  }
  return preempted;
}

// Logits of every token, in chunks.
std::vector<std::vector<float>> logits_of(generate::Engine& engine, const Ids& tokens,
                                          size_t chunk) {
  std::vector<std::vector<float>> rows;
  const auto sequence = engine.start(tokens);
  if (!engine.reserve(*sequence, static_cast<int64_t>(tokens.size())))
    throw std::runtime_error("there is no place for one sequence");
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const auto all = std::span(tokens).first(std::min(tokens.size(), at + chunk));
    std::vector<generate::Engine::Work> works(1);
    works[0].sequence = sequence.get();
    works[0].tokens = all.subspan(at);
    works[0].wants_token = true;
    works[0].history = all;
    for (const auto done = engine.begin(works, false); !done;)
      throw std::runtime_error(done.error().message);
    for (const auto done = engine.finish(works); !done;)
      throw std::runtime_error(done.error().message);
    rows.emplace_back(works[0].logits.begin(), works[0].logits.end());
  }
  return rows;
}

// Squares of a difference and of what is wanted.
struct Squares {
  double apart = 0, all = 0;
  double relative() const { return std::sqrt(apart / all); }
  void add(const Squares& more) { apart += more.apart, all += more.all; }
};

Squares squares(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size() || got.empty()) throw std::runtime_error("logits of another width");
  Squares out;
  for (size_t i = 0; i < got.size(); ++i) {
    out.apart += (got[i] - want[i]) * static_cast<double>(got[i] - want[i]);
    out.all += static_cast<double>(want[i]) * want[i];
  }
  return out;
}

struct Errors {
  double row = 0, all = 0;
};

Errors largest_errors(const Model& model, const Model& reference, const Known& known) {
  Ids tokens = known.prompt;
  tokens.insert(tokens.end(), known.ids.begin(), known.ids.end());
  const auto length = static_cast<int64_t>(tokens.size());
  const auto literal = must(generate::make_literal_engine(
      reference, must(generate::find_roles(reference.inputs(), reference.outputs(), {})), length));
  Errors largest;
  for (const size_t chunk : {size_t{1}, size_t{7}}) {
    const auto lifted = must(generate::make_paged_engine(
        must(model.generation()),
        {.max_context = length, .max_sequences = 1, .most_tokens = length, .logits = true}));
    const auto got = logits_of(*lifted, tokens, chunk), want = logits_of(*literal, tokens, chunk);
    Squares all;
    for (size_t i = 0; i < want.size(); ++i) {
      const Squares row = squares(got[i], want[i]);
      largest.row = std::max(largest.row, row.relative());
      all.add(row);
    }
    largest.all = std::max(largest.all, all.relative());
  }
  return largest;
}

int run(int count, char** argument) {
  if (count < 7) {
    std::fprintf(stderr, "usage: answers FILE REFERENCE DEVICE PROMPT IDS ROW,ALL [ids]\n");
    return 2;
  }
  LoadOptions load;
  load.device = argument[3];
  const Model model = must(Model::load(argument[1], load)),
              reference = must(Model::load(argument[2], load));
  const Known known{parse(argument[4]), parse(argument[5])};
  int64_t preempted = 0;
  if (count > 7) {
    for (const bool literal : {true, false}) check_chunks(model, known, literal);
    for (const bool swaps : {true, false}) preempted += check_preemption(model, known, swaps);
  }
  const Errors error = largest_errors(model, reference, known);
  Errors most;
  if (std::sscanf(argument[6], "%lf,%lf", &most.row, &most.all) != 2)
    throw std::runtime_error("two tolerances are wanted, ROW,ALL");
  char said[80];
  std::snprintf(said, sizeof said, "logits differ by %.1e, a row by at most %.1e", error.all,
                error.row);
  std::printf("%s%s%s\n", said, preempted > 0 ? ", pre-empted " : "",
              preempted > 0 ? std::to_string(preempted).c_str() : "");
  if (!(error.row <= most.row) || !(error.all <= most.all))
    throw std::runtime_error(std::string(said) + ", which is more than " + argument[6]);
  return 0;
}

}  // namespace

int main(int count, char** argument) {
  try {
    return run(count, argument);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "answers: %s\n", e.what());
    return 1;
  }
}

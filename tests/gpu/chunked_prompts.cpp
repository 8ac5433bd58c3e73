// SPDX-License-Identifier: Apache-2.0
// The logits after a prompt are the same however it is cut, and whatever runs beside it: a whole
// prompt, single tokens and pieces take different buckets, tiles and forms of attention. The same
// bits but where the library splits a sum for some numbers of rows, then near.
//     chunked_prompts FILE.tfcc LENGTH [same]      same: near is not enough
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/generate/engine.h"

namespace {

using tfcc::generate::Engine;
using Ids = std::vector<int32_t>;

constexpr double kTolerance = 1e-2;  // relative L2, in fp16

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

template <class T> T or_fail(tfcc::Result<T> r) {
  if (!r) fail(r.error().message);
  return *std::move(r);
}

Ids random_ids(uint32_t seed, size_t count, int64_t vocabulary) {
  Ids ids;
  for (uint32_t x = seed; ids.size() < count;) {
    x = x * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((x >> 8) % static_cast<uint64_t>(vocabulary)));
  }
  return ids;
}

// The logits after the last token. In every other step a token of `beside` goes along, or all of
// `beside`.
std::vector<float> logits(const tfcc::Model& generation, const Ids& prompt, const Ids& beside,
                          size_t chunk, bool company) {
  const auto length = static_cast<int64_t>(prompt.size());
  auto engine = or_fail(tfcc::generate::make_paged_engine(generation, {.max_context = length,
                                                                       .max_sequences = 2,
                                                                       .most_tokens = 2 * length,
                                                                       .prefix_sharing = false,
                                                                       .logits = true}));
  const auto sequence = engine->start(prompt), other = engine->start(beside);
  if (!engine->reserve(*sequence, length) || !engine->reserve(*other, length))
    fail("the cache has no place");
  std::vector<float> last;
  for (size_t at = 0; at < prompt.size(); at += chunk) {
    std::vector<Engine::Work> works;
    const auto seen = static_cast<size_t>(other->length);
    if (company && at / chunk % 2 == 0 && seen < beside.size())
      works.push_back(
          {other.get(), std::span(beside).subspan(seen, at == 0 ? beside.size() / 2 : 1), true});
    works.push_back(
        {sequence.get(), std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at)), true});
    auto done = engine->begin(works, false);
    if (done) done = engine->finish(works);
    if (!done) fail(done.error().message);
    last.assign(works.back().logits.begin(), works.back().logits.end());
  }
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) fail("usage: chunked_prompts FILE.tfcc LENGTH [same]");
  tfcc::LoadOptions options;
  options.device = "cuda";
  const tfcc::Model model = or_fail(tfcc::Model::load(argv[1], options)),
                    generation = or_fail(model.generation());
  const auto length = static_cast<size_t>(std::atoi(argv[2]));
  const int64_t vocabulary = tfcc::generate::vocabulary_of(generation);
  const Ids prompt = random_ids(1, length, vocabulary), beside = random_ids(2, length, vocabulary);
  const std::vector<float> whole = logits(generation, prompt, beside, length, false);
  int wrong = 0, equal = 0;
  for (const size_t chunk : {length, size_t{1}, size_t{7}, size_t{64}, size_t{100}, size_t{129}}) {
    for (const bool company : {false, true}) {
      const std::vector<float> got = logits(generation, prompt, beside, chunk, company);
      if (std::memcmp(got.data(), whole.data(), whole.size() * sizeof(float)) == 0) {
        ++equal;
        continue;
      }
      std::fprintf(stderr, "in chunks of %zu%s the logits have other bits\n", chunk,
                   company ? " with another" : "");
      double square = 0, error = 0;
      for (size_t i = 0; i < whole.size(); ++i)
        square += double(whole[i]) * whole[i],
            error += (double(got[i]) - whole[i]) * (double(got[i]) - whole[i]);
      if (error <= kTolerance * kTolerance * square) continue;
      ++wrong;
      std::fprintf(stderr, "in chunks of %zu%s the logits are %.1e apart\n", chunk,
                   company ? " with another" : "", std::sqrt(error / square));
    }
  }
  std::printf(
      "%s, %s: %zu tokens in 6 ways, alone and with another: %d of 12 have the same bits, %d are wrong\n",
      argv[1], model.device().c_str(), length, equal, wrong);
  const bool same = argc > 3 && std::strcmp(argv[3], "same") == 0;
  return wrong == 0 && (!same || equal == 12) ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
// tfcc-embed: sentences to embeddings with a compiled encoder, as a program of yours would do it.
//     tfcc-embed model.tfcc vocab.txt "A sentence." "Another one."      (or the model's tokenizer.json)
// Tokenises, pads to one batch, runs, takes the mean over real tokens, normalises, prints the
// similarities.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"
#include "runtime/tfcc.h"
#include "tools/support/npy.h"
#include "tools/support/output_file.h"

namespace {

using tfcc::DType;
using tfcc::Error;
using tfcc::ErrorCode;
using tfcc::Result;
using tfcc::tools::Array;

constexpr char kUsage[] =
    "usage: tfcc-embed MODEL.tfcc VOCAB.txt|tokenizer.json [SENTENCE... | FILE] [options]\n"
    "\n"
    "Embeds sentences with a compiled BERT-like encoder and prints how similar they are.\n"
    "FILE holds one sentence a line. Without sentences a small built-in set is used.\n"
    "\n"
    "  --output FILE.npy   write the embeddings, float32 [sentences, hidden]\n"
    "  --device NAME       auto (default), cpu, cuda, cuda:1\n"
    "  --threads N         CPU threads (default: one per physical core)\n"
    "  --runs N            timed runs, the median is printed (default 20)\n"
    "  --max-length N      cut sentences to N tokens (default: what the model takes, at most 512)\n"
    "  --cased             VOCAB.txt keeps case and accents\n";

const std::vector<std::string> kSentences = {
    "A man is eating a plate of pasta.",
    "Someone is having noodles for dinner.",
    "The orchestra rehearsed the symphony all afternoon.",
    "Musicians were practising a long classical piece.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "A kitten chased the red ball across the floor.",
    "How do I reset my password?",
};

struct Options {
  std::string model, vocabulary, output;
  std::vector<std::string> sentences;
  tfcc::LoadOptions load;
  int runs = 20;
  size_t max_length = 0;
  bool cased = false;
  bool help = false;
};

Error wrong_usage(const std::string& what) {
  return {ErrorCode::invalid_argument, what + "; tfcc-embed --help shows the options"};
}

Result<int> to_number(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const long n = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end || n < 1 || n > 1000000)
    return wrong_usage(option + ": '" + text + "' is no count");
  return static_cast<int>(n);
}

// Sets one option that takes a value.
Result<void> set_option(Options& o, const std::string& name, const std::string& value) {
  if (name == "--output") {
    o.output = value;
  } else if (name == "--device") {
    o.load.device = value;
  } else if (name == "--threads") {
    TFCC_TRY(o.load.threads, to_number(name, value));
  } else if (name == "--runs") {
    TFCC_TRY(o.runs, to_number(name, value));
  } else if (name == "--max-length") {
    TFCC_TRY(const int n, to_number(name, value));
    o.max_length = static_cast<size_t>(n);
  } else {
    return wrong_usage("unknown option " + name);
  }
  return {};
}

Result<Options> parse(int argc, char** argv) {
  Options o;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      o.help = true;
    } else if (word == "--cased") {
      o.cased = true;
    } else if (word.rfind("--", 0) == 0) {
      if (i + 1 == argc) return wrong_usage(word + " needs a value");
      TFCC_TRY_VOID(set_option(o, word, argv[++i]));
    } else {
      words.push_back(word);
    }
  }
  if (o.help) return o;
  if (words.size() < 2) return wrong_usage("a model and a vocabulary are needed");
  o.model = words[0];
  o.vocabulary = words[1];
  o.sentences.assign(words.begin() + 2, words.end());
  return o;
}

// The sentences given, the lines of the file given, or the built-in ones.
Result<std::vector<std::string>> sentences(const Options& o) {
  if (o.sentences.empty()) return kSentences;
  if (o.sentences.size() != 1 || !std::filesystem::is_regular_file(o.sentences[0]))
    return o.sentences;
  TFCC_TRY_VOID(tfcc::tools::note_input(o.sentences[0]));
  std::ifstream file(o.sentences[0]);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) lines.push_back(line);
  if (lines.empty())
    return Error{ErrorCode::io, o.sentences[0] + ": no sentence in it; write one a line"};
  return lines;
}

// The longest sentence that every input takes.
size_t max_length(const tfcc::Model& model, const Options& o) {
  size_t n = o.max_length ? o.max_length : 512;
  for (const tfcc::TensorInfo& input : model.inputs())
    if (input.dims.size() == 2 && input.dims[1].max > 0)
      n = std::min(n, static_cast<size_t>(input.dims[1].max));
  return n;
}

/// Sentences as the inputs of an encoder: row-major [rows, columns], padded on the right.
struct TokenBatch {
  int64_t rows = 0, columns = 0;
  std::vector<int64_t> ids, mask, types;
};

Result<TokenBatch> tokenize(const tfcc::text::Tokenizer& tokenizer,
                            const std::vector<std::string>& texts, size_t max_tokens) {
  std::vector<std::vector<int32_t>> rows;
  size_t columns = 0;
  for (const std::string& text : texts) {
    TFCC_TRY(std::vector<int32_t> ids, tokenizer.encode(text, {.max_tokens = max_tokens}));
    columns = std::max(columns, ids.size());
    rows.push_back(std::move(ids));
  }
  const int32_t bert = tokenizer.id("[PAD]"), roberta = tokenizer.id("<pad>");
  TokenBatch out{static_cast<int64_t>(rows.size()), static_cast<int64_t>(columns), {}, {}, {}};
  out.ids.assign(rows.size() * columns, bert >= 0 ? bert : std::max(roberta, 0));
  out.mask.assign(rows.size() * columns, 0);
  out.types.assign(rows.size() * columns, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto begin = static_cast<std::ptrdiff_t>(r * columns);
    std::copy(rows[r].begin(), rows[r].end(), out.ids.begin() + begin);
    std::fill_n(out.mask.begin() + begin, rows[r].size(), 1);
  }
  return out;
}

// Token numbers in the dtype that an input has.
Array input_array(const std::vector<int64_t>& values, const TokenBatch& batch, DType dtype) {
  Array out = tfcc::tools::make_array(dtype, {batch.rows, batch.columns});
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::i64) out.data<int64_t>()[i] = values[i];
    else out.data<int32_t>()[i] = static_cast<int32_t>(values[i]);
  }
  return out;
}

// Hands the batch to the executor; `held` keeps the memory until the run.
Result<void> set_inputs(tfcc::Executor& executor, const tfcc::Model& model, const TokenBatch& batch,
                        std::vector<Array>& held) {
  held.reserve(model.inputs().size());
  for (const tfcc::TensorInfo& input : model.inputs()) {
    const std::vector<int64_t>* values = input.name == "input_ids"        ? &batch.ids
                                         : input.name == "attention_mask" ? &batch.mask
                                         : input.name == "token_type_ids" ? &batch.types
                                                                          : nullptr;
    if (!values || (input.dtype != DType::i64 && input.dtype != DType::i32))
      return Error{ErrorCode::unsupported,
                   "input '" + input.name +
                       "': tfcc-embed gives input_ids, attention_mask and "
                       "token_type_ids as integers; run other models with `tfcc run`"};
    held.push_back(input_array(*values, batch, input.dtype));
    Array& a = held.back();
    TFCC_TRY_VOID(executor.set(input.name, {a.bytes.data(), a.dtype, a.shape}));
  }
  return {};
}

float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// The output that holds one vector per token: the first of rank 3.
Result<std::string> token_output(const tfcc::Model& model) {
  for (const tfcc::TensorInfo& output : model.outputs())
    if (output.dims.size() == 3 && (output.dtype == DType::f32 || output.dtype == DType::f16))
      return output.name;
  return Error{ErrorCode::unsupported,
               "no output [batch, sequence, hidden] in float32 or float16; export the encoder "
               "with last_hidden_state"};
}

// Mean over real tokens, then length 1. [B,S,H] -> [B,H].
Array pool(const tfcc::Tensor& hidden, const TokenBatch& batch) {
  const int64_t rows = hidden.shape[0], columns = hidden.shape[1], width = hidden.shape[2];
  Array out = tfcc::tools::make_array(DType::f32, {rows, width});
  const auto at = [&](int64_t i) {
    return hidden.dtype == DType::f32 ? static_cast<const float*>(hidden.data)[i]
                                      : half_to_float(static_cast<const uint16_t*>(hidden.data)[i]);
  };
  std::vector<double> sum(static_cast<size_t>(width));
  for (int64_t r = 0; r < rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t c = 0; c < columns; ++c)
      if (batch.mask[static_cast<size_t>(r * columns + c)])
        for (int64_t k = 0; k < width; ++k)
          sum[static_cast<size_t>(k)] += at((r * columns + c) * width + k);
    double squares = 0;
    for (double v : sum) squares += v * v;
    const double scale =
        squares > 0 ? 1 / std::sqrt(squares) : 0;  // the mean's divisor cancels here
    for (int64_t k = 0; k < width; ++k)
      out.data<float>()[r * width + k] = static_cast<float>(sum[static_cast<size_t>(k)] * scale);
  }
  return out;
}

void print_similarities(const Array& embeddings, const std::vector<std::string>& texts) {
  const int64_t rows = embeddings.shape[0], width = embeddings.shape[1];
  const float* e = embeddings.data<float>();
  std::printf("cosine similarity\n    ");
  for (int64_t c = 0; c < rows; ++c) std::printf("%7lld", static_cast<long long>(c + 1));
  std::printf("\n");
  for (int64_t r = 0; r < rows; ++r) {
    std::printf("%4lld", static_cast<long long>(r + 1));
    for (int64_t c = 0; c < rows; ++c) {
      double dot = 0;
      for (int64_t k = 0; k < width; ++k)
        dot += static_cast<double>(e[r * width + k]) * e[c * width + k];
      std::printf("%7.3f", dot);
    }
    std::printf("   %s\n", texts[static_cast<size_t>(r)].c_str());
  }
}

// Median wall time of one run, in milliseconds.
Result<double> median_time(tfcc::Executor& executor, int runs) {
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    TFCC_TRY_VOID(executor.run());
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[static_cast<size_t>(runs / 2)];
}

Result<void> embed(const Options& o) {
  for (const std::string* read : {&o.model, &o.vocabulary})
    TFCC_TRY_VOID(tfcc::tools::note_input(*read));
  TFCC_TRY_VOID(tfcc::tools::plan_output("--output", o.output));
  TFCC_TRY(const std::vector<std::string> texts, sentences(o));
  using tfcc::text::Tokenizer;
  TFCC_TRY(const Tokenizer tokenizer,
           o.cased ? Tokenizer::load_bert(o.vocabulary, false) : Tokenizer::load(o.vocabulary));
  TFCC_TRY(const tfcc::Model model, tfcc::Model::load(o.model, o.load));
  TFCC_TRY(const std::string output, token_output(model));
  TFCC_TRY(tfcc::Executor executor, model.executor());

  TFCC_TRY(const TokenBatch batch, tokenize(tokenizer, texts, max_length(model, o)));
  std::vector<Array> held;
  TFCC_TRY_VOID(set_inputs(executor, model, batch, held));
  TFCC_TRY_VOID(executor.run());
  TFCC_TRY(const tfcc::Tensor hidden, executor.output(output));
  if (hidden.shape.size() != 3 || hidden.shape[0] != batch.rows || hidden.shape[1] != batch.columns)
    return Error{ErrorCode::shape,
                 "output '" + output +
                     "' is not [batch, sequence, hidden]; export the encoder with "
                     "last_hidden_state"};
  const Array embeddings = pool(hidden, batch);

  if (texts.size() <= 16) print_similarities(embeddings, texts);
  if (!o.output.empty()) TFCC_TRY_VOID(tfcc::tools::write_npy(o.output, embeddings));
  TFCC_TRY(const double milliseconds, median_time(executor, o.runs));
  const auto tokens = std::count(batch.mask.begin(), batch.mask.end(), 1);
  std::printf(
      "%s (%s): %.3f ms per batch of %lld sentences, %lld tokens padded to %lldx%lld (median of %d runs)\n",
      model.device().c_str(), model.target().c_str(), milliseconds,
      static_cast<long long>(batch.rows), static_cast<long long>(tokens),
      static_cast<long long>(batch.rows), static_cast<long long>(batch.columns), o.runs);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const Result<Options> options = parse(argc, argv);
  if (!options) {
    std::fprintf(stderr, "tfcc-embed: %s\n", options.error().message.c_str());
    return 2;
  }
  if (options->help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const Result<void> done = embed(*options);
  if (!done) {
    std::fprintf(stderr, "tfcc-embed: %s\n", done.error().message.c_str());
    return 1;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// tfcc generate: text from a compiled decoder, as it comes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <nlohmann/json.hpp>

#include "runtime/generate.h"
#include "runtime/core/profile.h"
#include "runtime/text/tokenizer.h"
#include "tools/tfcc/chat.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/ranges.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string model, tokenizer, prompt, prompt_ids, system, batch, device = "auto";
  std::vector<std::string> stops, roles;
  std::vector<int32_t> stop_ids;
  bool chat = false, print_ids = false, quiet = false;
  int threads = 0;
  double cache_mib = 0, swap_mib = -1;
  GenerateOptions generate;
  GeneratorOptions generator;
};

/// The tokenizer's files: beside each other in a folder, or kept in the .tfcc.
class TokenizerFiles {
 public:
  TokenizerFiles(const Model& model, std::string folder)
      : model_(model), folder_(std::move(folder)) {}

  /// Errors: io, invalid_argument (neither has it).
  Result<std::string> read(const std::string& name) const {
    if (folder_.empty()) return model_.attachment(name);
    const std::filesystem::path folder = std::filesystem::is_directory(folder_)
                                             ? std::filesystem::path(folder_)
                                             : std::filesystem::path(folder_).parent_path();
    const std::string path = folder / name;
    std::ifstream stream(path, std::ios::binary);
    if (!stream) return Error{ErrorCode::io, path + ": cannot open"};
    return std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  }

  Result<text::Tokenizer> tokenizer() const {
    if (!folder_.empty()) return text::Tokenizer::load(folder_);
    for (const char* name : text::kTokenizerFiles)
      if (const auto bytes = read(name)) return text::Tokenizer::from_bytes(*bytes, name);
    return Error{ErrorCode::invalid_argument,
                 read(text::kTokenizerFiles[0]).error().message +
                     "; or give --tokenizer FOLDER here, or ids with --prompt-ids"};
  }

  // What ends an answer, as generation_config.json or config.json say: one id or several.
  std::vector<int32_t> end_ids() const {
    for (const char* name : {"generation_config.json", "config.json"}) {
      const auto text = read(name);
      if (!text) continue;
      const auto json = nlohmann::json::parse(*text, nullptr, false);
      if (!json.is_object() || !json.contains("eos_token_id")) continue;
      const auto& id = json["eos_token_id"];
      if (id.is_number_integer()) return {id.get<int32_t>()};
      std::vector<int32_t> ids;
      for (const auto& i : id)
        if (i.is_number_integer()) ids.push_back(i.get<int32_t>());
      return ids;
    }
    return {};
  }

 private:
  const Model& model_;
  std::string folder_;
};

Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> out;
  for (const std::string& word : split(text)) {
    char* end = nullptr;
    const long value = std::strtol(word.c_str(), &end, 10);
    if (*end || value < 0 || value > INT32_MAX)
      return usage_error(fmt::format("--prompt-ids: '{}' is no token id", word));
    out.push_back(static_cast<int32_t>(value));
  }
  return out;
}

/// Text of an answer as it comes: up to a stop string, and never the start of one that may still
/// become it.
class Answer {
 public:
  Answer(const std::optional<text::Tokenizer>& tokenizer, const std::vector<std::string>& stops)
      : stops_(stops) {
    if (tokenizer) stream_.emplace(*tokenizer);
  }

  /// What may be shown now; `stopped` becomes true at a stop string.
  std::string push(int32_t id) {
    if (!stream_ || stopped) return {};
    const auto more = stream_->push(id);
    if (more) held_ += *more;
    return shown(false);
  }
  std::string finish() {
    if (!stream_ || stopped) return {};
    const auto more = stream_->finish();
    if (more) held_ += *more;
    return shown(true);
  }

  bool stopped = false;

 private:
  std::string shown(bool last) {
    for (const std::string& stop : stops_)
      if (const size_t at = held_.find(stop); at != held_.npos) {
        stopped = true;
        return std::exchange(held_, {}).substr(0, at);
      }
    size_t kept = 0;
    for (const std::string& stop : stops_)
      for (size_t n = 1; n < stop.size() && !last; ++n)
        if (held_.ends_with(stop.substr(0, n))) kept = std::max(kept, n);
    std::string out = held_.substr(0, held_.size() - kept);
    held_.erase(0, out.size());
    return out;
  }

  std::optional<text::TextStream> stream_;
  const std::vector<std::string>& stops_;
  std::string held_;
};

struct Session {
  const Options& options;
  Generator& generator;
  std::optional<text::Tokenizer> tokenizer;
  std::optional<ChatPieces> chat;
  std::vector<int32_t> end_ids;

  Result<std::vector<int32_t>> ids_of(const std::string& prompt) const {
    if (!chat) return tokenizer->encode(prompt);
    return tokenizer->encode(chat->conversation(options.system, prompt), {.special = false});
  }
};

/// A prompt that is being answered. Text is shown as it comes, up to a stop string, which ends the
/// sequence.
class Request {
 public:
  using Show = std::function<void(const std::string&)>;

  static Result<std::unique_ptr<Request>> start(const Session& session,
                                                const std::vector<int32_t>& prompt, Show show) {
    std::unique_ptr<Request> out(new Request(session, std::move(show)));
    GenerateOptions o = session.options.generate;
    o.stop_ids = session.end_ids;
    o.on_token = [request = out.get()](int32_t token) {
      const std::lock_guard lock(request->started_);
      if (request->text_.stopped) return;  // computed before it was known
      request->threw_ = true;
      request->show_(request->text_.push(token));
      request->threw_ = false;
      ++request->shown_;
      if (request->text_.stopped) request->generator_.cancel(request->id_);
    };
    const std::lock_guard lock(out->started_);  // tokens come after the id is known
    TFCC_TRY(out->id_, session.generator.submit(prompt, o));
    return out;
  }

  /// Errors: what made the sequence fail.
  Result<Generated> wait() {
    TFCC_TRY(Generated out, generator_.wait(id_));
    show_(text_.finish());
    // What was computed behind it does not count, even if it failed; but a callback that threw does.
    if (text_.stopped && (out.end != GenerateEnd::failed || !threw_)) {
      out.end = GenerateEnd::stop;
      out.tokens.resize(std::min(out.tokens.size(), shown_));
      out.log_probabilities.resize(std::min(out.log_probabilities.size(), shown_));
    }
    if (out.end == GenerateEnd::failed) return out.error;
    return out;
  }

 private:
  Request(const Session& session, Show show)
      : generator_(session.generator),
        text_(session.tokenizer, session.options.stops),
        show_(std::move(show)) {}

  Generator& generator_;
  Answer text_;
  Show show_;
  std::mutex started_;
  bool threw_ = false;
  size_t shown_ = 0;  // tokens, up to that by which a stop string was whole
  Generator::Id id_ = 0;
};

std::string joined(const std::vector<int32_t>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

// How fast it was, beside the least that reading the weights once for each token takes.
std::string speed_of(const Model& model, const Generated& g, size_t prompt) {
  std::string out = fmt::format("{} tokens after a prompt of {}: the first after {:.0f} ms",
                                g.tokens.size(), prompt, g.first_token_ms);
  if (g.tokens.size() < 2) return out;
  const double each = (g.total_ms - g.first_token_ms) / static_cast<double>(g.tokens.size() - 1);
  out += fmt::format(", then {:.1f} tokens/s ({:.1f} ms each", 1000 / each, each);
  const auto generation = model.generation();
  auto executor = generation ? generation->executor() : model.executor();
  const auto least =
      executor ? runtime::weight_read_ms(*executor) : Result<double>(executor.error());
  if (least) out += fmt::format("; reading the weights of its products once takes {:.1f}", *least);
  if (least && *least < each) out += fmt::format(", {:.0f}% of it", 100 * *least / each);
  return out + ")";
}

Result<void> generate_one(Session& session, const Model& model,
                          const std::vector<int32_t>& prompt) {
  const Options& o = session.options;
  TFCC_TRY(const auto request, Request::start(session, prompt, [&](const std::string& text) {
             if (o.print_ids) return;
             std::fwrite(text.data(), 1, text.size(), stdout);
             std::fflush(stdout);
           }));
  TFCC_TRY(const Generated g, request->wait());
  if (o.print_ids || !session.tokenizer) std::printf("%s", joined(g.tokens).c_str());
  std::printf("\n");
  std::fflush(stdout);
  if (!o.quiet)
    std::fprintf(stderr, "%s; ended by %s\n", speed_of(model, g, prompt.size()).c_str(),
                 to_string(g.end));
  return {};
}

// All prompts of a file at once; answers in the order of the file, as one JSON line each.
Result<void> generate_batch(Session& session) {
  const Options& o = session.options;
  std::ifstream file(o.batch);
  if (!file) return Error{ErrorCode::io, o.batch + ": cannot open the prompts"};
  std::vector<std::string> prompts;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) prompts.push_back(line);
  const auto start = std::chrono::steady_clock::now();
  std::vector<Result<std::unique_ptr<Request>>> requests;
  std::vector<std::string> texts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto encoded = session.tokenizer ? session.ids_of(prompts[i]) : parse_ids(prompts[i]);
    if (encoded)
      requests.push_back(Request::start(
          session, *encoded, [&text = texts[i]](const std::string& more) { text += more; }));
    else requests.push_back(encoded.error());
  }
  size_t tokens = 0, failed = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    nlohmann::ordered_json line = {{"prompt", prompts[i]}};
    const auto done = requests[i] ? (*requests[i])->wait() : Result<Generated>(requests[i].error());
    if (done) {
      if (session.tokenizer && !o.print_ids) line["text"] = texts[i];
      line["ids"] = done->tokens;
      if (o.generate.log_probabilities) line["logprobs"] = done->log_probabilities;
      line["end"] = to_string(done->end);
      tokens += done->tokens.size();
    } else {
      line["error"] = done.error().message;
      ++failed;
    }
    std::printf("%s\n",
                line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const GeneratorStats stats = session.generator.stats();
  if (!o.quiet) {
    std::fprintf(stderr, "%zu prompts, %zu tokens in %.2f s: %.1f tokens/s", prompts.size(), tokens,
                 s, static_cast<double>(tokens) / s);
    if (stats.shared_tokens > 0)
      std::fprintf(stderr, "; %lld tokens of prompts were those of others",
                   static_cast<long long>(stats.shared_tokens));
    if (stats.preempted > 0)
      std::fprintf(stderr,
                   "; %lld times a sequence gave its place to another, as the cache was full, "
                   "and %lld times was computed again",
                   static_cast<long long>(stats.preempted),
                   static_cast<long long>(stats.preempted - stats.swapped));
    std::fprintf(stderr, "\n");
  }
  if (failed)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: {} of {} prompts have no answer; their lines say why", o.batch,
                             failed, prompts.size())};
  return {};
}

Result<void> check_usage(const Options& o) {
  const int given = !o.prompt.empty() + !o.prompt_ids.empty() + !o.batch.empty();
  if (given != 1) return usage_error("generate takes one of --prompt, --prompt-ids and --batch");
  if (!o.prompt_ids.empty() && (o.chat || !o.stops.empty()))
    return usage_error("--prompt-ids has no text; leave --chat and --stop out");
  if (o.generate.log_probabilities && o.batch.empty())
    return usage_error("--logprobs is for --batch");
  if (!o.system.empty() && !o.chat) return usage_error("--system is for --chat");
  return {};
}

Result<void> run_generate(Options o) {
  TFCC_TRY_VOID(check_usage(o));
  for (const std::string& role : o.roles) {
    const size_t at = role.find('=');
    if (at == role.npos) return usage_error(fmt::format("--role '{}' is not NAME=ROLE", role));
    o.generator.roles.emplace_back(role.substr(0, at), role.substr(at + 1));
  }
  o.generator.cache_bytes = static_cast<size_t>(o.cache_mib * 1048576);
  if (o.swap_mib >= 0) o.generator.swap_bytes = static_cast<size_t>(o.swap_mib * 1048576);
  if (o.batch.empty()) o.generator.max_sequences = 1;
  TFCC_TRY(const std::vector<int32_t> given, parse_ids(o.prompt_ids));
  LoadOptions load;
  load.ranges = profiler_ranges();
  load.device = o.device;
  load.threads = o.threads;
  load.log = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  TFCC_TRY(Model model, Model::load(o.model, load));
  auto made = Generator::make(model, o.generator);
  if (!made) return Error{made.error().code, o.model + ": " + made.error().message};
  if (const auto lifted = model.generation(); !lifted && !o.generator.literal && !o.quiet)
    std::fprintf(stderr, "%s; it runs as it was exported, a sequence at a time\n",
                 lifted.error().message.c_str());
  Session session{o, *made, {}, {}, o.stop_ids};
  const TokenizerFiles files(model, o.tokenizer);
  if (given.empty()) {
    auto tokenizer = files.tokenizer();
    if (tokenizer) {
      session.tokenizer = *std::move(tokenizer);
      if (session.tokenizer->size() > made->vocabulary_size())
        return Error{
            ErrorCode::invalid_argument,
            fmt::format(
                "the tokenizer has {} tokens, the model of {} a vocabulary of {}: they do not belong together",
                session.tokenizer->size(), o.model, made->vocabulary_size())};
      std::vector<int32_t> ends = files.end_ids();
      if (ends.empty() && session.tokenizer->end_id() >= 0)
        ends.push_back(session.tokenizer->end_id());
      session.end_ids.insert(session.end_ids.end(), ends.begin(), ends.end());
    } else if (o.batch.empty() || !o.tokenizer.empty() || o.chat || !o.stops.empty()) {
      return tokenizer.error();
    }
    if (o.chat) {
      TFCC_TRY(const std::string json, files.read("chat.json"));
      TFCC_TRY(session.chat, ChatPieces::from_json(json));
    }
  }
  if (!o.batch.empty()) return generate_batch(session);
  if (!given.empty()) return generate_one(session, model, given);
  TFCC_TRY(const std::vector<int32_t> ids, session.ids_of(o.prompt));
  return generate_one(session, model, ids);
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  Sampling& s = o->generate.sampling;
  CLI::App* c = app.add_subcommand("generate", "answer a prompt with a compiled decoder");
  c->add_option("model", o->model, "the .tfcc file")->required();
  c->add_option("-p,--prompt", o->prompt, "the text to go on from, or with --chat to answer");
  c->add_option("--prompt-ids", o->prompt_ids, "the same as token ids: 5,6,7");
  c->add_option(
      "--batch", o->batch,
      "a file with a prompt in each line, answered at the same time; a JSON line for each");
  c->add_flag("--chat", o->chat,
              "put the prompt into the model's chat template (chat.json beside the tokenizer)");
  c->add_option("--system", o->system, "the system message of --chat");
  c->add_option(
      "--tokenizer", o->tokenizer,
      "the folder with tokenizer.json, tokenizer.model or tekken.json, or one of these or a .gguf file; default: what `tfcc compile --tokenizer` kept in the file");
  c->add_option("-n,--max-tokens", o->generate.max_tokens, "most tokens of an answer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  c->add_option("--stop", o->stops, "end before this text; may be given several times");
  c->add_option("--stop-ids", o->stop_ids, "end at these ids, beside the tokenizer's")
      ->delimiter(',');
  c->add_option("--temperature", s.temperature, "0 takes the likeliest token")
      ->capture_default_str();
  c->add_option("--top-k", s.top_k, "of the k likeliest; 0: all")->capture_default_str();
  c->add_option("--top-p", s.top_p, "of the likeliest that together have this probability")
      ->capture_default_str();
  c->add_option("--min-p", s.min_p, "of those with this share of the largest probability")
      ->capture_default_str();
  c->add_option("--repetition-penalty", s.repetition_penalty,
                "above 1: tokens that were there are less likely")
      ->capture_default_str();
  c->add_option("--seed", s.seed, "of the random choice")->capture_default_str();
  c->add_option("--max-context", o->generator.max_context,
                "most tokens of prompt and answer; default: what the model takes, at most 4096");
  c->add_option("--max-sequences", o->generator.max_sequences,
                "prompts of --batch that are computed at a time")
      ->capture_default_str();
  c->add_option(
       "--cache", o->cache_mib,
       "memory for keys and values, in MiB; default: for all of these, as far as half of what is free goes")
      ->check(not_negative());
  c->add_option(
       "--swap", o->swap_mib,
       "memory of the host, in MiB, for what prompts hold that give their place in the cache to others; what has no place there is computed again; default: as much as the cache")
      ->check(not_negative());
  c->add_flag(
      "--literal", o->generator.literal,
      "run the graph as it was exported, a sequence at a time, though the file has a program for generation");
  c->add_option(
      "--role", o->roles,
      "what an input or output is: NAME=ids|mask|positions|types|logits, or PRESENT=PAST");
  c->add_flag("--logprobs", o->generate.log_probabilities,
              "add the logarithm of each id's probability to the lines of --batch");
  c->add_flag("--print-ids", o->print_ids, "write the new ids in place of text, with commas");
  c->add_option("--device", o->device, "auto, cpu, cuda, cuda:1")->capture_default_str();
  add_threads(*c, o->threads, "threads of the CPU");
  c->add_flag("-q,--quiet", o->quiet, "write the answer alone");
  c->callback([o, &action] { action = [o] { return run_generate(*o); }; });
}

}  // namespace tfcc::tools

// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWorker =
#include "tools/peer_worker.inc"
    ;

Result<std::string> temporary_folder() {
  std::error_code ignored;
  const fs::path base = fs::temp_directory_path(ignored);
  std::string name = (base / "tfcc-peer-XXXXXX").string();
  if (!mkdtemp(name.data())) {
    return Error{ErrorCode::io,
                 fmt::format("{}: cannot make a folder; set TMPDIR to a place that is writable",
                             base.string())};
  }
  return name;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& t : texts) out.push_back(t.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Peer::Peer(Peer&& other) noexcept
    : kind_(std::move(other.kind_)),
      python_(std::move(other.python_)),
      folder_(std::exchange(other.folder_, "")),
      name_(std::move(other.name_)),
      by_events_(other.by_events_),
      pid_(std::exchange(other.pid_, -1)),
      socket_(std::exchange(other.socket_, -1)),
      received_(std::move(other.received_)) {}

Peer::~Peer() {
  if (socket_ >= 0) close(socket_);  // the end of its input
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

Result<Peer> Peer::start(const PeerOptions& o,
                         const std::vector<std::pair<std::string, Array>>& inputs) {
  Peer peer;
  peer.kind_ = o.kind;
  peer.python_ = o.python;
  TFCC_TRY(peer.folder_, temporary_folder());
  nlohmann::json request = {{"kind", o.kind},         {"model", o.model},     {"mode", o.mode},
                            {"folder", peer.folder_}, {"threads", o.threads}, {"device", o.device},
                            {"dtype", o.dtype}};
  if (!o.onnx.empty()) request["onnx"] = o.onnx;
  TFCC_TRY(request["inputs"], peer.write_inputs(inputs));
  TFCC_TRY_VOID(peer.spawn(o));
  TFCC_TRY(auto reply, peer.ask(request));
  peer.name_ = reply.value("name", o.kind);
  peer.by_events_ = reply.value("clock", "wall") == "events";
  return peer;
}

Result<nlohmann::json> Peer::write_inputs(
    const std::vector<std::pair<std::string, Array>>& inputs) const {
  nlohmann::json files = nlohmann::json::object();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string file = fmt::format("{}/input_{}.npy", folder_, i);
    TFCC_TRY_VOID(write_npy(file, inputs[i].second));
    files[inputs[i].first] = file;
  }
  return files;
}

Result<void> Peer::feed(const std::vector<std::pair<std::string, Array>>& inputs) {
  TFCC_TRY(nlohmann::json files, write_inputs(inputs));
  TFCC_TRY([[maybe_unused]] auto reply, ask({{"feed", files}}));
  return {};
}

Result<void> Peer::keep(const std::vector<std::string>& values) {
  TFCC_TRY([[maybe_unused]] auto reply, ask({{"keep", values}}));
  return {};
}

Result<void> Peer::spawn(const PeerOptions& o) {
  const std::string script = folder_ + "/worker.py", log = folder_ + "/stderr.txt";
  std::ofstream(script) << kWorker;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Error{ErrorCode::io, "a socket for the peer: " + std::string(std::strerror(errno))};
  socket_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::vector<std::string> words = {python_, script};
  auto argv = pointers(words);
  const int failed = posix_spawnp(&pid_, python_.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed == 0) return {};
  pid_ = -1;
  return Error{ErrorCode::invalid_argument,
               fmt::format("cannot start '{}': {}; name a python that has {} with --python",
                           python_, std::strerror(failed), o.kind)};
}

// The last line it wrote says most.
Error Peer::gone() const {
  std::ifstream in(folder_ + "/stderr.txt");
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return {ErrorCode::device, fmt::format("{} ended while it ran {}: {}", python_, kind_,
                                         last.empty() ? "it said nothing" : last)};
}

Result<nlohmann::json> Peer::ask(const nlohmann::json& request) {
  const std::string line = request.dump() + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t n = send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return gone();
    sent += static_cast<size_t>(n);
  }
  size_t end;
  while ((end = received_.find('\n')) == std::string::npos) {
    char buffer[4096];
    const ssize_t n = recv(socket_, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return gone();
    received_.append(buffer, static_cast<size_t>(n));
  }
  auto reply = nlohmann::json::parse(received_.substr(0, end), nullptr, false);
  received_.erase(0, end + 1);
  if (!reply.is_object())
    return Error{ErrorCode::internal, "an answer of the peer's process is no JSON object"};
  if (reply.contains("error"))
    return Error{ErrorCode::invalid_argument,
                 "peer " + kind_ + ": " + reply["error"].get<std::string>()};
  return reply;
}

Result<std::vector<double>> Peer::run(int runs, int warm) {
  TFCC_TRY(auto reply, ask({{"run", runs}, {"warm", warm}}));
  return reply["ms"].get<std::vector<double>>();
}

Result<std::vector<std::pair<std::optional<std::string>, Array>>> Peer::outputs() {
  TFCC_TRY(auto reply, ask({{"outputs", true}}));
  std::vector<std::pair<std::optional<std::string>, Array>> out;
  for (const auto& entry : reply["outputs"]) {
    TFCC_TRY(Array a, read_npy(entry[1].get<std::string>()));
    out.emplace_back(
        entry[0].is_string() ? std::optional(entry[0].get<std::string>()) : std::nullopt,
        std::move(a));
  }
  return out;
}

}  // namespace tfcc::tools

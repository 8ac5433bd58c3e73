// SPDX-License-Identifier: Apache-2.0
// Error and Result<T>: how every folder reports a failure that a user can cause.
// Header-only and free of dependencies, so any folder may include it.
//
//     Result<Graph> load(const std::string& path);
//     TFCC_TRY(Graph graph, load(path));       // returns the error to the caller, or binds the value
//     TFCC_CHECK(x != nullptr);                // a broken invariant of ours: prints file and line, aborts
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace tfcc {
inline namespace v1 {

/// What kind of failure it is; a script or a caller may branch on it.
enum class ErrorCode {
  invalid_argument,  ///< wrong name, dtype or value given by the caller
  unsupported,       ///< understood, but tfcc cannot do it
  bad_file,          ///< not the file it claims to be, truncated or altered
  shape,             ///< sizes that do not fit
  device,            ///< no such device, driver or library, or a failure on it
  memory,            ///< allocation failed
  io,                ///< a file could not be read or written
  internal,          ///< a defect in tfcc
  usage,             ///< an option that is wrong by itself, or that this model cannot have
};

/// The name of a code, spelled as in ErrorCode.
inline const char* to_string(ErrorCode code) {
  constexpr const char* kNames[] = {
      "invalid_argument", "unsupported", "bad_file", "shape", "device",
      "memory",           "io",          "internal", "usage"};
  return kNames[static_cast<int>(code)];
}

/// A failure: one line that names the thing, the place and the way out. Lower case, no full stop.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
};

/// Either a value or an Error. Test with `if (!r)`, then read `*r` or `r.error()`.
template <class T> class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : error_(std::move(error)) {}  // NOLINT
  explicit operator bool() const { return value_.has_value(); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const Error& error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

/// Success without a value, or an Error. `return {};` is success.
template <> class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT
  explicit operator bool() const { return !error_.has_value(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace v1
}  // namespace tfcc

#define TFCC_CONCAT_(a, b) a##b
#define TFCC_CONCAT(a, b) TFCC_CONCAT_(a, b)

/// `TFCC_TRY(auto x, expr)`: binds the value of a Result or returns its error.
#define TFCC_TRY(declaration, ...) \
  TFCC_TRY_(TFCC_CONCAT(tfcc_result_, __COUNTER__), declaration, __VA_ARGS__)
#define TFCC_TRY_(tmp, declaration, ...) \
  auto tmp = (__VA_ARGS__);              \
  if (!tmp) return tmp.error();          \
  declaration = *std::move(tmp)

/// `TFCC_TRY_VOID(expr)`: returns the error of a Result<void>, if any.
#define TFCC_TRY_VOID(...) \
  if (auto tfcc_void_ = (__VA_ARGS__); !tfcc_void_) return tfcc_void_.error()

/// An invariant of tfcc itself. Never for what a file or a caller can cause.
#define TFCC_CHECK(condition)                                                                    \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      std::fprintf(stderr, "tfcc: internal error: %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                              \
    }                                                                                            \
  } while (0)

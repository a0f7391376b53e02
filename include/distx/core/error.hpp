// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace distx {

/// Where an error arose: the call, the backend, the rank that reports it, and the caller's line.
struct ErrorContext {
  std::string_view operation{};
  std::string_view backend{};
  int rank = -1;
  int size = 0;
  std::source_location location{};
};

namespace detail {

inline std::string error_sentence(const std::string& words, const ErrorContext& context) {
  std::string text = "distx: ";
  if (!context.operation.empty()) {
    text += context.operation;
    if (context.size > 0) text += " on rank " + std::to_string(context.rank) + " of " + std::to_string(context.size);
    if (!context.backend.empty()) text.append(" (").append(context.backend).append(")");
    text += ": ";
  }
  text += words;
  if (context.location.line() != 0) {
    std::string_view file = context.location.file_name();
    file.remove_prefix(file.find_last_of('/') + 1);  // npos + 1 is 0: a bare name stays whole
    text.append(" [").append(file).append(":").append(std::to_string(context.location.line())).append("]");
  }
  return text;
}

}  // namespace detail

/// The base of every error that distx throws.
///
/// `what()` reads `distx: all_reduce on rank 2 of 4 (mpi): send has 10 elements, receive has 8 [train.cpp:41]`.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& words, const ErrorContext& context = {}, int code = 0)
      : std::runtime_error(detail::error_sentence(words, context)),
        operation_(context.operation),
        backend_(context.backend),
        rank_(context.rank),
        size_(context.size),
        code_(code),
        location_(context.location) {}

  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  [[nodiscard]] const std::string& backend() const noexcept { return backend_; }
  /// The rank that reports the error, -1 where there is none.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// The backend's own code, 0 where it gave none.
  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] const std::source_location& location() const noexcept { return location_; }

 private:
  std::string operation_;
  std::string backend_;
  int rank_;
  int size_;
  int code_;
  std::source_location location_;
};

/// Sizes, types, roots or calls that do not fit together, on one rank or among ranks.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// A wait that outlasted its deadline.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A communicator, or a group of ranks, that an error elsewhere has ended.
class RevokedError : public Error {
 public:
  using Error::Error;
};

/// No connection among the ranks: a launcher that is not understood, a library that does not fit it.
class ConnectError : public Error {
 public:
  using Error::Error;
};

/// Memory that could not be had.
class MemoryError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint that cannot be written, read or matched.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Data that is missing, cut off or out of range.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A rank that died or ended with an exception.
class RankFailure : public Error {
 public:
  RankFailure(const std::string& words, int failed_rank, std::exception_ptr cause = nullptr,
              const ErrorContext& context = {})
      : Error(words, context), failed_rank_(failed_rank), cause_(std::move(cause)) {}

  [[nodiscard]] int failed_rank() const noexcept { return failed_rank_; }
  /// What the rank threw, null where that is not known.
  [[nodiscard]] const std::exception_ptr& cause() const noexcept { return cause_; }

 private:
  int failed_rank_;
  std::exception_ptr cause_;
};

}  // namespace distx

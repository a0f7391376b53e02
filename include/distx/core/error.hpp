// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "distx/core/detail/floating_point.hpp"

namespace distx::inline DISTX_ABI {

/// Where an error was raised: the operation, the backend, the reporting rank and the caller's source location.
struct ErrorContext {
  std::string_view operation{};     ///< such as "all_reduce"
  std::string_view backend{};       ///< such as "mpi"
  int rank = -1;                    ///< that reports the error; -1 if there is none
  int size = 0;                     ///< the number of ranks; 0 if there are none
  std::source_location location{};  ///< where the caller called distx
};

namespace detail {

/// The message of an exception that has none.
inline constexpr const char* unknown_exception = "unknown exception (not derived from std::exception)";

/// Returns a message without the "distx: " of errors that it quotes, because each error has one in front.
inline std::string without_prefixes(std::string message) {
  constexpr std::string_view prefix = "distx: ";
  for (auto at = message.find(prefix); at != std::string::npos; at = message.find(prefix, at))
    message.erase(at, prefix.size());
  return message;
}

/// Returns the message with its context; the location is appended unless the message quotes an error with the same one.
inline std::string error_message(const std::string& message, const ErrorContext& context) {
  std::string text = "distx: ";
  if (!context.operation.empty()) {
    text += context.operation;
    if (context.size > 0) text += " on rank " + std::to_string(context.rank) + " of " + std::to_string(context.size);
    if (!context.backend.empty()) text.append(" (").append(context.backend).append(")");
    text += ": ";
  }
  text += message;
  if (context.location.line() != 0) {
    std::string_view file = context.location.file_name();
    file.remove_prefix(file.find_last_of('/') + 1);  // npos + 1 is 0: a bare name stays whole
    const auto place = std::string(" [").append(file).append(":").append(std::to_string(context.location.line())) + "]";
    if (message.find(place) == std::string::npos) text += place;
  }
  return text;
}

}  // namespace detail

/// Base class of every exception that distx throws.
///
/// `what()` reads `distx: all_reduce on rank 2 of 4 (mpi): send has 10 elements, receive has 8 [train.cpp:41]`. A
/// message may quote the `what()` of another error: "distx: " appears once, and so does a location that both have.
class Error : public std::runtime_error {
 public:
  /// @param code  the error code of the backend or the system, 0 if there is none
  explicit Error(const std::string& message, const ErrorContext& context = {}, int code = 0)
      : std::runtime_error(detail::error_message(detail::without_prefixes(message), context)),
        message_(detail::without_prefixes(message)),
        operation_(context.operation),
        backend_(context.backend),
        rank_(context.rank),
        size_(context.size),
        code_(code),
        location_(context.location) {}

  /// Returns what is wrong, without the context that `what()` adds.
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  /// Returns the operation that failed, such as "all_reduce"; empty if there is none.
  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  /// Returns the backend that reports the error, such as "mpi"; empty if there is none.
  [[nodiscard]] const std::string& backend() const noexcept { return backend_; }
  /// Returns the rank that reports the error, or -1 if there is none.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// Returns the number of ranks, or 0 if the error has no rank.
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Returns the error code of the backend or the system, or 0 if there is none.
  [[nodiscard]] int code() const noexcept { return code_; }
  /// Returns where the caller called distx; its line is 0 if that is not known.
  [[nodiscard]] const std::source_location& location() const noexcept { return location_; }

 private:
  std::string message_;
  std::string operation_;
  std::string backend_;
  int rank_;
  int size_;
  int code_;
  std::source_location location_;
};

/// Thrown when an argument is invalid on this rank, regardless of the other ranks' arguments.
///
/// If other ranks could be waiting for this one, its communicator is revoked before the error is thrown.
struct InvalidArgument : Error {
  using Error::Error;
};

/// Thrown when a call is out of order on this rank, such as `update_weights` before `reduce_gradients`, or made by a
/// process that was forked from the rank's.
///
/// If other ranks could be waiting for this one, its communicator is revoked before the error is thrown.
struct InvalidState : Error {
  using Error::Error;
};

/// Thrown on every rank when the ranks of a call disagree: on the operation, its sizes, types, root, op or order.
struct MismatchError : Error {
  using Error::Error;
};

/// Thrown when other ranks do not enter a call before the deadline, or a DataLoader's batch is not made before its own.
class TimeoutError : public Error {
 public:
  /// @param rank_loss  what `is_rank_loss` returns
  explicit TimeoutError(const std::string& message, const ErrorContext& context = {}, int code = 0,
                        bool rank_loss = true)
      : Error(message, context, code), rank_loss_(rank_loss) {}
  [[nodiscard]] bool rank_loss() const noexcept { return rank_loss_; }

 private:
  bool rank_loss_;
};

/// Thrown when another rank has revoked the communicator; the message carries its reason.
class RevokedError : public Error {
 public:
  /// @param rank_loss  what `is_rank_loss` returns: false if the other rank has reported an error of its calls or data
  explicit RevokedError(const std::string& message, const ErrorContext& context = {}, int code = 0,
                        bool rank_loss = true)
      : Error(message, context, code), rank_loss_(rank_loss) {}
  [[nodiscard]] bool rank_loss() const noexcept { return rank_loss_; }

 private:
  bool rank_loss_;
};

/// Thrown when the ranks cannot be connected: an unknown launcher, invalid variables, or a library that does not match.
struct ConnectError : Error {
  using Error::Error;
};

/// Thrown when an allocation fails.
struct MemoryError : Error {
  using Error::Error;
};

/// Thrown when data is missing, truncated or out of range.
struct DataError : Error {
  using Error::Error;
};

/// Thrown when a checkpoint cannot be written, is incomplete or damaged, or does not fit the training; the message
/// names the file and the tensor.
struct CheckpointError : Error {
  using Error::Error;
};

/// Thrown on every rank when a gradient or a loss of one is infinite or not a number.
struct NonFiniteError : Error {
  using Error::Error;
};

/// Thrown when a vendor's library or the operating system reports an error that has no type above; `code()` is its
/// error code.
struct BackendError : Error {
  using Error::Error;
};

/// Thrown on the surviving ranks when a rank exited unexpectedly or threw an exception.
class RankFailure : public Error {
 public:
  RankFailure(const std::string& message, int failed_rank, std::exception_ptr cause = nullptr,
              const ErrorContext& context = {})
      : Error(message, context), failed_rank_(failed_rank), cause_(std::move(cause)) {}

  /// Returns the rank that failed.
  [[nodiscard]] int failed_rank() const noexcept { return failed_rank_; }
  /// Returns the exception that the rank threw, or null if it is unknown.
  [[nodiscard]] const std::exception_ptr& cause() const noexcept { return cause_; }

 private:
  int failed_rank_;
  std::exception_ptr cause_;
};

/// Returns whether an error may be caused by a failed rank, so that the others can continue without it: RankFailure,
/// TimeoutError and RevokedError. Not those that follow from an error of a rank's own calls or data, such as an invalid
/// argument, a mismatch, a gradient that is not finite, or a loader that is stuck.
[[nodiscard]] inline bool is_rank_loss(const Error& error) noexcept {
  if (const auto* const timeout = dynamic_cast<const TimeoutError*>(&error)) return timeout->rank_loss();
  if (const auto* const revoked = dynamic_cast<const RevokedError*>(&error)) return revoked->rank_loss();
  return dynamic_cast<const RankFailure*>(&error) != nullptr;
}

}  // namespace distx::inline DISTX_ABI

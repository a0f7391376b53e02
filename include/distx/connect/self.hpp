// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/connect/connector.hpp"
#include "distx/connect/failure_channel.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Makes the failure channel of ranks in one process.
[[nodiscard]] std::shared_ptr<FailureChannel> local_failure_channel();

/// The error of a connector in place of which `shrink` or `grow` has returned another one.
[[nodiscard]] inline InvalidState replaced_before(const ErrorContext& context) {
  return InvalidState("this connector has been replaced: use the one that shrink or grow returned", context);
}
/// The error of a rank that the others have continued without.
[[nodiscard]] inline ConnectError left_behind(const Timeout& deadline, const ErrorContext& context) {
  return ConnectError("the other ranks continue without this one, which did not enter the call within " +
                          deadline.to_string() + "; end this process, or pass a longer deadline on every rank",
                      context);
}

/// @throws InvalidArgument unless root is a rank
inline void check_control_root(int root, int rank, int size) {
  if (root < 0 || root >= size)
    throw InvalidArgument("invalid root " + std::to_string(root) + ": must be in [0, " + std::to_string(size) + ")",
                          {.operation = "broadcast", .backend = "connector", .rank = rank, .size = size});
}

/// @throws InvalidArgument unless receive has `size` times the bytes of send
inline void check_control_gather(std::size_t send, std::size_t receive, int rank, int size) {
  if (receive != send * static_cast<std::size_t>(size))
    throw InvalidArgument("receive has " + std::to_string(receive) + " bytes, expected " + std::to_string(send) +
                              " from each of " + std::to_string(size) + " ranks",
                          {.operation = "all_gather", .backend = "connector", .rank = rank, .size = size});
}

}  // namespace detail

/// The Connector of a program that runs alone, as one rank; `connect()` returns it without a launcher.
class SelfConnector : public detail::RankNumbers {
 public:
  SelfConnector() : RankNumbers(0, 1) {}
  void barrier() noexcept {}
  /// @throws InvalidArgument unless root is 0
  void broadcast(std::span<std::byte>, int root) { detail::check_control_root(root, 0, 1); }
  /// Copies `send` to `receive`.
  /// @throws InvalidArgument unless they have the same number of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), 0, 1);
    std::copy(send.begin(), send.end(), receive.begin());
  }
  /// Returns an equal connector.
  [[nodiscard]] SelfConnector shrink(Timeout = default_deadline) const { return *this; }
  /// Returns an equal connector: no process can wait for one that runs alone.
  [[nodiscard]] SelfConnector grow() const { return *this; }
  /// Returns a channel that notifies this process; never null.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept { return failures_; }

 private:
  std::shared_ptr<FailureChannel> failures_ = detail::local_failure_channel();
};

}  // namespace distx::inline DISTX_ABI

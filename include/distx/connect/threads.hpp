// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "distx/connect/self.hpp"

namespace distx {

namespace detail {

class ThreadGroup;

}  // namespace detail

/// The Connector of N ranks that are threads of this process; `spawn` makes one for each thread.
class ThreadConnector {
 public:
  /// For `spawn`, which makes the group.
  ThreadConnector(std::shared_ptr<detail::ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] int local_rank() const noexcept { return rank_; }
  [[nodiscard]] int local_size() const noexcept;
  [[nodiscard]] int root_rank() const noexcept { return 0; }

  /// Blocks until every rank has entered the call. Collective.
  /// @throws TimeoutError if a rank does not enter before the deadline; RevokedError if a rank ended with an exception.
  ///         The same holds for the other calls
  void barrier();
  /// Copies `bytes` of `root` to `bytes` on every rank. Collective.
  /// @throws InvalidArgument unless root is a rank; MismatchError if this rank's number of bytes is not root's
  void broadcast(std::span<std::byte> bytes, int root);
  /// Writes the ranks' `send` to `receive`, in rank order. Collective.
  /// @throws InvalidArgument unless `receive` has `size()` times the bytes of `send`; MismatchError if a rank sends
  ///         another number of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive);
  /// Returns a connector of the ranks that are left, as `AnyConnector::shrink` describes: a rank has ended when its
  /// thread's function has.
  [[nodiscard]] ThreadConnector shrink(Timeout deadline = default_deadline);
  /// Returns an equal connector: no thread can wait to join those of `spawn`. Local.
  [[nodiscard]] ThreadConnector grow() const { return *this; }
  /// Returns the ranks' failure channel, which also reports a rank that ended with an exception; never null.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept;

 private:
  MismatchError different(std::string_view operation, int other, std::size_t theirs, std::size_t mine) const;

  std::shared_ptr<detail::ThreadGroup> group_;
  int rank_;
};

}  // namespace distx

#ifndef DISTX_COMPILED
#include "distx/connect/detail/threads_calls.hpp"
#endif

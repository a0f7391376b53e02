// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI::detail {

namespace control {

class ControlGroup;

}  // namespace control

/// The calls of ThreadConnector, FileConnector and TcpConnector.
class ControlConnector : public RankNumbers {
 public:
  /// Blocks until every rank has entered the call. Collective.
  /// @throws MismatchError on every rank if the ranks make different calls; TimeoutError naming the missing ranks;
  ///         RankFailure or RevokedError if another rank has ended; ConnectError if the ranks' folder is gone. The same
  ///         holds for the other calls. After a MismatchError the ranks can make further calls
  void barrier();
  /// Copies `bytes` of `root` to `bytes` on every rank. Collective.
  /// @throws InvalidArgument unless root is a rank; MismatchError on every rank if the ranks pass different roots or
  ///         numbers of bytes
  void broadcast(std::span<std::byte> bytes, int root);
  /// Writes the ranks' `send` to `receive`, in rank order. Collective.
  /// @throws InvalidArgument unless `receive` has `size()` times the bytes of `send`; MismatchError on every rank if
  ///         the ranks pass different numbers of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive);

  /// Returns the ranks' failure channel, which also reports a rank that has failed. Never null; while it is kept, this
  /// rank does not leave.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept;

 protected:
  explicit ControlConnector(std::shared_ptr<control::ControlGroup> group) noexcept;

  /// Returns the group of the ranks that are left.
  [[nodiscard]] std::shared_ptr<control::ControlGroup> shrunk(const Timeout& deadline);
  /// Returns the group of these ranks and of the processes that wait to join; this one if none does.
  [[nodiscard]] std::shared_ptr<control::ControlGroup> grown();

 private:
  std::shared_ptr<control::ControlGroup> group_;
};

}  // namespace distx::inline DISTX_ABI::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/declaration.hpp"
#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Returns the first rank that runs in another process, or -1. Collective.
[[nodiscard]] int first_foreign_rank(ConnectorRef connector);

}  // namespace detail

/// A communicator of threads of one process. Every rank reads and writes all ranks' buffers in place; reductions
/// combine operands in rank order.
class ThreadCommunicator
    : public detail::BasicCommunicator<ThreadCommunicator, detail::shared_memory::SharedMemoryBackend> {
  using Base = detail::BasicCommunicator<ThreadCommunicator, detail::shared_memory::SharedMemoryBackend>;
  friend Base;

 public:
  /// Makes a communicator from a connector whose ranks are threads of this process. Collective over the connector,
  /// which is not needed afterwards.
  /// @throws ConnectError on every rank if a rank runs in another process
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, ThreadCommunicator>) && Connector<C>
  explicit ThreadCommunicator(C& connector, Timeout deadline = default_deadline)
      : Base(connected(connector, deadline)) {}

 private:
  using Base::Base;

  static std::shared_ptr<State> connected(detail::ConnectorRef connector, Timeout deadline);
};

}  // namespace distx::inline DISTX_ABI

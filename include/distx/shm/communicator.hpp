// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/declaration.hpp"
#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI {

/// A communicator of ranks, processes or threads, that share the memory of one host.
///
/// Memory from `allocate` is accessed in place by all ranks; other memory is copied through shared staging buffers.
/// Reductions combine operands in rank order, so the result does not depend on the kind of memory. If a rank's process
/// dies, the calls of the other ranks throw RankFailure.
class ShmCommunicator : public detail::BasicCommunicator<ShmCommunicator, detail::shared_memory::SharedMemoryBackend> {
  using Base = detail::BasicCommunicator<ShmCommunicator, detail::shared_memory::SharedMemoryBackend>;
  friend Base;

 public:
  /// Makes a communicator from a connector whose ranks run on one host. Collective over the connector, which is not
  /// needed afterwards.
  /// @throws ConnectError on every rank if a rank runs on another host or cannot open the shared memory
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, ShmCommunicator>) && Connector<C>
  explicit ShmCommunicator(C& connector, Timeout deadline = default_deadline) : Base(connected(connector, deadline)) {}

 private:
  using Base::Base;

  static std::shared_ptr<State> connected(detail::ConnectorRef connector, Timeout deadline);
};

}  // namespace distx::inline DISTX_ABI

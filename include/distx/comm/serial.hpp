// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/declaration.hpp"
#include "distx/connect/connector.hpp"
#include "distx/connect/self.hpp"

namespace distx::inline DISTX_ABI {

/// A communicator of one rank: every collective is supported and local.
class SerialCommunicator
    : public detail::BasicCommunicator<SerialCommunicator, detail::shared_memory::SharedMemoryBackend> {
  using Base = detail::BasicCommunicator<SerialCommunicator, detail::shared_memory::SharedMemoryBackend>;
  friend Base;

 public:
  /// @throws ConnectError if the connector has more than one rank
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, SerialCommunicator>) && Connector<C>
  explicit SerialCommunicator(C& connector, Timeout deadline = default_deadline)
      : Base(connected(connector, deadline)) {}

 private:
  using Base::Base;

  static std::shared_ptr<State> connected(detail::ConnectorRef connector, Timeout deadline);
};

}  // namespace distx::inline DISTX_ABI

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/backend.hpp"
#include "distx/comm/shared_memory/heap_region.hpp"
#include "distx/connect/self.hpp"

namespace distx {

/// A communicator of one rank: every collective is supported and local.
class SerialCommunicator : public detail::BasicCommunicator<SerialCommunicator, detail::shared_memory::Backend> {
  using Base = detail::BasicCommunicator<SerialCommunicator, detail::shared_memory::Backend>;
  friend Base;

 public:
  /// @throws ConnectError if the connector has more than one rank
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, SerialCommunicator>) && Connector<C>
  explicit SerialCommunicator(C& connector, Timeout deadline = default_deadline)
      : Base(connected(connector, deadline)) {}

 private:
  using Base::Base;

  template <class C>
  static std::shared_ptr<State> connected(C& connector, Timeout deadline) {
    if (connector.size() != 1)
      throw ConnectError(
          "a SerialCommunicator has one rank, and there are " + std::to_string(connector.size()) +
              "; use MpiCommunicator or ThreadCommunicator",
          {.operation = "SerialCommunicator", .backend = "serial", .rank = connector.rank(), .size = connector.size()});
    return detail::shared_memory::connect_region<detail::shared_memory::HeapRegion>(connector, "serial", deadline);
  }
};

}  // namespace distx

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/communicator.hpp"
#include "distx/comm/shared_memory/heap_kind.hpp"
#include "distx/connect/self.hpp"

namespace distx {

namespace detail {

struct SerialKind : shared_memory::HeapKind {
  static constexpr std::string_view name = "serial";

  template <Connector C>
  static void admit(C& connector) {
    if (connector.size() != 1)
      throw ConnectError(
          "there are " + std::to_string(connector.size()) +
              " ranks: a SerialCommunicator is a world of one; use MpiCommunicator or "
              "ThreadCommunicator",
          {.operation = "SerialCommunicator", .backend = name, .rank = connector.rank(), .size = connector.size()});
  }
};

}  // namespace detail

/// A world of one: everything works and nothing moves. An arena with a single rank.
using SerialCommunicator = shared_memory::Communicator<detail::SerialKind>;

}  // namespace distx

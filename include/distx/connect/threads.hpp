// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <utility>

#include "distx/connect/control/connector.hpp"
#include "distx/connect/self.hpp"

namespace distx::inline DISTX_ABI {

/// The Connector of N ranks that are threads of this process; `spawn` makes one for each thread. A rank that has
/// returned or ended with an exception enters no further call.
class ThreadConnector : public detail::ControlConnector {
 public:
  /// For `spawn`, which makes the group.
  explicit ThreadConnector(std::shared_ptr<detail::control::ControlGroup> group) noexcept
      : ControlConnector(std::move(group)) {}

  /// Returns a connector of the ranks that are left, as `AnyConnector::shrink` describes: a rank has ended when its
  /// thread's function has.
  [[nodiscard]] ThreadConnector shrink(Timeout deadline = default_deadline) {
    return ThreadConnector(shrunk(deadline));
  }
  /// Returns an equal connector: no thread can wait to join those of `spawn`. Local.
  [[nodiscard]] ThreadConnector grow() const { return *this; }
};

}  // namespace distx::inline DISTX_ABI

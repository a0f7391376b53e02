// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Borrows a connector of any type, so that a function that takes one is compiled once.
class ConnectorRef : public ErasedConnector {
 public:
  template <class C>
    requires(!std::same_as<C, ConnectorRef>) && Connector<C>
  ConnectorRef(C& connector)  // NOLINT
      : ErasedConnector(erased(connector)) {}
};

}  // namespace distx::inline DISTX_ABI::detail

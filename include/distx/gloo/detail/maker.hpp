// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/communicator_makers.hpp"
#include "distx/gloo/communicator.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Makes communicators over Gloo for `best_communicator()` once this header is included.
struct GlooMaker {
  template <Connector C>
  static AnyCommunicator<> make(C& connector, Timeout deadline) {
    return AnyCommunicator<>(GlooCommunicator(connector, {.deadline = deadline}));
  }
};

GlooMaker maker_for(GlooTag);

}  // namespace distx::inline DISTX_ABI::detail

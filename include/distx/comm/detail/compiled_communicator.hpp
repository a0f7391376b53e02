// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// For the headers that list the templates of the compiled form.
#include "distx/comm/any_communicator.hpp"

/// A communicator of host memory and its model in an AnyCommunicator; in namespace distx::detail. DISTX_COMPILED is
/// `extern` where they are declared, and nothing where they are defined.
/// @param B  its backend
#define DISTX_COMPILED_COMMUNICATOR(C, B)                \
  DISTX_COMPILED template class BasicCommunicator<C, B>; \
  DISTX_COMPILED template class CommunicatorModel<C>;    \
  DISTX_COMPILED template std::shared_ptr<VirtualCommunicator<C::space>> make_model(C)

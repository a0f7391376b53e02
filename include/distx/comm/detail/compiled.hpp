// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of comm/ in the compiled form. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/any_communicator.hpp"

namespace distx::inline DISTX_ABI {

DISTX_COMPILED template class AnyCommunicator<Host>;

}  // namespace distx::inline DISTX_ABI

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of gloo/ in the compiled form. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/detail/compiled_communicator.hpp"
#include "distx/gloo/communicator.hpp"

namespace distx::inline DISTX_ABI {

DISTX_COMPILED template GlooCommunicator::GlooCommunicator(AnyConnector&, const GlooOptions&);

}  // namespace distx::inline DISTX_ABI

namespace distx::inline DISTX_ABI::detail {

DISTX_COMPILED_COMMUNICATOR(GlooCommunicator, GlooBackend);

}  // namespace distx::inline DISTX_ABI::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of gloo/ in the compiled part of the library. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/detail/compiled_communicator.hpp"
#include "distx/gloo/communicator.hpp"

namespace distx {

DISTX_COMPILED template GlooCommunicator::GlooCommunicator(AnyConnector&, const GlooOptions&);

}  // namespace distx

namespace distx::detail {

DISTX_COMPILED_COMMUNICATOR(GlooCommunicator, GlooBackend);

}  // namespace distx::detail

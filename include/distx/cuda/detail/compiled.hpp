// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates for trainings on GPUs in the compiled form. DISTX_COMPILED is `extern` where they are declared, and
// nothing where they are defined.
#include "distx/cuda/buffer.hpp"
#include "distx/cuda/detail/copy.hpp"
#include "distx/cuda/elements.hpp"
#include "distx/cuda/fused_update.hpp"
#include "distx/parallel/detail/compiled.hpp"

namespace distx::inline DISTX_ABI {

DISTX_COMPILED template class AnyCommunicator<Cuda>;

}  // namespace distx::inline DISTX_ABI

DISTX_COMPILED_TRAINING(Cuda);

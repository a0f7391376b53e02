// expect: a second one must be a WeightHook, such as hooks::QuantizedBlocks<>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"
#include "distx/parallel/hooks/quantized_blocks.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::ZeRO<3>, distx::Compress<distx::bfloat16, distx::hooks::QuantizedBlocks<>>>;
#else
using Training = distx::DataParallel<distx::ZeRO<3>, distx::Compress<distx::bfloat16, distx::bfloat16>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }

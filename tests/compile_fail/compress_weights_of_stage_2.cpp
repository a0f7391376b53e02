// expect: the second argument of Compress is for weights that unshard gathers, as at stage 3; use ZeRO<3>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"
#include "distx/parallel/hooks/quantized_blocks.hpp"

using Weights = distx::Compress<float, distx::hooks::QuantizedBlocks<>>;
#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::ZeRO<3>, Weights>;
#else
using Training = distx::DataParallel<distx::ZeRO<2>, Weights>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }

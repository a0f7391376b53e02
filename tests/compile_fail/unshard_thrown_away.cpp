// expect: ignoring return value
// flags: -Werror=unused-result
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::DataParallel<distx::ZeRO<3>>& training, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  training.unshard(parameters);
#endif
  const auto weights = training.unshard(parameters);
}

// expect: Replicate does not support Hybrid
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<1>, distx::Hybrid, distx::Replicate>* training = nullptr;
  training->step({.learning_rate = 1});
#endif
  distx::DataParallel<distx::ZeRO<1>, distx::Replicate> other(comm, parameters, distx::SGD{});
  static_cast<void>(other.recover(comm));
}

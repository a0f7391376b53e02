// expect: recover needs copies of the state; add the policy Replicate
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifdef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<1>, distx::Replicate> training(comm, parameters, distx::SGD{});
#else
  distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::SGD{});
#endif
  static_cast<void>(training.recover(comm));
}

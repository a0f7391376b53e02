// expect: stages 2 and 3 of ZeRO decide when a gradient has memory, so they cannot borrow it
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::ParameterRef<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<2>> training(comm, parameters, distx::SGD{});
#endif
  distx::DataParallel<distx::ZeRO<1>> other(comm, parameters, distx::SGD{});
}

// expect: ZeRO<2> and ZeRO<3> allocate gradients themselves and cannot borrow them
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::ParameterRef<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<2>> training(comm, parameters, distx::SGD{});
#endif
  distx::DataParallel<distx::ZeRO<1>> other(comm, parameters, distx::SGD{});
}

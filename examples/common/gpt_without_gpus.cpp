// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpt_training.hpp"

void examples::train_gpt_on_gpus(distx::AnyConnector& connector, const GptSettings&, const GptTask&) {
  on_every_rank(connector, [] {
    throw distx::InvalidArgument(
        "this program does not support --device cuda: use train_gpt_cuda, which is built where nvcc and NCCL are "
        "found");
  });
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// By which of NCCL's calls training moves: counted by what stands in for NCCL.
#include <doctest/doctest.h>

#include "distx/distx.hpp"
#include "nccl/ranks.hpp"
#include "standin/standin.hpp"

using distx::Cuda;
using nccl_test::on_ranks;

TEST_CASE("sharded training uses NCCL's own collectives, regardless of the parameters' sizes") {
  constexpr const char* own[] = {"ncclReduceScatter", "ncclAllGather"};
  constexpr const char* others[] = {"ncclReduce", "ncclSend", "ncclRecv", "ncclBroadcast"};
  const auto calls = [](const auto& names) {
    std::size_t sum = 0;
    for (const char* name : names) sum += standin::calls(name);
    return sum;
  };
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    on_ranks(3, [&](auto& connector) {
      distx::NcclCommunicator comm(connector);
      std::vector<distx::Parameter<float, Cuda>> parameters;
      for (const std::size_t size : {1U, 33U, 1001U}) parameters.emplace_back("of " + std::to_string(size), size);
      distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>> training(comm, parameters, distx::SGD{},
                                                                                 {.stage = stage});
      connector.barrier();
      const std::size_t own_before = calls(own), others_before = calls(others);
      connector.barrier();
      for (auto& parameter : parameters) {
        const auto weights = training.unshard(parameter);
        static_cast<void>(training.gradient(parameter));
        training.ready(parameter);
      }
      training.step({.learning_rate = 0.1});
      connector.barrier();
      if (calls(own) == own_before) throw std::runtime_error("nothing was moved");
      if (calls(others) != others_before) throw std::runtime_error("parts were moved one by one");
    });
  }
}

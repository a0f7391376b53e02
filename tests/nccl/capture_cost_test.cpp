// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The calls of the host in a replayed step, counted by the stand-in for CUDA.
#include <doctest/doctest.h>

#include "distx/distx.hpp"
#include "nccl/ranks.hpp"
#include "standin/standin.hpp"

using distx::Cuda;

TEST_CASE("a replayed step is one launch and one copy of the host's, and never blocks it") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    nccl_test::on_ranks(ranks, [&](auto& connector) {
      distx::NcclCommunicator comm(connector);
      const distx::CudaStream stream;
      std::vector<distx::Parameter<float, Cuda>> parameters;
      for (int p = 0; p < 20; ++p) parameters.emplace_back(std::to_string(p), 500);
      distx::DataParallel<distx::ZeRO<2>, distx::On<Cuda>> training(comm, parameters, distx::AdamW{},
                                                                    {.bucket_bytes = 4000, .clip_norm = 1});
      const auto step = [&] {
        for (auto& parameter : parameters) static_cast<void>(training.gradient(parameter, stream));
        training.ready_after(stream, parameters);
        training.step({.learning_rate = 0.1}, stream);
      };
      step();
      training.capture(step, stream);
      training.replay({.learning_rate = 0.1}, stream);
      stream.synchronize();
      connector.barrier();
      const auto count = [] {
        return std::array{standin::calls("cudaLaunchKernelEx"), standin::calls("cudaGraphLaunch"),
                          standin::calls("cudaMemcpyAsync"), standin::calls("ncclAllReduce"), standin::host_waits()};
      };
      const auto before = count();
      connector.barrier();
      training.replay({.learning_rate = 0.1}, stream);
      connector.barrier();
      const auto after = count();
      connector.barrier();
      const auto each = static_cast<std::size_t>(ranks);
      CHECK(after[0] == before[0]);
      CHECK(after[1] == before[1] + each);
      CHECK(after[2] == before[2] + each);
      CHECK(after[3] == before[3] + (ranks > 1 ? each : 0));
      CHECK(after[4] == before[4]);
      stream.synchronize();
    });
  }
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Processes of which rank 1 is killed, as `tools/ranks --dies 1` starts them.
#include <doctest/doctest.h>

#include <csignal>

#include "distx/comm/reductions.hpp"
#include "nccl/gpu_ranks.hpp"

TEST_CASE("a killed rank makes the others' calls throw within the deadline") {
  using namespace std::chrono_literals;
  auto& world = gpu_ranks::world();
  REQUIRE(world.size() > 1);
  distx::cuda::pick_device(world, {.share = true});
  distx::NcclCommunicator comm(world, {.deadline = 20s});
  const distx::Buffer<float, distx::Cuda> values(1 << 20);
  const distx::CudaStream stream;
  const auto sum_up = [&] { distx::all_reduce(comm, values, distx::sum); };
  sum_up();
  distx::start_all_reduce(comm, values, distx::sum, stream).wait();  // so that NCCL is connected for it
  world.barrier();  // a rank may return from a collective before the others
  if (world.rank() == 1) std::raise(SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const auto wait_for_ever = [&] {
    distx::start_all_reduce(comm, values, distx::sum, stream).wait(stream);  // one in flight, and one after it
    stream.synchronize();
    sum_up();
  };
  CHECK_THROWS_AS(wait_for_ever(), distx::Error);
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
  CHECK_THROWS_AS(sum_up(), distx::RevokedError);
}

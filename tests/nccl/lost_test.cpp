// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Processes of which rank 1 is killed in a step, as `tools/ranks --dies 1` starts them: trainings continue on the
// others.
#include <doctest/doctest.h>

#include <distx/checkpoint.hpp>

#include <array>
#include <csignal>
#include <memory>
#include <optional>

#include "distx/comm/point_to_point.hpp"
#include "examples/temporary_folder.hpp"
#include "nccl/gpu_ranks.hpp"
#include "nccl/recovered_training.hpp"
#include "nccl/whole_arrays.hpp"

using nccl_test::last_step;
using nccl_test::make_step;
using nccl_test::Training;
using nccl_test::WholeArrays;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t killed_in = 2;

struct Stage {
  int stage;
  nccl_test::Parameters parameters = nccl_test::model();
  Training training;

  Stage(distx::NcclCommunicator& comm, int number)
      : stage(number), training(comm, parameters, distx::AdamW{}, {.stage = number}) {}
};
std::vector<std::unique_ptr<Stage>> all_stages(distx::NcclCommunicator& comm) {
  std::vector<std::unique_ptr<Stage>> all;
  for (const int stage : {2, 0, 1, 3}) all.push_back(std::make_unique<Stage>(comm, stage));
  return all;
}

}  // namespace

TEST_CASE("training on GPUs continues after a process was killed, with the bits of a restart from a checkpoint") {
  distx::AnyConnector& world = gpu_ranks::world();
  REQUIRE(world.size() > 2);
  distx::cuda::pick_device(world, {.share = true});
  std::optional<examples::TemporaryFolder> own;
  std::array<char, 256> path{};
  if (world.rank() == 0) own.emplace().path().string().copy(path.data(), path.size() - 1);
  path = distx::broadcast_value(world, path, 0);
  const auto folder = [&](int stage, std::uint64_t step) {
    return std::filesystem::path(path.data()) / std::to_string(stage) / std::to_string(step);
  };

  distx::NcclCommunicator comm(world, nccl_test::options);
  const auto stages = all_stages(comm);
  for (std::uint64_t step = 0; step < killed_in; ++step)
    for (const auto& of : stages) {
      make_step(of->training, of->parameters, step, world.rank());
      distx::checkpoint::save(folder(of->stage, step + 1), of->training, {.step = step + 1});
    }
  // Rank 1 is killed between two of its calls in the next step at stage 2; the other trainings are between two steps.
  int call = 0;
  const auto step_until_killed = [&] {
    make_step(stages.front()->training, stages.front()->parameters, killed_in, world.rank(), [&] {
      if (world.rank() == 1 && ++call == 3) std::raise(SIGKILL);
    });
    distx::barrier(comm);
  };
  try {
    step_until_killed();
    FAIL("no call has noticed that rank 1 was killed");
  } catch (const distx::Error& error) {
    INFO(error.what());
    REQUIRE(distx::is_rank_loss(error));
  }

  auto left = world.shrink(20s);
  CHECK(left.size() == world.size() - 1);
  distx::NcclCommunicator after(left, nccl_test::options);
  const auto restarted = all_stages(after);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    auto& [stage, parameters, training] = *stages[i];
    auto& again = *restarted[i];
    INFO("stage ", stage);
    const auto from = training.recover(after);
    REQUIRE(from == killed_in);
    distx::checkpoint::load(*distx::checkpoint::latest(folder(stage, from)), again.training);
    WholeArrays recovered, loaded, ended, ended_again;
    recovered.add(training);
    loaded.add(again.training);
    CHECK(recovered == loaded);
    for (auto step = from; step < last_step; ++step) {
      make_step(training, parameters, step, left.rank());
      make_step(again.training, again.parameters, step, left.rank());
    }
    ended.add(training);
    ended_again.add(again.training);
    CHECK(ended == ended_again);
    CHECK_FALSE(ended == loaded);
  }
  left.barrier();  // rank 0 removes the folder
}

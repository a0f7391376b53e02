// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Optimizer states and master weights in host memory while GPUs train.
#include <doctest/doctest.h>

#include "../parallel/mesh_model.hpp"
#include "gpu_toy.hpp"

namespace {

/// Checks that trainings with and without states in host memory have the same bits, and that the ledger differs by the
/// states' bytes.
template <class Training, class T>
void check_offload(gpu_toy::Way way) {
  for (const int ranks : {1, 2})
    for (const int stage : {0, 1, 2, 3})
      gpu_ranks::on_same_gpus(ranks, distx::NcclRounding::native, [&](distx::NcclCommunicator& comm) {
        CAPTURE(ranks);
        CAPTURE(stage);
        auto mine = way;  // each rank's own
        mine.options.stage = stage;
        const auto expected = gpu_toy::train<Training, T>(comm, mine);
        mine.options.offload = true;
        const auto offloaded = gpu_toy::train<Training, T>(comm, mine);
        CHECK(offloaded.weights.size() == 21125);
        CHECK(toy::same_bits(offloaded.weights, expected.weights));
        CHECK(offloaded.norms == expected.norms);
        CHECK(expected.memory.offloaded == distx::observe::MemoryLedger::Use{});
        CHECK(offloaded.memory.offloaded == expected.memory.optimizer);
        CHECK(offloaded.memory.offloaded.held > 0);
        CHECK(offloaded.memory.optimizer == distx::observe::MemoryLedger::Use{});
        CHECK(offloaded.memory.total.held == expected.memory.total.held - expected.memory.optimizer.held);
        CHECK(offloaded.memory.total.peak == expected.memory.total.peak - expected.memory.optimizer.held);
      });
}

}  // namespace

TEST_CASE("training on GPUs: optimizer states in host memory give the same bits at every stage") {
  check_offload<gpu_toy::Training<>, float>({.options = {.bucket_bytes = 4096}, .in_parts = true});
  check_offload<gpu_toy::Training<>, float>({.options = {.overlap = false, .clip_norm = 1}, .several_streams = true});
}

TEST_CASE("training on GPUs: master weights in host memory give the same bits at every stage") {
  check_offload<gpu_toy::Training<distx::Precision<float>>, distx::bfloat16>(
      {.options = {.bucket_bytes = 4096}, .several_streams = true});
}

TEST_CASE("training on GPUs: a MeshParallel keeps its states in host memory") {
  const distx::DataParallelOptions options{.clip_norm = 0.5, .offload = true};
  const mesh_model::Whole expected({.clip_norm = 0.5});
  gpu_ranks::on_gpus(2, [&](distx::NcclCommunicator& comm) {
    const distx::CudaStream stream;
    const mesh_model::Grid mesh(comm, {2, 1}, stream);
    mesh_model::train<distx::Cuda, 1>(mesh, options, expected);
    mesh_model::train<distx::Cuda, 3>(mesh, options, expected);
  });
}

TEST_CASE("training on GPUs: ranks that disagree about states in host memory throw a MismatchError") {
  gpu_ranks::on_gpus(2, [](distx::NcclCommunicator& comm) {
    std::vector<distx::Parameter<float, distx::Cuda>> parameters;
    parameters.emplace_back("weight", 300);
    const auto ending = toy::ending_of([&] {
      const gpu_toy::Training<> training(comm, parameters, distx::AdamW{}, {.stage = 1, .offload = comm.rank() == 1});
    });
    CAPTURE(ending.words);
    CHECK(ending.kind == "mismatch");
    CHECK(toy::says(ending.words, ".offload"));
  });
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checkpoints of trainings in GPUs' memory.
#include <doctest/doctest.h>

#include <distx/checkpoint.hpp>

#include "distx/distx.hpp"
#include "examples/temporary_folder.hpp"
#include "nccl/ranks.hpp"
#include "nccl/whole_arrays.hpp"

using distx::Cuda;
using nccl_test::on_ranks;

namespace {

using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>>;

}  // namespace

TEST_CASE("a checkpoint of a training in GPUs' memory loads at any stage on any number of ranks, offloaded or not") {
  for (const auto& [saving, from, saves_offloaded, loading, to, loads_offloaded] :
       {std::tuple(3, 3, false, 2, 1, true), std::tuple(2, 0, true, 3, 3, false),
        std::tuple(1, 2, false, 2, 2, false)}) {
    const examples::TemporaryFolder folder;
    nccl_test::WholeArrays saved, loaded;
    const auto run = [&](int ranks, int stage, bool offload, auto&& f) {
      on_ranks(ranks, [&](auto& connector) {
        distx::NcclCommunicator comm(connector);
        std::vector<distx::Parameter<float, Cuda>> parameters;
        parameters.emplace_back("a.weight", 1001, distx::ParameterOptions{.rows = 13});
        parameters.emplace_back("a.bias", 33);
        Training training(comm, parameters, distx::AdamW{}, {.stage = stage, .offload = offload});
        f(comm, training, parameters);
      });
    };
    run(saving, from, saves_offloaded, [&](auto& comm, Training& training, auto& parameters) {
      for (const auto& parameter : parameters) {
        const auto weights = training.unshard(parameter);
        const auto gradient = training.gradient(parameter);
        std::vector<float> values(gradient.size());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 5;
        distx::copy({}, gradient, distx::Span<const float>(values));
        distx::CudaStreamRef{}.synchronize();
        training.ready(parameter);
      }
      training.step({.learning_rate = 0.1});
      distx::checkpoint::save(folder.path(), training, {.step = 1});
      saved.add(training);
      CHECK(comm.size() == saving);
    });
    run(loading, to, loads_offloaded, [&](auto&, Training& training, auto&) {
      CHECK(distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), training).ranks == saving);
      loaded.add(training);
    });
    CHECK(saved == loaded);
    CHECK(saved.size() == 6);
    CHECK(saved.at("a.weight")[0] > 0.09f);
  }
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "comm/made_up_machines.hpp"
#include "distx/comm/hierarchical.hpp"
#include "distx/shm.hpp"
#include "mpi/world.hpp"
#include "parallel/kinds.hpp"

using namespace distx::literals;

namespace {

/// Returns the distance of all weights together relative to their norm. Single weights may differ more: if the ranks'
/// gradients nearly cancel, the rest is rounding, which AdamW scales to a full step.
double apart(const std::vector<float>& weights, const std::vector<float>& expected) {
  REQUIRE(weights.size() == expected.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    difference += std::pow(static_cast<double>(weights[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("training produces the same weights at every stage") {
  distx::MpiCommunicator comm(world());
  const auto expected = stages::train(comm, {.options = {.overlap = false, .stage = 0, .clip_norm = 1}, .steps = 5});
  for (const int stage : {0, 1, 2, 3})
    for (const bool overlap : {false, true})
      for (const std::size_t bytes : {4_KiB, distx::unlimited}) {
        CAPTURE(stage);
        CAPTURE(overlap);
        CAPTURE(bytes);
        const distx::DataParallelOptions options{
            .bucket_bytes = bytes, .overlap = overlap, .stage = stage, .clip_norm = 1};
        CHECK(apart(stages::train(comm, {.options = options, .steps = 5}), expected) <= 1e-5);
      }
}

TEST_CASE("training with norms and whole matrices produces the same weights at every stage") {
  distx::MpiCommunicator comm(world());
  const kinds::Mixture mixture{distx::Muon{.iterations = 2}};
  const auto norms = kinds::train(comm, distx::LAMB{}, {{.overlap = false, .stage = 0}}).weights;
  const auto matrices = kinds::train(comm, mixture, {{.overlap = false, .stage = 0}}).weights;
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const kinds::Way way{{.bucket_bytes = 4_KiB, .stage = stage}};
    CHECK(apart(kinds::train(comm, distx::LAMB{}, way).weights, norms) <= 1e-5);
    CHECK(apart(kinds::train(comm, mixture, way).weights, matrices) <= 1e-5);
  }
}

TEST_CASE("processes of a host read one copy of gathered or shared weights, with the bits of copies" * needs_ranks(3) *
          needs_threads()) {
  const int size = world().size();
  const auto machines = std::string_view(size == 4 ? "0011" : "0112223").substr(0, static_cast<std::size_t>(size));
  test::MadeUpMachines made_up(world(), machines);
  auto [inner, outer] = distx::detail::make_levels(
      made_up, [](auto& machine) { return distx::ShmCommunicator(machine); },
      [](auto&) { return distx::MpiCommunicator(world()); });
  distx::Hierarchical comm(std::move(inner), std::move(outer));
  for (const int stage : {1, 2, 3})
    for (const bool overlap : {false, true}) {
      CAPTURE(stage);
      CAPTURE(overlap);
      const auto train = [&](bool shares) {
        return stages::train(comm, {.options = {.bucket_bytes = 4_KiB,
                                                .overlap = overlap,
                                                .stage = stage,
                                                .map_weights = shares,
                                                .share_weights = stage < 3 && shares}});
      };
      const auto expected = train(false);
      CHECK(toy::same_bits(train(true), expected));
    }
}

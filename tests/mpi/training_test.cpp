// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "mpi/world.hpp"
#include "parallel/stages.hpp"

using namespace distx::literals;

TEST_CASE("training comes to the same weights at every stage") {
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
        const auto weights = stages::train(comm, {.options = options, .steps = 5});
        REQUIRE(weights.size() == expected.size());
        double worst = 0;
        for (std::size_t i = 0; i < weights.size(); ++i)
          worst = std::max(worst, std::abs(static_cast<double>(weights[i]) - static_cast<double>(expected[i])) /
                                      std::max(1e-2, std::abs(static_cast<double>(expected[i]))));
        CHECK(worst <= 1e-5);
      }
}

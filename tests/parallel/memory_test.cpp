// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>

#include "stages.hpp"

namespace {

/// Wants more to work in than there is, on the one rank that has the matrix.
struct Greedy : distx::Muon {
  static std::size_t scratch(distx::MatrixShape) { return std::size_t{1} << 56; }
};

}  // namespace

TEST_CASE("a failed allocation is a MemoryError on every rank, with the bytes that it holds") {
  for (const int ranks : {1, 2, 4})
    for (const int stage : {0, 1, 2, 3}) {
      std::vector<std::string> words(static_cast<std::size_t>(ranks));
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        std::vector<distx::Parameter<float>> parameters;
        parameters.emplace_back("small.weight", 16);
        parameters.emplace_back("huge.weight", std::size_t{1} << 56);  // nothing has so much
        try {
          stages::Training training(comm, parameters, distx::SGD{}, {.bucket_bytes = 0, .stage = stage});
        } catch (const distx::MemoryError& error) {
          words[static_cast<std::size_t>(comm.rank())] = error.what();
        }
        // Nothing has happened to the parameters: they may be in another training.
        CHECK_THROWS_AS(static_cast<void>(parameters[0].value()), distx::Error);
      });
      for (const auto& each : words) {
        CAPTURE(each);
        CHECK(toy::says(each, "this rank holds weights "));
        CHECK(toy::says(each, "use a higher stage of ZeRO"));
      }
    }
}

TEST_CASE("a failed allocation on one rank is a MemoryError on all ranks") {
  for (const int ranks : {2, 3})
    for (const int stage : {1, 2, 3}) {
      std::vector<std::string> words(static_cast<std::size_t>(ranks));
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        std::vector<distx::Parameter<float>> parameters;
        parameters.emplace_back("matrix", 64, distx::ParameterOptions{.rows = 8});
        try {
          stages::Training training(comm, parameters, Greedy{}, {.stage = stage});
        } catch (const distx::MemoryError& error) {
          words[static_cast<std::size_t>(comm.rank())] = error.what();
        }
      });
      for (const auto& each : words) {
        CAPTURE(each);
        CHECK(toy::says(each, "this rank holds weights "));
        CHECK(toy::says(each, "rank 0 could not allocate") == (&each != &words.front()));  // the first one has it
      }
    }
}

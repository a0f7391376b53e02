// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "parallel/kinds.hpp"
#include "shm/forked.hpp"

using namespace distx::literals;

TEST_CASE("process ranks and thread ranks train to the same bits at every stage") {
  for (const int ranks : toy::rank_counts) {
    CAPTURE(ranks);
    std::vector<float> expected;
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      auto weights = stages::train(comm, {.options = {.stage = 0, .clip_norm = 1}});
      if (comm.rank() == 0) expected = std::move(weights);
    });
    const auto endings = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
      distx::ShmCommunicator comm(connector, std::chrono::seconds(60));
      int wrong = 0;
      for (const int stage : {0, 1, 2, 3})
        for (const bool overlap : {false, true})
          for (const std::size_t bytes : {4_KiB, distx::unlimited}) {
            const distx::DataParallelOptions options{
                .bucket_bytes = bytes, .overlap = overlap, .stage = stage, .clip_norm = 1};
            if (!toy::same_bits(stages::train(comm, {.options = options}), expected)) ++wrong;
          }
      return wrong;
    });
    for (const int ending : endings) CHECK(ending == 0);
  }
}

TEST_CASE("training with norms and whole matrices has the bits of thread ranks at every stage") {
  const kinds::Mixture mixture{distx::Muon{.iterations = 2}};
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    std::vector<float> norms, matrices;
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      auto lamb = kinds::train(comm, distx::LAMB{}, {{.stage = 0}}).weights;
      auto muon = kinds::train(comm, mixture, {{.stage = 0}}).weights;
      if (comm.rank() == 0) norms = std::move(lamb), matrices = std::move(muon);
    });
    const auto endings = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
      distx::ShmCommunicator comm(connector, std::chrono::seconds(60));
      int wrong = 0;
      for (const int stage : {0, 1, 2, 3})
        for (const bool overlap : {false, true}) {
          const kinds::Way way{{.bucket_bytes = 4_KiB, .overlap = overlap, .stage = stage}};
          if (!toy::same_bits(kinds::train(comm, distx::LAMB{}, way).weights, norms)) ++wrong;
          if (!toy::same_bits(kinds::train(comm, mixture, way).weights, matrices)) ++wrong;
        }
      return wrong;
    });
    for (const int ending : endings) CHECK(ending == 0);
  }
}

TEST_CASE("with Reproducible any number of process ranks trains to the bits of one thread at every stage") {
  using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Reproducible<8>>;
  std::vector<float> expected;
  toy::on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    expected = kinds::train<Training>(comm, distx::AdamW{}, {{.stage = 0, .clip_norm = 1}}).weights;
  });
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    const auto endings = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
      distx::ShmCommunicator comm(connector, std::chrono::seconds(60));
      int wrong = 0;
      for (const int stage : {0, 1, 2, 3})
        for (const bool overlap : {false, true}) {
          const kinds::Way way{{.bucket_bytes = 4_KiB, .overlap = overlap, .stage = stage, .clip_norm = 1}};
          if (!toy::same_bits(kinds::train<Training>(comm, distx::AdamW{}, way).weights, expected)) ++wrong;
        }
      return wrong;
    });
    for (const int ending : endings) CHECK(ending == 0);
  }
}

TEST_CASE("too little memory on one rank is a MemoryError on all") {
  for (const auto& [ranks, stage] : {std::pair{2, 0}, {3, 3}}) {
    const auto endings = test::forked(ranks, [stage = stage](test::ForkedConnector& connector, test::Board&) {
      distx::ShmCommunicator comm(connector, std::chrono::seconds(60));
      std::vector<distx::Parameter<float>> parameters;
      // Larger than any address space, while the sum of all sizes does not overflow.
      parameters.emplace_back("huge.weight", std::size_t{1} << 56);
      try {
        stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage});
      } catch (const distx::MemoryError& error) {
        return std::string(error.what()).find("this rank holds weights") != std::string::npos ? 0 : 1;
      }
      return 2;
    });
    for (const int ending : endings) CHECK(ending == 0);
  }
}

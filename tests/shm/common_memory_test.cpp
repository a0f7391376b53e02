// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory that all ranks read in place, and weights in it.
#include <doctest/doctest.h>

#include "parallel/stages.hpp"
#include "shm/forked.hpp"
#include "shm/system.hpp"

using namespace std::chrono_literals;
using namespace distx::literals;

namespace {

using Comm = distx::ShmCommunicator;

/// Returns this rank's part of memory of `ints` ints per rank.
distx::detail::ByteRange part_of(int rank, std::size_t ints) {
  return {4 * ints * static_cast<std::size_t>(rank), 4 * ints};
}

TEST_CASE("every rank reads in place what each rank writes to its part, and cannot write the pages of others") {
  for (const int ranks : toy::rank_counts)
    for (const std::size_t ints : {16u, 5000u, 65536u}) {  // parts that share pages, and parts that begin within one
      CAPTURE(ranks);
      CAPTURE(ints);
      const auto endings = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
        Comm comm(connector, 60s);
        const std::size_t all = ints * static_cast<std::size_t>(ranks);
        const auto common = comm.allocate_common(4 * all, {part_of(comm.rank(), ints)});
        if (!common) return 1;
        int* const values = reinterpret_cast<int*>(common->span.data());
        const std::size_t begin = ints * static_cast<std::size_t>(comm.rank());
        for (std::size_t i = 0; i < all; ++i)
          if (values[i] != 0) return 2;
        distx::barrier(comm);
        for (int round = 1; round < 4; ++round) {
          for (std::size_t i = begin; i < begin + ints; ++i) values[i] = round * static_cast<int>(i);
          distx::barrier(comm);
          for (std::size_t i = 0; i < all; ++i)
            if (values[i] != round * static_cast<int>(i)) return 3;
          distx::barrier(comm);
        }
        if (test::permissions(values + begin) != "rw-s") return 4;
        if (ints == 65536)
          for (int other = 0; other < ranks; ++other)
            if (other != comm.rank() &&
                test::permissions(values + ints * static_cast<std::size_t>(other) + ints / 2) != "r--s")
              return 5;
        return 0;
      });
      for (const int ending : endings) CHECK(ending == 0);
    }
}

TEST_CASE("ranks of one process write separate parts of common memory") {
  distx::spawn(distx::threads(3, 20s), [](distx::ThreadConnector& connector) {
    Comm comm(connector, 20s);
    const auto common = comm.allocate_common(3 * 4 * 65536, {part_of(comm.rank(), 65536)});
    REQUIRE(common);
    int* const values = reinterpret_cast<int*>(common->span.data());
    values[65536 * static_cast<std::size_t>(comm.rank()) + 40000] = comm.rank() + 1;
    distx::barrier(comm);
    for (int rank = 0; rank < 3; ++rank) CHECK(values[65536 * static_cast<std::size_t>(rank) + 40000] == rank + 1);
  });
}

TEST_CASE("ranks that ask for different sizes of common memory get a MismatchError, and too much is a MemoryError") {
  for (const bool huge : {false, true}) {
    const auto endings = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      try {
        static_cast<void>(comm.allocate_common(huge ? std::size_t{1} << 60 : comm.rank() == 1 ? 8 : 4, {}));
      } catch (const distx::MismatchError&) {
        return huge ? 1 : 0;
      } catch (const distx::MemoryError&) {
        return huge && comm.rank() == 0 ? 0 : 2;
      } catch (const distx::RevokedError&) {
        return huge && comm.rank() != 0 ? 0 : 3;
      }
      return 4;
    });
    for (const int ending : endings) CHECK(ending == 0);
  }
}

TEST_CASE("a rank that dies leaves the others' weights mapped, and the next wait for it throws RankFailure") {
  for (const bool in_scope : {false, true}) {
    const auto endings = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3});
      stages::pass(training, parameters, 5);
      training.step({.learning_rate = 1});
      const auto weights = in_scope ? training.unshard(parameters) : stages::Training::scope();
      distx::barrier(comm);
      if (comm.rank() == 1) ::raise(SIGKILL);
      try {
        if (in_scope)
          distx::barrier(comm);
        else
          static_cast<void>(training.unshard(parameters));
        return 1;
      } catch (const distx::RankFailure& failure) {
        if (failure.failed_rank() != 1) return 2;
      }
      if (!in_scope) return 0;
      // With a rate of 1 the weights are the targets, also in the shard of the rank that died.
      const auto value = training.value(parameters[2]);
      for (std::size_t i = 0; i < value.size(); ++i)
        if (std::abs(value[i] - static_cast<float>(toy::target(2, i, 5))) > 1e-5f) return 3;
      return 0;
    });
    CHECK(endings == std::vector<int>{0, 1000 + SIGKILL, 0});
  }
}

TEST_CASE("shared weights of other processes are read-only, and whole in each one's own memory after release") {
  const auto endings = test::forked(2, [&](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    std::vector<distx::Parameter<float>> parameters;
    parameters.emplace_back("weight", 1 << 20);
    stages::Training training(comm, parameters, distx::SGD{}, {.stage = 2, .share_weights = true});
    const auto permissions = [&](int rank) {
      return test::permissions(parameters[0].value().data() + (1 << 19) * rank + (1 << 18));
    };
    if (permissions(comm.rank()) != "rw-s") return 1;
    if (permissions(1 - comm.rank()) != "r--s") return 2;
    training.release();
    for (const int rank : {0, 1})
      if (permissions(rank) != "rw-p") return 3;
    return 0;
  });
  CHECK(endings == std::vector<int>{0, 0});
}

TEST_CASE("processes map or share the same weights as they gather") {
  for (const int ranks : toy::rank_counts) {
    CAPTURE(ranks);
    const auto endings = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      std::vector<float> expected;
      for (const int stage : {3, 0, 1, 2})
        for (const bool maps : {false, true})
          for (const bool overlap : {false, true})
            for (const std::size_t bytes : {0_KiB, distx::unlimited}) {
              auto weights = stages::train(comm, {{.bucket_bytes = bytes,
                                                   .overlap = overlap,
                                                   .stage = stage,
                                                   .map_weights = maps,
                                                   .share_weights = maps}});
              if (expected.empty()) expected = weights;
              if (!toy::same_bits(weights, expected)) return 1;
            }
      return 0;
    });
    for (const int ending : endings) CHECK(ending == 0);
  }
}

}  // namespace

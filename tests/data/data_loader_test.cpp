// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <pthread.h>
#include <distx/comm.hpp>
#include <distx/comm/decorators/metered.hpp>
#include <distx/threads.hpp>
#include <distx/training.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <numeric>
#include <ranges>
#include <stdexcept>

#include "forked_process.hpp"

namespace {

using namespace std::chrono_literals;
using Batch = std::vector<std::size_t>;

const distx::SamplerOptions of_tests{.batch_size = 3, .seed = 11};

Batch copied(std::span<const std::size_t> indices) { return {indices.begin(), indices.end()}; }

std::vector<Batch> expected(std::size_t samples, std::uint64_t epoch) {
  const auto all = distx::DistributedSampler(samples, 0, 1, of_tests).epoch(epoch);
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < all.size(); i += 3) batches.push_back({all[i], all[i + 1], all[i + 2]});
  return batches;
}

/// Arrives and waits for the other side, up to a limit; returns whether it arrived.
bool meet(std::latch& latch) {
  const distx::Deadline deadline(10s);
  latch.count_down();
  for (;;) {
    if (latch.try_wait()) return true;
    if (deadline.expired()) return false;
    std::this_thread::yield();
  }
}

/// Waits for a count, up to a limit; returns whether it was reached.
bool reached(const std::atomic<int>& count, int value) {
  for (const distx::Deadline deadline(20s); count < value; std::this_thread::yield())
    if (deadline.expired()) return false;
  return true;
}

auto loader(std::size_t samples, auto make, std::size_t workers, std::size_t prefetch = 2,
            distx::Timeout deadline = 20s) {
  return distx::DataLoader(distx::DistributedSampler(samples, 0, 1, of_tests), make,
                           {.workers = workers, .prefetch = prefetch, .deadline = deadline});
}

TEST_CASE("a worker thread that cannot be started throws BackendError") {
  pthread_attr_t before, huge;
  REQUIRE(::pthread_getattr_default_np(&before) == 0);
  ::pthread_attr_init(&huge);
  REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 47) == 0);  // more than there are addresses
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  CHECK_THROWS_WITH_AS(static_cast<void>(loader(6, copied, 2, 1).epoch(0)),
                       doctest::Contains("cannot start a thread ("), distx::BackendError);
  ::pthread_setattr_default_np(&before);
}

}  // namespace

static_assert(std::ranges::input_range<distx::Epoch<Batch>>);

TEST_CASE("batches have the sampler's order for any number of workers") {
  for (const std::size_t workers : {0u, 1u, 2u, 5u})
    for (const std::size_t prefetch : {1u, 2u, 100u}) {
      CAPTURE(workers);
      CAPTURE(prefetch);
      // Later batches are ready sooner.
      const auto data = loader(
          100,
          [](std::span<const std::size_t> indices) {
            volatile std::size_t work = 0;
            for (std::size_t i = 0; i < (indices[0] % 7) * 20000; ++i) work = work + i;
            return copied(indices);
          },
          workers, prefetch);
      for (const std::uint64_t epoch : {0u, 1u}) {
        std::vector<Batch> seen;
        for (auto& batch : data.epoch(epoch)) seen.push_back(std::move(batch));
        CHECK(seen == expected(100, epoch));
      }
    }
}

TEST_CASE("next returns nullopt after the last batch, every time") {
  for (const std::size_t workers : {0u, 2u}) {
    auto epoch = loader(9, copied, workers).epoch(0);  // the loader has gone already
    CHECK(epoch.size() == 3);
    for (int i = 0; i < 3; ++i) CHECK(epoch.next().has_value());
    CHECK_FALSE(epoch.next().has_value());
    CHECK_FALSE(epoch.next().has_value());
    CHECK(epoch.begin() == epoch.end());
  }
}

TEST_CASE("batches need not be copyable or default constructible") {
  struct Heavy {
    explicit Heavy(std::size_t n) : first(std::make_unique<std::size_t>(n)) {}
    std::unique_ptr<std::size_t> first;
  };
  std::size_t sum = 0;
  for (auto& batch : loader(9, [](auto indices) { return Heavy(indices[0] + indices[1] + indices[2]); }, 2).epoch(0))
    sum += *batch.first;
  CHECK(sum == 36);
}

TEST_CASE("next throws DataError with rank and samples in place of a batch that failed, and the epoch ends") {
  for (const std::size_t workers : {0u, 1u, 4u}) {
    CAPTURE(workers);
    const distx::DistributedSampler sampler(120, 1, 2, {.batch_size = 3, .shuffle = false});
    const distx::DataLoader data(sampler,
                                 [](std::span<const std::size_t> indices) {
                                   if (indices[0] == 31) throw std::runtime_error("it is cut off");
                                   return copied(indices);
                                 },
                                 {.workers = workers});
    for (int again = 0; again < 2; ++again) {
      auto epoch = data.epoch(2);
      for (std::size_t i = 0; i < 5; ++i) CHECK(epoch.next() == Batch{6 * i + 1, 6 * i + 3, 6 * i + 5});
      const auto at = epoch.position();
      CHECK_THROWS_WITH_AS(static_cast<void>(epoch.next()),
                           "distx: DataLoader on rank 1 of 2: one of the samples 31, 33, 35 cannot be loaded in epoch "
                           "2: it is cut off",
                           distx::DataError);
      CHECK_FALSE(epoch.next().has_value());
      CHECK(epoch.position() == at);  // the batch that failed was not taken
    }
  }
}

TEST_CASE("workers make no further batch after one that failed") {
  std::atomic<int> made = 0, ended = 0;
  struct CountAtEnd {
    std::atomic<int>& count;
    ~CountAtEnd() { ++count; }
  };
  const auto fails = [&](std::size_t index) -> std::size_t {
    static thread_local const CountAtEnd at_end_of_worker{ended};
    static_cast<void>(&at_end_of_worker);
    ++made;
    throw index;
  };
  auto epoch = loader(9, fails, 1, 1).epoch(0);
  CHECK_THROWS_AS(static_cast<void>(epoch.next()), distx::DataError);
  CHECK(reached(ended, 1));  // while the epoch exists
  CHECK(made == 1);
}

TEST_CASE("a function of one sample makes vectors, and its error names that sample and nests the exception") {
  for (const std::size_t workers : {0u, 1u, 4u}) {
    CAPTURE(workers);
    auto epoch = loader(
                     30,
                     [](std::size_t index) {
                       if (index == 17) throw distx::CheckpointError("torn", {}, 5);
                       return index;
                     },
                     workers)
                     .epoch(1);
    const auto all = expected(30, 1);
    const auto bad = std::ranges::find_if(all, [](const Batch& batch) { return std::ranges::count(batch, 17u) > 0; });
    for (auto batch = all.begin(); batch != bad; ++batch) CHECK(epoch.next() == *batch);
    try {
      static_cast<void>(epoch.next());
      FAIL("no error");
    } catch (const distx::DataError& error) {
      CHECK(error.message() == "sample 17 cannot be loaded in epoch 1: torn");
      CHECK(error.rank() == 0);
      CHECK(error.code() == 5);
      CHECK_THROWS_AS(std::rethrow_if_nested(error), distx::CheckpointError);
    }
  }
}

TEST_CASE("exceptions of any type, of several workers at once, reach the consumer, and the epoch can be destroyed") {
  for (const std::size_t workers : {0u, 2u, 5u}) {
    auto epoch = loader(3000, [](std::size_t index) -> std::size_t { throw index; }, workers).epoch(0);
    try {
      static_cast<void>(epoch.next());
      FAIL("no error");
    } catch (const distx::DataError& error) {
      CHECK(error.message() == "sample " + std::to_string(expected(3000, 0)[0][0]) +
                                   " cannot be loaded in epoch 0: unknown exception (not derived from std::exception)");
    }
    CHECK_FALSE(epoch.next().has_value());
  }
}

TEST_CASE("destroying an epoch in its middle stops the workers") {
  for (const std::size_t workers : {0u, 1u, 4u})
    for (std::size_t taken = 0; taken < 4; ++taken) {
      std::atomic<int> running = 0;
      {
        auto epoch = loader(
                         3000,
                         [&](std::span<const std::size_t> indices) {
                           ++running;
                           auto batch = copied(indices);
                           --running;
                           return batch;
                         },
                         workers)
                         .epoch(0);
        for (std::size_t i = 0; i < taken; ++i) CHECK(epoch.next().has_value());
      }
      CHECK(running == 0);
    }
}

TEST_CASE("workers make batches ahead up to the prefetch limit") {
  constexpr std::size_t workers = 2;
  constexpr std::size_t prefetch = 3;
  std::atomic<std::size_t> made = 0;
  std::latch ahead(workers * prefetch + 1);
  auto epoch = loader(
                   300,
                   [&](std::span<const std::size_t> indices) {
                     if (made++ < workers * prefetch) ahead.count_down();
                     return copied(indices);
                   },
                   workers, prefetch)
                   .epoch(0);
  REQUIRE(meet(ahead));  // nothing was taken
  CHECK(made == workers * prefetch);
  for (std::size_t taken = 1; taken <= 50; ++taken) {
    CHECK(epoch.next().has_value());
    CHECK(made <= taken + workers * prefetch);
  }
}

TEST_CASE("several workers make batches concurrently") {
  // Each waits for the other: with one at a time the deadline would end this.
  std::latch both(2);
  auto epoch = loader(
                   6,
                   [&](std::span<const std::size_t> indices) {
                     if (!meet(both)) throw std::runtime_error("the other worker did not come");
                     return copied(indices);
                   },
                   2)
                   .epoch(0);
  CHECK(epoch.next().has_value());
  CHECK(epoch.next().has_value());
}

TEST_CASE("a batch that is not made before the deadline throws TimeoutError") {
  const auto release = std::make_shared<std::latch>(1);  // the worker is abandoned
  auto epoch = loader(
                   6,
                   [release](std::span<const std::size_t> indices) {
                     release->wait();
                     return copied(indices);
                   },
                   1, 1, 20ms)
                   .epoch(0);
  const auto first = expected(6, 0)[0];
  const auto words = "timed out after 0.02 s: batch 0 (samples " + std::to_string(first[0]) + ", " +
                     std::to_string(first[1]) + ", " + std::to_string(first[2]) + " of epoch 0) is not made yet";
  try {
    static_cast<void>(epoch.next());
    FAIL("no error");
  } catch (const distx::TimeoutError& error) {
    CHECK_MESSAGE(std::string(error.what()).find(words) != std::string::npos, error.what());
    CHECK(error.rank() == 0);
    CHECK_FALSE(distx::is_rank_loss(error));
  }
  release->count_down();
}

namespace {

/// Reads that hang until the test ends them; readers own them together.
struct StuckReads {
  std::latch release{1};
  std::atomic<int> inside = 0, returned = 0;
  std::atomic<bool> destroyed = false;  // the data that the reader owns, while it reads
};

/// A loader whose worker hangs in the batch of a sample.
auto stuck_loader(const std::shared_ptr<StuckReads>& reads, const distx::DistributedSampler& sampler,
                  std::size_t stuck) {
  return distx::DataLoader(sampler,
                           [reads, stuck, values = std::make_shared<std::vector<std::size_t>>(1000, 7)](std::size_t i) {
                             if (i != stuck) return i + values->at(i) - 7;
                             const auto kept = reads;  // outlives this function, if that is destroyed
                             const std::weak_ptr owned = values;
                             ++kept->inside;
                             kept->release.wait();
                             kept->destroyed = owned.expired();
                             ++kept->returned;
                             return i;
                           },
                           {.workers = 2, .deadline = 500ms});
}

}  // namespace

TEST_CASE(
    "a worker that does not return is abandoned by next, break, an exception and destruction, and uses what it owns") {
  enum class End { next, leave, exception, unused };
  for (const End end : {End::next, End::leave, End::exception, End::unused}) {
    const auto reads = std::make_shared<StuckReads>();
    {
      const distx::DistributedSampler sampler(40, 0, 1, {.batch_size = 1, .shuffle = false});
      const auto data = stuck_loader(reads, sampler, 1);
      auto epoch = data.epoch(0);
      REQUIRE(reached(reads->inside, 1));
      try {
        if (end != End::unused)
          for (const auto& batch : epoch) {
            CHECK(batch == Batch{0});
            if (end == End::leave) break;
            if (end == End::exception) throw std::runtime_error("the training failed");
          }
        CHECK((end == End::leave || end == End::unused));
      } catch (const distx::TimeoutError&) {
        CHECK(end == End::next);
      } catch (const std::runtime_error&) {
        CHECK(end == End::exception);
      }
    }  // returns before the worker
    CHECK(reads->returned == 0);
    reads->release.count_down();
    CHECK(reached(reads->returned, 1));
    CHECK_FALSE(reads->destroyed);
  }
}

TEST_CASE("a stuck loader notifies the other ranks by the communicator of its sampler, which it does not keep") {
  const auto reads = std::make_shared<StuckReads>();
  std::array<std::string, 2> words;
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    auto& mine = words[static_cast<std::size_t>(connector.rank())];
    std::optional<distx::DistributedSampler> sampler;
    {
      distx::ThreadCommunicator comm(connector, 20s);
      sampler.emplace(40, distx::Metered(comm.share()), distx::SamplerOptions{.batch_size = 1, .shuffle = false});
      try {
        for (const auto& batch : stuck_loader(reads, *sampler, 3).epoch(0)) {
          auto sum = batch[0];
          distx::all_reduce(comm, sum, distx::sum);
        }
      } catch (const distx::Error& error) {
        mine = error.what();
        CHECK_FALSE(distx::is_rank_loss(error));
      }
      connector.barrier();
    }
    sampler->revoke("the communicator has gone");
  });
  CHECK_MESSAGE(words[1].find("timed out after 0.5 s: batch 1 (sample 3 of epoch 0)") != std::string::npos, words[1]);
  CHECK_MESSAGE(words[0].find("rank 1 revoked the communicator: DataLoader on rank 1 of 2: ") != std::string::npos,
                words[0]);
  reads->release.count_down();
  CHECK(reached(reads->returned, 1));
}

TEST_CASE("workers without prefetch throw InvalidArgument") {
  CHECK_THROWS_AS(static_cast<void>(loader(6, copied, 1, 0)), distx::InvalidArgument);
  CHECK_NOTHROW(static_cast<void>(loader(6, copied, 0, 0)));
}

TEST_CASE("workers make all batches ahead if prefetch is larger") {
  for (const std::size_t prefetch : {std::size_t{1000}, std::size_t{1} << 62, ~std::size_t{0}}) {
    std::atomic<int> made = 0;
    const auto counted = [&](std::span<const std::size_t> indices) { return ++made, copied(indices); };
    auto epoch = loader(30, counted, 4, prefetch).epoch(0);
    CHECK(reached(made, 10));  // nothing was taken
    std::vector<Batch> batches;
    for (auto& batch : epoch) batches.push_back(batch);
    CHECK(batches == expected(30, 0));
  }
}

TEST_CASE("an epoch resumes after the batches that were taken, not after those made ahead") {
  for (const std::size_t workers : {0u, 1u, 3u}) {
    CAPTURE(workers);
    const auto data = loader(60, copied, workers, 4);
    const auto all = expected(60, 2);
    for (std::size_t taken = 0; taken <= all.size(); ++taken) {
      auto begun = data.epoch(2);
      for (std::size_t i = 0; i < taken; ++i) REQUIRE(begun.next().has_value());
      const auto at = begun.position();
      if (taken == all.size()) {
        CHECK(at == data.sampler().position(3));
        break;
      }
      CHECK(at.taken == 3 * taken);
      auto rest = data.epoch(distx::DistributedSampler::Position::from_string(at.to_string()));
      CHECK(rest.size() == all.size() - taken);
      for (std::size_t i = taken; i < all.size(); ++i) CHECK(rest.next() == all[i]);
      CHECK_FALSE(rest.next().has_value());
      CHECK(rest.position() == data.sampler().position(3));
    }
  }
}

TEST_CASE("a forked process takes no batch that workers make, and does not wait for them") {
  const auto data = loader(12, copied, 2);
  auto epoch = data.epoch(0), alone = loader(12, copied, 0).epoch(0);
  const auto all = expected(12, 0);
  CHECK(epoch.next() == all[0]);
  const int wrong = test::in_forked_process([&] {
    int bits = alone.next() == all[0] ? 0 : 1;  // needs no worker
    try {
      auto taken = std::move(epoch);
      static_cast<void>(taken.next());
      bits |= 2;
    } catch (const distx::InvalidState&) {  // and the destructor has returned
    }
    return bits;
  });
  CHECK(wrong == 0);
  for (std::size_t batch = 1; batch < all.size(); ++batch) CHECK(epoch.next() == all[batch]);
}

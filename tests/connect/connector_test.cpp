// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/connect/connector.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <string>

#include "connect/minimal.hpp"
#include "connect/wrong.hpp"
#include "distx/threads.hpp"
#include "words.hpp"

namespace {

using test::Minimal;
using test::Wrong;

struct WideRank : Minimal {
  long rank() const { return 0; }
};
struct NoRoot : Minimal {
  int root_rank() const = delete;
};
struct NoBarrier : Minimal {
  void barrier() = delete;
};
struct ChangingSize : Minimal {
  int size() { return 1; }
};
struct ConstBytes : Minimal {
  void all_gather(std::span<std::byte>, std::span<std::byte>) {}
};
struct Pinned : Minimal {
  Pinned() = default;
  Pinned(Pinned&&) = delete;
};

using distx::Connector;
using test::error_of;
static_assert(Connector<Minimal> && Connector<distx::SelfConnector> && Connector<distx::ThreadConnector>);
static_assert(Connector<distx::AnyConnector>);
static_assert(Connector<distx::detail::ProductConnector<distx::ThreadConnector, Minimal>>);
static_assert(!Connector<WideRank> && !Connector<NoRoot> && !Connector<NoBarrier> && !Connector<ChangingSize>);
static_assert(!Connector<ConstBytes> && !Connector<Pinned> && !Connector<int>);
static_assert(!std::is_copy_constructible_v<distx::AnyConnector>);

template <Connector C>
void check_invariants(C& connector, Wrong& wrong) {
  const int rank = connector.rank(), size = connector.size();
  wrong.unless(rank >= 0 && rank < size);
  wrong.unless(connector.local_rank() >= 0 && connector.local_rank() < connector.local_size());
  wrong.unless(connector.root_rank() >= 0 && connector.root_rank() < size);
  connector.barrier();
  const auto ranks = distx::all_gather_values(connector, rank);
  for (int r = 0; r < size; ++r) wrong.unless(ranks[static_cast<std::size_t>(r)] == r);
  for (int root = 0; root < size; ++root) wrong.unless(distx::broadcast_value(connector, rank * 10, root) == root * 10);
  connector.all_gather({}, {});
  connector.broadcast({}, 0);
}

TEST_CASE("SelfConnector satisfies the Connector contract with one rank") {
  distx::SelfConnector self;
  Wrong wrong;
  check_invariants(self, wrong);
  CHECK(wrong.count() == 0);
  CHECK(self.size() == 1);
  CHECK_THROWS_WITH_AS(self.broadcast({}, 1),
                       "distx: broadcast on rank 0 of 1 (connector): invalid root 1: must be in [0, 1)",
                       distx::InvalidArgument);
  std::byte bytes[3];
  CHECK_THROWS_WITH_AS(
      self.all_gather({bytes, 2}, {bytes, 3}),
      "distx: all_gather on rank 0 of 1 (connector): receive has 3 bytes, expected 2 from each of 1 ranks",
      distx::InvalidArgument);
}

TEST_CASE("ThreadConnector satisfies the Connector contract") {
  for (const int size : {1, 2, 3, 4, 7}) {
    Wrong wrong;
    distx::spawn(size, [&](distx::ThreadConnector& connector) {
      wrong.unless(connector.size() == size && connector.local_size() == size);
      wrong.unless(connector.local_rank() == connector.rank() && connector.root_rank() == 0);
      for (int round = 0; round < 20; ++round) check_invariants(connector, wrong);
    });
    CHECK(wrong.count() == 0);
  }
}

TEST_CASE("different calls throw MismatchError on every thread rank") {
  Wrong wrong;
  distx::spawn(3, [&](distx::ThreadConnector& connector) {
    std::byte bytes[4]{}, received[12]{};
    const std::size_t mine = connector.rank() == 2 ? 3 : 4;
    const auto gather =
        error_of<distx::MismatchError>([&] { connector.all_gather({bytes, mine}, {received, 3 * mine}); });
    wrong.unless(gather.find("rank 0 calls all_gather of 4 bytes, rank 2 all_gather of 3 bytes") != std::string::npos);
    const auto broadcast = error_of<distx::MismatchError>([&] { connector.broadcast({bytes, mine}, 2); });
    wrong.unless(broadcast == "distx: broadcast on rank " + std::to_string(connector.rank()) +
                                  " of 3 (threads): rank 0 calls broadcast of 4 bytes from rank 2, rank 2 broadcast of "
                                  "3 bytes from rank 2");
    const auto other = error_of<distx::MismatchError>([&] {
      if (mine == 3)
        connector.barrier();
      else
        connector.broadcast({bytes, mine}, 0);
    });
    wrong.unless(other.find("rank 0 calls broadcast of 4 bytes from rank 0, rank 2 barrier") != std::string::npos);
    connector.barrier();  // the ranks are in step
    const auto root = error_of<distx::InvalidArgument>([&] { connector.broadcast({}, -1); });
    wrong.unless(root.find("invalid root -1") != std::string::npos);
  });
  CHECK(wrong.count() == 0);
}

TEST_CASE("a late thread learns that another one has timed out, and the latter makes no more calls") {
  std::string early, next, late;
  std::byte heard[2]{};
  std::atomic<bool> gave_up{false};
  distx::spawn(distx::threads(2, std::chrono::milliseconds(50)), [&](distx::ThreadConnector& connector) {
    std::byte said{1}, unheard[2]{};
    if (connector.rank() == 0) {
      early = error_of<distx::TimeoutError>([&] { connector.all_gather({&said, 1}, unheard); });
      said = std::byte{2};
      gave_up = true;
      gave_up.notify_all();
      next = error_of<distx::RevokedError>([&] { connector.barrier(); });
    } else {
      gave_up.wait(false);
      late = error_of<distx::TimeoutError>([&] { connector.all_gather({&said, 1}, heard); });
    }
  });
  CHECK(early ==
        "distx: all_gather on rank 0 of 2 (threads): timed out after 0.05 s: rank 1 of 2 did not enter this call");
  CHECK(next == "distx: barrier on rank 0 of 2 (threads): an earlier call of this connector failed");
  CHECK(late == "distx: all_gather on rank 1 of 2 (threads): another rank has timed out in this call");
  CHECK(heard[0] == std::byte{0});
}

TEST_CASE("nested ranks satisfy the Connector contract") {
  for (const int outer_size : {1, 2, 3}) {
    for (const int inner_size : {1, 2}) {
      Wrong wrong;
      distx::spawn(outer_size, [&](distx::ThreadConnector& outer) {
        distx::spawn(distx::threads(inner_size) * outer, [&](auto& product) {
          wrong.unless(product.size() == outer_size * inner_size);
          wrong.unless(product.rank() / inner_size == outer.rank());
          wrong.unless(product.local_size() == product.size() && product.local_rank() == product.rank());
          for (int round = 0; round < 10; ++round) check_invariants(product, wrong);
        });
      });
      CHECK(wrong.count() == 0);
    }
  }
}

TEST_CASE("different numbers of threads per process throw MismatchError") {
  Wrong wrong;
  distx::spawn(2, [&](distx::ThreadConnector& outer) {
    const auto words =
        error_of<distx::RankFailure>([&] { distx::spawn(distx::threads(outer.rank() + 1) * outer, [](auto&) {}); });
    wrong.unless(words.find("every process needs the same number") != std::string::npos);
  });
  CHECK(wrong.count() == 0);
}

TEST_CASE("AnyConnector forwards to the connector it holds") {
  Wrong wrong;
  distx::spawn(3, [&](distx::ThreadConnector& connector) {
    distx::AnyConnector any(connector);
    wrong.unless(any.rank() == connector.rank() && any.size() == 3 && any.local_size() == 3);
    wrong.unless(any.local_rank() == connector.rank() && any.root_rank() == 0);
    check_invariants(any, wrong);
    wrong.unless(any.target<distx::ThreadConnector>() != nullptr);
    wrong.unless(any.target<distx::SelfConnector>() == nullptr);
    auto moved = std::move(any);
    check_invariants(moved, wrong);
  });
  CHECK(wrong.count() == 0);
}

}  // namespace

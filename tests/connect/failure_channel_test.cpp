// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/connect/failure_channel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "connect/minimal.hpp"
#include "connect/wait_for_failure.hpp"
#include "connect/wrong.hpp"
#include "distx/threads.hpp"

namespace {

using distx::AnyConnector;
using distx::FailureChannel;
using distx::ThreadConnector;
using test::Minimal;
using test::wait_for;
using test::Wrong;

template <class Inner, class Outer>
using Product = distx::detail::ProductConnector<Inner, Outer>;
static_assert(distx::HasFailureChannel<ThreadConnector> && distx::HasFailureChannel<distx::SelfConnector>);
static_assert(distx::HasFailureChannel<AnyConnector> && distx::HasFailureChannel<Product<ThreadConnector, Minimal>>);
static_assert(!distx::HasFailureChannel<Minimal> && !distx::HasFailureChannel<int>);

TEST_CASE("SelfConnector: the channel keeps the first reason of each identity") {
  distx::SelfConnector self;
  const auto channel = self.failure_channel();
  CHECK(!channel->poll(7));
  channel->publish(7, "the first");
  channel->publish(7, "the second");
  channel->publish(8, "of another");
  CHECK(channel->poll(7) == "the first");
  CHECK(channel->poll(8) == "of another");
  CHECK(!channel->poll(9));
  CHECK(self.failure_channel()->poll(7) == "the first");
  CHECK(!distx::SelfConnector().failure_channel()->poll(7));
}

TEST_CASE("AnyConnector returns the failure channel of the connector it holds, or null") {
  AnyConnector silent = Minimal();
  CHECK(silent.failure_channel() == nullptr);
  AnyConnector any = distx::SelfConnector();
  any.failure_channel()->publish(1, "reason");
  CHECK(any.failure_channel()->poll(1) == "reason");
}

TEST_CASE("every thread rank polls the reason that one published, on any thread") {
  for (const int size : {1, 2, 3, 7}) {
    Wrong wrong;
    distx::spawn(size, [&](ThreadConnector& connector) {
      const auto channel = connector.failure_channel();
      std::jthread watcher(
          [&] { wrong.unless(wait_for(*channel, 5) == "rank " + std::to_string(size - 1) + " has had enough"); });
      if (connector.rank() == size - 1)
        connector.failure_channel()->publish(5, "rank " + std::to_string(size - 1) + " has had enough");
      watcher.join();
      connector.barrier();
      channel->publish(5, "too late");
      wrong.unless(channel->poll(5)->find("enough") != std::string::npos);
      wrong.unless(!channel->poll(6));
    });
    CHECK(wrong.count() == 0);
  }
}

TEST_CASE("concurrent failures on threads: exactly one reason is kept") {
  Wrong wrong;
  distx::spawn(4, [&](ThreadConnector& connector) {
    for (std::uint64_t identity = 0; identity < 50; ++identity) {
      connector.failure_channel()->publish(identity, std::to_string(connector.rank()));
      const auto first = *connector.failure_channel()->poll(identity);
      connector.barrier();
      wrong.unless(*connector.failure_channel()->poll(identity) == first);
      std::vector<char> all(4);
      connector.all_gather(std::as_bytes(std::span(first.data(), 1)), std::as_writable_bytes(std::span(all)));
      wrong.unless(all == std::vector<char>(4, first[0]));
    }
  });
  CHECK(wrong.count() == 0);
}

TEST_CASE("a rank that ended with an exception is reported under every identity") {
  std::atomic<int> polled{0};
  try {
    distx::spawn(3, [&](ThreadConnector& connector) {
      connector.failure_channel()->publish(1, "published before");
      connector.barrier();
      if (connector.rank() == 1) throw std::runtime_error("the wheel came off");
      if (wait_for(*connector.failure_channel(), 2) == "rank 1 of 3 ended with an exception: the wheel came off")
        ++polled;
      connector.failure_channel()->publish(2, "this comes after it");
      if (connector.failure_channel()->poll(2)->find("wheel") != std::string::npos) ++polled;
      if (connector.failure_channel()->poll(1) == "published before") ++polled;
    });
  } catch (const distx::RankFailure&) {
  }
  CHECK(polled == 6);
}

TEST_CASE("nested ranks: every rank polls the reason, whichever rank published it") {
  constexpr int inner = 2, outer = 3;
  for (int publisher = 0; publisher < inner * outer; ++publisher) {
    Wrong wrong;
    distx::spawn(outer, [&](ThreadConnector& far) {
      distx::spawn(distx::threads(inner) * far, [&](auto& product) {
        AnyConnector any = product;
        const auto channel = any.failure_channel();
        if (any.rank() == publisher) channel->publish(3, "rank " + std::to_string(publisher));
        wrong.unless(wait_for(*channel, 3) == "rank " + std::to_string(publisher));
        wrong.unless(!channel->poll(4));
      });
    });
    CHECK(wrong.count() == 0);
  }
}

TEST_CASE("nested ranks: the failure of an inner rank reaches the other processes") {
  std::atomic<int> polled{0};
  std::atomic<int> looked{0};
  try {
    distx::spawn(2, [&](ThreadConnector& far) {
      distx::spawn(distx::threads(2) * far, [&](auto& product) {
        const auto channel = product.failure_channel();
        product.barrier();
        if (product.rank() == 3) throw std::runtime_error("gone");
        if (wait_for(*channel, 9).find("ended with an exception: gone") != std::string::npos) ++polled;
        ++looked;  // and stays until all have polled, so that its own end is not reported instead
        distx::detail::wait_until(std::chrono::seconds(30), [&] { return looked == 3; }, [] { return false; });
      });
    });
  } catch (const distx::RankFailure&) {
  }
  CHECK(polled == 3);
}

TEST_CASE("nested ranks over a connector without a failure channel have none") {
  Minimal silent;
  distx::spawn(distx::threads(2) * silent, [](auto& product) {
    if (product.failure_channel() != nullptr) throw std::runtime_error("a failure channel from nowhere");
  });
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/connect/failure_channel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "connect/minimal.hpp"
#include "connect/wait_for_notice.hpp"
#include "connect/wrong.hpp"
#include "distx/connect/spawn.hpp"

namespace {

using distx::AnyConnector;
using distx::FailureChannel;
using distx::ThreadConnector;
using test::Minimal;
using test::wait_for;
using test::Wrong;

template <class Inner, class Outer>
using Product = distx::ProductConnector<Inner, Outer>;
static_assert(distx::HasFailureChannel<ThreadConnector> && distx::HasFailureChannel<distx::SelfConnector>);
static_assert(distx::HasFailureChannel<AnyConnector> && distx::HasFailureChannel<Product<ThreadConnector, Minimal>>);
static_assert(!distx::HasFailureChannel<Minimal> && !distx::HasFailureChannel<int>);

TEST_CASE("a world of one tells itself") {
  distx::SelfConnector self;
  const auto notices = self.failure_channel();
  CHECK(!notices->poll(7));
  notices->publish(7, "the first");
  notices->publish(7, "the second");
  notices->publish(8, "of another");
  CHECK(notices->poll(7) == "the first");
  CHECK(notices->poll(8) == "of another");
  CHECK(!notices->poll(9));
  CHECK(self.failure_channel()->poll(7) == "the first");
  CHECK(!distx::SelfConnector().failure_channel()->poll(7));
}

TEST_CASE("AnyConnector has the notices of what it holds, or none") {
  AnyConnector silent = Minimal();
  CHECK(silent.failure_channel() == nullptr);
  AnyConnector any = distx::SelfConnector();
  any.failure_channel()->publish(1, "told");
  CHECK(any.failure_channel()->poll(1) == "told");
}

TEST_CASE("threads hear what one of them tells, from any thread, while nobody waits") {
  for (const int size : {1, 2, 3, 7}) {
    Wrong wrong;
    distx::spawn(size, [&](ThreadConnector& connector) {
      const auto notices = connector.failure_channel();
      std::jthread watcher(
          [&] { wrong.unless(wait_for(*notices, 5) == "rank " + std::to_string(size - 1) + " has had enough"); });
      if (connector.rank() == size - 1)
        connector.failure_channel()->publish(5, "rank " + std::to_string(size - 1) + " has had enough");
      watcher.join();
      connector.barrier();
      notices->publish(5, "too late");
      wrong.unless(notices->poll(5)->find("enough") != std::string::npos);
      wrong.unless(!notices->poll(6));
    });
    CHECK(wrong.count() == 0);
  }
}

TEST_CASE("many threads that tell at once hear one reason") {
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

TEST_CASE("a rank that has ended with an exception is heard under every identity") {
  std::atomic<int> heard{0};
  try {
    distx::spawn(3, [&](ThreadConnector& connector) {
      connector.failure_channel()->publish(1, "told before");
      connector.barrier();
      if (connector.rank() == 1) throw std::runtime_error("the wheel came off");
      if (wait_for(*connector.failure_channel(), 2) == "rank 1 of 3 ended with an exception: the wheel came off")
        ++heard;
      connector.failure_channel()->publish(2, "this comes after it");
      if (connector.failure_channel()->poll(2)->find("wheel") != std::string::npos) ++heard;
      if (connector.failure_channel()->poll(1) == "told before") ++heard;
    });
  } catch (const distx::RankFailure&) {
  }
  CHECK(heard == 6);
}

TEST_CASE("ranks in ranks all hear it, whoever tells") {
  constexpr int inner = 2, outer = 3;
  for (int teller = 0; teller < inner * outer; ++teller) {
    Wrong wrong;
    distx::spawn(outer, [&](ThreadConnector& far) {
      distx::spawn(distx::threads(inner) * far, [&](auto& product) {
        AnyConnector any = product;
        const auto notices = any.failure_channel();
        if (any.rank() == teller) notices->publish(3, "rank " + std::to_string(teller));
        wrong.unless(wait_for(*notices, 3) == "rank " + std::to_string(teller));
        wrong.unless(!notices->poll(4));
      });
    });
    CHECK(wrong.count() == 0);
  }
}

TEST_CASE("an inner rank that ends is heard in the other processes, as soon as another inner rank has heard it") {
  std::atomic<int> heard{0};
  std::atomic<int> looked{0};
  try {
    distx::spawn(2, [&](ThreadConnector& far) {
      distx::spawn(distx::threads(2) * far, [&](auto& product) {
        const auto notices = product.failure_channel();
        product.barrier();
        if (product.rank() == 3) throw std::runtime_error("gone");
        if (wait_for(*notices, 9).find("ended with an exception: gone") != std::string::npos) ++heard;
        ++looked;  // and stays until all have looked: its own end is not to be heard instead
        distx::detail::wait_until(std::chrono::seconds(30), [&] { return looked == 3; }, [] { return false; });
      });
    });
  } catch (const distx::RankFailure&) {
  }
  CHECK(heard == 3);
}

TEST_CASE("a product of a connector without notices has none") {
  Minimal silent;
  distx::spawn(distx::threads(2) * silent, [](auto& product) {
    if (product.failure_channel() != nullptr) throw std::runtime_error("notices from nowhere");
  });
}

}  // namespace

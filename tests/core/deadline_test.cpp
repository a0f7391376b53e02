// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/core/deadline.hpp"

#include <doctest/doctest.h>

#include "distx/core/detail/wait.hpp"

namespace {

using namespace std::chrono_literals;
using distx::detail::wait_until;
using distx::detail::WaitEnd;

const auto never = [] { return false; };
const auto always = [] { return true; };

TEST_CASE("a Timeout prints its length") {
  CHECK(distx::Timeout(1500ms).to_string() == "1.5 s");
  CHECK(distx::Timeout(2s).to_string() == "2 s");
  CHECK(distx::Timeout(10min).to_string() == "600 s");
  CHECK(distx::Timeout(1ms).to_string() == "0.001 s");
  CHECK(distx::Timeout(distx::no_timeout).to_string() == "no deadline");
  CHECK(distx::Timeout(distx::no_timeout).unlimited());
  CHECK(!distx::default_deadline.unlimited());
  CHECK(distx::default_deadline.limit() == 10min);
}

TEST_CASE("a Timeout that does not fit the clock has no limit") {
  using namespace std::chrono;
  for (const distx::Timeout longest : {distx::Timeout(hours::max()), distx::Timeout(seconds::max()),
                                       distx::Timeout(milliseconds::max()), distx::Timeout(nanoseconds::max() - 1ns),
                                       distx::Timeout(duration<double>(1e300)), distx::Timeout(24h * 365 * 292)}) {
    CAPTURE(longest.to_string());
    CHECK(longest.unlimited());
    CHECK(!distx::Deadline(longest).expired());
  }
  CHECK(distx::Timeout(0s).limit() == 0s);
  CHECK(distx::Timeout(1ns).limit() == 1ns);
  CHECK(distx::Timeout(24h * 365 * 50).limit() == 24h * 365 * 50);
  CHECK(!distx::Deadline(24h * 365 * 50).expired());
}

TEST_CASE("a Deadline expires after its Timeout") {
  CHECK(distx::Deadline(0s).expired());
  CHECK(!distx::Deadline(1h).expired());
  CHECK(!distx::Deadline(distx::no_timeout).expired());
  CHECK(distx::Deadline(distx::no_timeout).unlimited());
  CHECK(distx::Deadline(1h).end() > distx::Deadline::clock::now() + 59min);
}

TEST_CASE("wait_until ends when ready, stopped or expired") {
  CHECK(wait_until(1h, always, never) == WaitEnd::ready);
  CHECK(wait_until(1h, never, always) == WaitEnd::stopped);
  CHECK(wait_until(1ms, never, never) == WaitEnd::expired);
  CHECK(wait_until(0s, never, never) == WaitEnd::expired);
  int looks = 0;
  CHECK(wait_until(distx::no_timeout, [&] { return ++looks == 1000; }, never) == WaitEnd::ready);
  CHECK(looks == 1000);
}

TEST_CASE("a wait that becomes ready as it expires is ready") {
  bool over = false;
  const auto stopped = [&] { return over = true; };
  CHECK(wait_until(1h, [&] { return over; }, stopped) == WaitEnd::ready);
}

}  // namespace

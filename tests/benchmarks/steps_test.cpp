// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The shortest possible time of a step, and a communicator that moves no data.
#include <doctest/doctest.h>

#include "distx/distx.hpp"
#include "timing/ideal_step.hpp"
#include "timing/muted.hpp"

namespace {

using timing::BucketTimes;

TEST_CASE("a wire that is faster than the computation is waited for in the last bucket only") {
  const std::vector<BucketTimes> buckets{{2, 1, 0.5}, {6, 2, 0.5}, {10, 1.5, 0.25}};
  CHECK(timing::serial_step(10, buckets) == doctest::Approx(10 + 4.5 + 1.25));
  CHECK(timing::ideal_step(10, buckets) == doctest::Approx(10 + 1.5 + 0.25));  // both updates before are over by then
}

TEST_CASE("on a slow wire buckets queue, and updates overlap with communication") {
  const std::vector<BucketTimes> buckets{{2, 9, 1}, {4, 9, 1}};
  CHECK(timing::ideal_step(10, buckets) == doctest::Approx(2 + 9 + 9 + 1));
  CHECK(timing::serial_step(10, buckets) == doctest::Approx(10 + 18 + 2));
}

TEST_CASE("a bucket that is full when the computation ends hides nothing") {
  const std::vector<BucketTimes> buckets{{10, 3, 1}};
  CHECK(timing::ideal_step(10, buckets) == doctest::Approx(timing::serial_step(10, buckets)));
}

TEST_CASE("a muted communicator moves no data, waits for no rank, and records the bytes of each call") {
  distx::spawn(distx::threads(2), [](auto connector) {
    timing::Muted comm(distx::AnyCommunicator<>{distx::ThreadCommunicator(connector)});
    std::vector<float> values(6, static_cast<float>(comm.rank() + 1));
    distx::all_reduce(comm, values, distx::sum);
    CHECK(values.front() == 3);
    CHECK(comm.take_notes().empty());

    comm.mute();
    auto shared = comm.share();
    for (int calls = 0; calls <= comm.rank(); ++calls) {  // not as often on both ranks
      auto pending = distx::start_all_reduce(shared, values, distx::sum);
      CHECK(pending.test());
      pending.wait();
      distx::all_reduce(comm, values, distx::sum);
    }
    CHECK(values.front() == 3);
    const auto notes = comm.take_notes();
    REQUIRE(notes.size() == 2 * static_cast<std::size_t>(comm.rank() + 1));
    CHECK(notes.front().bytes.sent == 24);
    CHECK(notes.front().time <= notes.back().time);
    CHECK(comm.take_notes().empty());
  });
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The benchmark's checks find what is wrong, and its figures mean what they say.
#include <doctest/doctest.h>

#include "distx/distx.hpp"
#include "timing/bounds.hpp"
#include "timing/distx_subject.hpp"
#include "timing/measure.hpp"

namespace {

using timing::Buffers;
using timing::Case;
using timing::Operation;

constexpr std::size_t room = 256 * 64;  // elements: a batch of the smallest calls

/// A rank's memory.
struct Slabs {
  std::vector<float> first = std::vector<float>(room), second = std::vector<float>(room);
  timing::Memory memory() { return {"user", first.data(), second.data()}; }
};

/// Does what distx does, and then spoils one element of what rank `bad` has got.
class Careless final : public timing::Subject {
 public:
  Careless(timing::Memory memory, distx::ThreadConnector& connector, int bad, std::size_t shift)
      : Subject("careless", memory),
        right_("right", memory, distx::ThreadCommunicator(connector)),
        bad_(bad),
        shift_(shift) {}
  void call(const Case& c, const Buffers& b) override {
    right_.call(c, b);
    if (c.rank != bad_ || c.receives() == 0) return;
    if (shift_ == 0)
      b.receive[c.receives() - 1] += 1.0f;
    else if (shift_ < c.receives())
      std::rotate(b.receive, b.receive + shift_, b.receive + c.receives());
  }

 private:
  timing::DistxSubject<distx::ThreadCommunicator> right_;
  int bad_;
  std::size_t shift_;
};

std::vector<Case> cases(int ranks) {
  std::vector<Case> all;
  for (const Operation operation : timing::operations)
    for (const bool in_place : {true, false})
      for (const std::size_t bytes : {4u, 1024u, 6000u})
        if (const auto whole = timing::whole_within(operation, bytes, ranks); whole != 0)
          all.push_back({operation, in_place && timing::has_in_place(operation), whole, 0, ranks});
  return all;
}

/// Errors that a measurement of one subject finds in each of `cases(ranks)`.
template <class MakeSubject>
std::vector<std::uint64_t> found(int ranks, MakeSubject&& make) {
  std::vector<std::uint64_t> errors;
  distx::spawn(ranks, [&](distx::ThreadConnector& connector) {
    Slabs slabs;
    timing::Measurement measurement(distx::ThreadCommunicator(connector), {.seconds = 0, .least = 1, .most = 1});
    timing::Subjects subjects;
    subjects.push_back(make(slabs.memory(), connector));
    for (Case c : cases(ranks)) {
      c.rank = connector.rank();
      const auto rows = measurement.run(c, subjects);
      if (connector.rank() == 0) errors.push_back(rows.empty() ? 0 : rows.front().errors);
    }
  });
  return errors;
}

}  // namespace

TEST_CASE("correct results have no errors") {
  for (const int ranks : {1, 2, 3})
    for (const auto errors : found(ranks, [](timing::Memory memory, distx::ThreadConnector& connector) {
           using Right = timing::DistxSubject<distx::ThreadCommunicator>;
           return std::make_unique<Right>("right", memory, distx::ThreadCommunicator(connector));
         }))
      CHECK(errors == 0);
}

TEST_CASE("the bounds have no errors either") {
  for (const auto errors : found(3, [](timing::Memory memory, distx::ThreadConnector&) {
         return std::make_unique<timing::LimitSubject>(memory);
       }))
    CHECK(errors == 0);
  for (const auto errors : found(3, [](timing::Memory memory, distx::ThreadConnector&) {
         return std::make_unique<timing::MemcpySubject>(memory);
       }))
    CHECK(errors == 0);
}

TEST_CASE("one wrong element is found, on whichever rank it is, in every operation") {
  const auto all = cases(3);
  for (const int bad : {0, 2}) {
    const auto errors = found(3, [&](timing::Memory memory, distx::ThreadConnector& connector) {
      return std::make_unique<Careless>(memory, connector, bad, 0);
    });
    REQUIRE(errors.size() == all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      Case there = all[i];
      there.rank = bad;
      CAPTURE(timing::name_of(there.operation));
      CHECK((errors[i] > 0) == (there.receives() > 0));
    }
  }
}

TEST_CASE("elements in the wrong place are found, also where they are off by a cache line") {
  const auto all = cases(3);
  const auto errors = found(3, [&](timing::Memory memory, distx::ThreadConnector& connector) {
    return std::make_unique<Careless>(memory, connector, 0, 16);
  });
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].receives() > 64) {
      CAPTURE(timing::name_of(all[i].operation));
      CHECK(errors[i] > all[i].receives() / 2);
    }
}

TEST_CASE("elements that a call does not write count as errors") {
  for (Case c : cases(2)) {
    for (c.rank = 0; c.rank < 2; ++c.rank) {
      Slabs slabs;
      const Buffers b = timing::place(c, slabs.first.data(), slabs.second.data());
      timing::prepare(c, b, 7);
      CAPTURE(timing::name_of(c.operation));
      const bool done = (c.operation == Operation::broadcast || (c.operation == Operation::scatter && c.in_place)) &&
                        c.rank == timing::root;
      if (c.receives() > 0) CHECK((timing::check(c, b.receive, 7) == 0) == done);
    }
  }
}

TEST_CASE("results of an earlier call count as errors") {
  const Case c{Operation::all_reduce, false, 100, 0, 2};
  Slabs slabs;
  const Buffers b = timing::place(c, slabs.first.data(), slabs.second.data());
  for (std::uint32_t i = 0; i < 100; ++i) b.receive[i] = timing::element(i, 0, 7) + timing::element(i, 1, 7);
  CHECK(timing::check(c, b.receive, 7) == 0);
  CHECK(timing::check(c, b.receive, 8) == 100);
  timing::prepare(c, b, 7);
  CHECK(timing::check(c, b.receive, 7) == 100);
}

TEST_CASE("small calls are timed together, large ones one by one, within the memory there is") {
  CHECK(timing::calls_in_a_batch(4) == timing::most_calls_in_a_batch);
  CHECK(timing::calls_in_a_batch(1024) == 64);
  CHECK(timing::calls_in_a_batch(64 * 1024) == 1);
  CHECK(timing::calls_in_a_batch(256u << 20) == 1);
  for (std::size_t bytes = 4; bytes <= 64 * 1024; bytes += 4)
    CHECK(timing::calls_in_a_batch(bytes) * timing::stride_of(bytes) * sizeof(float) <= timing::batch_bytes);
}

TEST_CASE("bandwidths are those of nccl-tests") {
  const auto row = [](Operation operation) {
    Slabs slabs;
    const timing::MemcpySubject subject(slabs.memory());
    return timing::row_of({operation, false, 1000, 0, 4}, subject, 1e-6, 1e-6, 1, 0);
  };
  CHECK(row(Operation::all_reduce).algbw_gbs == doctest::Approx(4.0));
  CHECK(row(Operation::all_reduce).busbw_gbs == doctest::Approx(6.0));
  for (const auto operation :
       {Operation::all_gather, Operation::reduce_scatter, Operation::gather, Operation::scatter, Operation::all_to_all})
    CHECK(row(operation).busbw_gbs == doctest::Approx(3.0));
  for (const auto operation : {Operation::reduce, Operation::broadcast, Operation::send_recv})
    CHECK(row(operation).busbw_gbs == doctest::Approx(4.0));
  CHECK(row(Operation::all_gather).bytes == 4000);
}

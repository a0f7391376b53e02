// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// In an exchange of small messages a rank returns once it has taken the other one's, which may not have taken its own.
// Messages are matched in order all the same, and none is lost.
#include <doctest/doctest.h>

#include <array>
#include <random>

#include "distx/comm/point_to_point.hpp"
#include "distx/shm.hpp"
#include "distx/shm/detail/segment_region.hpp"
#include "distx/threads.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;
using distx::detail::shared_memory::MessageRequest;
using distx::detail::shm::SegmentMailbox;
using distx::detail::shm::SegmentRegion;
using Request = std::shared_ptr<MessageRequest>;

/// Two ranks, whose calls the test makes one by one.
class TwoRanks {
 public:
  explicit TwoRanks(distx::detail::shm::SharedSegment::Made made = SegmentRegion::make_control(2))
      : layout_(made.segment->data(), 2, SegmentRegion::extent_for(2)),
        ranks_{std::make_unique<SegmentRegion>(made.segment, 0, 2, 1min),
               std::make_unique<SegmentRegion>(made.segment, 1, 2, 1min)} {}

  Request send(int rank, const std::vector<int>& values, int tag = 0, bool exchanges = false) {
    auto message = described(rank, distx::Span<const int>(values), tag);
    message->source = reinterpret_cast<const std::byte*>(values.data());
    message->sends = true;
    message->exchanges = exchanges;
    return post(rank, message);
  }
  /// Sends as `send_receive` does, before it receives.
  Request exchange(int rank, const std::vector<int>& values, int tag = 0) { return send(rank, values, tag, true); }
  Request receive(int rank, std::vector<int>& values, int tag = 0) {
    auto message = described(1 - rank, distx::Span<const int>(values), tag);
    message->target = reinterpret_cast<std::byte*>(values.data());
    return post(rank, message);
  }
  SegmentRegion& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  /// The mailbox of the messages to a rank.
  SegmentMailbox& mailbox(int rank) const {
    return *std::launder(reinterpret_cast<SegmentMailbox*>(layout_.mailbox(rank)));
  }
  void leave(int rank) { ranks_[static_cast<std::size_t>(rank)] = nullptr; }

 private:
  static Request described(int from, distx::Span<const distx::AnyElement> buffer, int tag) {
    auto message = std::make_shared<MessageRequest>();
    message->header = distx::detail::MessageHeader::of(buffer, 0);
    message->bytes = buffer.size_bytes();
    message->from = from;
    message->to = 1 - from;
    message->tag = tag;
    return message;
  }
  Request post(int rank, Request message) {
    (*this)[rank].post(message, {});
    return message;
  }

  distx::detail::shared_memory::SharedLayout layout_;
  std::array<std::unique_ptr<SegmentRegion>, 2> ranks_;
};

TEST_CASE("a rank that has taken the other one's message of an exchange returns, and its own is not lost") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{9}, std::size_t{256}}) {
    TwoRanks ranks;
    const std::vector<int> first(count, 1), second(count, 2);
    std::vector<int> of_first(count), of_second(count);
    const auto theirs = ranks.exchange(1, second);
    const auto mine = ranks.exchange(0, first);
    const auto received = ranks.receive(0, of_second);
    REQUIRE(received->done());
    CHECK(of_second == second);
    CHECK(received->exchanged);
    CHECK(!ranks[0].advance(*mine));
    CHECK(ranks[0].complete_locally(*mine));
    CHECK(mine->done());
    ranks.leave(0);
    CHECK(ranks[1].advance(*theirs));
    CHECK(ranks.receive(1, of_first)->done());
    CHECK(of_first == first);
  }
}

TEST_CASE("a rank awaits the answer if the other one's next receive may be of another message") {
  TwoRanks ranks;
  const std::vector<int> one{1}, two{2};
  std::vector<int> received(1), older(1);
  SUBCASE("the other one has sent and receives nothing") {
    (void)ranks.send(1, two);
    const auto mine = ranks.exchange(0, one);
    CHECK(!ranks.receive(0, received)->exchanged);
    CHECK(!ranks[0].advance(*mine));
  }
  SUBCASE("the other one has taken it, for an older receive") {
    const auto mine = ranks.exchange(0, one);
    CHECK(ranks.receive(1, older)->done());
    (void)ranks.exchange(1, two);
    CHECK(ranks.receive(0, received)->exchanged);
    CHECK(!ranks[0].complete_locally(*mine));
    CHECK(ranks[0].advance(*mine));
  }
  SUBCASE("the other one awaits an older message") {
    const auto mine = ranks.exchange(0, one);
    const auto waits = ranks.receive(1, older, 7);
    CHECK(!waits->done());
    (void)ranks.exchange(1, two);
    CHECK(ranks.receive(0, received)->exchanged);
    CHECK(!ranks[0].complete_locally(*mine));
    CHECK(ranks[1].withdraw(*waits));
    CHECK(ranks[0].complete_locally(*mine));
  }
}

TEST_CASE("messages in both slots and in a cell are received in the order in which they were sent") {
  TwoRanks ranks;
  const std::vector<std::vector<int>> sent{{1}, {2}, {3}, {4}};
  std::vector<int> received(1), answer(1);
  for (std::size_t i = 0; i < 2; ++i) {  // the second one of another tag
    const int tag = static_cast<int>(i);
    const auto theirs = ranks.exchange(1, {0}, tag);
    const auto mine = ranks.exchange(0, sent[i], tag);
    CHECK(ranks.receive(0, answer, tag)->exchanged);
    CHECK(ranks[0].complete_locally(*mine));
    CHECK(ranks[1].advance(*theirs));
  }
  const auto third = ranks.send(0, sent[2], 1), fourth = ranks.send(0, sent[3], 0);
  for (const auto& [tag, expected] : {std::pair{1, 2}, {0, 1}, {0, 4}, {1, 3}}) {
    CHECK(ranks.receive(1, received, tag)->done());
    CHECK(received[0] == expected);
  }
  CHECK(ranks[0].advance(*third));
  CHECK(ranks[0].advance(*fourth));
  // Both slots are free again.
  const auto last = ranks.send(0, {5});
  CHECK(last->queued == MessageRequest::Queued::in_slot);
}

TEST_CASE("a message of a rank that has left is received although a third rank held the mailbox's lock") {
  TwoRanks ranks;
  const std::vector<int> one{1}, two{2};
  std::vector<int> of_first(1), of_second(1);
  const auto theirs = ranks.exchange(1, two);
  const auto waits = ranks.receive(1, of_first);
  CHECK(!waits->done());
  SegmentMailbox& box = ranks.mailbox(1);
  box.awaited = 0;  // as rank 0 reads it if it sends at the same time
  const auto mine = ranks.exchange(0, one);
  CHECK(ranks.receive(0, of_second)->exchanged);
  CHECK(ranks[0].complete_locally(*mine));
  box.awaited = 1;
  ranks.leave(0);
  box.holder = 3;
  CHECK(!ranks[1].advance(*waits));
  box.holder = 0;
  CHECK(!ranks[1].withdraw(*waits));
  CHECK(ranks[1].advance(*waits));
  CHECK(of_first == one);
}

/// Makes the calls that a generator of the same seed chooses on both ranks; returns how many values were wrong.
int wrong_values(Comm& comm, unsigned seed) {
  std::mt19937 calls(seed), own(seed * 2 + static_cast<unsigned>(comm.rank()));
  const int me = comm.rank(), peer = 1 - me;
  int wrong = 0;
  for (int call = 0; call < 60; ++call) {
    const auto value = [call](int rank, int part = 0) { return call * 8 + part * 2 + rank; };
    const std::size_t n = std::array<std::size_t, 6>{1, 8, 9, 40, 256, 300}[calls() % 6];
    const int tag = static_cast<int>(calls() % 2), root = static_cast<int>(calls() % 2);
    const auto kind = calls() % 6;
    for (auto spin = own() % 4 == 0 ? own() % 3000 : 0; spin > 0; --spin)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    const std::vector<int> mine(n, value(me)), next(n, value(me, 1));
    std::vector<int> theirs(n, -1), older(n, -1);
    const auto expect = [&](const std::vector<int>& got, int expected) {
      for (const int each : got) wrong += each != expected;
    };
    switch (kind) {
      case 0:  // one message
        if (me == root)
          distx::send(comm, mine, peer, tag);
        else
          distx::receive(comm, theirs, peer, tag);
        if (me != root) expect(theirs, value(peer));
        break;
      case 1:  // an exchange while one rank awaits an older message with the same tag
        if (me == root) {
          distx::send_receive(comm, mine, peer, theirs, peer, tag);
          distx::send(comm, next, peer, tag);
          expect(theirs, value(peer));
        } else {
          auto pending = distx::start_receive(comm, older, peer, tag);
          distx::send_receive(comm, mine, peer, theirs, peer, tag);
          pending.wait();
          expect(older, value(peer));
          expect(theirs, value(peer, 1));
        }
        break;
      case 2:  // an exchange of one rank, two messages of the other
        if (me == root) {
          distx::send_receive(comm, mine, peer, theirs, peer, tag);
        } else {
          auto pending = distx::start_send(comm, mine, peer, tag);
          distx::receive(comm, theirs, peer, tag);
          pending.wait();
        }
        expect(theirs, value(peer));
        break;
      default:
        distx::send_receive(comm, mine, peer, theirs, peer, tag);
        expect(theirs, value(peer));
    }
  }
  return wrong;
}

TEST_CASE("two receives with one tag get the messages in the order in which they were sent") {
  distx::spawn(distx::threads(2, 4min), [](distx::ThreadConnector& connector) {
    Comm comm(connector, 1min);
    std::mt19937 own(static_cast<unsigned>(comm.rank()));
    std::vector<int> first(256), second(256);  // long enough that the receives are often posted while one is stored
    int wrong = 0;
    for (int call = 0; call < 100000; ++call) {
      distx::barrier(comm);
      for (auto spin = own() % 300; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
      if (comm.rank() == 0) {
        std::fill(first.begin(), first.end(), 2 * call);
        std::fill(second.begin(), second.end(), 2 * call + 1);
        distx::send(comm, first, 1);
        distx::send(comm, second, 1);
      } else {
        auto pending = distx::start_receive(comm, first, 0);
        distx::receive(comm, second, 0);
        pending.wait();
        wrong += first[0] != 2 * call || second[0] != 2 * call + 1;
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("exchanges among other messages, after which a rank leaves at once, receive what was sent") {
  distx::spawn(distx::threads(2, 4min), [](distx::ThreadConnector& connector) {
    for (unsigned seed = 0; seed < 150; ++seed) {
      Comm comm(connector, 1min);
      CHECK(wrong_values(comm, seed) == 0);
    }
  });
}

}  // namespace

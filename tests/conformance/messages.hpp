// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>

#include "conformance/movement.hpp"

// Messages between two ranks, asynchronous calls completed in any order, and the barrier.
namespace conformance {

/// Messages from one sender match in the order in which they are sent, regardless of the order of the waits.
template <class T, class C>
void check_order(C& comm, Findings& findings, std::size_t size, const std::string& what) {
  const int right = (comm.rank() + 1) % comm.size();
  const int left = (comm.rank() + comm.size() - 1) % comm.size();
  const auto first = pattern<T>(size, comm.rank(), right, 10), second = pattern<T>(size, comm.rank(), right, 11);
  std::vector<T> got_first(size), got_second(size);
  auto sent_first = distx::start_send(comm, first, right);
  auto sent_second = distx::start_send(comm, second, right);
  auto received_first = distx::start_receive(comm, got_first, left);
  auto received_second = distx::start_receive(comm, got_second, left);
  received_second.wait();
  received_first.wait();
  sent_second.wait();
  sent_first.wait();
  findings.same(got_first, pattern<T>(size, left, comm.rank(), 10), "first of two messages" + what);
  findings.same(got_second, pattern<T>(size, left, comm.rank(), 11), "second of two messages" + what);
}

template <class T, class C>
void check_messages(C& comm, Findings& findings, std::size_t size, bool tags) {
  const auto tag = [tags](int number) { return tags ? number : 0; };
  const std::string what = " of " + std::string(name_of(distx::element_type<T>)) + ", size " + std::to_string(size);
  const int right = (comm.rank() + 1) % comm.size();
  const int left = (comm.rank() + comm.size() - 1) % comm.size();
  const auto to_right = pattern<T>(size, comm.rank(), right, 6);
  const auto from_left = pattern<T>(size, left, comm.rank(), 6);

  std::vector<T> receive(size);
  distx::send_receive(comm, to_right, right, receive, left);
  findings.same(receive, from_left, "send_receive around a ring" + what);
  receive.assign(size, T{});
  distx::send_receive(comm, to_right, comm.rank(), receive, comm.rank(), tag(3));
  findings.same(receive, to_right, "send_receive with oneself" + what);
  auto pending = distx::start_send_receive(comm, to_right, right, receive, left, tag(4));
  pending.wait();
  findings.same(receive, from_left, "started send_receive" + what);

  // A chain of blocking calls in which every rank waits for rank 0.
  receive.assign(size, T{});
  const auto chained = pattern<T>(size, 0, 0, 7);
  if (comm.rank() == 0)
    receive = chained;
  else
    distx::receive(comm, receive, left, tag(5));
  if (comm.rank() + 1 < comm.size()) distx::send(comm, receive, right, tag(5));
  findings.same(receive, chained, "send and receive in a chain" + what);

  // A self-send whose receive is started first.
  std::vector<T> from_me(size);
  auto awaited = distx::start_receive(comm, from_me, comm.rank(), tag(8));
  distx::send(comm, to_right, comm.rank(), tag(8));
  awaited.wait();
  findings.same(from_me, to_right, "send to oneself" + what);

  check_order<T>(comm, findings, size, what);
  if (!tags) return;
  // Messages from one sender match by tag, and in order within a tag.
  const auto message = [&](int source, int destination, std::size_t number) {
    return pattern<T>(size, source, destination, 10 + number);
  };
  const auto first = message(comm.rank(), right, 0), second = message(comm.rank(), right, 1);
  const auto third = message(comm.rank(), right, 2);
  auto sent_first = distx::start_send(comm, first, right, 1);
  auto sent_second = distx::start_send(comm, second, right, 2);
  auto sent_third = distx::start_send(comm, third, right, 1);
  std::vector<T> got_first(size), got_second(size), got_third(size);
  distx::receive(comm, got_second, left, 2);
  auto received_first = distx::start_receive(comm, got_first, left, 1);
  auto received_third = distx::start_receive(comm, got_third, left, 1);
  received_third.wait();
  received_first.wait();
  sent_third.wait();
  sent_first.wait();
  sent_second.wait();
  findings.same(got_first, message(left, comm.rank(), 0), "first of two messages of one tag" + what);
  findings.same(got_second, message(left, comm.rank(), 1), "message of another tag" + what);
  findings.same(got_third, message(left, comm.rank(), 2), "second of two messages of one tag" + what);
}

struct EveryMessage {
  bool tags;

  template <class C>
  void operator()(C& comm, Findings& findings) const {
    for (const std::size_t size : sizes) check_messages<float>(comm, findings, size, tags);
    check_messages<std::int8_t>(comm, findings, 7, tags);
    check_messages<distx::bfloat16>(comm, findings, 1024, tags);
    check_messages<double>(comm, findings, 1024, tags);
  }
};

/// Starts all calls, waits for them last to first, and makes blocking calls in between.
struct InFlight {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    const auto ranks = static_cast<std::size_t>(comm.size());
    const int me = comm.rank(), last = comm.size() - 1;
    constexpr std::size_t size = 1000;
    const auto whole = size * ranks;
    const auto mine = repeated(operands<float>(reference_sum, me), whole);
    const auto total = results<float>(reference_sum, comm.size());
    const auto counts = std::vector<std::size_t>(ranks, size);
    const Blocks<float> blocks(9, comm.size(), counts);

    std::vector<float> reduced(whole), rooted(whole), scattered(size), gathered(whole), exchanged(whole);
    std::vector<float> rank_0_gets(whole), part(size), from_left(size), blocking(whole);
    auto told = me == last ? pattern<float>(size, last) : std::vector<float>(size);
    const auto to_gather = blocks.block(me, 0, size);
    const auto to_exchange = blocks.to_all(me);
    const auto to_right = pattern<float>(size, me);

    auto all_reduced = distx::start_all_reduce(comm, mine, reduced, distx::sum);
    auto root_reduced = distx::start_reduce(comm, mine, rooted, distx::sum, last);
    auto reduce_scattered = distx::start_reduce_scatter(comm, mine, scattered, distx::sum);
    auto broadcasted = distx::start_broadcast(comm, told, last);
    const int left = (me + last) % comm.size();
    auto message = distx::start_send_receive(comm, to_right, (me + 1) % comm.size(), from_left, left);
    auto all_gathered = distx::start_all_gather(comm, to_gather, gathered);
    auto all_exchanged = distx::start_all_to_all(comm, to_exchange, exchanged);
    auto root_gathered = distx::start_gather(comm, to_gather, rank_0_gets, 0);
    auto root_scattered = distx::start_scatter(comm, to_exchange, part, last);
    auto met = distx::start_barrier(comm);
    distx::all_reduce(comm, mine, blocking, distx::sum);
    met.wait();
    root_scattered.wait();
    root_gathered.wait();
    all_exchanged.wait();
    all_gathered.wait();
    distx::barrier(comm);
    message.wait();
    broadcasted.wait();
    reduce_scattered.wait();
    root_reduced.wait();
    all_reduced.wait(distx::HostStream{});

    findings.same(blocking, repeated(total, whole), "blocking all_reduce amid asynchronous calls");
    findings.same(reduced, repeated(total, whole), "all_reduce in flight");
    if (me == last) findings.same(rooted, repeated(total, whole), "reduce in flight");
    findings.same(scattered, repeated(total, size, size * static_cast<std::size_t>(me)), "reduce_scatter in flight");
    findings.same(told, pattern<float>(size, last), "broadcast in flight");
    findings.same(from_left, pattern<float>(size, left), "send_receive in flight");
    findings.same(gathered, blocks.from_all(0), "all_gather in flight");
    findings.same(exchanged, blocks.from_all(me), "all_to_all in flight");
    if (me == 0) findings.same(rank_0_gets, blocks.from_all(0), "gather in flight");
    findings.same(part, blocks.block(last, me, size), "scatter in flight");
  }
};

/// The contract of a Pending: `test` becomes true, a second wait does nothing, the destructor waits.
struct Pendings {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    std::vector<float> values(100, 1.0f);
    const std::vector<float> expected(100, static_cast<float>(comm.size()));
    auto pending = distx::start_all_reduce(comm, values, distx::sum);
    const distx::Deadline deadline(std::chrono::minutes(1));
    while (!pending.test() && !deadline.expired()) std::this_thread::yield();
    findings.expect(pending.test(), "test() does not come true");
    pending.wait();
    pending.wait();
    findings.expect(pending.test(), "a Pending waited for is done");
    findings.same(values, expected, "all_reduce that was tested");

    values.assign(100, 1.0f);
    { auto abandoned = distx::start_all_reduce(comm, values, distx::sum); }
    findings.same(values, expected, "all_reduce let go");

    values.assign(100, 1.0f);
    std::vector<float> others(100, 1.0f);
    auto first = distx::start_all_reduce(comm, values, distx::sum);
    auto second = std::move(first);
    first.wait();
    findings.expect(first.test(), "a Pending moved from is done");
    second = distx::start_all_reduce(comm, others, distx::sum);
    findings.same(values, expected, "all_reduce whose Pending was assigned to");
    second.wait();
    findings.same(others, expected, "all_reduce assigned to a Pending");
    decltype(second) empty;
    empty.wait();
    findings.expect(empty.test(), "an empty Pending is done");
  }
};

/// No rank leaves a barrier before every rank has entered it.
struct Barriers {
  bool one_process;
  /// The number of barriers entered by all ranks in this process, by number of ranks.
  std::array<std::atomic<int>, 16>& come;

  template <class C>
  void operator()(C& comm, Findings& findings) const {
    constexpr int rounds = 50;
    auto& counter = come[static_cast<std::size_t>(comm.size())];
    for (int round = 1; round <= rounds; ++round) {
      ++counter;
      distx::barrier(comm);
      if (one_process) findings.expect(counter >= round * comm.size(), "a barrier passed too early");
    }
    // Rank 0 enters this barrier after all other ranks have reported that they are still waiting.
    int early = 0;
    if (comm.rank() != 0) {
      auto pending = distx::start_barrier(comm);
      for (int look = 0; look < 20; ++look) early += pending.test() ? 1 : 0;
      distx::send(comm, early, 0);
      pending.wait();
    } else {
      for (int other = 1; other < comm.size(); ++other) {
        distx::receive(comm, early, other);
        findings.expect(early == 0, "a started barrier done too early on rank " + std::to_string(other));
      }
      auto pending = distx::start_barrier(comm);
      pending.wait();
    }
  }
};

}  // namespace conformance

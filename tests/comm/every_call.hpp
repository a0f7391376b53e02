// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "allocations.hpp"
#include "distx/distx.hpp"

namespace test {

/// Makes every kind of call on a communicator, blocking and asynchronous, with the same buffers each time.
template <class C>
class EveryCall {
 public:
  EveryCall(C& comm, std::size_t elements)
      : comm_(comm),
        ranks_(static_cast<std::size_t>(comm.size())),
        x_(elements),
        y_(elements),
        all_(elements * ranks_),
        all_too_(all_),
        narrow_(elements),
        counts_(ranks_, elements) {}

  void operator()() {
    block();
    start();
    const int next = (comm_.rank() + 1) % comm_.size(), previous = (comm_.rank() + comm_.size() - 1) % comm_.size();
    send_first(next, previous);
    receive_first(next, previous);
  }

 private:
  struct Largest {
    static constexpr bool commutative = true;
    float operator()(float a, float b) const { return a < b ? b : a; }
  };

  void block() {
    distx::barrier(comm_);
    distx::all_reduce(comm_, x_, y_, distx::sum);
    distx::all_reduce(comm_, x_, distx::average);
    distx::all_reduce(comm_, x_, Largest{});
    distx::all_reduce(comm_, narrow_, distx::sum);
    distx::reduce(comm_, x_, y_, distx::sum, 0);
    distx::broadcast(comm_, x_, 0);
    distx::all_gather(comm_, x_, all_);
    distx::all_gather(comm_, x_, all_, counts_);
    distx::reduce_scatter(comm_, all_, x_, distx::sum);
    distx::reduce_scatter(comm_, all_, x_, distx::sum, counts_);
    distx::all_to_all(comm_, all_, all_);
    distx::all_to_all(comm_, all_, all_too_, counts_, counts_);
    distx::gather(comm_, x_, all_, 0);
    distx::scatter(comm_, all_, x_, 0);
  }
  void start() {
    const std::array pending{distx::start_barrier(comm_),
                             distx::start_all_reduce(comm_, narrow_, distx::average),
                             distx::start_all_reduce(comm_, x_, Largest{}),
                             distx::start_reduce(comm_, x_, y_, distx::sum, 0),
                             distx::start_broadcast(comm_, x_, 0),
                             distx::start_all_gather(comm_, x_, all_, counts_),
                             distx::start_reduce_scatter(comm_, all_, x_, distx::sum),
                             distx::start_all_to_all(comm_, all_, all_too_),
                             distx::start_gather(comm_, x_, all_, 0),
                             distx::start_scatter(comm_, all_, x_, 0)};
  }
  /// Every message waits for its receive.
  void send_first(int next, int previous) {
    const auto sent = distx::start_send(comm_, x_, next), second = distx::start_send(comm_, x_, next, 1);
    distx::barrier(comm_);
    distx::receive(comm_, y_, previous);
    distx::start_receive(comm_, y_, previous, 1).wait();
  }
  /// Every receive waits for its message.
  void receive_first(int next, int previous) {
    const auto received = distx::start_receive(comm_, y_, previous);
    distx::barrier(comm_);
    distx::send(comm_, x_, next);
    distx::send_receive(comm_, x_, next, y_, previous, 2);
    distx::start_send_receive(comm_, x_, next, y_, previous, 2).wait();
  }

  C& comm_;
  std::size_t ranks_;
  std::vector<float> x_, y_, all_, all_too_;
  std::vector<distx::bfloat16> narrow_;
  std::vector<std::size_t> counts_;
};

/// Returns how often the ranks of this process allocate while every call is repeated: the least of some rounds, because
/// more messages than before may be in flight in one. Collective.
template <class C>
long allocations_of_repeated_calls(C& comm) {
  EveryCall small(comm, 2), large(comm, 50000);
  const auto everything = [&] {
    small();
    large();
    distx::barrier(comm);
  };
  everything();
#if !DISTX_TESTS_SANITIZED
  if (allocations == 0) return -1;  // they are not counted
#endif
  long least = std::numeric_limits<long>::max();
  for (int round = 0; round < 6; ++round) {
    distx::barrier(comm);
    const long before = allocations;
    distx::barrier(comm);
    for (int i = 0; i < 3; ++i) everything();
    const long after = allocations;
    distx::barrier(comm);
    least = std::min(least, after - before);
  }
  return least;
}

}  // namespace test

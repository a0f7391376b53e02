// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cost of the flight recorder: all-reduces with and without it, in alternating batches, so that load affects both
// alike. With one rank nothing waits, so the difference is what recording a call takes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include <distx/comm.hpp>
#include <distx/observe/flight_recorder.hpp>

namespace {

void compare(int ranks, std::size_t bytes, int calls, int batches) {
  distx::spawn(distx::threads(ranks, std::chrono::minutes(5)), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    std::vector<float> send(bytes / sizeof(float), 1.0f), receive(send.size());
    const auto batch = [&](bool records) {
      distx::barrier(comm);
      if (comm.rank() == 0) distx::flight::configure({.enabled = records});
      distx::barrier(comm);
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) distx::all_reduce(comm, send, receive, distx::sum);
      return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
    };
    std::vector<double> without, with;
    for (int round = 0; round < batches; ++round) {
      const double first = batch(round % 2 == 0), second = batch(round % 2 != 0);
      with.push_back(round % 2 == 0 ? first : second);
      without.push_back(round % 2 == 0 ? second : first);
    }
    if (comm.rank() != 0) return;
    const double least_with = *std::min_element(with.begin(), with.end());
    const double least_without = *std::min_element(without.begin(), without.end());
    std::printf("%d rank(s), %zu B: %.1f ns a call without the flight recorder, %.1f ns with it, %.3f times as long\n",
                ranks, bytes, least_without, least_with, least_with / least_without);
  });
}

}  // namespace

int main() {
  compare(1, 8, 20000, 41);
  compare(2, 8, 20000, 41);
  compare(2, 25 << 20, 3, 11);
}

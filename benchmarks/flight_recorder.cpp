// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cost of the flight recorder: all-reduces of processes over shared memory with and without it, in alternating
// batches, so that load affects both alike. With one rank nothing waits, so the difference is what recording a call
// takes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include <distx/comm.hpp>
#include <distx/file.hpp>
#include <distx/observe/flight_recorder.hpp>
#include <distx/shm.hpp>

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void compare(int ranks, std::size_t bytes, int calls, int batches) {
  distx::spawn_processes(ranks, [&](distx::FileConnector& connector) {
    distx::ShmCommunicator comm(connector);
    std::vector<float> send(bytes / sizeof(float), 1.0f), receive(send.size());
    const auto batch = [&](bool records) {
      distx::flight::configure({.enabled = records});
      distx::barrier(comm);
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) distx::all_reduce(comm, send, receive, distx::sum);
      return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
    };
    std::vector<double> without, with, ratios;
    for (int round = 0; round < batches; ++round) {
      const double first = batch(round % 2 == 0), second = batch(round % 2 != 0);
      with.push_back(round % 2 == 0 ? first : second);
      without.push_back(round % 2 == 0 ? second : first);
      ratios.push_back(with.back() / without.back());
    }
    if (comm.rank() != 0) return;
    std::printf(
        "%d rank(s), %zu B: %.1f ns a call without the flight recorder, %.1f ns with it, %.3f times as long "
        "(medians of %d pairs)\n",
        ranks, bytes, median(without), median(with), median(ratios), batches);
  });
}

}  // namespace

int main() {
  compare(1, 8, 20000, 201);
  compare(2, 8, 20000, 401);
  compare(2, 25 << 20, 3, 101);
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A rank over TCP that attack_net.py attacks: besieged PORT RANK SIZE DEADLINE SECONDS FILES. It knows DISTX_TOKEN, may
// open FILES files, and makes calls for some seconds.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <distx/distx.hpp>
#include <distx/tcp.hpp>

int main(int argc, char** argv) {
  using clock = std::chrono::steady_clock;
  using seconds = std::chrono::duration<double>;
  if (argc != 7) return 2;
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  const rlimit limit{static_cast<rlim_t>(number(6)), static_cast<rlim_t>(number(6))};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  auto began = clock::now();
  double slowest = 0;
  const auto measured = [&] {
    const auto now = clock::now();
    slowest = std::max(slowest, seconds(now - began).count());
    return now;
  };
  try {
    distx::TcpConnector connector("127.0.0.1", number(1), number(2), number(3), {.deadline = seconds(number(4))});
    const auto end = measured() + std::chrono::seconds(number(5));
    const int rank = connector.rank(), size = connector.size();
    for (bool more = true; more;) {
      began = clock::now();
      more = distx::broadcast_value(connector, began < end, 0);
      const auto ranks = distx::all_gather_values(connector, rank);
      for (int r = 0; r < size; ++r)
        if (ranks[static_cast<std::size_t>(r)] != r) return 3;
      (void)measured();
    }
    std::printf("right, slowest %.2f s\n", slowest);
    return 0;
  } catch (const distx::Error& error) {
    (void)measured();
    std::printf("error, slowest %.2f s: %s\n", slowest, error.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The number of ranks of a large job.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <iostream>

#include "connect/in_folder.hpp"
#include "connect/over_tcp.hpp"
#include "needs.hpp"

namespace {

constexpr int ranks = 1000;

/// Raises this process's limit of open files; returns whether the system permits it.
bool may_open(rlim_t count) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_max < count) return false;
  files.rlim_cur = std::max(files.rlim_cur, count);
  return ::setrlimit(RLIMIT_NOFILE, &files) == 0;
}

TEST_CASE("a thousand ranks join over TCP with a token" *
          test::Needs("a limit of 3000 open files or more", [] { return may_open(3 * ranks); })) {
  const auto began = std::chrono::steady_clock::now();
  std::chrono::duration<double> joined{};
  const auto messages = test::each_over_tcp(ranks,
                                            [&](distx::TcpConnector& connector) {
                                              if (connector.rank() == 0)
                                                joined = std::chrono::steady_clock::now() - began;
                                              connector.barrier();
                                            },
                                            {.deadline = std::chrono::seconds(60), .token = "secret"});
  CHECK(messages == std::vector<std::string>(ranks));
  std::cout << ranks << " ranks joined in " << joined.count() << " s\n";
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// As many ranks as a large job has.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <iostream>

#include "connect/in_folder.hpp"
#include "connect/over_tcp.hpp"

TEST_CASE("a thousand ranks join over TCP with a token") {
  constexpr int ranks = 1000;
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  if (files.rlim_max < 3 * ranks) {
    std::cout << "skipped: a process may open only " << files.rlim_max << " files" << std::endl;
    return;
  }
  files.rlim_cur = std::max<rlim_t>(files.rlim_cur, 3 * ranks);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
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

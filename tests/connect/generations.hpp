// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "distx/connect/connector.hpp"

// Connectors of other ranks than those that began.
namespace test {

/// Checks that a connector has these ranks of an earlier one, of which this rank was `rank`.
template <class C>
void check_ranks(C& connector, int rank, const std::vector<int>& expected) {
  CHECK(distx::all_gather_values(connector, rank) == expected);
  CHECK(connector.size() == static_cast<int>(expected.size()));
  CHECK(expected[static_cast<std::size_t>(connector.rank())] == rank);
  CHECK(distx::broadcast_value(connector, rank, connector.size() - 1) == expected.back());
  connector.barrier();
}

/// Runs `body(rank)` in a process for each rank, which exits with what that returns; returns how they end.
inline std::vector<int> forked(int ranks, const std::function<int(int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int status = 1;
    try {
      status = body(rank);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    ::_exit(status);
  }
  std::vector<int> statuses(children.size());
  for (std::size_t rank = 0; rank < children.size(); ++rank) ::waitpid(children[rank], &statuses[rank], 0);
  return statuses;
}

}  // namespace test

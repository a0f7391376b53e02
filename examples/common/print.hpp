// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <distx/distx.hpp>

namespace examples {

/// Prints every rank's line in rank order, from rank 0, so that lines do not interleave. Collective.
template <distx::Communicator C>
void print_in_order(C& comm, const std::string& line) {
  const std::size_t mine = line.size();
  std::vector<std::size_t> counts(static_cast<std::size_t>(comm.size()));
  distx::all_gather(comm, mine, counts);
  std::string all;
  if (comm.rank() == 0)
    for (const auto count : counts) all.append(count, ' ');
  distx::gather(comm, line, all, 0, counts);
  std::size_t begin = 0;
  for (const auto count : counts) {
    if (comm.rank() == 0) fmt::print("{}\n", all.substr(begin, count));
    begin += count;
  }
}

}  // namespace examples

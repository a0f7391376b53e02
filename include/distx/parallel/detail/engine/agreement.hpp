// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"

namespace distx::detail {

/// What every rank believes to be the same on all ranks, line by line; compared so that it need not be believed.
struct Belief {
  std::vector<std::string> lines;
};

/// Throws on every rank the same sentence where the ranks' lines differ: the first line that does, and two ranks'
/// version of it. Collective.
/// @throws MismatchError
template <MemorySpace Space>
void demand_agreement(AnyCommunicator<Space>& comm, const Belief& belief, const ErrorContext& context) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::uint64_t> hashes;
  for (const auto& line : belief.lines) hashes.push_back(fnv1a(line));
  const std::uint64_t mine[2] = {hashes.size(), fnv1a(hashes)};
  std::vector<std::uint64_t> heads(2 * ranks);
  all_gather_values(comm, mine, Span<std::uint64_t>(heads), context.location);
  std::size_t most = 0;
  bool same = true;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    most = std::max(most, static_cast<std::size_t>(heads[2 * rank]));
    same = same && heads[2 * rank] == heads[0] && heads[2 * rank + 1] == heads[1];
  }
  if (same) return;

  hashes.resize(most, 0);
  std::vector<std::uint64_t> all(most * ranks);
  all_gather_values(comm, hashes, Span<std::uint64_t>(all), context.location);
  std::size_t line = 0;
  std::size_t other = 0;
  for (; line < most; ++line) {
    for (std::size_t rank = 1; rank < ranks && other == 0; ++rank)
      if (all[rank * most + line] != all[line]) other = rank;
    if (other != 0) break;
  }
  constexpr std::size_t longest = 240;
  std::vector<char> text(longest, '\0');
  if (line < belief.lines.size())
    belief.lines[line].copy(text.data(), longest - 1);
  else
    std::string("nothing").copy(text.data(), longest - 1);
  std::vector<char> texts(longest * ranks);
  all_gather_values(comm, text, Span<char>(texts), context.location);
  const auto version = [&](std::size_t rank) {
    return "rank " + std::to_string(rank) + " has " + (texts.data() + rank * longest);
  };
  throw MismatchError((line == 0 ? "the options differ: " : "parameter " + std::to_string(line - 1) + " differs: ") +
                          version(0) + "; " + version(other) + "; build the same training on every rank",
                      context);
}

}  // namespace distx::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"

namespace distx::inline DISTX_ABI::detail {

/// What must be the same on all ranks, item by item: the name of each, and its value as text.
struct ConsistencyRecord {
  std::vector<std::string> names;
  std::vector<std::string> values;

  void add(std::string name, std::string value) {
    names.push_back(std::move(name));
    values.push_back(std::move(value));
  }
};

/// Compares the ranks' records. Collective over `comm`.
/// @param advice  what to do, as the end of the message
/// @throws MismatchError on every rank, with the first item that differs and two ranks' values of it
template <MemorySpace Space>
void check_consistency(AnyCommunicator<Space>& comm, const ConsistencyRecord& record, const char* advice,
                       const ErrorContext& context) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < record.names.size(); ++i)
    hashes.push_back(fnv1a(record.names[i] + "\n" + record.values[i]));
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
  std::size_t item = 0;
  std::size_t other = 0;
  for (; item < most; ++item) {
    for (std::size_t rank = 1; rank < ranks && other == 0; ++rank)
      if (all[rank * most + item] != all[item]) other = rank;
    if (other != 0) break;
  }
  constexpr std::size_t longest = 240;
  const auto gather_text = [&](const std::string& text) {
    std::vector<char> own(longest, '\0');
    text.copy(own.data(), longest - 1);
    std::vector<char> texts(longest * ranks);
    all_gather_values(comm, own, Span<char>(texts), context.location);
    return texts;
  };
  const bool has = item < record.names.size();
  const auto names = gather_text(has ? record.names[item] : "");
  const auto values = gather_text(has ? record.values[item] : "nothing");
  const auto at = [&](const std::vector<char>& texts, std::size_t rank) {
    return std::string(texts.data() + rank * longest);
  };
  const std::string name = at(names, at(names, 0).empty() ? other : 0);
  throw AgreedMismatch(name + " differs: rank 0 has " + at(values, 0) + "; rank " + std::to_string(other) + " has " +
                           at(values, other) + "; " + advice,
                       context);
}

}  // namespace distx::inline DISTX_ABI::detail

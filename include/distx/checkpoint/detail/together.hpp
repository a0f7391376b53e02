// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"

// Collectives of the ranks of a checkpoint.
namespace distx::inline DISTX_ABI::checkpoint::detail {

/// Returns every rank's number. Collective.
template <MemorySpace Space>
[[nodiscard]] std::vector<std::uint64_t> gather_numbers(AnyCommunicator<Space>& comm, std::uint64_t mine,
                                                        const std::source_location& location) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()), mine);
  if (comm.size() > 1)
    distx::detail::all_gather_values(comm, Span<const std::uint64_t>(&mine, 1), Span<std::uint64_t>(all), location);
  return all;
}

/// Checks that all ranks have the same number. Collective.
/// @param difference  the message after "rank 0 and rank N "
/// @throws MismatchError on every rank if the ranks' numbers differ
template <MemorySpace Space>
void check_equal(AnyCommunicator<Space>& comm, std::uint64_t mine, const std::string& difference,
                 const ErrorContext& context) {
  const auto all = gather_numbers(comm, mine, context.location);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0]) throw MismatchError("rank 0 and rank " + std::to_string(rank) + " " + difference, context);
}

/// Returns every rank's text. Collective.
template <MemorySpace Space>
[[nodiscard]] std::vector<std::string> gather_texts(AnyCommunicator<Space>& comm, std::string mine,
                                                    const std::source_location& location) {
  if (comm.size() == 1) return {std::move(mine)};
  const auto sizes = gather_numbers(comm, mine.size(), location);
  const auto most = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<std::string> texts(sizes.size());
  if (most == 0) return texts;
  mine.resize(most);
  std::vector<char> all(most * sizes.size());
  distx::detail::all_gather_values(comm, Span<const char>(mine.data(), most), Span<char>(all), location);
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    texts[rank].assign(all.data() + rank * most, static_cast<std::size_t>(sizes[rank]));
  return texts;
}

/// Calls `f`, which communicates nothing, on every rank. Collective.
/// @throws CheckpointError on every rank, with the first failed rank's message and code, if `f` throws on some rank
template <MemorySpace Space, class F>
void on_every_rank(AnyCommunicator<Space>& comm, const ErrorContext& context, F&& f) {
  std::string wrong;
  std::uint64_t code = 0;  // of the system in the upper half; 0 if nothing is wrong
  try {
    f();
  } catch (const Error& error) {
    wrong = error.message();
    code = std::uint64_t{static_cast<std::uint32_t>(error.code())} << 32 | 1;
  } catch (const std::exception& error) {
    wrong = error.what();
    code = 1;
  }
  const auto codes = gather_numbers(comm, code, context.location);
  const auto first = std::find_if(codes.begin(), codes.end(), [](std::uint64_t each) { return each != 0; });
  if (first == codes.end()) return;
  const auto texts = gather_texts(comm, wrong, context.location);
  const auto rank = static_cast<std::size_t>(first - codes.begin());
  throw CheckpointError((comm.size() == 1 ? "" : "rank " + std::to_string(rank) + ": ") + texts[rank], context,
                        static_cast<int>(*first >> 32));
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail

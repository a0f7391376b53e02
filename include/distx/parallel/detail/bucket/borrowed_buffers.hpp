// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/detail/bucket/flat_buffer.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Borrowed gradients of at most this many bytes are packed into one message: two copies cost less than a message.
inline constexpr std::size_t packed_gradient_bytes = 65536;

/// Returns which entries directly follow the entry before them in memory, on every rank: one message then moves both.
///
/// @param with_values  whether weights must be adjacent too, because they are gathered. Collective over `comm`.
template <MemorySpace Space>
[[nodiscard]] std::vector<std::uint8_t> find_adjacent(AnyCommunicator<Space>& comm,
                                                      const std::vector<ParameterEntry<Space>>& entries,
                                                      bool with_values, const std::source_location& location) {
  const auto meets = [](Span<AnyElement, Space> a, Span<AnyElement, Space> b) {
    return a.bytes() + a.size_bytes() == b.bytes();
  };
  std::vector<std::uint8_t> adjacent(entries.size());
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const auto &a = entries[i - 1], &b = entries[i];
    if (a.owned || b.owned || !a.trained() || !b.trained() || a.type() != b.type()) continue;
    adjacent[i] = meets(a.gradient, b.gradient) && (!with_values || meets(a.value, b.value)) ? 1 : 0;
  }
  if (comm.size() > 1 && !entries.empty()) all_reduce_values(comm, Span<std::uint8_t>(adjacent), min, location);
  return adjacent;
}

/// Returns the flat buffers of a borrowed bucket: large and adjacent parameters in place, and one packed buffer for the
/// small ones, whose memory is allocated later.
template <MemorySpace Space>
[[nodiscard]] std::vector<FlatBuffer<Space>> borrowed_buffers(const std::vector<ParameterEntry<Space>>& entries,
                                                              const std::vector<std::size_t>& members,
                                                              const std::vector<std::uint8_t>& adjacent,
                                                              bool with_values, int parts) {
  std::vector<FlatBuffer<Space>> buffers;
  std::vector<std::size_t> small;
  const auto add = [&](const std::vector<std::size_t>& together) -> FlatBuffer<Space>& {
    FlatBuffer<Space>& buffer = buffers.emplace_back();
    buffer.layout = lay_out(entries, together, 1, parts);
    return buffer;
  };
  const auto in_place = [&](const std::vector<std::size_t>& together) {
    FlatBuffer<Space>& buffer = add(together);
    const auto over = [&](Span<AnyElement, Space> first) {
      return Span<AnyElement, Space>(first.data(), buffer.layout.size, first.type(), first.element_bytes());
    };
    const auto& first = entries[together.front()];
    buffer.gradient = over(first.gradient);
    if (with_values) buffer.value = over(first.value);
  };
  for (std::size_t end = members.size(); end > 0;) {  // members descend; memory ascends
    std::vector<std::size_t> together{members[--end]};
    std::size_t bytes = entries[together.back()].bytes();
    while (end > 0 && members[end - 1] == together.back() + 1 && adjacent[members[end - 1]] != 0) {
      together.push_back(members[--end]);
      bytes += entries[together.back()].bytes();
    }
    if (bytes > packed_gradient_bytes || parts == 1)
      in_place(together);
    else
      small.insert(small.end(), together.begin(), together.end());
  }
  if (small.size() == 1)
    in_place(small);
  else if (!small.empty())
    add(small).packed = true;
  return buffers;
}

}  // namespace distx::inline DISTX_ABI::detail

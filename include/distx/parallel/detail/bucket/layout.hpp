// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/bucket/cut.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx::detail {

/// Where one parameter lies in a run of them.
struct PlaceOf {
  std::size_t entry = 0;
  std::size_t begin = 0;
  std::size_t size = 0;
};

/// A part of one parameter: what a rank updates.
struct Piece {
  std::size_t entry = 0;
  std::size_t offset = 0;  ///< in the parameter
  std::size_t at = 0;      ///< in the run
  std::size_t size = 0;
};

/// Parameters of one type side by side, and how the ranks share them. In elements.
struct Layout {
  ElementType type{};
  std::size_t element_bytes = 1;
  std::size_t size = 0;  ///< padding included
  std::vector<PlaceOf> places{};
  Cut cut{};

  [[nodiscard]] std::size_t bytes() const noexcept { return size * element_bytes; }

  /// What of [begin, end) belongs to parameters.
  [[nodiscard]] std::vector<Piece> pieces(std::size_t begin, std::size_t end) const {
    std::vector<Piece> found;
    for (const auto& place : places) {
      const std::size_t from = std::max(begin, place.begin), to = std::min(end, place.begin + place.size);
      if (from < to) found.push_back({place.entry, from - place.begin, from, to - from});
    }
    return found;
  }
  template <MemorySpace Space>
  [[nodiscard]] Span<AnyElement, Space> over(Span<std::byte, Space> memory) const noexcept {
    return {memory.data(), size, type, element_bytes};
  }
};

/// The members side by side in their order, each on a boundary of `alignment` bytes: of lines, which may be padded, or
/// as they lie in memory of a user's.
/// @pre members has at least one, all of one type
template <MemorySpace Space>
[[nodiscard]] Layout lay_out(const std::vector<Entry<Space>>& entries, const std::vector<std::size_t>& members,
                             std::size_t alignment, int parts) {
  Layout layout;
  layout.type = entries[members.front()].type();
  layout.element_bytes = entries[members.front()].element_bytes();
  const std::size_t step = std::max<std::size_t>(1, alignment / layout.element_bytes);
  for (const auto member : members) {
    layout.places.push_back({member, layout.size, entries[member].size()});
    layout.size = (layout.size + entries[member].size() + step - 1) / step * step;
  }
  if (!HostAccessible<Space> && alignment == alignment_bytes) {
    // A GPU's communicator moves equal parts by its own calls, and others message by message.
    const std::size_t lines =
        std::max<std::size_t>(1, alignment_bytes / layout.element_bytes) * static_cast<std::size_t>(parts);
    layout.size = (layout.size + lines - 1) / lines * lines;
  }
  layout.cut = Cut::at_lines(layout.size, layout.element_bytes, parts);
  return layout;
}

}  // namespace distx::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/operations.hpp"
#include "distx/parallel/layout.hpp"
#include "distx/parallel/segment.hpp"

namespace distx::detail {

template <MemorySpace Space>
[[nodiscard]] Span<std::byte, Space> bytes_of(Span<AnyElement, Space> span) noexcept {
  return {span.bytes(), span.size_bytes()};
}

/// Parameters that travel in one message: how they lie in it, and where it is now.
///
/// `gradient` and `value` are whole, and empty while there is no such memory (values that lie scattered have none as a
/// run). Where this rank keeps its part apart from them, that is `own_gradient` and `own_value`. A packed run is a copy of what lies scattered in the user's arrays:
/// first of the gradients, then, once these are used up, of the values.
template <MemorySpace Space>
struct Run {
  Layout layout{};
  Span<AnyElement, Space> gradient{};
  Span<AnyElement, Space> value{};
  Span<AnyElement, Space> own_gradient{};
  Span<AnyElement, Space> own_value{};
  bool gradient_apart = false;
  bool value_apart = false;
  bool packed = false;
  std::size_t state_begin = 0;    ///< of this rank's part, in the optimizer's state
  std::vector<Piece> kept{};      ///< of the part that this rank keeps
  std::vector<Piece> updated{};   ///< what this rank updates: `kept`, or at stage 0 everything

  /// Part `rank` of something as long as the run.
  [[nodiscard]] Span<AnyElement, Space> part(Span<AnyElement, Space> whole, int rank) const noexcept {
    return whole.subspan(layout.cut.begin(rank), layout.cut.size(rank));
  }
  [[nodiscard]] Segment<Space> segment(const Piece& piece, const std::vector<Entry<Space>>& entries,
                                       int rank) const noexcept {
    const auto in = [&](bool apart, Span<AnyElement, Space> own, Span<AnyElement, Space> whole) {
      return apart ? own.subspan(piece.at - layout.cut.begin(rank), piece.size) : whole.subspan(piece.at, piece.size);
    };
    return {piece.entry, piece.offset,
            value_apart ? in(true, own_value, value)
                        : entries[piece.entry].value_now().subspan(piece.offset, piece.size),
            in(gradient_apart, own_gradient, gradient)};
  }

  /// @name Between the user's arrays and a packed run; nothing for others
  /// @{
  void pack_gradients(typename Space::stream stream, const std::vector<Entry<Space>>& entries) const {
    if (!packed) return;
    for (const auto& place : layout.places)
      copy(stream, bytes_of(gradient.subspan(place.begin, place.size)), bytes_of(entries[place.entry].gradient));
  }
  void unpack_gradients(typename Space::stream stream, const std::vector<Entry<Space>>& entries) const {
    if (!packed) return;
    for (const auto& place : layout.places)
      copy(stream, bytes_of(entries[place.entry].gradient), bytes_of(gradient.subspan(place.begin, place.size)));
  }
  /// Of the part that this rank keeps.
  void pack_values(typename Space::stream stream, const std::vector<Entry<Space>>& entries) const {
    if (!packed) return;
    for (const auto& piece : kept)
      copy(stream, bytes_of(gradient.subspan(piece.at, piece.size)),
           bytes_of(entries[piece.entry].value.subspan(piece.offset, piece.size)));
  }
  void unpack_values(typename Space::stream stream, const std::vector<Entry<Space>>& entries) const {
    if (!packed) return;
    for (const auto& place : layout.places)
      copy(stream, bytes_of(entries[place.entry].value), bytes_of(gradient.subspan(place.begin, place.size)));
  }
  /// @}
};

}  // namespace distx::detail

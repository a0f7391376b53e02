// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/operations.hpp"
#include "distx/parallel/detail/bucket/layout.hpp"
#include "distx/parallel/detail/optimizer/typed.hpp"
#include "distx/parallel/segment.hpp"

namespace distx::detail {

template <MemorySpace Space>
[[nodiscard]] Span<std::byte, Space> bytes_of(Span<AnyElement, Space> span) noexcept {
  return {span.bytes(), span.size_bytes()};
}

/// Parameters that travel in one message: how they lie in it, and where it is now.
///
/// `gradient` and `value` are whole, and empty while there is no such memory; values that lie scattered have none as a
/// run. Where this rank keeps its part apart from them, that is `own_gradient` and `own_value`. A packed run is a copy
/// of what lies scattered in the user's arrays: first of the gradients, then, once these are used up, of the values.
template <MemorySpace Space>
struct Run {
  Layout layout{};
  Span<AnyElement, Space> gradient{};
  Span<AnyElement, Space> value{};
  Span<AnyElement, Space> own_gradient{};
  Span<AnyElement, Space> own_value{};
  Span<AnyElement, Space> travel{};  ///< the gradients as they are on the wire, where that is another type
  ElementType wire{};
  bool gradient_apart = false;
  bool value_apart = false;
  bool packed = false;
  std::size_t begin = 0;  ///< of what this rank updates: its part, or at stage 0 everything
  std::size_t size = 0;
  std::vector<Piece> kept{};     ///< of the part that this rank keeps at stages 1 to 3
  std::vector<Piece> updated{};  ///< of what this rank updates

  /// What this rank updates of something as long as the run.
  [[nodiscard]] Span<AnyElement, Space> own(Span<AnyElement, Space> whole) const noexcept {
    return whole.subspan(begin, size);
  }
  [[nodiscard]] bool converts() const noexcept { return wire != layout.type; }
  [[nodiscard]] std::size_t travel_bytes() const noexcept { return converts() ? layout.size * size_of(wire) : 0; }
  /// What is sent.
  [[nodiscard]] Span<AnyElement, Space> sent() const noexcept { return converts() ? travel : gradient; }
  /// Where this rank's part of it comes out; apart, unless it is to be added to what lies there.
  [[nodiscard]] Span<AnyElement, Space> received(bool adds) const noexcept {
    return gradient_apart && !adds ? own_gradient : own(sent());
  }
  /// This rank's gradients, once they are reduced.
  [[nodiscard]] Span<AnyElement, Space> reduced() const noexcept {
    return gradient_apart ? own_gradient : own(gradient);
  }
  [[nodiscard]] Segment<Space> segment(const Piece& piece, const std::vector<Entry<Space>>& entries) const noexcept {
    return {piece.entry, piece.offset,
            value_apart ? own_value.subspan(piece.at - begin, piece.size)
                        : entries[piece.entry].value_now().subspan(piece.offset, piece.size),
            reduced().subspan(piece.at - begin, piece.size)};
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

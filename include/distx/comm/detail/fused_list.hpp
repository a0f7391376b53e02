// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "distx/comm/detail/arguments.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/memory/detail/copy_pieces.hpp"
#include "distx/memory/detail/lines.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The part of each item that one side of a collective holds: nothing, the whole item, or one block per rank.
enum class ListSide { nothing, whole, blocks };

/// The parts of each item that a rank sends and receives in a call.
struct ListSides {
  ListSide send = ListSide::whole;
  ListSide receive = ListSide::whole;
  bool in_place = false;  ///< the call sends from the items to receive

  template <class Call>
  [[nodiscard]] static ListSides of(const Call& call, int rank) noexcept {
    using enum CollectiveKind;
    const CallTraits& traits = traits_of(call.kind);
    bool at_root = true;
    if constexpr (requires { call.root; }) at_root = call.root == rank;
    ListSides sides;
    if (traits.blockwise) sides.send = ListSide::blocks;
    if (call.kind == all_gather || call.kind == gather || call.kind == all_to_all) sides.receive = ListSide::blocks;
    if (call.kind == broadcast || call.kind == receive || (traits.root_sends && !at_root))
      sides.send = ListSide::nothing;
    if (call.kind == send || (traits.rooted && !traits.root_sends && !at_root)) sides.receive = ListSide::nothing;
    sides.in_place = call.kind == broadcast && at_root;
    return sides;
  }
};

/// Items of at most this size in bytes per rank are packed: for these, two copies cost less than a message's latency.
inline constexpr std::size_t fused_item_bytes = 32768;

/// A list of operands, and the packed copies of its small items.
///
/// Packed blocks are sorted by rank first, so one collective on the packed copy is equivalent to one per item.
template <class T, class S>
class FusedList {
 public:
  FusedList(std::vector<Span<const T, S>> sends, std::vector<Span<T, S>> receives, const ListSides& sides, int ranks,
            const ErrorContext& context)
      : sends_(std::move(sends)),
        receives_(std::move(receives)),
        sides_(sides),
        ranks_(static_cast<std::size_t>(ranks)) {
    const bool sending = sides.send != ListSide::nothing;
    const bool receiving = sides.receive != ListSide::nothing;
    if (sending && receiving && sends_.size() != receives_.size())
      throw InvalidArgument("the list to send has " + std::to_string(sends_.size()) + " items, the list to receive " +
                                std::to_string(receives_.size()),
                            context);
    const std::size_t items = sending ? sends_.size() : receives_.size();
    for (std::size_t item = 0; item < items; ++item) {
      const std::size_t size = sending ? sends_[item].size() : receives_[item].size();
      const bool blocks = (sending ? sides.send : sides.receive) == ListSide::blocks;
      if (blocks && size % ranks_ != 0)
        throw InvalidArgument("item " + std::to_string(item) + " has " + std::to_string(size) +
                                  " elements, not a multiple of the " + std::to_string(ranks) + " ranks",
                              context);
      const std::size_t block = blocks ? size / ranks_ : size;
      const std::size_t expected = sides.receive == ListSide::blocks ? block * ranks_ : block;
      if (sending && receiving && receives_[item].size() != expected)
        throw InvalidArgument("item " + std::to_string(item) + ": send has " + std::to_string(size) +
                                  " elements, receive has " + std::to_string(receives_[item].size()),
                              context);
      (block * sizeof(T) <= fused_item_bytes ? small_ : large_).push_back(item);
      blocks_.push_back(block);
    }
    if (small_.size() == 1) {
      large_.insert(std::upper_bound(large_.begin(), large_.end(), small_.front()), small_.front());
      small_.clear();
    }
    for (const auto item : small_) block_ += blocks_[item];
    if (items != 1) lengths_ = fnv1a(blocks_);
  }

  /// Returns the items that are transferred individually, in order.
  [[nodiscard]] const std::vector<std::size_t>& large() const noexcept { return large_; }
  [[nodiscard]] Span<const T, S> send(std::size_t item) const {
    return sides_.send == ListSide::nothing ? Span<const T, S>{} : sends_[item];
  }
  [[nodiscard]] Span<T, S> receive(std::size_t item) const {
    return sides_.receive == ListSide::nothing ? Span<T, S>{} : receives_[item];
  }

  /// Returns whether there is a call on packed copies. An empty list has one, so that it differs from other lists.
  [[nodiscard]] bool fuses() const noexcept { return !small_.empty() || blocks_.empty(); }
  /// Returns the bytes of workspace for the packed copies, 0 if nothing is packed.
  [[nodiscard]] std::size_t fused_bytes() const noexcept {
    if (!fuses()) return 0;
    return round_up_to_lines(length(sides_.send) * sizeof(T)) + length(sides_.receive) * sizeof(T);
  }
  /// Copies the small items to send into the workspace, which is borrowed until `unpack`, and the items to receive
  /// if the call sends from them.
  void pack(typename S::stream stream, Span<std::byte, S> workspace) {
    const std::size_t receive_length = length(sides_.receive);
    send_ = {reinterpret_cast<T*>(workspace.data()), length(sides_.send)};
    receive_ = {reinterpret_cast<T*>(workspace.data() + workspace.size() - receive_length * sizeof(T)), receive_length};
    PieceCopies<S> pieces(stream);
    each(sides_.send, [&](std::size_t item, std::size_t from, std::size_t to, std::size_t n) {
      pieces.add(piece(send_.subspan(to, n), sends_[item].subspan(from, n)));
    });
    if (sides_.in_place)
      each(sides_.receive, [&](std::size_t item, std::size_t from, std::size_t to, std::size_t n) {
        pieces.add(piece(receive_.subspan(to, n), receives_[item].subspan(from, n)));
      });
    pieces.finish();
  }
  /// Returns the call on the packed copies, which the ranks compare with the lengths of all items.
  template <class MakeCall>
  [[nodiscard]] auto fused_call(MakeCall&& make_call) const {
    return compared(make_call(as_const(send_), receive_), blocks_.size());
  }
  /// Returns the call on an item of `large()`, which is compared in the same way: of lists of other lengths, no two
  /// items match. The only item of a list matches a call on one buffer.
  template <class MakeCall>
  [[nodiscard]] auto call_on(std::size_t item, MakeCall&& make_call) const {
    return compared(make_call(send(item), receive(item)), item);
  }
  void unpack(typename S::stream stream) {
    PieceCopies<S> pieces(stream);
    each(sides_.receive, [&](std::size_t item, std::size_t to, std::size_t from, std::size_t n) {
      pieces.add(piece(receives_[item].subspan(to, n), receive_.subspan(from, n)));
    });
    pieces.finish();
  }

 private:
  template <class Call>
  [[nodiscard]] Call compared(Call call, std::size_t item) const noexcept {
    if constexpr (requires { call.lengths; }) call.lengths = lengths_ + item;
    return call;
  }
  [[nodiscard]] static CopyPiece piece(Span<T, S> to, Span<const T, S> from) noexcept {
    return {reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<const std::byte*>(from.data()), to.size_bytes()};
  }
  [[nodiscard]] std::size_t length(ListSide side) const noexcept {
    return side == ListSide::nothing ? 0 : side == ListSide::whole ? block_ : block_ * ranks_;
  }
  /// Calls f(item, offset in the item, offset in the packed copy, count) for every piece of one side.
  template <class F>
  void each(ListSide side, F&& f) const {
    if (side == ListSide::nothing) return;
    std::size_t packed = 0;
    for (std::size_t rank = 0; rank < (side == ListSide::blocks ? ranks_ : 1); ++rank)
      for (const auto item : small_) {
        f(item, rank * blocks_[item], packed, blocks_[item]);
        packed += blocks_[item];
      }
  }

  std::vector<Span<const T, S>> sends_;
  std::vector<Span<T, S>> receives_;
  ListSides sides_;
  std::size_t ranks_;
  std::vector<std::size_t> blocks_;  // elements of each item per rank
  std::vector<std::size_t> small_;
  std::vector<std::size_t> large_;
  std::size_t block_ = 0;      // elements of all small items per rank
  std::uint64_t lengths_ = 0;  // a hash; 0 for a single item
  Span<T, S> send_;
  Span<T, S> receive_;
};

}  // namespace distx::inline DISTX_ABI::detail

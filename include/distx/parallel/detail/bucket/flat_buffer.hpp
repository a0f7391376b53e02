// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/detail/copy_pieces.hpp"
#include "distx/parallel/detail/base/typed.hpp"
#include "distx/parallel/detail/bucket/bucket_layout.hpp"
#include "distx/parallel/fragment.hpp"
#include "distx/parallel/hooks/gradient_hook.hpp"
#include "distx/parallel/hooks/weight_hook.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Parameters that one message reduces or gathers: their layout, and the memory of their gradients and values.
///
/// `gradient` and `value` are whole, and empty while they have no memory. `gradient_shard` and `value_shard` are this
/// rank's shard where it has separate memory. A packed buffer is a copy of parameters that are scattered in the
/// user's arrays: first of their gradients, and, once these are used, of their values.
template <MemorySpace Space>
struct FlatBuffer {
  BucketLayout layout{};
  Span<AnyElement, Space> gradient{};
  Span<AnyElement, Space> value{};
  Span<AnyElement, Space> mapped_value{};  ///< all shards of the values, where ranks read each other's; else empty
  bool mapped_on_host = false;             ///< by the ranks of one host; other hosts' shards are gathered into it
  Span<AnyElement, Space> gradient_shard{};
  Span<AnyElement, Space> value_shard{};
  Span<AnyElement, Space> converted{};  ///< the gradients in `communication_type`, where that differs
  Span<AnyElement, Space> partials{};   ///< of Reproducible: `levels` sums of gradients, as long as the buffer each
  std::size_t levels = 0;
  /// Of Reproducible: the elements that this rank receives from each rank, and that a rank receives in all, at most;
  /// the latter is the same on all ranks, whose pools must hold the same buckets.
  std::vector<std::size_t> exchange_counts{};
  std::size_t exchanged = 0;
  ElementType communication_type{};
  bool restores = false;  ///< reduced gradients are converted back from `communication_type`, as with Compress
  const HookCalls* hook = nullptr;  ///< averages the gradients, unless it is null
  Span<float> hook_state{};
  const WeightHookCalls* weight_hook = nullptr;  ///< encodes the values that are gathered, unless it is null
  Partition encoding{};                          ///< into the encodings of each rank's shard, in floats
  std::size_t encoded_size = 0;
  Span<AnyElement, Space> encoded{};  ///< while `value` has memory
  bool separate_gradient_shard = false;
  bool fills_shard = false;  ///< gradients are written into the separate shard: this rank has all of them
  bool separate_value_shard = false;
  bool packed = false;
  std::size_t begin = 0;  ///< [begin, begin + size) is updated by this rank: its shard, or everything at stage 0
  std::size_t size = 0;
  std::vector<FragmentRange> kept{};     ///< the fragments in this rank's shard
  std::vector<FragmentRange> updated{};  ///< the fragments that this rank updates

  /// Returns the part of `whole`, as long as the buffer, that this rank updates.
  [[nodiscard]] Span<AnyElement, Space> own(Span<AnyElement, Space> whole) const noexcept {
    return whole.subspan(begin, size);
  }
  /// Returns the bytes of gathered values, and of their encoding, which is after them.
  [[nodiscard]] std::size_t gathered_bytes() const noexcept { return layout.bytes() + encoded_size * sizeof(float); }
  void gather_into(Span<std::byte, Space> memory) noexcept {
    value = layout.over(memory);
    encoded = {memory.data() + layout.bytes(), encoded_size, ElementType::f32, sizeof(float)};
  }
  [[nodiscard]] Span<AnyElement, Space> encoded_shard(int rank) const noexcept {
    return encoded.subspan(encoding.begin(rank), encoding.size(rank));
  }
  void encode_values([[maybe_unused]] int rank) const {
    if constexpr (HostAccessible<Space>) weight_hook->encode(floats(value_shard), floats(encoded_shard(rank)));
  }
  void decode_values() const {
    const auto& shards = layout.partition;
    for (int rank = 0; std::cmp_less(rank, shards.counts().size()); ++rank)
      if constexpr (HostAccessible<Space>)
        weight_hook->decode(floats(encoded_shard(rank)), floats(value.subspan(shards.begin(rank), shards.size(rank))));
  }
  [[nodiscard]] bool converts() const noexcept { return communication_type != layout.type; }
  [[nodiscard]] std::size_t converted_bytes() const noexcept {
    return converts() ? layout.size * size_of(communication_type) : 0;
  }
  [[nodiscard]] std::size_t exchanged_bytes() const noexcept { return exchanged * size_of(communication_type); }
  [[nodiscard]] Span<AnyElement, Space> sent() const noexcept { return converts() ? converted : gradient; }
  /// Returns where a reduction writes this rank's part; if `adds`, it must not overwrite the separate shard.
  [[nodiscard]] Span<AnyElement, Space> received(bool adds) const noexcept {
    return separate_gradient_shard && !adds && !restores ? gradient_shard : own(sent());
  }
  /// Returns this rank's part of the reduced gradients: those of the update or, if `adds`, those of one micro-batch,
  /// which are added to the shard then.
  [[nodiscard]] Span<AnyElement, Space> reduced(bool adds = false) const noexcept {
    return separate_gradient_shard && !adds ? gradient_shard : own(gradient);
  }
  /// Returns the element type of the separate shard.
  [[nodiscard]] ElementType shard_type() const noexcept { return restores ? layout.type : communication_type; }
  [[nodiscard]] hooks::BucketShape shape(const std::vector<ParameterEntry<Space>>& entries, bool whole) const {
    hooks::BucketShape shape{layout.size, {}, layout.partition.counts(), whole};
    for (const auto& range : layout.ranges)
      shape.parameters.push_back(
          {entries[range.entry].name, range.begin, range.size, entries[range.entry].options.rows});
    return shape;
  }
  [[nodiscard]] Fragment<Space> fragment(const FragmentRange& range,
                                         const std::vector<ParameterEntry<Space>>& entries) const noexcept {
    return {range.entry, range.offset,
            separate_value_shard ? value_shard.subspan(range.at - begin, range.size)
                                 : entries[range.entry].value_now().subspan(range.offset, range.size),
            reduced().subspan(range.at - begin, range.size)};
  }

  /// Gives owned parameters their parts of `value`, or none while it has no memory.
  void place_values(const std::vector<ParameterEntry<Space>>& entries) const {
    for (const auto& range : layout.ranges)
      entries[range.entry].owned->place(value.empty() ? value : value.subspan(range.begin, range.size));
  }

  /// @name Copies between the user's arrays and a packed buffer; nothing for other buffers
  /// @{
  void pack_gradients(typename Space::stream stream, const std::vector<ParameterEntry<Space>>& entries) const {
    copy_each(stream, layout.ranges, [&](const auto& range) {
      return piece(gradient.subspan(range.begin, range.size), entries[range.entry].gradient);
    });
  }
  /// Packs this rank's shard.
  void pack_values(typename Space::stream stream, const std::vector<ParameterEntry<Space>>& entries) const {
    copy_each(stream, kept, [&](const auto& each) {
      return piece(gradient.subspan(each.at, each.size), entries[each.entry].value.subspan(each.offset, each.size));
    });
  }
  /// @param to  the arrays: the entries' values or gradients
  void unpack(typename Space::stream stream, const std::vector<ParameterEntry<Space>>& entries,
              Span<AnyElement, Space> ParameterEntry<Space>::*to) const {
    copy_each(stream, layout.ranges, [&](const auto& range) {
      return piece(entries[range.entry].*to, gradient.subspan(range.begin, range.size));
    });
  }
  /// @}

 private:
  [[nodiscard]] static CopyPiece piece(Span<AnyElement, Space> to, Span<AnyElement, Space> from) {
    if (to.size_bytes() != from.size_bytes()) lengths_differ(to.size(), from.size(), "copy");
    return {to.bytes(), from.bytes(), to.size_bytes()};
  }
  template <class Parts, class MakePiece>
  void copy_each(typename Space::stream stream, const Parts& parts, MakePiece&& make) const {
    if (!packed) return;
    PieceCopies<Space> pieces(stream);
    for (const auto& part : parts) pieces.add(make(part));
    pieces.finish();
  }
};

}  // namespace distx::inline DISTX_ABI::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/checkpoint/detail/shard_index.hpp"
#include "distx/checkpoint/detail/together.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// The copies of a load on one rank, and the tensors whose checksums this rank checks.
///
/// A tensor that a rank copies whole is read once: its checksum is computed while it is copied. Every tensor is checked
/// by one of the ranks that copy it whole; if there are none, by any one before the copies begin.
template <MemorySpace Space>
class ShardCopies {
 public:
  /// @param arrays  what this rank holds
  /// @throws CheckpointError if the files do not have each element once
  ShardCopies(const ShardIndex& index, const std::vector<FileArray<Space>>& arrays) {
    for (const auto& array : arrays)
      index.each_copy(array, [&](Span<std::byte, Space> to, std::span<const std::byte> from) {
        if (!from.empty()) copies_.push_back({to, from});
      });
    std::sort(copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) { return precedes(a.from, b.from); });
    for (const auto& stored : index.stored()) tensors_.push_back({stored});
  }
  /// Divides the checks among the ranks. Collective over ranks that read the same files.
  void share_checks(AnyCommunicator<Space>& comm, const std::source_location& location) {
    const std::size_t count = tensors_.size(), ranks = static_cast<std::size_t>(comm.size());
    std::vector<unsigned char> mine, whole(count * ranks);
    for (const auto& tensor : tensors_) mine.push_back(is_copied_whole(tensor.stored.bytes) ? 1 : 0);
    if (count > 0)
      distx::detail::all_gather_values(comm, Span<const unsigned char>(mine.data(), count), Span<unsigned char>(whole),
                                       location);
    std::vector<std::uint64_t> bytes(ranks);  // that each rank checks
    for (std::size_t i = 0; i < count; ++i) {
      const auto copies_whole = [&](std::size_t rank) { return whole[rank * count + i] != 0; };
      std::optional<std::size_t> checking;
      for (std::size_t rank = 0; rank < ranks; ++rank)
        if (copies_whole(rank) && (!checking || bytes[rank] < bytes[*checking])) checking = rank;
      const bool copied = checking.has_value();
      if (!copied) checking = std::min_element(bytes.begin(), bytes.end()) - bytes.begin();
      bytes[*checking] += tensors_[i].stored.bytes.size();
      if (*checking == static_cast<std::size_t>(comm.rank()))
        tensors_[i].check = copied ? Verification::copying : Verification::before;
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorToCopy& a, const TensorToCopy& b) { return precedes(a.stored.bytes, b.stored.bytes); });
  }
  /// Checks those of this rank's tensors that no rank copies whole.
  /// @throws CheckpointError that names file and tensor
  void check_beforehand(const ShardIndex& index) const {
    for (const auto& tensor : tensors_)
      if (tensor.check == Verification::before) index.verify(tensor.stored);
  }
  /// Makes the copies, and checks the rest of this rank's tensors.
  /// @throws CheckpointError that names file and tensor; the copies are then incomplete
  void make_copies(const ShardIndex& index, typename Space::stream after) const {
    auto next = copies_.begin();
    for (const auto& [stored, check] : tensors_) {
      const auto tensor_end = std::span(stored.bytes.data() + stored.bytes.size(), std::size_t{0});
      std::uint32_t sum = 0;
      for (; next != copies_.end() && precedes(next->from, tensor_end); ++next) {
        auto to = next->to;
        each_block(next->from, [&](std::span<const std::byte> block) {
          if (check == Verification::copying) sum = checksum(block, sum);
          copy(after, to.first(block.size()), Span<const std::byte>(block.data(), block.size()));
          to = to.subspan(block.size(), to.size() - block.size());
        });
      }
      if (check == Verification::copying) index.check(stored, sum);
    }
    after.synchronize();
  }

 private:
  struct Copy {
    Span<std::byte, Space> to;
    std::span<const std::byte> from;
  };
  enum class Verification : std::uint8_t { none, before, copying };
  struct TensorToCopy {
    StoredTensor stored;
    Verification check = Verification::none;  // of this rank
  };

  /// The order of the files' data in memory.
  static bool precedes(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
    return std::less<>()(a.data(), b.data());
  }
  /// Whether the copies cover these bytes without a gap.
  [[nodiscard]] bool is_copied_whole(std::span<const std::byte> bytes) const {
    auto next =
        std::lower_bound(copies_.begin(), copies_.end(), bytes,
                         [](const Copy& copy, std::span<const std::byte> all) { return precedes(copy.from, all); });
    std::size_t covered = 0;
    for (; next != copies_.end() && covered < bytes.size() && next->from.data() == bytes.data() + covered; ++next)
      covered += next->from.size();
    return !bytes.empty() && covered == bytes.size();
  }

  std::vector<Copy> copies_;  // in the order of the files' data in memory, and so are the tensors
  std::vector<TensorToCopy> tensors_;
};

}  // namespace distx::inline DISTX_ABI::checkpoint::detail

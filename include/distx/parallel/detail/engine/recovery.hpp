// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <optional>

#include "distx/comm/movement.hpp"
#include "distx/parallel/detail/engine/replicas.hpp"

namespace distx::detail {

/// The state from which the survivors of a training continue: the newest version of which they have all shares.
template <MemorySpace Space>
class Recovery {
  using here = std::source_location;

 public:
  /// Agrees on the version. Collective over the survivors.
  /// @param kept  copies that are older or newer; the chosen ones are left
  /// @throws CheckpointError on every rank if there is no such version, with the parameters that are lost
  Recovery(AnyCommunicator<Space>& comm, std::vector<std::unique_ptr<Replicas<Space>>>& kept, const here& location) {
    constexpr std::size_t most = 4;  // versions: two of each of two
    std::vector<Record> mine(most);
    std::size_t count = 0;
    for (const auto& replicas : kept)
      for (const auto* version : replicas->versions())
        mine.at(count++) = {version->number, replicas->rank(), replicas->layout().ranks(),
                            replicas->holds(version->number) ? std::uint64_t{1} : 0};
    std::vector<Record> all(most * static_cast<std::size_t>(comm.size()));
    if (comm.size() == 1)
      all = mine;
    else
      all_gather_values(comm, Span<const Record>(mine), Span<Record>(all), location);
    std::string lost = "the ranks that are left have no common version of the state";
    for (std::uint64_t version = newest(all, most, UINT64_MAX); version != 0; version = newest(all, most, version)) {
      for (auto& replicas : kept)
        for (const auto* found : replicas->versions())
          if (found->number == version && choose(all, most, *replicas, *found, lost)) {
            auto chosen = std::move(replicas);
            kept.clear();
            replicas_ = chosen.get();
            kept.push_back(std::move(chosen));
            return;
          }
    }
    throw CheckpointError(lost + "; resume from the last checkpoint",
                          {"recover", comm.backend(), comm.rank(), comm.size(), location});
  }

  [[nodiscard]] const typename Replicas<Space>::Version& version() const noexcept { return *version_; }

  /// Copies the version into the state of a training of the survivors. Collective.
  void copy_to(AnyCommunicator<Space>& comm, const TrainingState<Space>& state, const here& location) const {
    const StateLayout& from = replicas_->layout();
    const StateLayout to(comm, state, false, location);
    const auto ranks = static_cast<std::size_t>(comm.size()), self = static_cast<std::size_t>(comm.rank());
    // Calls f(old rank, array, range) for all that new rank `source` sends to new rank `target`.
    const auto each = [&](std::size_t source, std::size_t target, auto&& f) {
      for (std::size_t old = 0; old < from.ranks(); ++old) {
        if (sources_[old] != source) continue;
        for (std::size_t array = 0; array < from.arrays(); ++array)
          if (const auto common = from.range(old, array) & to.range(target, array); common.size > 0)
            f(old, array, common);
      }
    };
    const auto bytes_between = [&](std::size_t source, std::size_t target) {
      std::size_t bytes = 0;
      each(source, target, [&](std::size_t, std::size_t array, const StateRange& range) {
        bytes += static_cast<std::size_t>(range.size * from.width(array));
      });
      return bytes;
    };
    std::vector<std::size_t> sent(ranks), received(ranks);
    std::size_t sent_bytes = 0, received_bytes = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sent_bytes += sent[rank] = bytes_between(self, rank);
      received_bytes += received[rank] = bytes_between(rank, self);
    }
    const Buffer<std::byte, Space> out(sent_bytes, uninitialized), in(received_bytes, uninitialized);
    const typename Space::stream after{};
    std::size_t at = 0;
    const auto part = [&](const StateRange& whole, const StateRange& range, std::size_t array) {
      return StateRange{(range.begin - whole.begin) * from.width(array), range.size * from.width(array)};
    };
    for (std::size_t target = 0; target < ranks; ++target)
      each(self, target, [&](std::size_t old, std::size_t array, const StateRange& range) {
        const auto bytes = part(from.range(old, array), range, array);
        const auto size = static_cast<std::size_t>(bytes.size);
        copy(after, Span<std::byte, Space>(out.data() + at, size),
             replicas_->values(version_->number, old, array).subspan(static_cast<std::size_t>(bytes.begin), size));
        at += size;
      });
    after.synchronize();
    all_to_all(comm, Span<const std::byte, Space>(out.data(), out.size()), Span<std::byte, Space>(in.data(), in.size()),
               sent, received, location);
    at = 0;
    for (std::size_t source = 0; source < ranks; ++source)
      each(source, self, [&](std::size_t, std::size_t array, const StateRange& range) {
        const auto bytes = part(to.range(self, array), range, array);
        const auto size = static_cast<std::size_t>(bytes.size);
        copy(after,
             Span<std::byte, Space>(state.arrays[array].values.bytes() + static_cast<std::size_t>(bytes.begin), size),
             Span<const std::byte, Space>(in.data() + at, size));
        at += size;
      });
    after.synchronize();
  }

 private:
  /// A version that a rank has.
  struct Record {
    std::uint64_t version = 0, rank = 0, ranks = 0, holds = 0;
  };

  /// Returns the newest version before `bound` that all ranks have; 0 if there is none.
  [[nodiscard]] static std::uint64_t newest(const std::vector<Record>& all, std::size_t most, std::uint64_t bound) {
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < most; ++i) {
      const std::uint64_t version = all[i].version;
      if (version <= found || version >= bound) continue;
      bool everywhere = true;
      for (std::size_t begin = 0; begin < all.size(); begin += most)
        everywhere = everywhere && std::any_of(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                               all.begin() + static_cast<std::ptrdiff_t>(begin + most),
                                               [&](const Record& record) { return record.version == version; });
      if (everywhere) found = version;
    }
    return found;
  }
  /// Finds where each rank's shares are; if some are lost, says which.
  bool choose(const std::vector<Record>& all, std::size_t most, const Replicas<Space>& replicas,
              const typename Replicas<Space>::Version& version, std::string& lost) {
    const StateLayout& layout = replicas.layout();
    constexpr std::size_t nowhere = SIZE_MAX;
    std::vector<std::size_t> left(layout.ranks(), nowhere), holders(layout.ranks(), nowhere);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].version != version.number || all[i].ranks != layout.ranks()) continue;
      left[all[i].rank] = i / most;
      if (all[i].holds != 0) holders[all[i].rank] = i / most;
    }
    version_ = &version;
    sources_ = left;
    if (replicas.whole()) {  // all of it from one rank, so that all have the same
      for (auto& source : sources_) source = source == 0 ? 0 : nowhere;
      return true;
    }
    std::string names, ranks;
    for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
      if (sources_[rank] != nowhere) continue;
      sources_[rank] = holders[replicas.holder_of(rank)];
      if (sources_[rank] != nowhere || layout.bytes(rank) == 0) continue;
      ranks += (ranks.empty() ? "" : " and ") + std::to_string(rank) + ", which rank " +
               std::to_string(replicas.holder_of(rank)) + " held,";
      for (std::size_t array = 0; array < layout.arrays(); ++array)
        if (layout.range(rank, array).size > 0) names += (names.empty() ? "'" : ", '") + layout.name(array) + "'";
    }
    if (names.empty()) return true;
    lost = "the shares of rank " + ranks + " are lost with both ranks: parts of " + names;
    return false;
  }

  const Replicas<Space>* replicas_ = nullptr;
  const typename Replicas<Space>::Version* version_ = nullptr;
  std::vector<std::size_t> sources_;  // of each earlier rank's shares: the new rank that has them
};

}  // namespace distx::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// A collective: it is call number `number` of the blocking or the asynchronous ones, counted from 1. Number 0 is none.
struct CallNumber {
  bool started = false;
  std::uint64_t number = 0;
};

/// The ranks that have destroyed their communicator, and how many collectives they have made.
///
/// A notification of it may overtake the messages of a rank's last calls, which their receivers then still complete.
class ExitNotices {
 public:
  using Counts = std::array<std::uint64_t, 2>;  ///< of blocking and of asynchronous ones

  /// Notes that a rank has left. One thread at a time.
  void note(int rank, const Counts& made) noexcept {
    for (std::size_t i = 0; i < made.size(); ++i) {
      const std::uint64_t packed = made[i] << rank_bits | static_cast<std::uint64_t>(rank);
      if (packed < least_[i].load(std::memory_order_relaxed)) least_[i].store(packed, std::memory_order_relaxed);
    }
  }
  /// Returns whether a rank has left that did not make a call. Any thread may ask.
  [[nodiscard]] bool prevent(const CallNumber& call) const noexcept { return least(call) >> rank_bits < call.number; }
  /// @pre prevent(call)
  [[noreturn]] void raise(const CallNumber& call, const ErrorContext& context) const {
    const auto rank = static_cast<int>(least(call) % (std::uint64_t{1} << rank_bits));
    throw RankFailure("rank " + std::to_string(rank) + " has destroyed its communicator", rank, nullptr, context);
  }

 private:
  static constexpr int rank_bits = 16;

  [[nodiscard]] std::uint64_t least(const CallNumber& call) const noexcept {
    return least_[call.started ? 1 : 0].load(std::memory_order_relaxed);
  }

  /// Of blocking and of asynchronous calls: the fewest of a rank that has left, and that rank.
  std::array<std::atomic<std::uint64_t>, 2> least_{~std::uint64_t{0}, ~std::uint64_t{0}};
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "distx/comm/calls/collectives.hpp"
#include "distx/mpi/detail/session.hpp"
#include "distx/mpi/options.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The ranks of a communicator, and the MPI communicators and tags that they use: two for them alone, or a channel
/// of the session's.
struct Transport {
  calls::RankOf self{0, 1, "mpi"};
  std::vector<int> ranks{};  ///< numbered as in the session's world
  std::uint64_t identity = 0;
  bool serves_threads = true;                          ///< whether MPI does, on every rank
  mpi_unique_comm blocking{}, started{};               ///< both null where a channel is used
  RankMap messages{}, calls{};                         ///< for user messages; for everything else
  int first_message_tag = 0, last_message_tag = 8191;  ///< of MPI; of the user
  int data_tags = 3;                                   ///< for the data of a user's tag, in addition to its header
  int first_call_tag = 0, call_tags = 32768;
  bool scheduled = true;  ///< whether distx makes all collectives whose calls are compared; the same on every rank
  bool threaded = true;   ///< whether a progress thread makes asynchronous collectives, on every rank

  /// Returns whether the descriptions of calls contain the counts of all ranks.
  [[nodiscard]] bool counts_fit() const noexcept {
    return self.size <= MpiOptions::most_scheduled_ranks || !has_collectives();
  }
  /// Returns whether MPI's own collectives serve these ranks.
  [[nodiscard]] bool has_collectives() const noexcept { return bool(blocking); }
  [[nodiscard]] static bool is_scheduled(const MpiOptions& options, int size) noexcept {
    return options.collectives != MpiCollectives::vendor && size <= MpiOptions::most_scheduled_ranks;
  }
  /// Releases the MPI communicators, which requests of this rank or another may still use.
  void release() noexcept {
    (void)blocking.release();
    (void)started.release();
  }
  /// Divides MPI's `tags` tags: each tag of the user takes one for headers and some for data.
  void divide_tags(std::int64_t tags) noexcept {
    const std::int64_t for_data = std::clamp<std::int64_t>(tags / 8192 - 1, 3, 1023);
    data_tags = static_cast<int>(for_data);
    last_message_tag = static_cast<int>(tags / (1 + for_data)) - 1;
  }
  /// Uses an MPI communicator of these ranks, and a duplicate of it. Collective over it.
  /// @throws TimeoutError at the session's deadline
  void open(Session& session, mpi_unique_comm comm, const MpiOptions& options) try {
    blocking = std::move(comm);
    started = duplicate(blocking.native_handle(), session.deadline(), self.context("MpiCommunicator"));
    messages = {blocking.native_handle()};
    calls = {started.native_handle()};
    call_tags = session.world().last_tag();
    divide_tags(std::int64_t{call_tags} + 1);
    scheduled = is_scheduled(options, self.size);
    // Ranks without a progress thread use MPI's collectives, and all ranks must do the same.
    threaded = scheduled && options.check == Check::every_call && serves_threads;
  } catch (const TimeoutError&) {
    session.world().note_broken();
    release();
    throw;
  }
  /// Uses a channel of the session. Local.
  void open(Session& session, const RankSubset& subset) {
    messages = calls = {session.control().comm(), subset.ranks};
    first_call_tag = subset.first_tag();
    call_tags = RankSubset::user_tags;
    first_message_tag = subset.first_tag() + RankSubset::user_tags;
    divide_tags(RankSubset::tags - RankSubset::user_tags);
  }
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distx/comm/calls/collectives.hpp"
#include "distx/mpi/detail/session.hpp"
#include "distx/mpi/options.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The ranks of a communicator, and the MPI communicators and tags that they use: two for them alone, or a channel
/// of the session's.
struct Transport {
  calls::RankOf self{0, 1, "mpi"};
  mpi_unique_comm blocking{}, started{};               ///< both null where a channel is used
  RankMap messages{}, calls{};                         ///< for user messages; for everything else
  int first_message_tag = 0, last_message_tag = 8191;  ///< of MPI; of the user
  int data_tags = 3;                                   ///< for the data of a user's tag, in addition to its header
  int first_call_tag = 0, call_tags = 32768;
  std::vector<int> ranks{};  ///< numbered as in the session's world
  std::uint64_t identity = 0;
  bool scheduled = true;  ///< whether distx makes all collectives whose calls are compared; the same on every rank
  bool threaded = false;  ///< whether a progress thread makes asynchronous collectives, on every rank

  /// @throws InvalidArgument if a message cannot have the tag that its user has chosen
  void check_tag(int tag, const ErrorContext& context) const {
    if (tag <= last_message_tag) return;
    throw InvalidArgument("invalid tag " + std::to_string(tag) + ": this MPI has tags up to " +
                              std::to_string(last_message_tag) + (has_collectives() ? "" : " for surviving ranks"),
                          context);
  }
  /// Returns whether the descriptions of calls contain the counts of all ranks.
  [[nodiscard]] bool counts_fit() const noexcept {
    return self.size <= MpiOptions::most_scheduled_ranks || !has_collectives();
  }
  /// Returns whether MPI's own collectives serve these ranks.
  [[nodiscard]] bool has_collectives() const noexcept { return bool(blocking); }
  /// Releases the MPI communicators, which requests of this rank or another may still use.
  void release() noexcept {
    (void)blocking.release();
    (void)started.release();
  }
};

[[nodiscard]] inline bool serves_threads() {
  return boost::mpi::environment::thread_level() == BoostThreadLevel::multiple;
}

/// A rank's introduction to the others of a new communicator.
struct Member {
  std::uint64_t identity;  ///< the communicator's, if this is rank 0
  std::uint64_t choice;    ///< of MpiOptions, equal on all ranks
  int rank_in_world;
  bool has_thread;  ///< see Transport
};

/// Divides MPI's `tags` tags: each tag of the user takes one for headers and some for data.
inline void make_data_tags(Transport& transport, std::int64_t tags) noexcept {
  const std::int64_t for_data = std::clamp<std::int64_t>(tags / 8192 - 1, 3, 1023);
  transport.data_tags = static_cast<int>(for_data);
  transport.last_message_tag = static_cast<int>(tags / (1 + for_data)) - 1;
}

/// Takes ownership of `comm`, and adds what a communicator of its ranks needs. Collective over it.
/// @throws TimeoutError at the session's deadline
[[nodiscard]] inline Transport open_transport(Session& session, mpi_unique_comm comm, const MpiOptions& options) {
  Transport made;
  made.blocking = std::move(comm);
  const MPI_Comm whole = made.blocking.native_handle();
  const ErrorContext unknown{.operation = "MpiCommunicator", .backend = "mpi"};
  check(MPI_Comm_rank(whole, &made.self.rank), "MPI_Comm_rank", unknown);
  check(MPI_Comm_size(whole, &made.self.size), "MPI_Comm_size", unknown);
  const ErrorContext context = made.self.context("MpiCommunicator");
  made.scheduled = options.collectives != MpiCollectives::vendor && made.counts_fit();
  // Ranks without a progress thread use MPI's collectives, and all ranks must do the same.
  const bool has_thread = made.scheduled && options.check == Check::every_call && serves_threads();
  try {
    made.started = duplicate(whole, session.deadline(), context);
    const auto choice = static_cast<std::uint64_t>(options.max_count) << 3 |
                        static_cast<std::uint64_t>(options.check) << 1 | (made.scheduled ? 1U : 0U);
    const Member own{session.control().new_identity(), choice, session.rank(), has_thread};
    const auto all = gathered(whole, own, session.deadline(), context);
    made.identity = all[0].identity;
    made.threaded = std::ranges::all_of(all, &Member::has_thread);
    for (const Member& each : all) made.ranks.push_back(each.rank_in_world);
    if (std::ranges::any_of(all, [&](const Member& other) { return other.choice != all[0].choice; }))
      throw MismatchError(
          "the ranks differ in MpiOptions: pass the same collectives, check and max_count on every rank", context);
  } catch (const TimeoutError&) {
    session.world().note_broken();
    made.release();
    throw;
  }
  made.messages = {whole};
  made.calls = {made.started.native_handle()};
  make_data_tags(made, std::int64_t{session.world().last_tag()} + 1);
  made.call_tags = session.world().last_tag();
  return made;
}

/// The same for a channel of the session. Local.
[[nodiscard]] inline Transport open_transport(Session& session, const RankSubset& subset) {
  Transport made;
  made.self = {subset.rank, subset.size(), "mpi"};
  made.messages = made.calls = {session.control().comm(), subset.ranks};
  made.first_call_tag = subset.first_tag();
  made.call_tags = RankSubset::user_tags;
  made.first_message_tag = subset.first_tag() + RankSubset::user_tags;
  make_data_tags(made, RankSubset::tags - RankSubset::user_tags);
  made.identity = Control::identity_of_channel(subset.channel);
  made.threaded = true;
  made.ranks = *subset.ranks;
  return made;
}

}  // namespace distx::inline DISTX_ABI::detail::mpi

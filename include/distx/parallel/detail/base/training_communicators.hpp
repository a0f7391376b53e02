// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <optional>

#include "distx/comm/any_communicator.hpp"
#include "distx/core/detail/revocation_reason.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A MismatchError that every rank throws by itself, after the ranks have exchanged what differs.
class AgreedMismatch : public MismatchError {
 public:
  using MismatchError::MismatchError;
};

/// The communicators of one training: all ranks, the ranks that shard a model among them, and, for Hybrid, the ranks
/// that hold the same shard.
template <MemorySpace Space>
class TrainingCommunicators {
 public:
  /// @param made_at  the caller's line, for errors of the training's construction
  TrainingCommunicators(AnyCommunicator<Space> comm, const std::source_location& made_at)
      : made_at_(made_at), all_(comm.share()), reducing_(comm.share()), gathering_(std::move(comm)) {}

  /// Shards among groups of `group_ranks` consecutive ranks. Collective.
  void split(int group_ranks) {
    reducing_ = all_.split(SplitRule([=](int rank) { return SplitRequest{rank / group_ranks, rank, rank}; }), made_at_);
    across_ = all_.split(SplitRule([=](int rank) { return SplitRequest{rank % group_ranks, rank, rank}; }), made_at_);
    gathering_ = reducing_.share();
  }
  /// Gives gathers a separate communicator, whose calls need no common order with the reductions. Collective.
  void separate_gathers() { gathering_ = reducing_.split(duplicate(), made_at_); }
  /// Makes the communicator of announcements in uneven steps, once. Collective.
  void separate_announcements(const std::source_location& location) {
    if (!announcements_) announcements_ = all_.split(duplicate(), location);
  }

  [[nodiscard]] const std::source_location& made_at() const noexcept { return made_at_; }
  [[nodiscard]] AnyCommunicator<Space>& all() noexcept { return all_; }
  [[nodiscard]] const AnyCommunicator<Space>& all() const noexcept { return all_; }
  [[nodiscard]] AnyCommunicator<Space>& reducing() noexcept { return reducing_; }
  [[nodiscard]] AnyCommunicator<Space>& gathering() noexcept { return gathering_; }
  /// Null without Hybrid.
  [[nodiscard]] AnyCommunicator<Space>* across() noexcept { return across_ ? &*across_ : nullptr; }
  /// Returns null before `separate_announcements`; over all ranks.
  [[nodiscard]] AnyCommunicator<Space>* announcements() noexcept { return announcements_ ? &*announcements_ : nullptr; }
  /// The index of this rank's shard, and the number of shards.
  [[nodiscard]] int shard() const { return reducing_.rank(); }
  [[nodiscard]] int shards() const { return reducing_.size(); }

  /// @param revoke  of further communicators, whenever an error leaves a call of the training
  void revoke_also(std::function<void(const std::string&)> revoke) { revoke_others_ = std::move(revoke); }
  void revoke(const std::string& message) {
    all_.revoke(message);
    reducing_.revoke(message);
    gathering_.revoke(message);
    if (across_) across_->revoke(message);
    if (announcements_) announcements_->revoke(message);
    if (revoke_others_) revoke_others_(message);
  }
  /// Revokes because of the exception that is being handled, and rethrows it: no peer waits for this rank.
  [[noreturn]] void revoke_and_rethrow() {
    try {
      throw;
    } catch (const AgreedMismatch&) {  // no rank waits for this one, and a revocation could hide the error there
      if (revoke_others_) revoke_others_(RevocationReason::of_current().published());
    } catch (...) {
      revoke(RevocationReason::of_current().published());
    }
    throw;
  }
  /// Returns what `f` returns; an exception revokes first.
  template <class F>
  decltype(auto) guard(F&& f) {
    try {
      return f();
    } catch (...) {
      revoke_and_rethrow();
    }
  }

 private:
  [[nodiscard]] static SplitRule duplicate() {
    return SplitRule([](int rank) { return SplitRequest{0, rank, rank}; });
  }

  std::source_location made_at_;
  AnyCommunicator<Space> all_;
  AnyCommunicator<Space> reducing_;
  AnyCommunicator<Space> gathering_;
  std::optional<AnyCommunicator<Space>> across_{};
  std::optional<AnyCommunicator<Space>> announcements_{};
  std::function<void(const std::string&)> revoke_others_{};
};

}  // namespace distx::inline DISTX_ABI::detail

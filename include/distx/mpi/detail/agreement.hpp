// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The ranks that continue after a failure, in order, and the channel of their messages; see RankMap.
struct Survivors {
  std::vector<int> ranks;
  int channel = 0;

  [[nodiscard]] bool has(int rank) const noexcept { return std::ranges::find(ranks, rank) != ranks.end(); }
  bool operator==(const Survivors&) const = default;
};

/// One rank's side of the agreement on the surviving ranks, without a transport: messages and times are passed in.
///
/// Every rank says that it joins. The lowest rank that is not lost leads: once all others have joined or ended, or its
/// deadline is over, it proposes a set to all, and once all of that set have accepted it, decides. Each rank passes the
/// decision on, so it reaches all if it reaches one. If the leader is lost, the next one proposes what it has received,
/// because that may have been decided. Ranks follow the highest-numbered leader that they know: a rank that was
/// suspected by mistake must follow, or is excluded.
///
/// Every rank that decides decides the same if the loss of a rank is known, by `ended`. The loss of others is concluded
/// from their silence: before the deadline, no rank that has not joined is lost; afterwards, a rank that does not
/// answer for another deadline, or a leader that does not decide for two.
class Agreement {
 public:
  using time_point = Deadline::clock::time_point;
  enum class Kind : int { join, propose, accept, decide };
  struct Message {
    Kind kind = Kind::join;
    int version = 0;      ///< of the proposal
    Survivors survivors;  ///< in `join`, the channel alone: the first that the rank has not used
  };
  using Send = std::function<void(int to, const Message&)>;
  using Ended = std::function<bool(int rank)>;

  Agreement(int self, int size, int channel, Timeout deadline, time_point now, Send send)
      : self_(self),
        deadline_(deadline),
        end_(Deadline(deadline, now).end()),
        send_(std::move(send)),
        members_(static_cast<std::size_t>(size)) {
    member(self).joined = true;
    member(self).channel = channel;
    send_to_others({Kind::join, 0, {{}, channel}});
  }

  void receive(int from, const Message& message, time_point now) {
    Participant& sender = member(from);
    sender.joined = true;
    switch (message.kind) {
      case Kind::join:
        sender.channel = message.survivors.channel;
        break;
      case Kind::propose:
        if (from < leader_) break;
        leader_ = from;
        heard_ = now;
        leading_ = false;
        proposal_ = message.survivors;
        if (proposal_->has(self_)) send_(from, {Kind::accept, message.version, {}});
        break;
      case Kind::accept:
        if (leading_ && message.version == version_) sender.accepted = true;
        break;
      case Kind::decide:
        decide(message.survivors);
    }
  }

  /// Progresses; returns the decision, once it is made. The messages received so far must have been passed in.
  [[nodiscard]] const std::optional<Survivors>& step(time_point now, const Ended& ended) {
    if (decision_) return decision_;
    const bool late = now >= end_;
    while (leader_ != self_) {
      const bool silent = late && (!member(leader_).joined || is_over(2, std::max(heard_, end_), now));
      if (!silent && !ended(leader_)) return decision_;
      leader_ = leader_ + 1 < size() ? leader_ + 1 : self_;
      heard_ = now;
    }
    if (!leading_) {
      if (!proposal_ && !late && !all_known(ended)) return decision_;
      if (!proposal_) proposal_ = joined(ended);
      propose(now);
    }
    const auto waits_for = [&](int rank) { return rank != self_ && !member(rank).accepted && !ended(rank); };
    if (std::ranges::none_of(proposal_->ranks, waits_for)) {
      decide(*proposal_);
    } else if (is_over(1, proposed_, now)) {
      std::erase_if(proposal_->ranks, waits_for);
      propose(now);
    }
    return decision_;
  }

 private:
  struct Participant {
    bool joined = false;
    bool accepted = false;
    int channel = 0;
  };

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] Participant& member(int rank) noexcept { return members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool is_over(int deadlines, time_point since, time_point now) const noexcept {
    return !deadline_.unlimited() && now - since >= deadlines * deadline_.limit();
  }
  void send_to_others(const Message& message) {
    for (int rank = 0; rank < size(); ++rank)
      if (rank != self_) send_(rank, message);
  }
  [[nodiscard]] bool all_known(const Ended& ended) {
    for (int rank = 0; rank < size(); ++rank)
      if (!member(rank).joined && !ended(rank)) return false;
    return true;
  }
  [[nodiscard]] Survivors joined(const Ended& ended) {
    Survivors left;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != self_ && (!member(rank).joined || ended(rank))) continue;
      left.ranks.push_back(rank);
      left.channel = std::max(left.channel, member(rank).channel);
    }
    return left;
  }
  // To all ranks, so that one outside the set knows what may be decided if it leads next.
  void propose(time_point now) {
    leading_ = true;
    proposed_ = now;
    ++version_;
    for (Participant& each : members_) each.accepted = false;
    send_to_others({Kind::propose, version_, *proposal_});
  }
  // To all ranks, so that one that was considered failed is notified that it is excluded.
  void decide(const Survivors& survivors) {
    if (decision_) return;
    decision_ = survivors;
    send_to_others({Kind::decide, 0, survivors});
  }

  int self_;
  Timeout deadline_;
  time_point end_;
  Send send_;
  std::vector<Participant> members_;
  int leader_ = 0;
  time_point heard_{};  ///< when the leader has last sent something, or was first waited for
  bool leading_ = false;
  int version_ = 0;
  time_point proposed_{};
  std::optional<Survivors> proposal_{}, decision_{};
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

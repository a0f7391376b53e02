// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Some ranks of a session, which exchange messages without a separate MPI communicator: their tags contain the
/// number of their channel. A rank uses each number once, so messages of different channels never match.
struct RankSubset {
  std::vector<int> ranks{};  ///< in the session's communicators
  int channel = 0;

  /// The tags of a channel: one half for collectives, the other for user messages.
  static constexpr int tags = 1 << 16;
  static constexpr int user_tags = tags / 2;

  [[nodiscard]] int first_tag() const noexcept { return channel * tags; }
  /// @pre the ranks are in order
  [[nodiscard]] bool has(int rank) const noexcept { return std::ranges::binary_search(ranks, rank); }
  bool operator==(const RankSubset&) const = default;
};

/// One rank's side of the agreement on the surviving ranks, without a transport: messages and times are passed in.
///
/// Every rank says that it joins. Once every other one has joined, has ended or is missing in another rank's proposal,
/// or the deadline is over, it proposes the ranks that have joined to all. Later proposals only remove ranks: those
/// that end, and those that another one of the set has removed. A rank decides once all of its set propose the same,
/// and passes the decision on, so it reaches all if it reaches one. It proposes nothing afterwards, so none of its set
/// can decide otherwise.
///
/// Every rank that decides decides the same if the loss of a rank is known, by `ended`. The loss of others is concluded
/// from their silence: of a rank that has not joined at the deadline, or half a deadline after the first proposal of
/// another one; later, of a rank that does not propose the same for another deadline. A rank that the others have
/// removed waits twice as long, for their decision. One that was suspected by mistake is excluded.
class Agreement {
 public:
  using time_point = Deadline::clock::time_point;
  struct Message {
    bool decided = false;
    /// Proposed or decided, in order; without ranks, the rank joins, and has not used the channel.
    RankSubset survivors{};

    /// Returns the message as it is sent, with one bit for each rank, so that it is short.
    [[nodiscard]] std::vector<int> words() const {
      std::vector<int> all{decided ? 1 : 0, survivors.channel};
      for (const int rank : survivors.ranks) {
        all.resize(static_cast<std::size_t>(rank / digits) + 3);
        all.back() |= 1 << rank % digits;
      }
      return all;
    }
    [[nodiscard]] static Message from(std::span<const int> words) {
      Message made{words[0] != 0, {{}, words[1]}};
      for (int first = 0; const int bits : words.subspan(2)) {
        for (int bit = 0; bit < digits; ++bit)
          if ((bits >> bit & 1) != 0) made.survivors.ranks.push_back(first + bit);
        first += digits;
      }
      return made;
    }

   private:
    static constexpr int digits = std::numeric_limits<int>::digits;
  };
  using Send = std::function<void(const Message&)>;  ///< to all other ranks
  using Ended = std::function<bool(int rank)>;

  Agreement(int self, int size, int channel, Timeout deadline, time_point now, Send send)
      : self_(self),
        deadline_(deadline),
        end_(Deadline(deadline, now).end()),
        send_(std::move(send)),
        members_(static_cast<std::size_t>(size)) {
    receive(self, {false, {{}, channel}});
    send_({false, {{}, channel}});
  }

  void receive(int from, const Message& message) {
    if (message.decided) return decide(message.survivors);
    Participant& sender = member(from);
    sender.joined = true;
    if (message.survivors.ranks.empty()) {
      sender.channel = message.survivors.channel;
      return;
    }
    const auto& own = member(self_).proposal;
    if (own && !own->has(from)) return;
    const auto is_same = [&](const Participant& each) { return each.proposal && *each.proposal == message.survivors; };
    const auto same = is_same(member(self_)) ? members_.begin() + self_ : std::ranges::find_if(members_, is_same);
    sender.proposal = same != members_.end() ? same->proposal : std::make_shared<const RankSubset>(message.survivors);
    for (auto next = message.survivors.ranks.begin(); Participant & each : members_) {
      if (next != message.survivors.ranks.end() && *next == rank_of(each))
        ++next;
      else
        each.removed = true;
    }
  }

  /// Progresses; returns the decision, once it is made. The messages received so far must have been passed in.
  [[nodiscard]] const std::optional<RankSubset>& step(time_point now, const Ended& ended) {
    const auto is_known = [&](const Participant& each) { return each.joined || each.removed || ended(rank_of(each)); };
    const auto has_proposed = [](const Participant& each) { return each.proposal != nullptr; };
    const auto& own = member(self_).proposal;
    // Those that have joined are about to be known, so a rank that proposed at once is not kept waiting.
    if (!own && !deadline_.unlimited() && std::ranges::any_of(members_, has_proposed))
      end_ = std::min(end_, now + deadline_.limit() / 2);
    if (decision_ || (now < end_ && !std::ranges::all_of(members_, is_known))) return decision_;
    const auto differs = [&](const Participant& each) { return each.proposal != own && own->has(rank_of(each)); };
    RankSubset next = remaining(ended);
    if (own && next == *own && !deadline_.unlimited() && now - proposed_ >= patience())
      next = remaining([&](int rank) { return ended(rank) || differs(member(rank)); });
    if (!own || next != *own) propose(next, now);
    if (std::ranges::none_of(members_, differs)) decide(next);
    return decision_;
  }

 private:
  struct Participant {
    bool joined = false;
    bool removed = false;  ///< from the proposal of a rank
    int channel = 0;
    std::shared_ptr<const RankSubset> proposal{};  ///< equal ones of several ranks are one object
  };

  [[nodiscard]] Participant& member(int rank) noexcept { return members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int rank_of(const Participant& one) const noexcept { return static_cast<int>(&one - members_.data()); }
  /// Returns the ranks that have joined, or those of this rank's last proposal, without those that are lost.
  template <class IsLost>
  [[nodiscard]] RankSubset remaining(const IsLost& is_lost) {
    const auto& own = member(self_).proposal;
    RankSubset left;
    for (const Participant& each : members_) {
      const int rank = rank_of(each);
      const bool is_in_set = each.joined && !each.removed && (!own || own->has(rank));
      if (rank != self_ && (!is_in_set || is_lost(rank))) continue;
      left.ranks.push_back(rank);
      left.channel = std::max(left.channel, each.channel);
    }
    return left;
  }
  /// Returns how long this rank waits for the others to propose the same.
  [[nodiscard]] Timeout::duration patience() noexcept { return (member(self_).removed ? 2 : 1) * deadline_.limit(); }
  void propose(const RankSubset& survivors, time_point now) {
    proposed_ = now;
    const auto own = std::make_shared<const RankSubset>(survivors);
    for (Participant& each : members_)
      if (each.proposal && *each.proposal == survivors) each.proposal = own;
    member(self_).proposal = own;
    send_({false, survivors});
  }
  // To all ranks, so that one that was considered failed is notified that it is excluded.
  void decide(const RankSubset& survivors) {
    if (decision_) return;
    decision_ = survivors;
    send_({true, survivors});
  }

  int self_;
  Timeout deadline_;
  time_point end_;
  Send send_;
  std::vector<Participant> members_;
  time_point proposed_{};
  std::optional<RankSubset> decision_{};
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

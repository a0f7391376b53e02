// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distx/core/detail/known_failures.hpp"
#include "distx/core/detail/leak.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/mpi/detail/handles.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// A collective: it is call number `number` of the blocking or the asynchronous ones, counted from 1. Number 0 is none.
struct CallNumber {
  bool started = false;
  std::uint64_t number = 0;
};
using CallCounts = std::array<std::uint64_t, 2>;  ///< of blocking and of asynchronous collectives

/// Carries failure notifications, among them revocations of communicators, exit notices and agreements among the ranks
/// of one session, separate from all other traffic. Nothing that it does blocks.
///
/// One MPI communicator serves all communicators of a session and is freed at MPI's finalization, so a late
/// notification cannot arrive in another communicator's traffic. Each communicator has an identity that its ranks agree
/// on, under which its revocation is published. Errors of MPI are ignored: a rank that cannot be reached has failed, or
/// considers this one failed, and its peers have deadlines.
class Control {
 public:
  /// A message of an agreement.
  struct Received {
    int from = 0;
    std::vector<int> words{};
  };

  Control(mpi_unique_comm comm, int rank) : comm_(std::move(comm)), rank_(rank) {}

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_.native_handle(); }

  /// Begins to note the exits of a communicator's ranks, and its revocation in `revoked`.
  void join(std::uint64_t identity, std::atomic<bool>& revoked) {
    const std::lock_guard lock(mutex_);
    receive_locked();  // also for ranks whose calls never wait
    auto& exits = members_.emplace(identity, Member{revoked}).first->second.exits;
    revoked = reasons_.contains(identity);
    std::erase_if(early_exits_, [&](const Header& exit) {
      if (exit.identity == identity) exits.push_back(exit);
      return exit.identity == identity;
    });
  }
  void leave(std::uint64_t identity) noexcept {
    const std::lock_guard lock(mutex_);
    members_.erase(identity);
    reasons_.erase(identity);
  }
  /// Notifies `ranks` of `comm()` that rank `rank` of a communicator makes no more calls than it has made. That may
  /// overtake the messages of its last calls, which the others then still complete.
  void announce_exit(std::uint64_t identity, int rank, const CallCounts& made, std::span<const int> ranks) noexcept
      try {
    const std::lock_guard lock(mutex_);
    post({.identity = identity, .subject = Subject::exit, .rank = rank, .made = made}, {}, ranks);
  } catch (const std::bad_alloc&) {  // the others have their own deadlines
  }
  /// Returns a rank of a communicator that has announced its exit and did not make a call, -1 if none is known.
  [[nodiscard]] int exited_before(std::uint64_t identity, const CallNumber& call) {
    if (!one_has_exited_) return -1;
    const std::lock_guard lock(mutex_);
    const auto member = members_.find(identity);
    if (member == members_.end()) return -1;
    for (const Header& exit : member->second.exits)
      if (exit.made[call.started ? 1 : 0] < call.number) return exit.rank;
    return -1;
  }

  /// Notes an error after which a rank may not join any more.
  void note_failure() noexcept { failed_ = true; }
  /// Notes that all ranks have joined since.
  void forget_failures() noexcept {
    failed_ = false;
    known_failures_ = known_failures.load();
  }
  [[nodiscard]] bool has_failed() const noexcept { return failed_ || known_failures_ != known_failures; }

  /// Notifies this rank and `ranks` of `comm()` of a failure, unless one with that identity is known.
  void publish(std::uint64_t identity, const std::string& why, std::span<const int> ranks) noexcept try {
    const std::lock_guard lock(mutex_);
    if (reasons_.contains(identity)) return;
    note(identity, why);
    post({.identity = identity, .subject = Subject::notification}, std::string_view(why).substr(0, longest_reason),
         ranks);
  } catch (const std::bad_alloc&) {  // the others have their own deadlines
  }
  /// Returns what has been published, as far as it has been received.
  [[nodiscard]] std::optional<std::string> reason(std::uint64_t identity) {
    const std::lock_guard lock(mutex_);
    if (const auto found = reasons_.find(identity); found != reasons_.end()) return found->second;
    if (lost_) return "a failure whose reason could not be stored: out of memory";
    return std::nullopt;
  }

  /// Sends a message of the agreement of a group to `ranks` of `comm()`, except this one.
  void send(std::uint64_t group, std::span<const int> ranks, std::span<const int> words) {
    const std::lock_guard lock(mutex_);
    post({.identity = group, .subject = Subject::agreement},
         {reinterpret_cast<const char*>(words.data()), words.size_bytes()}, ranks);
  }
  /// Returns the messages of a group's agreement that were not returned before.
  [[nodiscard]] std::vector<Received> received(std::uint64_t group) {
    const std::lock_guard lock(mutex_);
    receive_locked();
    remove_sent();
    const auto found = agreements_.extract(group);
    return found.empty() ? std::vector<Received>() : std::move(found.mapped());
  }

  /// Receives the messages that have arrived, unless another thread is receiving them.
  void try_receive() {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) receive_locked();
  }
  /// Receives the messages that have arrived, after any other thread that is receiving them.
  void receive() {
    const std::lock_guard lock(mutex_);
    receive_locked();
  }

  /// Frees the communicator; messages that it has sent remain readable while this object exists.
  void close() noexcept try {
    receive();  // most communicators are destroyed shortly before
    remove_sent();
    comm_.reset();
  } catch (const std::bad_alloc&) {
  }
  /// Releases the communicator without freeing it, and leaks the messages that peers may still read.
  void abandon() noexcept {
    (void)comm_.release();
    leak(std::move(sent_));
  }

 private:
  enum class Subject : std::int32_t { notification, exit, agreement };
  struct Header {
    std::uint64_t identity = 0;
    Subject subject = Subject::notification;
    std::int32_t rank = 0;  ///< in its communicator, of an exit
    CallCounts made{};      ///< of an exit
  };
  /// A communicator of this rank.
  struct Member {
    std::atomic<bool>& revoked;
    std::vector<Header> exits{};
  };
  struct Sent {
    std::vector<std::byte> bytes;
    std::vector<MPI_Request> requests;
  };
  static constexpr int tag = 32767;                    // MPI has it, and no call of the session, whose channel is 0
  static constexpr std::size_t longest_reason = 1007;  // small enough for MPI to send eagerly

  /// @pre the mutex is held
  void receive_locked() {
    for (int misses = 0; misses < 2;) {  // Open MPI progresses after it probes, so probe twice
      int arrived = 0, count = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, tag, comm(), &arrived, &status) != MPI_SUCCESS) return;
      if (arrived == 0) {
        ++misses;
        continue;
      }
      if (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS) return;
      received_.resize(static_cast<std::size_t>(count));
      if (MPI_Recv(received_.data(), count, MPI_BYTE, status.MPI_SOURCE, tag, comm(), MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
      Header header;
      std::memcpy(&header, received_.data(), sizeof header);
      take(status.MPI_SOURCE, header, std::span<const char>(received_).subspan(sizeof header));
    }
  }
  /// @param data  a reason, or the words of an agreement
  void take(int from, const Header& header, std::span<const char> data) {
    if (header.subject == Subject::notification) return note(header.identity, {data.begin(), data.end()});
    if (header.subject == Subject::agreement) {
      auto& words = agreements_[header.identity].emplace_back(from).words;
      words.resize(data.size() / sizeof(int));
      std::ranges::copy(data, reinterpret_cast<char*>(words.data()));
      return;
    }
    one_has_exited_ = true;
    if (const auto member = members_.find(header.identity); member != members_.end()) {
      member->second.exits.push_back(header);
    } else {
      // Of a communicator that is not complete yet, or, mostly, that is destroyed: the latest ones are kept. A wait for
      // a rank whose exit is dropped ends at the deadline.
      if (early_exits_.size() == 1024) early_exits_.pop_front();
      early_exits_.push_back(header);
    }
  }
  /// Stores a notification, and notes the failure, unless all ranks throw it.
  void note(std::uint64_t identity, const std::string& why) {
    if (!RevocationReason::on_all_ranks(RevocationReason::mark_of(why))) note_failure();
    try {
      reasons_.emplace(identity, why);
    } catch (const std::bad_alloc&) {
      lost_ = true;  // without memory for the reason, every identity reports a failure
    }
    if (const auto member = members_.find(identity); member != members_.end()) member->second.revoked = true;
  }

  /// Sends a message to these ranks, except this one. @pre the mutex is held
  void post(const Header& header, std::string_view text, std::span<const int> ranks) {
    if (!is_up()) return;
    remove_sent();
    auto& [bytes, requests] = sent_.emplace_back();
    bytes.resize(sizeof header + text.size());
    std::memcpy(bytes.data(), &header, sizeof header);
    text.copy(reinterpret_cast<char*>(bytes.data() + sizeof header), text.size());
    requests.resize(ranks.size(), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] != rank_ && MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, ranks[i], tag, comm(),
                                         &requests[i]) != MPI_SUCCESS)
        requests[i] = MPI_REQUEST_NULL;
  }
  void remove_sent() noexcept {
    sent_.remove_if([](Sent& sent) { return mpi::are_complete(sent.requests, false); });
  }

  mpi_unique_comm comm_;
  int rank_;
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> known_failures_{known_failures.load()};
  std::map<std::uint64_t, Member> members_;  ///< by identity
  std::deque<Header> early_exits_;
  std::map<std::uint64_t, std::vector<Received>> agreements_;
  std::list<Sent> sent_;
  std::vector<char> received_;
  std::map<std::uint64_t, std::string> reasons_;  ///< of the notifications, by identity
  bool lost_ = false;                             ///< one of them
  std::atomic<bool> one_has_exited_{false};       ///< a rank of a communicator
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

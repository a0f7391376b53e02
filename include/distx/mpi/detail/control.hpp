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
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distx/connect/detail/local_failure_channel.hpp"
#include "distx/connect/failure_channel.hpp"
#include "distx/core/detail/known_failures.hpp"
#include "distx/core/detail/leak.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/mpi/detail/check.hpp"
#include "distx/mpi/detail/handles.hpp"

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

/// Whether a communicator has been revoked, and why; the reason is written once, before the flag is set.
struct Revocation {
  std::atomic<bool> revoked{false};
  detail::RevocationReason reason;
  std::atomic<bool> knows_of_mismatch{false};  ///< a call of this rank has thrown it
  ExitNotices exits;                           ///< of ranks that have destroyed the communicator

  void revoke(detail::RevocationReason why) {
    if (revoked.load()) return;
    reason = std::move(why);
    revoked.store(true, std::memory_order_release);
  }
  /// Throws the reason: a mismatch once, on whichever thread is first. @pre revoked
  [[noreturn]] void raise(const ErrorContext& context) {
    detail::RevocationReason why = reason;
    why.thrown = knows_of_mismatch.exchange(true);
    why.raise(context);
  }
};

/// Carries revocations, exit notices, failure notifications and agreements among the ranks of one session, separate
/// from all other traffic. Nothing that it does blocks.
///
/// One MPI communicator serves all communicators of a session and is freed at MPI's finalization, so a late
/// notification cannot arrive in another communicator's traffic. Each communicator has an identity that its ranks agree
/// on; the identities of user notifications are separate, and so are those of groups that agree. Errors of MPI are
/// ignored: a rank that cannot be reached has failed, or considers this one failed, and its peers have deadlines.
class Control {
 public:
  /// A message of an agreement.
  struct Received {
    int from = 0;
    std::vector<int> words{};
  };

  Control(mpi_unique_comm comm, int rank, int size)
      : comm_(std::move(comm)), rank_(rank), all_(static_cast<std::size_t>(size)) {
    std::iota(all_.begin(), all_.end(), 0);
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_.native_handle(); }
  /// Returns an identity that no other rank of the session uses.
  [[nodiscard]] std::uint64_t new_identity() noexcept {
    return (static_cast<std::uint64_t>(rank_) << 40) + next_.fetch_add(1);
  }

  void join(std::uint64_t identity, Revocation& revocation) {
    const std::lock_guard lock(mutex_);
    receive_locked();  // also for ranks whose calls never wait
    members_.emplace(identity, &revocation);
    std::erase_if(early_, [&](const ControlMessage& message) {
      const bool own = message.header.identity == identity;
      if (own) take(message, revocation);
      return own;
    });
  }
  /// Notes an error after which a rank may not join any more.
  void note_failure() noexcept { failed_ = true; }
  /// Notes that all ranks have joined since.
  void forget_failures() noexcept {
    failed_ = false;
    known_failures_ = known_failures.load();
  }
  [[nodiscard]] bool has_failed() const noexcept { return failed_ || known_failures_ != known_failures; }

  void leave(std::uint64_t identity) noexcept {
    const std::lock_guard lock(mutex_);
    members_.erase(identity);
  }
  /// Notifies `ranks` of `comm()` that rank `rank` makes no more calls than it has made.
  void announce_exit(std::uint64_t identity, int rank, const ExitNotices::Counts& made,
                     std::span<const int> ranks) noexcept try {
    const std::lock_guard lock(mutex_);
    post({.identity = identity, .subject = Subject::exit, .rank = rank, .made = made}, {}, ranks);
  } catch (const std::bad_alloc&) {  // the others have their own deadlines
  }

  /// Revokes on this rank and notifies `ranks` of `comm()`.
  void revoke(std::uint64_t identity, Revocation& revocation, int rank, std::span<const int> ranks,
              const std::string& why) noexcept try {
    const std::lock_guard lock(mutex_);
    const bool known = revocation.revoked.load();
    revocation.knows_of_mismatch = true;  // this rank throws the error itself, even if a peer was first
    if (known) return;
    const auto reason = detail::RevocationReason::parse(why).by(rank);
    judge(why);
    revocation.revoke(reason);
    post({.identity = identity}, reason.published(), ranks);
  } catch (...) {
    revocation.revoked.store(true);  // the reason could not be allocated
  }

  /// Publishes a notification to all ranks of `comm()`, including this one, unless one with that identity was received.
  void publish(std::uint64_t identity, const std::string& why) noexcept try {
    const std::lock_guard lock(mutex_);
    if (notifications_.poll(identity)) return;
    notifications_.publish(identity, why);
    judge(why);
    post({.identity = identity, .subject = Subject::notification}, why, all_);
  } catch (...) {
    notifications_.publish(identity, why);  // the other ranks have their own deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) {
    if (is_up()) try_receive();
    return notifications_.poll(identity);
  }

  /// Sends a message of the agreement of a group to a rank of `comm()`.
  void send(std::uint64_t group, int to, std::span<const int> words) {
    const std::lock_guard lock(mutex_);
    post({.identity = group, .subject = Subject::agreement},
         {reinterpret_cast<const char*>(words.data()), words.size_bytes()}, {&to, 1});
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
  enum class Subject : std::int32_t { communicator, notification, exit, agreement };
  struct Header {
    std::uint64_t identity = 0;
    Subject subject = Subject::communicator;
    std::int32_t rank = 0;       ///< in its communicator, of an exit
    ExitNotices::Counts made{};  ///< of an exit
  };
  struct ControlMessage {
    int from = 0;
    Header header{};
    std::string text{};  ///< a reason, or the words of an agreement
  };
  struct Sent {
    std::vector<std::byte> bytes;
    std::vector<MPI_Request> requests;
  };
  static constexpr int tag = 0;
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
      ControlMessage message{.from = status.MPI_SOURCE};
      std::memcpy(&message.header, received_.data(), sizeof message.header);
      message.text.assign(received_.begin() + sizeof message.header, received_.end());
      take(std::move(message));
    }
  }
  void take(ControlMessage message) {
    const auto& [from, header, text] = message;
    if (header.subject == Subject::agreement) {
      auto& words = agreements_[header.identity].emplace_back(from).words;
      words.resize(text.size() / sizeof(int));
      text.copy(reinterpret_cast<char*>(words.data()), text.size());
      return;
    }
    if (header.subject != Subject::exit) judge(text);
    if (header.subject == Subject::notification)
      notifications_.publish(header.identity, text);
    else if (const auto member = members_.find(header.identity); member != members_.end())
      take(message, *member->second);
    else
      keep_early(std::move(message));
  }
  static void take(const ControlMessage& message, Revocation& revocation) {
    if (message.header.subject == Subject::exit)
      revocation.exits.note(message.header.rank, message.header.made);
    else
      revocation.revoke(detail::RevocationReason::parse(message.text));
  }
  /// Keeps messages about a communicator that is not complete yet, or destroyed: the latest ones only, because most are
  /// of the second kind; exits are dropped first. A wait for a rank whose exit is lost ends at the deadline.
  void keep_early(ControlMessage message) {
    if (early_.size() == 1024) {
      const auto exit =
          std::ranges::find(early_, Subject::exit, [](const ControlMessage& early) { return early.header.subject; });
      early_.erase(exit == early_.end() ? early_.begin() : exit);
    }
    early_.push_back(std::move(message));
  }

  /// Notes the failure that a reason is, unless all ranks throw it.
  void judge(std::string_view published) {
    if (!detail::RevocationReason::on_all_ranks(detail::RevocationReason::mark_of(published))) note_failure();
  }

  /// Sends a message to these ranks, except this one. @pre the mutex is held
  void post(const Header& header, std::string_view text, std::span<const int> ranks) {
    if (!is_up()) return;
    remove_sent();
    if (header.subject != Subject::agreement) text = text.substr(0, longest_reason);
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
    sent_.remove_if([](Sent& sent) { return mpi::are_complete(sent.requests); });
  }

  mpi_unique_comm comm_;
  int rank_;
  std::vector<int> all_;  ///< ranks
  std::mutex mutex_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> known_failures_{known_failures.load()};
  std::map<std::uint64_t, Revocation*> members_;
  std::deque<ControlMessage> early_;
  std::map<std::uint64_t, std::vector<Received>> agreements_;
  std::list<Sent> sent_;
  std::vector<char> received_;
  detail::LocalFailureChannel notifications_;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

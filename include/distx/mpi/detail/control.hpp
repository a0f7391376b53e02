// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
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
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/mpi/detail/check.hpp"
#include "distx/mpi/detail/control_messages.hpp"
#include "distx/mpi/detail/exit_notices.hpp"
#include "distx/mpi/detail/handles.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Whether a communicator has been revoked, and why; the reason is written once, before the flag is set.
struct Revocation {
  std::atomic<bool> revoked{false};
  detail::RevocationReason reason;
  std::atomic<bool> knows_of_mismatch{false};  ///< a call of this rank has thrown it

  /// Throws the reason: a mismatch once, on whichever thread is first. @pre revoked
  [[noreturn]] void raise(const ErrorContext& context) {
    detail::RevocationReason why = reason;
    why.thrown = knows_of_mismatch.exchange(true);
    why.raise(context);
  }
};

/// Carries revocations, exit notices and failure notifications among the ranks of one session, separate from all other
/// traffic.
///
/// One MPI communicator serves all communicators of a session and is freed at MPI's finalization, so a late
/// notification cannot arrive in another communicator's traffic. Each communicator has an identity that its ranks agree
/// on; the identities of user notifications are separate.
class Control {
 public:
  Control(mpi_unique_comm comm, int rank, int size)
      : comm_(std::move(comm)),
        rank_(rank),
        all_(static_cast<std::size_t>(size)),
        messages_(comm_.native_handle(), rank, 0) {
    std::iota(all_.begin(), all_.end(), 0);
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_.native_handle(); }
  /// Returns an identity that no other rank of the session uses.
  [[nodiscard]] std::uint64_t new_identity() noexcept {
    return (static_cast<std::uint64_t>(rank_) << 40) + next_.fetch_add(1);
  }

  /// Returns the identity of a communicator that uses a channel; see RankSubset. None of `new_identity` is the same.
  [[nodiscard]] static std::uint64_t identity_of_channel(int channel) noexcept {
    return (std::uint64_t{1} << 63) + static_cast<std::uint64_t>(channel);
  }

  void join(std::uint64_t identity, Revocation& revocation, ExitNotices& exit_notices) {
    const std::lock_guard lock(mutex_);
    receive_locked();  // also for ranks whose calls never wait
    const auto& member = members_.emplace(identity, Registered{&revocation, &exit_notices}).first->second;
    std::erase_if(early_, [&](const Notification& notification) {
      const bool own = notification.identity == identity;
      if (own) receive(notification, member);
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
  /// Notifies `ranks` of `comm()` that rank `rank` makes no more calls than it has made. Does not block.
  void announce_exit(std::uint64_t identity, int rank, const ExitNotices::Counts& made,
                     std::span<const int> ranks) noexcept try {
    const std::lock_guard lock(mutex_);
    post({.identity = identity, .subject = Subject::exit, .rank = rank, .made = made}, {}, ranks);
  } catch (const std::bad_alloc&) {  // the others have their own deadlines
  }

  /// Revokes on this rank and notifies `ranks` of `comm()`. Does not block.
  void revoke(std::uint64_t identity, Revocation& revocation, int rank, std::span<const int> ranks,
              const std::string& why) noexcept try {
    const std::lock_guard lock(mutex_);
    if (revocation.revoked.load()) {
      revocation.knows_of_mismatch = true;  // as below, even if a peer was first
      return;
    }
    const auto reason = detail::RevocationReason::parse(why).by(rank);
    judge(why);
    revocation.knows_of_mismatch = true;  // this rank throws the error itself
    end(revocation, reason);
    post({.identity = identity, .subject = Subject::communicator}, reason.published(), ranks);
  } catch (...) {
    revocation.revoked.store(true);  // the reason could not be allocated
  }

  /// Publishes a notification to all ranks of `comm()`, including this one, unless one with that identity was received.
  /// Does not block.
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

  /// Receives the notifications that have arrived, unless another thread is receiving them.
  void try_receive() {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) receive_locked();
  }
  /// Receives the notifications that have arrived, after any other thread that is receiving them.
  void receive() {
    const std::lock_guard lock(mutex_);
    receive_locked();
  }

  /// Frees the communicator; messages that it has sent remain readable while this object exists.
  void close() noexcept {
    try {
      receive();  // most communicators are destroyed shortly before
    } catch (const std::bad_alloc&) {
    }
    messages_.remove_sent();
    comm_.reset();
  }
  /// Releases the communicator without freeing it, and leaks the messages that peers may still read.
  void abandon() noexcept {
    (void)comm_.release();
    messages_.abandon();
  }

 private:
  enum class Subject : std::int32_t { communicator, notification, exit };
  struct Notification {
    std::uint64_t identity = 0;
    Subject subject = Subject::communicator;
    std::int32_t rank = 0;       ///< in its communicator, of an exit
    ExitNotices::Counts made{};  ///< of an exit
    char reason[1008] = {};      ///< sent as long as its text; small enough for MPI to send eagerly
  };
  struct Registered {
    Revocation* revocation;
    ExitNotices* exit_notices;
  };

  /// @pre the mutex is held
  void receive_locked() {
    messages_.receive([this](int, std::span<const std::byte> bytes) {
      Notification notification;
      std::memcpy(&notification, bytes.data(), std::min(bytes.size(), sizeof notification));
      if (notification.subject != Subject::exit) judge(notification.reason);
      if (notification.subject == Subject::notification)
        notifications_.publish(notification.identity, notification.reason);
      else if (const auto member = members_.find(notification.identity); member != members_.end())
        receive(notification, member->second);
      else
        keep_early(notification);
    });
  }

  /// Notes the failure that a reason is, unless all ranks throw it.
  void judge(std::string_view published) {
    if (!detail::RevocationReason::on_all_ranks(detail::RevocationReason::mark_of(published))) note_failure();
  }
  static void receive(const Notification& notification, const Registered& member) {
    if (notification.subject == Subject::exit)
      member.exit_notices->note(notification.rank, notification.made);
    else
      end(*member.revocation, detail::RevocationReason::parse(notification.reason));
  }
  /// Keeps notifications about a communicator that is not complete yet, or destroyed: the latest ones only, because
  /// most are of the second kind; exits are dropped first. A wait for a rank whose exit is lost ends at the deadline.
  void keep_early(const Notification& notification) {
    if (early_.size() == 1024) {
      const auto exit = std::ranges::find(early_, Subject::exit, &Notification::subject);
      early_.erase(exit == early_.end() ? early_.begin() : exit);
    }
    early_.push_back(notification);
  }

  /// @pre the mutex is held
  void post(const Notification& notification, const std::string& reason, std::span<const int> ranks) {
    if (!is_up()) return;
    Notification whole = notification;
    const std::size_t length = reason.copy(whole.reason, sizeof whole.reason - 1);
    const auto bytes = std::as_bytes(std::span(&whole, 1)).first(offsetof(Notification, reason) + length + 1);
    messages_.post({bytes.begin(), bytes.end()}, ranks);
  }

  static void end(Revocation& revocation, detail::RevocationReason reason) {
    if (revocation.revoked.load()) return;
    revocation.reason = std::move(reason);
    revocation.revoked.store(true, std::memory_order_release);
  }

  mpi_unique_comm comm_;
  int rank_;
  std::vector<int> all_;  ///< ranks
  std::mutex mutex_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> known_failures_{known_failures.load()};
  std::map<std::uint64_t, Registered> members_;
  std::deque<Notification> early_;
  ControlMessages messages_;
  detail::LocalFailureChannel notifications_;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "distx/connect/failure_channel.hpp"
#include "distx/mpi/detail/check.hpp"
#include "distx/mpi/detail/handles.hpp"

namespace distx::mpi {

/// Whether one communicator has been revoked, and why; the reason is written once, before the flag.
struct Revocation {
  std::atomic<bool> revoked{false};
  std::string reason;
};

/// Carries revocations, and the notices of others, among the ranks of one session, beside all other traffic.
///
/// One MPI communicator serves all communicators made from a session and is freed with MPI alone: a late notice can
/// thus never arrive in another communicator's traffic. Every communicator has an identity that its ranks agree on;
/// those of notices are the users' own, and apart from them.
class Control {
 public:
  explicit Control(unique_comm comm) : comm_(std::move(comm)) {}

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_.native_handle(); }
  /// An identity that no other rank of the session gives out.
  [[nodiscard]] std::uint64_t new_identity(int rank) noexcept {
    return (static_cast<std::uint64_t>(rank) << 40) + next_.fetch_add(1);
  }

  void join(std::uint64_t identity, Revocation& revocation) {
    const std::lock_guard lock(mutex_);
    members_.emplace(identity, &revocation);
    if (const auto early = early_.extract(identity); !early.empty()) end(revocation, std::move(early.mapped()));
  }
  void leave(std::uint64_t identity) noexcept {
    const std::lock_guard lock(mutex_);
    members_.erase(identity);
  }

  /// Revokes on this rank and tells `peers`, which are ranks of `comm()`. Waits for nobody.
  void revoke(std::uint64_t identity, Revocation& revocation, int rank, std::span<const int> peers,
              const std::string& why) noexcept try {
    const std::lock_guard lock(mutex_);
    if (revocation.revoked.load()) return;
    end(revocation, "rank " + std::to_string(rank) + " revoked the communicator: " + why);
    post(Subject::communicator, identity, revocation.reason, peers);
  } catch (...) {
    revocation.revoked.store(true);  // without memory for the reason
  }

  /// Gives a notice to every rank of `comm()`, this one too, unless this rank has heard one of that identity. Waits for
  /// nobody.
  void publish(std::uint64_t identity, const std::string& why) noexcept try {
    const std::lock_guard lock(mutex_);
    if (told_.poll(identity)) return;
    told_.publish(identity, why);
    if (!is_up()) return;
    int rank = 0;
    int size = 0;
    if (MPI_Comm_rank(comm(), &rank) != MPI_SUCCESS || MPI_Comm_size(comm(), &size) != MPI_SUCCESS) return;
    std::vector<int> others;
    for (int other = 0; other < size; ++other)
      if (other != rank) others.push_back(other);
    post(Subject::notice, identity, why, others);
  } catch (...) {
    told_.publish(identity, why);  // the others have their own deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) {
    if (is_up()) look();
    return told_.poll(identity);
  }

  /// Takes in what has arrived, unless another thread does so at this moment.
  void look() {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) take_in();
  }
  /// Takes in what has arrived; afterwards it has been taken in, whoever did.
  void look_for_sure() {
    const std::lock_guard lock(mutex_);
    take_in();
  }

  /// Frees the communicator; what it has sent stays readable until this object goes.
  void close() noexcept { comm_.reset(); }
  /// Gives the communicator up without freeing it, and the letters that may still be read.
  void abandon() noexcept {
    (void)comm_.release();
    (void)new std::list<Letter>(std::move(outbox_));
  }

 private:
  enum class Subject : std::uint64_t { communicator, notice };
  struct Notice {
    std::uint64_t identity = 0;
    Subject subject = Subject::communicator;
    char reason[1008] = {};  // in all 1 KiB: small enough to be sent without waiting for the receiver
  };
  struct Letter {
    Notice notice;
    std::vector<MPI_Request> requests;
  };

  /// @pre the mutex is held
  void take_in() {
    for (int vain = 0; vain < 2;) {  // Open MPI moves data after it has looked: what was there is found the second time
      int arrived = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, 0, comm(), &arrived, &status) != MPI_SUCCESS) return;
      if (arrived == 0) {
        ++vain;
        continue;
      }
      Notice notice;
      if (MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE, 0, comm(), MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
      if (notice.subject == Subject::notice)
        told_.publish(notice.identity, notice.reason);
      else if (const auto member = members_.find(notice.identity); member != members_.end())
        end(*member->second, notice.reason);
      else
        early_.emplace(notice.identity, notice.reason);  // of one that this rank is still making, or has let go
    }
  }

  /// @pre the mutex is held
  void post(Subject subject, std::uint64_t identity, const std::string& reason, std::span<const int> peers) {
    if (!is_up()) return;
    Letter& letter = outbox_.emplace_back();
    letter.notice.identity = identity;
    letter.notice.subject = subject;
    reason.copy(letter.notice.reason, sizeof letter.notice.reason - 1);
    letter.requests.assign(peers.size(), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < peers.size(); ++i)
      if (MPI_Isend(&letter.notice, sizeof(Notice), MPI_BYTE, peers[i], 0, comm(), &letter.requests[i]) != MPI_SUCCESS)
        letter.requests[i] = MPI_REQUEST_NULL;  // a peer that cannot be reached has its own deadline
  }

  static void end(Revocation& revocation, std::string reason) {
    if (revocation.revoked.load()) return;
    revocation.reason = std::move(reason);
    revocation.revoked.store(true, std::memory_order_release);
  }

  unique_comm comm_;
  std::mutex mutex_;
  std::atomic<std::uint64_t> next_{0};
  std::map<std::uint64_t, Revocation*> members_;
  std::map<std::uint64_t, std::string> early_;
  std::list<Letter> outbox_;
  detail::LocalFailureChannel told_;
};

}  // namespace distx::mpi

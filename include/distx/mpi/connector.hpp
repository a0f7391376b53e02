// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <climits>
#include <vector>

#include "distx/connect/self.hpp"
#include "distx/mpi/detail/session.hpp"

namespace distx {

/// Options of an MpiConnector.
struct MpiConnectorOptions {
  /// The deadline of this connector's calls and of the finalization of MPI.
  Timeout deadline = default_deadline;
  /// The thread level to request from MPI; `thread_level()` returns the level that MPI provides.
  using ThreadLevel = boost::mpi::threading::level;
  ThreadLevel thread_level = ThreadLevel::multiple;
};

/// The connector of an MPI program. Move-only; MPI is finalized after the connector and all communicators made from it
/// have been destroyed.
///
/// Destroying the last of them is collective, as MPI_Finalize is. During stack unwinding the destructor waits two
/// seconds for the other ranks and then leaves MPI initialized, so a failing rank cannot hang and the launcher
/// terminates the others.
class MpiConnector {
 public:
  /// Initializes MPI, which removes its own arguments from `argc` and `argv`. Collective.
  /// @throws ConnectError if MPI was initialized before, or differs from the MPI of the launcher
  MpiConnector(int& argc, char**& argv, const MpiConnectorOptions& options = {})
      : session_(std::make_shared<detail::mpi::Session>(
            std::make_shared<detail::mpi::World>(argc, argv, options.thread_level, options.deadline))) {}

  /// Joins the ranks of a host program's communicator. Collective over `comm`, which is duplicated and remains the
  /// caller's; MPI is never finalized.
  /// @throws ConnectError unless `comm` is an intracommunicator and MPI is initialized
  explicit MpiConnector(MPI_Comm comm, const MpiConnectorOptions& options = {})
      : session_(std::make_shared<detail::mpi::Session>(std::make_shared<detail::mpi::World>(comm, options.deadline))) {
  }

  MpiConnector(MpiConnector&&) noexcept = default;
  MpiConnector& operator=(MpiConnector&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return session_->rank(); }
  [[nodiscard]] int size() const noexcept { return session_->size(); }
  /// Returns this rank's index among the ranks that can share memory with it.
  [[nodiscard]] int local_rank() const noexcept { return session_->local_rank(); }
  [[nodiscard]] int local_size() const noexcept { return session_->local_size(); }
  [[nodiscard]] int root_rank() const noexcept { return 0; }
  [[nodiscard]] MpiConnectorOptions::ThreadLevel thread_level() const {
    return boost::mpi::environment::thread_level();
  }
  /// Returns the duplicated communicator, MPI_COMM_NULL after `shrink`; it remains owned by this connector. For
  /// Boost.MPI, attach to it:
  /// `boost::mpi::communicator(connector.native_handle(), boost::mpi::comm_attach)`.
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return session_->comm(); }
  /// Returns the channel for failure notifications, which keeps MPI initialized, or null without MPI_THREAD_MULTIPLE:
  /// then no thread may poll while another one calls MPI.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const {
    if (thread_level() != detail::mpi::ThreadLevel::multiple) return nullptr;
    return session_;
  }
  [[nodiscard]] const std::shared_ptr<detail::mpi::Session>& session() const noexcept { return session_; }

  /// Blocks until every rank has called it. Collective. @throws TimeoutError
  void barrier() { session_->barrier("barrier"); }

  /// Copies the root's bytes to every rank. Collective.
  /// @throws MismatchError on every rank if the sizes differ between ranks; TimeoutError
  void broadcast(std::span<std::byte> bytes, int root) {
    detail::check_control_root(root, rank(), size());
    if (session_->party()) return session_->make("broadcast", erase(calls::Broadcast<std::byte>{bytes, root}));
    same_size("broadcast", bytes.size());
    if (bytes.empty()) return;
    auto staged = std::make_unique<std::vector<std::byte>>(bytes.begin(), bytes.end());
    session_->run("broadcast", "MPI_Ibcast", staged, [&](auto& buffer, MPI_Request* request) {
      return MPI_Ibcast(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, root, native_handle(), request);
    });
    std::copy(staged->begin(), staged->end(), bytes.begin());
  }

  /// Concatenates all ranks' bytes in rank order into `receive` on every rank. Collective.
  /// @throws MismatchError on every rank if the sizes differ between ranks; TimeoutError
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), rank(), size());
    if (session_->party()) return session_->make("all_gather", erase(calls::AllGather<std::byte>{send, receive}));
    same_size("all_gather", send.size());
    if (send.empty()) return;
    gather("all_gather", send, receive);
  }

  /// Returns a connector of the ranks that are left, as `AnyConnector::shrink` describes, whose calls have the shorter
  /// of this deadline and this connector's. It makes no collective call of MPI.
  ///
  /// The end of a process of another host is noticed at the deadline only; a rank of another host that is lost during
  /// this call prolongs it by up to two deadlines. Communicators of MPI remain unusable; the launcher must let the
  /// ranks continue, as Open MPI's `mpirun --enable-recovery` does.
  /// @throws ConnectError without MPI_THREAD_MULTIPLE
  [[nodiscard]] MpiConnector shrink(Timeout deadline = default_deadline) {
    return MpiConnector(detail::mpi::Session::shrink(*session_, deadline));
  }

 private:
  explicit MpiConnector(std::shared_ptr<detail::mpi::Session> session) : session_(std::move(session)) {}

  // Uses a staging buffer, so MPI does not write to the caller's buffer after a timeout.
  void gather(const char* operation, std::span<const std::byte> send, std::span<std::byte> receive) {
    auto staged = std::make_unique<std::vector<std::byte>>(receive.size());
    const auto own = static_cast<std::size_t>(rank()) * send.size();
    std::copy(send.begin(), send.end(), staged->begin() + static_cast<std::ptrdiff_t>(own));
    session_->run(operation, "MPI_Iallgather", staged, [&](auto& buffer, MPI_Request* request) {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer.data(), static_cast<int>(send.size()), MPI_BYTE,
                            native_handle(), request);
    });
    std::copy(staged->begin(), staged->end(), receive.begin());
  }

  void same_size(const char* operation, std::size_t mine) {
    std::vector<std::size_t> all(static_cast<std::size_t>(size()));
    gather(operation, std::as_bytes(std::span<const std::size_t>(&mine, 1)), std::as_writable_bytes(std::span(all)));
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        throw MismatchError("rank 0 passes " + std::to_string(all[0]) + " bytes, rank " + std::to_string(rank) + " " +
                                std::to_string(all[rank]),
                            session_->where(operation));
    if (mine > INT_MAX)
      throw MismatchError(
          "a control message has at most " + std::to_string(INT_MAX) + " bytes, this one " + std::to_string(mine),
          session_->where(operation));
  }

  std::shared_ptr<detail::mpi::Session> session_;
};

}  // namespace distx

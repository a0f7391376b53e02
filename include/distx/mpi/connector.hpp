// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <climits>
#include <vector>

#include "distx/connect/self.hpp"
#include "distx/mpi/detail/session.hpp"

namespace distx {

/// Options of an MpiConnector.
struct MpiConnectorOptions {
  /// How long its own calls, and the end of MPI, wait for the other ranks.
  Timeout deadline = default_deadline;
  /// What MPI is asked for; what it grants is `thread_level()`.
  mpi::ThreadLevel thread_level = mpi::ThreadLevel::multiple;
};

/// The ranks of an MPI program. Move-only; MPI ends when this and all communicators made from it are gone.
///
/// Letting the last of them go is collective, as MPI_Finalize is: while unwinding it waits two seconds for the others,
/// and then leaves MPI as it is, so that a rank that fails cannot hang and the launcher ends the others.
class MpiConnector {
 public:
  /// Starts MPI, which takes its own arguments out of `argc` and `argv`. Collective.
  /// @throws ConnectError where MPI has been started before, or is not the MPI of the launcher
  MpiConnector(int& argc, char**& argv, const MpiConnectorOptions& options = {})
      : session_(std::make_shared<mpi::Session>(argc, argv, options.thread_level, options.deadline)) {}

  /// Joins the ranks of a host program's communicator, which is duplicated and otherwise left as it is; MPI is never
  /// finalised. Collective.
  /// @throws ConnectError unless it is an intracommunicator of a running MPI
  explicit MpiConnector(MPI_Comm comm, const MpiConnectorOptions& options = {})
      : session_(std::make_shared<mpi::Session>(comm, options.deadline)) {}

  MpiConnector(MpiConnector&&) noexcept = default;
  MpiConnector& operator=(MpiConnector&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return session_->rank(); }
  [[nodiscard]] int size() const noexcept { return session_->size(); }
  /// Among the ranks that can share memory with this one.
  [[nodiscard]] int local_rank() const noexcept { return session_->local_rank(); }
  [[nodiscard]] int local_size() const noexcept { return session_->local_size(); }
  [[nodiscard]] int root_rank() const noexcept { return 0; }
  [[nodiscard]] mpi::ThreadLevel thread_level() const { return boost::mpi::environment::thread_level(); }
  /// The duplicate that this connector works on; it stays the connector's.
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return session_->comm(); }
  /// The same ranks for Boost.MPI, which serialises whatever Boost.Serialization can.
  [[nodiscard]] boost::mpi::communicator boost() const { return session_->boost(); }
  /// They keep MPI running. Null where MPI serves one thread only: then nobody may look for them beside other calls.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const {
    if (thread_level() != mpi::ThreadLevel::multiple) return nullptr;
    return session_;
  }
  [[nodiscard]] const std::shared_ptr<mpi::Session>& session() const noexcept { return session_; }

  /// @throws TimeoutError
  void barrier() { session_->barrier("barrier"); }

  /// @throws MismatchError on every rank where the ranks pass different numbers of bytes; TimeoutError
  void broadcast(std::span<std::byte> bytes, int root) {
    detail::check_control_root(root, rank(), size());
    same_size("broadcast", bytes.size());
    if (bytes.empty()) return;
    auto staged = std::make_unique<std::vector<std::byte>>(bytes.begin(), bytes.end());
    session_->run("broadcast", "MPI_Ibcast", staged, [&](auto& buffer, MPI_Request* request) {
      return MPI_Ibcast(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, root, native_handle(), request);
    });
    std::copy(staged->begin(), staged->end(), bytes.begin());
  }

  /// @throws MismatchError on every rank where the ranks pass different numbers of bytes; TimeoutError
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), rank(), size());
    same_size("all_gather", send.size());
    if (send.empty()) return;
    gather("all_gather", send, receive);
  }

 private:
  // Staged, so that MPI writes to no buffer of the caller's after a timeout.
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

  std::shared_ptr<mpi::Session> session_;
};

}  // namespace distx

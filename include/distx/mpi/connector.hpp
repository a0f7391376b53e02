// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include <memory>
#include <span>

#include "distx/connect/failure_channel.hpp"
#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI {

namespace detail::mpi {

class Session;

}  // namespace detail::mpi

/// Options of an MpiConnector.
struct MpiConnectorOptions {
  /// The deadline of this connector's calls and of the finalization of MPI.
  Timeout deadline = default_deadline;
  /// MPI's thread levels.
  enum class ThreadLevel {
    single = MPI_THREAD_SINGLE,
    funneled = MPI_THREAD_FUNNELED,
    serialized = MPI_THREAD_SERIALIZED,
    multiple = MPI_THREAD_MULTIPLE,
  };
  /// The thread level to request from MPI; `thread_level()` returns the level that MPI provides.
  ThreadLevel thread_level = ThreadLevel::multiple;
};

/// The connector of an MPI program. Move-only; MPI is finalized after the connector and all communicators made from it
/// have been destroyed.
///
/// Destroying the last of them is collective, as MPI_Finalize is. During stack unwinding the destructor waits two
/// seconds for the other ranks and then leaves MPI initialized, so a failing rank cannot hang and the launcher
/// terminates the others. It waits five seconds if an error was caught instead, and one if a rank's process has ended.
class MpiConnector {
 public:
  /// Initializes MPI, which removes its own arguments from `argc` and `argv`. Collective.
  /// @throws ConnectError if MPI was initialized before, or differs from the MPI of the launcher
  MpiConnector(int& argc, char**& argv, const MpiConnectorOptions& options = {});

  /// Joins the ranks of a host program's communicator. Collective over `comm`, which is duplicated and remains the
  /// caller's; MPI is never finalized.
  /// @throws ConnectError unless `comm` is an intracommunicator and MPI is initialized
  explicit MpiConnector(MPI_Comm comm, const MpiConnectorOptions& options = {});

  MpiConnector(MpiConnector&&) noexcept = default;
  MpiConnector& operator=(MpiConnector&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// Returns this rank's index among the ranks that can share memory with it.
  [[nodiscard]] int local_rank() const noexcept;
  [[nodiscard]] int local_size() const noexcept;
  [[nodiscard]] int root_rank() const noexcept { return 0; }
  [[nodiscard]] MpiConnectorOptions::ThreadLevel thread_level() const;
  /// Returns the duplicated communicator, MPI_COMM_NULL after `shrink`; it remains owned by this connector. For
  /// Boost.MPI, attach to it:
  /// `boost::mpi::communicator(connector.native_handle(), boost::mpi::comm_attach)`.
  [[nodiscard]] MPI_Comm native_handle() const noexcept;
  /// Returns the channel for failure notifications, which keeps MPI initialized, or null without MPI_THREAD_MULTIPLE:
  /// then no thread may poll while another one calls MPI.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const;
  [[nodiscard]] const std::shared_ptr<detail::mpi::Session>& session() const noexcept { return session_; }

  /// Blocks until every rank has called it. Collective. @throws TimeoutError
  void barrier();

  /// Copies the root's bytes to every rank. Collective.
  /// @throws MismatchError on every rank if the sizes differ between ranks; TimeoutError
  void broadcast(std::span<std::byte> bytes, int root);

  /// Concatenates all ranks' bytes in rank order into `receive` on every rank. Collective.
  /// @throws MismatchError on every rank if the sizes differ between ranks; TimeoutError
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive);

  /// Returns a connector of the surviving ranks, as `AnyConnector::shrink` describes, whose calls have the shorter
  /// of this deadline and this connector's. It makes no collective call of MPI.
  ///
  /// The end of a process of another host is noticed at the deadline only; a rank of another host that is lost during
  /// this call prolongs it by up to two deadlines. Communicators of MPI remain unusable; the launcher must let the
  /// ranks continue, as Open MPI's `mpirun --enable-recovery` does.
  /// @throws ConnectError without MPI_THREAD_MULTIPLE
  [[nodiscard]] MpiConnector shrink(Timeout deadline = default_deadline);
  /// Returns an equal connector: no process can wait to join an MPI program. Local.
  [[nodiscard]] MpiConnector grow() const;

 private:
  explicit MpiConnector(std::shared_ptr<detail::mpi::Session> session) noexcept;

  void gather(const char* operation, std::span<const std::byte> send, std::span<std::byte> receive);

  void same_size(const char* operation, std::size_t mine);

  std::shared_ptr<detail::mpi::Session> session_;
};

}  // namespace distx::inline DISTX_ABI

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include <memory>
#include <utility>

#include "distx/connect/connector.hpp"

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
///
/// Its failure channel keeps MPI initialized. Without MPI_THREAD_MULTIPLE `failure_channel()` returns null: then no
/// thread may poll while another one calls MPI.
class MpiConnector : public detail::ErasedConnector {
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

  [[nodiscard]] MpiConnectorOptions::ThreadLevel thread_level() const;
  /// Returns the duplicated communicator, MPI_COMM_NULL after `shrink`; it remains owned by this connector. For
  /// Boost.MPI, attach to it:
  /// `boost::mpi::communicator(connector.native_handle(), boost::mpi::comm_attach)`.
  [[nodiscard]] MPI_Comm native_handle() const noexcept;
  [[nodiscard]] std::shared_ptr<detail::mpi::Session> session() const noexcept;

  /// Returns a connector of the surviving ranks, as `AnyConnector::shrink` describes, whose calls have the shorter
  /// of this deadline and this connector's. It makes no collective call of MPI.
  ///
  /// The end of a process of another host is noticed at the deadline only; a rank of another host that is lost during
  /// this call prolongs it by up to two deadlines. Communicators of MPI remain unusable; the launcher must let the
  /// ranks continue, as Open MPI's `mpirun --enable-recovery` does.
  /// @throws ConnectError without MPI_THREAD_MULTIPLE
  [[nodiscard]] MpiConnector shrink(Timeout deadline = default_deadline) {
    return MpiConnector(self_->shrink(deadline));
  }
  /// Returns an equal connector: no process can wait to join an MPI program. Local.
  [[nodiscard]] MpiConnector grow() const { return MpiConnector(self_->grow()); }

 private:
  explicit MpiConnector(std::shared_ptr<detail::VirtualConnector> session) noexcept
      : ErasedConnector(std::move(session)) {}
};

}  // namespace distx::inline DISTX_ABI

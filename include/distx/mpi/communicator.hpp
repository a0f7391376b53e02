// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>

#include "distx/comm/runtime/basic_communicator.hpp"
#include "distx/connect/connector.hpp"
#include "distx/mpi/connector.hpp"
#include "distx/mpi/options.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

namespace mpi {

class MpiBackend;

}  // namespace mpi

template <>
struct BackendTraits<mpi::MpiBackend> : HostBackend {};

}  // namespace detail

/// Moves and reduces host memory among the ranks of an MPI program.
///
/// - Calls are reduced in rank order, as over shared memory, or by MPI's collectives, in MPI's order (see MpiOptions).
///   Reduced-precision types are accumulated in float and rounded once. Operands of a non-commutative op are combined
///   in rank order.
/// - A call that differs between ranks throws MismatchError on every rank (see MpiOptions::check).
/// - Asynchronous collectives progress on a thread, which sleeps between polls of MPI, if MPI was initialized with
///   MPI_THREAD_MULTIPLE. Asynchronous messages progress inside this rank's calls of MPI: `test`, `wait`, and any
///   other; so do collectives with less than MPI_THREAD_MULTIPLE, `MpiCollectives::vendor`, another check than
///   `Check::every_call`, or more than 64 ranks.
/// - A communicator keeps MPI initialized. The destructor is local; all ranks destroy the communicator at about the
///   same time.
class MpiCommunicator : public detail::BasicCommunicator<MpiCommunicator, detail::mpi::MpiBackend> {
  using Base = detail::BasicCommunicator<MpiCommunicator, detail::mpi::MpiBackend>;
  friend Base;

 public:
  /// Makes a communicator from an MpiConnector or the result of `connect()`; a single rank needs no launcher.
  /// Collective.
  /// @throws ConnectError if several ranks are connected by another connector
  /// @throws InvalidArgument if MPI cannot satisfy the options, or if `shrink` returned the connector and
  ///         asks for `MpiCollectives::vendor`: MPI's collectives would wait for the ranks that are lost
  /// @throws MismatchError if the ranks pass different `collectives`, `check` or `max_count`
  /// @throws TimeoutError if not all ranks join before the connector's deadline
  template <class C>
    requires(!std::same_as<std::remove_cv_t<C>, MpiCommunicator>) && Connector<C>
  explicit MpiCommunicator(C& connector, const MpiOptions& options = {})
      : MpiCommunicator(session_of(connector), options) {}

  /// Makes a communicator from a duplicate of `comm`, which remains the caller's. Collective over `comm`.
  /// @throws ConnectError unless `comm` is an intracommunicator and MPI is initialized
  [[nodiscard]] static MpiCommunicator from_native_handle(MPI_Comm comm, const MpiOptions& options = {});
  /// Returns the MPI communicator of blocking calls, which remains owned by this object; MPI_COMM_NULL if the connector
  /// is what `shrink` returned.
  [[nodiscard]] MPI_Comm native_handle() const noexcept;
  /// Returns whether MPI was initialized with MPI_THREAD_MULTIPLE.
  [[nodiscard]] static bool serves_threads();

 private:
  using Base::Base;
  MpiCommunicator(std::shared_ptr<detail::mpi::Session> session, const MpiOptions& options);

  static std::shared_ptr<State> made(std::shared_ptr<detail::mpi::Session> session, const MpiOptions& options);

  template <Connector C>
  static std::shared_ptr<detail::mpi::Session> session_of(C& connector) {
    if constexpr (std::same_as<C, MpiConnector>)
      return connector.session();
    else if constexpr (std::same_as<C, AnyConnector>)
      if (auto* const known = connector.template target<MpiConnector>()) return known->session();
    return session_of_one(connector.rank(), connector.size());
  }
  /// Returns the session of a single rank. @throws ConnectError if there are several
  static std::shared_ptr<detail::mpi::Session> session_of_one(int rank, int size);
};

}  // namespace distx::inline DISTX_ABI

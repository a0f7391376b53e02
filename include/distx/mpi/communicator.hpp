// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/connector.hpp"
#include "distx/mpi/detail/backend.hpp"

namespace distx {

/// Moves and reduces host memory among the ranks of an MPI program.
///
/// - Calls are reduced in rank order, as over shared memory, or by MPI's collectives, in MPI's order (see MpiOptions).
///   Reduced-precision types are accumulated in float and rounded once. Operands of a non-commutative op are combined
///   in rank order.
/// - A call that differs between ranks throws MismatchError on every rank (see MpiOptions::check).
/// - Asynchronous collectives progress on a thread, which sleeps between polls of MPI, if MPI was initialized with
///   MPI_THREAD_MULTIPLE. Asynchronous messages progress inside this rank's calls of MPI: `test`, `wait`, and any
///   other; so do collectives with less than MPI_THREAD_MULTIPLE, `vendor_collectives`, another check than
///   `Check::every_call`, or more than 64 ranks.
/// - A communicator keeps MPI initialized. The destructor is local; all ranks destroy the communicator at about the
///   same time.
class MpiCommunicator : public detail::BasicCommunicator<MpiCommunicator, detail::mpi::Backend> {
  using Base = detail::BasicCommunicator<MpiCommunicator, detail::mpi::Backend>;
  friend Base;

 public:
  /// Makes a communicator from an MpiConnector or the result of `connect()`; a single rank needs no launcher.
  /// Collective.
  /// @throws ConnectError if several ranks are connected by another connector
  /// @throws InvalidArgument if MPI cannot satisfy the options
  /// @throws TimeoutError if not all ranks join before the connector's deadline
  /// @throws InvalidArgument if the connector is what `shrink` returned, with `vendor_collectives`: MPI's collectives
  ///         would wait for the ranks that are lost
  template <class C>
    requires(!std::same_as<std::remove_cv_t<C>, MpiCommunicator>) && Connector<C>
  explicit MpiCommunicator(C& connector, const MpiOptions& options = {})
      : MpiCommunicator(session_of(connector), options) {}

  /// Makes a communicator from a duplicate of `comm`, which remains the caller's. Collective over `comm`.
  /// @throws ConnectError unless `comm` is an intracommunicator and MPI is initialized
  [[nodiscard]] static MpiCommunicator from_native_handle(MPI_Comm comm, const MpiOptions& options = {}) {
    return MpiCommunicator(
        std::make_shared<detail::mpi::Session>(std::make_shared<detail::mpi::World>(comm, options.deadline)), options);
  }
  /// Returns the MPI communicator of blocking calls, which remains owned by this object; MPI_COMM_NULL if the connector
  /// is what `shrink` returned.
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return backend_of().native_handle(); }
  /// Returns whether MPI was initialized with MPI_THREAD_MULTIPLE.
  [[nodiscard]] static bool serves_threads() { return detail::mpi::serves_threads(); }

 private:
  using Base::Base;
  MpiCommunicator(std::shared_ptr<detail::mpi::Session> session, const MpiOptions& options)
      : Base(made(std::move(session), options)) {}

  static std::shared_ptr<State> made(std::shared_ptr<detail::mpi::Session> session, const MpiOptions& options) {
    const auto context = session->where("MpiCommunicator");
    if (options.max_count < 1 || options.max_count > INT_MAX)
      throw InvalidArgument("invalid max_count " + std::to_string(options.max_count) + ": must be in [1, " +
                                std::to_string(INT_MAX) + "]",
                            context);
    auto transport = session->party() ? transport_of_party(*session, options) : transport_of_all(*session, options);
    return std::make_shared<State>(std::move(session), std::move(transport), options);
  }
  static detail::mpi::Transport transport_of_all(detail::mpi::Session& session, const MpiOptions& options) {
    session.barrier("MpiCommunicator");
    auto comm = detail::mpi::duplicate(session.comm(), session.deadline(), session.where("MpiCommunicator"));
    return detail::mpi::open_transport(session, std::move(comm), options);
  }
  static detail::mpi::Transport transport_of_party(detail::mpi::Session& session, const MpiOptions& options) {
    const auto context = session.where("MpiCommunicator");
    if (options.vendor_collectives)
      throw InvalidArgument(
          "vendor_collectives: MPI's collectives wait for all ranks of an MPI communicator, of which some are lost; "
          "omit "
          "the option on the ranks that are left",
          context);
    const auto all_gathered = [&](int value) {
      std::vector<int> all(static_cast<std::size_t>(session.size()));
      session.make("MpiCommunicator", erase(calls::AllGather<int>{{&value, 1}, all}));
      return all;
    };
    return detail::mpi::open_transport(session,
                                       session.world().new_party(all_gathered, *session.party()->ranks, context));
  }

  static std::shared_ptr<detail::mpi::Session> session_of(MpiConnector& connector) { return connector.session(); }
  template <Connector C>
  static std::shared_ptr<detail::mpi::Session> session_of(C& connector) {
    if constexpr (std::same_as<C, AnyConnector>)
      if (auto* const known = connector.template target<MpiConnector>(); known != nullptr) return known->session();
    if (connector.size() != 1)
      throw ConnectError(
          "these " + std::to_string(connector.size()) +
              " ranks were not started by MPI; start the program with mpirun and use connect() or an "
              "MpiConnector, or use ThreadCommunicator for ranks that are threads",
          {.operation = "MpiCommunicator", .backend = "mpi", .rank = connector.rank(), .size = connector.size()});
    return detail::mpi::alone();
  }
};

static_assert(Communicator<MpiCommunicator>);

}  // namespace distx

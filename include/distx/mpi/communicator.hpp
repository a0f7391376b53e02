// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/connector.hpp"
#include "distx/mpi/detail/backend.hpp"

namespace distx {

/// Moves and reduces host memory among the ranks of an MPI program.
///
/// - Small calls are reduced in rank order, as shared memory does; larger ones by MPI's collectives, in MPI's order.
///   Reduced-precision elements are accumulated in float and rounded once. A custom op that is not commutative gets its
///   operands in rank order.
/// - A call that differs between ranks throws MismatchError on every rank (see MpiOptions::check).
/// - Asynchronous calls progress inside this rank's calls of MPI: `test` and `wait`, and any other.
/// - A communicator keeps MPI running. Destroying one is local; its ranks destroy it at about the same time.
class MpiCommunicator : public detail::BasicCommunicator<MpiCommunicator, mpi::Backend> {
  using Base = detail::BasicCommunicator<MpiCommunicator, mpi::Backend>;
  friend Base;

 public:
  /// Made among the ranks of an MpiConnector, or of what `connect()` returned; one rank alone needs no launcher.
  /// Collective.
  /// @throws ConnectError if several ranks were brought together by another connector; InvalidArgument for options that
  ///         MPI cannot meet; TimeoutError
  template <class C>
    requires(!std::same_as<std::remove_cv_t<C>, MpiCommunicator>) && Connector<C>
  explicit MpiCommunicator(C& connector, const MpiOptions& options = {})
      : MpiCommunicator(session_of(connector), options) {}

  /// Made among the ranks of `comm`, which is duplicated and remains the caller's. Collective.
  /// @throws ConnectError unless it is an intracommunicator of a running MPI
  [[nodiscard]] static MpiCommunicator from_native_handle(MPI_Comm comm, const MpiOptions& options = {}) {
    return MpiCommunicator(std::make_shared<mpi::Session>(comm, options.deadline), options);
  }
  /// Returns the MPI communicator of blocking calls; it remains this object's.
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return backend_of().native_handle(); }
  /// Returns whether MPI was initialized with MPI_THREAD_MULTIPLE.
  [[nodiscard]] static bool serves_threads() {
    return boost::mpi::environment::thread_level() == mpi::ThreadLevel::multiple;
  }

 private:
  using Base::Base;
  MpiCommunicator(std::shared_ptr<mpi::Session> session, const MpiOptions& options)
      : Base(made(std::move(session), options)) {}

  static std::shared_ptr<State> made(std::shared_ptr<mpi::Session> session, const MpiOptions& options) {
    const auto context = session->where("MpiCommunicator");
    if (options.max_count < 1 || options.max_count > INT_MAX)
      throw InvalidArgument("invalid max_count " + std::to_string(options.max_count) + ": must be in [1, " +
                                std::to_string(INT_MAX) + "]",
                            context);
    session->barrier("MpiCommunicator");
    auto comm = mpi::duplicate(session->comm(), context);
    return std::make_shared<State>(std::move(session), std::move(comm), options);
  }

  static std::shared_ptr<mpi::Session> session_of(MpiConnector& connector) { return connector.session(); }
  template <Connector C>
  static std::shared_ptr<mpi::Session> session_of(C& connector) {
    if constexpr (std::same_as<C, AnyConnector>)
      if (auto* const known = connector.template target<MpiConnector>(); known != nullptr) return known->session();
    if (connector.size() != 1)
      throw ConnectError(
          "these " + std::to_string(connector.size()) +
              " ranks were not started by MPI; start the program with mpirun and use connect() or an "
              "MpiConnector, or use ThreadCommunicator for ranks that are threads",
          {.operation = "MpiCommunicator", .backend = "mpi", .rank = connector.rank(), .size = connector.size()});
    return mpi::alone();
  }
};

static_assert(Communicator<MpiCommunicator>);

}  // namespace distx

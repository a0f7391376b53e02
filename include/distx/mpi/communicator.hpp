// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <climits>

#include "distx/mpi/connector.hpp"
#include "distx/mpi/detail/pending.hpp"

namespace distx {

/// Moves and reduces host memory among the ranks of an MPI program, by MPI's own collectives.
///
/// Integers, float and double are reduced in MPI's order, shorter floats widened to float and rounded once. An
/// op of the user's that is not commutative meets its operands in rank order. Communicators keep MPI running; letting
/// one go is local, and its ranks let it go at about the same time. MPI itself is ended as MpiConnector says.
class MpiCommunicator {
 public:
  using space = Host;

  /// Among the ranks of an MpiConnector or of what `connect()` found; one rank by itself needs no launcher. Collective.
  /// @throws ConnectError for several ranks that another connector has brought together; MismatchError for options that
  ///         MPI cannot meet; TimeoutError
  template <class C>
    requires(!std::same_as<std::remove_cv_t<C>, MpiCommunicator>) && Connector<C>
  explicit MpiCommunicator(C& connector, const MpiOptions& options = {})
      : MpiCommunicator(session_of(connector), options) {}
  MpiCommunicator(MpiCommunicator&&) noexcept = default;
  MpiCommunicator& operator=(MpiCommunicator&&) noexcept = default;

  /// Among the ranks of `comm`, which is duplicated and stays the caller's. Collective.
  /// @throws ConnectError unless it is an intracommunicator of a running MPI
  [[nodiscard]] static MpiCommunicator from_native_handle(MPI_Comm comm, const MpiOptions& options = {}) {
    return MpiCommunicator(std::make_shared<mpi::Session>(comm, options.deadline), options);
  }
  /// The communicator that blocking calls use; it stays this one's.
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return member_->native_handle(); }

  [[nodiscard]] int rank() const noexcept { return member_->self.rank; }
  [[nodiscard]] int size() const noexcept { return member_->self.size; }
  [[nodiscard]] std::string_view backend() const noexcept { return member_->self.backend; }
  [[nodiscard]] MpiCommunicator share() const noexcept { return MpiCommunicator(member_); }
  /// Whether MPI was started so that several threads may each use a communicator, at once.
  [[nodiscard]] static bool serves_threads() {
    return boost::mpi::environment::thread_level() == mpi::ThreadLevel::multiple;
  }
  /// Whether both are handles on one communicator.
  friend bool operator==(const MpiCommunicator&, const MpiCommunicator&) noexcept = default;

  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Host>
  void execute(const Call& call) {
    member_->execute(erase(call));
  }
  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Host>
  [[nodiscard]] MpiPending start(const Call& call, HostStream = {}) {
    const auto erased = erase(call);
    return MpiPending(member_, member_->start(erased), member_->self.context(erased));
  }

  /// Collective; keys that are equal leave the order of ranks. Any colours, negative ones too.
  [[nodiscard]] MpiCommunicator split(int color, int key,
                                      std::source_location location = std::source_location::current()) {
    std::vector<int> colors(static_cast<std::size_t>(size()));
    execute(AllGather<int>{{&color, 1}, colors, {}, location});
    const auto first = std::find(colors.begin(), colors.end(), color) - colors.begin();  // MPI takes no negative ones
    const ErrorContext context{
        .operation = "split", .backend = backend(), .rank = rank(), .size = size(), .location = location};
    MPI_Comm part = MPI_COMM_NULL;
    mpi::check(MPI_Comm_split(native_handle(), static_cast<int>(first), key, &part), "MPI_Comm_split", context);
    auto owner = mpi::unique_comm::from_native_handle(part);
    mpi::check(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", context);
    return MpiCommunicator(std::make_shared<mpi::Member>(member_->session(), std::move(owner), member_->options));
  }

  /// Plain memory, which MPI moves as fast as any.
  template <class T>
  [[nodiscard]] CommunicatorMemory<T> allocate(std::size_t count) {
    return CommunicatorMemory<T>::plain(count);
  }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) { return member_->scratch(bytes); }
  [[nodiscard]] GroupCache& group_cache() noexcept { return member_->groups; }
  void revoke(const std::string& reason) noexcept { member_->revoke(reason); }

 private:
  explicit MpiCommunicator(std::shared_ptr<mpi::Member> member) noexcept : member_(std::move(member)) {}
  MpiCommunicator(std::shared_ptr<mpi::Session> session, const MpiOptions& options) {
    const auto context = session->where("MpiCommunicator");
    if (options.max_count < 1 || options.max_count > INT_MAX)
      throw MismatchError(
          "max_count is " + std::to_string(options.max_count) + ": MPI counts from 1 to " + std::to_string(INT_MAX),
          context);
    session->barrier("MpiCommunicator");
    member_ = std::make_shared<mpi::Member>(session, mpi::duplicate(session->comm(), context), options);
  }

  static std::shared_ptr<mpi::Session> session_of(MpiConnector& connector) { return connector.session(); }
  template <Connector C>
  static std::shared_ptr<mpi::Session> session_of(C& connector) {
    if constexpr (std::same_as<C, AnyConnector>)
      if (auto* const known = connector.template target<MpiConnector>(); known != nullptr) return known->session();
    if (connector.size() != 1)
      throw ConnectError(
          "these " + std::to_string(connector.size()) +
              " ranks were not started by MPI: start the program with mpirun and use connect() or an "
              "MpiConnector; for ranks that are threads use ThreadCommunicator",
          {.operation = "MpiCommunicator", .backend = "mpi", .rank = connector.rank(), .size = connector.size()});
    return mpi::alone();
  }

  std::shared_ptr<mpi::Member> member_;
};

static_assert(Communicator<MpiCommunicator>);

}  // namespace distx

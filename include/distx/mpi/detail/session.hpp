// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <boost/mpi/environment.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <vector>

#include "distx/connect/connect.hpp"
#include "distx/connect/detail/host.hpp"
#include "distx/connect/failure_channel.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/mpi/detail/control.hpp"
#include "distx/mpi/detail/user_op.hpp"

namespace distx::detail::mpi {

using ThreadLevel = boost::mpi::threading::level;

/// Returns a duplicate whose errors are returned as codes; the error handler of the original is unchanged. Collective.
[[nodiscard]] inline unique_comm duplicate(MPI_Comm comm, const ErrorContext& context) {
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup", context);
  auto owner = unique_comm::from_native_handle(copy);
  check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", context);
  return owner;
}

/// Polls a request until it is complete, the deadline has passed, or `stopped()`.
template <class Stopped>
detail::WaitEnd poll(MPI_Request& request, Timeout deadline, const char* routine, const ErrorContext& context,
                     Stopped&& stopped) {
  const auto complete = [&] {
    int flag = 0;
    check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), routine, context);
    return flag != 0;
  };
  return detail::wait_until(deadline, complete, stopped);
}

/// Keeps MPI initialized while a connector or a communicator made from it exists.
///
/// Either initializes and finalizes MPI, or uses duplicates of a host program's communicator.
class Session final : public FailureChannel {
 public:
  /// Initializes MPI. Collective.
  /// @throws ConnectError if MPI was initialized or finalized before
  Session(int& argc, char**& argv, ThreadLevel level, Timeout deadline) : deadline_(deadline) {
    begin(argc, argv, level);
    open(MPI_COMM_WORLD);
  }
  /// Duplicates `comm`. Collective over it.
  /// @throws ConnectError unless `comm` is an intracommunicator and MPI is initialized
  Session(MPI_Comm comm, Timeout deadline) : deadline_(deadline) {
    if (!is_up()) throw refused("MPI is not running: call MPI_Init first, or MpiConnector(argc, argv)");
    if (comm == MPI_COMM_NULL) throw refused("the communicator is MPI_COMM_NULL");
    int inter = 0;
    check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter", where("MpiConnector"));
    if (inter != 0) throw refused("an intercommunicator has two groups of ranks: pass an intracommunicator");
    open(comm);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override {
    const bool unwinding = std::uncaught_exceptions() > uncaught_;
    if (environment_ == nullptr) {
      if (unwinding || timed_out_) abandon();
      return;
    }
    if (!is_up()) return;
    // MPI_Finalize waits for all ranks. A rank that unwinds waits briefly for the others and then exits: the launcher
    // notices an exit without MPI_Finalize and terminates the others.
    const Timeout patience = unwinding ? Timeout(std::chrono::seconds(2)) : deadline_;
    if (!all_have_come(patience)) {
      abandon();
      return;
    }
    control_->close();
    comm_.reset();
    user_ops_ = {};
    MPI_Finalize();
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_.native_handle(); }
  [[nodiscard]] Control& control() noexcept { return *control_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }
  [[nodiscard]] MPI_Op user_op(bool commutative) const noexcept {
    return user_ops_[commutative ? 1 : 0].native_handle();
  }

  /// Runs a nonblocking call on `comm()` to completion. `keep` owns its buffers, which MPI uses until then.
  template <class Buffers, class Begin>
  void run(const char* operation, const char* routine, std::unique_ptr<Buffers>& keep, Begin&& begin_call) {
    const auto context = where(operation);
    if (timed_out_) throw RevokedError("an earlier call of this connector has timed out", context);
    MPI_Request request = MPI_REQUEST_NULL;
    check(begin_call(*keep, &request), routine, context);
    if (mpi::poll(request, deadline_, routine, context, [] { return false; }) == detail::WaitEnd::ready) return;
    (void)keep.release();  // MPI may still write to it
    timed_out_ = true;
    throw TimeoutError("after " + deadline_.to_string() + " not every rank has made the call", context);
  }
  void barrier(const char* operation) {
    auto nothing = std::make_unique<char>();
    run(operation, "MPI_Ibarrier", nothing, [&](char&, MPI_Request* r) { return MPI_Ibarrier(comm(), r); });
  }

  /// @pre MPI_THREAD_MULTIPLE, as for `poll`
  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    control_->publish(identity, reason);
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override { return control_->poll(identity); }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "mpi", .rank = rank_, .size = size_};
  }

 private:
  static ConnectError refused(const std::string& words) {
    return ConnectError(words, {.operation = "MpiConnector", .backend = "mpi"});
  }

  void begin(int& argc, char**& argv, ThreadLevel level) {
    if (boost::mpi::environment::finalized())
      throw refused("MPI has already been finalised in this process and cannot be started again");
    if (boost::mpi::environment::initialized())
      throw refused("MPI is already initialised: pass its communicator, MpiConnector(MPI_COMM_WORLD)");
    environment_ = std::make_unique<boost::mpi::environment>(argc, argv, level, false);
  }

  void open(MPI_Comm comm) {
    comm_ = duplicate(comm, where("MpiConnector"));
    check(MPI_Comm_rank(this->comm(), &rank_), "MPI_Comm_rank", where("MpiConnector"));
    check(MPI_Comm_size(this->comm(), &size_), "MPI_Comm_size", where("MpiConnector"));
    control_ = std::make_unique<Control>(duplicate(this->comm(), where("MpiConnector")));
    if (const auto announced = detail::announced_mpi_ranks();
        environment_ != nullptr && size_ == 1 && announced && announced->size > 1)
      throw refused("a launcher has started " + std::to_string(announced->size) + " ranks (" + announced->variable +
                    " is set), and MPI sees only this one: use the mpirun of the MPI library that this program is "
                    "linked with");
    const HostId host = host_id();
    constexpr int bytes = static_cast<int>(sizeof host);
    std::vector<HostId> hosts(static_cast<std::size_t>(size_));
    check(MPI_Allgather(host.data(), bytes, MPI_BYTE, hosts.data(), bytes, MPI_BYTE, this->comm()), "MPI_Allgather",
          where("MpiConnector"));
    local_rank_ = static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank_, host));
    local_size_ = static_cast<int>(std::count(hosts.begin(), hosts.end(), host));
    user_ops_ = {make_user_op(false), make_user_op(true)};
  }

  /// Uses the control communicator, so that no other call of a rank can match this barrier.
  bool all_have_come(Timeout patience) noexcept try {
    MPI_Request request = MPI_REQUEST_NULL;
    const auto context = where("the end of MPI");
    check(MPI_Ibarrier(control_->comm(), &request), "MPI_Ibarrier", context);
    return mpi::poll(request, patience, "MPI_Ibarrier", context, [] { return false; }) == detail::WaitEnd::ready;
  } catch (const Error&) {
    return false;
  }
  /// Leaves MPI initialized: calls on this or other ranks may still use the handles.
  void abandon() noexcept {
    (void)environment_.release();
    (void)comm_.release();
    for (auto& op : user_ops_) (void)op.release();
    control_->abandon();
  }

  int uncaught_ = std::uncaught_exceptions();
  Timeout deadline_;
  bool timed_out_ = false;
  // Does not finalize MPI itself: by its destruction MPI is finalized, or the object was released.
  std::unique_ptr<boost::mpi::environment> environment_;
  unique_comm comm_;
  std::unique_ptr<Control> control_;
  std::array<unique_op, 2> user_ops_;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
};

/// Returns the session of a single rank in a program without a launcher. Initializes MPI if necessary, once per
/// process, because MPI cannot be initialized again.
[[nodiscard]] inline std::shared_ptr<Session> alone() {
  if (is_up()) return std::make_shared<Session>(MPI_COMM_SELF, default_deadline);
  static const std::shared_ptr<Session> own = [] {
    int argc = 0;
    char* no_arguments[] = {nullptr};
    char** argv = no_arguments;
    return std::make_shared<Session>(argc, argv, ThreadLevel::multiple, default_deadline);
  }();
  return own;
}

}  // namespace distx::detail::mpi

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <boost/mpi/environment.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <vector>

#include "distx/connect/connect.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/mpi/detail/agreement_messages.hpp"
#include "distx/mpi/detail/control.hpp"
#include "distx/mpi/detail/rank_map.hpp"
#include "distx/mpi/detail/user_op.hpp"
#include "distx/posix/process.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

using BoostThreadLevel = boost::mpi::threading::level;

/// Runs a nonblocking call of MPI to completion: `begin(*keep, &request)`. `keep` owns its buffers, which MPI uses
/// until then; it is released at the deadline.
/// @throws TimeoutError
template <class Buffers, class Begin>
void run_in_time(const Timeout& deadline, const char* routine, const ErrorContext& context,
                 std::unique_ptr<Buffers>& keep, Begin&& begin) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(begin(*keep, &request), routine, context);
  EarlyWarning warning(deadline);
  const auto overdue = [&] { return "timed out after " + deadline.to_string() + ": not all ranks joined"; };
  const auto end = wait_until(
      deadline, [&] { return try_complete(request, routine, context); },
      [&] { return warning(context, overdue), false; });
  if (end == WaitEnd::ready) return;
  (void)keep.release();  // MPI may still write to it
  throw TimeoutError(overdue(), context);
}

/// Returns a duplicate whose errors are returned as codes; the error handler of the original is unchanged. Collective.
/// @throws TimeoutError; then the original must not be freed
[[nodiscard]] inline mpi_unique_comm duplicate(MPI_Comm comm, const Timeout& deadline, const ErrorContext& context) {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  run_in_time(deadline, "MPI_Comm_idup", context, copy,
              [&](MPI_Comm& made, MPI_Request* request) { return MPI_Comm_idup(comm, &made, request); });
  auto owner = mpi_unique_comm::from_native_handle(*copy);
  check(MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", context);
  return owner;
}

/// Returns the value of every rank of `comm`, in rank order. Collective.
/// @param context  has this rank and the size
/// @throws TimeoutError
template <class T>
[[nodiscard]] std::vector<T> gathered(MPI_Comm comm, const T& own, const Timeout& deadline,
                                      const ErrorContext& context) {
  auto all = std::make_unique<std::vector<T>>(static_cast<std::size_t>(context.size));
  (*all)[static_cast<std::size_t>(context.rank)] = own;
  run_in_time(deadline, "MPI_Iallgather", context, all, [&](std::vector<T>& values, MPI_Request* request) {
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), sizeof(T), MPI_BYTE, comm, request);
  });
  return std::move(*all);
}

/// Keeps MPI initialized while a connector or a communicator made from it exists.
///
/// Either initializes and finalizes MPI, or uses duplicates of a host program's communicator.
class World {
 public:
  /// Initializes MPI. Collective.
  /// @throws ConnectError if MPI was initialized or finalized before
  World(int& argc, char**& argv, BoostThreadLevel level, Timeout deadline) : deadline_(deadline) {
    begin(argc, argv, level);
    open(MPI_COMM_WORLD);
  }
  /// Duplicates `comm`. Collective over it.
  /// @throws ConnectError unless `comm` is an intracommunicator and MPI is initialized
  World(MPI_Comm comm, Timeout deadline) : deadline_(deadline) {
    if (!is_up()) throw refused("MPI is not running: call MPI_Init first, or MpiConnector(argc, argv)");
    if (comm == MPI_COMM_NULL) throw refused("the communicator is MPI_COMM_NULL");
    int inter = 0;
    check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter", where("MpiConnector"));
    if (inter != 0) throw refused("an intercommunicator has two groups of ranks: pass an intracommunicator");
    open(comm);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    const bool unwinding = std::uncaught_exceptions() > uncaught_;
    if (environment_ == nullptr) {
      if (unwinding || broken_ || control_->has_failed()) abandon();
      return;
    }
    if (!is_up()) return;
    // MPI_Finalize waits for all ranks. A rank that unwinds waits briefly for the others and then exits: the launcher
    // notices an exit without MPI_Finalize and terminates the others.
    const Timeout patience = unwinding ? Timeout(std::chrono::seconds(2)) : deadline_;
    // Once ranks are lost, MPI_Finalize may wait for them: the surviving ranks exit without it, together.
    if (left_) await_left(patience);
    if (left_ || stuck_ || !all_have_come(patience)) {
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
  [[nodiscard]] AgreementMessages& agreement_messages() noexcept { return *agreement_messages_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(processes_.size()); }
  /// Returns whether this object ends MPI. Otherwise the program may make further communicators after the control
  /// communicator is freed, in which Open MPI would look for notifications that are still in transit.
  [[nodiscard]] bool ends_mpi() const noexcept { return environment_ != nullptr; }
  /// Returns the largest tag that MPI has.
  [[nodiscard]] int last_tag() const noexcept { return last_tag_; }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }
  [[nodiscard]] MPI_Op user_op(bool commutative) const noexcept {
    return user_ops_[commutative ? 1 : 0].native_handle();
  }

  [[nodiscard]] bool shares_host(int rank, int other) const noexcept {
    return process(rank).shares_host_with(process(other));
  }
  /// Returns whether a rank is known to have ended; nothing is known of those of other hosts.
  [[nodiscard]] bool has_ended(int rank) const { return posix::has_ended(process(rank), process(rank_)); }
  [[nodiscard]] std::string name_process(int rank) const { return process(rank).to_string(); }

  /// Returns ranks that use a new channel. Collective over ranks that include these.
  /// @param all_gathered  returns all ranks' values
  /// @param ranks  some of this world's, among them this one
  template <class AllGathered>
  [[nodiscard]] RankSubset new_subset(AllGathered&& all_gathered, std::vector<int> ranks, const ErrorContext& context) {
    const std::vector<int> next = all_gathered(next_channel());
    const int channel = *std::ranges::max_element(next);
    use_channel(channel, context);
    return subset_of(std::move(ranks), channel);
  }
  [[nodiscard]] RankSubset subset_of(std::vector<int> ranks, int channel) const {
    const auto there = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
    return {std::make_shared<const std::vector<int>>(std::move(ranks)), there, channel};
  }
  /// Returns the first channel that this rank has not used; see RankSubset.
  [[nodiscard]] int next_channel() const noexcept { return next_channel_; }
  /// @throws BackendError if MPI has no tags for it
  void use_channel(int channel, const ErrorContext& context) {
    const int channels = static_cast<int>((std::int64_t{last_tag_} + 1) / RankSubset::tags);
    if (channel >= channels)
      throw BackendError("the surviving ranks have made " + std::to_string(channel) +
                             " communicators and connectors, and the tags of this MPI, up to " +
                             std::to_string(last_tag_) + ", suffice for " + std::to_string(std::max(channels - 1, 0)) +
                             ": keep communicators for longer",
                         context);
    next_channel_ = channel + 1;
  }

  /// Notes that calls of MPI may still use this object's handles.
  void note_broken() noexcept {
    broken_ = true;
    control_->note_failure();
  }
  /// Notes that a thread may be inside MPI until the process exits, so MPI cannot be finalized.
  void note_stuck() noexcept {
    note_broken();
    stuck_ = true;
  }
  /// Notes that only these ranks are left; they end together, and MPI is not finalized.
  void note_left(std::shared_ptr<const std::vector<int>> ranks, std::uint64_t group) noexcept {
    broken_ = true;
    control_->forget_failures();
    left_ = std::move(ranks);
    left_group_ = group;
  }

 private:
  static ConnectError refused(const std::string& words) {
    return ConnectError(words, {.operation = "MpiConnector", .backend = "mpi"});
  }
  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "mpi", .rank = rank_, .size = size()};
  }
  [[nodiscard]] const posix::Process& process(int rank) const noexcept {
    return processes_[static_cast<std::size_t>(rank)];
  }

  void begin(int& argc, char**& argv, BoostThreadLevel level) {
    if (boost::mpi::environment::finalized())
      throw refused("MPI has already been finalised in this process and cannot be started again");
    if (boost::mpi::environment::initialized())
      throw refused("MPI is already initialised: pass its communicator, MpiConnector(MPI_COMM_WORLD)");
    environment_ = std::make_unique<boost::mpi::environment>(argc, argv, level, false);
  }

  void open(MPI_Comm comm) try {
    comm_ = duplicate(comm, deadline_, where("MpiConnector"));
    int size = 1;
    check(MPI_Comm_rank(this->comm(), &rank_), "MPI_Comm_rank", where("MpiConnector"));
    check(MPI_Comm_size(this->comm(), &size), "MPI_Comm_size", where("MpiConnector"));
    control_ = std::make_unique<Control>(duplicate(this->comm(), deadline_, where("MpiConnector")), rank_, size);
    agreement_messages_ = std::make_unique<AgreementMessages>(control_->comm(), rank_);
    int found = 0;
    int* most = nullptr;
    check(MPI_Comm_get_attr(this->comm(), MPI_TAG_UB, static_cast<void*>(&most), &found), "MPI_Comm_get_attr",
          where("MpiConnector"));
    if (found != 0) last_tag_ = *most;
    if (const auto announced = detail::announced_mpi_ranks();
        environment_ != nullptr && size == 1 && announced && announced->size > 1)
      throw refused("a launcher has started " + std::to_string(announced->size) + " ranks (" + announced->variable +
                    " is set), and MPI sees only this one: use the mpirun of the MPI library that this program is "
                    "linked with");
    gather_processes(size);
    user_ops_ = {make_user_op(false), make_user_op(true)};
  } catch (const TimeoutError&) {
    abandon();  // no destructor runs, and MPI_Finalize and MPI_Comm_free would wait for the rank that did not join
    throw;
  }
  void gather_processes(int size) {
    struct Id {
      posix::HostId host{};
      std::int64_t id = 0;
      std::uint64_t began = 0;
    };
    const posix::Process own = posix::this_process();
    ErrorContext context = where("MpiConnector");
    context.size = size;
    for (const Id& id : gathered(comm(), Id{posix::host_id(), own.id, own.began}, deadline_, context))
      processes_.push_back({id.host.data(), own.host_name, id.id, id.began});
  }

  /// Waits for the other ranks at the end; returns whether they have joined. Gives up soon after a failure is known.
  template <class Ready, class Lost>
  bool await_others(Timeout patience, Ready&& ready, Lost&& lost) {
    using clock = Deadline::clock;
    auto end = clock::time_point::max(), next_look = clock::now();
    const auto has_given_up = [&] {
      const auto now = clock::now();
      if (now < next_look) return false;  // to look at processes costs more than to poll MPI
      next_look = now + std::chrono::milliseconds(5) * (1 + size() / 16);
      control_->try_receive();
      if (control_->has_failed()) end = std::min(end, now + std::chrono::seconds(5));
      if (lost()) end = std::min(end, now + std::chrono::seconds(1));
      return now >= end;
    };
    return wait_until(patience, ready, has_given_up) == WaitEnd::ready;
  }
  /// Uses the control communicator, so that no other call of a rank can match this barrier.
  bool all_have_come(Timeout patience) noexcept try {
    MPI_Request request = MPI_REQUEST_NULL;
    const auto context = where("the end of MPI");
    check(MPI_Ibarrier(control_->comm(), &request), "MPI_Ibarrier", context);
    const auto one_has_ended = [&] {
      for (int rank = 0; rank < size(); ++rank)
        if (rank != rank_ && has_ended(rank)) return true;
      return false;
    };
    return await_others(patience, [&] { return try_complete(request, "MPI_Ibarrier", context); }, one_has_ended);
  } catch (...) {
    return false;
  }
  /// The same for the surviving ranks; those that have ended meanwhile are not waited for.
  void await_left(Timeout patience) noexcept try {
    std::vector<bool> come(processes_.size());
    come[static_cast<std::size_t>(rank_)] = true;
    for (const int rank : *left_) agreement_messages_->send(~left_group_, rank, {});
    const auto all = [&] {
      for (const auto& received : agreement_messages_->take(~left_group_))
        come[static_cast<std::size_t>(received.from)] = true;
      return std::ranges::all_of(*left_, [&](int rank) { return come[static_cast<std::size_t>(rank)]; });
    };
    const auto note_ended = [&] {
      for (const int rank : *left_)
        if (has_ended(rank)) come[static_cast<std::size_t>(rank)] = true;
      return false;
    };
    (void)await_others(patience, all, note_ended);
  } catch (...) {
  }
  /// Leaves MPI initialized: calls on this or other ranks may still use the handles.
  void abandon() noexcept {
    (void)environment_.release();
    (void)comm_.release();
    for (auto& op : user_ops_) (void)op.release();
    if (agreement_messages_ != nullptr) agreement_messages_->abandon();
    if (control_ != nullptr) control_->abandon();
  }

  int uncaught_ = std::uncaught_exceptions();
  Timeout deadline_;
  bool broken_ = false, stuck_ = false;
  // Does not finalize MPI itself: by its destruction MPI is finalized, or the object was released.
  std::unique_ptr<boost::mpi::environment> environment_;
  mpi_unique_comm comm_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<AgreementMessages> agreement_messages_;
  std::array<unique_op, 2> user_ops_;
  std::vector<posix::Process> processes_;  ///< by rank
  int rank_ = 0;
  int last_tag_ = 32767;
  std::atomic<int> next_channel_{1};  // 0 has the tags of notifications and messages
  std::shared_ptr<const std::vector<int>> left_{};
  std::uint64_t left_group_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <boost/mpi/environment.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "distx/connect/connect.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/mpi/connector.hpp"
#include "distx/mpi/detail/agreement.hpp"
#include "distx/mpi/detail/control.hpp"
#include "distx/posix/process.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Runs a nonblocking call of MPI to completion: `begin(buffers, &request)`. Returns the buffers, which MPI uses until
/// then; after the deadline it keeps them.
/// @throws TimeoutError
template <class Buffers, class Begin>
[[nodiscard]] Buffers run_in_time(const Timeout& deadline, const char* routine, const ErrorContext& context,
                                  Buffers buffers, Begin&& begin) {
  auto keep = std::make_unique<Buffers>(std::move(buffers));
  MPI_Request request = MPI_REQUEST_NULL;
  check(begin(*keep, &request), routine, context);
  try {
    (void)wait_for_ranks(
        deadline, context, [&] { return try_complete(request, routine, context); }, [] { return false; },
        [&] { return "timed out after " + deadline.to_string() + ": not all ranks joined"; });
  } catch (const TimeoutError&) {
    (void)keep.release();  // MPI may still write to it
    throw;
  }
  return std::move(*keep);
}

/// Returns an owner of `comm`, whose errors are returned as codes from now on.
[[nodiscard]] inline mpi_unique_comm owned(MPI_Comm comm, const ErrorContext& context) {
  auto owner = mpi_unique_comm::from_native_handle(comm);
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", context);
  return owner;
}

/// Returns a duplicate whose errors are returned as codes; the error handler of the original is unchanged. Collective.
/// @throws TimeoutError; then the original must not be freed
[[nodiscard]] inline mpi_unique_comm duplicate(MPI_Comm comm, const Timeout& deadline, const ErrorContext& context) {
  const auto begin = [&](MPI_Comm& copy, MPI_Request* request) { return MPI_Comm_idup(comm, &copy, request); };
  return owned(run_in_time(deadline, "MPI_Comm_idup", context, MPI_COMM_NULL, begin), context);
}

/// Returns the values of all ranks of `comm`, in rank order. Collective.
/// @param own  this rank's; their number is the same on every rank
/// @param context  has this rank and the size
/// @throws TimeoutError
template <class T>
[[nodiscard]] std::vector<T> gathered(MPI_Comm comm, std::span<const T> own, const Timeout& deadline,
                                      const ErrorContext& context) {
  // Staged, so that MPI does not write to the caller's buffer after a timeout.
  std::vector<T> all(static_cast<std::size_t>(context.size) * own.size());
  std::ranges::copy(own, &all[static_cast<std::size_t>(context.rank) * own.size()]);
  return run_in_time(deadline, "MPI_Iallgather", context, std::move(all), [&](auto& values, MPI_Request* request) {
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), static_cast<int>(own.size_bytes()),
                          MPI_BYTE, comm, request);
  });
}

/// Returns whether a thread of this process other than the calling one runs, or would if a core were free.
[[nodiscard]] inline bool another_thread_runs() {
  std::error_code error;
  std::filesystem::directory_iterator threads("/proc/self/task", error);
  for (; !error && threads != std::filesystem::directory_iterator(); threads.increment(error)) {
    const long id = std::atol(threads->path().filename().c_str());
    if (id != ::gettid() && posix::process_state(id).state == 'R') return true;
  }
  return false;
}

/// Keeps MPI initialized while a connector or a communicator made from it exists.
///
/// Either initializes and finalizes MPI, or uses duplicates of a host program's communicator.
class World {
 public:
  /// Initializes MPI. Collective.
  /// @throws ConnectError if MPI was initialized or finalized before
  World(int& argc, char**& argv, const MpiConnectorOptions& options) : deadline_(options.deadline) {
    if (boost::mpi::environment::finalized())
      throw refused("MPI has already been finalised in this process and cannot be started again");
    if (boost::mpi::environment::initialized())
      throw refused("MPI is already initialised: pass its communicator, MpiConnector(MPI_COMM_WORLD)");
    const auto level = static_cast<boost::mpi::threading::level>(options.thread_level);
    environment_ = std::make_unique<boost::mpi::environment>(argc, argv, level, false);
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
    const bool joined = (is_left() || !stuck_) && await_others(patience);
    if (is_left() || !joined) {
      abandon();
      return;
    }
    control_->close();
    comm_.reset();
    await_idle_threads();
    MPI_Finalize();
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_.native_handle(); }
  [[nodiscard]] Control& control() noexcept { return *control_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Returns whether this object ends MPI. Otherwise the program may make further communicators after the control
  /// communicator is freed, in which Open MPI would look for notifications that are still in transit.
  [[nodiscard]] bool ends_mpi() const noexcept { return environment_ != nullptr; }
  /// Returns the largest tag that MPI has, which Boost.MPI reserves for the collectives of its communicators.
  [[nodiscard]] int last_tag() const { return boost::mpi::environment::max_tag() + 1; }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }

  [[nodiscard]] const posix::Process& process(int rank) const noexcept {
    return processes_[static_cast<std::size_t>(rank)];
  }
  /// Returns whether a rank is known to have ended; nothing is known of those of other hosts. Any thread may ask.
  [[nodiscard]] bool has_ended(int rank) {
    look_at_processes();
    return ended(rank);
  }
  /// Returns the index of the first of some ranks that has ended, -1 if none is known to.
  [[nodiscard]] int first_ended(const std::vector<int>& ranks) {
    look_at_processes();
    if (!one_has_ended_) return -1;
    const auto found = std::ranges::find_if(ranks, [&](int rank) { return ended(rank).load(); });
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  }
  /// @pre one has ended
  [[noreturn]] void raise_ended(const std::vector<int>& ranks, const ErrorContext& context) {
    const int lost = first_ended(ranks);
    throw RankFailure("rank " + std::to_string(lost) + " of " + std::to_string(ranks.size()) + " (" +
                          process(ranks[static_cast<std::size_t>(lost)]).to_string() + ") exited unexpectedly",
                      lost, nullptr, context);
  }

  /// Returns all ranks, which use channel 0.
  [[nodiscard]] RankSubset all() const {
    std::vector<int> ranks(processes_.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return {std::move(ranks), 0};
  }
  /// Returns the first channel that this rank has not used; see RankSubset.
  [[nodiscard]] int next_channel() const noexcept { return next_channel_; }
  /// Begins to use a channel, which this rank has not used.
  /// @throws BackendError if MPI has no tags for it
  void use_channel(int channel, const ErrorContext& context) {
    const int last = (last_tag() - RankSubset::tags + 1) / RankSubset::tags;
    if (channel > last)
      throw BackendError("the surviving ranks have made " + std::to_string(channel) +
                             " communicators and connectors, and the tags of this MPI, up to " +
                             std::to_string(last_tag()) + ", suffice for " + std::to_string(last) +
                             ": keep communicators for longer",
                         context);
    next_channel_ = channel + 1;
  }

  /// Notes that calls of MPI may still use this object's handles.
  /// @param stuck  whether a thread may be inside MPI until the process exits, so MPI cannot be finalized
  void note_broken(bool stuck = false) noexcept {
    broken_ = true;
    stuck_ = stuck_ || stuck;
    control_->note_failure();
  }
  /// Notes that only these ranks are left; they end together, and MPI is not finalized.
  void note_left(const std::vector<int>& ranks, std::uint64_t group) {
    left_ = ranks;
    broken_ = true;
    control_->forget_failures();
    left_group_ = group;
  }

 private:
  static ConnectError refused(const std::string& words) {
    return ConnectError(words, {.operation = "MpiConnector", .backend = "mpi"});
  }
  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "mpi", .rank = rank_, .size = size()};
  }

  void open(MPI_Comm comm) try {
    comm_ = duplicate(comm, deadline_, where("MpiConnector"));
    check(MPI_Comm_rank(this->comm(), &rank_), "MPI_Comm_rank", where("MpiConnector"));
    check(MPI_Comm_size(this->comm(), &size_), "MPI_Comm_size", where("MpiConnector"));
    control_ = std::make_unique<Control>(duplicate(this->comm(), deadline_, where("MpiConnector")), rank_);
    if (const auto announced = detail::announced_mpi_ranks();
        environment_ != nullptr && size_ == 1 && announced && announced->size > 1)
      throw refused("a launcher has started " + std::to_string(announced->size) + " ranks (" + announced->variable +
                    " is set), and MPI sees only this one: use the mpirun of the MPI library that this program is "
                    "linked with");
    struct Id {
      posix::HostId host{};
      std::int64_t id = 0;
      std::uint64_t began = 0;
    };
    const posix::Process own = posix::this_process();
    const Id id{posix::host_id(), own.id, own.began};
    for (const Id& each : gathered(this->comm(), std::span(&id, 1), deadline_, where("MpiConnector")))
      processes_.push_back({each.host.data(), own.host_name, each.id, each.began});
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_ && process(rank).shares_host_with(process(rank_))) on_host_.push_back(rank);
    ended_ = std::make_unique<std::atomic<bool>[]>(processes_.size());
  } catch (const TimeoutError&) {
    abandon();  // no destructor runs, and MPI_Finalize and MPI_Comm_free would wait for the rank that did not join
    throw;
  }
  /// Waits at the end for the other ranks, or for the surviving ones; returns whether they have joined. Gives up soon
  /// after a failure is known; of the surviving ones, ranks that have ended are not waited for.
  bool await_others(Timeout patience) noexcept try {
    using clock = Deadline::clock;
    const auto context = where("the end of MPI");
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<int> left = left_;
    std::erase(left, rank_);
    control_->send(~left_group_, left, {});
    // On the control communicator, so that no other call of a rank can match the barriers. They are two: a rank that is
    // late may pass one that the others have given up, but not the one that they enter once they have passed it.
    int barriers = 0;
    const auto ready = [&] {
      while (!is_left()) {
        if (barriers > 0 && !try_complete(request, "MPI_Ibarrier", context)) return false;
        if (++barriers > 2) return true;
        check(MPI_Ibarrier(control_->comm(), &request), "MPI_Ibarrier", context);
      }
      for (const auto& received : control_->received(~left_group_)) std::erase(left, received.from);
      return left.empty();
    };
    const auto is_over = [this](int rank) { return has_ended(rank); };
    auto end = clock::time_point::max();
    const auto has_given_up = [&] {
      const auto now = clock::now();
      control_->try_receive();
      if (control_->has_failed()) end = std::min(end, now + std::chrono::seconds(5));
      std::erase_if(left, is_over);
      if (!is_left() && std::ranges::any_of(on_host_, is_over)) end = std::min(end, now + std::chrono::seconds(1));
      return now >= end;
    };
    return wait_until(patience, ready, has_given_up) == WaitEnd::ready;
  } catch (...) {
    return false;
  }
  /// Waits until the other threads of this process sleep, at most a second: those of the program may be busy.
  ///
  /// MPI_Init of Open MPI 4 posts an event from one of its threads to another, and MPI_Finalize unloads the code that
  /// handles it. Where a thread has not been scheduled in between, the process would crash.
  static void await_idle_threads() noexcept try {
    int asleep = 0;  // twice: a thread that was seen asleep may have been woken by one that was looked at later
    const auto all_sleep = [&] { return (asleep = another_thread_runs() ? 0 : asleep + 1) == 2; };
    (void)wait_until(Timeout(std::chrono::seconds(1)), all_sleep, [] { return false; });
  } catch (...) {  // out of memory
  }
  void look_at_processes() {
    const auto now = Deadline::clock::now().time_since_epoch();
    auto before = looked_.load();  // to look at a process costs more than to poll MPI
    if (now - before <= std::chrono::milliseconds(5) * (1 + on_host_.size() / 16) ||
        !looked_.compare_exchange_strong(before, now))
      return;
    for (const int other : on_host_)
      if (!ended(other) && posix::has_ended(process(other), process(rank_))) ended(other) = one_has_ended_ = true;
  }
  [[nodiscard]] bool is_left() const noexcept { return !left_.empty(); }
  [[nodiscard]] std::atomic<bool>& ended(int rank) const noexcept { return ended_[static_cast<std::size_t>(rank)]; }
  /// Leaves MPI initialized: calls on this or other ranks may still use the handles.
  void abandon() noexcept {
    (void)environment_.release();
    (void)comm_.release();
    if (control_ != nullptr) control_->abandon();
  }

  int uncaught_ = std::uncaught_exceptions();
  Timeout deadline_;
  bool broken_ = false, stuck_ = false;
  // Does not finalize MPI itself: by its destruction MPI is finalized, or the object was released.
  std::unique_ptr<boost::mpi::environment> environment_;
  mpi_unique_comm comm_;
  std::unique_ptr<Control> control_;
  std::vector<posix::Process> processes_;         ///< by rank
  std::vector<int> on_host_;                      ///< the other ranks of this host, which are watched
  std::unique_ptr<std::atomic<bool>[]> ended_{};  ///< by rank
  std::atomic<bool> one_has_ended_{false};
  std::atomic<Deadline::clock::duration> looked_{};  ///< at the processes
  int rank_ = 0, size_ = 0;
  std::atomic<int> next_channel_{1};  // 0 has the tag of Control
  std::vector<int> left_{};           ///< the surviving ranks after `shrink`
  std::uint64_t left_group_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

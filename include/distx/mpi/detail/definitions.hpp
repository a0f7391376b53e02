// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <climits>
#include <memory>
#include <string>
#include <thread>

#include "distx/connect/self.hpp"
#include "distx/core/version.hpp"
#include "distx/mpi/detail/backend.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Waits as `wait_until` does, but sleeps between polls unless `hurried()`: for a thread that moves data while another
/// one computes, perhaps on the same core. A sleep takes a quarter of the time waited so far.
template <class Ready, class Stopped, class Hurried>
WaitEnd wait_beside(const Timeout& timeout, Ready&& ready, Stopped&& stopped, Hurried&& hurried) {
  using std::chrono::microseconds;
  const auto began = Deadline::clock::now();
  const Deadline deadline(timeout, began);
  for (unsigned polls = 1; !hurried() && !deadline.expired(); ++polls) {
    if (ready()) return WaitEnd::ready;
    if (polls % 4 == 0 && stopped()) break;
    const auto waited = std::chrono::duration_cast<microseconds>(Deadline::clock::now() - began);
    std::this_thread::sleep_for(std::clamp(waited / 4, microseconds(50), microseconds(500)));
  }
  if (deadline.unlimited()) return wait_until(timeout, ready, stopped);
  const auto left = std::chrono::duration_cast<Timeout::duration>(deadline.end() - Deadline::clock::now());
  return wait_until(std::max(left, Timeout::duration(0)), ready, stopped);
}

DISTX_INLINE void MpiBackend::execute(const Call<Host>& call) {
  if (revoked_) [[unlikely]]
    check_usable(self_.context(call));
  if (detail::traits_of(call.kind).message) {
    execute_message(call, self_.context(call));
  } else if (self_.size == 1) {
    detail::complete_alone(call);
  } else {
    const std::uint64_t number = blocking_calls_++;
    const bool joined = compares(call);
    if (joined && complete_compared(call, number)) return;
    // MPI's blocking collective has no deadline, so it is used only if every rank has joined or the deadline is
    // unlimited.
    const bool starts = !joined && !options_.deadline.unlimited();
    job_->open(native_handle(), transport_.calls, starts, blocking_queue_.transport().tag(MessageStage::first, number));
    try {  // inlined: few frames between MPI and the caller
      issue(*job_, call);
      if (!job_->idle()) [[unlikely]]
        wait(*job_, self_.context(call), {false, number + 1});
      job_->finish();
    } catch (...) {
      job_->abandon(Job::least_patience, lost());
      throw;
    }
  }
}

DISTX_INLINE bool MpiBackend::complete_compared(const Call<Host>& call, std::uint64_t number) {
  const ErrorContext context = self_.context(call);
  const auto wait = [&](auto&& ready, auto&& overdue) { wait_for(ready, overdue, context, {false, number + 1}); };
  joined_before_ = last_joined_;
  const bool complete = blocking_queue_.join(call, number, context, wait);
  last_joined_ = clock::now();
  if (complete) return true;
  if (transport_.scheduled) {
    blocking_queue_.transfer(call, number, context, wait);
    return true;
  }
  enter_vendor_call(context);
  return false;
}

DISTX_INLINE std::shared_ptr<detail::Operation<Host>> MpiBackend::start(const std::shared_ptr<State>& state,
                                                                        const Call<Host>& call, HostStream) {
  session_->control().try_receive();
  check_usable(self_.context(call));
  if (transport_.threaded && !detail::traits_of(call.kind).message) return tasks_.start(state, call);
  return pool_.start(state, call);
}

DISTX_INLINE void MpiBackend::run_started(const Call<Host>& call) {
  if (self_.size == 1) return execute(call);
  const ErrorContext context = self_.context(call);
  check_usable(context);
  const std::uint64_t number = started_calls_++;
  const auto wait = [&](auto&& ready, auto&& overdue) {
    wait_for(ready, overdue, context, {true, number + 1},
             [this](auto&&... with) { return wait_beside(with..., [this] { return tasks_.awaited(); }); });
  };
  started_queue_.run(call, number, context, wait);
}

}  // namespace distx::inline DISTX_ABI::detail::mpi

namespace distx::inline DISTX_ABI {

static_assert(Communicator<MpiCommunicator>);

DISTX_INLINE MpiConnector::MpiConnector(int& argc, char**& argv, const MpiConnectorOptions& options)
    : MpiConnector(detail::mpi::new_session(
          argc, argv, static_cast<detail::mpi::BoostThreadLevel>(options.thread_level), options.deadline)) {}
DISTX_INLINE MpiConnector::MpiConnector(MPI_Comm comm, const MpiConnectorOptions& options)
    : MpiConnector(detail::mpi::new_session(comm, options.deadline)) {}

DISTX_INLINE MpiConnectorOptions::ThreadLevel MpiConnector::thread_level() const {
  return static_cast<MpiConnectorOptions::ThreadLevel>(boost::mpi::environment::thread_level());
}
DISTX_INLINE MPI_Comm MpiConnector::native_handle() const noexcept { return session()->comm(); }
DISTX_INLINE std::shared_ptr<detail::mpi::Session> MpiConnector::session() const noexcept {
  return std::static_pointer_cast<detail::mpi::Session>(self_);
}

DISTX_INLINE MpiCommunicator::MpiCommunicator(std::shared_ptr<detail::mpi::Session> session, const MpiOptions& options)
    : Base(made(std::move(session), options)) {}
DISTX_INLINE MpiCommunicator MpiCommunicator::from_native_handle(MPI_Comm comm, const MpiOptions& options) {
  return MpiCommunicator(detail::mpi::new_session(comm, options.deadline), options);
}
DISTX_INLINE MPI_Comm MpiCommunicator::native_handle() const noexcept { return backend_of().native_handle(); }
DISTX_INLINE bool MpiCommunicator::serves_threads() { return detail::mpi::serves_threads(); }

DISTX_INLINE auto MpiCommunicator::made(std::shared_ptr<detail::mpi::Session> session,
                                        const MpiOptions& options) -> std::shared_ptr<State> {
  const auto context = session->where("MpiCommunicator");
  if (options.max_count < 1 || options.max_count > INT_MAX)
    throw InvalidArgument(
        "invalid max_count " + std::to_string(options.max_count) + ": must be in [1, " + std::to_string(INT_MAX) + "]",
        context);
  if (session->is_left() && options.collectives == MpiCollectives::vendor)
    throw InvalidArgument(
        "MpiCollectives::vendor: MPI's collectives wait for all ranks of an MPI communicator, of which some have "
        "failed; omit the option after shrink",
        context);
  struct Member {
    std::size_t max_count;
    Check check;
    bool scheduled;
    bool serves_threads;
    int next_channel;

    /// Returns whether the options, which are the same on every rank, are equal.
    bool operator==(const Member& other) const noexcept {
      return max_count == other.max_count && check == other.check && scheduled == other.scheduled;
    }
  };
  const bool scheduled = detail::mpi::Transport::is_scheduled(options, session->size());
  const auto all = session->gathered("MpiCommunicator", Member{options.max_count, options.check, scheduled,
                                                               serves_threads(), session->world().next_channel()});
  if (std::ranges::count(all, all[0]) != session->size())
    throw MismatchError("the ranks differ in MpiOptions: pass the same collectives, check and max_count on every rank",
                        context);
  const auto& ranks = session->subset().ranks;
  detail::mpi::Transport transport{.self = {session->rank(), session->size(), "mpi"},
                                   .ranks = *ranks,
                                   .identity = session->new_identity(),
                                   .serves_threads = std::ranges::all_of(all, &Member::serves_threads)};
  if (session->is_left()) {
    const int channel = std::ranges::max(all, {}, &Member::next_channel).next_channel;
    transport.open(*session, session->world().subset_of(*ranks, channel, context));
  } else {
    transport.open(*session, detail::mpi::duplicate(session->comm(), session->deadline(), context), options);
  }
  return State::make(std::move(session), std::move(transport), options);
}

DISTX_INLINE std::shared_ptr<detail::mpi::Session> MpiCommunicator::session_of_one(int rank, int size) {
  if (size != 1)
    throw ConnectError("these " + std::to_string(size) +
                           " ranks were not started by MPI; start the program with mpirun and use connect() or an "
                           "MpiConnector, or use ThreadCommunicator for ranks that are threads",
                       {.operation = "MpiCommunicator", .backend = "mpi", .rank = rank, .size = size});
  return detail::mpi::alone();
}

}  // namespace distx::inline DISTX_ABI

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/first_uses.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/mpi/communicator.hpp"
#include "distx/mpi/detail/aside.hpp"
#include "distx/mpi/detail/collectives.hpp"
#include "distx/mpi/detail/session.hpp"

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

/// The backend over MPI. See `detail::BasicCommunicator`.
///
/// Before a collective the ranks exchange descriptions of it. Small operands are transferred with the descriptions and
/// reduced in rank order. Larger ones are transferred in pieces, or by MPI's collectives. A progress thread does
/// that for asynchronous collectives if MPI serves several threads and distx schedules all messages; otherwise they are
/// MPI's nonblocking collectives, issued in the order of their start. One MPI communicator carries blocking collectives
/// and user messages, a second one everything else. Surviving ranks have no separate MPI
/// communicator: their messages differ in their tags, and distx schedules all collectives.
class MpiBackend {
 public:
  using space = Host;
  using State = detail::CommunicatorState<MpiBackend>;

  MpiBackend(std::shared_ptr<Session> session, Transport transport, const MpiOptions& options)
      : options_(options),
        session_(std::move(session)),
        transport_(std::move(transport)),
        job_(std::make_unique<Job>(transport_, options.max_count, session_->world())),
        blocking_queue_(queue(0), self(), options.deadline, transport_.counts_fit()),
        started_queue_(queue(1), self(), options.deadline, transport_.counts_fit()) {
    session_->control().join(transport_.identity, revoked_);
    if (self().rank != 0 || self().size == 1 || !EarlyWarning::is_on()) return;
    const char* const text = transport_.scheduled ? "distx makes large collectives, in rank order"
                                                  : "MPI makes large collectives, in its own order";
    std::fputs((error_message(text, session_->where("MpiCommunicator")) + "\n").c_str(), stderr);
  }
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;
  ~MpiBackend() {
    session_->control().leave(transport_.identity);
    if (!revoked_) {
      if (session_->world().ends_mpi() && self().size <= MpiOptions::most_scheduled_ranks)  // there are few peers
        session_->control().announce_exit(transport_.identity, self().rank, {blocking_calls_, started_calls_},
                                          transport_.ranks);
      return;
    }
    transport_.release();
    if (job_->left_behind()) (void)job_.release();
  }

  [[nodiscard]] const calls::RankOf& self() const noexcept { return transport_.self; }
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return transport_.blocking.native_handle(); }
  void revoke(const std::string& reason) noexcept try {
    knows_of_mismatch_ = true;  // this rank throws the error itself, even if a peer was first
    const auto why = RevocationReason::parse(reason).by(self().rank);
    // MPI would perhaps not return anymore: the ranks of the call that was left have the same deadline.
    const std::span<const int> others = aside_.left() ? std::span<const int>() : transport_.ranks;
    session_->control().publish(transport_.identity, why.published(), others);
  } catch (const std::bad_alloc&) {
    session_->control().publish(transport_.identity, reason, {});
  }
  /// @throws what has revoked the communicator: a mismatch once, on whichever thread is first
  void check_usable(const ErrorContext& context) {
    const auto why = revoked_ ? session_->control().reason(transport_.identity) : std::nullopt;
    if (!why) return;
    auto reason = RevocationReason::parse(*why);
    reason.thrown = knows_of_mismatch_.exchange(true);
    reason.raise(context);
  }

  void execute(const Call<Host>& call) {
    if (revoked_) [[unlikely]]
      check_usable(self().context(call));
    if (detail::traits_of(call.kind).message) {
      execute_message(call);
    } else if (self().size == 1) {
      detail::complete_alone(call);
    } else {
      const std::uint64_t number = blocking_calls_++;
      const bool joined = compares(call);
      if (joined && complete_compared(call, number)) return;
      // MPI's blocking collective, which has no deadline, is the faster one. On another thread this one can leave it.
      const bool timed = !options_.deadline.unlimited(), aside = timed && joined && transport_.serves_threads;
      job_->open(call, native_handle(), timed && !aside, blocking_queue_.transport().tag(MessageStage::first, number));
      try {  // inlined: few frames between MPI and the caller
        const auto overdue = [this] { return job_->overdue(options_.deadline); };
        if (aside) [[unlikely]]
          aside_.run(call, [&](auto&& ended, auto&& sleep) {
            wait_for(ended, overdue, job_->context(), {false, number + 1}, sleep);
          });
        else
          issue(*job_, call);
        if (!job_->idle()) [[unlikely]]
          wait(*job_, {false, number + 1});
        job_->finish();
      } catch (...) {
        if (aside_.left()) session_->world().note_broken(true);
        job_->abandon(Job::least_patience);
        throw;
      }
    }
  }
  [[nodiscard]] std::shared_ptr<detail::Operation<Host>> start(const std::shared_ptr<State>& state,
                                                               const Call<Host>& call, HostStream) {
    session_->control().try_receive();
    check_usable(self().context(call));
    if (transport_.threaded && !detail::traits_of(call.kind).message) return tasks_.start(state, call);
    return pool_.start(state, call);
  }
  /// Makes an asynchronous collective, on the progress thread or on one that waits for the call.
  void run_started(const Call<Host>& call) {
    if (self().size == 1) return execute(call);
    const ErrorContext context = self().context(call);
    check_usable(context);
    const std::uint64_t number = started_calls_++;
    const auto wait = [&](auto&& ready, auto&& overdue) {
      wait_for(ready, overdue, context, {true, number + 1},
               [this](auto&&... with) { return wait_beside(with..., [this] { return tasks_.awaited(); }); });
    };
    started_queue_.run(call, number, context, wait);
  }
  [[nodiscard]] detail::TaskRunner<State>& tasks() noexcept { return tasks_; }

  [[nodiscard]] std::shared_ptr<State> split(int color, int key, const std::source_location& location) {
    const auto group =
        detail::group_of(detail::all_gathered(*this, SplitRequest{color, key, self().rank}, location), color);
    const ErrorContext context = self().context("split", location);
    Transport part{.self = {0, static_cast<int>(group.size()), "mpi"},
                   .identity = fnv1a(std::array<std::uint64_t, 2>{transport_.identity, ++splits_}),
                   .serves_threads = transport_.serves_threads};
    for (const SplitRequest& request : group) {
      if (request.rank == self().rank) part.self.rank = static_cast<int>(part.ranks.size());
      part.ranks.push_back(transport_.ranks[static_cast<std::size_t>(request.rank)]);
    }
    if (transport_.has_collectives()) {
      enter_vendor_call(context);
      // MPI rejects negative colors, so a group uses the number of its first rank.
      session_->open(part, divided(group[0].rank, part.self.rank, context), options_);
    } else {
      int channel = session_->world().next_channel();
      execute(erase(calls::AllReduce<int, Max>{{&channel, 1}, {&channel, 1}, max, location}));
      session_->open(part, channel, context);
    }
    return State::make(session_, std::move(part), options_);
  }

 private:
  /// Returns the messages of blocking (0) or asynchronous (1) collectives.
  [[nodiscard]] QueueTransport queue(int number) const {
    return {transport_.calls, transport_.first_call_tag + 3 * number, 6, transport_.call_tags};
  }

  /// An asynchronous call or message; reused between calls.
  class AsyncCall final : public detail::Operation<Host> {
   public:
    explicit AsyncCall(State& state)
        : state_(state),
          job_(state.backend.transport_, state.backend.options_.max_count, state.backend.session_->world()),
          exchange_(state.backend.started_queue_.transport(), state.backend.self(),
                    state.backend.transport_.counts_fit()) {}

    void begin(const Call<Host>& call) {
      MpiBackend& backend = state_.backend;
      const bool message = detail::traits_of(call.kind).message;
      error_ = nullptr;
      call_ = call;
      phase_ = CallPhase::exchanging;
      number_ = {true, message ? 0 : ++backend.started_calls_};
      compares_ = !message && backend.self().size > 1 && backend.compares(call);
      if (message) {
        backend.open_message(job_, call, true);
        (void)advance();
        if (error_ == nullptr && job_.origin().first >= 0) backend.receiving_.push_back(&job_);
      } else {
        const std::uint64_t number = number_.number - 1;
        job_.open(call, backend.transport_.started.native_handle(), true,
                  backend.started_queue_.transport().tag(MessageStage::first, number));
        if (compares_) exchange_.begin(call, number, job_.context());
        // Every rank issues its calls in the order of their start, so this call waits for those that are being
        // compared.
        backend.exchanging_.push_back(this);
        backend.progress();
      }
      if (error_ == nullptr || phase_ != CallPhase::issued) return;
      give_up(Job::least_patience);
      std::rethrow_exception(error_);
    }

    /// Issues the call once all descriptions have arrived; returns whether the next call may be issued. That is not so
    /// after one that this rank cannot issue, in whose place the other ranks' MPI would take the next.
    bool advance() noexcept {
      try {
        if (error_ != nullptr || (compares_ && !exchange_.advance(job_.context()))) return false;
        if (compares_) exchange_.compare(call_, job_.context());
        if (compares_ && exchange_.all_inlined(call_)) {
          exchange_.complete(call_);
          phase_ = CallPhase::done;
        } else {
          phase_ = CallPhase::issued;
          issue(job_, call_);
        }
        return true;
      } catch (...) {
        error_ = std::current_exception();
        if (phase_ == CallPhase::exchanging && exchange_.over()) return true;
        state_.give_up_for_exception();  // ends the waits for the calls after this one
        return false;
      }
    }

    bool test() noexcept override {
      try {
        return is_ready() || state_.backend.is_stopped(number_);
      } catch (...) {
        error_ = std::current_exception();
        return true;
      }
    }

    void complete() override {
      try {
        state_.guarded([&] { wait(); });
      } catch (const RevokedError&) {
        give_up(patience());
        throw;
      } catch (...) {
        give_up(Job::least_patience);
        throw;
      }
      owners_.clear();
    }
    void abandon() noexcept override {
      state_.backend.revoke(detail::abandoned_by_exception);
      give_up(patience());
    }
    void keep(std::shared_ptr<void> owner) override { owners_.push_back(std::move(owner)); }
    void recycle() noexcept override {
      MpiBackend& backend = state_.backend;
      std::erase(backend.receiving_, &job_);
      if (left_behind())
        backend.pool_.abandon(*this);  // MPI may still access this object and its buffers
      else
        backend.pool_.give_back(*this);
    }

   private:
    enum class CallPhase { exchanging, issued, done };

    [[nodiscard]] bool is_collective() const noexcept { return number_.number != 0; }
    [[nodiscard]] bool is_ready() {
      MpiBackend& backend = state_.backend;
      backend.progress();
      return error_ != nullptr || phase_ == CallPhase::done || (phase_ == CallPhase::issued && backend.test(job_));
    }
    void wait() {
      MpiBackend& backend = state_.backend;
      const auto overdue = [&] {
        const Timeout& deadline = backend.options_.deadline;
        return phase_ == CallPhase::exchanging ? overdue_text(deadline, exchange_.missing(), did_not_join)
                                               : job_.overdue(deadline);
      };
      backend.wait_for([this] { return is_ready(); }, overdue, job_.context(), number_);
      if (error_ != nullptr) std::rethrow_exception(error_);
      // A call that completes after a revocation may have read memory that another rank abandoned.
      if (is_collective() || job_.received_data()) {
        if (phase_ == CallPhase::issued) backend.session_->control().receive();
        backend.check_usable(job_.context());
      }
      if (phase_ == CallPhase::issued) job_.finish();
    }
    [[nodiscard]] std::chrono::milliseconds patience() const noexcept {
      return is_collective() || !owners_.empty() ? Job::least_patience : state_.backend.patience();
    }
    /// Returns whether MPI still accesses this object or the caller's memory.
    [[nodiscard]] bool left_behind() const noexcept { return job_.left_behind() || !exchange_.over(); }
    /// Completes or cancels everything in flight; MPI keeps the rest together with all memory that it may access.
    void give_up(std::chrono::milliseconds patience) noexcept {
      std::erase(state_.backend.exchanging_, this);
      job_.abandon(patience);
      (void)exchange_.abandon();
      if (!left_behind()) owners_.clear();
    }

    State& state_;  // kept alive by the Pending
    Job job_;
    DescriptionExchange<QueueTransport> exchange_;
    CallPhase phase_ = CallPhase::done;
    bool compares_ = false;
    CallNumber number_;
    std::exception_ptr error_;  ///< what `wait` throws
    std::vector<std::shared_ptr<void>> owners_;
    Call<Host> call_;
  };

  /// Returns what MPI_Comm_split makes. MPI has no nonblocking form, so a thread waits for it if MPI serves several.
  /// @throws TimeoutError; then MPI may use the communicator until the process exits
  [[nodiscard]] mpi_unique_comm divided(int color, int key, const ErrorContext& context) {
    struct Part {
      int code = MPI_SUCCESS;
      MPI_Comm comm = MPI_COMM_NULL;
    };
    const auto part = std::make_shared<Part>();
    const auto make = [part, color, key, whole = native_handle()] {
      part->code = MPI_Comm_split(whole, color, key, &part->comm);
    };
    if (!serves_threads() || options_.deadline.unlimited()) {
      make();
    } else if (!detail::run_in_time(options_.deadline, make)) {
      session_->world().note_broken(true);
      throw TimeoutError("timed out after " + options_.deadline.to_string() + ": not all ranks entered MPI_Comm_split",
                         context);
    }
    check(part->code, "MPI_Comm_split", context);
    return owned(part->comm, context);
  }
  /// Returns whether the ranks compare a call; without MPI's collectives, they compare all.
  [[nodiscard]] bool compares(const Call<Host>& call) {
    return first_uses_.compares(transport_.has_collectives() ? options_.check : Check::every_call, call);
  }
  /// Returns whether this communicator is revoked, the process of a rank is known to have ended, or a rank has
  /// destroyed its communicator without having made `call`.
  [[nodiscard]] bool is_stopped(const CallNumber& call = {}) {
    session_->control().try_receive();
    return revoked_ || session_->world().first_ended(transport_.ranks) >= 0 ||
           session_->control().exited_before(transport_.identity, call) >= 0;
  }
  /// Throws why `is_stopped(call)`.
  [[noreturn]] void raise(const ErrorContext& context, const CallNumber& call = {}) {
    check_usable(context);
    if (const int rank = session_->control().exited_before(transport_.identity, call); rank >= 0)
      throw RankFailure("rank " + std::to_string(rank) + " has destroyed its communicator", rank, nullptr, context);
    session_->world().raise_ended(transport_.ranks, context);
  }
  /// Waits for other ranks by `wait(deadline, ready, stopped)`. @param overdue  returns the message of a timeout
  template <class Ready, class Overdue, class... Wait>
  void wait_for(Ready&& ready, Overdue&& overdue, const ErrorContext& context, const CallNumber& call, Wait&&... wait) {
    if (wait_for_ranks(options_.deadline, context, ready, [&] { return is_stopped(call); }, overdue, wait...))
      raise(context, call);
  }
  /// Throws if the communicator was revoked, before this rank enters a call of MPI's that cannot be ended.
  void enter_vendor_call(const ErrorContext& context) {
    session_->control().receive();
    check_usable(context);
    // A rank that timed out has also joined as far as MPI knows, but will not enter the call. It cannot have begun to
    // wait before this rank joined the previous call, so a revocation may be in transit only if that was long ago.
    if (!options_.deadline.unlimited() && last_joined_ - joined_before_ > options_.deadline.limit() / 2) {
      const Timeout grace = std::min<Timeout::duration>(options_.deadline.limit(), std::chrono::milliseconds(100));
      if (wait_until(grace, [] { return false; }, [this] { return is_stopped(); }) == WaitEnd::stopped) raise(context);
    }
  }

  /// Issues the asynchronous calls whose descriptions have arrived, in the order of their start; none after a failed
  /// one that was given up, in whose place the other ranks' MPI would take it.
  void progress() noexcept {
    while (!revoked_ && !exchanging_.empty() && exchanging_.front()->advance()) exchanging_.pop_front();
  }

  /// Returns whether all requests of the job are complete. Receives that were started earlier take the earlier
  /// messages of the same origin: if one of them mismatches, this one may have received the wrong data.
  /// @throws MismatchError for this receive or for an earlier one
  bool test(Job& job) {
    const auto origin = job.origin();
    const bool complete = job.test();
    for (Job* const earlier : receiving_) {
      if (earlier == &job) break;
      if (earlier->origin() == origin) (void)earlier->take_headers();
    }
    return complete;
  }

  /// Waits until all requests of the job are complete.
  void wait(Job& job, const CallNumber& call = {}) {
    wait_for([&] { return test(job); }, [&] { return job.overdue(options_.deadline); }, job.context(), call);
  }
  /// Compares the ranks' calls, and makes the call unless it is left to MPI; returns whether it has made it.
  [[nodiscard]] bool complete_compared(const Call<Host>& call, std::uint64_t number) {
    const ErrorContext context = self().context(call);
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
  /// @throws InvalidArgument if a message cannot have the tag that its user has chosen
  void open_message(Job& job, const Call<Host>& call, bool started) const {
    if (call.tag > transport_.last_message_tag)
      throw InvalidArgument("invalid tag " + std::to_string(call.tag) + ": this MPI has tags up to " +
                                std::to_string(transport_.last_message_tag) +
                                (transport_.has_collectives() ? "" : " for surviving ranks"),
                            self().context(call));
    job.open(call, native_handle(), started, transport_.first_message_tag);
  }
  void execute_message(const Call<Host>& call) {
    open_message(*job_, call, false);
    const ErrorContext& context = job_->context();
    session_->control().try_receive();
    check_usable(context);
    try {
      issue(*job_, call);
      if (call.kind == CollectiveKind::send) check_self_message(call.to);
      if (call.kind == CollectiveKind::receive) check_self_message(call.from);
      wait(*job_);
      if (job_->received_data()) {
        session_->control().receive();
        check_usable(context);  // the sender may have abandoned the memory that MPI has read
      }
    } catch (const RevokedError&) {
      job_->abandon(patience());
      throw;
    } catch (...) {
      job_->abandon(Job::least_patience);
      throw;
    }
  }
  /// Returns how long a message is let complete that was revoked in transit, which reads or writes memory of the user.
  /// Its other rank, notified as well, lets it complete, but a busy host may not run it for seconds. After the first of
  /// several messages the time is over.
  [[nodiscard]] std::chrono::milliseconds patience() noexcept {
    const auto now = clock::now();
    if (!patient_until_) patient_until_ = now + std::chrono::seconds(5);
    return std::max(Job::least_patience, std::chrono::duration_cast<std::chrono::milliseconds>(*patient_until_ - now));
  }
  /// Checks a self-send or self-receive, whose other side must have been started before.
  void check_self_message(int peer) {
    if (peer != self().rank) return;
    for (int look = 0; look < 1000; ++look)
      if (job_->test()) return;
    detail::throw_self_deadlock(job_->context());
  }

  using clock = Deadline::clock;

  MpiOptions options_;
  std::shared_ptr<Session> session_;
  Transport transport_;
  std::unique_ptr<Job> job_;
  Aside aside_{*job_};
  QueuedCollectives blocking_queue_, started_queue_;
  std::atomic<bool> revoked_{false};
  std::atomic<bool> knows_of_mismatch_{false};    ///< a call of this rank has thrown it
  clock::time_point last_joined_ = clock::now();  ///< when all ranks had last joined a call; construction counts as one
  clock::time_point joined_before_ = last_joined_;    ///< the same of the call before
  std::optional<clock::time_point> patient_until_{};  ///< see `patience`
  std::uint64_t blocking_calls_ = 0;
  std::uint64_t started_calls_ = 0;
  std::uint64_t splits_ = 0;
  detail::FirstUses first_uses_;
  detail::OperationPool<AsyncCall> pool_;
  std::deque<AsyncCall*> exchanging_;
  std::vector<Job*> receiving_;      ///< asynchronous messages, in the order of their start
  detail::TaskRunner<State> tasks_;  // last: joined before anything that its tasks use is destroyed
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

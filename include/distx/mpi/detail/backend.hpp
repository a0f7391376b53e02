// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <vector>

#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/first_uses.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/mpi/detail/declaration.hpp"
#include "distx/mpi/detail/messages.hpp"
#include "distx/mpi/detail/queue.hpp"
#include "distx/mpi/detail/transport.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

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
        self_(transport.self),
        session_(std::move(session)),
        transport_(std::move(transport)),
        watch_(session_->world(), transport_.ranks),
        job_(std::make_unique<Job>(self_, options.max_count, session_->world())),
        blocking_queue_(queue(0), self_, options.deadline, transport_.counts_fit()),
        started_queue_(queue(1), self_, options.deadline, transport_.counts_fit()) {
    session_->control().join(transport_.identity, revocation_, exit_notices_);
    if (self_.rank != 0 || self_.size == 1 || !EarlyWarning::is_on()) return;
    const char* const text = transport_.scheduled ? "distx makes large collectives, in rank order"
                                                  : "MPI makes large collectives, which no deadline ends";
    std::fputs((error_message(text, session_->where("MpiCommunicator")) + "\n").c_str(), stderr);
  }
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;
  ~MpiBackend() {
    session_->control().leave(transport_.identity);
    if (!revoked()) {
      if (session_->world().ends_mpi() && self_.size <= MpiOptions::most_scheduled_ranks)  // there are few peers
        session_->control().announce_exit(transport_.identity, self_.rank, {blocking_calls_, started_calls_},
                                          transport_.ranks);
      return;
    }
    transport_.release();
    if (job_->left_behind()) (void)job_.release();
  }

  [[nodiscard]] const calls::RankOf& self() const noexcept { return self_; }
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return transport_.blocking.native_handle(); }
  void revoke(const std::string& reason) noexcept {
    session_->control().revoke(transport_.identity, revocation_, self_.rank, transport_.ranks, reason);
  }
  /// @throws what has revoked the communicator
  void check_usable(const ErrorContext& context) {
    if (revoked()) [[unlikely]]
      revocation_.raise(context);
  }

  void execute(const Call<Host>& call);
  [[nodiscard]] std::shared_ptr<detail::Operation<Host>> start(const std::shared_ptr<State>& state,
                                                               const Call<Host>& call, HostStream);
  /// Makes an asynchronous collective, on the progress thread or on one that waits for the call.
  void run_started(const Call<Host>& call);
  [[nodiscard]] detail::TaskRunner<State>& tasks() noexcept { return tasks_; }

  [[nodiscard]] std::shared_ptr<State> split(int color, int key, const std::source_location& location) {
    const auto all = detail::all_gathered(*this, detail::SplitRequest{color, key, self_.rank}, location);
    const ErrorContext context = self_.context("split", location);
    if (!transport_.has_collectives()) return split_channel(detail::group_of(all, color), context);
    // MPI rejects negative colors, so a group uses the number of its lowest rank.
    const auto same = [&](const detail::SplitRequest& other) { return other.color == color; };
    const int first = std::find_if(all.begin(), all.end(), same)->rank;
    enter_vendor_call(context);
    return State::make(session_, open_transport(*session_, divided(first, key, context), options_), options_);
  }

 private:
  /// Returns a predicate: whether a rank is known to have ended.
  [[nodiscard]] auto lost() const {
    return [this](int rank) { return session_->world().has_ended(transport_.ranks[static_cast<std::size_t>(rank)]); };
  }

  /// Returns the messages of blocking (0) or asynchronous (1) collectives.
  [[nodiscard]] QueueTransport queue(int number) const {
    return {transport_.calls, QueueTags::of(transport_.first_call_tag + 3 * number, 6, transport_.call_tags)};
  }

  /// An asynchronous call or message; reused between calls.
  class AsyncCall final : public detail::Operation<Host> {
   public:
    explicit AsyncCall(State& state)
        : state_(state),
          job_(state.backend.self_, state.backend.options_.max_count, state.backend.session_->world()),
          exchange_(state.backend.started_queue_.transport(), state.backend.self_,
                    state.backend.transport_.counts_fit()) {}

    void begin(const Call<Host>& call) {
      MpiBackend& backend = state_.backend;
      const Transport& transport = backend.transport_;
      context_ = backend.self_.context(call);
      error_ = nullptr;
      phase_ = CallPhase::issued;
      collective_ = !detail::traits_of(call.kind).message;
      number_ = {true, collective_ ? backend.started_calls_ + 1 : 0};
      if (!collective_) {
        transport.check_tag(call.tag, context_);
        job_.open(transport.blocking.native_handle(), transport.messages, true, transport.first_message_tag,
                  transport.data_tags);
        issue_call(call);
        if (job_.awaits_header()) backend.receiving_.push_back(this);
        return;
      }
      const std::uint64_t number = backend.started_calls_++;
      job_.open(transport.started.native_handle(), transport.calls, true,
                backend.started_queue_.transport().tag(MessageStage::first, number));
      compares_ = backend.self_.size > 1 && backend.compares(call);
      // Every rank issues its calls in the order of their start, so this call waits for those that are being
      // compared.
      if (!compares_ && backend.exchanging_.empty()) return issue_call(call);
      call_ = call;
      phase_ = CallPhase::exchanging;
      if (compares_) exchange_.begin(call, number, context_);
      backend.exchanging_.push_back(this);
      backend.progress();
    }

    /// Issues the call once all descriptions have arrived; returns whether it was issued or has failed.
    bool advance_exchange() noexcept {
      try {
        if (compares_ && !exchange_.advance(context_)) return false;
        finish_exchange();
        return true;
      } catch (...) {
        return fail();
      }
    }

    bool test() noexcept override {
      try {
        return is_ready() || state_.backend.is_stopped(number_);
      } catch (...) {
        return fail();
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
      std::erase(backend.receiving_, this);
      if (left_behind_)
        backend.pool_.abandon(*this);  // MPI may still access this object and its buffers
      else
        backend.pool_.give_back(*this);
    }

    [[nodiscard]] const Job& job() const noexcept { return job_; }
    /// Takes the header of the message if it has arrived. @throws MismatchError, as `wait` does from then on
    void look_for_header() {
      if (job_.awaits_header()) (void)job_.look_for_header(context_);
    }

   private:
    enum class CallPhase { exchanging, issued, done, failed };

    /// Keeps the exception that is being handled, which `wait` throws. Returns true.
    bool fail() noexcept {
      error_ = std::current_exception();
      phase_ = CallPhase::failed;
      return true;
    }
    void finish_exchange() {
      if (compares_) exchange_.compare(call_, context_);
      if (compares_ && exchange_.all_inlined(call_)) {
        exchange_.complete(call_);
        phase_ = CallPhase::done;
      } else {
        issue_call(call_);
        phase_ = CallPhase::issued;
      }
    }

    void issue_call(const Call<Host>& call) {
      try {
        issue(job_, call);
      } catch (...) {
        job_.abandon(Job::least_patience, state_.backend.lost());
        left_behind_ = left_behind_ || job_.left_behind();
        throw;
      }
    }
    [[nodiscard]] bool is_ready() {
      MpiBackend& backend = state_.backend;
      backend.progress();
      return phase_ == CallPhase::done || phase_ == CallPhase::failed ||
             (phase_ == CallPhase::issued && backend.test(job_, context_));
    }
    void wait() {
      MpiBackend& backend = state_.backend;
      const auto overdue = [&] {
        const Timeout& deadline = backend.options_.deadline;
        return phase_ == CallPhase::exchanging ? overdue_text(deadline, exchange_.missing(), did_not_join)
                                               : job_.overdue(deadline);
      };
      backend.wait_for([this] { return is_ready(); }, overdue, context_, number_);
      if (phase_ == CallPhase::failed) std::rethrow_exception(error_);
      // A call that completes after a revocation may have read memory that another rank abandoned.
      if (collective_ || job_.received_data()) {
        if (phase_ == CallPhase::issued) backend.session_->control().receive();
        backend.check_usable(context_);
      }
      if (phase_ == CallPhase::issued) job_.finish();
    }
    [[nodiscard]] std::chrono::milliseconds patience() const noexcept {
      return collective_ || !owners_.empty() ? Job::least_patience : state_.backend.patience();
    }
    /// Completes or cancels everything in flight; MPI keeps the rest together with all memory that it may access.
    void give_up(std::chrono::milliseconds patience) noexcept {
      std::erase(state_.backend.exchanging_, this);
      job_.abandon(patience, state_.backend.lost());
      left_behind_ = left_behind_ || job_.left_behind() || !exchange_.abandon();
      if (!left_behind_) owners_.clear();
    }

    State& state_;  // kept alive by the Pending
    Job job_;
    DescriptionExchange<QueueTransport> exchange_;
    CallPhase phase_ = CallPhase::done;
    bool collective_ = false;
    bool compares_ = false;
    bool left_behind_ = false;
    CallNumber number_;
    ErrorContext context_;
    std::exception_ptr error_;
    std::vector<std::shared_ptr<void>> owners_;
    Call<Host> call_;
  };

  /// Returns what MPI_Comm_split makes. MPI has no nonblocking form, so a thread waits for it if MPI serves several.
  /// @throws TimeoutError; then MPI may use the communicator until the process exits
  [[nodiscard]] mpi_unique_comm divided(int color, int key, const ErrorContext& context) {
    struct Part {
      std::atomic<bool> made{false};
      int code = MPI_SUCCESS;
      MPI_Comm comm = MPI_COMM_NULL;
    };
    const auto part = std::make_shared<Part>();
    const auto make = [part, color, key, whole = native_handle()] {
      part->code = MPI_Comm_split(whole, color, key, &part->comm);
      part->made = true;
    };
    if (serves_threads() && !options_.deadline.unlimited())
      detail::run_in_time(options_.deadline, make);
    else
      make();
    if (!part->made) {
      session_->world().note_stuck();
      throw TimeoutError("timed out after " + options_.deadline.to_string() + ": not all ranks entered MPI_Comm_split",
                         context);
    }
    check(part->code, "MPI_Comm_split", context);
    auto owner = mpi_unique_comm::from_native_handle(part->comm);
    check(MPI_Comm_set_errhandler(part->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", context);
    return owner;
  }
  [[nodiscard]] std::shared_ptr<State> split_channel(const std::vector<detail::SplitRequest>& group,
                                                     const ErrorContext& context) {
    const auto all_gathered = [&](int value) { return detail::all_gathered(*this, value, context.location); };
    std::vector<int> ranks;
    for (const auto& request : group) ranks.push_back(transport_.calls[request.rank]);
    const auto subset = session_->world().new_subset(all_gathered, std::move(ranks), context);
    return State::make(session_, open_transport(*session_, subset), options_);
  }
  [[nodiscard]] bool revoked() const noexcept { return revocation_.revoked.load(std::memory_order_acquire); }
  /// Returns whether the ranks compare a call; without MPI's collectives, they compare all.
  [[nodiscard]] bool compares(const Call<Host>& call) {
    return first_uses_.compares(transport_.has_collectives() ? options_.check : Check::every_call, call);
  }
  /// Returns whether this communicator is revoked, the process of a rank is known to have ended, or a rank has
  /// destroyed its communicator without having made `call`.
  [[nodiscard]] bool is_stopped(const CallNumber& call = {}) {
    session_->control().try_receive();
    return revoked() || watch_.has_lost() || exit_notices_.prevent(call);
  }
  /// Throws why `is_stopped(call)`.
  [[noreturn]] void raise(const ErrorContext& context, const CallNumber& call = {}) {
    check_usable(context);
    if (exit_notices_.prevent(call)) exit_notices_.raise(call, context);
    watch_.raise(context);
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

  /// Issues the asynchronous calls whose descriptions have arrived, in the order of their start.
  void progress() noexcept {
    while (!exchanging_.empty() && exchanging_.front()->advance_exchange()) exchanging_.pop_front();
  }

  /// Returns whether all requests of the job are complete. Receives that were started earlier take the earlier
  /// messages of the same origin: if one of them mismatches, this one may have received the wrong data.
  /// @throws MismatchError for this receive or for an earlier one
  bool test(Job& job, const ErrorContext& context) {
    const auto origin = job.origin();
    const bool complete = job.test(context);
    for (AsyncCall* const earlier : receiving_) {
      if (&earlier->job() == &job) break;
      if (earlier->job().origin() == origin) earlier->look_for_header();
    }
    return complete;
  }

  /// Waits until all requests of the job are complete.
  void wait(Job& job, const ErrorContext& context, const CallNumber& call = {}) {
    wait_for([&] { return test(job, context); }, [&] { return job.overdue(options_.deadline); }, context, call);
  }
  /// Compares the ranks' calls, and makes the call unless it is left to MPI; returns whether it has made it.
  [[nodiscard]] bool complete_compared(const Call<Host>& call, std::uint64_t number);
  void execute_message(const Call<Host>& call, const ErrorContext& context) {
    transport_.check_tag(call.tag, context);
    session_->control().try_receive();
    check_usable(context);
    job_->open(native_handle(), transport_.messages, false, transport_.first_message_tag, transport_.data_tags);
    try {
      issue(*job_, call);
      if (call.kind == CollectiveKind::send) check_self_message(call.to, context);
      if (call.kind == CollectiveKind::receive) check_self_message(call.from, context);
      wait(*job_, context);
      if (job_->received_data()) {
        session_->control().receive();
        check_usable(context);  // the sender may have abandoned the memory that MPI has read
      }
    } catch (const RevokedError&) {
      job_->abandon(patience(), lost());
      throw;
    } catch (...) {
      job_->abandon(Job::least_patience, lost());
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
  void check_self_message(int peer, const ErrorContext& context) {
    if (peer != self_.rank) return;
    for (int look = 0; look < 1000; ++look)
      if (job_->test(context)) return;
    detail::throw_self_deadlock(context);
  }

  using clock = Deadline::clock;

  MpiOptions options_;
  calls::RankOf self_;
  std::shared_ptr<Session> session_;
  Transport transport_;
  Watch watch_;
  std::unique_ptr<Job> job_;
  QueuedCollectives blocking_queue_, started_queue_;
  Revocation revocation_;
  ExitNotices exit_notices_;
  clock::time_point last_joined_ = clock::now();  ///< when all ranks had last joined a call; construction counts as one
  clock::time_point joined_before_ = last_joined_;    ///< the same of the call before
  std::optional<clock::time_point> patient_until_{};  ///< see `patience`
  std::uint64_t blocking_calls_ = 0;
  std::uint64_t started_calls_ = 0;
  detail::FirstUses first_uses_;
  detail::OperationPool<AsyncCall> pool_;
  std::deque<AsyncCall*> exchanging_;
  std::vector<AsyncCall*> receiving_;  ///< in the order of their start
  detail::TaskRunner<State> tasks_;    // last: joined before anything that its tasks use is destroyed
};

}  // namespace distx::inline DISTX_ABI::detail::mpi

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <climits>
#include <exception>
#include <memory>
#include <vector>

#include "distx/comm/communicator.hpp"
#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/mpi/detail/messages.hpp"
#include "distx/mpi/detail/roll_call.hpp"

namespace distx {

struct MpiOptions {
  /// How long a call waits for the other ranks. Blocking collectives compare the ranks' calls while they wait. With
  /// `no_timeout` every call goes straight to MPI, which costs least, compares nothing and waits for ever; a revocation
  /// is then seen by the next call only. A message that has begun to arrive is waited for beyond it, since MPI writes
  /// where it goes: until its sender calls MPI again.
  Timeout deadline = default_deadline;
  /// Elements in one call of MPI, which counts in `int`; larger calls are cut.
  std::size_t max_count = INT_MAX;
};

}  // namespace distx

namespace distx::mpi {

/// One rank's side of a communicator; what its handles and Pendings share.
///
/// Two MPI communicators: one for blocking calls and messages, one for started collectives, which are ordered apart.
class Member {
 public:
  /// Takes `comm` over. Collective over it.
  Member(std::shared_ptr<Session> session, unique_comm comm, const MpiOptions& how)
      : self(rank_of(comm.native_handle())),
        options(how),
        session_(std::move(session)),
        blocking_(std::move(comm)),
        started_(duplicate(blocking_.native_handle(), where("MpiCommunicator"))),
        job_(self, how.max_count, *session_) {
    const auto context = where("MpiCommunicator");
    std::uint64_t identity = session_->control().new_identity(session_->rank());
    check(MPI_Bcast(&identity, 1, MPI_UINT64_T, 0, native_handle()), "MPI_Bcast", context);
    identity_ = identity;
    int found = 0;
    int* most = nullptr;
    check(MPI_Comm_get_attr(native_handle(), MPI_TAG_UB, static_cast<void*>(&most), &found), "MPI_Comm_get_attr",
          context);
    last_tag_ = found != 0 ? *most : 32767;
    find_peers(context);
    roll_call_ = std::make_unique<RollCall>(started_.native_handle(), self);
    session_->control().join(identity_, revocation_);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    // Whoever unwinds will not come to the calls that the others wait in.
    if (std::uncaught_exceptions() > uncaught_) revoke("it let the communicator go while unwinding");
    session_->control().leave(identity_);
    if (revoked()) {
      // Requests may be left on them, on this rank or another.
      (void)blocking_.release();
      (void)started_.release();
      for (auto& job : jobs_)
        if (job->left_behind()) (void)job.release();
      if (!roll_call_->over()) (void)roll_call_.release();
    }
  }

  [[nodiscard]] MPI_Comm native_handle() const noexcept { return blocking_.native_handle(); }
  [[nodiscard]] const std::shared_ptr<Session>& session() const noexcept { return session_; }
  [[nodiscard]] bool revoked() const noexcept { return revocation_.revoked.load(std::memory_order_acquire); }
  void revoke(const std::string& why) noexcept {
    session_->control().revoke(identity_, revocation_, self.rank, peers_, why);
  }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = Buffer<std::byte>(bytes);
    return {scratch_.data(), bytes};
  }

  /// Whether a wait for what is not complete would throw.
  [[nodiscard]] bool is_lost() {
    if (options.deadline.unlimited()) return false;
    look();
    return revoked();
  }

  /// Runs `f`; where it throws, the others are told.
  template <class F>
  decltype(auto) guarded(F&& f) {
    return detail::revoke_on_exception(f, [&](const char* words) { revoke(words); });
  }

  template <Collective Call>
  void execute(const Call& call) {
    guarded([&] {
      validate(call, self);
      if (revoked()) [[unlikely]]
        throw_revoked(self.context(call));
      if constexpr (is_message<Call>) {
        run_message(call);
      } else {
        if (!options.deadline.unlimited()) {
          arrive(fingerprint(call), self.context(call));
          if constexpr (Call::name == "barrier") return;  // that was one
        }
        job_.open(native_handle(), false, last_tag_);
        settle(job_, [&] {
          issue(job_, call);
          if (!job_.idle()) [[unlikely]]
            wait(job_, self.context(call));
          job_.finish();
        });
      }
    });
  }

  /// A job that is the caller's until `retire`.
  template <Collective Call>
  [[nodiscard]] Job* start(const Call& call) {
    return guarded([&] {
      validate(call, self);
      look();
      if (revoked()) throw_revoked(self.context(call));
      if (idle_.empty()) {
        idle_.reserve(jobs_.size() + 1);  // so that retire() cannot fail
        idle_.push_back(jobs_.emplace_back(std::make_unique<Job>(self, options.max_count, *session_)).get());
      }
      Job* const job = idle_.back();
      job->open(is_message<Call> ? native_handle() : started_.native_handle(), true, last_tag_);
      settle(*job, [&] { issue(*job, call); });
      idle_.pop_back();
      return job;
    });
  }
  void retire(Job* job) noexcept { idle_.push_back(job); }

  /// Waits until all of the job's requests are complete.
  void wait(Job& job, const ErrorContext& context) {
    if (options.deadline.unlimited()) return job.wait(context);
    const auto end =
        detail::wait_until(options.deadline, [&] { return job.test(context); }, [&] { return look(), revoked(); });
    if (end == detail::WaitEnd::stopped) throw_revoked(context);
    if (end == detail::WaitEnd::expired)
      throw TimeoutError("after " + options.deadline.to_string() + " the other ranks have not done their part",
                         context);
  }
  /// Runs `f`; where it throws, nothing of the job is left in flight.
  template <class F>
  void settle(Job& job, F&& f) {
    try {
      f();
    } catch (...) {
      job.abandon();
      throw;
    }
  }
  /// Waits until every rank has come to a blocking collective. From then on nothing can end MPI's call but the others'
  /// making it. So a rank that is told of a revocation here gives the others a moment to come, and where all do, it
  /// goes on with them; the next call throws.
  /// @throws MismatchError on every rank, where the calls are not the same; TimeoutError, RevokedError
  void arrive(const Fingerprint& mine, const ErrorContext& context) {
    if (self.size == 1) return;
    const auto before = std::exchange(came_, clock::now());
    const auto come = [&] { return roll_call_->advance(context); };
    const auto told = [&] { return look(), revoked(); };
    const auto never = [] { return false; };
    const Timeout grace = std::min<Timeout::duration>(options.deadline.limit(), std::chrono::milliseconds(100));
    session_->control().look_for_sure();  // where the others' messages are there already, nothing below looks
    if (revoked()) throw_revoked(context);
    roll_call_->begin(mine, context);
    auto end = detail::wait_until(options.deadline, come, told);
    if (end == detail::WaitEnd::expired)
      throw TimeoutError("after " + options.deadline.to_string() + " not every rank has made the call", context);
    const bool all = end == detail::WaitEnd::ready || detail::wait_until(grace, come, never) == detail::WaitEnd::ready;
    if (all)
      if (const auto other = roll_call_->other_call(mine))
        throw MismatchError(difference(mine, other->call, other->rank), context);
    // A rank that gave up waiting has come, too, as MPI sees it, and the call would hang. It cannot have begun to wait
    // before this rank came to the call before this one: only long after that there may be news of it, on its way.
    const bool late = clock::now() - before > options.deadline.limit() / 2;
    if (late && end == detail::WaitEnd::ready) end = detail::wait_until(grace, never, told);
    if (end == detail::WaitEnd::stopped && (late || !all)) throw_revoked(context);
  }

  const RankOf self;
  const MpiOptions options;
  GroupCache groups;

 private:
  template <class Call>
  static constexpr bool is_message = Call::name == "send" || Call::name == "receive" || Call::name == "send_receive";

  static RankOf rank_of(MPI_Comm comm) {
    RankOf self{0, 1, "mpi"};
    const ErrorContext context{.operation = "MpiCommunicator", .backend = "mpi"};
    check(MPI_Comm_rank(comm, &self.rank), "MPI_Comm_rank", context);
    check(MPI_Comm_size(comm, &self.size), "MPI_Comm_size", context);
    return self;
  }
  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "mpi", .rank = self.rank, .size = self.size};
  }
  void find_peers(const ErrorContext& context) {
    MPI_Group own = MPI_GROUP_NULL;
    check(MPI_Comm_group(native_handle(), &own), "MPI_Comm_group", context);
    const auto own_group = unique_group::from_native_handle(own);
    MPI_Group all = MPI_GROUP_NULL;
    check(MPI_Comm_group(session_->control().comm(), &all), "MPI_Comm_group", context);
    const auto all_group = unique_group::from_native_handle(all);
    std::vector<int> ranks;
    for (int rank = 0; rank < self.size; ++rank)
      if (rank != self.rank) ranks.push_back(rank);
    peers_.resize(ranks.size());
    check(MPI_Group_translate_ranks(own, static_cast<int>(ranks.size()), ranks.data(), all, peers_.data()),
          "MPI_Group_translate_ranks", context);
  }

  void look() { session_->control().look(); }
  [[noreturn]] void throw_revoked(const ErrorContext& context) const {
    throw RevokedError(revocation_.reason, context);
  }

  template <Collective Call>
  void run_message(const Call& call) {
    job_.open(native_handle(), false, last_tag_);
    settle(job_, [&] {
      if (!options.deadline.unlimited()) look();
      if (revoked()) throw_revoked(self.context(call));
      issue(job_, call);
      if constexpr (Call::name != "send_receive")
        if (peer_of(call) == self.rank) meet_itself(call);
      wait(job_, self.context(call));
    });
  }
  static int peer_of(const Send<AnyElement>& call) { return call.to; }
  static int peer_of(const Receive<AnyElement>& call) { return call.from; }

  /// Both sides on one rank: the other one has been started before, or never comes.
  template <Collective Call>
  void meet_itself(const Call& call) {
    for (int look = 0; look < 1000; ++look)
      if (job_.test(self.context(call))) return;
    throw MismatchError("a blocking message to oneself would wait for ever: start the other side first",
                        self.context(call));
  }

  using clock = Deadline::clock;

  int uncaught_ = std::uncaught_exceptions();
  clock::time_point came_ = clock::now();  ///< to the last call that all ranks came to; this object's making was one
  std::shared_ptr<Session> session_;
  unique_comm blocking_;
  unique_comm started_;
  std::uint64_t identity_ = 0;
  int last_tag_ = 32767;
  std::vector<int> peers_;  ///< the other ranks, as the control communicator numbers them
  Revocation revocation_;
  std::unique_ptr<RollCall> roll_call_;
  Job job_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<Job*> idle_;
  Buffer<std::byte> scratch_;
};

}  // namespace distx::mpi

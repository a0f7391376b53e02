// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <exception>
#include <memory>
#include <thread>

#include "distx/comm/communicator.hpp"
#include "distx/nccl/detail/messages.hpp"
#include "distx/nccl/detail/reductions.hpp"
#include "distx/nccl/detail/watcher.hpp"

namespace distx::nccl {

/// The communicators of NCCL's that one of distx's is made of, in the order in which they are made.
///
/// What would wait for one another on one of them is on two: blocking calls, started collectives, messages.
struct Comms {
  unique_comm blocking;
  unique_comm started;
  unique_comm messages;
};

/// One rank's side of a communicator; what its handles and Pendings share.
class Member final : public Watched, public GroupMember, public std::enable_shared_from_this<Member> {
 public:
  Member(const RankOf& who, int gpu, const NcclOptions& how, Comms comms, std::shared_ptr<FailureChannel> notices,
         std::uint64_t identity)
      : self(who),
        device(gpu),
        options(how),
        ending(std::move(notices), identity, who.rank),
        blocking(std::move(comms.blocking), how.stream.value_or(CudaStreamRef()), self, options, ending),
        started(std::move(comms.started), how.stream.value_or(started_stream_), self, options, ending),
        messages(std::move(comms.messages), how.stream.value_or(message_stream_), self, options, ending) {
    // While a call waits for ever, so may an allocation: what small calls need is there before.
    for (Channel* const channel : {&blocking, &started}) {
      static_cast<void>(channel->workspace(1));
      static_cast<void>(channel->pinned(1));
    }
    watcher_->join(*this);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    watcher_->leave(*this);
    if (cutter_.joinable()) cutter_.join();
    int before = device;
    static_cast<void>(cudaGetDevice(&before));
    static_cast<void>(cudaSetDevice(device));
    // Whoever unwinds will not come to the calls that the others wait in.
    if (std::uncaught_exceptions() > uncaught_) revoke("it let the communicator go while unwinding");
    if (!ending.ended() && open_group == nullptr)  // in a group NCCL would only take note of it
      for (Channel* const channel : {&messages, &started, &blocking}) channel->finalize();
    if (!at_rest(std::chrono::seconds(2))) abandon();
    end_channels(false);
    static_cast<void>(cudaSetDevice(before));
  }

  /// The lowest compute capability of the ranks' GPUs, which decides what NCCL reduces: on all ranks alike.
  [[nodiscard]] int capability() const noexcept { return blocking.capability; }
  void set_capability(int lowest) noexcept {
    blocking.capability = lowest;
    started.capability = lowest;
  }

  /// Ends the communicator, on this rank at once.
  void revoke(const std::string& why) noexcept { end(Ending::Kind::revoked, why); }

  /// Runs `f`; where it throws, the others are told.
  template <class F>
  decltype(auto) guarded(F&& f) {
    try {
      return f();
    } catch (const std::exception& error) {
      end(Ending::Kind::revoked, error.what());
      throw;
    } catch (...) {
      end(Ending::Kind::revoked, "an exception that is no std::exception");
      throw;
    }
  }

  template <Collective Call>
  void execute(const Call& call) {
    guarded([&] {
      validate(call, self);
      const DeviceGuard guard(device);
      if constexpr (is_message<Call>) {
        Job& job = begin(call, blocking.stream);
        finish(job, self.context(call));
      } else {
        {
          const auto lock = locked();
          ready(self.context(call));
          refuse_in_group(self.context(call));
          flush_sends();
          blocking.reduction = reduction_.get();
          busy_.store(true, std::memory_order_relaxed);
          issue(blocking, call);
        }
        wait([&] { return blocking.stream.done(); }, self.context(call));
        busy_.store(false, std::memory_order_relaxed);
        reduction_->rethrow();
      }
    });
  }

  /// A job that is the caller's until `finish` or `follow`.
  template <Collective Call>
  [[nodiscard]] Job* start(const Call& call, CudaStreamRef after) {
    return guarded([&] {
      validate(call, self);
      const DeviceGuard guard(device);
      return &begin(call, after);
    });
  }

  /// Waits until it is done, and takes it back.
  void finish(Job& job, const ErrorContext& context) {
    const Returning returning{job, Job::Holder::nobody};
    guarded([&] {
      demand(job, context);
      wait([&] { return job.event.done(); }, context);
      job.reduction.rethrow();
    });
  }
  /// Makes the stream wait for it, and takes it back.
  void follow(Job& job, CudaStreamRef stream, const ErrorContext& context) {
    const Returning returning{job, Job::Holder::stream};
    guarded([&] {
      const DeviceGuard guard(device);
      demand(job, context);
      if (ending.ended()) ending.raise(context);
      if (stream != job.channel->stream) stream.wait(job.event);
    });
  }
  /// Whether `finish` would return, or throw, at once.
  [[nodiscard]] bool test(Job& job) noexcept {
    try {
      if (!job.enqueued && open_group == nullptr) {
        const DeviceGuard guard(device);
        const auto lock = locked();
        flush();
        see_enqueued(job);
      }
      if (job.done()) return true;
      hear();
      return ending.ended();
    } catch (const std::exception& error) {
      revoke(error.what());
      return true;
    }
  }
  /// Leaves it to itself, after `revoke`.
  void let_go(Job& job) noexcept { job.holder = Job::Holder::stream; }

  /// Every rank's value, in rank order. Collective; blocking.
  template <class T>
  [[nodiscard]] std::vector<T> gathered(const T& mine, std::string_view operation,
                                        const std::source_location& location) {
    const ErrorContext context{
        .operation = operation, .backend = self.backend, .rank = self.rank, .size = self.size, .location = location};
    std::vector<T> all(static_cast<std::size_t>(self.size));
    guarded([&] {
      const DeviceGuard guard(device);
      const AllGather<AnyElement, Cuda> call{.location = location};
      {
        const auto lock = locked();
        ready(context);
        refuse_in_group(context);
        flush_sends();
        const std::size_t total = sizeof(T) * all.size();
        std::byte* const host = blocking.pinned(total);
        std::byte* const gpu = blocking.workspace(total);
        std::memcpy(host, &mine, sizeof(T));
        blocking.copy(gpu + sizeof(T) * static_cast<std::size_t>(self.rank), host, sizeof(T), call);
        blocking.check(ncclAllGather(gpu + sizeof(T) * static_cast<std::size_t>(self.rank), gpu, sizeof(T), ncclUint8,
                                     blocking.comm(), blocking.stream.native_handle()),
                       "ncclAllGather", call);
        blocking.copy(host, gpu, total, call);
      }
      wait([&] { return blocking.stream.done(); }, context);
      std::memcpy(all.data(), blocking.pinned(0), sizeof(T) * all.size());
    });
    return all;
  }

  /// Waits for what the GPU does, until this communicator has ended.
  template <class Done>
  void wait(Done&& done, const ErrorContext& context) {
    const auto end = detail::wait_until(options.deadline, done, [&] { return hear(), ending.ended(); });
    if (end == detail::WaitEnd::expired) {
      const std::string words = "after " + options.deadline.to_string() + " the other ranks have not done their part";
      this->end(Ending::Kind::timeout, words, 0, true);
      throw TimeoutError(words, context);
    }
    if (ending.ended()) [[unlikely]] {
      abort();
      ending.raise(context);
    }
  }

  /// Waits until nothing of this communicator's is under way on this rank.
  void settle(const ErrorContext& context) {
    guarded([&] {
      const DeviceGuard guard(device);
      {
        const auto lock = locked();
        ready(context);
        refuse_in_group(context);
        flush();
      }
      wait([this] { return idle(); }, context);
    });
  }

  [[nodiscard]] std::unique_lock<std::mutex> locked() {
    return in_group() ? std::unique_lock<std::mutex>() : std::unique_lock(mutex_);
  }
  /// @throws what has ended the communicator
  void ready(const ErrorContext& context) {
    if (ending.ended()) [[unlikely]]
      ending.raise(context);
  }
  void end(Ending::Kind kind, const std::string& why, int code = 0, bool told = false) noexcept {
    ending.end(kind, why, code, told);
    abort();
  }

  [[nodiscard]] Span<std::byte, Cuda> scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) {
      const DeviceGuard guard(device);
      scratch_ = Buffer<std::byte, Cuda>(bytes, uninitialized);
    }
    return {scratch_.data(), bytes};
  }

  bool look() noexcept override;
  void leave_group(ncclResult_t code, bool unwinding) noexcept override;

  const RankOf self;
  const int device;
  const NcclOptions options;
  Ending ending;
  GroupCache groups;
  std::uint64_t children = 0;  ///< how many were made of it, for their identities

 private:
  const int uncaught_ = std::uncaught_exceptions();
  CudaStream started_stream_;
  CudaStream message_stream_;

 public:
  Channel blocking;
  Channel started;
  Channel messages;

 private:
  template <Collective Call>
  Job& begin(const Call& call, CudaStreamRef after) {
    check_tag(call, self);
    auto lock = locked();
    ready(self.context(call));
    if (open_group != nullptr) enter_group(lock);
    Job& job = jobs_.idle();
    job.channel = is_message<Call> ? &messages : &started;
    job.deadline = Deadline(options.deadline);
    if (after != job.channel->stream) {
      job.event.record(after);
      job.channel->stream.wait(job.event);
    }
    if constexpr (is_message<Call>) {
      posted_.add(&job, call);
      if (open_group != nullptr) flush();
    } else {
      flush_sends();
      started.reduction = &job.reduction;
      issue(started, call);
    }
    if (open_group != nullptr)
      grouped_.push_back(&job);
    else if constexpr (!is_message<Call>)
      enqueued(job);
    job.holder = Job::Holder::pending;
    watcher_->wake();
    return job;
  }
  /// Takes note of a call that has nothing left to be enqueued.
  void see_enqueued(Job& job) {
    if (!job.enqueued && !posted_.has(&job)) enqueued(job);
  }
  void enqueued(Job& job) {
    job.event.record(job.channel->stream);
    job.enqueued = true;
  }
  /// Enqueues the messages that wait for it.
  void flush() {
    if (posted_.empty()) return;
    const auto& leaving = posted_.enqueue(messages);
    if (open_group != nullptr) return;
    for (const Message& message : leaving) see_enqueued(*message.job);
  }
  /// The same where other ranks may wait for one of them. Receives alone wait for the sends that may come with them:
  /// enqueued before, they would hold them up.
  void flush_sends() {
    if (posted_.sends()) flush();
  }
  /// Sees to it that the job is enqueued.
  void demand(Job& job, const ErrorContext& context) {
    if (job.enqueued) [[likely]]
      return;
    if (ending.ended()) {
      abort();
      ending.raise(context);
    }
    if (open_group != nullptr)
      throw MismatchError("a call that was started in an NcclGroup begins when the group ends: wait for it afterwards",
                          context);
    const DeviceGuard guard(device);
    const auto lock = locked();
    flush();
    if (posted_.has(&job))
      throw MismatchError("a blocking message to oneself would wait for ever: start the other side first", context);
    see_enqueued(job);
  }

  static void refuse_in_group(const ErrorContext& context) {
    if (open_group != nullptr) [[unlikely]]
      throw MismatchError(
          "a blocking call inside an NcclGroup would wait for the end of the group: start it outside, or "
          "as a started call",
          context);
  }
  void enter_group(std::unique_lock<std::mutex>& lock) {
    if (in_group()) return;
    if (open_group->blocking.value_or(options.blocking) != options.blocking)
      throw MismatchError("the communicators of an NcclGroup have NcclOptions::blocking all alike: NCCL waits by one",
                          {.operation = "NcclGroup", .backend = self.backend, .rank = self.rank, .size = self.size});
    open_group->blocking = options.blocking;
    open_group->members.push_back(shared_from_this());
    // Until the group ends, so that nobody aborts what is in it.
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    static_cast<void>(lock.release());
  }
  /// Whether the group that this thread has open holds the lock.
  [[nodiscard]] bool in_group() const noexcept {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  /// What NCCL and the other ranks say; asked once a millisecond.
  void hear() noexcept {
    ending.hear();
    if (ending.ended() || in_group()) return;
    const auto now = Deadline::clock::now();
    if (now < next_look_) return;
    next_look_ = now + std::chrono::milliseconds(1);
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) find_errors();
  }
  /// @pre locked
  void find_errors() noexcept {
    for (const Channel* const channel : {&blocking, &started, &messages}) {
      const ncclResult_t state = channel->state();
      if (state == ncclSuccess || state == ncclInProgress) continue;
      const auto kind = state == ncclRemoteError ? Ending::Kind::rank_failure : Ending::Kind::error;
      try {
        ending.end(kind, "NCCL: " + words_of(state, channel->comm()), static_cast<int>(state));
      } catch (...) {
        ending.end(kind, "", static_cast<int>(state));
      }
    }
  }
  /// Ends what is in flight on this rank; in a group, when that ends.
  void abort() noexcept {
    if (in_group()) return;
    {
      const std::lock_guard lock(mutex_);
      abort_locked();
    }
    static_cast<void>(at_rest(std::chrono::seconds(2)));  // so that it touches no buffer of the caller's any more
  }
  void abort_locked() noexcept {
    posted_.clear();
    end_channels(options.shrinkable);
  }
  /// Ends all at once, each on a thread of its own: while NCCL ends one it may wait for the whole GPU, and so for the
  /// calls of the others; and in a group that this thread has open it would only take note.
  void end_channels(bool keep) noexcept {
    std::array<std::thread, 3> threads;
    std::size_t number = 0;
    for (Channel* const channel : {&blocking, &started, &messages}) {
      if (channel->comm() == nullptr) continue;
      try {
        threads[number] = std::thread([this, channel, keep] {
          static_cast<void>(cudaSetDevice(device));
          channel->end(keep);
        });
        ++number;
      } catch (...) {
        channel->end(keep);
      }
    }
    for (std::size_t i = 0; i < number; ++i) threads[i].join();
  }
  /// Aborts on a thread of its own: NCCL may wait there for what another communicator does, which the watcher has to
  /// look after as well.
  void cut() noexcept {
    if (cutter_.joinable()) return;
    try {
      cutter_ = std::thread([this] {
        static_cast<void>(cudaSetDevice(device));
        abort();
      });
    } catch (...) {
      abort();
    }
  }
  [[nodiscard]] bool idle() noexcept {
    try {
      const std::lock_guard lock(mutex_);
      return jobs_.done() && (!busy_.load(std::memory_order_relaxed) || blocking.stream.done());
    } catch (const Error&) {
      return true;  // a GPU that has failed does nothing more
    }
  }
  /// Whether, within this time, none of its calls runs any more.
  [[nodiscard]] bool at_rest(Timeout limit) noexcept {
    return detail::wait_until(limit, [this] { return idle(); }, [] { return false; }) == detail::WaitEnd::ready;
  }
  /// Leaves to what is still running what it may use.
  void abandon() noexcept {
    for (Channel* const channel : {&blocking, &started, &messages}) channel->abandon();
    static_cast<void>(new Jobs(std::move(jobs_)));
    static_cast<void>(new Buffer<std::byte, Cuda>(std::move(scratch_)));
    static_cast<void>(reduction_.release());
  }

  std::mutex mutex_;  ///< around every call of NCCL's on the channels
  std::atomic<std::thread::id> owner_{};
  std::atomic<bool> busy_{false};  ///< a blocking call is enqueued
  Deadline::clock::time_point next_look_{};
  std::unique_ptr<HostReduction> reduction_ = std::make_unique<HostReduction>();
  Jobs jobs_;
  Posted posted_;
  std::vector<Job*> grouped_;
  Buffer<std::byte, Cuda> scratch_;
  std::shared_ptr<Watcher> watcher_ = Watcher::shared();
  std::thread cutter_;  ///< the watcher's alone, until this is not looked at any more
};

inline bool Member::look() noexcept {
  if (ending.ended()) return cut(), false;
  bool any = false;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return true;
    if (cudaSetDevice(device) != cudaSuccess) return false;
    for (const auto& job : jobs_) {
      if (job->holder == Job::Holder::nobody || !job->enqueued) continue;
      if (cudaEventQuery(job->event.native_handle()) != cudaErrorNotReady) continue;
      any = true;
      if (job->deadline.expired())
        ending.end(Ending::Kind::timeout, "after " + options.deadline.to_string() +
                                              " the other ranks have not done their part in a started call");
    }
    if (!any) return false;
    find_errors();
  }
  ending.hear();
  if (ending.ended()) cut();
  return any;
}

inline void Member::leave_group(ncclResult_t code, bool unwinding) noexcept {
  if (unwinding) ending.end(Ending::Kind::revoked, "it let a group of calls go while unwinding");
  const ErrorContext context{.operation = "NcclGroup", .backend = self.backend, .rank = self.rank, .size = self.size};
  try {
    const DeviceGuard guard(device);
    for (Channel* const channel : {&started, &messages})
      if (channel->comm() != nullptr && !ending.ended()) channel->complete(code, "ncclGroupEnd", context);
    if (!ending.ended())
      for (Job* const job : grouped_) see_enqueued(*job);
  } catch (const std::exception& error) {
    ending.end(Ending::Kind::error, error.what(), static_cast<int>(code));
  }
  grouped_.clear();
  if (ending.ended()) abort_locked();
  owner_.store(std::thread::id(), std::memory_order_relaxed);
  mutex_.unlock();
}

}  // namespace distx::nccl

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <memory>
#include <thread>

#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/first_uses.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/nccl/detail/call_watch.hpp"
#include "distx/nccl/detail/comm_set.hpp"
#include "distx/nccl/detail/messages.hpp"
#include "distx/nccl/detail/profiler_range.hpp"
#include "distx/nccl/detail/reductions.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// The backend over NCCL: one rank's side of a communicator. See `detail::BasicCommunicator`.
class NcclBackend final : public GroupMember {
  using Cause = RevocationState::Cause;

 public:
  using space = Cuda;
  using State = distx::detail::CommunicatorState<NcclBackend>;

  NcclBackend(const calls::RankOf& rank_of, int gpu, const NcclOptions& how, Comms made,
              std::shared_ptr<FailureChannel> channel, std::uint64_t identity)
      : self_(rank_of),
        device(gpu),
        options(how),
        revocation(std::move(channel), identity, rank_of.rank),
        comms(std::move(made), self_, options, revocation) {
    static_cast<void>(EndingThreads::all());  // so that its end comes before that of CUDA
    watch_.begin([this] { return check(); }, [this] { return observe(); });
  }
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;
  ~NcclBackend() {
    watch_.end();
    if (aborter_.joinable()) aborter_.join();
    const QuietDeviceGuard guard(device);
    if (!revocation.revoked() && open_group == nullptr) comms.finalize();
    if (!at_rest(std::chrono::seconds(2))) abandon();
    comms.end();
  }

  /// The lowest compute capability of the ranks' GPUs, which decides what NCCL reduces.
  [[nodiscard]] int capability() const noexcept { return comms.blocking.capability; }
  void set_capability(int lowest) noexcept {
    comms.blocking.capability = lowest;
    comms.started.capability = lowest;
  }

  [[nodiscard]] const calls::RankOf& self() const noexcept { return self_; }
  void revoke(const std::string& why) noexcept { end(Cause::revoked, why); }
  /// @throws what has revoked the communicator
  void check_usable(const ErrorContext& context) {
    if (revocation.revoked()) [[unlikely]]
      revocation.raise(context);
  }

  void execute(const calls::Call<Cuda>& call) {
    const ProfilerRange range(name_of(call.kind));
    const cuda::DeviceGuard guard(device);
    const auto context = self_.context(call);
    reject_blocking_in_group(context);
    if (distx::detail::traits_of(call.kind).message) return finish(begin(nullptr, call, comms.user_stream()), context);
    if (self_.size > 1 && first_uses_.compares(options.check, call)) compare(call, context);
    {
      const auto use = blocking_use(context);
      comms.follow_user();
      comms.blocking.reduction = reduction_.get();
      issue(comms.blocking, call);
    }
    wait_for_blocking(context);
    reduction_->rethrow();
  }

  /// Starts a call after the work on `after`.
  [[nodiscard]] std::shared_ptr<distx::detail::Operation<Cuda>> start(const std::shared_ptr<State>& state,
                                                                      const calls::Call<Cuda>& call,
                                                                      CudaStreamRef after) {
    const ProfilerRange range(name_of(call.kind));
    const cuda::DeviceGuard guard(device);
    return {state, &begin(state, call, after)};
  }

  /// Waits until the call is done, and takes it back.
  void finish(StreamCall& call, const ErrorContext& context) {
    const HolderChange returned(call, StreamCall::Holder::nobody);
    const cuda::DeviceGuard guard(device);
    if (call.captured)
      throw InvalidState(
          "the call was captured into a CUDA graph, where the host cannot wait for it; pass wait a stream", context);
    demand(call, context);
    wait([&] { return is_enqueued(call) && call.event.done(); }, context);
    if (const auto found = call.comparison.difference(true)) {
      check_usable(context);
      throw MismatchError(*found, context);
    }
    call.reduction.rethrow();
  }
  /// Makes a stream wait for the call, and takes it back.
  void follow(StreamCall& call, CudaStreamRef stream, const ErrorContext& context) {
    const HolderChange returned(call, StreamCall::Holder::stream);
    const bool own = stream == call.comm->stream;
    if (own && call.stage == StreamCall::CallStage::enqueued && !revocation.revoked()) return;
    const cuda::DeviceGuard guard(device);
    demand(call, context);
    wait([&] { return is_enqueued(call); }, context);
    if (!own) stream.wait(call.event);
  }
  /// Whether `finish` would return or throw at once.
  [[nodiscard]] bool test(StreamCall& call) noexcept {
    try {
      const cuda::DeviceGuard guard(device);
      if (call.stage == StreamCall::CallStage::posted && open_group == nullptr && !revocation.revoked())
        if (const auto use = comms.try_use(comms.messages)) flush();
      if (is_enqueued(call) && call.done()) return true;
      poll();
      return revocation.revoked();
    } catch (...) {
      revoke(distx::detail::RevocationReason::of_current().published());
      return true;
    }
  }
  /// Returns every rank's value, in rank order. Collective; blocking.
  template <class T>
  [[nodiscard]] std::vector<T> gathered(const T& mine, std::string_view operation,
                                        const std::source_location& location) {
    const ErrorContext context{
        .operation = operation, .backend = self_.backend, .rank = self_.rank, .size = self_.size, .location = location};
    std::vector<T> all(static_cast<std::size_t>(self_.size));
    const cuda::DeviceGuard guard(device);
    const std::size_t total = sizeof(T) * all.size();
    const std::byte* result = nullptr;
    {
      const auto use = blocking_use(context);
      CommStream& comm = comms.blocking;
      std::byte* const host = comm.pinned(total);
      std::byte* const gpu = comm.workspace(total);
      std::byte* const own = gpu + sizeof(T) * static_cast<std::size_t>(self_.rank);
      std::memcpy(host, &mine, sizeof(T));
      comm.copy(own, host, sizeof(T), context);
      comm.check(ncclAllGather(own, gpu, sizeof(T), ncclUint8, comm.comm(), comm.stream.native_handle()),
                 "ncclAllGather", context);
      comm.copy(host, gpu, total, context);
      result = host;
    }
    wait_for_blocking(context);
    std::memcpy(all.data(), result, total);
    return all;
  }

  /// Waits for the GPU, until the deadline or a revocation.
  template <class Done>
  void wait(Done&& done, const ErrorContext& context) {
    distx::detail::EarlyWarning warning(options.deadline);
    const auto ended = distx::detail::wait_until(options.deadline, done, [&] {
      warning(context, [] { return "other ranks have not made this call, or not completed it"; });
      return poll(), revocation.revoked();
    });
    if (ended == distx::detail::WaitEnd::expired) {
      const std::string words = timed_out_after(options.deadline);
      end(Cause::timeout, words, 0, true);
      throw TimeoutError(words, context);
    }
    if (revocation.revoked()) [[unlikely]] {
      abort();
      revocation.raise(context);
    }
  }
  /// Waits until nothing of this communicator is in flight on this rank.
  void settle(const ErrorContext& context) {
    const cuda::DeviceGuard guard(device);
    flush_all(context);
    wait([this] { return idle(); }, context);
  }

  void end(Cause cause, const std::string& why, int code = 0, bool thrown = false) noexcept {
    revocation.revoke(cause, why, code, thrown);
    abort();
  }

  [[nodiscard]] Buffer<std::byte, Cuda> make_scratch(std::size_t bytes) {
    const cuda::DeviceGuard guard(device);
    return Buffer<std::byte, Cuda>(bytes, uninitialized);
  }

  /// Allocates what comparisons of the first asynchronous calls need.
  void prepare_comparisons() {
    if (self_.size > 1 && options.check != Check::off) calls_.prepare(self_.size);
  }

  void leave_group(std::unique_lock<std::mutex> lock, ncclResult_t code, bool unwinding) noexcept override;

 private:
  /// Looks at deadlines, other ranks' failures and NCCL's state; see CallWatch.
  bool check() noexcept;
  /// Asks the GPU what it has completed; see CallWatch.
  bool observe() noexcept;

  const calls::RankOf self_;  // before those that refer to it

 public:
  const int device;
  const NcclOptions options;
  RevocationState revocation;
  CommSet comms;
  std::atomic<bool> messages_connected{false};
  std::uint64_t children = 0;  ///< how many were made of it, for their identities

 private:
  /// Compares the ranks' descriptions of a call over the communicator itself, which has no fewer ranks. Collective.
  /// @throws MismatchError on every rank if they differ
  void compare(const calls::Call<Cuda>& call, const ErrorContext& context) {
    const calls::Fingerprint mine = fingerprint(call);
    const auto all = gathered(mine, name_of(call.kind), call.location);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != mine) throw MismatchError(difference(mine, all[rank], static_cast<int>(rank)), context);
  }

  [[nodiscard]] bool in_group() const noexcept { return open_group != nullptr && open_group->holds(this); }
  void enter_group(const std::shared_ptr<State>& state, const ErrorContext& context) {
    if (open_group == nullptr || in_group()) return;
    if (open_group->blocking.value_or(options.blocking) != options.blocking)
      throw InvalidState("the communicators of an NcclGroup differ in NcclOptions::blocking; NCCL needs them alike",
                         context);
    open_group->locks.push_back({std::shared_ptr<GroupMember>(state, this), comms.lock_all(context)});
    open_group->blocking = options.blocking;
  }
  /// Messages wait for others to be posted, and the host for them: a graph has neither.
  static void reject_message_in_capture(bool captured, const ErrorContext& context) {
    if (captured)
      throw InvalidState(
          "the stream is being captured into a CUDA graph, which can have collectives but no messages; "
          "start the message outside the capture",
          context);
  }
  [[nodiscard]] CommStreamUse blocking_use(const ErrorContext& context) {
    reject_blocking_in_group(context);
    flush_sends(context);
    busy_.store(true, std::memory_order_relaxed);
    return comms.use(comms.blocking, context);
  }
  void wait_for_blocking(const ErrorContext& context) {
    wait([&] { return comms.enqueued(comms.blocking) && comms.blocking.stream.done(); }, context);
    busy_.store(false, std::memory_order_relaxed);
  }

  StreamCall& begin(const std::shared_ptr<State>& state, const calls::Call<Cuda>& call, CudaStreamRef after) {
    const auto context = self_.context(call);
    check_tag(call, self_);
    check_usable(context);
    const bool captured = cuda::detail::capturing(after);
    const bool message = distx::detail::traits_of(call.kind).message;
    if (message) {
      reject_message_in_capture(captured, context);
      if (!messages_connected)
        throw InvalidState("messages are not connected; call connect_messages() on every rank before the first one",
                           context);
    } else if (open_group == nullptr) {
      flush_sends(context);
    }
    enter_group(state, context);
    CommStream& comm = message ? comms.messages : comms.started;
    StreamCall& made = calls_.take(options.deadline);
    try {
      made.state = state.get();
      made.context = context;
      made.comm = &comm;
      made.captured = captured;
      if (after != comm.stream) {
        made.event.record(after);
        comm.stream.wait(made.event);
      }
      issue_started(made, call, context, !captured);
    } catch (...) {
      made.holder = StreamCall::Holder::nobody;
      throw;
    }
    watch_.wake();
    return made;
  }
  void issue_started(StreamCall& made, const calls::Call<Cuda>& call, const ErrorContext& context, bool compares) {
    const bool grouped = open_group != nullptr;
    if (distx::detail::traits_of(call.kind).message) {
      const auto lock = grouped ? std::unique_lock<std::mutex>() : comms.locked();
      posted_.add(&made, call);
      if (grouped) {
        grouped_.push_back(&made);
        flush_in_group();
      } else if (!posted_.has(&made)) {
        comms.messages.issued(made);  // a message of nothing
      }
    } else if (grouped) {
      if (posted_.sends()) flush_in_group();
      issue_collective(made, call, context, compares);
      grouped_.push_back(&made);
    } else {
      const auto use = comms.use(comms.started, context);
      issue_collective(made, call, context, compares);
      comms.started.issued(made);
    }
  }
  void issue_collective(StreamCall& made, const calls::Call<Cuda>& call, const ErrorContext& context, bool compares) {
    CommStream& comm = comms.started;
    if (compares && self_.size > 1 && first_started_.compares(options.check, call)) {
      CallRecord* const all = made.comparison.open(fingerprint(call), self_);
      comm.check(
          ncclAllGather(all + self_.rank, all, sizeof(CallRecord), ncclUint8, comm.comm(), comm.stream.native_handle()),
          "ncclAllGather", context);
      comm.settle_before("ncclAllGather", context);
    }
    comm.reduction = &made.reduction;
    issue(comm, call);
  }

  /// Whether NCCL has enqueued the call.
  [[nodiscard]] bool is_enqueued(StreamCall& call) {
    if (call.stage == StreamCall::CallStage::enqueued) [[likely]]
      return true;
    if (call.stage == StreamCall::CallStage::issued) static_cast<void>(comms.enqueued(*call.comm));
    return call.stage == StreamCall::CallStage::enqueued;
  }
  /// Passes the posted messages to NCCL.
  /// @pre the messages' CommStream is in use
  void flush() {
    if (posted_.empty()) return;
    for (const NcclMessage& message : posted_.enqueue(comms.messages))
      if (message.call->stage == StreamCall::CallStage::posted && !posted_.has(message.call))
        comms.messages.issued(*message.call);
  }
  /// In a group NCCL sees them at its end, and so do their calls.
  void flush_in_group() {
    if (posted_.empty()) return;
    for (const NcclMessage& message : posted_.enqueue(comms.messages))
      if (std::ranges::find(grouped_, message.call) == grouped_.end()) grouped_.push_back(message.call);
  }
  void flush_all(const ErrorContext& context) {
    const auto use = comms.use(comms.messages, context);
    flush();
  }
  /// The same where another rank may wait for one of them. Receives alone wait for sends that may follow: passed to
  /// NCCL before, they would hold those up.
  void flush_sends(const ErrorContext& context) {
    check_usable(context);
    bool sends = false;
    {
      const auto lock = comms.locked();
      sends = posted_.sends();
    }
    if (sends) flush_all(context);
  }
  /// Sees to it that the call is issued.
  void demand(StreamCall& call, const ErrorContext& context) {
    if (call.stage != StreamCall::CallStage::posted) [[likely]]
      return;
    if (revocation.revoked()) {
      abort();
      revocation.raise(context);
    }
    if (open_group != nullptr)
      throw InvalidState(
          "a call that was started in an NcclGroup begins at the end of the group; wait for it after that", context);
    flush_all(context);
    if (call.stage == StreamCall::CallStage::posted)
      throw InvalidState("a blocking message from a rank to itself would never complete; start the other side first",
                         context);
  }

  /// Looks at what NCCL and the other ranks report, at most once a millisecond.
  void poll() noexcept {
    revocation.poll();
    if (revocation.revoked() || in_group()) return;
    const auto now = Deadline::clock::now().time_since_epoch().count();
    if (now < next_poll_.load(std::memory_order_relaxed)) return;
    next_poll_.store(now + Deadline::clock::duration(std::chrono::milliseconds(1)).count(), std::memory_order_relaxed);
    if (const auto lock = comms.try_locked()) comms.find_failures();
  }

  /// Ends what is in flight on this rank; in a group, at its end.
  void abort() noexcept {
    if (in_group()) return;
    {
      const auto lock = comms.locked();
      posted_.clear();
    }
    comms.end();
    const QuietDeviceGuard guard(device);
    static_cast<void>(at_rest(std::chrono::seconds(2)));  // so that it uses no buffer of the caller's any more
  }
  /// Aborts on a separate thread: NCCL may wait there for another communicator, which the checks have to look after.
  void abort_in_background() noexcept {
    if (aborter_.joinable()) return;
    try {
      aborter_ = std::thread([this] { abort(); });
    } catch (...) {
      abort();
    }
  }
  /// @pre the GPU is current
  [[nodiscard]] bool idle() noexcept {
    try {
      return calls_.done() && (!busy_.load(std::memory_order_relaxed) || comms.blocking.stream.done());
    } catch (const Error&) {
      return true;  // a GPU that has failed does nothing more
    }
  }
  [[nodiscard]] bool at_rest(Timeout limit) noexcept {
    return distx::detail::wait_until(
               limit, [this] { return idle(); }, [] { return false; }) == distx::detail::WaitEnd::ready;
  }
  /// Gives up the memory that calls in flight may use.
  void abandon() noexcept {
    comms.abandon();
    calls_.abandon();
    static_cast<void>(reduction_.release());
  }

  distx::detail::FirstUses first_uses_;
  distx::detail::FirstUses first_started_;  ///< of asynchronous collectives
  std::atomic<bool> busy_{false};           ///< a blocking call is issued
  std::atomic<Deadline::clock::rep> next_poll_{0};
  std::atomic<std::uint64_t> looks_{0};  ///< how often the GPU was asked
  std::unique_ptr<HostReduction> reduction_ = std::make_unique<HostReduction>();
  StreamCallPool calls_;
  PostedMessages posted_;
  std::vector<StreamCall*> grouped_;
  CallWatch watch_{{"NcclCommunicator", self_.backend, self_.rank, self_.size, {}}};
  std::thread aborter_;  ///< accessed by `check` alone while the watch lasts
};

}  // namespace distx::inline DISTX_ABI::nccl::detail

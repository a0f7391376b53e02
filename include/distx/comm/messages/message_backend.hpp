// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <limits>

#include "distx/comm/messages/message_collectives.hpp"
#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/message_header.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/comm/shared_memory/heap_region.hpp"
#include "distx/comm/shared_memory/messages.hpp"
#include "distx/core/detail/watch_thread.hpp"

namespace distx::inline DISTX_ABI::detail {

/// What messages belong to: blocking collectives, asynchronous ones, or the user's sends and receives.
enum class MessageQueue { blocking, started, user };

/// Returns the tag of a stage of a call or of a user's message; the largest one modulo 16 is that of no queue.
[[nodiscard]] constexpr std::uint64_t tag_of(MessageQueue queue, MessageStage stage, std::uint64_t number) noexcept {
  return number << 4 | (static_cast<std::uint64_t>(queue) * 3 + static_cast<std::uint64_t>(stage));
}
/// Returns what the other rank of a message did not do if a wait for it expires.
[[nodiscard]] constexpr const char* omission(std::uint64_t tag, bool receives) noexcept {
  const bool first = tag % 16 % 3 == static_cast<std::uint64_t>(MessageStage::description);
  if (tag % 16 / 3 != static_cast<std::uint64_t>(MessageQueue::user)) return first ? did_not_join : did_not_continue;
  if (first) return receives ? " did not send" : " did not receive";
  return receives ? " did not continue to send" : " did not continue to receive";
}

/// The messages of one queue over links that wait for messages by themselves: see MessageBackend.
template <class Links>
class LinksTransport {
 public:
  using Request = typename Links::Request;
  using Tag = std::uint64_t;
  static constexpr bool staged = false;
  static constexpr int most_direct = std::numeric_limits<int>::max();

  LinksTransport(Links& links, MessageQueue queue, const Timeout& limit) noexcept
      : links_(links), queue_(queue), limit_(limit) {}

  /// A multiple of 64, so that every slice is aligned for its elements.
  [[nodiscard]] static std::size_t slice_bytes(std::size_t ranks) noexcept {
    return std::max<std::size_t>(1, (std::size_t{1} << 20) / ranks / 64) * 64;
  }
  [[nodiscard]] static Request no_request() noexcept { return {}; }
  [[nodiscard]] Tag tag(MessageStage stage, std::uint64_t number) const noexcept {
    return tag_of(queue_, stage, number);
  }
  // Inlined, also in a debugger: a walk from the caller to a vendor passes no frame that only forwards.
  [[gnu::always_inline]] void send(int to, Tag tag, const std::byte* data, std::size_t bytes, Request& request,
                                   const ErrorContext& context) {
    request = links_.send(to, tag, data, bytes, context);
  }
  [[gnu::always_inline]] void receive(int from, Tag tag, std::byte* data, std::size_t bytes, Request& request,
                                      const ErrorContext& context) {
    request = links_.receive(from, tag, data, bytes, context);
  }
  [[nodiscard]] bool test(std::span<Request> requests, const ErrorContext& context) {
    links_.wait(requests, limit_, context);
    return true;
  }
  /// The links name the ranks that are missing.
  [[nodiscard]] bool is_complete(const Request&) const noexcept { return true; }
  void cancel(std::span<Request>) noexcept {}
  [[nodiscard]] bool release(std::span<Request> requests) noexcept {
    for (Request& request : requests) request = {};
    return true;
  }

 private:
  Links& links_;
  MessageQueue queue_;
  Timeout limit_;
};

/// A send, a receive, or both: headers that the receiver compares, then the elements.
template <MessageTransport T>
class UserMessage {
 public:
  /// @param own  where messages of this rank to itself meet
  /// @param sent  counts the messages that this rank sends
  UserMessage(T transport, const RankOf& self, shared_memory::SharedRegion& own, std::atomic<std::uint64_t>& sent,
              const Call<Host>& c)
      : transport_(std::move(transport)),
        self_(self),
        context_(self.context(c)),
        to_self_(own, context_, kept_, false) {
    std::ranges::generate(requests_, T::no_request);
    if (c.kind != CollectiveKind::receive) post_send(c.send, c.to, c.tag, c.lengths, sent);
    if (c.kind != CollectiveKind::send) post_receive(c.receive, c.from, c.tag, c.lengths);
  }
  ~UserMessage() {
    transport_.cancel(requests_);
    static_cast<void>(transport_.release(requests_));
  }

  [[nodiscard]] const ErrorContext& context() const noexcept { return context_; }
  /// Returns whether it is between this rank and itself, and has not met its other side.
  [[nodiscard]] bool waits_for_self() noexcept { return peer_ == self_.rank && !to_self_.test(); }
  /// Returns what is wrong if the wait expires.
  [[nodiscard]] std::string overdue(const Timeout& deadline) const {
    return "timed out after " + deadline.to_string() + ": rank " + std::to_string(peer_) +
           " did not make the matching call";
  }
  void wait() {
    to_self_.wait();
    const auto complete = [this](MessagePart part) {
      while (!transport_.test({&requests_[part], 1}, context_)) {
      }
    };
    complete(header_in);
    if (receives_) {
      if (theirs_.header != expected_)
        throw MismatchError(difference(expected_, theirs_.header, from_, false), context_);
      if (!target_.empty())
        transport_.receive(from_, transport_.tag(MessageStage::first, theirs_.number), target_.bytes(),
                           target_.size_bytes(), requests_[data_in], context_);
    }
    for (const auto part : {data_in, header_out, data_out}) complete(part);
  }

 private:
  enum MessagePart : std::size_t { header_in, data_in, header_out, data_out };
  struct Announcement {
    MessageHeader header{};
    std::uint64_t number = 0;  ///< of the message, among those of its sender
  };
  [[nodiscard]] typename T::Tag header_tag(int tag) const {
    return transport_.tag(MessageStage::description, static_cast<std::uint64_t>(tag));
  }
  void post_send(Span<const AnyElement> buffer, int to, int tag, std::uint64_t lengths,
                 std::atomic<std::uint64_t>& sent) {
    peer_ = to;
    if (to == self_.rank) return to_self_.send(buffer, to, tag, lengths);
    mine_ = {MessageHeader::of(buffer, lengths), sent++};
    transport_.send(to, header_tag(tag), reinterpret_cast<const std::byte*>(&mine_), sizeof mine_,
                    requests_[header_out], context_);
    if (!buffer.empty())
      transport_.send(to, transport_.tag(MessageStage::first, mine_.number), buffer.bytes(), buffer.size_bytes(),
                      requests_[data_out], context_);
  }
  void post_receive(Span<AnyElement> buffer, int from, int tag, std::uint64_t lengths) {
    peer_ = from_ = from;
    if (from == self_.rank) return to_self_.receive(buffer, from, tag, lengths);
    receives_ = true;
    target_ = buffer;
    expected_ = MessageHeader::of(buffer, lengths);
    transport_.receive(from, header_tag(tag), reinterpret_cast<std::byte*>(&theirs_), sizeof theirs_,
                       requests_[header_in], context_);
  }

  T transport_;
  RankOf self_;
  ErrorContext context_;
  int peer_ = 0, from_ = 0;
  bool receives_ = false;
  Span<AnyElement> target_;
  MessageHeader expected_;
  Announcement mine_, theirs_;
  shared_memory::KeptRequests kept_;
  shared_memory::Messages to_self_;
  std::array<typename T::Request, 4> requests_;  // last: destroyed before the memory that the transport accesses
};

/// A backend over messages. See `detail::BasicCommunicator`.
///
/// `Links` connects the ranks of one communicator. Several threads may call it:
/// - `self()`, `deadline()`, `check_usable(context)` and `revoke(reason)` are those of a backend.
/// - `send(to, tag, data, bytes, context)` and `receive(from, …)` start a message and return a `Request`; by default it
///   is none. Messages of one tag from one rank to another match in their order; the memory of a receive may be longer.
///   No memory is accessed once the request is complete or destroyed.
/// - `wait(requests, limit, context)` blocks until all are complete. It throws TimeoutError, RankFailure, or what
///   has revoked the communicator.
/// - `split(part, group, backend, location)` returns the links of a group of these ranks, in which this one is `part`.
///   Collective over all of them, by calls of `backend`.
template <class Links>
class MessageBackend {
  using Transport = LinksTransport<Links>;

 public:
  using space = Host;
  using State = CommunicatorState<MessageBackend>;

  explicit MessageBackend(std::unique_ptr<Links> links)
      : links_(std::move(links)),
        own_(std::make_shared<shared_memory::HeapRegion>(self().size, links_->deadline())),
        blocking_(transport(MessageQueue::blocking), self(), links_->deadline()),
        started_(transport(MessageQueue::started), self(), links_->deadline()) {}

  [[nodiscard]] const RankOf& self() const noexcept { return links_->self(); }
  void check_usable(const ErrorContext& context) { links_->check_usable(context); }
  void revoke(const std::string& reason) noexcept {
    links_->revoke(reason);
    own_->revoke(self().rank, reason);
  }

  void execute(const Call<Host>& call) {
    check_usable(self().context(call));
    if (!traits_of(call.kind).message) return run(blocking_, blocking_calls_, call);
    UserMessage<Transport> message(transport(MessageQueue::user), self(), *own_, sent_, call);
    if (call.kind != CollectiveKind::send_receive && message.waits_for_self()) throw_self_deadlock(message.context());
    message.wait();
  }
  [[nodiscard]] std::shared_ptr<Operation<Host>> start(const std::shared_ptr<State>& state, const Call<Host>& call,
                                                       HostStream) {
    if (traits_of(call.kind).message) return std::make_shared<StartedMessage>(state, call);
    return tasks_.start(state, call);
  }
  void run_started(const Call<Host>& call) {
    check_usable(self().context(call));
    run(started_, started_calls_, call);
  }
  [[nodiscard]] TaskRunner<State>& tasks() noexcept { return tasks_; }

  [[nodiscard]] std::shared_ptr<State> split(int color, int key, const std::source_location& location) {
    const auto group = group_of(all_gathered(*this, SplitRequest{color, key, self().rank}, location), color);
    const auto rank = std::ranges::find(group, self().rank, &SplitRequest::rank) - group.begin();
    const RankOf part{static_cast<int>(rank), static_cast<int>(group.size()), self().backend};
    return State::make(links_->split(part, group, *this, location));
  }

 private:
  /// An asynchronous message, which a separate thread completes.
  class StartedMessage final : public Operation<Host> {
   public:
    StartedMessage(const std::shared_ptr<State>& state, const Call<Host>& call)
        : state_(state),
          message_(backend().transport(MessageQueue::user, no_timeout), backend().self(), *backend().own_,
                   backend().sent_, call) {
      std::packaged_task<void()> wait([this] { message_.wait(); });
      result_ = wait.get_future();
      thread_ = start_thread(std::move(wait), message_.context());
    }
    bool test() noexcept override { return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
    void complete() override {
      state_->guarded([this] {
        const Timeout limit = backend().links_->deadline();
        if (!limit.unlimited() && result_.wait_for(limit.limit()) != std::future_status::ready)
          throw TimeoutError(message_.overdue(limit), message_.context());
        result_.get();
      });
    }
    void abandon() noexcept override {
      backend().revoke(abandoned_by_exception);
      result_.wait();  // a revocation ends this wait
    }

   private:
    [[nodiscard]] MessageBackend& backend() const noexcept { return state_->backend; }

    std::shared_ptr<State> state_;
    UserMessage<Transport> message_;
    std::future<void> result_;
    std::jthread thread_;  // last: joined before anything that it uses is destroyed
  };

  [[nodiscard]] Transport transport(MessageQueue queue) { return transport(queue, links_->deadline()); }
  [[nodiscard]] Transport transport(MessageQueue queue, const Timeout& limit) { return {*links_, queue, limit}; }
  [[gnu::always_inline]] void run(MessageCollectives<Transport>& collectives, std::uint64_t& calls,
                                  const Call<Host>& call) {
    collectives.run(call, calls++, self().context(call), [](auto&& ready, auto&&) {
      while (!ready()) {
      }
    });
  }

  std::unique_ptr<Links> links_;
  std::shared_ptr<shared_memory::SharedRegion> own_;  ///< where this rank's messages to itself meet
  MessageCollectives<Transport> blocking_, started_;
  std::uint64_t blocking_calls_ = 0, started_calls_ = 0;
  std::atomic<std::uint64_t> sent_{0};  ///< messages
  TaskRunner<State> tasks_;             // last: joined before anything that its tasks use is destroyed
};

}  // namespace distx::inline DISTX_ABI::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <future>

#include "distx/comm/runtime/basic_communicator_calls.hpp"
#include "distx/comm/runtime/message_header.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/comm/shared_memory/heap_region.hpp"
#include "distx/comm/shared_memory/messages.hpp"
#include "distx/gloo/detail/collectives.hpp"

namespace distx::detail {

/// One message, or both of a send-receive: headers that the receiver compares, then the elements.
class GlooMessage {
 public:
  GlooMessage(GlooLinks& links, shared_memory::SharedRegion& own, std::atomic<std::uint64_t>& sent, const Call<Host>& c)
      : links_(links), context_(links.self().context(c)), to_self_(own, links.self(), context_, kept_, false) {
    if (c.kind != CollectiveKind::receive) post_send(c.send, c.to, c.tag, c.lengths, sent);
    if (c.kind != CollectiveKind::send) post_receive(c.receive, c.from, c.tag, c.lengths);
  }
  GlooMessage(const GlooMessage&) = delete;
  GlooMessage& operator=(const GlooMessage&) = delete;

  [[nodiscard]] const ErrorContext& context() const noexcept { return context_; }
  /// Returns whether it is between this rank and itself, and has not met its other side.
  [[nodiscard]] bool waits_for_self() noexcept { return peer_ == links_.self().rank && !to_self_.test(); }
  /// Returns what is wrong if the wait expires.
  [[nodiscard]] std::string overdue() const {
    return "timed out after " + links_.deadline().to_string() + ": rank " + std::to_string(peer_) +
           " did not make the matching call";
  }
  void wait(const Timeout& limit) {
    to_self_.wait();
    if (incoming_) {
      incoming_->complete(limit, "did not send");
      if (theirs_.header != expected_)
        throw MismatchError(difference(expected_, theirs_.header, from_, false), context_);
      GlooStep data(links_, slot_of(GlooSlot::message_data, theirs_.number), context_);
      data.receive(from_, target_.bytes(), target_.size_bytes());
      data.complete(limit, "did not continue to send");
    }
    if (outgoing_) outgoing_->complete(limit, "did not receive");
    if (data_) data_->complete(limit, "did not continue to receive");
  }

 private:
  struct Announcement {
    MessageHeader header{};
    std::uint64_t number = 0;  ///< of the message, among those of its sender
  };
  [[nodiscard]] std::uint64_t header_slot(int tag) const noexcept {
    return slot_of(GlooSlot::message, static_cast<std::uint64_t>(tag));
  }
  void post_send(Span<const AnyElement> buffer, int to, int tag, std::uint64_t lengths,
                 std::atomic<std::uint64_t>& sent) {
    peer_ = to;
    if (to == links_.self().rank) return to_self_.send(buffer, to, tag, lengths);
    mine_ = {MessageHeader::of(buffer, lengths), sent++};
    outgoing_.emplace(links_, header_slot(tag), context_)
        .send(to, reinterpret_cast<const std::byte*>(&mine_), sizeof mine_);
    data_.emplace(links_, slot_of(GlooSlot::message_data, mine_.number), context_)
        .send(to, buffer.bytes(), buffer.size_bytes());
  }
  void post_receive(Span<AnyElement> buffer, int from, int tag, std::uint64_t lengths) {
    peer_ = from_ = from;
    if (from == links_.self().rank) return to_self_.receive(buffer, from, tag, lengths);
    target_ = buffer;
    expected_ = MessageHeader::of(buffer, lengths);
    incoming_.emplace(links_, header_slot(tag), context_)
        .receive(from, reinterpret_cast<std::byte*>(&theirs_), sizeof theirs_);
  }

  GlooLinks& links_;
  ErrorContext context_;
  int peer_ = 0, from_ = 0;
  Span<AnyElement> target_;
  MessageHeader expected_;
  Announcement mine_, theirs_;
  shared_memory::KeptRequests kept_;
  shared_memory::Messages to_self_;
  std::optional<GlooStep> incoming_, outgoing_, data_;  // last: destroyed before the memory that Gloo accesses
};

/// The backend over Gloo's TCP transport. See `detail::BasicCommunicator`.
class GlooBackend {
 public:
  using space = Host;
  using State = CommunicatorState<GlooBackend>;

  explicit GlooBackend(std::unique_ptr<GlooLinks> links)
      : links_(std::move(links)),
        own_(std::make_shared<shared_memory::HeapRegion>(self().size, links_->deadline())),
        blocking_(*links_, GlooSlot::blocking),
        started_(*links_, GlooSlot::started) {}

  [[nodiscard]] const RankOf& self() const noexcept { return links_->self(); }
  void check_usable(const ErrorContext& context) { links_->check_usable(context); }
  void revoke(const std::string& reason) noexcept {
    links_->revoke(reason);
    own_->revoke(self().rank, reason);
  }

  void execute(const Call<Host>& call) {
    check_usable(self().context(call));
    if (!traits_of(call.kind).message) return blocking_.run(call);
    GlooMessage message(*links_, *own_, sent_, call);
    if (call.kind != CollectiveKind::send_receive && message.waits_for_self()) throw_self_deadlock(message.context());
    message.wait(links_->deadline());
  }
  [[nodiscard]] std::shared_ptr<Operation<Host>> start(const std::shared_ptr<State>& state, const Call<Host>& call,
                                                       HostStream) {
    if (traits_of(call.kind).message) return std::make_shared<StartedMessage>(state, call);
    return tasks_.start(state, call);
  }
  void run_started(const Call<Host>& call) {
    check_usable(self().context(call));
    started_.run(call);
  }
  [[nodiscard]] TaskRunner<State>& tasks() noexcept { return tasks_; }

  [[nodiscard]] std::shared_ptr<State> split(int color, int key, const std::source_location& location) {
    const auto group = group_of(all_gathered(*this, SplitRequest{color, key, self().rank}, location), color);
    RankOf part{0, static_cast<int>(group.size()), self().backend};
    while (group[static_cast<std::size_t>(part.rank)].rank != self().rank) ++part.rank;
    const std::uint64_t words[]{links_->identity(), ++splits_, static_cast<std::uint64_t>(group.front().rank)};
    const auto make = [&] {
      return std::make_unique<GlooLinks>(links_->device(), part, links_->deadline(), links_->channel(),
                                         fnv1a(std::as_bytes(std::span(words))));
    };
    const auto number_of = [&](int other) { return group[static_cast<std::size_t>(other)].rank; };
    const auto gather = [&](auto mine, auto all) { execute(AllGather<GlooAddress>{mine, all, {}, location}); };
    const ErrorContext context{
        .operation = "split", .backend = part.backend, .rank = self().rank, .size = self().size, .location = location};
    return State::make(connected_links(context, links_->deadline(), make, number_of, gather));
  }

 private:
  /// An asynchronous message, which a separate thread completes.
  class StartedMessage final : public Operation<Host> {
   public:
    StartedMessage(const std::shared_ptr<State>& state, const Call<Host>& call)
        : state_(state), message_(*state->backend.links_, *state->backend.own_, state->backend.sent_, call) {
      std::packaged_task<void()> wait([this] { message_.wait(no_timeout); });
      result_ = wait.get_future();
      thread_ = start_thread(std::move(wait), message_.context());
    }
    bool test() noexcept override { return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
    void complete() override {
      state_->guarded([this] {
        const Timeout limit = state_->backend.links_->deadline();
        if (!limit.unlimited() && result_.wait_for(limit.limit()) != std::future_status::ready)
          throw TimeoutError(message_.overdue(), message_.context());
        result_.get();
      });
    }
    void abandon() noexcept override {
      state_->backend.revoke(abandoned_by_exception);
      result_.wait();  // a revocation ends this wait
    }

   private:
    std::shared_ptr<State> state_;
    GlooMessage message_;
    std::future<void> result_;
    std::jthread thread_;  // last: joined before anything that it uses is destroyed
  };

  std::unique_ptr<GlooLinks> links_;
  std::shared_ptr<shared_memory::SharedRegion> own_;  ///< where this rank's messages to itself meet
  GlooCollectives blocking_, started_;
  std::atomic<std::uint64_t> sent_{0};  ///< messages
  std::uint64_t splits_ = 0;
  TaskRunner<State> tasks_;  // last: joined before anything that its tasks use is destroyed
};

}  // namespace distx::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>

#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/message_header.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/comm/runtime/peer_views.hpp"

// A complete backend, which docs/extending.md explains: threads copy operands to a board and read other ranks' from it.
namespace toy {
using namespace distx;
using namespace distx::calls;
/// The state that the ranks of one communicator share.
struct Board {
  explicit Board(Timeout limit) : deadline(limit) {}
  struct Side {  ///< one rank's side of a call
    Fingerprint call;
    detail::PeerView view;
    std::vector<std::byte> operand;
    std::array<std::vector<std::size_t>, 2> counts;  ///< sent, received
    std::uint64_t entered = 0, left = 0;             ///< calls
  };
  struct Message {  ///< one side of a message
    Span<const AnyElement> data;
    std::byte* target;  ///< if a receiver
    bool receives;
    int peer;
    detail::MessageHeader mine;
    std::optional<detail::MessageHeader> theirs;  ///< once matched
  };
  const Timeout deadline;
  std::mutex mutex;
  std::condition_variable changed;
  std::array<std::vector<Side>, 2> queues;  ///< of blocking and of asynchronous calls, by rank
  std::map<std::array<int, 3>, std::vector<std::shared_ptr<Message>>>
      messages;  ///< unmatched, by sender, receiver, tag
  std::optional<detail::RevocationReason> revoked;
};
class Backend {
 public:
  using space = Host;
  using State = detail::CommunicatorState<Backend>;
  Backend(std::shared_ptr<Board> board, int rank, int size) : board_(std::move(board)), self_{rank, size, "toy"} {}
  const RankOf& self() const { return self_; }
  void revoke(const std::string& reason) noexcept {
    const std::lock_guard lock(board_->mutex);
    if (!board_->revoked) board_->revoked = detail::RevocationReason::parse(reason).by(self_.rank);
    board_->changed.notify_all();
  }
  void check_usable(const ErrorContext& context) {
    wait_for([this] { return !board_->revoked; }, context);
  }
  void execute(const Call<Host>& call) {
    if (detail::traits_of(call.kind).message)
      Transfer(*this, call).wait();
    else
      run(0, call);
  }
  std::shared_ptr<detail::Operation<Host>> start(const std::shared_ptr<State>& state, const Call<Host>& call,
                                                 HostStream) {
    if (detail::traits_of(call.kind).message) return std::make_shared<Transfer>(*this, call, state);
    return tasks_.start(state, call);
  }
  void run_started(const Call<Host>& call) { run(1, call); }
  detail::TaskRunner<State>& tasks() { return tasks_; }
  std::shared_ptr<State> split(int color, int key, const std::source_location& location) {
    struct Request : detail::SplitRequest {
      std::shared_ptr<Board>* board;
    };
    auto board = std::make_shared<Board>(board_->deadline);  // the board of the group's first rank is shared by all
    const Request mine{{color, key, self_.rank}, &board};
    const auto group = detail::group_of(detail::all_gathered(*this, mine, location), color);
    const int rank = static_cast<int>(std::ranges::find(group, self_.rank, &Request::rank) - group.begin());
    board->queues.fill(std::vector<Board::Side>(group.size()));
    execute(Barrier<Host>{location});
    const std::shared_ptr<Board> first = *group.front().board;
    execute(Barrier<Host>{location});
    return State::make(first, rank, static_cast<int>(group.size()));
  }

 private:
  /// One message, or both of a send-receive. The side that is posted second copies.
  struct Transfer final : detail::Operation<Host> {
    Transfer(Backend& b, const Call<Host>& c, std::shared_ptr<State> s = nullptr)
        : backend(b), state(std::move(s)), context(b.self_.context(c)) {
      const std::lock_guard lock(b.board_->mutex);
      if (b.board_->revoked) detail::RevocationReason(*b.board_->revoked).raise(context);
      const int me = b.self_.rank;
      using enum CollectiveKind;
      if (c.kind != receive) post({me, c.to, c.tag}, c.send, nullptr, false, c.lengths);
      if (c.kind != send) post({c.from, me, c.tag}, c.receive, c.receive.bytes(), true, c.lengths);
      b.board_->changed.notify_all();
    }
    void post(std::array<int, 3> route, Span<const AnyElement> data, std::byte* target, bool receives, auto lengths) {
      const auto header = detail::MessageHeader::of(data, lengths);
      const Board::Message message{data, target, receives, route[receives ? 0 : 1], header, {}};
      const auto mine = sides.emplace_back(std::make_shared<Board::Message>(message));
      auto& waiting = backend.board_->messages[route];
      if (waiting.empty() || waiting.front()->receives == receives) return waiting.push_back(mine);
      const auto other = std::move(waiting.front());
      waiting.erase(waiting.begin());
      mine->theirs = other->mine, other->theirs = header;
      const auto& [from, to] = receives ? std::tie(other, mine) : std::tie(mine, other);
      if (other->mine == header) detail::copy_bytes(to->target, from->data.bytes(), from->data.size_bytes());
    }
    /// @pre the board is locked
    bool done() const {
      return std::ranges::all_of(sides, [](const auto& side) { return side->theirs.has_value(); });
    }
    void wait() {
      backend.wait_for([this] { return done(); }, context);
      for (const auto& side : sides)
        if (side->mine != *side->theirs)
          throw MismatchError(difference(side->mine, *side->theirs, side->peer, !side->receives), context);
    }
    bool test() noexcept override {
      const std::lock_guard lock(backend.board_->mutex);
      return done() || backend.board_->revoked;
    }
    void complete() override {
      state->guarded([this] { wait(); });
    }
    void abandon() noexcept override { backend.revoke("an asynchronous message was abandoned"); }
    Backend& backend;
    std::shared_ptr<State> state;  // set for an asynchronous message
    ErrorContext context;
    std::vector<std::shared_ptr<Board::Message>> sides;
  };
  /// Waits until `ready()`, which is called with the board locked.
  void wait_for(auto ready, const ErrorContext& context) {
    std::unique_lock lock(board_->mutex);
    if (!board_->changed.wait_for(lock, board_->deadline.limit(), [&] { return board_->revoked || ready(); }))
      throw TimeoutError("timed out: not all ranks joined", context);
    if (!ready()) detail::RevocationReason(*board_->revoked).raise(context);
  }
  /// Counts this rank's call, and waits until all ranks have counted it.
  void meet(std::vector<Board::Side>& sides, std::uint64_t Board::Side::*count, const ErrorContext& context) {
    std::uint64_t& mine = sides[static_cast<std::size_t>(self_.rank)].*count;
    (static_cast<void>(std::lock_guard(board_->mutex)), ++mine);
    board_->changed.notify_all();
    wait_for([&] { return std::ranges::all_of(sides, [&](auto& side) { return side.*count >= mine; }); }, context);
  }
  void run(std::size_t queue, const Call<Host>& call) {
    const ErrorContext context = self_.context(call);
    check_usable(context);  // other ranks may still read what this one wrote for a call that has failed
    auto& sides = board_->queues[queue];
    auto& mine = sides[static_cast<std::size_t>(self_.rank)];
    mine.call = fingerprint(call);
    detail::view_own_call(mine.view, call, self_.rank);
    const auto sent = detail::sends(call, self_.rank) ? mine.view.send_count * detail::element_width(call) : 0;
    mine.operand.assign(mine.view.send, mine.view.send + sent);
    mine.view.send = mine.operand.data();  // a copy, because an in-place call overwrites the original
    mine.view.inlined = true;
    mine.counts = {{{mine.view.send_counts.begin(), mine.view.send_counts.end()},
                    {mine.view.receive_counts.begin(), mine.view.receive_counts.end()}}};
    mine.view.send_counts = mine.counts[0];
    mine.view.receive_counts = mine.counts[1];
    meet(sides, &Board::Side::entered, context);
    std::vector<detail::PeerView> views;
    for (const auto& side : sides) {
      if (side.call != mine.call)
        throw MismatchError(difference(mine.call, side.call, static_cast<int>(&side - sides.data())), context);
      views.push_back(side.view);
    }
    detail::check_blocks(call, views, context);
    std::vector<const void*> sources;
    detail::complete_inlined(call, self_, views, sources);
    meet(sides, &Board::Side::left, context);  // then the board may be reused
  }
  std::shared_ptr<Board> board_;
  RankOf self_;
  detail::TaskRunner<State> tasks_;  // last: joined before anything that its tasks use is destroyed
};
class ToyCommunicator : public detail::BasicCommunicator<ToyCommunicator, Backend> {
  using Base = detail::BasicCommunicator<ToyCommunicator, Backend>;
  friend Base;

 public:
  explicit ToyCommunicator(ThreadConnector& c, Timeout limit = default_deadline) : Base(connected(c, limit)) {}

 private:
  using Base::Base;
  static std::shared_ptr<State> connected(ThreadConnector& connector, Timeout limit) {
    auto board = std::make_shared<Board>(limit);
    board->queues.fill(std::vector<Board::Side>(static_cast<std::size_t>(connector.size())));
    const auto shared = *broadcast_value(connector, &board, 0);  // ranks are threads: rank 0's pointer serves all
    connector.barrier();
    return State::make(shared, connector.rank(), connector.size());
  }
};
}  // namespace toy

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/comm/arena/member.hpp"
#include "distx/connect/connector.hpp"

namespace distx::arena {

/// The communicator of ranks that share one address space; `Kind` gives its name and checks who may make one.
template <class Kind>
class Communicator {
 public:
  using space = Host;

  /// Collective over the connector, which is not needed afterwards.
  /// @throws ConnectError where the ranks are not all in this process
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, Communicator>) && Connector<C>
  explicit Communicator(C& connector, Timeout deadline = default_deadline) {
    Kind::admit(connector);
    // Rank 0 owns the arena until every rank has taken its share of it.
    std::shared_ptr<Arena> owned;
    if (connector.rank() == 0) owned = std::make_shared<Arena>(connector.size(), deadline);
    auto* const address = broadcast_value(connector, &owned, 0);
    member_ = std::make_shared<Member>(*address, connector.rank(), Kind::name);
    connector.barrier();
  }

  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return member_->self.rank; }
  [[nodiscard]] int size() const noexcept { return member_->self.size; }
  [[nodiscard]] std::string_view backend() const noexcept { return Kind::name; }
  [[nodiscard]] Communicator share() const { return Communicator(member_); }
  /// Whether both are handles on one communicator.
  friend bool operator==(const Communicator& a, const Communicator& b) noexcept { return a.member_ == b.member_; }

  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Host>
  void execute(const Call& call) {
    run(Arena::Lane::blocking, erase(call));
  }

  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Host>
  [[nodiscard]] Pending start(const Call& call, HostStream = {}) {
    return begin(erase(call));
  }

  [[nodiscard]] Communicator split(int color, int key,
                                   std::source_location location = std::source_location::current()) {
    struct Wish {
      int color, key, rank;
      std::shared_ptr<Arena>* arena;  // where the first rank of a group keeps it for the others
    };
    std::vector<Wish> wishes(static_cast<std::size_t>(size()));
    const auto exchange = [&](const Wish& mine) {
      execute(AllGather<Wish>{{&mine, 1}, wishes, {}, location});
    };
    const Wish wish{color, key, rank(), nullptr};
    exchange(wish);
    std::vector<Wish> group;
    std::copy_if(wishes.begin(), wishes.end(), std::back_inserter(group),
                 [&](const Wish& other) { return other.color == color; });
    std::stable_sort(group.begin(), group.end(), [](const Wish& a, const Wish& b) { return a.key < b.key; });
    const auto place = [&](const Wish& w) { return w.rank == rank(); };
    const int mine = static_cast<int>(std::find_if(group.begin(), group.end(), place) - group.begin());
    std::shared_ptr<Arena> owned;
    if (mine == 0) owned = std::make_shared<Arena>(static_cast<int>(group.size()), member_->arena().deadline());
    exchange({color, key, rank(), &owned});
    const auto arena = *wishes[static_cast<std::size_t>(group.front().rank)].arena;
    run(Arena::Lane::blocking, Barrier<Host>{location});
    return Communicator(std::make_shared<Member>(arena, mine, Kind::name));
  }

  template <class T>
  [[nodiscard]] CommunicatorMemory<T> allocate(std::size_t size) {
    return CommunicatorMemory<T>::plain(size);
  }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) { return member_->scratch(bytes); }
  [[nodiscard]] GroupCache& group_cache() noexcept { return member_->groups; }
  void revoke(const std::string& reason) noexcept { member_->arena().revoke(rank(), reason); }

 private:
  explicit Communicator(std::shared_ptr<Member> member) : member_(std::move(member)) {}

  template <Collective Call>
  void run(Arena::Lane lane, const Call& call) {
    member_->guarded([&] { validate(call, member_->self); });
    member_->collective(lane, call);
  }
  void run(Arena::Lane, const Send<AnyElement>& call) { message(call); }
  void run(Arena::Lane, const Receive<AnyElement>& call) { message(call); }
  void run(Arena::Lane, const SendReceive<AnyElement>& call) { begin(call).wait(); }

  template <class Call>
  void message(const Call& call) {
    if (peer_of(call) == rank()) {
      // Both sides on one rank: the other one must have been started before.
      auto pending = begin(call);
      if (!pending.test()) {
        const auto context = member_->self.context(call);
        pending.withdraw();
        throw MismatchError("a blocking message to oneself would wait for ever: start the other side first", context);
      }
      pending.wait();
      return;
    }
    begin(call).wait();
  }
  static int peer_of(const Send<AnyElement>& call) { return call.to; }
  static int peer_of(const Receive<AnyElement>& call) { return call.from; }

  Pending begin(const Send<AnyElement>& call) {
    prepare(call);
    return post(call, {sent(call.buffer, call.to, call.tag), nullptr});
  }
  Pending begin(const Receive<AnyElement>& call) {
    prepare(call);
    return post(call, {awaited(call.buffer, call.from, call.tag), nullptr});
  }
  Pending begin(const SendReceive<AnyElement>& call) {
    prepare(call);
    return post(call, {sent(call.send, call.to, call.tag), awaited(call.receive, call.from, call.tag)});
  }
  template <Collective Call>
  Pending begin(const Call& call) {
    prepare(call);
    struct Job final : Task {
      Job(Member& m, const Call& c) : member(m), call(c) {}
      void run() override { member.collective(Arena::Lane::started, call); }
      Member& member;  // the Pending holds it, and outlives the task
      Call call;
    };
    auto job = std::make_shared<Job>(*member_, call);
    if (size() == 1) {
      job->run();
      job->finish();
    } else {
      member_->progress().submit(job);
    }
    return Pending(member_, std::move(job), member_->self.context(call));
  }

  template <Collective Call>
  void prepare(const Call& call) {
    member_->guarded([&] { validate(call, member_->self); });
    if (member_->arena().revoked()) member_->arena().throw_revoked(member_->self.context(call));
  }
  std::shared_ptr<Envelope> sent(Span<const AnyElement> buffer, int to, int tag) const {
    auto e = std::make_shared<Envelope>();
    e->source = buffer.bytes();
    e->sends = true;
    e->from = rank();
    e->to = to;
    return described(std::move(e), buffer, tag);
  }
  std::shared_ptr<Envelope> awaited(Span<AnyElement> buffer, int from, int tag) const {
    auto e = std::make_shared<Envelope>();
    e->target = buffer.bytes();
    e->from = from;
    e->to = rank();
    return described(std::move(e), buffer, tag);
  }
  static std::shared_ptr<Envelope> described(std::shared_ptr<Envelope> e, Span<const AnyElement> buffer, int tag) {
    e->count = buffer.size();
    e->bytes = buffer.size_bytes();
    e->type = buffer.type();
    e->tag = tag;
    return e;
  }
  template <Collective Call>
  Pending post(const Call& call, const Pending::Messages& messages) {
    Pending pending(member_, messages, member_->self.context(call));
    for (const auto& message : messages)
      if (message != nullptr) member_->arena().mailbox(message->to).post(message);
    return pending;
  }

  std::shared_ptr<Member> member_;
};

}  // namespace distx::arena

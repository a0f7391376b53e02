// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/comm/shared_memory/pending.hpp"
#include "distx/connect/connector.hpp"

namespace distx::shared_memory {

/// The communicator of ranks that share memory. `Kind` is the sort of arena: who may make one, how the first rank makes
/// it and the others find it, and how memory is allocated in it.
template <class Kind>
class Communicator {
 public:
  using space = Host;

  /// Collective over the connector, which is not needed afterwards.
  /// @throws ConnectError, on every rank, where the ranks do not share the memory that this needs
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, Communicator>) && Connector<C>
  explicit Communicator(C& connector, Timeout deadline = default_deadline) {
    Kind::admit(connector);
    struct Words {
      char text[400] = {};
    } mine;
    typename Kind::Made made{};
    typename Kind::Token token{};
    std::shared_ptr<Arena> arena;
    const auto attempt = [&](auto&& f) {
      try {
        f();
      } catch (const std::exception& error) {
        mine.text[std::string_view(error.what()).copy(mine.text, sizeof mine.text - 1)] = '\0';
      }
    };
    const int rank = connector.rank(), size = connector.size();
    if (rank == 0) attempt([&] { Kind::make(size, deadline, made, token); });
    token = broadcast_value(connector, token, 0);
    if (mine.text[0] == '\0') attempt([&] { arena = Kind::find(token, rank, size, deadline); });
    // Rank 0 keeps what it has made until every rank has found it.
    const auto all = all_gather_values(connector, mine);
    for (std::size_t other = 0; other < all.size(); ++other)
      if (all[other].text[0] != '\0')
        throw ConnectError("rank " + std::to_string(other) + ": " + all[other].text,
                           {.operation = "connect", .backend = Kind::name, .rank = rank, .size = size});
    member_ = std::make_shared<Member>(std::move(arena), rank, Kind::name);
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
    run(Lane::blocking, erase(call));
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
      typename Kind::Token token;  // by which the others of a group find what its first rank makes
    };
    Wish wish{color, key, rank(), {}};
    std::vector<Wish> wishes = gathered(wish, location), group;
    std::copy_if(wishes.begin(), wishes.end(), std::back_inserter(group),
                 [&](const Wish& other) { return other.color == color; });
    std::stable_sort(group.begin(), group.end(), [](const Wish& a, const Wish& b) { return a.key < b.key; });
    const auto place = [&](const Wish& w) { return w.rank == rank(); };
    const int mine = static_cast<int>(std::find_if(group.begin(), group.end(), place) - group.begin());
    const int ranks = static_cast<int>(group.size());
    const Timeout& deadline = member_->arena().deadline();
    typename Kind::Made made{};
    std::shared_ptr<Arena> arena;
    if (mine == 0) member_->guarded([&] { Kind::make(ranks, deadline, made, wish.token); });
    wishes = gathered(wish, location);
    const auto& token = wishes[static_cast<std::size_t>(group.front().rank)].token;
    member_->guarded([&] {
      // What the first rank has made stays as long as nobody is busy, or all have come to the barrier.
      const Busy busy(member_->arena().control().channel(rank(), Lane::blocking));
      if (member_->arena().revoked()) member_->arena().throw_revoked(member_->self.context(Barrier<Host>{location}));
      arena = Kind::find(token, mine, ranks, deadline);
    });
    run(Lane::blocking, Barrier<Host>{location});
    return Communicator(std::make_shared<Member>(std::move(arena), mine, Kind::name));
  }

  /// Collective.
  /// @throws MismatchError where the ranks ask for different sizes; MemoryError
  template <class T>
  [[nodiscard]] CommunicatorMemory<T> allocate(std::size_t size,
                                               std::source_location location = std::source_location::current()) {
    if constexpr (requires { typename Kind::Allocation; }) {
      static_assert(std::is_trivially_copyable_v<T>, "allocate: elements are moved as bytes");
      typename Kind::Allocation allocation(member_->shared_arena(), member_->self);
      const typename Kind::Allocation::Request request{size, sizeof(T)};
      const auto requests = gathered(request, location);
      member_->guarded([&] { allocation.agree(request, requests); });
      typename Kind::Token token{};
      member_->guarded([&] { token = allocation.make(); });
      token = gathered(token, location).front();
      member_->guarded([&] { allocation.find(token); });
      run(Lane::blocking, Barrier<Host>{location});
      const std::shared_ptr<void> owner = allocation.owner();
      return {{static_cast<T*>(owner.get()), size}, owner};
    } else {
      return CommunicatorMemory<T>::plain(size);
    }
  }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) { return member_->scratch(bytes); }
  [[nodiscard]] GroupCache& group_cache() noexcept { return member_->groups; }
  void revoke(const std::string& reason) noexcept { member_->arena().revoke(rank(), reason); }

 private:
  explicit Communicator(std::shared_ptr<Member> member) : member_(std::move(member)) {}

  template <class T>
  std::vector<T> gathered(const T& mine, const std::source_location& location) {
    std::vector<T> all(static_cast<std::size_t>(size()));
    execute(AllGather<T>{{&mine, 1}, all, {}, location});
    return all;
  }

  template <Collective Call>
  void run(Lane lane, const Call& call) {
    member_->guarded([&] { validate(call, member_->self); });
    member_->collective(lane, call);
  }
  void run(Lane, const Send<AnyElement>& call) { message(call); }
  void run(Lane, const Receive<AnyElement>& call) { message(call); }
  void run(Lane, const SendReceive<AnyElement>& call) { begin(call).wait(); }

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
      void run() override { member.collective(Lane::started, call); }
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
    const auto context = member_->self.context(call);
    Pending pending(member_, Pending::Messages{}, context);
    member_->guarded([&] {
      for (std::size_t i = 0; i < messages.size(); ++i) {
        if (messages[i] == nullptr) continue;
        member_->arena().post(messages[i], context);
        pending.hold(i, messages[i]);  // what could not be posted is nowhere, and not to be waited for
      }
    });
    return pending;
  }

  std::shared_ptr<Member> member_;
};

}  // namespace distx::shared_memory

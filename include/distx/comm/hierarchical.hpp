// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/hierarchical/connector.hpp"
#include "distx/comm/hierarchical/pending.hpp"
#include "distx/core/deadline.hpp"

namespace distx {

/// A communicator made of two: `Inner` among the ranks of a machine, `Outer` among all ranks.
///
/// Reductions and movements to all are done inside, then across by as many ranks of a machine as the smallest one has,
/// then inside again; all-to-alls, gathers and scatters go straight over `Outer`, messages over the one that reaches.
/// Machines may have different numbers of ranks. The calls of all ranks are compared before each collective. Ranks of a
/// machine that do not follow each other cost all-gathers, reduce-scatters and ops that do not commute their inner
/// steps. An error on one level ends both. A started message across machines advances as those of `Outer` do.
template <Communicator Inner, Communicator Outer>
  requires std::same_as<typename Inner::space, Host> && std::same_as<typename Outer::space, Host>
class Hierarchical {
  using Member = detail::HierarchicalMember<Inner, Outer>;

 public:
  using space = Host;
  using Pending = detail::HierarchicalPending<Member>;

  /// Of communicators that are there already, which it takes over. Collective over `outer`.
  /// @pre both are of the same ranks of this machine, in the same order
  /// @throws MismatchError on every rank where the order differs
  Hierarchical(Inner inner, Outer outer) : member_(std::make_shared<Member>(std::move(inner), std::move(outer))) {}

  /// Among the ranks of a connector, whose local ranks say which share a machine. Collective.
  /// @throws ConnectError on every rank where the local ranks fit no machines, or a level cannot be made
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, Hierarchical>) && Connector<C>
  explicit Hierarchical(C& connector, Timeout deadline = default_deadline)
      : Hierarchical(detail::make_levels(connector, maker<Inner>(deadline), maker<Outer>(deadline))) {}

  Hierarchical(Hierarchical&&) noexcept = default;
  Hierarchical& operator=(Hierarchical&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return member_->self.rank; }
  [[nodiscard]] int size() const noexcept { return member_->self.size; }
  /// The names of both: `shm+mpi`.
  [[nodiscard]] std::string_view backend() const noexcept { return member_->backend; }
  [[nodiscard]] Hierarchical share() const { return Hierarchical(member_); }
  /// Whether both are handles on one communicator.
  friend bool operator==(const Hierarchical& a, const Hierarchical& b) noexcept { return a.member_ == b.member_; }

  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Host>
  void execute(const Call& call) {
    run(erase(call));
  }
  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Host>
  [[nodiscard]] Pending start(const Call& call, HostStream = {}) {
    const auto erased = erase(call);
    return member_->guarded([&] {
      validate(erased, member_->self);
      return begin(erased);
    });
  }

  [[nodiscard]] Hierarchical split(int color, int key,
                                   std::source_location location = std::source_location::current()) {
    const ErrorContext context{
        .operation = "split", .backend = backend(), .rank = rank(), .size = size(), .location = location};
    return member_->guarded([&] {
      Outer outer = member_->below(false, context, [&] { return member_->outer().split(color, key); });
      Inner inner = member_->below(true, context, [&] { return member_->inner().split(color, key); });
      return Hierarchical(std::move(inner), std::move(outer));
    });
  }
  /// Memory that the ranks of this machine move fastest. Collective.
  /// @throws MismatchError where the ranks ask for different sizes; MemoryError
  template <class T>
  [[nodiscard]] CommunicatorMemory<T> allocate(std::size_t count) {
    return member_->template allocate<T>(count);
  }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) { return member_->scratch(bytes); }
  [[nodiscard]] GroupCache& group_cache() noexcept { return member_->groups; }
  void revoke(const std::string& reason) noexcept { member_->revoke(reason); }

 private:
  explicit Hierarchical(std::shared_ptr<Member> member) : member_(std::move(member)) {}
  explicit Hierarchical(std::pair<Inner, Outer> levels)
      : Hierarchical(std::move(levels.first), std::move(levels.second)) {}

  /// Makes a communicator with a deadline, or with options that have one.
  template <class Level>
  static auto maker(Timeout deadline) {
    return [deadline](auto& connector) {
      if constexpr (requires { Level(connector, deadline); })
        return Level(connector, deadline);
      else
        return Level(connector, {.deadline = deadline});
    };
  }

  template <Collective Call>
  void run(const Call& call) {
    member_->execute(call);
  }
  void run(const Send<AnyElement>& call) { member_->execute_message(call); }
  void run(const Receive<AnyElement>& call) { member_->execute_message(call); }
  void run(const SendReceive<AnyElement>& call) { start(call).wait(); }

  static typename Pending::Below one(detail::StartedBelow started) { return {std::move(started), {}}; }

  template <Collective Call>
  Pending begin(const Call& call) {
    const auto context = member_->self.context(call);
    if (member_->two_levels()) return Pending(member_, member_->submit(call), context);
    return Pending(member_, one(member_->start_below(call)), context);
  }
  Pending begin(const Send<AnyElement>& call) {
    return Pending(member_, one(member_->start_message(call)), member_->self.context(call));
  }
  Pending begin(const Receive<AnyElement>& call) {
    return Pending(member_, one(member_->start_message(call)), member_->self.context(call));
  }
  Pending begin(const SendReceive<AnyElement>& call) {
    typename Pending::Below both;
    both[0] = member_->start_message(Receive<AnyElement>{call.receive, call.from, call.tag, call.location});
    both[1] = member_->start_message(Send<AnyElement>{call.send, call.to, call.tag, call.location});
    return Pending(member_, std::move(both), member_->self.context(call));
  }

  std::shared_ptr<Member> member_;
};

}  // namespace distx

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/hierarchical/levels.hpp"
#include "distx/comm/shared_memory/ticket.hpp"
#include "distx/core/detail/revoke_on_exception.hpp"

namespace distx::detail {

/// A call that one of the two communicators has started.
struct StartedBelow {
  AnyPending<Host> pending;
  bool inside = false;
};

template <class P>
[[nodiscard]] AnyPending<Host> any_pending(P pending) {
  if constexpr (std::same_as<P, AnyPending<Host>>)
    return pending;
  else
    return AnyPending<Host>(std::move(pending));
}

/// One rank's side of a hierarchy; what its handles, its Pendings and its progress thread share.
///
/// Blocking calls and messages use one pair of communicators, started collectives another. Where there is but one
/// machine, or one rank on each, there is one level: calls go straight to it.
template <class Inner, class Outer>
class HierarchicalMember {
  using Levels = HierarchicalLevels<Inner, Outer>;

 public:
  /// Collective over `outer`.
  HierarchicalMember(Inner inner, Outer outer)
      : backend(std::string(inner.backend()) + "+" + std::string(outer.backend())),
        self{outer.rank(), outer.size(), backend},
        machines(told_by(inner, outer)),
        blocking_(std::move(inner), std::move(outer), machines, self) {
    if (!two_levels()) return;
    started_.emplace(this->inner().split(0, this->inner().rank()), this->outer().split(0, self.rank), machines, self);
  }
  HierarchicalMember(const HierarchicalMember&) = delete;
  HierarchicalMember& operator=(const HierarchicalMember&) = delete;
  ~HierarchicalMember() {
    // Whoever unwinds will not come to the calls that the others wait in.
    if (std::uncaught_exceptions() > uncaught_) revoke("it let the communicator go while unwinding");
  }

  [[nodiscard]] Inner& inner() noexcept { return blocking_.inner; }
  [[nodiscard]] Outer& outer() noexcept { return blocking_.outer; }
  [[nodiscard]] shared_memory::ProgressThread& progress() noexcept { return progress_; }
  [[nodiscard]] bool two_levels() const noexcept { return machines.count() > 1 && machines.largest() > 1; }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = Buffer<std::byte>(bytes);
    return {scratch_.data(), bytes};
  }
  void revoke(const std::string& reason) noexcept {
    blocking_.revoke(reason);
    if (started_) started_->revoke(reason);
  }

  /// Runs `f`; where it throws, the ranks of both levels are told.
  template <class F>
  decltype(auto) guarded(F&& f) {
    return revoke_on_exception(f, [&](const char* words) { revoke(words); });
  }
  /// Runs `f`, which uses one of the communicators; what it throws names ranks as all know them.
  template <class F>
  decltype(auto) below(bool inside, const ErrorContext& context, F&& f) {
    static const std::vector<int> all;
    return as_seen_by_all(inside ? machines.ranks(machines.machine(self.rank)) : all, context, f);
  }

  template <Collective Call>
  void execute(const Call& call) {
    guarded([&] {
      validate(call, self);
      if (two_levels()) return blocking_.run(call);
      below(one_machine(), self.context(call), [&] {
        if (one_machine())
          inner().execute(call);
        else
          outer().execute(call);
      });
    });
  }
  template <Collective Call>
  void execute_message(const Call& call) {
    guarded([&] {
      validate(call, self);
      const bool inside = is_here(peer_of(call));
      below(inside, self.context(call), [&] {
        if (inside)
          inner().execute(within(call));
        else
          outer().execute(call);
      });
    });
  }
  [[nodiscard]] StartedBelow start_message(const auto& call) {
    const bool inside = is_here(peer_of(call));
    StartedBelow started{{}, inside};
    below(inside, self.context(call), [&] {
      started.pending = inside ? any_pending(inner().start(within(call))) : any_pending(outer().start(call));
    });
    return started;
  }

  /// A collective in the hands of the only level. @pre !two_levels()
  template <Collective Call>
  [[nodiscard]] StartedBelow start_below(const Call& call) {
    StartedBelow started{{}, one_machine()};
    below(one_machine(), self.context(call), [&] {
      started.pending = one_machine() ? any_pending(inner().start(call)) : any_pending(outer().start(call));
    });
    return started;
  }
  /// The same for two levels: in the hands of the progress thread.
  template <Collective Call>
  [[nodiscard]] std::shared_ptr<shared_memory::Ticket> submit(const Call& call) {
    if constexpr (requires {
                    { Outer::serves_threads() } -> std::same_as<bool>;
                  }) {
      if (!Outer::serves_threads())
        throw ConnectError("a started call runs on a thread of its own, which " + std::string(outer().backend()) +
                               " does not allow here: start MPI with MPI_THREAD_MULTIPLE, or let MpiConnector start it",
                           self.context(call));
    }
    struct Job final : shared_memory::Task {
      Job(HierarchicalMember& m, const Call& c) : member(m), call(c) {}
      void run() override {
        member.guarded([&] { member.started_->run(call); });
      }
      HierarchicalMember& member;  // the Pending holds it, and outlives the task
      Call call;
    };
    auto job = std::make_shared<Job>(*this, call);
    progress_.submit(job);
    return job;
  }

  template <class T>
  [[nodiscard]] CommunicatorMemory<T> allocate(std::size_t count) {
    const ErrorContext context{.operation = "allocate", .backend = backend, .rank = self.rank, .size = self.size};
    return guarded([&] {
      if (two_levels()) blocking_.agree_on(count, sizeof(T), context);
      return below(machines.largest() > 1, context, [&] {
        return machines.largest() > 1 ? inner().template allocate<T>(count) : outer().template allocate<T>(count);
      });
    });
  }

  const std::string backend;
  const RankOf self;
  const Machines machines;
  GroupCache groups;

 private:
  /// @throws MismatchError on every rank where the inner communicators do not divide the outer one's ranks in order
  static Machines told_by(Inner& inner, Outer& outer) {
    struct Seat {
      int first, rank, size;
    } mine{outer.rank(), inner.rank(), inner.size()};
    inner.execute(erase(Broadcast<int>{{&mine.first, 1}, 0}));
    std::vector<Seat> all(static_cast<std::size_t>(outer.size()));
    outer.execute(erase(AllGather<Seat>{{&mine, 1}, all}));
    std::vector<int> come(all.size(), 0);
    std::vector<int> first;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      first.push_back(all[rank].first);
      if (all[rank].rank != come[static_cast<std::size_t>(all[rank].first)]++)
        throw MismatchError(
            "rank " + std::to_string(rank) + " is rank " + std::to_string(all[rank].rank) +
                " inside its machine: there the ranks must be in the order that they have among all",
            {.operation = "Hierarchical", .backend = outer.backend(), .rank = outer.rank(), .size = outer.size()});
    }
    return Machines(first);
  }

  [[nodiscard]] bool one_machine() const noexcept { return machines.count() == 1; }
  [[nodiscard]] bool is_here(int rank) const { return machines.machine(rank) == machines.machine(self.rank); }
  static int peer_of(const Send<AnyElement>& call) { return call.to; }
  static int peer_of(const Receive<AnyElement>& call) { return call.from; }
  /// The same message as the ranks of this machine number each other.
  Send<AnyElement> within(Send<AnyElement> call) const {
    call.to = machines.place(call.to);
    return call;
  }
  Receive<AnyElement> within(Receive<AnyElement> call) const {
    call.from = machines.place(call.from);
    return call;
  }

  int uncaught_ = std::uncaught_exceptions();
  Levels blocking_;
  std::optional<Levels> started_;
  Buffer<std::byte> scratch_;
  shared_memory::ProgressThread progress_;  // last: joined before anything that its tasks use goes
};

}  // namespace distx::detail

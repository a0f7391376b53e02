// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <optional>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/hierarchical/levels.hpp"
#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/comm/runtime/refusal.hpp"
#include "distx/memory/detail/lines.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The backend of `Hierarchical`. See `BasicCommunicator`.
///
/// Blocking calls and messages use one pair of communicators, asynchronous collectives another. With a single host, or
/// one rank per host, calls go directly to the one communicator that is needed.
template <class Inner, class Outer>
class HierarchicalBackend {
  using Levels = HierarchicalLevels<Inner, Outer>;

 public:
  using space = Host;
  using State = CommunicatorState<HierarchicalBackend>;

  /// Collective over `outer`.
  HierarchicalBackend(Inner inner, Outer outer)
      : name_(std::string(inner.backend()) + "+" + std::string(outer.backend())),
        self_{outer.rank(), outer.size(), name_},
        hosts_(hosts_of_levels(inner, outer)),
        blocking_(std::move(inner), std::move(outer), hosts_, self_, host_memory_) {
    if (!two_levels()) return;
    started_.emplace(blocking_.inner.split(0, blocking_.inner.rank()), blocking_.outer.split(0, self_.rank), hosts_,
                     self_, host_memory_);
  }

  [[nodiscard]] const RankOf& self() const noexcept { return self_; }
  void revoke(const std::string& reason) noexcept {
    blocking_.revoke(reason);
    if (started_) started_->revoke(reason);
  }
  void check_usable(const ErrorContext&) const noexcept {}  // the levels check it

  void execute(const Call<Host>& call) {
    if (call.kind == CollectiveKind::send_receive) {
      auto [received, sent] = start_both(call);
      wait(sent, self_.context(call));
      return wait(received, self_.context(call));
    }
    if (traits_of(call.kind).message)
      return pass_message(call, [](auto& comm, const Call<Host>& passed, bool) { comm.execute(passed); });
    if (two_levels()) return blocking_.run(call);
    on_level(one_host(), self_.context(call), [&](auto& comm) { comm.execute(call); });
  }

  [[nodiscard]] std::shared_ptr<Operation<Host>> start(const std::shared_ptr<State>& state, const Call<Host>& call,
                                                       HostStream) {
    const ErrorContext context = self_.context(call);
    if (call.kind == CollectiveKind::send_receive) {
      auto [received, sent] = start_both(call);
      return as_operation(state, context, std::move(received), std::move(sent));
    }
    if (traits_of(call.kind).message) return as_operation(state, context, start_message(call));
    if (!two_levels()) {
      auto pending = on_level(one_host(), context, [&](auto& comm) { return as_pending<Host>(comm.start(call)); });
      return as_operation(state, context, {std::move(pending), one_host()});
    }
    if constexpr (requires {
                    { Outer::serves_threads() } -> std::same_as<bool>;
                  }) {
      if (!Outer::serves_threads())
        throw ConnectError(
            "asynchronous calls need MPI_THREAD_MULTIPLE; initialize MPI with it, or let MpiConnector "
            "initialize MPI",
            context);
    }
    return tasks_.start(state, call);
  }
  void run_started(const Call<Host>& call) { started_->run(call); }
  [[nodiscard]] TaskRunner<State>& tasks() noexcept { return tasks_; }

  [[nodiscard]] std::shared_ptr<State> split(int color, int key, const std::source_location& location) {
    const ErrorContext context = self_.context("split", location);
    Outer outer = as_global(false, context, [&] { return blocking_.outer.split(color, key); });
    Inner inner = as_global(true, context, [&] { return blocking_.inner.split(color, key); });
    return State::make(std::move(inner), std::move(outer));
  }
  [[nodiscard]] CommunicatorMemory<std::byte> allocate(std::size_t count, std::size_t element_bytes,
                                                       const std::source_location& location) {
    const ErrorContext context = self_.context("allocate", location);
    const std::size_t bytes = allocation_bytes(count, element_bytes, context);
    if (two_levels()) blocking_.agree_on(count, element_bytes, context);
    return on_level(hosts_.largest() > 1, context,
                    [&](auto& comm) { return comm.template allocate<std::byte>(bytes); });
  }
  /// Nothing if there are several hosts, or if the inner communicator shares no memory.
  [[nodiscard]] std::optional<CommonMemory<Host>> allocate_common(std::size_t bytes, const std::vector<ByteRange>& own,
                                                                  const std::source_location& location) {
    if (!one_host()) return {};
    return common_inside(bytes, own, self_.context("allocate_common", location));
  }
  /// Nothing if there is one host, if hosts have one rank or ranks that are not consecutive, or if the inner
  /// communicator shares no memory.
  [[nodiscard]] std::optional<CommonMemory<Host>> allocate_for_host(std::size_t bytes,
                                                                    const std::source_location& location) {
    if (!two_levels() || !hosts_.consecutive()) return {};
    const ErrorContext context = self_.context("allocate_for_host", location);
    blocking_.agree_on(bytes, 1, context);
    auto memory = common_inside(bytes, {{0, bytes}}, context);
    if (!memory) return {};
    memory->owner = HostMemory::note(host_memory_, *memory);
    const std::size_t begin = aligned_part_begin(bytes, blocking_.inner.rank(), blocking_.inner.size());
    const std::size_t end = aligned_part_begin(bytes, blocking_.inner.rank() + 1, blocking_.inner.size());
    memory->part = memory->span.subspan(begin, end - begin);
    return memory;
  }
  [[nodiscard]] Adoption<Host> adopt(Span<std::byte> memory, const std::source_location& location)
    requires requires(Inner& inner, Outer& outer) {
      inner.adopt(memory);
      outer.adopt(memory);
    }
  {
    const ErrorContext context = self_.context("adopt", location);
    const auto all = all_gathered(*this, memory.size(), location);
    Adoption<Host> adoption;
    // The communicator of one host may refuse while that of another does not.
    adoption.refusal = refusal_of_any(*this, context, [&] {
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank] != memory.size())
          throw MismatchError("rank " + std::to_string(rank) + " adopts " + std::to_string(all[rank]) +
                                  " bytes, this rank " + std::to_string(memory.size()),
                              context);
      adoption.memory = on_level(hosts_.largest() > 1, context, [&](auto& comm) { return comm.adopt(memory); });
    });
    if (adoption.refusal != nullptr) adoption.memory = {};
    return adoption;
  }

 private:
  /// A call on one of the two communicators.
  struct Below {
    Pending<Host> pending;
    bool inside = false;
  };

  /// Up to two asynchronous calls on the inner and outer communicators.
  class BelowOperation final : public Operation<Host> {
   public:
    explicit BelowOperation(State& state) noexcept : state_(state) {}
    void set(const ErrorContext& context, Below first, Below second) noexcept {
      context_ = context;
      below_ = {std::move(first), std::move(second)};
    }

    bool test() noexcept override {
      bool done = true;
      for (auto& below : below_) done = below.pending.test() && done;
      return done;
    }
    void complete() override {
      std::exception_ptr error;
      for (auto& below : below_) {
        try {
          state_.guarded([&] { state_.backend.wait(below, context_); });
        } catch (...) {
          if (error == nullptr) error = std::current_exception();
        }
      }
      if (error != nullptr) std::rethrow_exception(error);
    }
    void abandon() noexcept override {
      state_.backend.revoke(abandoned_by_exception);
      for (auto& below : below_) below.pending = {};
    }
    void keep(std::shared_ptr<void> owner) override {
      for (auto& below : below_) below.pending.keep(owner);
    }
    void recycle() noexcept override { state_.backend.operations_.give_back(*this); }

   private:
    State& state_;  // kept alive by the Pending
    ErrorContext context_;
    std::array<Below, 2> below_;
  };
  [[nodiscard]] std::shared_ptr<Operation<Host>> as_operation(const std::shared_ptr<State>& state,
                                                              const ErrorContext& context, Below first,
                                                              Below second = {}) {
    const auto operation = operations_.take(*state);
    operation->set(context, std::move(first), std::move(second));
    return {state, operation.get()};
  }

  /// Returns the hosts. @throws InvalidArgument on every rank if the inner communicators do not partition the outer
  /// ranks in order
  static Hosts hosts_of_levels(Inner& inner, Outer& outer) {
    struct Seat {
      int first, rank, size;
    } mine{outer.rank(), inner.rank(), inner.size()};
    inner.execute(Broadcast<int>{{&mine.first, 1}, 0});
    std::vector<Seat> all(static_cast<std::size_t>(outer.size()));
    outer.execute(AllGather<Seat>{{&mine, 1}, all});
    std::vector<int> arrived(all.size(), 0);
    std::vector<int> first;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      first.push_back(all[rank].first);
      if (all[rank].rank != arrived[static_cast<std::size_t>(all[rank].first)]++)
        throw InvalidArgument(
            "rank " + std::to_string(rank) + " is rank " + std::to_string(all[rank].rank) +
                " on its host: the ranks of a host must have the same order in both communicators",
            {.operation = "Hierarchical", .backend = outer.backend(), .rank = outer.rank(), .size = outer.size()});
    }
    return Hosts(first);
  }

  [[nodiscard]] std::optional<CommonMemory<Host>> common_inside(std::size_t bytes, const std::vector<ByteRange>& own,
                                                                const ErrorContext& context) {
    if constexpr (requires { blocking_.inner.allocate_common(bytes, own); })
      return as_global(true, context, [&] { return blocking_.inner.allocate_common(bytes, own); });
    else
      return {};
  }
  [[nodiscard]] bool two_levels() const noexcept { return hosts_.count() > 1 && hosts_.largest() > 1; }
  [[nodiscard]] bool one_host() const noexcept { return hosts_.count() == 1; }
  [[nodiscard]] bool is_here(int rank) const { return hosts_.host(rank) == hosts_.host(self_.rank); }
  /// Runs `f`, which uses one of the two communicators; errors that it throws name ranks by their global number.
  template <class F>
  decltype(auto) as_global(bool inside, const ErrorContext& context, F&& f) const {
    static const std::vector<int> all;
    return with_global_ranks(inside ? hosts_.ranks(hosts_.host(self_.rank)) : all, context, f);
  }
  /// Runs `f(communicator)` with one of the two.
  template <class F>
  auto on_level(bool inside, const ErrorContext& context, F&& f) {
    return as_global(inside, context, [&] { return inside ? f(blocking_.inner) : f(blocking_.outer); });
  }
  /// Calls `f(communicator, message, inside)` with the communicator that a message belongs to, and its rank there.
  template <class F>
  void pass_message(Call<Host> call, F&& f) {
    int& peer = call.kind == CollectiveKind::send ? call.to : call.from;
    const bool inside = is_here(peer);
    if (inside) peer = hosts_.index(peer);
    on_level(inside, self_.context(call), [&](auto& comm) { f(comm, call, inside); });
  }
  [[nodiscard]] Below start_message(const Call<Host>& call) {
    Below started;
    pass_message(call, [&](auto& comm, const Call<Host>& passed, bool inside) {
      started = {as_pending<Host>(comm.start(passed)), inside};
    });
    return started;
  }
  /// Starts the receive and the send of a send-receive.
  [[nodiscard]] std::array<Below, 2> start_both(const Call<Host>& call) {
    Call<Host> in = call, out = call;
    in.kind = CollectiveKind::receive;
    in.send = {};
    out.kind = CollectiveKind::send;
    out.receive = {};
    auto received = start_message(in);
    return {std::move(received), start_message(out)};
  }
  void wait(Below& below, const ErrorContext& context) const {
    as_global(below.inside, context, [&] { below.pending.wait(); });
  }

  std::string name_;
  RankOf self_;
  Hosts hosts_;
  std::shared_ptr<HostMemory> host_memory_ = std::make_shared<HostMemory>();
  Levels blocking_;
  std::optional<Levels> started_;
  OperationPool<BelowOperation> operations_;
  TaskRunner<State> tasks_;  // last: joined before anything that its tasks use is destroyed
};

}  // namespace distx::inline DISTX_ABI::detail

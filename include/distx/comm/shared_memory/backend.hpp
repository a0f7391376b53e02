// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <optional>

#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/comm/runtime/refusal.hpp"
#include "distx/comm/shared_memory/declaration.hpp"
#include "distx/comm/shared_memory/messages.hpp"
#include "distx/comm/shared_memory/run_collective.hpp"
#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

/// The backend of threads or processes that share memory. See `detail::BasicCommunicator`.
class SharedMemoryBackend {
 public:
  using space = Host;
  using State = CommunicatorState<SharedMemoryBackend>;
  static constexpr bool passes_operands = true;

  SharedMemoryBackend(std::shared_ptr<SharedRegion> region, int rank, std::string_view name)
      : self_{rank, region->size(), name}, region_(std::move(region)) {}
  ~SharedMemoryBackend() { region_->leave(self_.rank); }

  [[nodiscard]] const RankOf& self() const noexcept { return self_; }
  void revoke(const std::string& reason) noexcept { region_->revoke(self_.rank, reason); }
  void check_usable(const ErrorContext& context) const {
    if (region_->revoked()) region_->throw_revoked(context);
  }

  void execute(const Call<Host>& call) {
    if (traits_of(call.kind).message) return execute_message(call);
    run_collective(*region_, CallQueue::blocking, call, self_, workspaces_[0]);
  }
  [[nodiscard]] std::shared_ptr<Operation<Host>> start(const std::shared_ptr<State>& state, const Call<Host>& call,
                                                       HostStream) {
    return traits_of(call.kind).message ? messages_.start(state, call) : tasks_.start(state, call);
  }
  void run_started(const Call<Host>& call) {
    run_collective(*region_, CallQueue::started, call, self_, workspaces_[1]);
  }
  [[nodiscard]] TaskRunner<State>& tasks() noexcept { return tasks_; }

  [[nodiscard]] std::shared_ptr<State> split(int color, int key, const std::source_location& location) {
    struct GroupRequest : SplitRequest {
      RegionToken token;
    };
    GroupRequest mine{{color, key, self_.rank}, {}};
    const auto group = group_of(all_gathered(*this, mine, location), color);
    const auto here =
        std::find_if(group.begin(), group.end(), [&](const GroupRequest& r) { return r.rank == self_.rank; });
    const int rank = static_cast<int>(here - group.begin()), size = static_cast<int>(group.size());
    std::shared_ptr<void> keep;
    if (rank == 0) mine.token = region_->make_sibling(size, keep);
    const auto all = all_gathered(*this, mine, location);
    std::shared_ptr<SharedRegion> region;
    {
      // The region made by the first rank exists until all ranks have entered the barrier and none accesses it.
      const AccessGuard guard(region_->control().channel(self_.rank, CallQueue::blocking).busy);
      check_usable(self_.context(Barrier<Host>{location}));
      region = region_->open_sibling(all[static_cast<std::size_t>(group.front().rank)].token, rank, size);
    }
    execute(Barrier<Host>{location});
    return State::make(std::move(region), rank, self_.backend);
  }

  [[nodiscard]] CommunicatorMemory<std::byte> allocate(std::size_t count, std::size_t element_bytes,
                                                       const std::source_location& location) {
    const auto allocation = region_->new_allocation(self_);
    if (allocation == nullptr)
      return CommunicatorMemory<std::byte>::plain(
          allocation_bytes(count, element_bytes, self_.context("allocate", location)));
    const RegionAllocation::Request request{count, element_bytes};
    allocation->check(request, all_gathered(*this, request, location));
    allocation->open(all_gathered(*this, allocation->make(), location).front());
    execute(Barrier<Host>{location});
    const std::shared_ptr<void> owner = allocation->owner();
    return {{static_cast<std::byte*>(owner.get()), count * element_bytes}, owner};
  }

  [[nodiscard]] Adoption<Host> adopt(Span<std::byte> memory, const std::source_location& location) {
    const auto adoption = region_->new_adoption(self_, memory);
    if (adoption == nullptr) return {{memory, nullptr}};
    const auto context = self_.context("adopt", location);
    const auto agree = [&](auto&& step) { return refusal_of_any(*this, context, step); };
    const RegionAllocation::Request request{memory.size(), 1, reinterpret_cast<std::uintptr_t>(memory.data())};
    const auto all = all_gathered(*this, request, location);
    RegionToken token;
    auto refusal = agree([&] { adoption->check(request, all); });
    if (refusal == nullptr) refusal = agree([&] { token = adoption->make(); });
    if (refusal != nullptr) return {{}, refusal};
    token = all_gathered(*this, token, location).front();
    refusal = agree([&] { adoption->open(token); });
    if (refusal != nullptr) return {{}, refusal};
    return {{memory, adoption->owner()}};
  }

  [[nodiscard]] CommonMemory<Host> allocate_common(std::size_t bytes, const std::vector<ByteRange>& own,
                                                   const std::source_location& location) {
    const auto context = self_.context("allocate_common", location);
    const std::uint64_t mine = bytes;
    const auto all = all_gathered(*this, mine, location);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != mine)
        throw MismatchError("rank " + std::to_string(rank) + " requests " + std::to_string(all[rank]) +
                                " bytes, this rank " + std::to_string(mine),
                            context);
    std::shared_ptr<void> keep;
    RegionToken token;
    if (self_.rank == 0) token = region_->make_common(bytes, context, keep);
    token = all_gathered(*this, token, location).front();
    CommonMemory<Host> common;
    {
      // The memory made by the first rank exists until all ranks have entered the barrier and none accesses it.
      const AccessGuard guard(region_->control().channel(self_.rank, CallQueue::blocking).busy);
      check_usable(context);
      common = region_->open_common(token, bytes, own, context);
    }
    execute(Barrier<Host>{location});
    return common;
  }

 private:
  /// Asynchronous messages.
  class MessageOperation final : public Operation<Host> {
   public:
    explicit MessageOperation(State& state) noexcept : state_(state) {}

    void begin(const Call<Host>& call) {
      SharedMemoryBackend& backend = state_.backend;
      context_ = backend.self_.context(call);
      messages_.emplace(*backend.region_, context_, kept_, false);
      SharedMemoryBackend::begin(*messages_, call);
    }
    bool test() noexcept override { return messages_->test(); }
    void complete() override {
      state_.guarded([&] { messages_->wait(); });
    }
    void abandon() noexcept override {
      state_.backend.revoke(abandoned_by_exception);
      try {
        messages_->wait();  // a revocation ends this wait
      } catch (...) {
      }
    }
    void recycle() noexcept override {
      messages_.reset();
      state_.backend.messages_.give_back(*this);
    }

   private:
    State& state_;  // kept alive by the Pending
    ErrorContext context_;
    KeptRequests kept_;
    std::optional<Messages> messages_;
  };

  /// Not inline: collectives need none of its stack.
  [[gnu::noinline]] void execute_message(const Call<Host>& call) {
    const ErrorContext context = self_.context(call);
    check_usable(context);
    Messages messages(*region_, context, kept_, true);
    begin(messages, call);
    // The other side of a self-send or self-receive must have been started before.
    const int peer = call.kind == CollectiveKind::send ? call.to : call.from;
    if (call.kind != CollectiveKind::send_receive && peer == self_.rank && !messages.test())
      throw_self_deadlock(context);
    messages.wait();
  }
  static void begin(Messages& messages, const Call<Host>& c) {
    using enum CollectiveKind;
    const bool exchanges =
        c.kind == send_receive && c.to == c.from && MessageHeader::of(c.send, 0) == MessageHeader::of(c.receive, 0);
    if (c.kind != receive) messages.send(c.send, c.to, c.tag, c.lengths, exchanges);
    if (c.kind != send) messages.receive(c.receive, c.from, c.tag, c.lengths);
  }

  RankOf self_;
  std::shared_ptr<SharedRegion> region_;
  std::array<CallWorkspace, 2> workspaces_;
  KeptRequests kept_;  ///< of blocking calls
  OperationPool<MessageOperation> messages_;
  TaskRunner<State> tasks_;  // last: joined before anything that its tasks use is destroyed
};

/// Makes a communicator's state from a connector. Collective over the connector, which is not needed afterwards: two
/// calls of it, which move a few bytes per rank.
/// @tparam Region makes and opens the first region: `make(size, deadline, keep)`, `open(token, rank, size, deadline)`
/// @throws ConnectError on every rank if one of them fails
template <class Region, Connector C>
[[nodiscard]] std::shared_ptr<SharedMemoryBackend::State> connect_region(C& connector, std::string_view name,
                                                                         Timeout deadline) {
  const int rank = connector.rank(), size = connector.size();
  RegionToken token;
  std::shared_ptr<void> keep;
  std::shared_ptr<SharedRegion> region;
  struct ConnectFailure {
    char text[400] = {};
  } mine;
  const auto write_reason = [&](std::string_view reason) {
    mine.text[reason.copy(mine.text, sizeof mine.text - 1)] = '\0';
  };
  const auto attempt = [&](auto&& f) {
    try {
      f();
    } catch (const Error& error) {
      write_reason(error.message());
    } catch (const std::exception& error) {
      write_reason(error.what());
    }
  };
  if (rank == 0) attempt([&] { token = Region::make(size, deadline, keep); });
  token = distx::broadcast_value(connector, token, 0);
  if (mine.text[0] == '\0') attempt([&] { region = Region::open(token, rank, size, deadline); });
  // Rank 0 keeps the region until every rank has opened it. Only a rank that has failed sends the reason.
  const auto failed = distx::all_gather_values(connector, static_cast<char>(mine.text[0] != '\0'));
  if (const auto first = std::find(failed.begin(), failed.end(), 1); first != failed.end()) {
    const int other = static_cast<int>(first - failed.begin());
    throw ConnectError("rank " + std::to_string(other) + ": " + distx::broadcast_value(connector, mine, other).text,
                       {.operation = "connect", .backend = name, .rank = rank, .size = size});
  }
  return SharedMemoryBackend::State::make(std::move(region), rank, name);
}

}  // namespace distx::inline DISTX_ABI::detail::shared_memory

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <climits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distx/connect/connector.hpp"
#include "distx/connect/failure_channel.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/mpi/detail/transport.hpp"
#include "distx/mpi/detail/world.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The ranks of one connector: those of an MPI communicator, or after `shrink` the surviving ones of them.
///
/// They describe their calls to each other in messages. Operands that are too large for these are transferred by MPI's
/// collectives, whose algorithms serve any number of ranks, or of the surviving ranks, for whom MPI's would wait
/// for those that are lost, by further messages.
class Session final : public FailureChannel, public VirtualConnector, public std::enable_shared_from_this<Session> {
 public:
  explicit Session(const std::shared_ptr<World>& world) : Session(world, world->all(), world->deadline(), 0) {}
  /// @param group  identifies the surviving ranks; 0 for all
  Session(std::shared_ptr<World> world, RankSubset subset, const Timeout& deadline, std::uint64_t group)
      : VirtualConnector(numbers_of(*world, subset)),
        world_(std::move(world)),
        deadline_(deadline),
        group_(group),
        subset_(std::move(subset)),
        calls_(QueueTransport({world_->control().comm(), subset_.ranks}, subset_.first_tag(), 3, RankSubset::user_tags),
               RankOf{rank_, size_, "mpi"}, deadline, is_left() || size_ <= MpiOptions::most_scheduled_ranks) {}

  /// Returns the MPI communicator of these ranks, null after `shrink`.
  [[nodiscard]] MPI_Comm comm() const noexcept { return is_left() ? MPI_COMM_NULL : world_->comm(); }
  /// Returns whether these ranks are the surviving ones.
  [[nodiscard]] bool is_left() const noexcept { return subset_.channel != 0; }
  [[nodiscard]] const RankSubset& subset() const noexcept { return subset_; }
  [[nodiscard]] World& world() const noexcept { return *world_; }
  [[nodiscard]] Control& control() const noexcept { return world_->control(); }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }
  /// Gives a transport an MPI communicator of its ranks, and a duplicate of that. Collective over it.
  /// @throws TimeoutError
  void open(Transport& transport, mpi_unique_comm comm, const MpiOptions& options) const try {
    transport.blocking = std::move(comm);
    const MPI_Comm whole = transport.blocking.native_handle();
    transport.started = duplicate(whole, deadline_, transport.self.context("MpiCommunicator"));
    transport.messages = {whole};
    transport.calls = {transport.started.native_handle()};
    transport.call_tags = world_->last_tag();
    transport.divide_tags(std::int64_t{transport.call_tags} + 1);
    transport.scheduled =
        options.collectives != MpiCollectives::vendor && transport.self.size <= MpiOptions::most_scheduled_ranks;
    // Ranks without a progress thread use MPI's collectives, and all ranks must do the same.
    transport.threaded = transport.scheduled && options.check == Check::every_call && transport.serves_threads;
  } catch (const TimeoutError&) {
    world_->note_broken();
    transport.release();
    throw;
  }
  /// Gives a transport a channel of these ranks. Local.
  void open(Transport& transport, int channel, const ErrorContext& context) const {
    world_->use_channel(channel, context);
    const RankSubset subset{transport.ranks, channel};
    transport.messages = transport.calls = {control().comm(), subset.ranks};
    transport.first_call_tag = subset.first_tag();
    transport.call_tags = RankSubset::user_tags;
    transport.first_message_tag = subset.first_tag() + RankSubset::user_tags;
    transport.divide_tags(RankSubset::tags - RankSubset::user_tags);
  }
  /// Returns an identity for a communicator, equal on all ranks, and different after each call of them.
  [[nodiscard]] std::uint64_t new_identity() const noexcept {
    return fnv1a(std::array<std::uint64_t, 2>{group_, made_});
  }

  void barrier() override { make("barrier", calls::Barrier<Host>{}); }
  void broadcast(std::span<std::byte> bytes, int root) override {
    check_control_root(root, rank_, size_);
    make("broadcast", erase(calls::Broadcast<std::byte>{bytes, root}));
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) override {
    check_control_gather(send.size(), receive.size(), rank_, size_);
    make("all_gather", erase(calls::AllGather<std::byte>{send, receive}));
  }
  /// Makes a call unless an earlier one has failed: then this rank is out of step. Collective.
  void make(const char* operation, const Call<Host>& call) {
    const auto context = where(operation);
    process_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;
    try {
      communicate(call, context);
    } catch (const MismatchError&) {
      note_joined();
      throw;
    } catch (...) {
      world_->note_broken();
      throw;
    }
    note_joined();
  }
  /// Returns the surviving ranks, which have entered this call; see `AnyConnector::shrink`.
  [[nodiscard]] std::shared_ptr<VirtualConnector> shrink(Timeout deadline) override;
  [[nodiscard]] std::shared_ptr<VirtualConnector> grow() override { return shared_from_this(); }
  /// Returns null without MPI_THREAD_MULTIPLE: no thread may poll while another one calls MPI.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() override {
    return serves_threads() ? shared_from_this() : nullptr;
  }

  /// @pre MPI_THREAD_MULTIPLE, as for `poll`
  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    if (process_.is_here()) control().publish(identity ^ group_, reason, subset_.ranks);
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (!process_.is_here()) return std::nullopt;
    if (is_up()) control().try_receive();
    return control().reason(identity ^ group_);
  }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "mpi", .rank = rank_, .size = size_};
  }

 private:
  [[nodiscard]] static RankNumbers numbers_of(const World& world, const RankSubset& subset) {
    const std::vector<int>& ranks = subset.ranks;
    const auto own = std::ranges::find(ranks, world.rank());
    const auto is_here = [&](int rank) { return world.process(rank).shares_host_with(world.process(world.rank())); };
    return {static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
            static_cast<int>(std::count_if(ranks.begin(), own, is_here)),
            static_cast<int>(std::ranges::count_if(ranks, is_here))};
  }

  /// Notes that all ranks have joined a call, so they are in step.
  void note_joined() noexcept {
    failed_ = false;
    control().forget_failures();
  }
  void communicate(const Call<Host>& call, const ErrorContext& context) {
    const std::uint64_t number = made_++;
    const auto one_has_ended = [this] { return world_->first_ended(subset_.ranks) >= 0; };
    const auto wait = [&](auto&& ready, auto&& overdue) {
      if (wait_for_ranks(deadline_, context, ready, one_has_ended, overdue))
        world_->raise_ended(subset_.ranks, context);
    };
    if (calls_.join(call, number, context, wait)) return;
    if (is_left()) return calls_.transfer(call, number, context, wait);
    if (call.send.size_bytes() > INT_MAX)
      throw MismatchError("a control message has at most " + std::to_string(INT_MAX) + " bytes, this one " +
                              std::to_string(call.send.size_bytes()),
                          context);
    const std::span<const std::byte> own(call.send.bytes(), call.send.size_bytes());
    std::ranges::copy(call.kind == CollectiveKind::all_gather ? mpi::gathered(comm(), own, deadline_, context)
                                                              : broadcast_by_mpi(own, call.root, context),
                      call.receive.bytes());
  }
  [[nodiscard]] std::vector<std::byte> broadcast_by_mpi(std::span<const std::byte> bytes, int root,
                                                        const ErrorContext& context) {
    // Staged, so that MPI does not write to the caller's buffer after a timeout.
    std::vector<std::byte> staged(bytes.begin(), bytes.end());
    return run_in_time(deadline_, "MPI_Ibcast", context, std::move(staged), [&](auto& buffer, MPI_Request* request) {
      return MPI_Ibcast(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, root, comm(), request);
    });
  }

  MadeHere process_;
  std::shared_ptr<World> world_;
  Timeout deadline_;
  std::uint64_t group_;
  RankSubset subset_;
  QueuedCollectives calls_;
  std::uint64_t made_ = 0;
  bool failed_ = false;
  bool shrunk_ = false;
};

inline std::shared_ptr<VirtualConnector> Session::shrink(Timeout deadline) {
  const auto context = where("shrink");
  process_.check("this connector", context);
  if (!serves_threads())
    throw ConnectError("the ranks can continue without others only if MPI was initialized with MPI_THREAD_MULTIPLE",
                       context);
  if (std::exchange(shrunk_, true)) throw replaced_before(context);
  World& world = *world_;
  std::vector<char> ended(static_cast<std::size_t>(world.size()), true);  // by rank in the world; or not of these ranks
  for (const int rank : subset_.ranks) ended[static_cast<std::size_t>(rank)] = false;
  const auto has_ended = [&](int rank) { return ended[static_cast<std::size_t>(rank)] != 0; };
  const auto send = [&](const Agreement::Message& message) {
    std::vector<int> left = subset_.ranks;
    std::erase_if(left, has_ended);
    world.control().send(group_, left, message.words());
  };
  Agreement agreement(world.rank(), world.size(), world.next_channel(), deadline, Deadline::clock::now(), send);
  std::optional<RankSubset> decision;
  const auto is_decided = [&] {
    const auto now = Deadline::clock::now();
    // Before the messages: then all messages of a rank that has ended have been passed on.
    for (const int rank : subset_.ranks)
      if (world.has_ended(rank)) ended[static_cast<std::size_t>(rank)] = true;
    for (const auto& received : world.control().received(group_))
      agreement.receive(received.from, Agreement::Message::from(received.words));
    decision = agreement.step(now, has_ended);
    return decision.has_value();
  };
  (void)wait_until(no_timeout, is_decided, [] { return false; });
  if (!decision->has(world.rank())) throw left_behind(deadline, context);
  world.use_channel(decision->channel, context);
  std::vector<int> words = decision->ranks;
  words.push_back(decision->channel);
  const auto group = fnv1a(words);
  world.note_left(decision->ranks, group);
  const auto shorter = [](const Timeout& a, const Timeout& b) { return a.limit() < b.limit(); };
  return make_here<Session>(world_, std::move(*decision), std::min(deadline_, deadline, shorter), group);
}

/// Returns the session of the ranks of a new World.
template <class... Arguments>
[[nodiscard]] std::shared_ptr<Session> new_session(Arguments&&... world) {
  return make_here<Session>(make_here<World>(std::forward<Arguments>(world)...));
}

/// Returns the session of a single rank in a program without a launcher. Initializes MPI if necessary, once per
/// process, because MPI cannot be initialized again.
[[nodiscard]] inline std::shared_ptr<Session> alone() {
  if (is_up()) return new_session(MPI_COMM_SELF, default_deadline);
  static const std::shared_ptr<Session> own = [] {
    NoArguments none;
    return new_session(none.count, none.values, MpiConnectorOptions{});
  }();
  return own;
}

}  // namespace distx::inline DISTX_ABI::detail::mpi

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <climits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distx/connect/control/messages.hpp"
#include "distx/connect/failure_channel.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/mpi/detail/agreement.hpp"
#include "distx/mpi/detail/queue.hpp"
#include "distx/mpi/detail/world.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The ranks of one connector: those of an MPI communicator, or after `shrink` the surviving ones of them.
///
/// The former make control calls by MPI's collectives. The latter use no collective of MPI's, which would wait for the
/// ranks that are lost: they exchange messages over the communicator of the former.
class Session final : public FailureChannel, public RankNumbers {
 public:
  explicit Session(const std::shared_ptr<World>& world) : Session(world, world->all(), world->deadline(), 0) {}
  /// @param group  identifies the surviving ranks; 0 for all
  Session(std::shared_ptr<World> world, RankSubset subset, const Timeout& deadline, std::uint64_t group)
      : RankNumbers(numbers_of(*world, subset)),
        world_(std::move(world)),
        deadline_(deadline),
        group_(group),
        subset_(std::move(subset)) {
    if (is_left())
      calls_.emplace(
          QueueTransport({world_->control().comm(), subset_.ranks}, subset_.first_tag(), 3, RankSubset::user_tags),
          RankOf{rank_, size_, "mpi"}, deadline);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override = default;

  /// Returns the surviving ranks, which have entered this call; see `AnyConnector::shrink`.
  [[nodiscard]] static std::shared_ptr<Session> shrink(Session& whole, Timeout deadline);

  /// Returns the MPI communicator of these ranks, null after `shrink`.
  [[nodiscard]] MPI_Comm comm() const noexcept { return is_left() ? MPI_COMM_NULL : world_->comm(); }
  /// Returns whether these ranks are the surviving ones.
  [[nodiscard]] bool is_left() const noexcept { return subset_.channel != 0; }
  [[nodiscard]] const RankSubset& subset() const noexcept { return subset_; }
  [[nodiscard]] World& world() const noexcept { return *world_; }
  [[nodiscard]] Control& control() noexcept { return world_->control(); }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }

  void barrier(const char* operation) {
    if (is_left()) return make(operation, calls::Barrier<Host>{});
    in_step(operation, [&](const ErrorContext& context) { compare_sizes(0, context); });
  }
  void broadcast(std::span<std::byte> bytes, int root) {
    if (is_left()) return make("broadcast", erase(calls::Broadcast<std::byte>{bytes, root}));
    in_step("broadcast", [&](const ErrorContext& context) {
      compare_sizes(bytes.size(), context);
      if (bytes.empty()) return;
      // Staged, so that MPI does not write to the caller's buffer after a timeout.
      auto staged = std::make_unique<std::vector<std::byte>>(bytes.begin(), bytes.end());
      run_in_time(deadline_, "MPI_Ibcast", context, staged, [&](auto& buffer, MPI_Request* request) {
        return MPI_Ibcast(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, root, comm(), request);
      });
      std::ranges::copy(*staged, bytes.begin());
    });
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    if (is_left()) return make("all_gather", erase(calls::AllGather<std::byte>{send, receive}));
    in_step("all_gather", [&](const ErrorContext& context) {
      compare_sizes(send.size(), context);
      if (!send.empty()) std::ranges::copy(gathered(comm(), send, deadline_, context), receive.begin());
    });
  }
  /// Makes a call of the surviving ranks. @pre is_left()
  void make(const char* operation, const Call<Host>& call) {
    in_step(operation, [&](const ErrorContext& context) {
      const auto one_has_ended = [this] { return world_->first_ended(*subset_.ranks) >= 0; };
      calls_->run(call, made_++, context, [&](auto&& ready, auto&& overdue) {
        if (wait_for_ranks(deadline_, context, ready, one_has_ended, overdue))
          world_->raise_ended(*subset_.ranks, context);
      });
    });
  }
  /// @pre MPI_THREAD_MULTIPLE, as for `poll`
  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    if (process_.is_here()) control().publish(identity ^ group_, reason);
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (!process_.is_here()) return std::nullopt;
    return control().poll(identity ^ group_);
  }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "mpi", .rank = rank_, .size = size_};
  }

 private:
  [[nodiscard]] static RankNumbers numbers_of(const World& world, const RankSubset& subset) {
    const auto process_of = [&](int rank) -> const posix::Process& { return world.process(rank); };
    return detail::control::numbers_of(*subset.ranks, process_of)[static_cast<std::size_t>(subset.rank)];
  }

  /// Makes a call unless an earlier one has failed: then this rank is out of step.
  template <class F>
  void in_step(const char* operation, F&& make_call) {
    const auto context = where(operation);
    process_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;
    try {
      make_call(context);
    } catch (const MismatchError&) {
      failed_ = false;  // on every rank
      throw;
    } catch (...) {
      world_->note_broken();
      throw;
    }
    failed_ = false;
    control().forget_failures();
  }
  /// @throws MismatchError on every rank if the ranks pass different sizes, or too many bytes for a call of MPI
  void compare_sizes(std::size_t own, const ErrorContext& context) {
    const auto all = gathered(comm(), std::span<const std::size_t>(&own, 1), deadline_, context);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        throw MismatchError("rank 0 passes " + std::to_string(all[0]) + " bytes, rank " + std::to_string(rank) + " " +
                                std::to_string(all[rank]),
                            context);
    if (own > INT_MAX)
      throw MismatchError(
          "a control message has at most " + std::to_string(INT_MAX) + " bytes, this one " + std::to_string(own),
          context);
  }

  MadeHere process_;
  std::shared_ptr<World> world_;
  Timeout deadline_;
  std::uint64_t group_;
  RankSubset subset_;
  std::optional<QueuedCollectives> calls_{};  ///< of the surviving ranks
  std::uint64_t made_ = 0;
  bool failed_ = false;
  bool shrunk_ = false;
};

inline std::shared_ptr<Session> Session::shrink(Session& whole, Timeout deadline) {
  const auto context = whole.where("shrink");
  whole.process_.check("this connector", context);
  if (!serves_threads())
    throw ConnectError("the ranks can continue without others only if MPI was initialized with MPI_THREAD_MULTIPLE",
                       context);
  if (std::exchange(whole.shrunk_, true)) throw replaced_before(context);
  World& world = *whole.world_;
  std::vector<char> ended(static_cast<std::size_t>(world.size()), true);  // by rank in the world; or not of these ranks
  for (const int rank : *whole.subset_.ranks) ended[static_cast<std::size_t>(rank)] = false;
  const auto has_ended = [&](int rank) { return ended[static_cast<std::size_t>(rank)] != 0; };
  const auto send = [&](int to, const Agreement::Message& message) {
    if (!has_ended(to)) world.control().send(whole.group_, to, message.words());
  };
  Agreement agreement(world.rank(), world.size(), world.next_channel(), deadline, Deadline::clock::now(), send);
  std::optional<Survivors> decision;
  const auto is_decided = [&] {
    const auto now = Deadline::clock::now();
    // Before the messages: then all messages of a rank that has ended have been passed on.
    for (const int rank : *whole.subset_.ranks)
      if (world.has_ended(rank)) ended[static_cast<std::size_t>(rank)] = true;
    for (const auto& received : world.control().received(whole.group_))
      agreement.receive(received.from, Agreement::Message::from(received.words), now);
    decision = agreement.step(now, has_ended);
    return decision.has_value();
  };
  (void)wait_until(no_timeout, is_decided, [] { return false; });
  if (!decision->has(world.rank())) throw left_behind(deadline, context);
  RankSubset subset = world.subset_of(std::move(decision->ranks), decision->channel, context);
  std::vector<int> words = *subset.ranks;
  words.push_back(subset.channel);
  const auto group = fnv1a(words);
  world.note_left(subset.ranks, group);
  const auto shorter = [](const Timeout& a, const Timeout& b) { return a.limit() < b.limit(); };
  return make_here<Session>(whole.world_, std::move(subset), std::min(whole.deadline_, deadline, shorter), group);
}

/// Returns the session of a single rank in a program without a launcher. Initializes MPI if necessary, once per
/// process, because MPI cannot be initialized again.
[[nodiscard]] inline std::shared_ptr<Session> alone() {
  if (is_up()) return make_here<Session>(make_here<World>(MPI_COMM_SELF, default_deadline));
  static const std::shared_ptr<Session> own = [] {
    NoArguments none;
    return make_here<Session>(make_here<World>(none.count, none.values, BoostThreadLevel::multiple, default_deadline));
  }();
  return own;
}

}  // namespace distx::inline DISTX_ABI::detail::mpi

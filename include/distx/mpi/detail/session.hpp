// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distx/connect/failure_channel.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/mpi/detail/queue.hpp"
#include "distx/mpi/detail/world.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Notices that the process of one of some ranks has ended. Any thread may ask.
class Watch {
 public:
  /// @param ranks  their numbers in `world`, which must outlive this
  Watch(const World& world, std::vector<int> ranks) : world_(world), ranks_(std::move(ranks)) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (ranks_[rank] != world_.rank() && world_.shares_host(ranks_[rank], world_.rank())) near_.push_back(rank);
  }

  [[nodiscard]] bool has_lost() {
    const auto now = Deadline::clock::now().time_since_epoch();
    auto before = looked_.load();
    if (now - before > every * (1 + near_.size() / 16) && looked_.compare_exchange_strong(before, now))
      for (const std::size_t rank : near_)
        if (world_.has_ended(ranks_[rank])) lost_ = static_cast<int>(rank);
    return lost_ >= 0;
  }
  /// @pre has_lost()
  [[noreturn]] void raise(const ErrorContext& context) const {
    const int lost = lost_;
    throw RankFailure("rank " + std::to_string(lost) + " of " + std::to_string(ranks_.size()) + " (" +
                          world_.name_process(ranks_[static_cast<std::size_t>(lost)]) + ") exited unexpectedly",
                      lost, nullptr, context);
  }

  static constexpr std::chrono::milliseconds every{5};  // to look at a process costs more than to poll MPI

 private:
  const World& world_;
  std::vector<int> ranks_;
  std::vector<std::size_t> near_;  // those of other processes of this host
  std::atomic<Deadline::clock::duration> looked_{};
  std::atomic<int> lost_{-1};
};

/// The ranks of one connector: those of an MPI communicator, or after `shrink` those of them that are left.
///
/// The former make control calls by MPI's collectives. The latter use no collective of MPI's, which would wait for the
/// ranks that are lost: they exchange messages over the communicator of the former.
class Session final : public FailureChannel {
 public:
  explicit Session(std::shared_ptr<World> world)
      : world_(std::move(world)), deadline_(world_->deadline()), rank_(world_->rank()), size_(world_->size()) {}
  /// For `shrink`: some ranks of `world`.
  Session(std::shared_ptr<World> world, RankSubset subset, std::uint64_t group, Timeout deadline)
      : world_(std::move(world)),
        deadline_(deadline),
        rank_(subset.rank),
        size_(subset.size()),
        group_(group),
        subset_(std::move(subset)),
        calls_(std::make_unique<QueuedCollectives>(
            QueueTransport({world_->control().comm(), subset_->ranks},
                           QueueTags::of(subset_->first_tag(), 3, RankSubset::user_tags)),
            RankOf{rank_, size_, "mpi"}, deadline)) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override = default;

  /// Returns the surviving ranks, which have entered this call; see `AnyConnector::shrink`.
  [[nodiscard]] static std::shared_ptr<Session> shrink(Session& whole, Timeout deadline);

  /// Returns the MPI communicator of these ranks, null after `shrink`.
  [[nodiscard]] MPI_Comm comm() const noexcept { return subset_ ? MPI_COMM_NULL : world_->comm(); }
  /// Returns these ranks if they are the surviving ones.
  [[nodiscard]] const std::optional<RankSubset>& subset() const noexcept { return subset_; }
  [[nodiscard]] World& world() const noexcept { return *world_; }
  [[nodiscard]] Control& control() noexcept { return world_->control(); }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int local_rank() const noexcept { return count_on_host(rank_); }
  [[nodiscard]] int local_size() const noexcept { return count_on_host(size_); }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }

  /// Runs a nonblocking call on `comm()` to completion. `keep` owns its buffers, which MPI uses until then.
  template <class Buffers, class Begin>
  void run(const char* operation, const char* routine, std::unique_ptr<Buffers>& keep, Begin&& begin_call) {
    in_step(where(operation), [&](const ErrorContext& context) {
      run_in_time(deadline_, routine, context, keep, std::forward<Begin>(begin_call));
    });
  }
  /// Makes a call of the surviving ranks. Collective. @pre subset()
  void make(const char* operation, const Call<Host>& call) {
    in_step(where(operation), [&](const ErrorContext& context) {
      calls_->run(call, made_++, context, [&](auto&& ready, auto&& overdue) {
        if (wait_for_ranks(deadline_, context, ready, [this] { return watch_.has_lost(); }, overdue))
          watch_.raise(context);
      });
    });
  }
  void barrier(const char* operation) {
    if (subset_) return make(operation, calls::Barrier<Host>{});
    auto nothing = std::make_unique<char>();
    run(operation, "MPI_Ibarrier", nothing, [&](char&, MPI_Request* r) { return MPI_Ibarrier(comm(), r); });
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
  /// Returns the rank in the world.
  [[nodiscard]] int in_world(int rank) const noexcept {
    return subset_ ? (*subset_->ranks)[static_cast<std::size_t>(rank)] : rank;
  }
  [[nodiscard]] int count_on_host(int end) const noexcept {
    int count = 0;
    for (int rank = 0; rank < end; ++rank) count += world_->shares_host(in_world(rank), in_world(rank_)) ? 1 : 0;
    return count;
  }

  /// Makes a call unless an earlier one has failed: then this rank is out of step.
  template <class F>
  void in_step(const ErrorContext& context, F&& f) {
    process_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;
    try {
      f(context);
    } catch (const MismatchError&) {
      failed_ = false;  // on every rank
      throw;
    } catch (const TimeoutError&) {
      world_->note_broken();
      throw;
    } catch (...) {
      control().note_failure();
      throw;
    }
    failed_ = false;
    control().forget_failures();
  }
  [[nodiscard]] std::vector<int> all_in_world() const {
    std::vector<int> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(in_world(rank));
    return all;
  }

  MadeHere process_;
  std::shared_ptr<World> world_;
  Timeout deadline_;
  int rank_;
  int size_;
  std::uint64_t group_ = 0;  ///< identifies the surviving ranks; 0 for all
  std::optional<RankSubset> subset_{};
  std::unique_ptr<QueuedCollectives> calls_{};
  Watch watch_{*world_, all_in_world()};
  std::uint64_t made_ = 0;
  bool failed_ = false;
  bool shrunk_ = false;
};

inline std::shared_ptr<Session> Session::shrink(Session& whole, Timeout deadline) {
  const auto context = whole.where("shrink");
  whole.process_.check("this connector", context);
  if (boost::mpi::environment::thread_level() != BoostThreadLevel::multiple)
    throw ConnectError("the ranks can continue without others only if MPI was initialized with MPI_THREAD_MULTIPLE",
                       context);
  if (std::exchange(whole.shrunk_, true)) throw replaced_before(context);
  World& world = *whole.world_;
  const auto ranks = static_cast<std::size_t>(whole.size_);
  Agreement agreement(whole.rank_, whole.size_, world.next_channel(), deadline, Deadline::clock::now(),
                      [&](int to, const Agreement::Message& message) {
                        world.agreement_messages().send(whole.group_, whole.in_world(to), message);
                      });
  std::vector<int> rank_of(static_cast<std::size_t>(world.size()), -1);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    rank_of[static_cast<std::size_t>(whole.in_world(static_cast<int>(rank)))] = static_cast<int>(rank);
  std::vector<bool> ended(ranks);
  auto next_look = Deadline::clock::now();
  std::optional<Survivors> decision;
  const auto is_decided = [&] {
    const auto now = Deadline::clock::now();
    // Before the messages: then all messages of a rank that has ended have been passed on.
    if (now >= next_look) {
      for (std::size_t rank = 0; rank < ranks; ++rank)
        if (!ended[rank]) ended[rank] = world.has_ended(whole.in_world(static_cast<int>(rank)));
      next_look = now + Watch::every;
    }
    for (const auto& received : world.agreement_messages().take(whole.group_))
      if (const int from = rank_of[static_cast<std::size_t>(received.from)]; from >= 0)
        agreement.receive(from, received.message, now);
    decision = agreement.step(now, [&](int rank) { return ended[static_cast<std::size_t>(rank)]; });
    return decision.has_value();
  };
  (void)wait_until(no_timeout, is_decided, [] { return false; });
  if (!decision->has(whole.rank_)) throw left_behind(deadline, context);
  world.use_channel(decision->channel, context);
  for (int& rank : decision->ranks) rank = whole.in_world(rank);
  const RankSubset subset = world.subset_of(std::move(decision->ranks), decision->channel);
  std::vector<int> words = *subset.ranks;
  words.push_back(subset.channel);
  const auto group = fnv1a(words);
  world.note_left(subset.ranks, group);
  return make_here<Session>(
      whole.world_, subset, group,
      std::min(whole.deadline_, deadline, [](const Timeout& a, const Timeout& b) { return a.limit() < b.limit(); }));
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

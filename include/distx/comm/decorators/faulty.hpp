// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <csignal>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "distx/comm/decorators/decorated_pending.hpp"
#include "distx/comm/decorators/decorator.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI {

/// A fault that a Faulty communicator causes in calls of this rank: in those that match `call`, `rank`, `first` and
/// `last`, each with `probability`.
struct Fault {
  enum class Kind : std::uint8_t {
    delay,    ///< makes the call `duration` later
    corrupt,  ///< flips one bit of what this rank receives
    drop,     ///< does not make the call, which returns at once
    error,    ///< throws a BackendError instead of making the call
    kill,     ///< ends this process by SIGKILL instead of making the call
  };

  Kind kind = Kind::delay;
  double probability = 1;
  std::optional<calls::CollectiveKind> call{};  ///< any, if absent
  std::optional<int> rank{};                    ///< of the wrapped communicator, not of its groups; all, if absent
  /// The numbers of this rank's first and last such calls. Blocking and asynchronous calls are counted together, from
  /// 0, also those of `share`d handles and of groups.
  std::uint64_t first = 0;
  std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  std::chrono::nanoseconds duration{};  ///< of a delay
};

namespace detail {

/// The faults of one rank, and the number of its next call.
class FaultSchedule {
 public:
  /// The faults of one call.
  struct Decision {
    std::chrono::nanoseconds delay{};
    std::optional<Fault::Kind> replaced_by{};  ///< drop, error or kill: the first that matches
    std::optional<std::uint64_t> flipped{};    ///< selects the bit
    std::uint64_t number = 0;                  ///< of the call
  };

  FaultSchedule(std::vector<Fault> faults, std::uint64_t seed, int rank)
      : faults_(std::move(faults)),
        rank_(rank),
        random_(seed ^ (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15) {}

  /// Draws once for each fault, whether it matches or not, so that the draws of a call depend on its number alone.
  [[nodiscard]] Decision next(CollectiveKind kind) {
    const std::lock_guard lock(mutex_);
    Decision decision{.number = calls_++};
    const std::uint64_t bit = random_();
    for (const Fault& fault : faults_) {
      const double drawn = static_cast<double>(random_() >> 11) * 0x1p-53;
      if (drawn >= fault.probability || (fault.call && *fault.call != kind) || (fault.rank && *fault.rank != rank_) ||
          decision.number < fault.first || decision.number > fault.last)
        continue;
      ++caused_;
      if (fault.kind == Fault::Kind::delay)
        decision.delay += fault.duration;
      else if (fault.kind == Fault::Kind::corrupt)
        decision.flipped = bit;
      else if (!decision.replaced_by)
        decision.replaced_by = fault.kind;
    }
    return decision;
  }
  [[nodiscard]] std::uint64_t caused() const {
    const std::lock_guard lock(mutex_);
    return caused_;
  }

 private:
  std::vector<Fault> faults_;
  int rank_;
  mutable std::mutex mutex_;  // a group may be used by another thread than its parent
  std::mt19937_64 random_;    // its numbers are the same in every implementation
  std::uint64_t calls_ = 0;
  std::uint64_t caused_ = 0;
};

/// Returns the bytes that a call writes on this rank; none if it writes nothing.
template <MemorySpace Space>
[[nodiscard]] std::span<std::byte> received_bytes(const Call<Space>& call, int rank) noexcept {
  const CallTraits& traits = traits_of(call.kind);
  const bool at_root = traits.rooted && !traits.root_sends;
  if (at_root ? rank != call.root : call.kind == CollectiveKind::broadcast && rank == call.root) return {};
  return {call.receive.bytes(), call.receive.size_bytes()};
}

}  // namespace detail

/// A wrapper communicator that causes faults, to test how a program meets them: slow ranks, wrong data, missing calls,
/// errors and deaths.
///
/// The same faults, seed and calls give the same faults again. Handles made by `share` and groups made by `split` cause
/// the same faults. Each rank decides for itself; pass the same faults to all and set `Fault::rank`.
template <Communicator C>
  requires HostAccessible<typename C::space>
class Faulty : public detail::Decorator<C> {
  using base = detail::Decorator<C>;

  struct Corruption {
    std::span<std::byte> bytes{};
    std::optional<std::uint64_t> flipped{};

    [[nodiscard]] bool ready() const noexcept { return true; }
    void waiting() const noexcept {}
    void done() const noexcept {
      if (flipped && !bytes.empty()) bytes[*flipped / 8 % bytes.size()] ^= std::byte{1} << (*flipped % 8);
    }
    void failed() const noexcept {}
    void abandoned() const noexcept { done(); }
  };

 public:
  /// @throws InvalidArgument if a probability is not in [0, 1] or a duration is negative
  Faulty(C inner, std::vector<Fault> faults, std::uint64_t seed = 0) : base(std::move(inner)) {
    for (const Fault& fault : faults)
      if (detail::is_nan(fault.probability) || fault.probability < 0 || fault.probability > 1 ||
          fault.duration.count() < 0)
        throw InvalidArgument(
            "invalid fault: probability must be in [0, 1] and duration >= 0",
            {.operation = "Faulty", .backend = this->backend(), .rank = this->rank(), .size = this->size()});
    schedule_ = std::make_shared<detail::FaultSchedule>(std::move(faults), seed, this->rank());
  }

  template <class Call>
    requires calls::Executes<C, Call>
  void execute(const Call& call) {
    const auto fault = meet(call);
    if (fault.replaced_by == Fault::Kind::drop) return;
    this->inner().execute(call);
    corruption(call, fault).done();
  }
  template <class Call>
    requires calls::Starts<C, Call>
  [[nodiscard]] auto start(const Call& call, typename Call::space::stream after = {}) {
    using Pending = DecoratedPending<decltype(this->inner().start(call, after)), Corruption>;
    const auto fault = meet(call);
    if (fault.replaced_by == Fault::Kind::drop) return Pending();
    return Pending(this->inner().start(call, after), corruption(call, fault));
  }

  /// Corruption must reach what is received.
  void passes_operands() = delete;

  [[nodiscard]] Faulty share() const { return Faulty(this->inner().share(), this->groups(), schedule_); }
  [[nodiscard]] Faulty split(int color, int key, std::source_location location = std::source_location::current()) {
    return split(detail::SplitRule(color, key), location);
  }
  [[nodiscard]] Faulty split(const detail::SplitRule& rule, const std::source_location& location) {
    return Faulty(detail::split_by(this->inner(), rule, location), std::make_shared<detail::GroupCache>(), schedule_);
  }

  /// Returns the number of faults that this rank has caused.
  [[nodiscard]] std::uint64_t caused() const { return schedule_->caused(); }

 private:
  Faulty(C inner, std::shared_ptr<detail::GroupCache> groups, std::shared_ptr<detail::FaultSchedule> schedule)
      : base(std::move(inner), std::move(groups)), schedule_(std::move(schedule)) {}

  template <class Call>
  detail::FaultSchedule::Decision meet(const Call& call) {
    const auto fault = schedule_->next(call.kind);
    if (fault.delay.count() > 0) std::this_thread::sleep_for(fault.delay);
    if (fault.replaced_by == Fault::Kind::kill) std::raise(SIGKILL);
    if (fault.replaced_by == Fault::Kind::error)
      throw BackendError("a fault that Faulty was asked for, in call " + std::to_string(fault.number),
                         {name_of(call.kind), this->backend(), this->rank(), this->size(), call.location});
    return fault;
  }
  template <class Call>
  [[nodiscard]] Corruption corruption(const Call& call, const detail::FaultSchedule::Decision& fault) const {
    return {detail::received_bytes(erase(call), this->rank()), fault.flipped};
  }

  std::shared_ptr<detail::FaultSchedule> schedule_;
};

}  // namespace distx::inline DISTX_ABI

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/bucket/run.hpp"
#include "distx/parallel/detail/memory/pool.hpp"
#include "distx/parallel/detail/optimizer/shard_update.hpp"

namespace distx::detail {

/// The communicators of a training: all ranks, and those among which weights and gradients are shared out.
///
/// Gradients and weights travel over two of them, since their calls need not be in one order on all ranks.
template <MemorySpace Space>
struct Wires {
  AnyCommunicator<Space> all;
  AnyCommunicator<Space> reducing;
  AnyCommunicator<Space> gathering;
  std::optional<AnyCommunicator<Space>> across{};  ///< of Hybrid: those that keep the same part as this rank

  [[nodiscard]] int rank() const { return reducing.rank(); }
  [[nodiscard]] int parts() const { return reducing.size(); }
};

[[nodiscard]] inline AnyOp average_of(ElementType type) noexcept {
  switch (type) {
    case ElementType::f64:
      return AnyOp::make<double>(average);
    case ElementType::bf16:
      return AnyOp::make<bfloat16>(average);
    case ElementType::f16:
      return AnyOp::make<float16>(average);
    default:
      return AnyOp::make<float>(average);
  }
}

/// Parameters that are reduced, updated and gathered together: how they lie, and the messages in flight.
template <MemorySpace Space>
class Bucket {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;
  using Entries = std::vector<Entry<Space>>;

  explicit Bucket(std::vector<std::size_t> entries) : members(std::move(entries)), missing(members.size()) {}

  const std::vector<std::size_t> members;  ///< entries, in reverse order
  std::size_t missing;                     ///< of the members, those that are not ready yet
  Streams<Space> ready_on{};               ///< where its gradients of this micro-batch are written
  stream opened_on{};                      ///< where its gradients were given memory, where that is lent
  bool owned = false;
  bool trained = false;
  std::vector<Run<Space>> runs{};
  std::unique_ptr<ShardUpdate<Space>> update{};
  std::vector<Held<Space>> memory{};  ///< what the runs lie in
  Loan<Space> whole_gradient{};       ///< where that is not there all the time
  std::vector<Loan<Space>> travel{};  ///< of each run whose gradients travel as another type
  Loan<Space> whole_value{};

  /// Begins to reduce; all of it everywhere at stage 0, each rank's part there at the others. Where `adds`, the result
  /// is to be added to what earlier micro-batches have left.
  void start_reduce(Wires<Space>& wires, bool everywhere, bool adds, const Entries& entries, stream after,
                    const here& location) {
    for (auto& run : runs) {
      prepare(run, entries, after);
      with_reduction(run, everywhere, adds, location,
                     [&](const auto& call) { reducing_.push_back(wires.reducing.start(call, after)); });
    }
  }
  void execute_reduce(Wires<Space>& wires, bool everywhere, bool adds, const Entries& entries, stream after,
                      const here& location) {
    for (auto& run : runs) {
      prepare(run, entries, after);
      with_reduction(run, everywhere, adds, location,
                     [&](const auto& call) { make_in_order(wires.reducing, call, after); });
    }
  }
  /// Ends what `start_reduce` began, or goes on behind `execute_reduce`.
  void finish_reduce(Wires<Space>& wires, bool everywhere, bool adds, const Entries& entries, stream after,
                     const here& location) {
    for (auto& pending : reducing_) pending.wait(after);
    reducing_.clear();
    for (auto& run : runs) {
      const auto part = run.received(adds);
      if (wires.across)
        make_in_order(*wires.across, AllReduce<AnyElement, AnyOp, Space>{part, part, average_of(part.type()), location},
                      after);
      if (run.gradient_apart && adds)
        add_to(after, run.own_gradient, part);
      else if (everywhere && !run.gradient_apart)
        run.unpack_gradients(after, entries);
    }
  }
  /// Gives a backend without a thread of its own the opportunity to go on.
  void advance() {
    if constexpr (!HostAccessible<Space>) return;  // what is enqueued goes on
    for (auto& pending : reducing_)
      if (!pending.test()) return;
  }

  /// Whether what `start_reduce` began is done.
  [[nodiscard]] bool arrived() {
    return std::all_of(reducing_.begin(), reducing_.end(), [](auto& pending) { return pending.test(); });
  }

  /// Begins to give every rank all ranks' parts of the values.
  void start_gather(Wires<Space>& wires, const Entries& entries, stream after, const here& location) {
    for (auto& run : runs) {
      run.pack_values(after, entries);
      gathering_.push_back(wires.gathering.start(gather_call(run, location), after));
    }
  }
  void execute_gather(Wires<Space>& wires, const Entries& entries, stream after, const here& location) {
    for (auto& run : runs) {
      run.pack_values(after, entries);
      make_in_order(wires.gathering, gather_call(run, location), after);
    }
  }
  void finish_gather(const Entries& entries, stream after) {
    for (auto& pending : gathering_) pending.wait(after);
    gathering_.clear();
    for (auto& run : runs) run.unpack_values(after, entries);
  }
  /// Waits for what is in flight, or ends it while unwinding.
  void let_go() noexcept {
    reducing_.clear();
    gathering_.clear();
  }
  [[nodiscard]] bool gathers() const noexcept { return !gathering_.empty(); }

 private:
  static void prepare(const Run<Space>& run, const Entries& entries, stream after) {
    run.pack_gradients(after, entries);
    if (run.converts()) cast_to(after, run.travel, run.gradient);
  }
  template <class Make>
  static void with_reduction(const Run<Space>& run, bool everywhere, bool adds, const here& location, Make&& make) {
    const AnyOp op = average_of(run.wire);
    if (everywhere)
      make(AllReduce<AnyElement, AnyOp, Space>{run.sent(), run.received(adds), op, location});
    else
      make(ReduceScatter<AnyElement, AnyOp, Space>{run.sent(), run.received(adds), op, run.layout.cut.counts(),
                                                   location});
  }
  static AllGather<AnyElement, Space> gather_call(const Run<Space>& run, const here& location) {
    const auto whole = run.packed ? run.gradient : run.value;
    return {run.value_apart ? run.own_value : run.own(whole), whole, run.layout.cut.counts(), location};
  }

  // Last: they borrow what is above.
  std::vector<Pending<Space>> reducing_;
  std::vector<Pending<Space>> gathering_;
};

}  // namespace distx::detail

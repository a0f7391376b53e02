// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/memory/fixed_point.hpp"
#include "distx/parallel/detail/base/typed.hpp"
#include "distx/parallel/detail/engine/checks/consistency.hpp"
#include "distx/parallel/detail/engine/step/optimizer_shards.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Checks, in every n-th step, what a correct training never changes: each rank's gradients are finite before they
/// are reduced, and what several ranks hold is the same on all of them after the step.
template <MemorySpace Space>
class DivergenceGuard {
 public:
  using stream = typename Space::stream;

  /// @param every  0: no step is checked
  explicit DivergenceGuard(std::uint64_t every) : every_(every) {}

  /// Whether step `step`, counted from 0, is checked.
  [[nodiscard]] bool checks(std::int64_t step) const noexcept {
    return every_ != 0 && (static_cast<std::uint64_t>(step) + 1) % every_ == 0;
  }

  /// Checks a gradient of this rank that is complete and will be reduced next. Waits for it.
  /// @throws NonFiniteError on this rank
  void check_gradient(const ParameterEntry<Space>& entry, std::int64_t step, stream after,
                      const ErrorContext& context) const {
    double largest = 0;
    with_type(entry.gradient_now(), [&](auto values) { largest = largest_magnitude(after, values); });
    if (!is_finite(largest))
      throw NonFiniteError("the gradient of '" + entry.name + "' is infinite or not a number on rank " +
                               std::to_string(context.rank) + " in step " + std::to_string(step) +
                               ", before it is averaged; lower the learning rate, or check this rank's data",
                           context);
  }

  /// Compares the weights that all ranks hold; at stage 3 the shards that the groups of Hybrid hold, if there are any.
  /// Waits for them. Collective over the training's ranks.
  /// @throws MismatchError on every rank; those that hold what differs name the first parameter
  void check_weights(const ParameterStore<Space>& parameters, const OptimizerShards<Space>& shards,
                     TrainingCommunicators<Space>& comms, bool sharded, std::int64_t step, stream after,
                     const ErrorContext& context) {
    ConsistencyRecord record;
    const auto add = [&](std::size_t index, Span<const AnyElement, Space> values) {
      record.add("the hash of the weights of '" + parameters[index].name + "' after step " + std::to_string(step),
                 std::to_string(hash_of(values, after)));
    };
    if (sharded)
      shards.each_kept([&](const auto& fragment) { add(fragment.parameter, fragment.weight); });
    else
      for (std::size_t i = 0; i < parameters.size(); ++i)
        if (!parameters[i].buffer) add(i, parameters[i].value_now());
    constexpr const char* advice = "something other than the training has changed them on one rank";
    if (!sharded) return check_consistency(comms.all(), record, advice, context);
    if (comms.across() == nullptr) return;
    std::optional<AgreedMismatch> found;
    try {
      check_consistency(*comms.across(), record, advice, context);
    } catch (const AgreedMismatch& error) {
      found = error;
    }
    double differs = found ? 1 : 0;
    all_reduce_values(comms.all(), Span<double>(&differs, 1), max, context.location);
    if (found) throw *found;
    if (differs != 0)
      throw AgreedMismatch("the weights after step " + std::to_string(step) +
                               " differ between groups, in a shard of other ranks; " + advice,
                           context);
  }

 private:
  [[nodiscard]] std::uint64_t hash_of(Span<const AnyElement, Space> values, stream after) {
    const std::size_t bytes = values.size_bytes();
    words_.resize((bytes + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
    if (!words_.empty()) words_.back() = 0;  // the rest of it is not copied
    copy(after, Span<std::byte>(reinterpret_cast<std::byte*>(words_.data()), bytes),
         Span<const std::byte, Space>(values.bytes(), bytes));
    after.synchronize();
    return fnv1a(words_);
  }

  std::uint64_t every_;
  std::vector<std::uint64_t> words_{};  // of one parameter
};

}  // namespace distx::inline DISTX_ABI::detail

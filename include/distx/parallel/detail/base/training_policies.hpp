// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <string>

#include "distx/core/element.hpp"
#include "distx/parallel/hooks/gradient_hook.hpp"
#include "distx/parallel/hooks/weight_hook.hpp"

namespace distx::inline DISTX_ABI::detail {

/// How the gradients of a step's micro-batches are accumulated; `tree` is Reproducible's.
enum class Accumulation { none, local, sharded, tree };

/// The policies of a training as values.
struct TrainingPolicies {
  int stage = 0;
  Accumulation accumulation = Accumulation::none;
  /// The communication dtype that Precision names: 16-bit parameters then have float master weights.
  std::optional<ElementType> communication_type{};
  bool hybrid = false;
  bool replicate = false;
  /// The parameters are this rank's part of a larger model, so that it may lack some kinds of them.
  bool part_of_model = false;
  /// The leaves of the tree in whose order Reproducible adds gradients; 0 without it.
  int virtual_ranks = 0;
  /// How Compress averages gradients of float: in a 16-bit type, or by a hook; empty and null without it.
  std::optional<ElementType> compressed_type{};
  const HookCalls* hook = nullptr;
  const WeightHookCalls* weight_hook = nullptr;  ///< encodes the weights of float that stage 3 gathers, if not null

  [[nodiscard]] bool compresses() const noexcept {
    return compressed_type || hook != nullptr || weight_hook != nullptr;
  }
  [[nodiscard]] bool has_master(ElementType type) const noexcept { return communication_type && size_of(type) == 2; }
  /// Returns the element type in which gradients of `type` are reduced.
  [[nodiscard]] ElementType communication_type_of(ElementType type) const noexcept {
    return has_master(type) ? *communication_type : type;
  }
  /// Whether the gradients of each micro-batch begin as zeros.
  [[nodiscard]] bool begins_as_zeros() const noexcept {
    return accumulation == Accumulation::sharded || accumulation == Accumulation::tree;
  }
  /// Returns how many micro-batches each rank has in a step of Reproducible; 0 without it.
  [[nodiscard]] std::size_t leaves(int ranks) const noexcept { return static_cast<std::size_t>(virtual_ranks / ranks); }
  /// Whether this rank's shard of the reduced gradients has separate memory.
  [[nodiscard]] bool separate_gradient_shard(ElementType type) const noexcept {
    return stage >= 2 || accumulation == Accumulation::sharded || communication_type_of(type) != type;
  }
  [[nodiscard]] std::string to_string() const {
    constexpr const char* accumulations[] = {"", ", Accumulate<Local>", ", Accumulate<Sharded>", ", Reproducible<"};
    return "ZeRO<" + std::to_string(stage) + ">" + accumulations[static_cast<int>(accumulation)] +
           (virtual_ranks > 0 ? std::to_string(virtual_ranks) + ">" : "") +
           (communication_type ? ", Precision<" + std::string(name_of(*communication_type)) + ">" : "") +
           (compresses() ? ", Compress<" + compression() + ">" : "") + (hybrid ? ", Hybrid" : "") +
           (replicate ? ", Replicate" : "");
  }

 private:
  [[nodiscard]] std::string compression() const {
    return (hook != nullptr ? hook->name() : std::string(name_of(compressed_type.value_or(ElementType::f32)))) +
           (weight_hook != nullptr ? ", " + weight_hook->name() : "");
  }
};

}  // namespace distx::inline DISTX_ABI::detail

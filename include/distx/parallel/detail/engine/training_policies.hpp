// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <string>

#include "distx/core/element.hpp"

namespace distx::detail {

/// How the gradients of a step's micro-batches become one.
enum class Accumulation { none, local, sharded };

/// What the policies of a training say, once their types are forgotten.
struct TrainingPolicies {
  int stage = 0;
  Accumulation accumulation = Accumulation::none;
  std::optional<ElementType> wire{};  ///< of Precision: short parameters have float master weights, and travel as this
  bool hybrid = false;

  /// Whether parameters of that type have master weights.
  [[nodiscard]] bool has_master(ElementType type) const noexcept { return wire && size_of(type) == 2; }
  /// In which gradients of that type travel.
  [[nodiscard]] ElementType wire_of(ElementType type) const noexcept { return has_master(type) ? *wire : type; }
  /// Whether what is reduced is kept apart from what is written in the backward pass.
  [[nodiscard]] bool gradients_apart(ElementType type) const noexcept {
    return stage >= 2 || accumulation == Accumulation::sharded || wire_of(type) != type;
  }
  [[nodiscard]] std::string to_string() const {
    constexpr const char* accumulations[] = {"", ", Accumulate<Local>", ", Accumulate<Sharded>"};
    return "ZeRO<" + std::to_string(stage) + ">" + accumulations[static_cast<int>(accumulation)] +
           (wire ? ", Precision<" + std::string(name_of(*wire)) + ">" : "") + (hybrid ? ", Hybrid" : "");
  }
};

}  // namespace distx::detail

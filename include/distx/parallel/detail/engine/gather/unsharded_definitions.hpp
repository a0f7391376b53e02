// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/parallel/detail/engine/gather/weight_gatherer.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx::inline DISTX_ABI {

template <MemorySpace Space>
void Unsharded<Space>::hold(const std::shared_ptr<detail::WeightGatherer<Space>>& gatherer, std::size_t unit,
                            typename Space::stream after, const std::source_location& location, bool remember) {
  if (std::find(units_.begin(), units_.end(), unit) != units_.end()) return;
  units_.reserve(units_.size() + 1);
  gatherer->acquire(unit, after, location, remember);
  units_.push_back(unit);
  gatherer_ = gatherer;
}
template <MemorySpace Space>
void Unsharded<Space>::hold_only(const std::shared_ptr<detail::WeightGatherer<Space>>& gatherer,
                                 std::optional<std::size_t> unit, typename Space::stream after,
                                 const std::source_location& location) {
  if (unit && units_ == std::vector{*unit}) return;
  end();
  if (unit) hold(gatherer, *unit, after, location, false);
}
template <MemorySpace Space>
void Unsharded<Space>::end() noexcept {
  if (const auto gatherer = gatherer_.lock(); gatherer != nullptr)
    for (const auto unit : units_) gatherer->release(unit);
  units_.clear();
}

}  // namespace distx::inline DISTX_ABI

namespace distx::inline DISTX_ABI::detail {

template <MemorySpace Space>
Evaluation<Space>::Evaluation(const std::shared_ptr<int>& count,
                              const std::shared_ptr<WeightGatherer<Space>>& gatherer) noexcept
    : count_(count), gatherer_(gatherer) {
  if ((*count)++ == 0 && gatherer != nullptr) gatherer->begin_evaluation();
}
template <MemorySpace Space>
Evaluation<Space>::~Evaluation() {
  const auto count = count_.lock();
  if (count == nullptr || --*count > 0) return;
  if (const auto gatherer = gatherer_.lock(); gatherer != nullptr) gatherer->end_evaluation();
}

}  // namespace distx::inline DISTX_ABI::detail

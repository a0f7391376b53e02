// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The definitions of what training.hpp declares, in any memory space: see core/version.hpp.
#include "distx/parallel/detail/engine/training_engine_definitions.hpp"
#include "distx/parallel/exponential_average.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

template <MemorySpace Space>
[[nodiscard]] std::size_t average_bytes(const Fragment<Space>& fragment) noexcept {
  return round_up_to_lines(fragment.weight.size() * size_of(state_type(fragment.weight.type())));
}

}  // namespace detail

template <MemorySpace Space>
ExponentialAverage<Space>::ExponentialAverage(detail::TrainingCalls<Space>& calls, double decay, stream after,
                                              const here& location)
    : engine_(&static_cast<Engine&>(calls)),
      decay_(decay),
      after_(after),
      average_(std::make_shared<detail::AverageValues<Space>>()) {
  Engine& engine = *engine_;
  engine.check_argument(decay >= 0 && decay < 1, "ema", location, [&] {
    return "invalid decay " + detail::shortest(decay) + ": must be in [0, 1), such as 0.999";
  });
  average_->values.resize(engine.parameter_count());
  std::size_t bytes = 0;
  each([&](const auto& fragment, auto&) { bytes += detail::average_bytes(fragment); });
  average_->memory = detail::allocate_tracked_local<Space>(engine.account(), observe::MemoryKind::optimizer, bytes);
  std::byte* at = average_->memory->span().data();
  each([&](const auto& fragment, auto& mean) {
    const auto type = detail::state_type(fragment.weight.type());
    mean = {at, fragment.weight.size(), type, size_of(type)};
    at += detail::average_bytes(fragment);
  });
  engine.ordered(after, [&] {
    each([&](const auto& fragment, auto& mean) { detail::cast_to<Space>(after, mean, fragment.weight); });
  });
  engine.add_average(average_);
}

template <MemorySpace Space>
void ExponentialAverage<Space>::update(const std::optional<stream>& given) {
  const stream after = given.value_or(after_);
  engine_->ordered(after, [&] {
    each([&](const auto& fragment, auto& mean) {
      detail::with_type(mean, [&]<class A>(Span<A, Space> to) {
        detail::with_type(fragment.weight, [&]<class T>(Span<T, Space> weights) {
          mix(after, to, Span<const T, Space>(weights), decay_);
        });
      });
    });
  });
}

template <MemorySpace Space>
auto ExponentialAverage<Space>::swap_in(const std::optional<stream>& given, const here& location) -> scope {
  const stream after = given.value_or(after_);
  Fragments fragments;
  each([&](const auto& fragment, auto&) { fragments.push_back(fragment); });
  scope kept(*engine_, std::move(fragments), after);
  engine_->change_values(after, location, [&] {
    each([&](const auto& fragment, auto& mean) { detail::cast_to<Space>(after, fragment.weight, mean); });
  });
  return kept;
}

template <MemorySpace Space>
template <class F>
void ExponentialAverage<Space>::each(F&& f) {
  engine_->shards().each_updated(
      [&](const Fragment<Space>& fragment) { f(fragment, average_->values[fragment.parameter]); });
}

template <MemorySpace Space>
ExponentialAverage<Space>::scope::scope(Engine& engine, Fragments fragments, stream after)
    : engine_(&engine), fragments_(std::move(fragments)), token_(engine.swap_token()), after_(after) {
  std::size_t bytes = 0;
  for (const auto& fragment : fragments_) bytes += detail::round_up_to_lines(fragment.weight.size_bytes());
  kept_ = detail::allocate_tracked_local<Space>(engine.account(), observe::MemoryKind::in_flight, bytes);
  engine.ordered(after, [&] { copy_kept(true); });
}
template <MemorySpace Space>
ExponentialAverage<Space>::scope::~scope() {
  if (token_ == nullptr) return;
  try {
    engine_->change_values(after_, engine_->location(), [&] { copy_kept(false); });
  } catch (...) {  // the communicators are revoked: the next call throws
  }
}
template <MemorySpace Space>
void ExponentialAverage<Space>::scope::copy_kept(bool keep) {
  std::size_t begin = 0;
  for (const auto& fragment : fragments_) {
    const auto kept = kept_->span().subspan(begin, fragment.weight.size_bytes());
    const auto weight = detail::bytes_of(fragment.weight);
    copy(after_, keep ? kept : weight, keep ? weight : kept);
    begin += detail::round_up_to_lines(kept.size());
  }
}

}  // namespace distx::inline DISTX_ABI

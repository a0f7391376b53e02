// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <string>

#include "distx/core/detail/plain_name.hpp"
#include "distx/core/span.hpp"

namespace distx::inline DISTX_ABI {

namespace hooks {

/// A type that encodes weights of float where stage 3 gathers them, for `Compress<Gradients, Hook>`.
///
/// `encoded_size(n)` returns the floats that hold n encoded weights, `encode` writes them, and `decode` writes n
/// weights of an encoding, with the same bits on every rank. The functions are called for one rank's shard of a bucket,
/// and do not throw.
template <class H>
concept WeightHook =
    std::default_initializable<H> && requires(const H& hook, std::size_t size, Span<const float> from, Span<float> to) {
      { hook.encoded_size(size) } -> std::convertible_to<std::size_t>;
      { hook.encode(from, to) } -> std::same_as<void>;
      { hook.decode(from, to) } -> std::same_as<void>;
    };

}  // namespace hooks

namespace detail {

/// A WeightHook, type-erased.
struct WeightHookCalls {
  std::string (*name)();
  std::size_t (*encoded_size)(std::size_t);
  void (*encode)(Span<const float>, Span<float>);
  void (*decode)(Span<const float>, Span<float>);
};

template <hooks::WeightHook H>
inline constexpr WeightHookCalls weight_hook_calls{
    &type_name<H>, [](std::size_t size) -> std::size_t { return H{}.encoded_size(size); },
    [](Span<const float> weights, Span<float> encoded) { H{}.encode(weights, encoded); },
    [](Span<const float> encoded, Span<float> weights) { H{}.decode(encoded, weights); }};

}  // namespace detail

}  // namespace distx::inline DISTX_ABI

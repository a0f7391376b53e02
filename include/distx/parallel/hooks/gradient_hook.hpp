// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <source_location>
#include <span>
#include <string_view>
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/core/detail/plain_name.hpp"

namespace distx::inline DISTX_ABI {

/// Reductions of gradients in place of the built-in average, for the policy Compress.
namespace hooks {

/// One parameter's offset among the gradients of a bucket, in elements.
struct GradientRange {
  std::string_view name;
  std::size_t begin = 0;
  std::size_t size = 0;
  std::size_t rows = 0;  ///< of a row-major matrix; 0 for anything else
};

/// The gradients that are averaged together, in elements; the same on every rank.
struct BucketShape {
  std::size_t size = 0;                   ///< of all gradients, with zeros between those of parameters
  std::vector<GradientRange> parameters;  ///< ordered by `begin`
  std::span<const std::size_t> counts;    ///< of each rank's shard: these are adjacent, and partition the gradients
  bool whole = false;  ///< whether each rank needs all averages, as at stage 0, not those of its shard
};

/// The gradients of float that a hook averages.
struct GradientBucket {
  const BucketShape& shape;
  Span<float> gradients;  ///< this rank's; the hook may overwrite them
  Span<float> averages;   ///< of those from `begin` on, which this rank needs; either a part of `gradients` or separate
  std::size_t begin;
  Span<float> state;  ///< of this bucket and rank, kept from step to step
  AnyCommunicator<>& comm;
  std::source_location location;  ///< of the call that is named in errors
};

/// A type that averages the gradients of a bucket across ranks, for `Compress<Hook>`.
///
/// `reduce` writes the averages, or approximations of them; at stage 0 the same bits on every rank. It blocks, and
/// makes the same calls on `comm` on every rank; an exception revokes the communicator. It is called for buckets in one
/// order, and never with a single rank. `state_size` returns the floats of `state`, which are zeros at first and after
/// `load` and `recover`, and which the memory ledger counts as gradients. Checkpoints do not contain them.
template <class H>
concept GradientHook =
    std::default_initializable<H> && requires(const H& hook, const BucketShape& shape, const GradientBucket& bucket) {
      { hook.state_size(shape) } -> std::convertible_to<std::size_t>;
      { hook.reduce(bucket) } -> std::same_as<void>;
    };

}  // namespace hooks

namespace detail {

/// A GradientHook, type-erased.
struct HookCalls {
  std::string (*name)();
  std::size_t (*state_size)(const hooks::BucketShape&);
  void (*reduce)(const hooks::GradientBucket&);
};

template <hooks::GradientHook H>
inline constexpr HookCalls hook_calls{
    &type_name<H>, [](const hooks::BucketShape& shape) -> std::size_t { return H{}.state_size(shape); },
    [](const hooks::GradientBucket& bucket) { H{}.reduce(bucket); }};

}  // namespace detail

}  // namespace distx::inline DISTX_ABI

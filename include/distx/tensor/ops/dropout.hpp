// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/philox.hpp"
#include "distx/core/detail/shortest.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace ops {

/// Chooses the elements that `dropout` sets to zero.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;  ///< of this call among all of a training: for example step * layers + layer
};

}  // namespace ops

namespace detail {

/// out = x without the elements whose word, by their index in the whole tensor, is below rate * 2^32.
template <class T, std::size_t Rank>
void drop_elements(HostStream, const Box& box, const Extents<Rank>& whole, double rate, const ops::DropoutKey& key,
                   Span<const T> x, Span<T> out) {
  const auto bound = static_cast<std::uint64_t>(rate * 0x1p32);
  const auto factor = static_cast<accumulator_t<T>>(1 / (1 - rate));
  const auto low = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits); };
  const auto high = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits >> 32); };
  const std::size_t columns = Rank == 0 ? 1 : box.size[Rank - 1];
  for (std::size_t row = 0; row * columns < x.size(); ++row) {
    std::uint64_t index = 0, scale = Rank == 0 ? 0 : 1, rest = row * columns;
    for (std::size_t d = Rank; d-- > 0; scale *= whole[d], rest /= box.size[d])
      index += scale * (box.begin[d] + rest % box.size[d]);
    std::array<std::uint32_t, 4> words{};
    for (std::size_t i = 0; i < columns; ++i, ++index) {
      if (i == 0 || index % 4 == 0)
        words = philox({low(index / 4), high(index / 4), low(key.number), high(key.number)},
                       {low(key.seed), high(key.seed)});
      const std::size_t at = row * columns + i;
      out[at] = words[index % 4] < bound ? T{} : static_cast<T>(static_cast<accumulator_t<T>>(x[at]) * factor);
    }
  }
}

}  // namespace detail

namespace ops {

/// Returns `x` with each element set to zero with probability `rate`, and the others divided by 1 - rate. Local, on the
/// host's memory, for float, double, float16 and bfloat16.
///
/// Whether an element is dropped depends on `key` and its index in the whole tensor only, so it is the same in every
/// layout, on any number of ranks, and when a layer is recomputed. The function is linear: the gradient of `x` is
/// `dropout` of the result's gradient with the same rate and key. `x` may be Partial; then so is the result.
/// @param rate  in [0, 1)
/// @throws InvalidArgument for another rate
template <DistributedTensor X>
[[nodiscard]] auto dropout(const X& x, double rate, const DropoutKey& key,
                           std::source_location location = std::source_location::current()) {
  static_assert(FloatingElement<detail::value_of<X>>, "distx: dropout: the elements are not floating-point numbers");
  using Rule = rules::LinearElementwise;
  if (!(rate >= 0 && rate < 1))
    throw InvalidArgument("invalid rate " + detail::shortest(rate) + ": must be in [0, 1)",
                          detail::context_of(x.mesh(), "dropout", location));
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: dropout: the operand is Partial with an op other than Sum; redistribute it first");
  return detail::applied<Rule>(
      {"dropout", location},
      [&](auto in, auto out) {
        detail::drop_elements(typename X::space::stream{}, detail::box_of(x), x.extents(), rate, key, in.values(),
                              out.values());
      },
      x);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI

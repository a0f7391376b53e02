// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// out = x with its dimensions permuted, on the host's memory.
template <class T, std::size_t Rank>
void permute(HostStream, TensorRef<const T, Rank> x, TensorRef<T, Rank> out, const std::size_t (&from)[Rank]) {
  if (out.values().empty()) return;
  Extents<Rank> step{}, index{};
  for (std::size_t d = 0; d < Rank; ++d) step[d] = x.stride(from[d]);
  const T* source = x.data();
  T* to = out.data();
  T* const end = to + out.values().size();
  const std::size_t run = out.extent(Rank - 1), stride = step[Rank - 1];
  while (true) {
    for (std::size_t i = 0; i < run; ++i) to[i] = source[i * stride];
    to += run;
    if (to == end) return;
    for (std::size_t d = Rank - 1; d-- > 0;) {
      source += step[d];
      if (++index[d] < out.extent(d)) break;
      source -= step[d] * out.extent(d);
      index[d] = 0;
    }
  }
}

template <std::size_t... From>
constexpr bool is_permutation() {
  bool found[sizeof...(From)]{};
  return ((From < sizeof...(From) && !std::exchange(found[From], true)) && ...);
}

}  // namespace detail

namespace ops {

/// Returns the tensor with its dimensions permuted: dimension i of the result is dimension i of the template arguments,
/// so that `transpose<2, 0, 1>(x)` has dimension 2 of `x` first. Local, stream-ordered; copies the elements.
///
/// Every placement is supported, Partial with Sum and Max included; a Shard follows its dimension.
template <std::size_t First, std::size_t... Rest, DistributedTensor X>
[[nodiscard]] auto transpose(const X& x, std::source_location location = std::source_location::current()) {
  constexpr bool valid = 1 + sizeof...(Rest) == detail::rank_of<X> && detail::is_permutation<First, Rest...>();
  static_assert(valid, "distx: transpose: name each dimension of the tensor once");
  if constexpr (!valid) {
    return detail::never<detail::Placeholder<X>>();
  } else {
    using Rule = rules::Transpose<First, Rest...>;
    static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                  "distx: transpose: the operand is Partial with an op other than Sum or Max; redistribute it first");
    return detail::applied<Rule>(
        {"transpose", location},
        [](auto stream, auto in, auto out) {
          using detail::permute;
          permute(stream, in, out, {First, Rest...});
        },
        x);
  }
}
/// Returns the transpose of a matrix.
template <DistributedTensor X>
[[nodiscard]] auto transpose(const X& x, std::source_location location = std::source_location::current()) {
  static_assert(detail::rank_of<X> == 2,
                "distx: transpose: the tensor is not a matrix; name its dimensions, as in transpose<2, 0, 1>(x)");
  if constexpr (detail::rank_of<X> == 2)
    return transpose<1, 0>(x, location);
  else
    return detail::never<detail::Placeholder<X>>();
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI

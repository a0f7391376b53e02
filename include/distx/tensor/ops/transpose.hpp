// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace detail {

/// out(…) = x(…) with the dimensions in another order: an operation of the host's memory.
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

/// The dimensions in another order: `transpose<2, 0, 1>(x)` has x's dimension 2 first. Works on Partials too.
template <std::size_t First, std::size_t... Rest, class X>
  requires Applicable<Transpose<First, Rest...>, X>
[[nodiscard]] auto transpose(const X& x) {
  static_assert(1 + sizeof...(Rest) == rank_of<X> && detail::is_permutation<First, Rest...>(),
                "distx: transpose: name each dimension of the tensor once");
  return apply<Transpose<First, Rest...>>(
      x, [](auto in, auto out) { detail::permute(typename X::space::stream{}, in, out, {First, Rest...}); });
}
template <std::size_t First, std::size_t... Rest, class X>
  requires Operands<X>
auto transpose(const X&) -> detail::refused<X> {
  static_assert(is_ruled<detail::missing_case<Transpose<First, Rest...>, X>>,
                "distx: transpose: the operand is Partial with another op than Sum or Max: redistribute it first");
  return detail::never<detail::refused<X>>();
}
/// Of a matrix.
template <DistributedTensor X>
[[nodiscard]] auto transpose(const X& x) {
  static_assert(rank_of<X> == 2, "distx: transpose: only of a matrix is the order plain: name the dimensions");
  return transpose<1, 0>(x);
}

}  // namespace distx

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>

#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace detail {

/// A tensor as blocks of `count` slices of `size` elements each, where the slices are the indices of one dimension.
struct Slices {
  std::size_t blocks = 1, count = 1, size = 1;

  template <std::size_t Rank>
  Slices(const Extents<Rank>& extents, std::size_t dim) {
    for (std::size_t d = 0; d < Rank; ++d) (d < dim ? blocks : d == dim ? count : size) *= extents[d];
  }
};

/// out = f(out, slice) for the slices of a block, the first one first: an operation of the host's memory.
template <class T, class F>
void reduce_slices(HostStream stream, const Slices& slices, Span<const T> x, T first, Span<T> out, F&& f) {
  fill(stream, out, first);
  for (std::size_t block = 0; block < slices.blocks; ++block) {
    T* const to = out.data() + block * slices.size;
    for (std::size_t slice = 0; slice < slices.count; ++slice) {
      const T* const from = x.data() + (block * slices.count + slice) * slices.size;
      for (std::size_t i = 0; i < slices.size; ++i) to[i] = f(to[i], from[i]);
    }
  }
}
/// out = f(place in out, place in the reduced) for all elements.
template <class T, class F>
void spread_slices(HostStream, const Slices& slices, Span<T> out, F&& f) {
  for (std::size_t block = 0; block < slices.blocks; ++block)
    for (std::size_t slice = 0; slice < slices.count; ++slice)
      for (std::size_t i = 0; i < slices.size; ++i) {
        const std::size_t at = (block * slices.count + slice) * slices.size + i;
        out[at] = f(at, block * slices.size + i);
      }
}

template <std::size_t Dim, class X>
auto summed(const X& x, value_of<X> factor) {
  return apply<SumOver<Dim>>(x, [&](auto in, auto out) {
    using T = value_of<X>;
    const typename X::space::stream stream{};
    reduce_slices(stream, Slices(in.extents(), Dim), in.values(), T{}, out.values(), [](T a, T b) { return a + b; });
    if (factor != T{1}) scale(stream, out.values(), factor);
  });
}
template <std::size_t Dim, class X, class G>
auto spread(const X& x, const G& gradient, value_of<X> factor) {
  return apply<SumOverBackward<Dim>>(x, gradient, [&](auto, auto slopes, auto out) {
    spread_slices(typename X::space::stream{}, Slices(out.extents(), Dim), out.values(),
                  [&](std::size_t, std::size_t at) { return factor * slopes.values()[at]; });
  });
}

}  // namespace detail

/// @name Reductions over a dimension, which goes
/// Where an axis shards it, the result is Partial over that axis, with the reduction's op: redistribute it when needed.
/// @{
template <std::size_t Dim, class X>
  requires Applicable<SumOver<Dim>, X>
[[nodiscard]] auto sum_over(const X& x) {
  return detail::summed<Dim>(x, 1);
}
template <std::size_t Dim, class X>
  requires Applicable<SumOver<Dim>, X>
[[nodiscard]] auto mean_over(const X& x) {
  return detail::summed<Dim>(x, 1 / static_cast<value_of<X>>(x.extents()[Dim]));
}
template <std::size_t Dim, class X>
  requires Applicable<MaxOver<Dim>, X>
[[nodiscard]] auto max_over(const X& x) {
  return apply<MaxOver<Dim>>(x, [](auto in, auto out) {
    using T = value_of<X>;
    constexpr T least =
        std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
    detail::reduce_slices(typename X::space::stream{}, detail::Slices(in.extents(), Dim), in.values(), least,
                          out.values(), [](T a, T b) { return a < b ? b : a; });
  });
}
/// @}

/// @name Their gradients with respect to x, from those of the results
/// Of x only the layout matters to a sum. Where several elements are the greatest, each has the gradient.
/// @{
template <std::size_t Dim, class X, class G>
  requires Applicable<SumOverBackward<Dim>, X, G>
[[nodiscard]] auto sum_over_backward(const X& x, const G& gradient) {
  return detail::spread<Dim>(x, gradient, 1);
}
template <std::size_t Dim, class X, class G>
  requires Applicable<SumOverBackward<Dim>, X, G>
[[nodiscard]] auto mean_over_backward(const X& x, const G& gradient) {
  return detail::spread<Dim>(x, gradient, 1 / static_cast<value_of<X>>(x.extents()[Dim]));
}
template <std::size_t Dim, class X, class Y, class G>
  requires Applicable<MaxOverBackward<Dim>, X, Y, G>
[[nodiscard]] auto max_over_backward(const X& x, const Y& greatest, const G& gradient) {
  return apply<MaxOverBackward<Dim>>(x, greatest, gradient, [](auto in, auto most, auto slopes, auto out) {
    detail::spread_slices(typename X::space::stream{}, detail::Slices(out.extents(), Dim), out.values(),
                          [&](std::size_t i, std::size_t at) {
                            return in.values()[i] == most.values()[at] ? slopes.values()[at] : value_of<X>{};
                          });
  });
}
/// @}

namespace detail {

template <class Rule, class... Xs>
void refuse_reduction_backward() {
  if constexpr (!on_one_mesh<Xs...>)
    static_assert(on_one_mesh<Xs...>, "distx: the gradient of a reduction: the operands lie on meshes of two types");
  else
    static_assert(is_ruled<missing_case<Rule, Xs...>>,
                  "distx: the gradient of a reduction: the result or its gradient does not lie as the operand does "
                  "without the dimension that went, or the operand is Partial: redistribute it");
}

}  // namespace detail

template <std::size_t Dim, class X>
  requires Operands<X>
auto sum_over(const X&) -> detail::refused<X, rank_of<X> - 1> {
  static_assert(is_ruled<detail::missing_case<SumOver<Dim>, X>>,
                "distx: sum_over: the operand is Partial with another op than Sum: redistribute it first");
  return detail::never<detail::refused<X, rank_of<X> - 1>>();
}
template <std::size_t Dim, class X>
  requires Operands<X>
auto mean_over(const X&) -> detail::refused<X, rank_of<X> - 1> {
  static_assert(is_ruled<detail::missing_case<SumOver<Dim>, X>>,
                "distx: mean_over: the operand is Partial with another op than Sum: redistribute it first");
  return detail::never<detail::refused<X, rank_of<X> - 1>>();
}
template <std::size_t Dim, class X>
  requires Operands<X>
auto max_over(const X&) -> detail::refused<X, rank_of<X> - 1> {
  static_assert(is_ruled<detail::missing_case<MaxOver<Dim>, X>>,
                "distx: max_over: the operand is Partial, and the greatest of sums is not that of their terms: "
                "redistribute it first");
  return detail::never<detail::refused<X, rank_of<X> - 1>>();
}
template <std::size_t Dim, class X, class G>
  requires Operands<X, G>
auto sum_over_backward(const X&, const G&) -> detail::refused<X> {
  detail::refuse_reduction_backward<SumOverBackward<Dim>, X, G>();
  return detail::never<detail::refused<X>>();
}
template <std::size_t Dim, class X, class G>
  requires Operands<X, G>
auto mean_over_backward(const X&, const G&) -> detail::refused<X> {
  detail::refuse_reduction_backward<SumOverBackward<Dim>, X, G>();
  return detail::never<detail::refused<X>>();
}
template <std::size_t Dim, class X, class Y, class G>
  requires Operands<X, Y, G>
auto max_over_backward(const X&, const Y&, const G&) -> detail::refused<X> {
  detail::refuse_reduction_backward<MaxOverBackward<Dim>, X, Y, G>();
  return detail::never<detail::refused<X>>();
}

}  // namespace distx

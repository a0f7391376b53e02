// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>

#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace detail {

/// A tensor as blocks of `count` slices of `size` elements each; a slice is one index of the dimension.
struct Slices {
  std::size_t blocks = 1, count = 1, size = 1;

  template <std::size_t Rank>
  Slices(const Extents<Rank>& extents, std::size_t dim) {
    for (std::size_t d = 0; d < Rank; ++d) (d < dim ? blocks : d == dim ? count : size) *= extents[d];
  }
};

/// out = f(out, slice) for the slices of each block, in order, on the host's memory.
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
/// out = the sum of each block's slices, divided by `divisor` unless it is of integers, on the host's memory.
template <class T>
void sum_of_slices(HostStream, const Slices& slices, Span<const T> x, Span<T> out, double divisor) {
  std::vector<sum_t<T>> totals(slices.size);
  if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
    const auto [blocks, count, size] = slices;
    if (size == 1) return run_on_lanes<AddUpEachRow<T>>(lane_bytes(), x.data(), blocks, count, divisor, out.data());
    if (count <= terms_in_block)
      return run_on_lanes<AddUpEachBlock<T>>(lane_bytes(), x.data(), blocks, count, size, divisor, totals.data(),
                                             out.data());
  }
  for (std::size_t block = 0; block < slices.blocks; ++block) {
    add_up_rows(x.data() + block * slices.count * slices.size, slices.count, slices.size, totals.data());
    if constexpr (!std::integral<T>)
      for (double& total : totals) total /= divisor;
    round_to(totals, out.subspan(block * slices.size, slices.size));
  }
}
/// out = f(index in out, index in the reduced tensor) for all elements, on the host's memory.
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
auto summed(const Caller& caller, const X& x, double divisor) {
  return applied<rules::SumOver<Dim>>(
      caller,
      [&](auto in, auto out) {
        sum_of_slices(typename X::space::stream{}, Slices(in.extents(), Dim), in.values(), out.values(), divisor);
      },
      x);
}
template <std::size_t Dim, class X, class G>
auto spread(const Caller& caller, const X& x, const G& gradient, value_of<X> factor) {
  return applied<rules::SumOverBackward<Dim>>(
      caller,
      [&](auto, auto grads, auto out) {
        spread_slices(typename X::space::stream{}, Slices(out.extents(), Dim), out.values(),
                      [&](std::size_t, std::size_t at) { return factor * grads.values()[at]; });
      },
      x, gradient);
}

/// Whether the tensor has a dimension, diagnosed at compile time.
template <std::size_t Dim, class X>
constexpr bool has_dimension() {
  static_assert(Dim < rank_of<X>, "distx: the tensor does not have the dimension to reduce");
  return Dim < rank_of<X>;
}
template <class... Xs>
inline constexpr bool on_different_meshes = !on_one_mesh<Xs...>;

}  // namespace detail

namespace ops {

/// @name Reductions over a dimension
/// The result has the dimensions of `x` but `Dim`, and its element type. Local, on the host's memory; floating-point
/// terms are added in double, in the order of docs/numerics.md. Where an axis shards `Dim`, the result is Partial over
/// that axis, with the reduction's op: `redistribute` it when the reduction is needed. Other shards follow their
/// dimension.
/// @{

/// Returns the sum over dimension `Dim`. `x` may be Partial; then so is the result.
template <std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto sum_over(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::SumOver<Dim>;
  if constexpr (!detail::has_dimension<Dim, X>()) {
    return detail::never<detail::Placeholder<X, detail::rank_of<X> - 1>>();
  } else if constexpr (detail::Applicable<Rule, X>) {
    return detail::summed<Dim>({"sum_over", location}, x, 1);
  } else {
    static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                  "distx: sum_over: the operand is Partial with an op other than Sum; redistribute it first");
    return detail::placeholder<Rule, X>();
  }
}
/// Returns the mean over dimension `Dim`. `x` may be Partial; then so is the result. Elements are floating-point.
template <std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto mean_over(const X& x, std::source_location location = std::source_location::current()) {
  static_assert(!std::integral<detail::value_of<X>>, "distx: mean_over: the elements are integers; cast the operand");
  using Rule = rules::SumOver<Dim>;
  if constexpr (!detail::has_dimension<Dim, X>()) {
    return detail::never<detail::Placeholder<X, detail::rank_of<X> - 1>>();
  } else if constexpr (detail::Applicable<Rule, X>) {
    return detail::summed<Dim>({"mean_over", location}, x, static_cast<double>(x.extents()[Dim]));
  } else {
    static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                  "distx: mean_over: the operand is Partial with an op other than Sum; redistribute it first");
    return detail::placeholder<Rule, X>();
  }
}
/// Returns the maximum over dimension `Dim`, NaN if an element is. `x` may be Partial with Max; then so is the result.
template <std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto max_over(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::MaxOver<Dim>;
  if constexpr (!detail::has_dimension<Dim, X>()) {
    return detail::never<detail::Placeholder<X, detail::rank_of<X> - 1>>();
  } else if constexpr (detail::Applicable<Rule, X>) {
    return detail::applied<Rule>(
        {"max_over", location},
        [](auto in, auto out) {
          using T = detail::value_of<X>;
          using Limits = std::numeric_limits<accumulator_t<T>>;
          const T least(Limits::has_infinity ? -Limits::infinity() : Limits::lowest());
          detail::reduce_slices(typename X::space::stream{}, detail::Slices(in.extents(), Dim), in.values(), least,
                                out.values(), max);
        },
        x);
  } else {
    static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                  "distx: max_over: the operand is Partial, and the maximum of sums is not that of their terms; "
                  "redistribute it first");
    return detail::placeholder<Rule, X>();
  }
}
/// @}

/// @name Gradients of reductions over a dimension
/// Return the gradient of `x`, with its extents and layout, from the gradient of the result. `gradient` has the extents
/// and the layout of `x` without dimension `Dim`; where an axis shards `Dim` it is replicated; where `x` is replicated
/// it may be Partial, and then the result is. Local, on the host's memory.
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
/// @{

/// Returns the gradient of the operand of `sum_over`; of `x` only the extents and the layout matter.
template <std::size_t Dim, DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto sum_over_backward(const X& x, const G& gradient,
                                     std::source_location location = std::source_location::current()) {
  using Rule = rules::SumOverBackward<Dim>;
  if constexpr (detail::Applicable<Rule, X, G>) {
    return detail::spread<Dim>({"sum_over_backward", location}, x, gradient, 1);
  } else {
    using Missing = detail::first_missing_t<Rule, X, G>;
    constexpr bool meshes = detail::on_different_meshes<X, G>;
    static_assert(detail::supported_unless<Missing, meshes>,
                  "distx: sum_over_backward: the operands are on meshes of different types");
    static_assert(detail::supported_unless<Missing, !meshes>,
                  "distx: sum_over_backward: the gradient's layout is not the operand's without the reduced dimension, "
                  "or the operand is Partial; redistribute it");
    return detail::placeholder<Rule, X, G>();
  }
}
/// Returns the gradient of the operand of `mean_over`; of `x` only the extents and the layout matter.
template <std::size_t Dim, DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto mean_over_backward(const X& x, const G& gradient,
                                      std::source_location location = std::source_location::current()) {
  using Rule = rules::SumOverBackward<Dim>;
  if constexpr (detail::Applicable<Rule, X, G>) {
    return detail::spread<Dim>({"mean_over_backward", location}, x, gradient,
                               1 / static_cast<detail::value_of<X>>(x.extents()[Dim]));
  } else {
    using Missing = detail::first_missing_t<Rule, X, G>;
    constexpr bool meshes = detail::on_different_meshes<X, G>;
    static_assert(detail::supported_unless<Missing, meshes>,
                  "distx: mean_over_backward: the operands are on meshes of different types");
    static_assert(detail::supported_unless<Missing, !meshes>,
                  "distx: mean_over_backward: the gradient's layout is not the operand's without the reduced "
                  "dimension, or the operand is Partial; redistribute it");
    return detail::placeholder<Rule, X, G>();
  }
}
/// Returns the gradient of the operand of `max_over`, from `x`, the result `maximum` and its gradient. If several
/// elements equal the maximum, or it is NaN and so are they, each receives the gradient.
template <std::size_t Dim, DistributedTensor X, DistributedTensor Y, DistributedTensor G>
[[nodiscard]] auto max_over_backward(const X& x, const Y& maximum, const G& gradient,
                                     std::source_location location = std::source_location::current()) {
  using Rule = rules::MaxOverBackward<Dim>;
  if constexpr (detail::Applicable<Rule, X, Y, G>) {
    return detail::applied<Rule>(
        {"max_over_backward", location},
        [](auto in, auto maxima, auto grads, auto out) {
          detail::spread_slices(typename X::space::stream{}, detail::Slices(out.extents(), Dim), out.values(),
                                [&](std::size_t i, std::size_t at) {
                                  const auto value = in.values()[i], most = maxima.values()[at];
                                  const bool both_nan = value != value && most != most;
                                  return value == most || both_nan ? grads.values()[at] : detail::value_of<X>{};
                                });
        },
        x, maximum, gradient);
  } else {
    using Missing = detail::first_missing_t<Rule, X, Y, G>;
    constexpr bool meshes = detail::on_different_meshes<X, Y, G>;
    static_assert(detail::supported_unless<Missing, meshes>,
                  "distx: max_over_backward: the operands are on meshes of different types");
    static_assert(detail::supported_unless<Missing, !meshes>,
                  "distx: max_over_backward: the layout of the maximum or its gradient is not the operand's without "
                  "the reduced dimension, or the operand is Partial; redistribute it");
    return detail::placeholder<Rule, X, Y, G>();
  }
}
/// @}

}  // namespace ops

}  // namespace distx

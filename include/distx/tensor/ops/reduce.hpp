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

/// Returns the larger value of each lane, as distx::max does.
template <class T, std::size_t Bytes>
Lanes<T, Bytes> larger(const Lanes<T, Bytes>& a, const Lanes<T, Bytes>& b) {
  typedef bits_of_t<T> Bits [[gnu::vector_size(Bytes)]];
  using V = Lanes<T, Bytes>;
  const V one = select(a > b, a, b), other = select(b > a, b, a);
  const Bits both = __builtin_bit_cast(Bits, one.to_native()) & __builtin_bit_cast(Bits, other.to_native());
  return select(one == other, V::from_native(__builtin_bit_cast(typename V::native, both)),
                V(std::numeric_limits<T>::quiet_NaN()));
}
/// Sets each number of out to the maximum of its slices; there is one at least.
struct MaxOfSlices {
  template <std::size_t Bytes, class T>
  static void run(const Slices& slices, const T* x, T* out) {
    using V = Lanes<T, Bytes>;
    const auto [blocks, count, size] = slices;
    if (size >= V::size) {
      // Slices that are compared while a maximum is in a register: all, if they fit in a cache.
      const std::size_t at_once = count * size * sizeof(T) <= (1U << 15) ? count : 8;
      for (std::size_t block = 0; block < blocks; ++block, x += count * size, out += size) {
        for (std::size_t begin = 0; begin < count; begin += at_once) {
          const std::size_t end = std::min(count, begin + at_once);
          for (std::size_t i = 0;; i = std::min(i + V::size, size - V::size)) {  // the last two may overlap
            V most = V::load(begin == 0 ? x + i : out + i);
            for (std::size_t k = begin; k < end; ++k) most = larger(most, V::load(x + k * size + i));
            most.store(out + i);
            if (i + V::size == size) break;
          }
        }
      }
    } else {
      // A lane for each result.
      std::size_t i = 0, column = 0;
      const T* next = x;
      for (; i + V::size <= blocks * size; i += V::size) {
        const T* from[V::size];
        for (std::size_t k = 0; k < V::size; ++k) {
          from[k] = next;
          if (++column == size) column = 0, next += (count - 1) * size;
          ++next;
        }
        V most = gathered<V>(from, 0);
        for (std::size_t k = 0; k < count; ++k) most = larger(most, gathered<V>(from, k * size));
        most.store(out + i);
      }
      for (; i < blocks * size; ++i) {
        const T* const from = x + i / size * count * size + i % size;
        out[i] = *from;
        for (std::size_t k = 0; k < count; ++k) out[i] = max(out[i], from[k * size]);
      }
    }
  }

 private:
  template <class V, class T>
  static V gathered(const T* const* from, std::size_t offset) {
    return [&]<std::size_t... K>(std::index_sequence<K...>) {
      const T values[] = {from[K][offset]...};
      return V::load(values);
    }(std::make_index_sequence<V::size>());
  }
};
/// out = the maximum of each block's slices, on the host's memory.
template <class T>
void max_of_slices(HostStream stream, const Slices& slices, Span<const T> x, Span<T> out) {
  const auto [blocks, count, size] = slices;
  if constexpr (std::same_as<T, float> || std::same_as<T, double>)
    if (count > 0) {
      // Vectors that a slice fills, or that all results do.
      std::size_t bytes = lane_bytes();
      const std::size_t filled = sizeof(T) * (sizeof(T) * size >= common_lane_bytes ? size : blocks * size);
      while (bytes > std::max(filled, common_lane_bytes)) bytes /= 2;
      return run_on_lanes<MaxOfSlices>(bytes, slices, x.data(), out.data());
    }
  using Limits = std::numeric_limits<accumulator_t<T>>;
  fill(stream, out, T(Limits::has_infinity ? -Limits::infinity() : Limits::lowest()));
  for (std::size_t block = 0; block < blocks; ++block)
    for (std::size_t slice = 0; slice < count; ++slice)
      for (std::size_t i = 0; i < size; ++i) {
        T& most = out[block * size + i];
        most = max(most, x[(block * count + slice) * size + i]);
      }
}
/// out = the sum of each block's slices, divided by `divisor` unless it is of integers, on the host's memory.
template <class T>
void sum_of_slices(HostStream, const Slices& slices, Span<const T> x, Span<T> out, double divisor) {
  std::vector<sum_t<T>> totals;
  const auto [blocks, count, size] = slices;
  if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
    if (size == 1) return run_on_lanes<AddUpEachRow<T>>(lane_bytes(), x.data(), blocks, count, divisor, out.data());
    if (count > AddRows<T>::rows_at_once) totals.resize(size);
    if (count <= terms_in_block)
      return run_on_lanes<AddUpEachBlock<T>>(lane_bytes(), x.data(), blocks, count, size, divisor, totals.data(),
                                             out.data());
  }
  totals.resize(size);
  for (std::size_t block = 0; block < blocks; ++block) {
    add_up_rows(x.data() + block * count * size, count, size, totals.data());
    if constexpr (!std::integral<T>)
      for (double& total : totals) total /= divisor;
    round_to(totals, out.subspan(block * size, size));
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
          detail::max_of_slices(typename X::space::stream{}, detail::Slices(in.extents(), Dim), in.values(),
                                out.values());
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
                                  const auto slope = grads.values()[at];
                                  const detail::value_of<X> none{};
                                  return most == most ? (value == most ? slope : none) : value != value ? slope : none;
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

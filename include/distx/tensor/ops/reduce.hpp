// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <limits>
#include <utility>

#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// A tensor as blocks of `count` slices of `size` elements each; a slice is one index of the dimension.
struct Slices {
  std::size_t blocks = 1, count = 1, size = 1;

  template <std::size_t Rank>
  Slices(const Extents<Rank>& extents, std::size_t dim) {
    for (std::size_t d = 0; d < Rank; ++d) (d < dim ? blocks : d == dim ? count : size) *= extents[d];
  }
};

DISTX_KERNELS_BEGIN
/// The maximum of the numbers that were added to each lane, as by distx::max.
template <class T, std::size_t Bytes>
class LaneMaxima {
 public:
  using V = Lanes<T, Bytes>;

  LaneMaxima() = default;  // of no value
  explicit LaneMaxima(const V& least) : most_(least), signs_(~Bits{}), nans_{} {}
  void operator+=(const V& x) {
    const Bits bits = __builtin_bit_cast(Bits, x.to_native());
    most_ = lanes::max(most_, x);
    signs_ &= bits;
    nans_ |= infinity_bits<T> - (bits & ~sign_bit<T>);
  }
  [[nodiscard]] V value() const {
    const Bits nan = -(nans_ >> (8 * sizeof(T) - 1)), quiet_nan = Bits{} + quiet_nan_bits;
    // If the maximum is 0, all numbers have a sign, or one of them is +0.
    const Bits most = (__builtin_bit_cast(Bits, most_.to_native()) & ~sign_bit<T>) | (signs_ & sign_bit<T>);
    return V::from_native(__builtin_bit_cast(typename V::native, (most & ~nan) | (quiet_nan & nan)));
  }

 private:
  typedef bits_of_t<T> Bits [[gnu::vector_size(Bytes)]];
  static constexpr auto quiet_nan_bits = std::bit_cast<bits_of_t<T>>(std::numeric_limits<T>::quiet_NaN());

  V most_;
  Bits signs_, nans_;  // the sign of a NaN's lane is set
};
/// Sets each number of out to the maximum of its slices.
struct MaxOfSlices {
  template <std::size_t Bytes, class T>
  static void run(const Slices& slices, const T* x, T* out) {
    using V = Lanes<T, Bytes>;
    const auto [blocks, count, size] = slices;
    const LaneMaxima<T, Bytes> none(V(-std::numeric_limits<T>::infinity()));
    T* const end = out + blocks * size;
    if (size == 1 && count >= 4 * V::size) return of_long_rows<V>(x, blocks, count, none, out);
    if (size == 1) return of_rows<V>(x, blocks, count, none, out);
    reduce_each_block<V>(x, blocks, count, size, none,
                         [=](std::size_t at, const auto& most) { narrow_before(end, out + at, most.value()); });
  }

 private:
  template <class V, class T, class Maxima>
  static void of_long_rows(const T* x, std::size_t rows, std::size_t columns, const Maxima& none, T* out) {
    for (std::size_t row = 0; row < rows; ++row, x += columns) {
      Maxima most = none;
      for (std::size_t i = 0; i + V::size < columns; i += V::size) most += V::load(x + i);
      most += V::load(x + columns - V::size);  // some numbers again
      T lanes[V::size];
      most.value().store(lanes);
      of_rows<V>(lanes, 1, V::size, none, out + row);
    }
  }
  /// Computes a row in each lane.
  template <class V, class T, class Maxima>
  static void of_rows(const T* x, std::size_t rows, std::size_t columns, const Maxima& none, T* out) {
    for (std::size_t row = 0; row < rows; row += V::size) {
      const T* from[V::size];
      for (std::size_t k = 0; k < V::size; ++k) from[k] = x + std::min(row + k, rows - 1) * columns;
      Maxima most = none;
      for (std::size_t i = 0; i < columns; ++i)
        [&]<std::size_t... K>(std::index_sequence<K...>) {
          const T numbers[] = {from[K][i]...};
          most += V::load(numbers);
        }(std::make_index_sequence<V::size>());
      narrow_before(out + rows, out + row, most.value());
    }
  }
};
struct SpreadToMaxima {
  template <std::size_t Bytes, class T>
  static void run(Slices slices, const T* x, const T* maxima, const T* slopes, T* out) {
    using V = Lanes<T, Bytes>;
    if (slices.count == 1) slices.size *= std::exchange(slices.blocks, 1);
    const auto [blocks, count, size] = slices;
    const std::size_t results = blocks * size, numbers = results * count;
    if (size == 1) return to_rows<V>(blocks, count, x, maxima, slopes, out);
    for (std::size_t at = 0; at < numbers; at += size) {
      const std::size_t block = at / (count * size) * size;
      for (std::size_t i = 0; i < size; i += V::size)  // the numbers after a slice are set later
        narrow_before(
            out + numbers, out + at + i,
            chosen(wide_before<V>(x + numbers, x + at + i), wide_before<V>(maxima + results, maxima + block + i),
                   wide_before<V>(slopes + results, slopes + block + i)));
    }
  }

 private:
  template <class V, class T>
  static void to_rows(std::size_t rows, std::size_t columns, const T* x, const T* maxima, const T* slopes, T* out) {
    const T *const end = x + rows * columns, *const whole = end - std::min(rows * columns, columns + V::size);
    T* const out_end = out + rows * columns;
    for (std::size_t row = 0; row < rows; ++row, x += columns, out += columns) {
      const V maximum(maxima[row]), slope(slopes[row]);
      if (x < whole)  // the numbers after a row are set later
        for (std::size_t i = 0; i < columns; i += V::size) chosen(V::load(x + i), maximum, slope).store(out + i);
      else
        for (std::size_t i = 0; i < columns; i += V::size)
          narrow_before(out_end, out + i, chosen(wide_before<V>(end, x + i), maximum, slope));
    }
  }
  /// Returns the slope where the value is the maximum or NaN: if there is a NaN, it is the maximum. Without
  /// comparisons, which g++ takes apart for wide registers.
  template <class T, std::size_t Bytes>
  static Lanes<T, Bytes> chosen(const Lanes<T, Bytes>& x, const Lanes<T, Bytes>& maximum,
                                const Lanes<T, Bytes>& slope) {
    typedef bits_of_t<T> Bits [[gnu::vector_size(Bytes)]];
    const Bits value = __builtin_bit_cast(Bits, x.to_native()), most = __builtin_bit_cast(Bits, maximum.to_native());
    const Bits different = value ^ most, without_sign = (value | most) << 1;  // one is 0 if the numbers are equal
    const Bits nan = infinity_bits<T> - (value & ~sign_bit<T>);
    const Bits unequal = (different | -different) & (without_sign | -without_sign) & ~nan;  // in the bit of the sign
    const Bits mask = (unequal >> (8 * sizeof(T) - 1)) - 1;
    return Lanes<T, Bytes>::from_native(
        __builtin_bit_cast(typename Lanes<T, Bytes>::native, __builtin_bit_cast(Bits, slope.to_native()) & mask));
  }
};
DISTX_KERNELS_END

/// The width of vectors for rows of this many bytes: not much wider than a row.
inline std::size_t lane_bytes_for(std::size_t row_bytes) {
  std::size_t bytes = lane_bytes();
  while (bytes > common_lane_bytes && bytes / 2 >= row_bytes) bytes /= 2;
  return bytes;
}
/// out = the maximum of each block's slices, on the host's memory.
template <class T>
void max_of_slices(HostStream stream, const Slices& slices, Span<const T> x, Span<T> out) {
  const auto [blocks, count, size] = slices;
  if constexpr (std::same_as<T, float> || std::same_as<T, double>)
    if (count > 0 && size > 0)
      return run_on_lanes<MaxOfSlices>(lane_bytes_for((size > 1 ? size : std::max(blocks, count / 4)) * sizeof(T)),
                                       slices, x.data(), out.data());
  using Limits = std::numeric_limits<accumulator_t<T>>;
  fill(stream, out, T(Limits::has_infinity ? -Limits::infinity() : Limits::lowest()));
  for (std::size_t block = 0; block < blocks; ++block)
    for (std::size_t slice = 0; slice < count; ++slice)
      for (std::size_t i = 0; i < size; ++i) {
        T& most = out[block * size + i];
        most = max(most, x[(block * count + slice) * size + i]);
      }
}

template <std::size_t Dim, class X>
auto summed(const Caller& caller, const X& x, double divisor) {
  using Rule = rules::SumOver<Dim>;
  static_assert(is_supported<missing_case<Rule, X>>,
                "distx: sum_over, mean_over: the operand is Partial with an op other than Sum; redistribute it first");
  return applied<Rule>(
      caller,
      [&](auto in, auto out) {
        const Slices slices(in.extents(), Dim);
        sum_of_blocks(typename X::space::stream{}, in.values(), slices.blocks, slices.count, slices.size, divisor,
                      out.values());
      },
      x);
}
template <std::size_t Dim, class X, class G>
auto spread(const Caller& caller, const X& x, const G& gradient, value_of<X> factor) {
  using Rule = rules::SumOverBackward<Dim>;
  static_assert(is_supported<missing_case<Rule, X, G>>,
                "distx: sum_over_backward, mean_over_backward: the gradient's layout is not the operand's without the "
                "reduced dimension, or the operand is Partial; redistribute it");
  return applied<Rule>(
      caller,
      [&](auto, auto grads, auto out) {
        const auto [blocks, count, size] = Slices(out.extents(), Dim);
        const auto *from = grads.data(), *const end = from + blocks * size;
        auto* to = out.data();
        if (size == 1) {
          constexpr std::size_t at_once = 4;
          const auto* const last = to + blocks * count - std::min(blocks * count, count + at_once);
          for (; to < last; ++from, to += count)  // the numbers after a row are set later
            for (std::size_t i = 0; i < count; i += at_once) std::fill_n(to + i, at_once, factor * *from);
          for (; from != end; ++from) to = std::fill_n(to, count, factor * *from);
        }
        for (; from != end; from += size)
          for (std::size_t slice = 0; slice < count; ++slice)
            to = std::transform(from, from + size, to, [=](auto slope) { return factor * slope; });
      },
      x, gradient);
}

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
  return detail::summed<Dim>({"sum_over", location}, x, 1);
}
/// Returns the mean over dimension `Dim`. `x` may be Partial; then so is the result. Elements are floating-point.
template <std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto mean_over(const X& x, std::source_location location = std::source_location::current()) {
  static_assert(!std::integral<detail::value_of<X>>, "distx: mean_over: the elements are integers; cast the operand");
  return detail::summed<Dim>({"mean_over", location}, x, static_cast<double>(x.extents()[Dim]));
}
/// Returns the maximum over dimension `Dim`, NaN if an element is. `x` may be Partial with Max; then so is the result.
template <std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto max_over(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::MaxOver<Dim>;
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: max_over: the operand is Partial, and the maximum of sums is not that of their terms; "
                "redistribute it first");
  return detail::applied<Rule>(
      {"max_over", location},
      [](auto in, auto out) {
        detail::max_of_slices(typename X::space::stream{}, detail::Slices(in.extents(), Dim), in.values(),
                              out.values());
      },
      x);
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
  return detail::spread<Dim>({"sum_over_backward", location}, x, gradient, 1);
}
/// Returns the gradient of the operand of `mean_over`; of `x` only the extents and the layout matter.
template <std::size_t Dim, DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto mean_over_backward(const X& x, const G& gradient,
                                      std::source_location location = std::source_location::current()) {
  return detail::spread<Dim>({"mean_over_backward", location}, x, gradient,
                             1 / static_cast<detail::value_of<X>>(x.extents()[Dim]));
}
/// Returns the gradient of the operand of `max_over`, from `x`, the result `maximum` and its gradient. If several
/// elements equal the maximum, or it is NaN and so are they, each receives the gradient.
template <std::size_t Dim, DistributedTensor X, DistributedTensor Y, DistributedTensor G>
[[nodiscard]] auto max_over_backward(const X& x, const Y& maximum, const G& gradient,
                                     std::source_location location = std::source_location::current()) {
  using Rule = rules::MaxOverBackward<Dim>;
  static_assert(detail::is_supported<detail::missing_case<Rule, X, Y, G>>,
                "distx: max_over_backward: the layout of the maximum or its gradient is not the operand's without "
                "the reduced dimension, or the operand is Partial; redistribute it");
  return detail::applied<Rule>(
      {"max_over_backward", location},
      [](auto in, auto maxima, auto grads, auto out) {
        using T = detail::value_of<X>;
        const detail::Slices slices(out.extents(), Dim);
        const T *const values = in.data(), *const most = maxima.data(), *const slopes = grads.data();
        if constexpr (std::same_as<T, float> || std::same_as<T, double>)
          detail::run_on_lanes<detail::SpreadToMaxima>(
              detail::lane_bytes_for((slices.size > 1 ? slices.size : slices.count) * sizeof(T)), slices, values, most,
              slopes, out.data());
        else
          for (std::size_t i = 0; i < out.values().size(); ++i) {
            const std::size_t at = i / (slices.count * slices.size) * slices.size + i % slices.size;
            out.data()[i] = values[i] == most[at] || values[i] != values[i] ? slopes[at] : T{};
          }
      },
      x, maximum, gradient);
}
/// @}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI

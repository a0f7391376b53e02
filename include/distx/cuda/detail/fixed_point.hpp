// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/cuda/detail/operations.hpp"
#include "distx/memory/detail/fixed_point.hpp"

// Sums of squares of a GPU's memory that are the same bits as the host's, in every order and over any parts. The forms
// that leave their number in the GPU's memory add up over several spans, and none of them blocks the host.
namespace distx {

/// largest[0] becomes the largest magnitude of itself and the values: infinity where one is infinite or not a number.
/// @pre largest[0] is 0 or what this left there
template <cuda::detail::Floating T>
void largest_magnitude(CudaStreamRef stream, Span<T, Cuda> values, Span<double, Cuda> largest) {
  if (!values.empty())
    cuda::detail::kernel_in(cuda::detail::kernels.largest_magnitude, "largest_magnitude")(stream, values,
                                                                                          largest.data());
}

/// Adds the squares, in the units that go with `FixedPointSum::exponent_for(largest[0])`, to parts[0], the high part,
/// and parts[1], the low one, which is not cut at 2^32: `FixedPointSum total; total += {parts[0], parts[1]};` cuts it.
///
/// Nothing is added where largest[0] is infinite.
/// @pre largest[0] is at least the largest magnitude of all; there are fewer than 2^34 values on all ranks
template <cuda::detail::Floating T>
void fixed_point_squares(CudaStreamRef stream, Span<T, Cuda> values, Span<const double, Cuda> largest,
                         Span<std::uint64_t, Cuda> parts) {
  if (parts.size() != 2) detail::lengths_differ(parts.size(), 2, "fixed_point_squares");
  if (!values.empty())
    cuda::detail::kernel_in(cuda::detail::kernels.fixed_point_squares, "fixed_point_squares")(
        stream, values, largest.data(), parts.data());
}

/// The largest magnitude among the values, 0 where there are none; infinity where one is infinite or not a number.
/// Blocks the host.
template <cuda::detail::Floating T>
[[nodiscard]] double largest_magnitude(CudaStreamRef stream, Span<T, Cuda> values) {
  if (values.empty()) return 0;
  static_cast<void>(cuda::detail::kernel_in(cuda::detail::kernels.largest_magnitude, "largest_magnitude"));
  const Buffer<double, Cuda> largest(1, stream);
  largest_magnitude(stream, values, largest.span());
  return cuda::detail::read<double>(stream, largest);
}

/// As the host's. Blocks the host.
template <cuda::detail::Floating T>
[[nodiscard]] FixedPointSum fixed_point_squares(CudaStreamRef stream, Span<T, Cuda> values, int exponent) {
  FixedPointSum total;
  if (values.empty()) return total;
  static_cast<void>(cuda::detail::kernel_in(cuda::detail::kernels.fixed_point_squares, "fixed_point_squares"));
  const Buffer<double, Cuda> largest(1, uninitialized, stream);
  const double below = std::ldexp(0.5, exponent);  // whose exponent is that one
  copy(stream, largest.span(), Span<const double>(&below, 1));
  const Buffer<std::uint64_t, Cuda> there(2, stream);
  fixed_point_squares(stream, values, Span<const double, Cuda>(largest), there.span());
  std::uint64_t parts[2] = {};
  copy(stream, Span<std::uint64_t>(parts, 2), Span<const std::uint64_t, Cuda>(there));
  stream.synchronize();
  total += {parts[0], parts[1]};
  return total;
}

/// The Euclidean norm, by the two above; infinity where a value is infinite or not a number. Blocks the host, once.
template <cuda::detail::Floating T>
[[nodiscard]] double fixed_point_norm(CudaStreamRef stream, Span<T, Cuda> values) {
  if (values.empty()) return 0;
  static_cast<void>(cuda::detail::kernel_in(cuda::detail::kernels.largest_magnitude, "fixed_point_norm"));
  const Buffer<double, Cuda> largest(1, stream);
  const Buffer<std::uint64_t, Cuda> there(2, stream);
  largest_magnitude(stream, values, largest.span());
  fixed_point_squares(stream, values, Span<const double, Cuda>(largest), there.span());
  double most = 0;
  std::uint64_t parts[2] = {};
  copy(stream, Span<double>(&most, 1), Span<const double, Cuda>(largest));
  copy(stream, Span<std::uint64_t>(parts, 2), Span<const std::uint64_t, Cuda>(there));
  stream.synchronize();
  if (most == 0 || !std::isfinite(most)) return most;
  FixedPointSum total;
  total += {parts[0], parts[1]};
  return total.root(FixedPointSum::exponent_for(most));
}

}  // namespace distx

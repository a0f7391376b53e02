// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <vector>

#include "distx/cuda/detail/operations.hpp"

// Sums of squares of values in a GPU's memory with the host's bits, in any order and over any parts. The forms that
// leave their result in the GPU's memory accumulate over several spans and do not block the host.
namespace distx::inline DISTX_ABI {

/// Enqueues the maximum of largest[0] and the values' largest magnitude, into largest[0]: infinity if a value is
/// infinite or NaN.
/// @pre largest[0] is 0 or the result of an earlier call
template <cuda::detail::Floating T>
void largest_magnitude(CudaStreamRef stream, Span<T, Cuda> values, Span<double, Cuda> largest) {
  if (values.empty()) return;
  const cuda::detail::ReducedSpan one{values, largest.data()};
  cuda::detail::kernel_in(cuda::detail::kernels.largest_magnitude, "largest_magnitude")(stream, std::span(&one, 1));
}

/// Enqueues the addition of the values' squares, in units of `FixedPointSum::exponent_for(largest[0])`, to parts[0],
/// the high part, and parts[1], the low part, which may exceed 2^32: `total += {parts[0], parts[1]}` carries the rest
/// over.
///
/// Adds nothing if largest[0] is infinite.
/// @param parts  two elements
/// @pre largest[0] is at least the largest magnitude of all; there are fewer than 2^34 values on all ranks
template <cuda::detail::Floating T>
void fixed_point_squares(CudaStreamRef stream, Span<T, Cuda> values, Span<const double, Cuda> largest,
                         Span<std::uint64_t, Cuda> parts) {
  if (parts.size() != 2) detail::lengths_differ(parts.size(), 2, "fixed_point_squares");
  if (values.empty()) return;
  const cuda::detail::ReducedSpan one{values};
  cuda::detail::kernel_in(cuda::detail::kernels.fixed_point_squares, "fixed_point_squares")(
      stream, std::span(&one, 1), largest.data(), parts.data());
}

namespace detail {

/// Returns the pieces that are not empty, with pointers to their results.
[[nodiscard]] inline std::vector<cuda::detail::ReducedSpan> reduced_spans(std::span<const ReducedPiece<Cuda>> pieces,
                                                                          double* results) {
  std::vector<cuda::detail::ReducedSpan> all;
  all.reserve(pieces.size());
  for (const auto& piece : pieces)
    if (!piece.values.empty()) all.push_back({piece.values, results + piece.result});
  return all;
}

/// Enqueues `largest_magnitude` of each piece into `largest[piece.result]`: one launch for about 500 pieces of a type.
inline void largest_magnitudes(CudaStreamRef stream, std::span<const ReducedPiece<Cuda>> pieces,
                               Span<double, Cuda> largest) {
  const auto all = reduced_spans(pieces, largest.data());
  if (!all.empty()) cuda::detail::kernel_in(cuda::detail::kernels.largest_magnitude, "largest_magnitude")(stream, all);
}

/// Enqueues `fixed_point_squares` of all pieces: one launch for about 500 pieces of a type.
inline void fixed_point_squares(CudaStreamRef stream, std::span<const ReducedPiece<Cuda>> pieces,
                                Span<const double, Cuda> largest, Span<std::uint64_t, Cuda> parts) {
  const auto all = reduced_spans(pieces, nullptr);
  if (!all.empty())
    cuda::detail::kernel_in(cuda::detail::kernels.fixed_point_squares, "fixed_point_squares")(
        stream, all, largest.data(), parts.data());
}

/// Enqueues `fixed_point_squares` of each piece, with its element of `largest`, into its two elements of `parts`.
/// @pre the pieces' largest magnitudes are finite
inline void fixed_point_squares_of_each(CudaStreamRef stream, std::span<const ReducedPiece<Cuda>> pieces,
                                        Span<double, Cuda> largest, Span<std::uint64_t, Cuda> parts) {
  const auto all = reduced_spans(pieces, largest.data());
  if (!all.empty())
    cuda::detail::kernel_in(cuda::detail::kernels.squares_of_each, "norms of weights")(stream, all, largest.data(),
                                                                                       parts.data());
}

/// Enqueues the computation of the gradients' norm, and of the factor that unscales and clips them, from the results of
/// `largest_magnitude` and `fixed_point_squares`, reduced over all ranks.
///
/// The norm is the sum's root times `unscale`; the factor is `unscale`, times clip_norm / norm if the norm is larger,
/// or NaN if largest[0] is infinite. Both have the host's bits.
inline void clip_factor(CudaStreamRef stream, Span<const double, Cuda> largest, Span<const std::uint64_t, Cuda> parts,
                        double clip_norm, double unscale, Span<ClipFactor, Cuda> result) {
  cuda::detail::kernel_in(cuda::detail::kernels.clip_factor, "clip_factor")(stream, largest.data(), parts.data(),
                                                                            clip_norm, unscale, result.data());
}

}  // namespace detail

/// Returns the values' largest magnitude: 0 if there are none, infinity if one is infinite or NaN. Blocks the host.
template <cuda::detail::Floating T>
[[nodiscard]] double largest_magnitude(CudaStreamRef stream, Span<T, Cuda> values) {
  if (values.empty()) return 0;
  static_cast<void>(cuda::detail::kernel_in(cuda::detail::kernels.largest_magnitude, "largest_magnitude"));
  const Buffer<double, Cuda> largest(1, stream);
  largest_magnitude(stream, values, largest.span());
  return cuda::detail::read<double>(stream, largest);
}

/// Returns the sum of the squares in units of `exponent`, with the bits of the host's function. Blocks the host.
template <cuda::detail::Floating T>
[[nodiscard]] FixedPointSum fixed_point_squares(CudaStreamRef stream, Span<T, Cuda> values, int exponent) {
  FixedPointSum total;
  if (values.empty()) return total;
  static_cast<void>(cuda::detail::kernel_in(cuda::detail::kernels.fixed_point_squares, "fixed_point_squares"));
  const Buffer<double, Cuda> largest(1, uninitialized, stream);
  const double below = std::ldexp(0.5, exponent);  // its exponent is `exponent`
  copy(stream, largest.span(), Span<const double>(&below, 1));
  const Buffer<std::uint64_t, Cuda> there(2, stream);
  fixed_point_squares(stream, values, Span<const double, Cuda>(largest), there.span());
  std::uint64_t parts[2] = {};
  copy(stream, Span<std::uint64_t>(parts, 2), Span<const std::uint64_t, Cuda>(there));
  stream.synchronize();
  total += {parts[0], parts[1]};
  return total;
}

/// Returns the Euclidean norm; infinity if a value is infinite or NaN. Blocks the host once.
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
  if (most == 0 || !detail::is_finite(most)) return most;
  FixedPointSum total;
  total += {parts[0], parts[1]};
  return total.root(FixedPointSum::exponent_for(most));
}

}  // namespace distx::inline DISTX_ABI

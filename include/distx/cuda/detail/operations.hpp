// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstring>

#include "distx/cuda/buffer.hpp"
#include "distx/cuda/detail/copy.hpp"
#include "distx/cuda/detail/kernels.hpp"

// The operations of a GPU's memory (see memory/operations.hpp), as work enqueued on a stream of the current GPU. Apart
// from filling with equal bytes they need <distx/cuda_kernels.cuh> in one file of the program.
namespace distx {

namespace cuda::detail {

template <class T>
concept Floating = FloatingElement<std::remove_const_t<T>>;

/// Between which types GPUs convert: one of two is more than 8 bits wide, or they are the same.
template <class To, class From>
concept Castable = FractionalElement<To> && FractionalElement<std::remove_const_t<From>> &&
                   (FloatingElement<To> || Floating<From> || std::same_as<To, std::remove_const_t<From>>);

/// The number in a GPU's memory, once the stream has come there.
template <class T>
[[nodiscard]] T read(CudaStreamRef stream, Span<const T, Cuda> one) {
  T value{};
  copy(stream, Span<T>(&value, 1), one.first(1));
  stream.synchronize();
  return value;
}

}  // namespace cuda::detail

template <class T>
  requires(sizeof(T) > 1)
void fill(CudaStreamRef stream, Span<T, Cuda> to, std::type_identity_t<T> value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8 && std::has_single_bit(sizeof(T)),
                "distx::fill: on a GPU elements have 1, 2, 4 or 8 bytes");
  if (to.empty()) return;
  std::array<unsigned char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  if (std::all_of(bytes.begin(), bytes.end(), [&](unsigned char byte) { return byte == bytes[0]; }))
    return cuda::detail::check(cudaMemsetAsync(to.data(), bytes[0], to.size_bytes(), stream.native_handle()),
                               "cudaMemsetAsync");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  cuda::detail::kernel_in(cuda::detail::kernels.fill, "fill")(stream, to.data(), to.size(), sizeof(T), bits);
}

/// Converts each element, rounding to nearest where the new type is narrower. Not from one 8-bit float to the other.
template <class To, class From>
  requires cuda::detail::Castable<To, From>
void cast(CudaStreamRef stream, Span<To, Cuda> to, Span<From, Cuda> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "cast");
  if constexpr (std::same_as<To, std::remove_const_t<From>>)
    copy(stream, to, Span<const From, Cuda>(from));
  else if (!to.empty())
    cuda::detail::kernel_in(cuda::detail::kernels.cast, "cast")(stream, to, from);
}

/// Multiplies each value, in float where the elements are shorter.
template <FloatingElement T>
void scale(CudaStreamRef stream, Span<T, Cuda> values, double factor) {
  if (!values.empty()) cuda::detail::kernel_in(cuda::detail::kernels.scale, "scale")(stream, values, factor);
}

/// to[i] += from[i], in float where the elements are shorter.
template <FloatingElement T>
void add(CudaStreamRef stream, Span<T, Cuda> to, Span<const std::type_identity_t<T>, Cuda> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "add");
  if (!to.empty()) cuda::detail::kernel_in(cuda::detail::kernels.add, "add")(stream, to, from);
}

/// to[i] = kept * to[i] + (1 - kept) * from[i], in the type of `to`.
template <FloatingElement To, FloatingElement From>
void mix(CudaStreamRef stream, Span<To, Cuda> to, Span<const From, Cuda> from, double kept) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "mix");
  if (!to.empty()) cuda::detail::kernel_in(cuda::detail::kernels.mix, "mix")(stream, to, from, kept);
}

/// The sum of the squares, in double, in an order that is the same for the same number of elements. Blocks the host.
template <cuda::detail::Floating T>
[[nodiscard]] double sum_of_squares(CudaStreamRef stream, Span<T, Cuda> values) {
  if (values.empty()) return 0;
  const auto kernel = cuda::detail::kernel_in(cuda::detail::kernels.sum_of_squares, "sum_of_squares");
  const Buffer<double, Cuda> sums(cuda::detail::Kernels::partial_sums + 1, uninitialized, stream);
  double* const total = sums.data() + cuda::detail::Kernels::partial_sums;
  kernel(stream, values, sums.data(), total);
  return cuda::detail::read(stream, Span<const double, Cuda>(total, 1));
}

}  // namespace distx

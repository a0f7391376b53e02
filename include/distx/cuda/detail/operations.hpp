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

// The operations of memory/operations.hpp on a GPU's memory. Each is enqueued on a stream of the current GPU and throws
// InvalidArgument if lengths differ. All but fills with equal bytes need <distx/cuda_kernels.cuh> in a file of the
// program, and throw InvalidState without it.
namespace distx::inline DISTX_ABI {

namespace cuda::detail {

template <class T>
concept Floating = FloatingElement<std::remove_const_t<T>>;

/// The types between which GPUs convert: at least one has more than 8 bits, or they are the same.
template <class To, class From>
concept Castable = FractionalElement<To> && FractionalElement<std::remove_const_t<From>> &&
                   (FloatingElement<To> || Floating<From> || std::same_as<To, std::remove_const_t<From>>);

/// Returns a value in a GPU's memory, in stream order. Blocks the host.
template <class T>
[[nodiscard]] T read(CudaStreamRef stream, Span<const T, Cuda> one) {
  T value{};
  copy(stream, Span<T>(&value, 1), one.first(1));
  stream.synchronize();
  return value;
}

}  // namespace cuda::detail

/// Enqueues the setting of all elements, of 2, 4 or 8 bytes each, to a value.
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

/// Enqueues the conversion of each element, rounded to nearest if the new type is narrower. Numbers have the host's
/// bits; a NaN stays a NaN. Conversions between the two 8-bit types are not supported.
template <class To, class From>
  requires cuda::detail::Castable<To, From>
void cast(CudaStreamRef stream, Span<To, Cuda> to, Span<From, Cuda> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "cast");
  if constexpr (std::same_as<To, std::remove_const_t<From>>)
    copy(stream, to, Span<const From, Cuda>(from));
  else if (!to.empty())
    cuda::detail::kernel_in(cuda::detail::kernels.cast, "cast")(stream, to, from);
}

/// Enqueues values[i] *= factor; reduced-precision types compute in float.
template <FloatingElement T>
void scale(CudaStreamRef stream, Span<T, Cuda> values, double factor) {
  if (!values.empty()) cuda::detail::kernel_in(cuda::detail::kernels.scale, "scale")(stream, values, factor);
}

/// Enqueues to[i] += from[i]; reduced-precision types compute in float.
template <FloatingElement T>
void add(CudaStreamRef stream, Span<T, Cuda> to, Span<const std::type_identity_t<T>, Cuda> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "add");
  if (!to.empty()) cuda::detail::kernel_in(cuda::detail::kernels.add, "add")(stream, to, from);
}

/// Enqueues to[i] = kept * to[i] + (1 - kept) * from[i], computed in the type of `to`.
template <FloatingElement To, FloatingElement From>
void mix(CudaStreamRef stream, Span<To, Cuda> to, Span<const From, Cuda> from, double kept) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "mix");
  if (!to.empty()) cuda::detail::kernel_in(cuda::detail::kernels.mix, "mix")(stream, to, from, kept);
}

/// Returns the sum of the squares, in double, added in an order that depends on the number of elements alone. Blocks
/// the host.
template <cuda::detail::Floating T>
[[nodiscard]] double sum_of_squares(CudaStreamRef stream, Span<T, Cuda> values) {
  if (values.empty()) return 0;
  const auto kernel = cuda::detail::kernel_in(cuda::detail::kernels.sum_of_squares, "sum_of_squares");
  const Buffer<double, Cuda> sums(cuda::detail::Kernels::partial_sums + 1, uninitialized, stream);
  double* const total = sums.data() + cuda::detail::Kernels::partial_sums;
  kernel(stream, values, sums.data(), total);
  return cuda::detail::read(stream, Span<const double, Cuda>(total, 1));
}

}  // namespace distx::inline DISTX_ABI

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>

#include "distx/cuda/space.hpp"
#include "distx/memory/operations.hpp"

// Copies in stream order. Between GPU and host they are asynchronous for page-locked memory of the host; other memory
// is copied while the host waits, or by way of memory of CUDA's own.
namespace distx {

namespace cuda::detail {

inline void copy_bytes(CudaStreamRef stream, void* to, const void* from, std::size_t to_count, std::size_t from_count,
                       std::size_t element_bytes) {
  if (to_count != from_count) distx::detail::lengths_differ(to_count, from_count, "copy");
  if (to_count != 0 && to != from)
    check(cudaMemcpyAsync(to, from, to_count * element_bytes, cudaMemcpyDefault, stream.native_handle()),
          "cudaMemcpyAsync");
}

}  // namespace cuda::detail

template <class T>
void copy(CudaStreamRef stream, Span<T, Cuda> to, Span<const std::type_identity_t<T>, Cuda> from) {
  cuda::detail::copy_bytes(stream, to.data(), from.data(), to.size(), from.size(), sizeof(T));
}
/// The source stays as it is until the stream has come here.
template <class T>
void copy(CudaStreamRef stream, Span<T, Cuda> to, Span<const std::type_identity_t<T>, Host> from) {
  cuda::detail::copy_bytes(stream, to.data(), from.data(), to.size(), from.size(), sizeof(T));
}
/// The destination has the elements once the stream has come here.
template <class T>
void copy(CudaStreamRef stream, Span<T, Host> to, Span<const std::type_identity_t<T>, Cuda> from) {
  cuda::detail::copy_bytes(stream, to.data(), from.data(), to.size(), from.size(), sizeof(T));
}

/// @name fill(stream, to, value) without a kernel
/// @{
template <class T>
  requires(sizeof(T) == 1)
void fill(CudaStreamRef stream, Span<T, Cuda> to, std::type_identity_t<T> value) {
  if (!to.empty())
    cuda::detail::check(
        cudaMemsetAsync(to.data(), std::bit_cast<unsigned char>(value), to.size(), stream.native_handle()),
        "cudaMemsetAsync");
}
/// @}

}  // namespace distx

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>

#include "distx/cuda/space.hpp"
#include "distx/memory/detail/copy_pieces.hpp"

// Stream-ordered copies. Copies between GPU and host are asynchronous for page-locked host memory; with other host
// memory, CUDA may block the host or copy by way of CUDA's staging buffers.
namespace distx::inline DISTX_ABI {

namespace cuda::detail {

inline void copy_bytes(CudaStreamRef stream, void* to, const void* from, std::size_t to_count, std::size_t from_count,
                       std::size_t element_bytes) {
  if (to_count != from_count) distx::detail::lengths_differ(to_count, from_count, "copy");
  if (to_count != 0 && to != from)
    check(cudaMemcpyAsync(to, from, to_count * element_bytes, cudaMemcpyDefault, stream.native_handle()),
          "cudaMemcpyAsync");
}

/// Copies pieces by few kernels; set by distx/cuda_kernels.cuh.
using CopyPieces = void(CudaStreamRef, std::span<const distx::detail::CopyPiece>);
inline constinit CopyPieces* copy_pieces_kernel = nullptr;

}  // namespace cuda::detail

namespace detail {

/// Enqueues copies within a GPU's memory: by one kernel for about 140 of them, if the program has it.
inline void copy_at_once(CudaStreamRef stream, std::span<const CopyPiece> pieces) {
  if (pieces.size() > 1 && cuda::detail::copy_pieces_kernel != nullptr)
    return cuda::detail::copy_pieces_kernel(stream, pieces);
  for (const auto& piece : pieces) cuda::detail::copy_bytes(stream, piece.to, piece.from, piece.bytes, piece.bytes, 1);
}

}  // namespace detail

/// Enqueues a copy of elements; the spans may be the same, but must not overlap partly.
/// @throws InvalidArgument if the lengths differ
template <class T>
void copy(CudaStreamRef stream, Span<T, Cuda> to, Span<const std::type_identity_t<T>, Cuda> from) {
  cuda::detail::copy_bytes(stream, to.data(), from.data(), to.size(), from.size(), sizeof(T));
}
/// Enqueues a copy from the host; the source must not change before it is complete.
template <class T>
void copy(CudaStreamRef stream, Span<T, Cuda> to, Span<const std::type_identity_t<T>, Host> from) {
  cuda::detail::copy_bytes(stream, to.data(), from.data(), to.size(), from.size(), sizeof(T));
}
/// Enqueues a copy to the host; the destination has the elements when it is complete.
template <class T>
void copy(CudaStreamRef stream, Span<T, Host> to, Span<const std::type_identity_t<T>, Cuda> from) {
  cuda::detail::copy_bytes(stream, to.data(), from.data(), to.size(), from.size(), sizeof(T));
}

/// Enqueues the setting of all elements, which have one byte each, to a value.
template <class T>
  requires(sizeof(T) == 1)
void fill(CudaStreamRef stream, Span<T, Cuda> to, std::type_identity_t<T> value) {
  if (!to.empty())
    cuda::detail::check(
        cudaMemsetAsync(to.data(), std::bit_cast<unsigned char>(value), to.size(), stream.native_handle()),
        "cudaMemsetAsync");
}

}  // namespace distx::inline DISTX_ABI

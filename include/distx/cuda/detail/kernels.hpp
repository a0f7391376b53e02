// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "distx/core/span.hpp"
#include "distx/cuda/space.hpp"
#include "distx/memory/fixed_point.hpp"

// How code of any compiler reaches the kernels, which only nvcc compiles: by pointers that <distx/cuda_kernels.cuh>
// sets before main.
namespace distx::inline DISTX_ABI::cuda::detail {

using distx::detail::ClipFactor;

/// One of the arrays that a launch reduces.
struct ReducedSpan {
  Span<const AnyElement, Cuda> values;  ///< not empty
  double* result = nullptr;
};

/// The kernels that dispatch on element types at run time. Each enqueues its work and returns.
///
/// Callers have checked the lengths; there is at least one element; elements are floating-point unless noted.
struct Kernels {
  using Out = Span<AnyElement, Cuda>;
  using In = Span<const AnyElement, Cuda>;

  /// Writes the low bits of `bits` to each element of 2, 4 or 8 bytes.
  void (*fill)(CudaStreamRef, void* to, std::size_t count, std::size_t element_bytes, std::uint64_t bits);
  /// Converts fractional elements; at least one of the two types is floating, and they differ.
  void (*cast)(CudaStreamRef, Out to, In from);
  void (*scale)(CudaStreamRef, Out values, double factor);
  void (*add)(CudaStreamRef, Out to, In from);
  void (*mix)(CudaStreamRef, Out to, In from, double kept);
  /// `partial` has `partial_sums` elements.
  void (*sum_of_squares)(CudaStreamRef, In values, double* partial, double* sum);
  /// Writes the maximum of each result and its values' largest magnitude.
  void (*largest_magnitude)(CudaStreamRef, std::span<const ReducedSpan> all);
  /// Adds up the squares of all values.
  void (*fixed_point_squares)(CudaStreamRef, std::span<const ReducedSpan> all, const double* largest,
                              std::uint64_t* sum);
  /// Adds up the squares of each array, whose result is its finite largest magnitude, among `largest`.
  void (*squares_of_each)(CudaStreamRef, std::span<const ReducedSpan> all, const double* largest, std::uint64_t* sums);
  void (*clip_factor)(CudaStreamRef, const double* largest, const std::uint64_t* sum, double clip_norm, double unscale,
                      ClipFactor* result);

  void (*load)();

  static constexpr std::size_t partial_sums = 4096;
};

inline constinit Kernels kernels{};

/// @throws InvalidState that says what to include and compile
[[noreturn]] inline void no_kernel(const std::string& operation, const std::string& remedy = {}) {
  throw InvalidState(
      "this program has no such GPU kernel: include <distx/cuda_kernels.cuh> in one of its files that nvcc compiles "
      "(and link that file directly, not from a static library)" +
          remedy,
      {.operation = operation, .backend = "cuda"});
}

/// Loads the program's distx kernels onto the current GPU, if it has any.
///
/// By default CUDA loads a kernel at its first launch, which may wait for all kernels in progress, and so deadlock with
/// a collective that waits for the launch: call this before the first collective.
/// @throws Error if a kernel was not compiled for this GPU
inline void load_kernels() {
  if (kernels.load != nullptr) kernels.load();
}

/// Returns the kernel in a slot.
/// @throws InvalidState if there is none
template <class Kernel>
[[nodiscard]] Kernel* kernel_in(Kernel* slot, const char* operation) {
  if (slot == nullptr) [[unlikely]]
    no_kernel(operation);
  return slot;
}

}  // namespace distx::inline DISTX_ABI::cuda::detail

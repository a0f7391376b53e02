// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <string>

#include "distx/core/span.hpp"
#include "distx/cuda/space.hpp"

// How code of any compiler reaches the kernels, which only nvcc compiles: by pointers that <distx/cuda_kernels.cuh>
// fills before main, in the one file of a program that includes it.
namespace distx::cuda::detail {

/// A learning rate, a step's number and a decay that lie in a GPU's memory.
struct StepNumbers {
  double learning_rate = 0;
  double weight_decay = 0;
  std::uint64_t number = 0;
  bool sets_decay = false;  ///< whether `weight_decay` stands instead of the optimizer's
};

/// Which of the numbers a kernel sets.
enum class StepChange { learning_rate, weight_decay, number, next };

/// The kernels that find out the element types while the program runs. Each enqueues its work and returns.
///
/// Lengths have been compared, there is at least one element, and elements are floating where not said otherwise.
struct Kernels {
  using Out = Span<AnyElement, Cuda>;
  using In = Span<const AnyElement, Cuda>;

  /// The low bits of `bits` into each element of 2, 4 or 8 bytes.
  void (*fill)(CudaStreamRef, void* to, std::size_t count, std::size_t element_bytes, std::uint64_t bits);
  /// Of elements with fractions; one of the two is floating, and they are not the same.
  void (*cast)(CudaStreamRef, Out to, In from);
  void (*scale)(CudaStreamRef, Out values, double factor);
  void (*add)(CudaStreamRef, Out to, In from);
  void (*mix)(CudaStreamRef, Out to, In from, double kept);
  /// `partial` has `partial_sums` elements.
  void (*sum_of_squares)(CudaStreamRef, In values, double* partial, double* sum);
  void (*largest_magnitude)(CudaStreamRef, In values, double* largest);
  void (*fixed_point_squares)(CudaStreamRef, In values, const double* largest, std::uint64_t* sum);
  void (*change_step)(CudaStreamRef, StepNumbers* step, StepChange change, double value);

  static constexpr std::size_t partial_sums = 4096;
};

inline constinit Kernels kernels{};

/// @throws Error that says what to include and compile
[[noreturn]] inline void no_kernel(const std::string& operation, const std::string& cure = {}) {
  throw Error(
      "this program has no such kernel for GPUs: include <distx/cuda_kernels.cuh> in one of its files that "
      "nvcc compiles (and link that file itself, not from a static library)" +
          cure,
      {.operation = operation, .backend = "cuda"});
}

/// The kernel in a slot.
/// @throws Error where there is none
template <class Kernel>
[[nodiscard]] Kernel* kernel_in(Kernel* slot, const char* operation) {
  if (slot == nullptr) [[unlikely]]
    no_kernel(operation);
  return slot;
}

}  // namespace distx::cuda::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/cuda.hpp>

// Custom kernels for tests/nccl/tensor_test.cpp, as in a user's program.
namespace tensor_kernels {

/// Functions that distx does not know, each registered in one of two files of kernels.
struct Cube {
  template <class T>
  constexpr T operator()(T x) const {
    return x * x * x;
  }
};
struct Square {
  template <class T>
  constexpr T operator()(T x) const {
    return x * x;
  }
};

/// out = 2 * x + y, by a kernel.
void twice_plus(distx::CudaStreamRef stream, distx::Span<const float, distx::Cuda> x,
                distx::Span<const float, distx::Cuda> y, distx::Span<float, distx::Cuda> out);

}  // namespace tensor_kernels

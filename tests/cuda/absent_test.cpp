// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Errors on a machine without a GPU, and in a program without kernels, as this one is.
#include <doctest/doctest.h>
#include <distx/cuda/blas.hpp>
#include <distx/cuda/fixed_point.hpp>
#include <distx/cuda/fused_update.hpp>
#include <distx/cuda/pick_device.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/threads.hpp>

namespace {

using distx::Buffer;
using distx::Cuda;
using distx::CudaStreamRef;
using distx::Span;

#define CHECK_SAYS(expression, words) \
  CHECK_THROWS_WITH_AS(static_cast<void>(expression), doctest::Contains(words), distx::Error)

}  // namespace

TEST_CASE("without a GPU every call throws an error with the reason") {
  if (distx::cuda::device_count() > 0) {
    MESSAGE("there is a GPU here");
    CHECK(distx::cuda::why_no_gpu().empty());
    return;
  }
  CHECK(doctest::String(distx::cuda::why_no_gpu().c_str()) == doctest::Contains("no GPU"));
  const auto words = "no GPU that CUDA can use: ";
  CHECK_SAYS(distx::CudaStream(), words);
  CHECK_SAYS(distx::CudaEvent(), words);
  CHECK_SAYS((Buffer<float, Cuda>(10)), words);
  CHECK_SAYS((Buffer<float, Cuda>(10, CudaStreamRef())), words);
  CHECK_SAYS(distx::cuda::PinnedBuffer<float>(10), words);
  CHECK_SAYS(distx::cuda::DeviceGuard(0), words);
  CHECK_SAYS(distx::cuda::current_device(), words);
  CHECK_SAYS(distx::DeviceStep(distx::AdamW{}, 0.1), words);
  CHECK_SAYS(CudaStreamRef().synchronize(), words);
  distx::SelfConnector alone;
  CHECK_SAYS(distx::cuda::pick_device(alone), "rank 0 sees no GPU: no GPU");
  // Empty operations need no GPU.
  CHECK(Buffer<float, Cuda>(0).span().empty());
  const Span<float, Cuda> none;
  fill(CudaStreamRef(), none, 1.0f);
  CHECK(sum_of_squares(CudaStreamRef(), none) == 0);
  CHECK(fixed_point_norm(CudaStreamRef(), none) == 0);
}

TEST_CASE("without kernels every operation throws an error that says what to include and compile") {
  const CudaStreamRef stream;
  // No call reads the memory.
  float place[4] = {};
  distx::bfloat16 short_place[4] = {};
  const Span<float, Cuda> values(place, 4);
  const Span<distx::bfloat16, Cuda> shorts(short_place, 4);
  const auto words = "include <distx/cuda_kernels.cuh> in one of its files that nvcc compiles";
  CHECK_SAYS(fill(stream, values, 1.5f), words);
  CHECK_SAYS(cast(stream, values, shorts), words);
  CHECK_SAYS(scale(stream, values, 2), words);
  CHECK_SAYS(add(stream, values, values), words);
  CHECK_SAYS(mix(stream, values, Span<const float, Cuda>(values), 0.5), words);
  CHECK_SAYS(sum_of_squares(stream, values), words);
  CHECK_SAYS(largest_magnitude(stream, values), words);
  CHECK_SAYS(fixed_point_squares(stream, values, 0), words);
  CHECK_SAYS(fixed_point_norm(stream, values), words);
  CHECK_SAYS(fused_update(stream, distx::AdamW{}, distx::Step{}, values, values, {values, values}), words);
  CHECK_SAYS(fused_update(stream, distx::AdamW{}, distx::Step{}, values, values, {values, values}),
             "distx::cuda::register_optimizer<TheOptimizer>()");
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The memory that causal attention takes on a GPU in addition to its operands, as the stand-in for CUDA counts it.
#include <doctest/doctest.h>

#include <distx/cuda_blas.hpp>
#include <distx/tensor.hpp>
#include <distx/tensor/ops.hpp>

#include "tensor_meshes.hpp"

namespace {

using distx::Cuda;

/// The most bytes that are allocated for attention and its gradient at once, with their results.
std::uint64_t bytes_of_attention(gpu_meshes::Rank& rank, std::size_t length) {
  const auto x = distx::random<float, Cuda>(rank.gpus, {1, length, 3, 2, 4}, 1);
  const auto g = distx::random<float, Cuda>(rank.gpus, {1, length, 2, 4}, 2);
  const auto reserved = [&] {
    rank.stream.synchronize();
    std::uint64_t bytes = 0;
    const cudaMemPool_t pool = distx::cuda::detail::Pools::all().of(distx::cuda::current_device());
    REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) == cudaSuccess);
    return bytes;
  };
  distx::cuda::release_unused_memory();
  const auto before = reserved();
  const auto y = distx::ops::causal_attention(x);
  const auto slope = distx::ops::causal_attention_backward(x, g);
  return reserved() - before;
}

}  // namespace

TEST_CASE("causal attention and its gradient take twice the memory for twice the length") {
  gpu_meshes::on_mesh({1, 1}, [](gpu_meshes::Rank& rank) {
    const auto once = bytes_of_attention(rank, 64);
    CHECK(once > 0);
    CHECK(bytes_of_attention(rank, 128) == 2 * once);
    CHECK(bytes_of_attention(rank, 256) == 4 * once);
  });
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime_api.h>

// Kernels that use everything that the stand-in offers to kernels.
namespace kernels {

/// out[i] = the number of the thread that wrote it, in a grid-stride loop.
cudaError_t number(cudaStream_t stream, unsigned blocks, unsigned threads, int* out, int size);
/// Each block reverses its part, by way of shared memory.
cudaError_t reverse(cudaStream_t stream, unsigned blocks, unsigned threads, int* values);
/// total += the sum, by shuffles within warps, shared memory among them, and atomics among blocks; greatest likewise.
cudaError_t sum(cudaStream_t stream, unsigned blocks, unsigned threads, const float* values, int size, double* total,
                unsigned long long* greatest);
/// Wrong: thread 0 writes what the others read, without a barrier between.
cudaError_t unordered(cudaStream_t stream, unsigned threads, int* out);
/// Wrong: reads memory that its block shares and has not written.
cudaError_t unset(cudaStream_t stream, unsigned blocks, int* out);
/// Writes the results of each kind of shuffle and vote: 6 numbers for each of 32 lanes.
cudaError_t shuffle(cudaStream_t stream, int* out);
/// to = from, by vectors of 16 bytes: 4 numbers for each thread.
cudaError_t vectors(cudaStream_t stream, unsigned threads, const int* from, int* to);
/// A block whose size has three dimensions: each thread adds its own number to its place.
cudaError_t boxes(cudaStream_t stream, dim3 grid, dim3 size, int* out);
/// Small types: out = 2 in.
cudaError_t twice(cudaStream_t stream, unsigned threads, const void* bfloat16s, void* halves);

}  // namespace kernels

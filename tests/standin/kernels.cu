// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kernels {

namespace {

cudaLaunchConfig_t config(cudaStream_t stream, dim3 grid, dim3 size) {
  cudaLaunchConfig_t result{};
  result.gridDim = grid;
  result.blockDim = size;
  result.stream = stream;
  return result;
}

__global__ void number_each(int* out, int size) {
  const auto mine = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int i = mine; i < size; i += static_cast<int>(gridDim.x * blockDim.x)) out[i] = mine;
}

__global__ void reverse_each(int* values) {
  __shared__ int part[1024];
  int* const mine = values + blockIdx.x * blockDim.x;
  part[threadIdx.x] = mine[threadIdx.x];
  __syncthreads();
  mine[threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
}

__global__ void unordered_each(int* out) {
  __shared__ int common;
  if (threadIdx.x == 0) common = 7;
  out[threadIdx.x] = common;
}

__global__ void unset_each(int* out) {
  __shared__ int common;
  out[blockIdx.x] = common;
  common = 7;
}

template <class T>
__device__ T sum_of_warp(T value) {
  for (unsigned delta = 16; delta > 0; delta /= 2) value += __shfl_down_sync(0xFFFFFFFFU, value, delta);
  return value;
}

template <class T>
__global__ void __launch_bounds__(1024)
    sum_all(const T* __restrict__ values, int size, double* total, unsigned long long* greatest) {
  __shared__ double of_warps[32];
  double mine = 0;
  unsigned long long most = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < size;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    mine += static_cast<double>(__ldg(values + i));
    const auto bits = static_cast<unsigned long long>(__double_as_longlong(static_cast<double>(values[i])));
    most = bits > most ? bits : most;
  }
  atomicMax(greatest, most);
  mine = sum_of_warp(mine);
  if (threadIdx.x % warpSize == 0) of_warps[threadIdx.x / warpSize] = mine;
  __syncthreads();
  if (threadIdx.x < warpSize) {
    const double warp = threadIdx.x < (blockDim.x + warpSize - 1) / warpSize ? of_warps[threadIdx.x] : 0;
    const double block = sum_of_warp(warp);
    if (threadIdx.x == 0) atomicAdd(total, block);
  }
}

__global__ void shuffle_all(int* out) {
  const auto lane = static_cast<int>(threadIdx.x);
  int* const mine = out + 6 * lane;
  constexpr unsigned all = 0xFFFFFFFFU;
  mine[0] = __shfl_sync(all, lane, 5);
  mine[1] = __shfl_down_sync(all, lane, 3, 8);
  mine[2] = __shfl_up_sync(all, lane, 2);
  mine[3] = __shfl_xor_sync(all, lane, 1);
  mine[4] = static_cast<int>(__ballot_sync(all, lane % 2));
  mine[5] = __any_sync(all, lane == 31) + 2 * __all_sync(all, lane < 31);
}

__global__ void box(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned all = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(out + block * all + thread, static_cast<int>(thread));
}

__global__ void twice_each(const __nv_bfloat16* in, __half* out) {
  out[threadIdx.x] = __float2half(2 * __bfloat162float(in[threadIdx.x]));
}

__global__ void load_each(const int4* from, int4* to) {
  const int4& source = from[threadIdx.x];  // clang checks references, but not copies of whole structures
  int4& target = to[threadIdx.x];
  target = source;
}

}  // namespace

cudaError_t number(cudaStream_t stream, unsigned blocks, unsigned threads, int* out, int size) {
  const auto how = config(stream, blocks, threads);
  return cudaLaunchKernelEx(&how, number_each, out, size);
}
cudaError_t reverse(cudaStream_t stream, unsigned blocks, unsigned threads, int* values) {
  const auto how = config(stream, blocks, threads);
  return cudaLaunchKernelEx(&how, reverse_each, values);
}
cudaError_t unordered(cudaStream_t stream, unsigned threads, int* out) {
  const auto how = config(stream, 1, threads);
  return cudaLaunchKernelEx(&how, unordered_each, out);
}
cudaError_t unset(cudaStream_t stream, unsigned blocks, int* out) {
  const auto how = config(stream, blocks, 1);
  return cudaLaunchKernelEx(&how, unset_each, out);
}
cudaError_t sum(cudaStream_t stream, unsigned blocks, unsigned threads, const float* values, int size, double* total,
                unsigned long long* greatest) {
  const auto how = config(stream, blocks, threads);
  return cudaLaunchKernelEx(&how, sum_all<float>, values, size, total, greatest);
}
cudaError_t shuffle(cudaStream_t stream, int* out) {
  const auto how = config(stream, 1, 32);
  return cudaLaunchKernelEx(&how, shuffle_all, out);
}
cudaError_t boxes(cudaStream_t stream, dim3 grid, dim3 size, int* out) {
  const auto how = config(stream, grid, size);
  return cudaLaunchKernelEx(&how, box, out);
}
cudaError_t twice(cudaStream_t stream, unsigned threads, const void* bfloat16s, void* halves) {
  const auto how = config(stream, 1, threads);
  return cudaLaunchKernelEx(&how, twice_each, static_cast<const __nv_bfloat16*>(bfloat16s),
                            static_cast<__half*>(halves));
}

cudaError_t vectors(cudaStream_t stream, unsigned threads, const int* from, int* to) {
  const auto how = config(stream, 1, threads);
  return cudaLaunchKernelEx(&how, load_each, reinterpret_cast<const int4*>(from), reinterpret_cast<int4*>(to));
}

}  // namespace kernels

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <limits>

#include "distx/cuda/detail/tensor_kernels.hpp"
#include "distx/cuda/kernels/attention.cuh"
#include "distx/cuda/kernels/reductions.cuh"
#include "distx/cuda/kernels/row_ids.cuh"
#include "distx/cuda/kernels/rows.cuh"

// The kernels of tensors' operations. A warp processes one row, whose sums are taken in double; which thread adds which
// numbers depends on the extents alone. So the same operands give the same bits.
namespace distx::inline DISTX_ABI::cuda::detail {

/// Returns the sum of f(column) to each lane.
template <class F>
__device__ double sum_of_columns(std::size_t columns, F&& f) {
  double sum = 0;
  for_each_column(columns, [&](std::size_t i) { sum += static_cast<double>(f(i)); });
  return over_warp(sum, [](double a, double b) { return a + b; });
}
/// Returns the maximum of the numbers to each lane.
template <class T>
__device__ T maximum_of_columns(const T* numbers, std::size_t columns) {
  const auto larger = [](T a, T b) { return a < b ? b : a; };
  T most = -std::numeric_limits<T>::infinity();
  for_each_column(columns, [&](std::size_t i) { most = larger(most, numbers[i]); });
  return over_warp(most, larger);
}

template <class T>
struct SoftmaxRow {
  const T* x;
  std::size_t columns;
  T* out;

  __device__ void operator()(std::size_t row) const {
    const T* const from = x + row * columns;
    const T most = maximum_of_columns(from, columns);
    const double share = 1 / sum_of_columns(columns, [=](std::size_t i) { return std::exp(from[i] - most); });
    for_each_column(columns, [&](std::size_t i) {
      out[row * columns + i] = static_cast<T>(static_cast<double>(std::exp(from[i] - most)) * share);
    });
  }
};
template <class T>
struct SoftmaxRowBackward {
  const T *y, *gradient;
  std::size_t columns;
  T* out;

  __device__ void operator()(std::size_t row) const {
    const T *const value = y + row * columns, *const grad = gradient + row * columns;
    const double mean = sum_of_columns(columns, [=](std::size_t i) { return double{value[i]} * double{grad[i]}; });
    for_each_column(columns, [&](std::size_t i) {
      out[row * columns + i] = static_cast<T>(double{value[i]} * (double{grad[i]} - mean));
    });
  }
};

/// The mean of a row, and the factor that gives it variance 1.
struct Moments {
  double mean, steepness;

  template <class T>
  static __device__ Moments of(const T* x, std::size_t columns, double epsilon) {
    const auto width = static_cast<double>(columns);
    const double mean = sum_of_columns(columns, [=](std::size_t i) { return x[i]; }) / width;
    const double variance = sum_of_columns(columns,
                                           [=](std::size_t i) {
                                             const double each = double{x[i]} - mean;
                                             return each * each;
                                           }) /
                            width;
    return {mean, 1 / std::sqrt(variance + epsilon)};
  }
  template <class T>
  [[nodiscard]] __device__ double normal(T x) const {
    return (double{x} - mean) * steepness;
  }
};
template <class T>
struct NormalizeRow {
  const T *x, *weight, *bias;
  std::size_t columns;
  double epsilon;
  T* out;

  __device__ void operator()(std::size_t row) const {
    const T* const from = x + row * columns;
    const auto moments = Moments::of(from, columns, epsilon);
    for_each_column(columns, [&](std::size_t i) {
      out[row * columns + i] = static_cast<T>(moments.normal(from[i]) * double{weight[i]} + double{bias[i]});
    });
  }
};
template <class T>
struct NormalizeRowBackward {
  const T *x, *weight, *gradient;
  std::size_t columns;
  double epsilon;
  T* out;

  __device__ void operator()(std::size_t row) const {
    const T *const from = x + row * columns, *const grad = gradient + row * columns;
    const auto moments = Moments::of(from, columns, epsilon);
    const auto slope = [&](std::size_t i) { return double{grad[i]} * double{weight[i]}; };
    const auto width = static_cast<double>(columns);
    const double mean = sum_of_columns(columns, slope) / width;
    const double along =
        sum_of_columns(columns, [&](std::size_t i) { return slope(i) * moments.normal(from[i]); }) / width;
    for_each_column(columns, [&](std::size_t i) {
      out[row * columns + i] = static_cast<T>(moments.steepness * (slope(i) - mean - along * moments.normal(from[i])));
    });
  }
};
template <class T>
struct MomentsOfRow {
  const T* x;
  std::size_t columns;
  double epsilon;
  Moments* moments;

  __device__ void operator()(std::size_t row) const {
    const auto found = Moments::of(x + row * columns, columns, epsilon);
    if (leads_warp()) moments[row] = found;
  }
};

/// The terms that are added up in each column: the numbers, or those of the gradient of layer norm's weight.
template <class T>
struct NumberTerm {
  const T* x;
  std::size_t columns;
  __device__ double operator()(std::size_t row, std::size_t column) const { return double{x[row * columns + column]}; }
};
template <class T>
struct NormalTerm {
  const T *x, *gradient;
  std::size_t columns;
  const Moments* moments;
  __device__ double operator()(std::size_t row, std::size_t column) const {
    const std::size_t at = row * columns + column;
    return double{gradient[at]} * moments[row].normal(x[at]);
  }
};
/// Adds up slices of the rows: each block has 32 columns of a slice, each of its warps some of the rows.
template <class Term, class Out>
__global__ void __launch_bounds__(block_threads)
    sum_rows_kernel(Term term, std::size_t rows, std::size_t columns, std::size_t slices, Out* out) {
  const std::size_t tiles = (columns + 31) / 32, slice = blockIdx.x / tiles;
  const std::size_t column = blockIdx.x % tiles * 32 + lane();
  const std::size_t end = rows * (slice + 1) / slices;
  const unsigned warp = threadIdx.x / 32;
  double sum = 0;
  for (std::size_t row = rows * slice / slices + warp; column < columns && row < end; row += block_threads / 32)
    sum += term(row, column);
  auto* const of_warp = static_cast<double*>(block_memory());
  for (unsigned other = 1; other < block_threads / 32; ++other) {
    __syncthreads();
    if (warp == other) of_warp[lane()] = sum;
    __syncthreads();
    if (warp == 0) sum += of_warp[lane()];
  }
  if (warp == 0 && column < columns) out[slice * columns + column] = static_cast<Out>(sum);
}
template <class T, class Term>
void enqueue_sums(CudaStreamRef stream, const Term& term, std::size_t rows, std::size_t columns, double* sums, T* out) {
  const std::size_t slices = TensorKernels<T>::slices(rows), tiles = (columns + 31) / 32;
  if (slices == 1)
    return enqueue<&sum_rows_kernel<Term, T>>(stream, tiles, block_threads, term, rows, columns, slices, out);
  enqueue<&sum_rows_kernel<Term, double>>(stream, tiles * slices, block_threads, term, rows, columns, slices, sums);
  enqueue<&sum_rows_kernel<NumberTerm<double>, T>>(stream, tiles, block_threads, NumberTerm<double>{sums, columns},
                                                   slices, columns, std::size_t{1}, out);
}

/// Columns of a row that each thread of `add_to_rows_kernel` has.
inline constexpr unsigned added_columns = 4;
template <class T>
__global__ void __launch_bounds__(block_threads)
    add_to_rows_kernel(const T* x, const T* b, std::size_t columns, std::size_t tiles, T* out) {
  const std::size_t row = blockIdx.x / tiles, first = blockIdx.x % tiles * (block_threads * added_columns);
  unrolled<static_cast<int>(added_columns)>([&](int k) {
    const std::size_t column = first + static_cast<unsigned>(k) * block_threads + threadIdx.x;
    if (column < columns) out[row * columns + column] = x[row * columns + column] + b[column];
  });
}

template <class T>
struct MaximumOfRow {
  const T* logits;
  std::size_t columns;
  T* maxima;

  __device__ void operator()(std::size_t row) const {
    const T most = maximum_of_columns(logits + row * columns, columns);
    if (leads_warp()) maxima[row] = most;
  }
};
template <class T>
struct ExponentialsOfRow {
  const T* logits;
  std::size_t columns;
  RowIds targets;
  const T* maxima;
  double *sums, *at_targets;

  __device__ void operator()(std::size_t row) const {
    const T* const from = logits + row * columns;
    const T most = maxima[row];
    const double sum = sum_of_columns(columns, [=](std::size_t i) { return std::exp(from[i] - most); });
    if (!leads_warp()) return;
    const std::uint64_t id = id_of(targets, row), at = id - targets.first;
    sums[row] = sum;
    at_targets[row] = id >= targets.limit ? std::numeric_limits<double>::quiet_NaN()
                      : at < targets.rows ? double{from[at]} - double{most}
                                          : 0.0;
  }
};
template <class T>
struct LossOfRow {
  const T* maxima;
  const double *sums, *at_targets;
  T* losses;
  double* log_sums;

  __device__ void operator()(std::size_t row) const {
    if (!leads_warp()) return;
    const double log_sum = std::log(sums[row]);
    losses[row] = static_cast<T>(log_sum - at_targets[row]);
    log_sums[row] = log_sum + double{maxima[row]};
  }
};
template <class T>
struct LogitGradientsOfRow {
  const T* logits;
  std::size_t columns;
  RowIds targets;
  const double* log_sums;
  const T* gradient;
  T* out;

  __device__ void operator()(std::size_t row) const {
    const std::uint64_t id = id_of(targets, row), at = id - targets.first;
    const double log_sum = log_sums[row];
    const T slope = id < targets.limit ? gradient[row] : std::numeric_limits<T>::quiet_NaN();
    for_each_column(columns, [&](std::size_t i) {
      const T probability = std::exp(static_cast<T>(double{logits[row * columns + i]} - log_sum));
      out[row * columns + i] = slope * (i == at ? probability - 1 : probability);
    });
  }
};

template <class T>
TensorKernels<T> all_tensor_kernels() {
  using Rows = typename TensorKernels<T>::Rows;
  return {
      .add_to_rows =
          [](CudaStreamRef stream, Rows x, const T* b, T* out) {
            constexpr std::size_t tile = block_threads * added_columns;
            const std::size_t tiles = (x.columns + tile - 1) / tile;
            enqueue<&add_to_rows_kernel<T>>(stream, x.rows * tiles, block_threads, x.values, b, x.columns, tiles, out);
          },
      .sum_rows =
          [](CudaStreamRef stream, Rows x, double* sums, T* out) {
            enqueue_sums(stream, NumberTerm<T>{x.values, x.columns}, x.rows, x.columns, sums, out);
          },
      .normalize =
          [](CudaStreamRef stream, Rows x, const T* weight, const T* bias, double epsilon, T* out) {
            for_each_row(stream, x.rows, NormalizeRow<T>{x.values, weight, bias, x.columns, epsilon, out});
          },
      .normalize_backward =
          [](CudaStreamRef stream, Rows x, const T* weight, const T* gradient, double epsilon, T* out) {
            for_each_row(stream, x.rows, NormalizeRowBackward<T>{x.values, weight, gradient, x.columns, epsilon, out});
          },
      .normal_weight =
          [](CudaStreamRef stream, Rows x, const T* gradient, double epsilon, double* numbers, double* sums, T* out) {
            static_assert(sizeof(Moments) == 2 * sizeof(double));
            auto* const moments = reinterpret_cast<Moments*>(numbers);
            for_each_row(stream, x.rows, MomentsOfRow<T>{x.values, x.columns, epsilon, moments});
            enqueue_sums(stream, NormalTerm<T>{x.values, gradient, x.columns, moments}, x.rows, x.columns, sums, out);
          },
      .softmax = [](CudaStreamRef stream, Rows x,
                    T* out) { for_each_row(stream, x.rows, SoftmaxRow<T>{x.values, x.columns, out}); },
      .softmax_backward =
          [](CudaStreamRef stream, Rows y, const T* gradient, T* out) {
            for_each_row(stream, y.rows, SoftmaxRowBackward<T>{y.values, gradient, y.columns, out});
          },
      .attention = enqueue_attention<T>,
      .attention_backward = enqueue_attention_backward<T>,
      .add_to_rows_of = enqueue_add_to_rows_of<T>,
      .maxima =
          [](CudaStreamRef stream, Rows logits, T* maxima) {
            for_each_row(stream, logits.rows, MaximumOfRow<T>{logits.values, logits.columns, maxima});
          },
      .exponentials =
          [](CudaStreamRef stream, Rows logits, const RowIds& targets, const T* maxima, double* sums,
             double* at_targets) {
            for_each_row(stream, logits.rows,
                         ExponentialsOfRow<T>{logits.values, logits.columns, targets, maxima, sums, at_targets});
          },
      .cross_entropy =
          [](CudaStreamRef stream, std::size_t rows, const T* maxima, const double* sums, const double* at_targets,
             T* losses, double* log_sums) {
            for_each_row(stream, rows, LossOfRow<T>{maxima, sums, at_targets, losses, log_sums});
          },
      .cross_entropy_backward =
          [](CudaStreamRef stream, Rows logits, const RowIds& targets, const double* log_sums, const T* gradient,
             T* out) {
            for_each_row(stream, logits.rows,
                         LogitGradientsOfRow<T>{logits.values, logits.columns, targets, log_sums, gradient, out});
          },
  };
}

[[maybe_unused]] inline const bool has_tensor_kernels =
    (tensor_kernels<float> = all_tensor_kernels<float>(), tensor_kernels<double> = all_tensor_kernels<double>(),
     take_rows_kernel = enqueue_take_rows, true);

}  // namespace distx::inline DISTX_ABI::cuda::detail

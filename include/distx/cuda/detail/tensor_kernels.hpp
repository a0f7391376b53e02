// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>
#include <string>

#include "distx/core/error.hpp"
#include "distx/cuda/buffer.hpp"
#include "distx/cuda/detail/copy_box.hpp"
#include "distx/cuda/detail/kernels.hpp"
#include "distx/cuda/detail/operations.hpp"
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/tensor_ref.hpp"

// The kernels of tensors' operations in a GPU's memory: those of tensor/ops/ on the stream of a GPU. Argument-dependent
// lookup finds them by `Cuda`.
namespace distx::inline DISTX_ABI::cuda::detail {

/// Integers that select rows of a table, some of which this rank holds. Ids are read as unsigned: a negative one is not
/// below `limit`.
struct RowIds {
  const void* ids;
  unsigned bytes;       ///< of each id
  std::size_t count;    ///< of ids
  std::uint64_t limit;  ///< valid ids are less
  std::uint64_t first;  ///< the id of this rank's first row
  std::uint64_t rows;   ///< that this rank holds

  template <class Id>
  RowIds(Span<const Id, Cuda> all, std::size_t first_row, std::size_t held, std::uint64_t vocabulary)
      : ids(all.data()),
        bytes(sizeof(Id)),
        count(all.size()),
        limit(std::min<std::uint64_t>(vocabulary, std::uint64_t{std::numeric_limits<Id>::max()})),
        first(first_row),
        rows(held) {
    if (limit < vocabulary) ++limit;  // the largest Id is valid
  }

  /// The most warps that sort ids by their rows.
  static constexpr std::size_t sorting_warps = 256;
  /// The size of the argument `order`: two orders of the ids, and how many of each warp have each of 32 digits.
  [[nodiscard]] std::size_t order_size() const noexcept { return 2 * count + 32 * sorting_warps; }
};

/// The kernels of one element type, float or double; set by distx/cuda_kernels.cuh. Callers have checked the extents;
/// there is at least one row, and one column, except that the rows of `maxima` and `exponentials` may be empty.
template <class T>
struct TensorKernels {
  struct Rows {
    const T* values;
    std::size_t rows, columns;

    Rows(const MatrixRef<const T, Cuda>& x) : values(x.values.data()), rows(x.rows), columns(x.columns) {}  // NOLINT
  };

  /// Slices of the rows that `sum_rows` and `normal_weight` add up one by one, and then their sums.
  static constexpr std::size_t rows_of_slice = 64, most_slices = 128;
  [[nodiscard]] static std::size_t slices(std::size_t rows) noexcept {
    return std::min(most_slices, (rows + rows_of_slice - 1) / rows_of_slice);
  }
  /// The size of the argument `sums`: a row for each slice, or 0 for one slice, whose sums are the result.
  [[nodiscard]] static std::size_t sums_size(std::size_t rows, std::size_t columns) noexcept {
    return slices(rows) == 1 ? 0 : slices(rows) * columns;
  }

  void (*add_to_rows)(CudaStreamRef, Rows x, const T* b, T* out);
  void (*sum_rows)(CudaStreamRef, Rows x, double* sums, T* out);
  void (*normalize)(CudaStreamRef, Rows x, const T* weight, const T* bias, double epsilon, T* out);
  void (*normalize_backward)(CudaStreamRef, Rows x, const T* weight, const T* gradient, double epsilon, T* out);
  /// `moments` has two numbers for each row.
  void (*normal_weight)(CudaStreamRef, Rows x, const T* gradient, double epsilon, double* moments, double* sums,
                        T* out);
  void (*softmax)(CudaStreamRef, Rows x, T* out);
  void (*softmax_backward)(CudaStreamRef, Rows y, const T* gradient, T* out);
  void (*attention)(CudaStreamRef, const Extents<5>& extents, const T* x, T* out);
  /// `queries` has three numbers for each query.
  void (*attention_backward)(CudaStreamRef, const Extents<5>& extents, const T* x, const T* gradient, T* queries,
                             T* out);
  void (*add_to_rows_of)(CudaStreamRef, const RowIds& ids, const Rows& gradient, std::uint32_t* order, T* out);
  void (*maxima)(CudaStreamRef, Rows logits, T* maxima);
  void (*exponentials)(CudaStreamRef, Rows logits, const RowIds& targets, const T* maxima, double* sums,
                       double* at_targets);
  void (*cross_entropy)(CudaStreamRef, std::size_t rows, const T* maxima, const double* sums, const double* at_targets,
                        T* losses, double* log_sums);
  void (*cross_entropy_backward)(CudaStreamRef, Rows logits, const RowIds& targets, const double* log_sums,
                                 const T* gradient, T* out);
};
template <class T>
inline constinit TensorKernels<T> tensor_kernels{};

/// Copies rows of bytes; of ids that are not valid, sets all bits.
using TakeRows = void(CudaStreamRef, const RowIds& ids, const std::byte* table, std::size_t row_bytes, std::byte* out);
inline constinit TakeRows* take_rows_kernel = nullptr;

namespace tensors {

template <class T>
void add_to_rows(CudaStreamRef stream, MatrixRef<const T, Cuda> x, Span<const T, Cuda> b, MatrixRef<T, Cuda> out) {
  const auto kernel = kernel_in(tensor_kernels<T>.add_to_rows, "add_trailing");
  if (!x.values.empty()) kernel(stream, x, b.data(), out.values.data());
}
template <class T>
void sum_of_rows(CudaStreamRef stream, MatrixRef<const T, Cuda> x, Span<T, Cuda> out) {
  const auto kernel = kernel_in(tensor_kernels<T>.sum_rows, "sum_leading");
  if (x.values.empty()) return fill(stream, out, T{});
  const Buffer<double, Cuda> sums(TensorKernels<T>::sums_size(x.rows, x.columns), uninitialized, stream);
  kernel(stream, x, sums.data(), out.data());
}
template <class T>
void normalize_rows(CudaStreamRef stream, MatrixRef<const T, Cuda> x, Span<const T, Cuda> weight,
                    Span<const T, Cuda> bias, double epsilon, MatrixRef<T, Cuda> out) {
  const auto kernel = kernel_in(tensor_kernels<T>.normalize, "layer_norm");
  if (!x.values.empty()) kernel(stream, x, weight.data(), bias.data(), epsilon, out.values.data());
}
template <class T>
void normalize_rows_backward(CudaStreamRef stream, MatrixRef<const T, Cuda> x, Span<const T, Cuda> weight,
                             MatrixRef<const T, Cuda> gradient, double epsilon, MatrixRef<T, Cuda> out) {
  const auto kernel = kernel_in(tensor_kernels<T>.normalize_backward, "layer_norm_backward");
  if (!x.values.empty()) kernel(stream, x, weight.data(), gradient.values.data(), epsilon, out.values.data());
}
template <class T>
void normalize_rows_weight(CudaStreamRef stream, MatrixRef<const T, Cuda> x, MatrixRef<const T, Cuda> gradient,
                           double epsilon, Span<T, Cuda> out) {
  const auto kernel = kernel_in(tensor_kernels<T>.normal_weight, "layer_norm_backward");
  if (x.values.empty()) return fill(stream, out, T{});
  const Buffer<double, Cuda> moments(2 * x.rows, uninitialized, stream);
  const Buffer<double, Cuda> sums(TensorKernels<T>::sums_size(x.rows, x.columns), uninitialized, stream);
  kernel(stream, x, gradient.values.data(), epsilon, moments.data(), sums.data(), out.data());
}
template <class T>
void softmax_rows(CudaStreamRef stream, MatrixRef<const T, Cuda> x, MatrixRef<T, Cuda> out) {
  const auto kernel = kernel_in(tensor_kernels<T>.softmax, "softmax");
  if (!x.values.empty()) kernel(stream, x, out.values.data());
}
template <class T>
void softmax_rows_backward(CudaStreamRef stream, MatrixRef<const T, Cuda> y, MatrixRef<const T, Cuda> gradient,
                           MatrixRef<T, Cuda> out) {
  const auto kernel = kernel_in(tensor_kernels<T>.softmax_backward, "softmax_backward");
  if (!y.values.empty()) kernel(stream, y, gradient.values.data(), out.values.data());
}
template <std::floating_point T>
void causal_attention(CudaStreamRef stream, const TensorRef<const T, 5, Cuda>& x, const TensorRef<T, 4, Cuda>& out) {
  const auto kernel = kernel_in(tensor_kernels<T>.attention, "causal_attention");
  if (!out.values().empty()) kernel(stream, x.extents(), x.data(), out.data());
}
template <std::floating_point T>
void causal_attention_backward(CudaStreamRef stream, const TensorRef<const T, 5, Cuda>& x,
                               const TensorRef<const T, 4, Cuda>& gradient, const TensorRef<T, 5, Cuda>& out) {
  const auto kernel = kernel_in(tensor_kernels<T>.attention_backward, "causal_attention_backward");
  if (out.values().empty()) return;
  const Buffer<T, Cuda> queries(3 * x.extent(0) * x.extent(1) * x.extent(3), uninitialized, stream);
  kernel(stream, x.extents(), x.data(), gradient.data(), queries.data(), out.data());
}
template <class Id, class T>
void take_rows(CudaStreamRef stream, Span<const Id, Cuda> ids, MatrixRef<const T, Cuda> table, std::size_t first,
               std::size_t all, MatrixRef<T, Cuda> out, const ErrorContext&) {
  const auto kernel = kernel_in(take_rows_kernel, "embedding");
  if (!out.values.empty())
    kernel(stream, RowIds(ids, first, table.rows, all), reinterpret_cast<const std::byte*>(table.values.data()),
           table.columns * sizeof(T), reinterpret_cast<std::byte*>(out.values.data()));
}
template <class Id, class T>
void add_to_rows_of(CudaStreamRef stream, Span<const Id, Cuda> ids, MatrixRef<const T, Cuda> gradient,
                    std::size_t first, std::size_t all, MatrixRef<T, Cuda> out, const ErrorContext& context) {
  const auto kernel = kernel_in(tensor_kernels<T>.add_to_rows_of, "embedding_backward");
  if (ids.size() > std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgument(
        "invalid number of ids " + std::to_string(ids.size()) + ": must be at most 4294967295 on a GPU", context);
  fill(stream, out.values, T{});
  if (gradient.values.empty()) return;
  const RowIds rows(ids, first, out.rows, all);
  const Buffer<std::uint32_t, Cuda> order(rows.order_size(), uninitialized, stream);
  kernel(stream, rows, gradient, order.data(), out.values.data());
}
template <class T>
void maxima_of_rows(CudaStreamRef stream, MatrixRef<const T, Cuda> logits, Span<T, Cuda> maxima) {
  const auto kernel = kernel_in(tensor_kernels<T>.maxima, "cross_entropy");
  if (logits.rows > 0) kernel(stream, logits, maxima.data());
}
template <class T, class Id>
void sums_of_rows(CudaStreamRef stream, MatrixRef<const T, Cuda> logits, Span<const Id, Cuda> targets,
                  std::size_t first, std::size_t all, Span<const T, Cuda> maxima, Span<double, Cuda> sums,
                  Span<double, Cuda> at_targets, const ErrorContext&) {
  if (logits.rows > 0)
    tensor_kernels<T>.exponentials(stream, logits, RowIds(targets, first, logits.columns, all), maxima.data(),
                                   sums.data(), at_targets.data());
}
template <class T>
void cross_entropy_of_rows(CudaStreamRef stream, Span<const T, Cuda> maxima, Span<const double, Cuda> sums,
                           Span<const double, Cuda> at_targets, Span<T, Cuda> losses, Span<double, Cuda> log_sums) {
  if (!losses.empty())
    tensor_kernels<T>.cross_entropy(stream, losses.size(), maxima.data(), sums.data(), at_targets.data(), losses.data(),
                                    log_sums.data());
}
template <class T, class Id>
void cross_entropy_gradient(CudaStreamRef stream, MatrixRef<const T, Cuda> logits, Span<const Id, Cuda> targets,
                            std::size_t first, std::size_t all, Span<const double, Cuda> log_sums,
                            Span<const T, Cuda> gradient, MatrixRef<T, Cuda> out, const ErrorContext&) {
  const auto kernel = kernel_in(tensor_kernels<T>.cross_entropy_backward, "cross_entropy_backward");
  if (!logits.values.empty())
    kernel(stream, logits, RowIds(targets, first, logits.columns, all), log_sums.data(), gradient.data(),
           out.values.data());
}
template <class T, std::size_t Rank>
void permute(CudaStreamRef stream, TensorRef<const T, Rank, Cuda> x, TensorRef<T, Rank, Cuda> out,
             const std::size_t (&from)[Rank]) {
  if (out.values().empty()) return;
  distx::detail::BoxRuns runs({}, {}, {}, sizeof(T));
  for (std::size_t d = 0; d < Rank; ++d) {
    runs.count[d] = out.extent(d);
    runs.to_step[d] = out.stride(d) * sizeof(T);
    runs.from_step[d] = x.stride(from[d]) * sizeof(T);
  }
  runs.dimensions = Rank;
  kernel_in(copy_runs_kernel, "transpose")(stream, reinterpret_cast<std::byte*>(out.data()),
                                           reinterpret_cast<const std::byte*>(x.data()), runs);
}

}  // namespace tensors

}  // namespace distx::inline DISTX_ABI::cuda::detail

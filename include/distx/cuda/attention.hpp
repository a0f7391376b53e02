// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/cuda/blas.hpp"
#include "distx/cuda/detail/tensor_kernels.hpp"

// Causal attention in a GPU's memory: products by cuBLAS, of all heads of a batch item at once, and softmax by a
// kernel. All weights are stored, those of one batch item at a time. The products are over all tokens, with zeros as
// the weights of later ones: 0 * NaN is NaN, so a number that is not finite reaches the results of earlier tokens too.
namespace distx::inline DISTX_ABI::cuda::detail {

/// The matrices of all heads, row-major, or column-major if `transposed`.
template <class T>
struct HeadMatrices {
  T* data;
  std::size_t rows, columns, row_stride, head_stride;
  bool transposed = false;

  [[nodiscard]] HeadMatrices transpose() const { return {data, columns, rows, row_stride, head_stride, !transposed}; }
  operator HeadMatrices<const T>() const  // NOLINT
    requires(!std::is_const_v<T>)
  {
    return {data, rows, columns, row_stride, head_stride, transposed};
  }
};

/// The matrices of a batch item: queries, keys, values and their gradients, and results and their gradients.
template <class T>
class AttentionHeads {
 public:
  template <class Elements>
  explicit AttentionHeads(CudaStreamRef stream, const TensorRef<Elements, 5, Cuda>& x)
      : stream_(stream), length_(x.extent(1)), heads_(x.extent(3)), size_(x.extent(4)) {}

  /// @param part  0, 1, 2 for queries, keys, values
  template <class U>
  [[nodiscard]] HeadMatrices<U> part(U* x, std::size_t batch, std::size_t part) const {
    const std::size_t row = heads_ * size_;
    return {x + (batch * length_ * 3 + part) * row, length_, size_, 3 * row, size_};
  }
  template <class U>
  [[nodiscard]] HeadMatrices<U> result(U* x, std::size_t batch) const {
    return {x + batch * length_ * heads_ * size_, length_, size_, heads_ * size_, size_};
  }
  [[nodiscard]] HeadMatrices<T> weights(const Buffer<T, Cuda>& memory) const {
    return {memory.data(), length_, length_, length_, length_ * length_};
  }
  [[nodiscard]] Buffer<T, Cuda> memory() const {
    return Buffer<T, Cuda>(heads_ * length_ * length_, uninitialized, stream_);
  }
  /// The rows of all weights, as the kernels take them.
  [[nodiscard]] MatrixRef<const T, Cuda> rows(const Buffer<T, Cuda>& memory) const {
    return {memory.span(), heads_ * length_, length_};
  }
  [[nodiscard]] T root() const { return 1 / std::sqrt(static_cast<T>(size_)); }

  /// Enqueues out = scale * left * right for each head.
  void multiply(HeadMatrices<T> out, HeadMatrices<const T> left, HeadMatrices<const T> right, T scale = 1) const {
    const auto form = [](const auto& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const auto step = [](const auto& m) { return static_cast<long long>(m.head_stride); };
    constexpr cudaDataType_t type = data_type<T>();
    const T keep = 0;
    // Operands are exchanged, as in `local_matmul`.
    check(cublasGemmStridedBatchedEx(
              blas_handle(stream_), form(right), form(left), blas_size(out.columns), blas_size(out.rows),
              blas_size(left.columns), &scale, right.data, type, blas_size(right.row_stride), step(right), left.data,
              type, blas_size(left.row_stride), step(left), &keep, out.data, type, blas_size(out.row_stride), step(out),
              blas_size(heads_), compute_type<T>(), CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
  }
  /// Sets the attention weights of a batch item.
  void attend(const T* x, std::size_t batch, const Buffer<T, Cuda>& weights) const {
    const auto softmax = kernel_in(tensor_kernels<T>.softmax, "causal_attention");
    multiply(this->weights(weights), part(x, batch, 0), part(x, batch, 1).transpose(), root());
    softmax(stream_, rows(weights), length_, weights.data());
  }

 private:
  CudaStreamRef stream_;
  std::size_t length_, heads_, size_;
};

namespace tensors {

template <std::floating_point T>
void causal_attention(CudaStreamRef stream, const TensorRef<const T, 5, Cuda>& x, const TensorRef<T, 4, Cuda>& out) {
  if (out.values().empty()) return;
  const AttentionHeads<T> heads(stream, x);
  const auto weights = heads.memory();
  for (std::size_t batch = 0; batch < x.extent(0); ++batch) {
    heads.attend(x.data(), batch, weights);
    heads.multiply(heads.result(out.data(), batch), heads.weights(weights), heads.part(x.data(), batch, 2));
  }
}
template <std::floating_point T>
void causal_attention_backward(CudaStreamRef stream, const TensorRef<const T, 5, Cuda>& x,
                               const TensorRef<const T, 4, Cuda>& gradient, const TensorRef<T, 5, Cuda>& out) {
  if (out.values().empty()) return;
  const AttentionHeads<T> heads(stream, x);
  const auto weights = heads.memory(), scores = heads.memory();
  for (std::size_t batch = 0; batch < x.extent(0); ++batch) {
    const auto slope = heads.result(gradient.data(), batch);
    const auto of_weights = heads.weights(weights), of_scores = heads.weights(scores);
    heads.attend(x.data(), batch, weights);
    heads.multiply(heads.part(out.data(), batch, 2), of_weights.transpose(), slope);
    heads.multiply(of_scores, slope, heads.part(x.data(), batch, 2).transpose());
    tensor_kernels<T>.softmax_backward(stream, heads.rows(weights), scores.data(), x.extent(1),
                                       static_cast<double>(heads.root()), scores.data());
    heads.multiply(heads.part(out.data(), batch, 0), of_scores, heads.part(x.data(), batch, 1));
    heads.multiply(heads.part(out.data(), batch, 1), of_scores.transpose(), heads.part(x.data(), batch, 0));
  }
}

}  // namespace tensors

}  // namespace distx::inline DISTX_ABI::cuda::detail

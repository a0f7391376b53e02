// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <Eigen/Core>

#include "distx/tensor/dist_tensor.hpp"
#include "distx/tensor/tensor_ref.hpp"

namespace distx::inline DISTX_ABI::eigen {

/// A row-major Eigen matrix, the storage order of distx's tensors.
template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

namespace detail {

template <class T>
using RowMajorMap =
    Eigen::Map<std::conditional_t<std::is_const_v<T>, const RowMajor<std::remove_const_t<T>>, RowMajor<T>>>;

}  // namespace detail

/// Returns an Eigen map on the memory of a tensor of this process.
///
/// A tensor (…, n) maps to a row-major matrix with n columns, whose rows are the indices of all other dimensions; a
/// tensor of rank 1 maps to a single row. The map borrows the memory, which must outlive it.
template <class T, std::size_t Rank>
[[nodiscard]] auto map(TensorRef<T, Rank> x) {
  static_assert(Rank >= 1, "distx: eigen::map: a tensor of rank 0 is not a matrix");
  Eigen::Index rows = 1;
  for (std::size_t d = 0; d + 1 < Rank; ++d) rows *= static_cast<Eigen::Index>(x.extent(d));
  return detail::RowMajorMap<T>(x.data(), rows, static_cast<Eigen::Index>(x.extent(Rank - 1)));
}
template <class T, std::size_t Rank>
[[nodiscard]] auto map(Tensor<T, Rank>& x) {
  return map(x.ref());
}
template <class T, std::size_t Rank>
[[nodiscard]] auto map(const Tensor<T, Rank>& x) {
  return map(x.ref());
}
/// Returns an Eigen map on this rank's part of a distributed tensor, which must outlive it.
template <class X>
  requires DistributedTensor<X> && HostAccessible<typename std::remove_cvref_t<X>::space>
[[nodiscard]] auto map(X& x) {
  return map(x.view());
}
template <class X>
  requires DistributedTensor<X> && HostAccessible<typename std::remove_cvref_t<X>::space>
auto map(const X&& x) = delete;  // the map would outlive the memory

/// Returns a row-major Eigen matrix, or a vector, as a tensor of rank 2: `distribute<Shard<0, Data>>(mesh,
/// eigen::tensor(m))`.
///
/// The tensor borrows the matrix, which must outlive it. A column-major matrix does not compile.
template <class Derived>
[[nodiscard]] auto tensor(const Eigen::PlainObjectBase<Derived>& m) {
  static_assert(Derived::IsRowMajor || Derived::IsVectorAtCompileTime,
                "distx: eigen::tensor: the matrix is column-major; copy it to a row-major one");
  using T = typename Derived::Scalar;
  return TensorRef<const T, 2>(Span<const T>(m.data(), static_cast<std::size_t>(m.size())),
                               {static_cast<std::size_t>(m.rows()), static_cast<std::size_t>(m.cols())});
}

}  // namespace distx::inline DISTX_ABI::eigen

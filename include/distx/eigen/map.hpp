// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <Eigen/Core>

#include "distx/tensor/dist_tensor.hpp"
#include "distx/tensor/tensor_ref.hpp"

namespace distx::eigen {

/// A matrix whose rows lie one after another, as those of distx's tensors do.
template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

namespace detail {

template <class T>
using Mapped = Eigen::Map<std::conditional_t<std::is_const_v<T>, const RowMajor<std::remove_const_t<T>>, RowMajor<T>>>;

}  // namespace detail

/// A tensor of this process as an Eigen map on its memory: of one dimension a row, of more all but the last one's
/// indices together as rows.
template <class T, std::size_t Rank>
[[nodiscard]] auto map(TensorRef<T, Rank> x) {
  static_assert(Rank >= 1, "distx: a tensor without dimensions is no matrix");
  Eigen::Index rows = 1;
  for (std::size_t d = 0; d + 1 < Rank; ++d) rows *= static_cast<Eigen::Index>(x.extent(d));
  return detail::Mapped<T>(x.data(), rows, static_cast<Eigen::Index>(x.extent(Rank - 1)));
}
template <class T, std::size_t Rank>
[[nodiscard]] auto map(Tensor<T, Rank>& x) {
  return map(x.ref());
}
template <class T, std::size_t Rank>
[[nodiscard]] auto map(const Tensor<T, Rank>& x) {
  return map(x.ref());
}
/// This rank's part of a distributed tensor.
template <class X>
  requires DistributedTensor<X> && HostAccessible<typename std::remove_cvref_t<X>::space>
[[nodiscard]] auto map(X& x) {
  return map(x.view());
}
template <class X>
  requires DistributedTensor<X> && HostAccessible<typename std::remove_cvref_t<X>::space>
auto map(const X&& x) = delete;  // the map would outlive the memory

/// A matrix whose rows lie one after another, as a tensor: `distribute<Shard<0, Data>>(mesh, eigen::tensor(m))`.
template <class Derived>
[[nodiscard]] auto tensor(const Eigen::PlainObjectBase<Derived>& m) {
  static_assert(Derived::IsRowMajor || Derived::IsVectorAtCompileTime,
                "distx: the columns of this matrix lie one after another: copy it to a row-major one");
  using T = typename Derived::Scalar;
  return TensorRef<const T, 2>(Span<const T>(m.data(), static_cast<std::size_t>(m.size())),
                               {static_cast<std::size_t>(m.rows()), static_cast<std::size_t>(m.cols())});
}

}  // namespace distx::eigen

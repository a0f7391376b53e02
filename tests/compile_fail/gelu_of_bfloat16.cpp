// expect: distx: gelu: the elements must be float or double
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/activations.hpp"

struct Model {};
template <class T>
using Tensor = distx::DistTensor<T, 2, distx::Mesh<Model>, distx::Layout<>>;

#ifndef DISTX_POSITIVE
auto activated(const Tensor<distx::bfloat16>& x) { return distx::ops::gelu(x); }
#else
auto activated(const Tensor<float>& x) { return distx::ops::gelu(x); }
#endif

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <new>

#include "distx/cuda/detail/fused_update.hpp"
#include "distx/cuda/kernels/operations.cuh"

namespace distx {

namespace cuda::detail {

/// One element's update.
template <class Optimizer, class T>
struct UpdateBody : Plain<UpdateBody<Optimizer, T>> {
  using A = accumulator_t<T>;
  coefficients_t<Optimizer, A> coefficients;

  __host__ __device__ explicit UpdateBody(const coefficients_t<Optimizer, A>& of) : coefficients(of) {}

  template <class... S>
  __device__ void operator()(T& weight, const T& gradient, S&... state) const {
    using Number = Rounded<A>;
    Number value = static_cast<A>(weight);
    [&](auto... own) {
      Optimizer::update(coefficients, value, Number(static_cast<A>(gradient)), own...);
      ((state = own.number()), ...);
    }(Number(state)...);
    weight = static_cast<T>(value.number());
  }
};

/// The same by a step in the GPU's memory: a block works out its coefficients once.
template <class Optimizer, class T>
struct StepUpdateBody {
  using A = accumulator_t<T>;
  using C = coefficients_t<Optimizer, A>;
  Optimizer optimizer;
  const StepNumbers* numbers;

  __device__ UpdateBody<Optimizer, T> begin() const {
    alignas(C) __shared__ unsigned char memory[sizeof(C)];
    if (threadIdx.x == 0) {
      Step step;
      step.learning_rate = numbers->learning_rate;
      step.number = numbers->number;
      if (numbers->sets_decay) step.weight_decay = numbers->weight_decay;
      ::new (static_cast<void*>(memory)) C(optimizer.template coefficients<A>(step));
    }
    __syncthreads();
    return UpdateBody<Optimizer, T>(*reinterpret_cast<const C*>(memory));
  }
};

/// Whether the optimizer's update takes other numbers than float and double.
template <class Optimizer, class A, std::size_t... I>
constexpr bool takes_rounded(std::index_sequence<I...>) {
  using V = Rounded<A>;
  return requires(const coefficients_t<Optimizer, A>& c, V& value, std::array<V, sizeof...(I)>& state) {
    Optimizer::update(c, value, V(value), state[I]...);
  };
}

template <class Optimizer, class T>
void enqueue_update(CudaStreamRef stream, const Optimizer& optimizer, const Step& step, const StepNumbers* numbers,
                    T* weight, const T* gradient, const std::array<accumulator_t<T>*, Optimizer::states>& state,
                    std::size_t count) {
  using A = accumulator_t<T>;
  static_assert(std::is_trivially_copyable_v<Optimizer> && std::is_trivially_copyable_v<coefficients_t<Optimizer, A>>,
                "distx::register_optimizer: a GPU is given the optimizer and its coefficients as bytes, so they must "
                "be trivially copyable");
  constexpr auto states = std::make_index_sequence<Optimizer::states>{};
  constexpr bool takes = takes_rounded<Optimizer, A>(states);
  static_assert(takes,
                "distx::register_optimizer: a GPU updates numbers each of whose operations rounds by itself: "
                "let weight, gradient and state be of a type V of their own, as in template <class T, class V> "
                "update(const Coefficients<T>&, V& weight, V gradient, V& state)");
  const auto apply = [&]<std::size_t... I>(const auto& body, std::index_sequence<I...>) {
    for_each_element(stream, body, count, InOut<T>{weight}, In<T>{gradient}, InOut<A>{state[I]}...);
  };
  if constexpr (takes) {
    if (numbers == nullptr)
      apply(UpdateBody<Optimizer, T>(optimizer.template coefficients<A>(step)), states);
    else
      apply(StepUpdateBody<Optimizer, T>{optimizer, numbers}, states);
  }
}

}  // namespace cuda::detail

/// Makes an optimizer's kernels for weights of float, double, bfloat16 and float16. One line, at namespace scope, in
/// the file that includes <distx/cuda_kernels.cuh>: `const bool registered = distx::register_optimizer<MyOptimizer>();`
template <ElementwiseOptimizer Optimizer>
bool register_optimizer() {
  cuda::detail::update_slot<Optimizer, float> = &cuda::detail::enqueue_update<Optimizer, float>;
  cuda::detail::update_slot<Optimizer, double> = &cuda::detail::enqueue_update<Optimizer, double>;
  cuda::detail::update_slot<Optimizer, bfloat16> = &cuda::detail::enqueue_update<Optimizer, bfloat16>;
  cuda::detail::update_slot<Optimizer, float16> = &cuda::detail::enqueue_update<Optimizer, float16>;
  return true;
}

}  // namespace distx

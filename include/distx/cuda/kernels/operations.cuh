// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/kernels/convert.cuh"
#include "distx/cuda/kernels/elementwise.cuh"
#include "distx/cuda/kernels/rounded.cuh"
#include "distx/cuda/kernels/typed.cuh"
#include "distx/memory/detail/moving_average.hpp"

// The elementwise operations of cuda/detail/operations.hpp: the host's arithmetic.
namespace distx::inline DISTX_ABI::cuda::detail {

template <class T>
struct FillBody {
  T value;
  __device__ void operator()(T& to) const { to = value; }
};

template <class To, class From>
struct CastBody {
  __device__ void operator()(To& to, const From& from) const { to = narrow<To>(wide(from)); }
};

template <class T>
struct ScaleBody {
  using A = accumulator_t<T>;
  A factor;
  __device__ void operator()(T& value) const { value = narrow<T>((Rounded<A>(wide(value)) * factor).number()); }
};

template <class T>
struct AddBody {
  using A = accumulator_t<T>;
  __device__ void operator()(T& to, const T& from) const {
    to = narrow<T>((Rounded<A>(wide(to)) + wide(from)).number());
  }
};

template <class To, class From>
struct MixBody {
  using A = accumulator_t<To>;
  distx::detail::MovingAverage<A> average;
  __device__ void operator()(To& to, const From& from) const {
    Rounded<A> mixed = wide(to);
    average.add(mixed, Rounded<A>(static_cast<A>(wide(from))));
    to = narrow<To>(mixed.number());
  }
};

inline void enqueue_fill(CudaStreamRef stream, void* to, std::size_t count, std::size_t element_bytes,
                         std::uint64_t bits) {
  const auto as = [&]<class T>(T value) {
    for_each_element(stream, FillBody<T>{value}, count, Out<T>{static_cast<T*>(to)});
  };
  if (element_bytes == 2)
    as(static_cast<std::uint16_t>(bits));
  else if (element_bytes == 4)
    as(static_cast<std::uint32_t>(bits));
  else
    as(bits);
}

inline void enqueue_cast(CudaStreamRef stream, Kernels::Out to, Kernels::In from) {
  with_fractional(to, [&]<class To>(To* wanted) {
    with_fractional(from, [&]<class From>(const From* given) {
      if constexpr (!std::same_as<To, From> && (FloatingElement<To> || FloatingElement<From>))
        for_each_element(stream, CastBody<To, From>{}, to.size(), Out<To>{wanted}, In<From>{given});
    });
  });
}

inline void enqueue_scale(CudaStreamRef stream, Kernels::Out values, double factor) {
  with_floating(values, [&]<class T>(T* all) {
    for_each_element(stream, ScaleBody<T>{static_cast<accumulator_t<T>>(factor)}, values.size(), InOut<T>{all});
  });
}

inline void enqueue_add(CudaStreamRef stream, Kernels::Out to, Kernels::In from) {
  with_floating(to, [&]<class T>(T* sum) {
    for_each_element(stream, AddBody<T>{}, to.size(), InOut<T>{sum}, In<T>{static_cast<const T*>(from.data())});
  });
}

inline void enqueue_mix(CudaStreamRef stream, Kernels::Out to, Kernels::In from, double kept) {
  with_floating(to, [&]<class To>(To* mixed) {
    with_floating(from, [&]<class From>(const From* given) {
      for_each_element(stream, MixBody<To, From>{distx::detail::MovingAverage<accumulator_t<To>>::keeping(kept)},
                       to.size(), InOut<To>{mixed}, In<From>{given});
    });
  });
}

}  // namespace distx::inline DISTX_ABI::cuda::detail

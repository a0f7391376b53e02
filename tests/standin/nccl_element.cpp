// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/nccl_element.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace standin {

namespace {

template <class T>
inline constexpr bool is_small = !std::is_arithmetic_v<T>;

/// What arithmetic on a type is done in.
template <class T, bool = is_small<T>>
struct WideOf {
  using type = float;
};
template <class T>
struct WideOf<T, false> {
  using type = T;
};
template <class T>
using Wide = typename WideOf<T>::type;

template <class T>
Wide<T> wide(T value) {
  return static_cast<Wide<T>>(value);
}
template <class T>
T narrow(Wide<T> value) {
  return T(value);
}

// Signed integers wrap around, as they do on a GPU.
template <class W>
auto bits(W value) {
  if constexpr (std::is_integral_v<W>)
    return static_cast<std::uint64_t>(value);
  else
    return value;
}

template <class W>
W combined(Arithmetic arithmetic, W left, W right) {
  switch (arithmetic) {
    case Arithmetic::product:
      return static_cast<W>(bits(left) * bits(right));
    case Arithmetic::greatest:
      return left < right ? right : left;
    case Arithmetic::least:
      return right < left ? right : left;
    default:
      return static_cast<W>(bits(left) + bits(right));
  }
}

template <class T>
T value_of(const Scalar& scalar) {
  T value;
  std::memcpy(&value, scalar.data(), sizeof value);
  return value;
}

template <class T>
void reduce_as(Arithmetic arithmetic, const std::vector<const void*>& inputs, const std::vector<Scalar>& scalars,
               void* output, std::size_t count) {
  using W = Wide<T>;
  // Averages of floating-point numbers are sums of what was multiplied before; of integers, sums that are divided.
  const auto ranks = static_cast<W>(static_cast<float>(inputs.size()));
  const bool scaled =
      arithmetic == Arithmetic::scaled_sum || (arithmetic == Arithmetic::average && !std::is_integral_v<T>);
  std::vector<W> factors(inputs.size(), W(1));
  for (std::size_t rank = 0; scaled && rank < factors.size(); ++rank)
    factors[rank] = arithmetic == Arithmetic::average ? wide(narrow<T>(static_cast<W>(W(1) / ranks)))
                                                      : wide(value_of<T>(scalars[rank]));
  for (std::size_t i = 0; i < count; ++i) {
    const auto element = [&](std::size_t rank) {
      const T own = static_cast<const T*>(inputs[rank])[i];
      return scaled ? wide(narrow<T>(combined(Arithmetic::product, wide(own), factors[rank]))) : wide(own);
    };
    W result = element(0);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank)
      result = wide(narrow<T>(combined(arithmetic, result, element(rank))));
    if (arithmetic == Arithmetic::average && !scaled) result = static_cast<W>(result / ranks);
    static_cast<T*>(output)[i] = narrow<T>(result);
  }
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

void reduce(ncclDataType_t type, Arithmetic arithmetic, const std::vector<const void*>& inputs,
            const std::vector<Scalar>& scalars, void* output, std::size_t count) {
  const auto as = [&]<class T>(std::type_identity<T>) { reduce_as<T>(arithmetic, inputs, scalars, output, count); };
  switch (type) {
    case ncclInt8:
      return as(std::type_identity<std::int8_t>());
    case ncclUint8:
      return as(std::type_identity<std::uint8_t>());
    case ncclInt32:
      return as(std::type_identity<std::int32_t>());
    case ncclUint32:
      return as(std::type_identity<std::uint32_t>());
    case ncclInt64:
      return as(std::type_identity<std::int64_t>());
    case ncclUint64:
      return as(std::type_identity<std::uint64_t>());
    case ncclFloat16:
      return as(std::type_identity<__half>());
    case ncclFloat32:
      return as(std::type_identity<float>());
    case ncclFloat64:
      return as(std::type_identity<double>());
    case ncclBfloat16:
      return as(std::type_identity<__nv_bfloat16>());
    case ncclFloat8e4m3:
      return as(std::type_identity<__nv_fp8_e4m3>());
    case ncclFloat8e5m2:
      return as(std::type_identity<__nv_fp8_e5m2>());
    default:
      return;
  }
}

}  // namespace standin

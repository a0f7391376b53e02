// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "distx/core/element.hpp"

// Conversions of reduced-precision types by the GPU's instructions. Numbers have the bits of the host's conversions; a
// NaN stays a NaN, but not its payload.
namespace distx::inline DISTX_ABI::cuda::detail {

/// Returns the value in its accumulator's type; of an 8-bit float, as float. Exact.
template <class T>
[[nodiscard]] __device__ inline auto wide(T value) {
  if constexpr (std::same_as<T, float16>)
    return __half2float(__ushort_as_half(value.bits()));
  else if constexpr (std::same_as<T, float8_e4m3>)
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits(), __NV_E4M3)));
  else if constexpr (std::same_as<T, float8_e5m2>)
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits(), __NV_E5M2)));
  else if constexpr (std::same_as<T, bfloat16>)
    return static_cast<float>(value);
  else
    return value;
}

/// Returns the value as a T, rounded to nearest, ties to even; doubles become reduced-precision types by way of float.
template <class T, class From>
[[nodiscard]] __device__ inline T narrow(From value) {
  if constexpr (std::same_as<T, float16>)
    return float16::from_bits(__half_as_ushort(__float2half_rn(static_cast<float>(value))));
  else if constexpr (std::same_as<T, float8_e4m3>)
    return float8_e4m3::from_bits(__nv_cvt_float_to_fp8(static_cast<float>(value), __NV_SATFINITE, __NV_E4M3));
  else if constexpr (std::same_as<T, float8_e5m2>)
    return float8_e5m2::from_bits(__nv_cvt_float_to_fp8(static_cast<float>(value), __NV_SATFINITE, __NV_E5M2));
  else if constexpr (std::same_as<T, bfloat16>)
    return bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

}  // namespace distx::inline DISTX_ABI::cuda::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <concepts>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::cuda::detail {

/// A number each of whose operations rounds to nearest by itself, regardless of nvcc's flags.
///
/// Of `a * b + c * d` nvcc fuses one product with the sum, not the same one in each copy of an unrolled loop, so bits
/// would depend on how an array is partitioned; and with -use_fast_math it approximates `/` and `sqrt`.
template <std::floating_point T>
class Rounded {
 public:
  Rounded() = default;
  __device__ Rounded(T value) : value_(value) {}  // NOLINT: numbers convert implicitly
  [[nodiscard]] __device__ T number() const { return value_; }

  __device__ friend Rounded operator+(Rounded a, Rounded b) { return sum(a.value_, b.value_); }
  __device__ friend Rounded operator-(Rounded a, Rounded b) { return sum(a.value_, -b.value_); }
  __device__ friend Rounded operator*(Rounded a, Rounded b) { return product(a.value_, b.value_); }
  __device__ friend Rounded operator/(Rounded a, Rounded b) { return quotient(a.value_, b.value_); }
  __device__ friend Rounded operator-(Rounded a) { return -a.value_; }
  __device__ friend Rounded operator+(Rounded a) { return a; }
  __device__ Rounded& operator+=(Rounded b) { return *this = *this + b; }
  __device__ Rounded& operator-=(Rounded b) { return *this = *this - b; }
  __device__ Rounded& operator*=(Rounded b) { return *this = *this * b; }
  __device__ Rounded& operator/=(Rounded b) { return *this = *this / b; }
  __device__ friend bool operator==(Rounded a, Rounded b) { return a.value_ == b.value_; }
  __device__ friend bool operator<(Rounded a, Rounded b) { return a.value_ < b.value_; }
  __device__ friend bool operator>(Rounded a, Rounded b) { return a.value_ > b.value_; }
  __device__ friend bool operator<=(Rounded a, Rounded b) { return a.value_ <= b.value_; }
  __device__ friend bool operator>=(Rounded a, Rounded b) { return a.value_ >= b.value_; }
  __device__ friend Rounded sqrt(Rounded a) { return root(a.value_); }
  __device__ friend Rounded abs(Rounded a) { return std::abs(a.value_); }
  __device__ friend Rounded copysign(Rounded a, Rounded b) { return std::copysign(a.value_, b.value_); }
  __device__ friend Rounded min(Rounded a, Rounded b) { return b < a ? b : a; }
  __device__ friend Rounded max(Rounded a, Rounded b) { return a < b ? b : a; }

 private:
  static __device__ float sum(float a, float b) { return __fadd_rn(a, b); }
  static __device__ double sum(double a, double b) { return __dadd_rn(a, b); }
  static __device__ float product(float a, float b) { return __fmul_rn(a, b); }
  static __device__ double product(double a, double b) { return __dmul_rn(a, b); }
  static __device__ float quotient(float a, float b) { return __fdiv_rn(a, b); }
  static __device__ double quotient(double a, double b) { return __ddiv_rn(a, b); }
  static __device__ float root(float a) { return __fsqrt_rn(a); }
  static __device__ double root(double a) { return __dsqrt_rn(a); }
  T value_;
};

}  // namespace distx::inline DISTX_ABI::cuda::detail

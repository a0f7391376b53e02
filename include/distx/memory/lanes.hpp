// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstring>

namespace distx::lanes {  // for min and max are something else in distx

/// A few floats or doubles that arithmetic is done on together: 16 bytes, what every processor of today has registers
/// for without a compiler flag.
///
/// It has the operators of a number, converts from one, and each operation rounds as that on one number does. What
/// would be an `if` on a number is `distx::select(a < b, then, otherwise)` on either.
template <std::floating_point T>
class Lanes {
 public:
  static constexpr std::size_t size = 16 / sizeof(T);
  typedef T native [[gnu::vector_size(16)]];

  Lanes() = default;
  Lanes(T value) {  // NOLINT: a number stands for as many of itself
    for (std::size_t i = 0; i < size; ++i) values_[i] = value;
  }
  static Lanes from_native(native values) {
    Lanes lanes;
    lanes.values_ = values;
    return lanes;
  }
  /// From `size` numbers that may lie anywhere.
  static Lanes load(const T* from) {
    Lanes lanes;
    std::memcpy(&lanes.values_, from, sizeof(native));
    return lanes;
  }
  void store(T* to) const { std::memcpy(to, &values_, sizeof(native)); }
  [[nodiscard]] native to_native() const { return values_; }
  [[nodiscard]] T operator[](std::size_t i) const { return values_[i]; }

  friend Lanes operator+(Lanes a, Lanes b) { return from_native(a.values_ + b.values_); }
  friend Lanes operator-(Lanes a, Lanes b) { return from_native(a.values_ - b.values_); }
  friend Lanes operator*(Lanes a, Lanes b) { return from_native(a.values_ * b.values_); }
  friend Lanes operator/(Lanes a, Lanes b) { return from_native(a.values_ / b.values_); }
  friend Lanes operator-(Lanes a) { return from_native(-a.values_); }
  friend Lanes operator+(Lanes a) { return a; }
  Lanes& operator+=(Lanes b) { return *this = *this + b; }
  Lanes& operator-=(Lanes b) { return *this = *this - b; }
  Lanes& operator*=(Lanes b) { return *this = *this * b; }
  Lanes& operator/=(Lanes b) { return *this = *this / b; }

  friend auto operator<(Lanes a, Lanes b) { return a.values_ < b.values_; }
  friend auto operator>(Lanes a, Lanes b) { return a.values_ > b.values_; }
  friend auto operator<=(Lanes a, Lanes b) { return a.values_ <= b.values_; }
  friend auto operator>=(Lanes a, Lanes b) { return a.values_ >= b.values_; }
  friend auto operator==(Lanes a, Lanes b) { return a.values_ == b.values_; }
  friend auto operator!=(Lanes a, Lanes b) { return a.values_ != b.values_; }

  /// f of each number, or of each and its like in the others.
  template <class F, class... Others>
  [[nodiscard]] Lanes each_lane(F&& f, Others... others) const {
    Lanes result;
    for (std::size_t i = 0; i < size; ++i) result.values_[i] = f(values_[i], others[i]...);
    return result;
  }

 private:
  native values_;
};

namespace detail {

// The compilers' own functions, for a vector V of T; one that a compiler lacks is not found, which is no error. Some
// compilers would take a vector of another type of number too.
template <class T, class V>
concept HasElementwiseSqrt = requires(V v) { __builtin_elementwise_sqrt(v); };
template <class T, class V>
concept HasSqrtps = std::same_as<T, float> && requires(V v) { __builtin_ia32_sqrtps(v); };
template <class T, class V>
concept HasSqrtpd = std::same_as<T, double> && requires(V v) { __builtin_ia32_sqrtpd(v); };

}  // namespace detail

/// `then` where the condition holds, else `otherwise`; both have been computed.
template <class T>
[[nodiscard]] constexpr T select(bool condition, T then, T otherwise) {
  return condition ? then : otherwise;
}
template <class T>
[[nodiscard]] Lanes<T> select(decltype(Lanes<T>{} < Lanes<T>{}) condition, Lanes<T> then, Lanes<T> otherwise) {
  return Lanes<T>::from_native(condition ? then.to_native() : otherwise.to_native());
}

/// The C++ library's sqrt may have to set errno, which keeps compilers from taking several roots at once.
template <class T>
[[nodiscard]] Lanes<T> sqrt(Lanes<T> x) {
  using V = typename Lanes<T>::native;
  const V values = x.to_native();
  if constexpr (detail::HasElementwiseSqrt<T, V>)
    return Lanes<T>::from_native(__builtin_elementwise_sqrt(values));
  else if constexpr (detail::HasSqrtps<T, V>)
    return Lanes<T>::from_native(__builtin_ia32_sqrtps(values));
  else if constexpr (detail::HasSqrtpd<T, V>)
    return Lanes<T>::from_native(__builtin_ia32_sqrtpd(values));
  else
    return x.each_lane([](T each) { return std::sqrt(each); });
}
template <class T>
[[nodiscard]] Lanes<T> abs(Lanes<T> x) {
  return x.each_lane([](T each) { return std::abs(each); });
}
template <class T>
[[nodiscard]] Lanes<T> copysign(Lanes<T> size, Lanes<T> sign) {
  return size.each_lane([](T a, T b) { return std::copysign(a, b); }, sign);
}
template <class T>
[[nodiscard]] Lanes<T> min(Lanes<T> a, Lanes<T> b) {
  return select(b < a, b, a);
}
template <class T>
[[nodiscard]] Lanes<T> max(Lanes<T> a, Lanes<T> b) {
  return select(a < b, b, a);
}

}  // namespace distx::lanes

namespace distx {

using lanes::select;

namespace detail {

using lanes::Lanes;

}  // namespace detail

}  // namespace distx

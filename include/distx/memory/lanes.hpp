// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <type_traits>

// In a separate namespace, because min and max are reductions in distx.
namespace distx::lanes {

namespace detail {

/// Diagnoses a comparison of Lanes as the condition of a branch; one error, whatever their types.
template <int Never = 0>
struct NotACondition {
  explicit operator bool() const {
    static_assert(Never != 0,
                  "distx: an optimizer computes several elements at once, so a comparison cannot choose between "
                  "branches: write distx::select(condition, then, otherwise) instead of if, ?:, std::min or std::max");
    return false;
  }
};

}  // namespace detail

/// The result of comparing Lanes: one truth value for each lane, for `select`.
///
/// `!`, `&&` and `||` work lane by lane. It does not convert to bool, so it cannot be the condition of `if` or `?:`.
template <std::floating_point T>
class LaneMask : public detail::NotACondition<> {
  typedef T numbers [[gnu::vector_size(16)]];

 public:
  using native = decltype(numbers{} < numbers{});

  explicit LaneMask(native truth) : truth_(truth) {}
  [[nodiscard]] native to_native() const { return truth_; }

  friend LaneMask operator!(LaneMask a) { return LaneMask(~a.truth_); }
  friend LaneMask operator&&(LaneMask a, LaneMask b) { return LaneMask(a.truth_ & b.truth_); }
  friend LaneMask operator||(LaneMask a, LaneMask b) { return LaneMask(a.truth_ | b.truth_); }

 private:
  native truth_;
};

/// Several floats or doubles, 16 bytes in all, with the operators of a number: element-by-element arithmetic on them is
/// written as on one number and compiled to the registers that every processor has without a compiler flag.
///
/// Converts from a number, which then stands in every lane. Each operation rounds as the same operation on one number.
/// A comparison gives a LaneMask for `distx::select`; sqrt, abs, copysign, min and max are found unqualified.
template <std::floating_point T>
class Lanes {
 public:
  static constexpr std::size_t size = 16 / sizeof(T);
  typedef T native [[gnu::vector_size(16)]];

  Lanes() = default;
  Lanes(T value) {  // NOLINT: implicit, as numbers convert
    for (std::size_t i = 0; i < size; ++i) values_[i] = value;
  }
  static Lanes from_native(native values) {
    Lanes lanes;
    lanes.values_ = values;
    return lanes;
  }
  /// Reads `size` numbers from any address.
  static Lanes load(const T* from) {
    Lanes lanes;
    std::memcpy(&lanes.values_, from, sizeof(native));
    return lanes;
  }
  /// Writes `size` numbers to any address.
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

  friend LaneMask<T> operator<(Lanes a, Lanes b) { return LaneMask<T>(a.values_ < b.values_); }
  friend LaneMask<T> operator>(Lanes a, Lanes b) { return LaneMask<T>(a.values_ > b.values_); }
  friend LaneMask<T> operator<=(Lanes a, Lanes b) { return LaneMask<T>(a.values_ <= b.values_); }
  friend LaneMask<T> operator>=(Lanes a, Lanes b) { return LaneMask<T>(a.values_ >= b.values_); }
  friend LaneMask<T> operator==(Lanes a, Lanes b) { return LaneMask<T>(a.values_ == b.values_); }
  friend LaneMask<T> operator!=(Lanes a, Lanes b) { return LaneMask<T>(a.values_ != b.values_); }

  /// Returns f of each lane, or of each lane and the same lane of `others`.
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

// Whether the compiler has a built-in square root for a vector V of T. Some compilers accept vectors of other types.
template <class T, class V>
concept HasElementwiseSqrt = requires(V v) { __builtin_elementwise_sqrt(v); };
template <class T, class V>
concept HasSqrtps = std::same_as<T, float> && requires(V v) { __builtin_ia32_sqrtps(v); };
template <class T, class V>
concept HasSqrtpd = std::same_as<T, double> && requires(V v) { __builtin_ia32_sqrtpd(v); };

}  // namespace detail

/// Returns `then` if the condition holds, else `otherwise`; both are computed. The conditional of code that runs on
/// numbers and on Lanes.
template <class T>
[[nodiscard]] constexpr T select(bool condition, T then, T otherwise) {
  return condition ? then : otherwise;
}
/// Does the same for each lane.
template <class T>
[[nodiscard]] Lanes<T> select(LaneMask<T> condition, std::type_identity_t<Lanes<T>> then,
                              std::type_identity_t<Lanes<T>> otherwise) {
  return Lanes<T>::from_native(condition.to_native() ? then.to_native() : otherwise.to_native());
}

/// Returns the square root of each lane. (std::sqrt may set errno, so compilers do not vectorize it.)
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
/// Returns the magnitude of each lane.
template <class T>
[[nodiscard]] Lanes<T> abs(Lanes<T> x) {
  return x.each_lane([](T each) { return std::abs(each); });
}
/// Returns the magnitude of each lane of `size` with the sign of the same lane of `sign`.
template <class T>
[[nodiscard]] Lanes<T> copysign(Lanes<T> size, Lanes<T> sign) {
  return size.each_lane([](T a, T b) { return std::copysign(a, b); }, sign);
}
/// Returns the smaller value of each lane, as std::min does.
template <class T>
[[nodiscard]] Lanes<T> min(Lanes<T> a, Lanes<T> b) {
  return select(b < a, b, a);
}
/// Returns the larger value of each lane, as std::max does.
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

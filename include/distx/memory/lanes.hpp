// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "distx/core/detail/floating_point.hpp"
#include "distx/memory/lane_width.hpp"

// In a separate namespace, because min and max are reductions in distx.
namespace distx::inline DISTX_ABI::lanes {

namespace detail {

/// Diagnoses a comparison of Lanes as the condition of a branch; one error, regardless of their types.
template <int Never = 0>
struct NotACondition {
  explicit operator bool() const {
    static_assert(Never != 0,
                  "distx: an optimizer computes several elements at once, so a comparison cannot choose between "
                  "branches; write distx::select(condition, then, otherwise) instead of if, ?:, std::min or std::max");
    return false;
  }
};

/// The base of values that are passed by reference. The registers that pass a wide vector by value depend on the
/// processor that a function is compiled for, and would differ between caller and callee.
template <bool Wide>
struct PassedByReference {};
template <>
struct PassedByReference<true> {
  PassedByReference() = default;
  PassedByReference(const PassedByReference&) noexcept {}
  PassedByReference& operator=(const PassedByReference&) noexcept { return *this; }  // NOLINT: it has no members
};

}  // namespace detail

/// The result of comparing Lanes: one truth value for each lane, for `select`.
///
/// `!`, `&&` and `||` work lane by lane. It does not convert to bool, so it cannot be the condition of `if` or `?:`.
template <std::floating_point T, std::size_t Bytes = 16>
class LaneMask : public detail::NotACondition<>, detail::PassedByReference<(Bytes > 16)> {
  typedef T numbers [[gnu::vector_size(Bytes)]];

 public:
  using native = decltype(numbers{} < numbers{});

  explicit LaneMask(const native& truth) : truth_(truth) {}
  [[nodiscard]] const native& to_native() const { return truth_; }

  friend LaneMask operator!(const LaneMask& a) { return LaneMask(~a.truth_); }
  friend LaneMask operator&&(const LaneMask& a, const LaneMask& b) { return LaneMask(a.truth_ & b.truth_); }
  friend LaneMask operator||(const LaneMask& a, const LaneMask& b) { return LaneMask(a.truth_ | b.truth_); }

 private:
  native truth_;
};

/// Several floats or doubles, 16, 32 or 64 bytes in all, with the operators of a number: element-by-element arithmetic
/// on them is written as on one number and compiled to vector registers without a compiler flag.
///
/// Every processor has registers for 16 bytes; wider lanes are meant for code that `detail::run_on_lanes` calls, and
/// are slow elsewhere. Converts from a number, which then stands in every lane. Each operation rounds as the same
/// operation on one number, regardless of the width. A comparison gives a LaneMask for `distx::select`; sqrt, abs,
/// copysign, min and max are found unqualified.
template <std::floating_point T, std::size_t Bytes = 16>
class Lanes : detail::PassedByReference<(Bytes > 16)> {
 public:
  static constexpr std::size_t size = Bytes / sizeof(T);
  typedef T native [[gnu::vector_size(Bytes)]];
  using mask = LaneMask<T, Bytes>;

  Lanes() = default;
  Lanes(T value) {  // NOLINT: implicit, as numbers convert
    // Through memory, because g++ leaves a loop that sets values_[i] as one insertion for each lane when it unrolls it
    // (-O3), and splits a conversion by an operator here, where no target has registers for wide vectors.
    std::fill_n(reinterpret_cast<T*>(&values_), size, value);
  }
  static Lanes from_native(const native& values) {
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
  [[nodiscard]] const native& to_native() const { return values_; }
  [[nodiscard]] T operator[](std::size_t i) const { return values_[i]; }

  friend Lanes operator+(const Lanes& a, const Lanes& b) { return from_native(a.values_ + b.values_); }
  friend Lanes operator-(const Lanes& a, const Lanes& b) { return from_native(a.values_ - b.values_); }
  friend Lanes operator*(const Lanes& a, const Lanes& b) { return from_native(a.values_ * b.values_); }
  friend Lanes operator/(const Lanes& a, const Lanes& b) { return from_native(a.values_ / b.values_); }
  friend Lanes operator-(const Lanes& a) { return from_native(-a.values_); }
  friend Lanes operator+(const Lanes& a) { return a; }
  Lanes& operator+=(const Lanes& b) { return *this = *this + b; }
  Lanes& operator-=(const Lanes& b) { return *this = *this - b; }
  Lanes& operator*=(const Lanes& b) { return *this = *this * b; }
  Lanes& operator/=(const Lanes& b) { return *this = *this / b; }

  friend mask operator<(const Lanes& a, const Lanes& b) { return mask(a.values_ < b.values_); }
  friend mask operator>(const Lanes& a, const Lanes& b) { return mask(a.values_ > b.values_); }
  friend mask operator<=(const Lanes& a, const Lanes& b) { return mask(a.values_ <= b.values_); }
  friend mask operator>=(const Lanes& a, const Lanes& b) { return mask(a.values_ >= b.values_); }
  friend mask operator==(const Lanes& a, const Lanes& b) { return mask(a.values_ == b.values_); }
  friend mask operator!=(const Lanes& a, const Lanes& b) { return mask(a.values_ != b.values_); }

  /// Returns f of each lane, or of each lane and the same lane of `others`.
  template <class F, class... Others>
  [[nodiscard]] Lanes each_lane(F&& f, const Others&... others) const {
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
concept HasSqrtps = sizeof(V) == 16 && std::same_as<T, float> && requires(V v) { __builtin_ia32_sqrtps(v); };
template <class T, class V>
concept HasSqrtpd = sizeof(V) == 16 && std::same_as<T, double> && requires(V v) { __builtin_ia32_sqrtpd(v); };

}  // namespace detail

/// Returns `then` if the condition holds, else `otherwise`; both are computed. The conditional of code that runs on
/// numbers and on Lanes.
template <class T>
[[nodiscard]] constexpr T select(bool condition, T then, T otherwise) {
  return condition ? then : otherwise;
}
/// Does the same for each lane.
template <class T, std::size_t Bytes>
[[nodiscard]] Lanes<T, Bytes> select(const LaneMask<T, Bytes>& condition,
                                     const std::type_identity_t<Lanes<T, Bytes>>& then,
                                     const std::type_identity_t<Lanes<T, Bytes>>& otherwise) {
  return Lanes<T, Bytes>::from_native(condition.to_native() ? then.to_native() : otherwise.to_native());
}

/// Returns the square root of each lane. (std::sqrt may set errno, so compilers do not vectorize it.)
template <class T, std::size_t Bytes>
[[nodiscard]] Lanes<T, Bytes> sqrt(const Lanes<T, Bytes>& x) {
  using V = typename Lanes<T, Bytes>::native;
  V values = x.to_native();
  if constexpr (detail::HasElementwiseSqrt<T, V>)
    values = __builtin_elementwise_sqrt(values);
  else if constexpr (detail::HasSqrtps<T, V>)
    values = __builtin_ia32_sqrtps(values);
  else if constexpr (detail::HasSqrtpd<T, V>)
    values = __builtin_ia32_sqrtpd(values);
  else if constexpr (Bytes > 16 && distx::detail::has_wide_lanes)
    distx::detail::take_roots(values);
  else
    return x.each_lane([](T each) { return std::sqrt(each); });
  return Lanes<T, Bytes>::from_native(values);
}
/// Returns the magnitude of each lane.
template <class T, std::size_t Bytes>
[[nodiscard]] Lanes<T, Bytes> abs(const Lanes<T, Bytes>& x) {
  typedef distx::detail::bits_of_t<T> Bits [[gnu::vector_size(Bytes)]];
  const Bits magnitude = __builtin_bit_cast(Bits, x.to_native()) & ~distx::detail::sign_bit<T>;
  return Lanes<T, Bytes>::from_native(__builtin_bit_cast(typename Lanes<T, Bytes>::native, magnitude));
}
/// Returns the magnitude of each lane of `size` with the sign of the same lane of `sign`.
template <class T, std::size_t Bytes>
[[nodiscard]] Lanes<T, Bytes> copysign(const Lanes<T, Bytes>& size, const std::type_identity_t<Lanes<T, Bytes>>& sign) {
  typedef distx::detail::bits_of_t<T> Bits [[gnu::vector_size(Bytes)]];
  constexpr auto mask = distx::detail::sign_bit<T>;
  const Bits both =
      (__builtin_bit_cast(Bits, size.to_native()) & ~mask) | (__builtin_bit_cast(Bits, sign.to_native()) & mask);
  return Lanes<T, Bytes>::from_native(__builtin_bit_cast(typename Lanes<T, Bytes>::native, both));
}
/// Returns the smaller value of each lane, as std::min does.
template <class T, std::size_t Bytes>
[[nodiscard]] Lanes<T, Bytes> min(const Lanes<T, Bytes>& a, const std::type_identity_t<Lanes<T, Bytes>>& b) {
  return select(b < a, b, a);
}
/// Returns the larger value of each lane, as std::max does.
template <class T, std::size_t Bytes>
[[nodiscard]] Lanes<T, Bytes> max(const Lanes<T, Bytes>& a, const std::type_identity_t<Lanes<T, Bytes>>& b) {
  return select(a < b, b, a);
}

}  // namespace distx::inline DISTX_ABI::lanes

namespace distx::inline DISTX_ABI {

using lanes::select;

namespace detail {

using lanes::Lanes;

}  // namespace detail

}  // namespace distx::inline DISTX_ABI

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>

#include "distx/core/version.hpp"

// Compiles one kernel for several widths of vector registers and chooses among them at run time. The attributes exist
// for one processor only.
namespace distx::inline DISTX_ABI::detail {

/// The width of the vector registers that every processor has, in bytes.
inline constexpr std::size_t common_lane_bytes = 16;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wattributes"  // clang has no `optimize`

#ifdef __clang__
// The functions between these are inlined into kernels: `flatten` of clang inlines only what is called directly.
#define DISTX_KERNELS_BEGIN _Pragma("clang attribute push(__attribute__((always_inline)), apply_to = function)")
#define DISTX_KERNELS_END _Pragma("clang attribute pop")
inline constexpr bool splits_conversions = false;  // of vectors, into halves
#else
#define DISTX_KERNELS_BEGIN
#define DISTX_KERNELS_END
inline constexpr bool splits_conversions = true;
#endif

/// Calls `Kernel::run<16>(args...)`. Arguments are copies, which no store can alias.
///
/// Everything that the kernel calls is inlined, for this width and for those below. No product and sum of Lanes are
/// fused, so every width gives the same bits, but by `add_products`, which narrow lanes do not have.
template <class Kernel, class... Args>
[[gnu::noinline, gnu::flatten, gnu::optimize("fp-contract=off")]] void run_on_common_lanes(Args... args) {
  Kernel::template run<common_lane_bytes>(args...);
}

#if defined(__x86_64__)

inline constexpr bool has_wide_lanes = true;
#define DISTX_AVX512 "avx512f,avx512dq,avx512bw,avx512vl"

[[nodiscard]] inline std::size_t widest_lane_bytes() noexcept {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return 64;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 32 : common_lane_bytes;
}

template <class Kernel, class... Args>
[[gnu::noinline, gnu::flatten, gnu::target("avx2,fma"), gnu::optimize("fp-contract=off")]]
void run_on_32_byte_lanes(Args... args) {
  Kernel::template run<32>(args...);
}
template <class Kernel, class... Args>
[[gnu::noinline, gnu::flatten, gnu::target(DISTX_AVX512), gnu::optimize("fp-contract=off")]]
void run_on_64_byte_lanes(Args... args) {
  Kernel::template run<64>(args...);
}

// Square roots of vectors, for a compiler that has no built-in function for every width.
typedef float Floats32 [[gnu::vector_size(32)]];
typedef float Floats64 [[gnu::vector_size(64)]];
typedef double Doubles32 [[gnu::vector_size(32)]];
typedef double Doubles64 [[gnu::vector_size(64)]];
[[gnu::target("avx2,fma")]] inline void take_roots(Floats32& x) { asm("vsqrtps {%0, %0|%0, %0}" : "+x"(x)); }
[[gnu::target("avx2,fma")]] inline void take_roots(Doubles32& x) { asm("vsqrtpd {%0, %0|%0, %0}" : "+x"(x)); }
[[gnu::target("avx512f")]] inline void take_roots(Floats64& x) { asm("vsqrtps {%0, %0|%0, %0}" : "+v"(x)); }
[[gnu::target("avx512f")]] inline void take_roots(Doubles64& x) { asm("vsqrtpd {%0, %0|%0, %0}" : "+v"(x)); }

// Adds number * first to `low` and number * second to `high`, and rounds each once (FMA).
// NOLINTBEGIN(bugprone-macro-parentheses): V is a type
#define DISTX_ADD_PRODUCTS(T, V, SUFFIX, TARGET)                                                             \
  [[gnu::target(TARGET)]] inline void add_products(const T& number, const V& first, const V& second, V& low, \
                                                   V& high) {                                                \
    [[maybe_unused]] V factor;                                                                               \
    asm("vbroadcasts" SUFFIX                                                                                 \
        " {%3, %2|%2, %3}\n\t"                                                                               \
        "vfmadd231p" SUFFIX                                                                                  \
        " {%4, %2, %0|%0, %2, %4}\n\t"                                                                       \
        "vfmadd231p" SUFFIX " {%5, %2, %1|%1, %2, %5}"                                                       \
        : "+&v"(low), "+v"(high), "=&v"(factor)                                                              \
        : "m"(number), "v"(first), "v"(second));                                                             \
  }
DISTX_ADD_PRODUCTS(float, Floats32, "s", "avx2,fma")
DISTX_ADD_PRODUCTS(double, Doubles32, "d", "avx2,fma")
DISTX_ADD_PRODUCTS(float, Floats64, "s", DISTX_AVX512)
DISTX_ADD_PRODUCTS(double, Doubles64, "d", DISTX_AVX512)
#undef DISTX_ADD_PRODUCTS
// NOLINTEND(bugprone-macro-parentheses)
#undef DISTX_AVX512

// Conversions of vectors, which g++ 12 does in halves.
typedef float Floats16 [[gnu::vector_size(16)]];
[[gnu::target("avx2,fma")]] inline void convert(const Floats16& from, Doubles32& to) {
  asm("vcvtps2pd {%1, %0|%0, %1}" : "=x"(to) : "xm"(from));
}
[[gnu::target("avx2,fma")]] inline void convert(const Doubles32& from, Floats16& to) {
  asm("vcvtpd2ps {%1, %0|%0, %1}" : "=x"(to) : "x"(from));
}
[[gnu::target("avx512f")]] inline void convert(const Floats32& from, Doubles64& to) {
  asm("vcvtps2pd {%1, %0|%0, %1}" : "=v"(to) : "vm"(from));
}
[[gnu::target("avx512f")]] inline void convert(const Doubles64& from, Floats32& to) {
  asm("vcvtpd2ps {%1, %0|%0, %1}" : "=v"(to) : "v"(from));
}

#else

inline constexpr bool has_wide_lanes = false;

[[nodiscard]] inline std::size_t widest_lane_bytes() noexcept { return common_lane_bytes; }
template <class Kernel, class... Args>
void run_on_32_byte_lanes(Args... args) {
  run_on_common_lanes<Kernel>(args...);
}
template <class Kernel, class... Args>
void run_on_64_byte_lanes(Args... args) {
  run_on_common_lanes<Kernel>(args...);
}
template <class V>
void take_roots(V&) = delete;
template <class T, class V>
void add_products(const T&, const V&, const V&, V&, V&) = delete;
template <class From, class To>
void convert(const From&, To&) = delete;

#endif
#pragma GCC diagnostic pop

/// The width that kernels run on: the widest that this processor has. Tests lower it to compare widths.
[[nodiscard]] inline std::size_t& lane_bytes() noexcept {
  static std::size_t bytes = widest_lane_bytes();
  return bytes;
}

/// Calls `Kernel::run<Bytes>(args...)` with Bytes = `bytes`, which is 16, 32 or 64, compiled for processors that have
/// registers of this width.
template <class Kernel, class... Args>
void run_on_lanes(std::size_t bytes, const Args&... args) {
  if (bytes == 64)
    run_on_64_byte_lanes<Kernel, Args...>(args...);
  else if (bytes == 32)
    run_on_32_byte_lanes<Kernel, Args...>(args...);
  else
    run_on_common_lanes<Kernel, Args...>(args...);
}

}  // namespace distx::inline DISTX_ABI::detail

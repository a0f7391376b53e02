// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>
#include <distx/cuda/detail/operations.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

/// Values in a GPU's memory, `offset` elements after a boundary of vectors, with a fence on either side.
template <class T>
class Placed {
 public:
  explicit Placed(const std::vector<T>& values, std::size_t offset = 0)
      : size_(values.size()), before_(16 + offset), all_(before_ + size_ + 16, distx::uninitialized) {
    std::vector<T> host(all_.size(), fence());
    std::copy(values.begin(), values.end(), host.begin() + static_cast<std::ptrdiff_t>(before_));
    distx::copy(distx::CudaStreamRef(), all_.span(), distx::Span<const T>(host));
    distx::CudaStreamRef().synchronize();
  }
  [[nodiscard]] distx::Span<T, distx::Cuda> span() const { return all_.span().subspan(before_, size_); }
  [[nodiscard]] distx::Span<const T, distx::Cuda> in() const { return span(); }
  /// Returns the values in stream order; checks that the fences are intact.
  [[nodiscard]] std::vector<T> values(distx::CudaStreamRef stream = {}) const {
    std::vector<T> host(all_.size());
    distx::copy(stream, distx::Span<T>(host), distx::Span<const T, distx::Cuda>(all_));
    stream.synchronize();
    const T mark = fence();
    bool stands = true;
    for (std::size_t i = 0; i < host.size(); ++i)
      if (i < before_ || i >= before_ + size_) stands = stands && std::memcmp(&host[i], &mark, sizeof(T)) == 0;
    CHECK(stands);
    const auto begin = host.begin() + static_cast<std::ptrdiff_t>(before_);
    return {begin, begin + static_cast<std::ptrdiff_t>(size_)};
  }

 private:
  static T fence() { return static_cast<T>(72.0f); }

  std::size_t size_;
  std::size_t before_;
  distx::Buffer<T, distx::Cuda> all_;
};

/// Values between -1.5 and 1.5, the same in every run.
template <class T>
std::vector<T> wave(std::size_t size, double phase = 0) {
  std::vector<T> values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] = static_cast<T>(static_cast<float>(1.5 * std::sin(0.7 * static_cast<double>(i % 1000) + phase)));
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Half the distance of neighbouring numbers near 1.
template <class T>
inline constexpr double rounding = sizeof(T) == 8                       ? 0x1p-53
                                   : sizeof(T) == 4                     ? 0x1p-24
                                   : std::is_same_v<T, distx::bfloat16> ? 0x1p-9
                                                                        : 0x1p-12;

/// The largest difference, in roundings of numbers of that magnitude (at least 1).
template <class T>
double roundings_between(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    const double apart = std::abs(x - y) / (rounding<T> * std::max({1.0, std::abs(x), std::abs(y)}));
    if (!(apart <= most)) most = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
  }
  return most;
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace examples {

/// The source of every random number of the examples.
///
/// The standard fixes the raw output of std::mt19937_64, but neither that of its distributions nor that of
/// std::shuffle; the functions below use only the raw output, so a seed means the same with every library.
using Generator = std::mt19937_64;

/// A number in [0, 1), from the upper 53 bits of one raw output.
inline double uniform(Generator& generator) { return static_cast<double>(generator() >> 11) * 0x1p-53; }

/// A number in [low, high).
inline double uniform(Generator& generator, double low, double high) { return low + (high - low) * uniform(generator); }

/// A whole number in [0, count), each equally likely.
/// @pre count > 0
inline std::size_t below(Generator& generator, std::size_t count) {
  const std::uint64_t range = count;
  const std::uint64_t uneven =
      (std::uint64_t{0} - range) % range;  // 2^64 mod range: these first values are one too many
  std::uint64_t raw = generator();
  while (raw < uneven) raw = generator();
  return static_cast<std::size_t>(raw % range);
}

/// Puts the values in a random order (Fisher and Yates).
template <class T>
void shuffle(std::span<T> values, Generator& generator) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1], values[below(generator, left)]);
  }
}

}  // namespace examples

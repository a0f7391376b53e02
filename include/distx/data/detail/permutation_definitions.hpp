// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <numeric>
#include <random>
#include <utility>

#include "distx/data/distributed_sampler.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_INLINE std::vector<std::size_t> permutation(std::size_t n, std::uint64_t seed, std::uint64_t epoch) {
  std::seed_seq both{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                     static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)};
  std::mt19937_64 generator(both);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t left = n; left > 1; --left) {
    const std::uint64_t range = left;
    const std::uint64_t uneven =
        (std::uint64_t{0} - range) % range;  // 2^64 mod range: values below it would bias the result
    std::uint64_t raw = generator();
    while (raw < uneven) raw = generator();
    std::swap(order[left - 1], order[static_cast<std::size_t>(raw % range)]);
  }
  return order;
}

}  // namespace distx::inline DISTX_ABI::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/tensor/detail/copy_box.hpp>

#include <numeric>
#include <vector>

using distx::detail::Box;
using distx::detail::BoxRuns;

TEST_CASE("BoxRuns merges dimensions that are contiguous in both memories into the fewest, longest runs") {
  const Box whole{3, {0, 0, 0}, {4, 5, 6}};
  const auto check = [&](const Box& part, const Box& to, std::size_t bytes, std::vector<std::size_t> counts) {
    const BoxRuns runs(to, whole, part, 4);
    CHECK(runs.bytes == bytes);
    CHECK(std::vector<std::size_t>(runs.count.begin(), runs.count.begin() + static_cast<int>(runs.dimensions)) ==
          counts);
  };
  check(whole, whole, 480, {});
  const Box rows{3, {1, 2, 0}, {3, 1, 6}}, columns{3, {0, 0, 1}, {4, 5, 2}}, middle{3, {0, 1, 2}, {4, 3, 1}};
  check(rows, rows, 24, {3});
  check(rows, whole, 24, {3});
  check(columns, columns, 8, {20});  // two dimensions at equal steps are one
  check(columns, whole, 8, {20});
  check(middle, middle, 4, {4, 3});
  check(Box{3, {2, 0, 0}, {1, 5, 6}}, whole, 120, {});
  check(Box{3, {2, 4, 0}, {1, 1, 6}}, Box{3, {2, 4, 0}, {1, 1, 6}}, 24, {});
  check(Box{3, {2, 2, 0}, {1, 0, 6}}, Box{3, {2, 2, 0}, {1, 0, 6}}, 0, {});
  check(Box{0, {}, {}}, Box{0, {}, {}}, 4, {});
}

TEST_CASE("copy_box copies every box between every pair of packed and enclosing memories") {
  const Box from{3, {0, 0, 0}, {3, 4, 5}};
  std::vector<int> source(from.volume());
  std::iota(source.begin(), source.end(), 1);
  const auto at = [](const Box& whole, std::size_t i, std::size_t j, std::size_t k) {
    return ((i - whole.begin[0]) * whole.size[1] + j - whole.begin[1]) * whole.size[2] + k - whole.begin[2];
  };
  std::size_t tried = 0;
  for (std::size_t code = 0; code < 6 * 10 * 15; ++code) {
    // All intervals of each dimension, packed or in a memory that has one more at each end.
    const auto interval = [](std::size_t n, std::size_t which, std::size_t& begin, std::size_t& size) {
      for (begin = 0; begin < n; ++begin)
        for (size = 1; begin + size <= n; ++size)
          if (which-- == 0) return;
    };
    Box part{3, {}, {}};
    interval(3, code % 6, part.begin[0], part.size[0]);
    interval(4, code / 6 % 10, part.begin[1], part.size[1]);
    interval(5, code / 60, part.begin[2], part.size[2]);
    for (const Box& to : {part, from}) {
      std::vector<int> target(to.volume());
      distx::detail::copy_box({}, reinterpret_cast<std::byte*>(target.data()), to,
                              reinterpret_cast<const std::byte*>(source.data()), from, part, sizeof(int));
      std::vector<int> expected(to.volume());
      for (std::size_t i = part.begin[0]; i < part.begin[0] + part.size[0]; ++i)
        for (std::size_t j = part.begin[1]; j < part.begin[1] + part.size[1]; ++j)
          for (std::size_t k = part.begin[2]; k < part.begin[2] + part.size[2]; ++k)
            expected[at(to, i, j, k)] = source[at(from, i, j, k)];
      REQUIRE(target == expected);
      ++tried;
    }
  }
  CHECK(tried == 1800);
}

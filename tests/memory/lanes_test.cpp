// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/ops.hpp>
#include <distx/memory/lanes.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace {

/// Numbers of all kinds, the awkward ones too.
template <class T>
std::vector<T> samples() {
  using limits = std::numeric_limits<T>;
  std::vector<T> values{T(0),
                        -T(0),
                        T(1),
                        -T(1),
                        T(3),
                        limits::min(),
                        limits::max(),
                        -limits::max(),
                        limits::denorm_min(),
                        limits::infinity(),
                        -limits::infinity(),
                        limits::quiet_NaN()};
  for (int i = 0; i < 60; ++i) values.push_back(static_cast<T>(std::sin(i) * std::exp2(i - 30)));
  return values;
}

template <class T>
bool same(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);  // which NaN, the processor chooses
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b);
}

/// `together` on lanes is `alone` on each of them, for all pairs of samples.
template <class T, std::size_t Bytes = 16, class Together, class Alone>
void check_pairs(Together&& together, Alone&& alone) {
  using V = distx::lanes::Lanes<T, Bytes>;
  const auto values = samples<T>();
  for (const T x : values)
    for (std::size_t begin = 0; begin + V::size <= values.size(); ++begin) {
      const V result = together(V(x), V::load(values.data() + begin));
      for (std::size_t i = 0; i < V::size; ++i) {
        CAPTURE(x);
        CAPTURE(values[begin + i]);
        if (!same(result[i], static_cast<T>(alone(x, values[begin + i])))) FAIL_CHECK("differs");
      }
    }
}

template <class T>
struct EachOperation {
  template <std::size_t Bytes>
  static void run() {
    using V = distx::lanes::Lanes<T, Bytes>;
    check_pairs<T, Bytes>(std::plus<V>{}, std::plus<T>{});
    check_pairs<T, Bytes>(std::minus<V>{}, std::minus<T>{});
    check_pairs<T, Bytes>(std::multiplies<V>{}, std::multiplies<T>{});
    check_pairs<T, Bytes>(std::divides<V>{}, std::divides<T>{});
    check_pairs<T, Bytes>([](V a, V b) { return copysign(a, b); }, [](T a, T b) { return std::copysign(a, b); });
    check_pairs<T, Bytes>([](V a, V b) { return min(a, b); }, [](T a, T b) { return std::min(a, b); });
    check_pairs<T, Bytes>([](V a, V b) { return max(a, b); }, [](T a, T b) { return std::max(a, b); });
    check_pairs<T, Bytes>([](V, V b) { return sqrt(b); }, [](T, T b) { return std::sqrt(b); });
    check_pairs<T, Bytes>([](V, V b) { return abs(b); }, [](T, T b) { return std::abs(b); });
    check_pairs<T, Bytes>([](V, V b) { return -b; }, [](T, T b) { return -b; });
    const auto choice = [](auto a, auto b) { return distx::select(a <= b, a * b, a - b); };
    check_pairs<T, Bytes>(choice, choice);
  }
};

struct WidthOfRun {
  template <std::size_t Bytes>
  static void run(std::size_t* bytes) {
    *bytes = Bytes;
  }
};

/// Calls f with the bytes of each width of lanes that this processor has.
template <class F>
void for_each_width(F&& f) {
  for (std::size_t bytes = 16; bytes <= distx::detail::widest_lane_bytes(); bytes *= 2) f(bytes);
}

}  // namespace

TEST_CASE_TEMPLATE("each lane of any width has the bits of the same operation on one number", T, float, double) {
  for_each_width([](std::size_t bytes) {
    CAPTURE(bytes);
    distx::detail::run_on_lanes<EachOperation<T>>(bytes);
  });
}

TEST_CASE("run_on_lanes calls the run of the width that is asked for") {
  for_each_width([](std::size_t bytes) {
    std::size_t called = 0;
    distx::detail::run_on_lanes<WidthOfRun>(bytes, &called);
    CHECK(called == bytes);
  });
}

TEST_CASE_TEMPLATE("a number on either side of an operator applies to all lanes", T, float, double) {
  using V = distx::lanes::Lanes<T>;
  check_pairs<T>([](V a, V b) { return T(3) * b / a / T(7); }, [](T a, T b) { return T(3) * b / a / T(7); });
  V sum = T(1);
  sum += T(2);
  sum *= V{4};
  sum -= 1;
  sum /= 2;
  for (std::size_t i = 0; i < V::size; ++i) CHECK(sum[i] == T(5.5));
}

TEST_CASE("lanes load from and store to any address") {
  std::array<float, 7> values{1, 2, 3, 4, 5, 6, 7};
  const auto lanes = distx::lanes::Lanes<float>::load(&values[1]);
  lanes.store(&values[3]);
  CHECK(values == std::array<float, 7>{1, 2, 3, 2, 3, 4, 5});
}

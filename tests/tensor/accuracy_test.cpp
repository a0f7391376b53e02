// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/tensor.hpp>
#include <distx/tensor/ops.hpp>
#include <distx/threads.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

// Operations on floats against the same formulas in long double. Bounds follow from the lengths and the scales of the
// numbers: half a unit in the last place of each result, and what double loses of the sum of the terms' magnitudes.
namespace accuracy_test {

namespace ops = distx::ops;

namespace {

struct Model {};
using Mesh = distx::Mesh<Model>;
using Exact = std::vector<long double>;
using Lengths = std::initializer_list<std::size_t>;

constexpr long double half_unit = 0x1.001p-24L, of_terms = 0x1p-50L;
/// The smallest distance of floats, halved.
constexpr long double least = 0x1p-150L;

float noise(std::size_t i) {  // of mean 0 and variance 1
  std::uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15U;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
  return static_cast<float>(std::sqrt(12.0) * (static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-53 - 0.5));
}

struct Numbers {
  std::string name;
  std::function<float(std::size_t i, std::size_t of)> at;
};
const std::vector<Numbers> inputs = {
    {"normal", [](std::size_t i, std::size_t) { return noise(i); }},
    {"normal times 10", [](std::size_t i, std::size_t) { return 10 * noise(i); }},
    {"a small range", [](std::size_t i, std::size_t) { return 5e-4F + 3e-4F * noise(i); }},
    {"mean 1,000", [](std::size_t i, std::size_t) { return 1e3F + noise(i); }},
    {"mean 10,000", [](std::size_t i, std::size_t) { return 1e4F + noise(i); }},
    {"cancelling", [](std::size_t i, std::size_t) { return (i % 2 == 0 ? 1e4F : -1e4F) + noise(i / 2 * 2); }},
    {"large and then ones", [](std::size_t i, std::size_t of) { return i < of / 2 ? 1e8F : 1.0F; }},
    {"subnormal", [](std::size_t i, std::size_t) { return 1e-40F * noise(i); }},
    {"the largest exponent", [](std::size_t i, std::size_t) { return 1e38F * noise(i); }},
};

std::vector<float> values(const Numbers& numbers, std::size_t count) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = numbers.at(i, count);
  return all;
}

/// Calls f with a mesh of this thread alone.
template <class F>
void on_one_rank(F&& f) {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  f(Mesh(comm, {1}));
}

/// Returns an empty text if each result is within its bound of the exact number; else how many are not, and the worst.
template <class X, class Bound>
std::string outside(const X& tensor, const Exact& exact, const Bound& bound) {
  const auto results = tensor.local();
  std::size_t count = 0, worst = 0;
  long double most = 1;
  if (results.size() != exact.size()) return "of other length";
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const long double limit = half_unit * std::abs(exact[i]) + least + bound(i);
    const auto share = std::abs(static_cast<long double>(results[i]) - exact[i]) / limit;
    if (share <= 1) continue;
    ++count;
    if (!(share <= most)) most = share, worst = i;
  }
  return count == 0 ? ""
                    : std::to_string(count) + " beyond their bounds, number " + std::to_string(worst) + " by " +
                          std::to_string(static_cast<double>(most)) + " times";
}

/// The norm of the results' errors, relative to that of the exact numbers.
template <class X>
double distance(const X& tensor, const Exact& exact) {
  const auto results = tensor.local();
  REQUIRE(results.size() == exact.size());
  long double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const long double difference = exact[i] - static_cast<long double>(results[i]);
    error += difference * difference;
    norm += exact[i] * exact[i];
  }
  return static_cast<double>(std::sqrt(error / norm));
}

/// Sums over the first dimension of rows.
struct ColumnSums {
  Exact sums, magnitudes;
  ColumnSums(const std::vector<float>& x, std::size_t columns) : sums(columns), magnitudes(columns) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      sums[i % columns] += x[i];
      magnitudes[i % columns] += std::abs(x[i]);
    }
  }
  [[nodiscard]] auto bound(long double factor = 1) const {
    return [this, factor](std::size_t i) { return of_terms * factor * magnitudes[i]; };
  }
};

/// The columns of a row as numbers of mean 0 and variance 1.
struct Normal {
  Exact values;
  long double steepness;
  Normal(const float* row, std::size_t n, double epsilon) : values(row, row + n) {
    const auto width = static_cast<long double>(n);
    const long double mean = std::accumulate(values.begin(), values.end(), 0.0L) / width;
    long double variance = 0;
    for (auto& each : values) each -= mean, variance += each * each;
    steepness = 1 / std::sqrt(variance / width + static_cast<long double>(epsilon));
    for (auto& each : values) each *= steepness;
  }
};

}  // namespace

TEST_CASE("a sum or mean over a dimension is rounded once, regardless of its length") {
  on_one_rank([](const Mesh& mesh) {
    for (const auto& numbers : inputs)
      for (const std::size_t n : Lengths{1, 7, 100, 65'537, 300'000}) {
        INFO(numbers.name, ", ", n);
        const auto x = values(numbers, n);
        const auto tensor = distx::from_local(mesh, {n}, x);
        const ColumnSums exact(x, 1);
        if (numbers.name != "the largest exponent")
          CHECK(outside(ops::sum_over<0>(tensor), exact.sums, exact.bound()) == "");
        const auto width = static_cast<long double>(n);
        CHECK(outside(ops::mean_over<0>(tensor), {exact.sums[0] / width}, exact.bound(1 / width)) == "");
      }
  });
}

TEST_CASE("a sum of ten million numbers is rounded once") {
  on_one_rank([](const Mesh& mesh) {
    const std::size_t n = 10'000'000;
    const auto tensor =
        distx::generate<float>(mesh, {n}, [](const auto& index) { return index[0] == 0 ? 1e8F : 1.0F; });
    const auto sum = ops::sum_over<0>(tensor);
    CHECK(sum.local()[0] == 109'999'999.0F);
  });
}

TEST_CASE("sums of columns are rounded once, regardless of the number of rows") {
  on_one_rank([](const Mesh& mesh) {
    for (const auto& numbers : inputs) {
      if (numbers.name == "the largest exponent") continue;
      for (const std::size_t columns : Lengths{1, 5, 37})
        for (const std::size_t rows : Lengths{1, 11, 1'000, 9'000}) {
          INFO(numbers.name, ", ", rows, " rows of ", columns);
          const auto x = values(numbers, rows * columns);
          const auto tensor = distx::from_local(mesh, {rows, columns}, x);
          const ColumnSums exact(x, columns);
          CHECK(outside(ops::sum_rows(tensor), exact.sums, exact.bound()) == "");
          CHECK(outside(ops::sum_leading<1>(tensor), exact.sums, exact.bound()) == "");
          CHECK(outside(ops::sum_over<0>(tensor), exact.sums, exact.bound()) == "");
        }
    }
  });
}

TEST_CASE("sums of half-precision numbers are rounded once") {
  on_one_rank([](const Mesh& mesh) {
    const auto tensor = distx::full<distx::bfloat16>(mesh, {30'000}, distx::bfloat16(1.0F));
    const auto sum = ops::sum_over<0>(tensor), mean = ops::mean_over<0>(tensor);
    CHECK(static_cast<float>(sum.local()[0]) == static_cast<float>(distx::bfloat16(30'000.0F)));
    CHECK(static_cast<float>(mean.local()[0]) == 1.0F);
  });
}

TEST_CASE("row operations have the same bits at every width of vector registers, also after the last whole vector") {
  on_one_rank([](const Mesh& mesh) {
    const std::size_t widest = distx::detail::lane_bytes();
    const auto check = [&]<class T>(T) {
      const auto numbers = [&](auto... extents) {
        return distx::generate<T>(mesh, {static_cast<std::size_t>(extents)...}, [](const auto& index) {
          std::size_t at = 0;
          for (const std::size_t each : index) at = at * 31 + each;
          return static_cast<T>(noise(at));
        });
      };
      const auto rows = numbers(9, 13), gradient = numbers(9, 13);
      const auto weight = numbers(13), bias = numbers(13);
      const auto heads = numbers(1, 5, 3, 2, 5);
      const auto of_heads = numbers(1, 5, 2, 5);
      const auto all = [&] {
        std::vector<T> results;
        const auto add = [&](const auto& tensor) {
          results.insert(results.end(), tensor.local().begin(), tensor.local().end());
        };
        add(ops::layer_norm(rows, weight, bias));
        const auto backward = ops::layer_norm_backward(rows, weight, gradient);
        add(backward.input);
        add(backward.weight);
        add(ops::softmax(rows));
        add(ops::softmax_backward(ops::softmax(rows), gradient));
        add(ops::causal_attention(heads));
        add(ops::causal_attention_backward(heads, of_heads));
        add(ops::gelu(rows)), add(ops::gelu_backward(rows, gradient));
        return results;
      };
      distx::detail::lane_bytes() = distx::detail::common_lane_bytes;
      const auto at_common = all();
      for (std::size_t bytes = 32; bytes <= distx::detail::widest_lane_bytes(); bytes *= 2) {
        distx::detail::lane_bytes() = bytes;
        CHECK(all() == at_common);
      }
      distx::detail::lane_bytes() = widest;
      const auto tensor = distx::generate<T>(mesh, {5'003, 45}, [](const auto& index) {
        return static_cast<T>(1e3F * noise(index[0] * 45 + index[1]) * noise(index[0]));
      });
      distx::detail::lane_bytes() = distx::detail::common_lane_bytes;
      const auto common = ops::sum_rows(tensor);
      for (std::size_t bytes = 32; bytes <= distx::detail::widest_lane_bytes(); bytes *= 2) {
        distx::detail::lane_bytes() = bytes;
        const auto wide = ops::sum_rows(tensor);
        CHECK(std::equal(common.local().begin(), common.local().end(), wide.local().begin()));
      }
      distx::detail::lane_bytes() = widest;
    };
    check(0.0F);
    check(0.0);
  });
}

TEST_CASE_TEMPLATE("a row has the same bits alone and among others, at every length and width of vector registers", T,
                   float, double) {
  on_one_rank([](const Mesh& mesh) {
    constexpr std::size_t rows = 19;
    const std::size_t widest = distx::detail::lane_bytes();
    for (std::size_t bytes = distx::detail::common_lane_bytes; bytes <= widest; bytes *= 2)
      for (const std::size_t n : Lengths{1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65}) {
        INFO(bytes, " bytes, ", n, " columns");
        distx::detail::lane_bytes() = bytes;
        const auto part = [&](std::size_t begin, std::size_t count, std::size_t seed) {
          std::vector<T> all(count * n);
          for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<T>(noise(seed + begin * n + i));
          return distx::from_local(mesh, {count, n}, all);
        };
        const auto weight = distx::generate<T>(mesh, {n}, [](const auto& i) { return static_cast<T>(noise(i[0])); });
        const auto results = [&](std::size_t begin, std::size_t count) {
          const auto x = part(begin, count, 0), gradient = part(begin, count, 1'000'000);
          const auto targets = distx::full<int>(mesh, {count}, static_cast<int>(n / 2));
          const auto slopes = distx::generate<T>(
              mesh, {count}, [&](const auto& index) { return static_cast<T>(noise(begin + index[0])); });
          std::vector<T> all;
          const auto add = [&](const auto& tensor) {
            for (const auto each : tensor.local()) all.push_back(static_cast<T>(each));
          };
          const auto loss = ops::cross_entropy(x, targets);
          add(ops::softmax(x)), add(ops::softmax_backward(x, gradient)), add(ops::layer_norm(x, weight, weight));
          add(ops::layer_norm_backward(x, weight, gradient).input);
          add(loss.losses), add(ops::cross_entropy_backward(x, targets, loss.log_sums, slopes));
          const auto most = ops::max_over<1>(x);
          add(ops::sum_over<1>(x)), add(ops::mean_over<1>(x)), add(most);
          add(ops::sum_over_backward<1>(x, slopes)), add(ops::max_over_backward<1>(x, most, slopes));
          add(ops::gelu(x)), add(ops::gelu_backward(x, gradient));
          return all;
        };
        const auto together = results(0, rows);
        const std::size_t sizes[] = {n, n, n, n, 1, n, 1, 1, 1, n, n, n, n};
        for (std::size_t row = 0; row < rows; ++row) {
          std::vector<T> expected;
          std::size_t begin = 0;
          for (const std::size_t size : sizes) {
            for (std::size_t i = 0; i < size; ++i) expected.push_back(together[begin + row * size + i]);
            begin += rows * size;
          }
          CHECK(results(row, 1) == expected);
        }
      }
    distx::detail::lane_bytes() = widest;
  });
}

TEST_CASE_TEMPLATE("max_over has the bits of distx::max, element by element, at every width of vector registers", T,
                   float, double) {
  on_one_rank([](const Mesh& mesh) {
    const std::size_t widest = distx::detail::lane_bytes();
    for (std::size_t bytes = distx::detail::common_lane_bytes; bytes <= widest; bytes *= 2)
      for (const std::size_t blocks : Lengths{1, 2, 19})
        for (const std::size_t count : Lengths{1, 3, 10})
          for (const std::size_t size : Lengths{1, 3, 4, 7, 16, 21}) {
            INFO(bytes, " bytes, ", blocks, " x ", count, " x ", size);
            distx::detail::lane_bytes() = bytes;
            const T special[] = {T(-0.0), T(0), -std::numeric_limits<T>::infinity(),
                                 std::numeric_limits<T>::quiet_NaN()};
            std::vector<T> x(blocks * count * size), expected(blocks * size);
            for (std::size_t i = 0; i < x.size(); ++i)
              x[i] = i % 7 < 3 ? special[i * 11 / 7 % 3] : static_cast<T>(-noise(i));
            for (std::size_t i = 0; i < x.size(); i += 37) x[i] = special[i / 37 % 4];
            for (std::size_t i = 0; i < expected.size(); ++i) {
              const T* const from = &x[i / size * count * size + i % size];
              expected[i] = -std::numeric_limits<T>::infinity();
              for (std::size_t k = 0; k < count; ++k) expected[i] = distx::max(expected[i], from[k * size]);
            }
            const auto result = ops::max_over<1>(distx::from_local(mesh, {blocks, count, size}, x));
            CHECK(std::memcmp(result.local().data(), expected.data(), expected.size() * sizeof(T)) == 0);
          }
    distx::detail::lane_bytes() = widest;
  });
}

TEST_CASE("layer_norm and its gradients are rounded once, regardless of the length and the mean of a row") {
  constexpr std::size_t rows = 3;
  constexpr double epsilon = 1e-5;
  on_one_rank([](const Mesh& mesh) {
    for (const auto& numbers : inputs)
      for (const std::size_t n : Lengths{1, 10, 1'024, 30'001}) {
        INFO(numbers.name, ", ", n);
        const auto x = values(numbers, rows * n), w = values(inputs[0], n), b = values(inputs[2], n),
                   g = values(inputs[1], rows * n);
        Exact out(rows * n), of_x(rows * n), of_w(n), limits(rows * n), weight_limits(n), steepness(rows);
        long double largest = 0;
        for (const float each : x) largest = std::max<long double>(largest, std::abs(each));
        for (std::size_t row = 0; row < rows; ++row) {
          const Normal normal(&x[row * n], n, epsilon);
          steepness[row] = normal.steepness;
          long double mean = 0, along = 0;
          const auto slope = [&](std::size_t i) { return static_cast<long double>(g[row * n + i]) * w[i]; };
          for (std::size_t i = 0; i < n; ++i) {
            mean += slope(i) / static_cast<long double>(n);
            along += slope(i) * normal.values[i] / static_cast<long double>(n);
          }
          // A mean is off by what double loses of the largest number.
          const long double shift = of_terms * (1 + largest * normal.steepness);
          for (std::size_t i = 0; i < n; ++i) {
            const std::size_t at = row * n + i;
            out[at] = normal.values[i] * w[i] + b[i];
            of_x[at] = normal.steepness * (slope(i) - mean - along * normal.values[i]);
            of_w[i] += g[at] * normal.values[i];
            limits[at] = shift * 4 * (1 + std::abs(normal.values[i]));
            weight_limits[i] += std::abs(g[at]) * limits[at];
          }
        }
        const auto bound = [&](std::size_t i) { return limits[i] * (1 + std::abs(w[i % n])); };
        const auto tensor = distx::from_local(mesh, {rows, n}, x), grad = distx::from_local(mesh, {rows, n}, g);
        const auto weight = distx::from_local(mesh, {n}, w), bias = distx::from_local(mesh, {n}, b);
        CHECK(outside(ops::layer_norm(tensor, weight, bias), out, bound) == "");
        const auto gradients = ops::layer_norm_backward(tensor, weight, grad);
        CHECK(outside(gradients.weight, of_w, [&](std::size_t i) { return weight_limits[i]; }) == "");
        CHECK(outside(gradients.input, of_x, [&](std::size_t i) { return 1'000 * limits[i] * steepness[i / n]; }) ==
              "");
      }
  });
}

namespace {

/// The exponentials of a row relative to its maximum, and what rounding x - maximum to float does to them.
struct Exponentials {
  Exact values;
  long double sum = 0, maximum = -std::numeric_limits<long double>::infinity();
  Exponentials(const float* row, std::size_t n) : values(row, row + n) {
    for (const auto each : values) maximum = std::max(maximum, each);
    for (auto& each : values) each = std::exp(each - maximum), sum += each;
  }
  /// The relative error of an exponential: of its argument, and of std::exp.
  [[nodiscard]] long double error(std::size_t i) const {
    return half_unit * (1.2L - (values[i] > 0 ? std::log(values[i]) : 0.0L));
  }
};

}  // namespace

TEST_CASE("softmax and its gradient are as exact as the exponentials of floats, regardless of the length of a row") {
  constexpr std::size_t rows = 3;
  on_one_rank([](const Mesh& mesh) {
    for (const auto& numbers : inputs)
      for (const std::size_t n : Lengths{1, 10, 1'024, 65'537}) {
        INFO(numbers.name, ", ", n);
        const auto x = values(numbers, rows * n), g = values(inputs[1], rows * n);
        Exact y(rows * n), limits(rows * n), of_x(rows * n), backward_limits(rows * n);
        const auto tensor = distx::from_local(mesh, {rows, n}, x);
        const auto probabilities = ops::softmax(tensor);
        for (std::size_t row = 0; row < rows; ++row) {
          const Exponentials e(&x[row * n], n);
          long double of_sum = 0, mean = 0, size = 0;
          for (std::size_t i = 0; i < n; ++i) of_sum += e.error(i) * e.values[i] / e.sum;
          for (std::size_t i = 0; i < n; ++i) {
            const std::size_t at = row * n + i;
            y[at] = e.values[i] / e.sum;
            limits[at] = (e.error(i) + of_sum) * y[at];
            const long double own = probabilities.local()[at];
            mean += own * g[at];
            size += std::abs(own * g[at]);
          }
          for (std::size_t i = 0; i < n; ++i) {
            const long double own = probabilities.local()[row * n + i];
            of_x[row * n + i] = own * (g[row * n + i] - mean);
            backward_limits[row * n + i] = of_terms * own * size;
          }
        }
        CHECK(outside(probabilities, y, [&](std::size_t i) { return limits[i]; }) == "");
        CHECK(outside(ops::softmax_backward(probabilities, distx::from_local(mesh, {rows, n}, g)), of_x,
                      [&](std::size_t i) { return backward_limits[i]; }) == "");
      }
  });
}

namespace {

/// Checks cross_entropy of rows whose last dimension is sharded over all ranks.
template <class Layout>
void check_cross_entropy(const Mesh& mesh, const Numbers& numbers, std::size_t n) {
  constexpr std::size_t rows = 4;
  INFO(numbers.name, ", ", n);
  const auto x = values(numbers, rows * n), g = values(inputs[0], rows);
  const auto target = [&](std::size_t row) { return row * 7 % n; };
  const auto logits = distx::generate<float, typename Layout::type>(
      mesh, {rows, n}, [&](const auto& index) { return x[index[0] * n + index[1]]; });
  const auto targets =
      distx::generate<int>(mesh, {rows}, [&](const auto& index) { return static_cast<int>(target(index[0])); });
  const auto slopes = distx::generate<float>(mesh, {rows}, [&](const auto& index) { return g[index[0]]; });
  const auto [losses, log_sums] = ops::cross_entropy(logits, targets);
  const auto gradient = distx::redistribute<>(ops::cross_entropy_backward(logits, targets, log_sums, slopes));
  Exact exact(rows), loss_limits(rows), of_x(rows * n), limits(rows * n);
  for (std::size_t row = 0; row < rows; ++row) {
    const Exponentials e(&x[row * n], n);
    exact[row] = std::log(e.sum) - (x[row * n + target(row)] - e.maximum);
    for (std::size_t i = 0; i < n; ++i) loss_limits[row] += e.error(i) * e.values[i] / e.sum;
    // The log of the sum is a double, so its error grows with the logits, but in units of double.
    const long double shift = loss_limits[row] + 0x1p-52L * std::abs(e.maximum);
    for (std::size_t i = 0; i < n; ++i) {
      const long double y = e.values[i] / e.sum, factor = g[row];
      of_x[row * n + i] = factor * (y - (i == target(row) ? 1 : 0));
      limits[row * n + i] = std::abs(factor) * y * (shift + 2 * half_unit);
    }
  }
  CHECK(outside(losses, exact, [&](std::size_t i) { return loss_limits[i]; }) == "");
  CHECK(outside(gradient, of_x, [&](std::size_t i) { return limits[i]; }) == "");
}
struct Whole {
  using type = distx::Replicated<Model>;
};
struct Sharded {
  using type = distx::Shard<1, Model>;
};

}  // namespace

TEST_CASE("cross_entropy and its gradient are as exact as the exponentials of floats, regardless of the logits' size") {
  on_one_rank([](const Mesh& mesh) {
    for (const auto& numbers : inputs)
      if (numbers.name != "the largest exponent")
        for (const std::size_t n : Lengths{2, 64, 1'024, 65'537}) check_cross_entropy<Whole>(mesh, numbers, n);
  });
}

TEST_CASE("cross_entropy over a sharded vocabulary keeps the same bounds") {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(3, 20s), [](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 20s);
    const Mesh mesh(comm, {3});
    for (const std::size_t input : Lengths{0, 2, 4}) check_cross_entropy<Sharded>(mesh, inputs[input], 3'001);
  });
}

TEST_CASE("cross_entropy of a masked logit, minus infinity, has the gradient 0 there") {
  on_one_rank([](const Mesh& mesh) {
    const auto logits =
        distx::from_local(mesh, {1, 3}, std::vector<float>{1, -std::numeric_limits<float>::infinity(), 2});
    const auto targets = distx::from_local(mesh, {1}, std::vector<int>{2});
    const auto [losses, log_sums] = ops::cross_entropy(logits, targets);
    const auto gradient = ops::cross_entropy_backward(logits, targets, log_sums, distx::full<float>(mesh, {1}, 1));
    CHECK(losses.local()[0] == doctest::Approx(std::log1p(std::exp(-1.0))));
    CHECK(gradient.local()[1] == 0);
    CHECK(gradient.local()[0] == -gradient.local()[2]);
  });
}

TEST_CASE("a NaN makes its row of softmax and cross_entropy NaN, and only that") {
  on_one_rank([](const Mesh& mesh) {
    std::vector<float> x(2 * 20, 1);
    x[27] = std::numeric_limits<float>::quiet_NaN();
    const auto logits = distx::from_local(mesh, {2, 20}, x);
    const auto probabilities = ops::softmax(logits);
    const auto losses = ops::cross_entropy(logits, distx::from_local(mesh, {2}, std::vector<int>{1, 1})).losses;
    for (std::size_t row = 0; row < 2; ++row) {
      CHECK(std::isnan(losses.local()[row]) == (row == 1));
      for (std::size_t i = 0; i < 20; ++i) CHECK(std::isnan(probabilities.local()[row * 20 + i]) == (row == 1));
    }
  });
}

namespace {

/// Floats of one of the kinds in `inputs`.
std::vector<float> values(std::string_view kind, std::size_t count) {
  return values(*std::ranges::find(inputs, kind, &Numbers::name), count);
}

}  // namespace

// The factors are the errors of PyTorch's operations on floats of the same kinds, measured as in docs/numerics.md.
TEST_CASE("the errors of row operations are at most 1.2 times those of PyTorch's") {
  on_one_rank([](const Mesh& mesh) {
    const auto of_layer_norm = [&](const char* kind, std::size_t rows, std::size_t n) {
      const auto x = values(kind, rows * n);
      Exact exact;
      for (std::size_t row = 0; row < rows; ++row) {
        const Normal normal(&x[row * n], n, 1e-5);
        exact.insert(exact.end(), normal.values.begin(), normal.values.end());
      }
      return distance(ops::layer_norm(distx::from_local(mesh, {rows, n}, x), distx::full<float>(mesh, {n}, 1),
                                      distx::full<float>(mesh, {n}, 0)),
                      exact);
    };
    CHECK(of_layer_norm("mean 1,000", 64, 1'024) <= 1.2 * 2.4e-5);
    CHECK(of_layer_norm("mean 10,000", 4, 65'536) <= 1.2 * 3.7e-4);

    struct Errors {
      double softmax, loss, gradient;
    };
    const auto of_logits = [&](const char* kind, std::size_t rows, std::size_t n) {
      const auto x = values(kind, rows * n);
      Exact exact, of_loss(rows), of_x;
      const auto target = [&](std::size_t row) { return row * 7 % n; };
      for (std::size_t row = 0; row < rows; ++row) {
        const Exponentials e(&x[row * n], n);
        of_loss[row] = std::log(e.sum) - (x[row * n + target(row)] - e.maximum);
        for (std::size_t i = 0; i < n; ++i) {
          exact.push_back(e.values[i] / e.sum);
          of_x.push_back(exact.back() - (i == target(row) ? 1 : 0));
        }
      }
      const auto logits = distx::from_local(mesh, {rows, n}, x);
      const auto targets =
          distx::generate<int>(mesh, {rows}, [&](const auto& index) { return static_cast<int>(target(index[0])); });
      const auto [losses, log_sums] = ops::cross_entropy(logits, targets);
      return Errors{
          distance(ops::softmax(logits), exact), distance(losses, of_loss),
          distance(ops::cross_entropy_backward(logits, targets, log_sums, distx::full<float>(mesh, {rows}, 1)), of_x)};
    };
    const Errors small = of_logits("a small range", 4, 65'536);
    CHECK(small.softmax <= 1.2 * 3.5e-7);
    CHECK(small.loss <= 1.2 * 5.2e-8);
    CHECK(of_logits("normal times 10", 64, 64).gradient <= 1.2 * 4.5e-8);
    CHECK(of_logits("mean 1,000", 64, 64).gradient <= 1.2 * 2.6e-8);
    CHECK(of_logits("mean 10,000", 64, 64).gradient <= 1.2 * 2.6e-8);
  });
}

TEST_CASE("the errors of sums of millions are at most 1.2 times those of PyTorch's") {
  on_one_rank([](const Mesh& mesh) {
    const std::size_t rows = 1'000'000, columns = 7, n = 10'000'000;
    const auto of_columns = [&](const char* kind) {
      const auto x = values(kind, rows * columns);
      return distance(ops::sum_rows(distx::from_local(mesh, {rows, columns}, x)), ColumnSums(x, columns).sums);
    };
    CHECK(of_columns("normal") <= 1.2 * 1.7e-7);
    CHECK(of_columns("cancelling") <= 1.2 * 4.0e-5);
    const auto x = values("normal", n);
    const long double sum = std::accumulate(x.begin(), x.end(), 0.0L);
    const auto tensor = distx::from_local(mesh, {n}, x);
    CHECK(distance(ops::sum_over<0>(tensor), {sum}) <= 1.2 * 1.6e-7);
    CHECK(distance(ops::mean_over<0>(tensor), {sum / n}) <= 1.2 * 1.2e-7);
  });
}

TEST_CASE("causal attention and its gradient are as exact as exponentials of floats") {
  constexpr std::size_t length = 300, size = 32, row = 3 * size;
  on_one_rank([](const Mesh& mesh) {
    for (const float mean : {0.0F, 30.0F}) {
      INFO("keys of mean ", mean);
      std::vector<float> x(length * row), g(length * size);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = noise(i) + (i / size % 3 == 1 ? mean : 0);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = noise(i + x.size());
      Exact out(length * size), of_x(length * row);
      const long double root = 1 / std::sqrt(static_cast<long double>(size));
      const auto part = [&](std::size_t t, std::size_t which) { return t * row + which * size; };
      for (std::size_t t = 0; t < length; ++t) {
        Exact weights(t + 1), grads(t + 1);
        long double largest = -1e300L, total = 0, along = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t i = 0; i < size; ++i)
            weights[s] += root * x[part(t, 0) + i] * static_cast<long double>(x[part(s, 1) + i]);
          largest = std::max(largest, weights[s]);
        }
        for (auto& each : weights) each = std::exp(each - largest), total += each;
        for (std::size_t s = 0; s <= t; ++s) {
          weights[s] /= total;
          for (std::size_t i = 0; i < size; ++i) {
            out[t * size + i] += weights[s] * x[part(s, 2) + i];
            of_x[part(s, 2) + i] += weights[s] * g[t * size + i];
            grads[s] += static_cast<long double>(g[t * size + i]) * x[part(s, 2) + i];
          }
          along += weights[s] * grads[s];
        }
        for (std::size_t s = 0; s <= t; ++s)
          for (std::size_t i = 0; i < size; ++i) {
            const long double score = root * weights[s] * (grads[s] - along);
            of_x[part(t, 0) + i] += score * x[part(s, 1) + i];
            of_x[part(s, 1) + i] += score * x[part(t, 0) + i];
          }
      }
      const auto tensor = distx::from_local(mesh, {1, length, 3, 1, size}, x);
      const auto grad = distx::from_local(mesh, {1, length, 1, size}, g);
      CHECK(distance(ops::causal_attention(tensor), out) < 1e-7);
      CHECK(distance(ops::causal_attention_backward(tensor, grad), of_x) < 1e-7);
    }
  });
}

TEST_CASE("gelu and its gradient are exact to the rounding of their arguments, where 1 + tanh cancels too") {
  on_one_rank([](const Mesh& mesh) {
    const std::size_t n = 20'001;
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i) * 1e-3F - 12;
    const auto tensor = distx::from_local(mesh, {n}, x);
    Exact out(n), slope(n);
    for (std::size_t i = 0; i < n; ++i) {
      const long double v = x[i], root = std::sqrt(8 / std::acos(-1.0L)), cubic = 0.044715L;
      const long double e = std::exp(-root * v * (1 + cubic * v * v)), share = 1 / (1 + e);
      out[i] = v * share;
      slope[i] = share * (1 + v * root * (1 + 3 * cubic * v * v) * e * share);
    }
    CHECK(outside(ops::gelu(tensor), out, [&](std::size_t i) { return 1e-7L + 2 * half_unit * std::abs(x[i]); }) == "");
    CHECK(outside(ops::gelu_backward(tensor, distx::full<float>(mesh, {n}, 1)), slope,
                  [](std::size_t) { return 3e-7L; }) == "");
  });
}

}  // namespace accuracy_test

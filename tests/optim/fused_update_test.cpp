// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/optim/adamw.hpp>
#include <distx/optim/fused_update.hpp>
#include <distx/optim/lamb.hpp>
#include <distx/optim/muon.hpp>
#include <distx/optim/sgd.hpp>

#include <cmath>
#include <cstring>
#include <vector>

namespace {

/// A custom optimizer: sign descent with momentum (Chen et al., arXiv 2302.06675).
struct Lion {
  double beta1 = 0.9;
  double beta2 = 0.99;

  static constexpr std::size_t states = 1;

  template <class T>
  struct Coefficients {
    T rate, beta1, beta2;
  };
  template <class T>
  Coefficients<T> coefficients(const distx::Step& step) const {
    return {static_cast<T>(step.learning_rate), static_cast<T>(beta1), static_cast<T>(beta2)};
  }
  template <class T, class V>
  static constexpr void update(const Coefficients<T>& c, V& weight, V gradient, V& mean) {
    using std::copysign;
    const V direction = c.beta1 * mean + (T{1} - c.beta1) * gradient;
    weight -= c.rate * copysign(V{1}, direction);
    mean = c.beta2 * mean + (T{1} - c.beta2) * gradient;
  }
};

/// Without any state.
struct Plain {
  static constexpr std::size_t states = 0;
  template <class T>
  T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr void update(const T& rate, V& weight, V gradient) {
    weight -= rate * gradient;
  }
};

/// Accepts a number and lanes of 16 bytes.
struct OnCommonLanes : Plain {
  template <class T>
  static constexpr void update(const T& rate, T& weight, T gradient) {
    weight -= rate * gradient;
  }
  template <class T>
  static void update(const T& rate, distx::lanes::Lanes<T>& weight, distx::lanes::Lanes<T> gradient) {
    weight -= rate * gradient;
  }
};

/// Restores the width of lanes.
struct KeptWidth {
  std::size_t bytes = distx::detail::lane_bytes();
  ~KeptWidth() { distx::detail::lane_bytes() = bytes; }
};

// Anti-models: each lacks one thing.
struct NoStates {
  template <class T>
  T coefficients(const distx::Step&) const;
  template <class T, class V>
  static constexpr void update(const T&, V&, V);
};
struct NoCoefficients {
  static constexpr std::size_t states = 0;
  template <class T, class V>
  static constexpr void update(const T&, V&, V);
};
struct AnotherNumberOfStates {
  static constexpr std::size_t states = 2;
  template <class T>
  T coefficients(const distx::Step&) const;
  template <class T, class V>
  static constexpr void update(const T&, V&, V, V&);
};
struct NeedsTheWholeParameter {
  static constexpr std::size_t states = 0;
  template <class T>
  T coefficients(const distx::Step&) const;
  template <class T>
  static void update(const T&, distx::Span<T> weight, distx::Span<const T> gradient);
};

static_assert(distx::ElementwiseOptimizer<distx::SGD>);
static_assert(distx::ElementwiseOptimizer<distx::AdamW>);
static_assert(distx::ElementwiseOptimizer<Lion>);
static_assert(distx::ElementwiseOptimizer<Plain>);
static_assert(!distx::ElementwiseOptimizer<NoStates>);
static_assert(!distx::ElementwiseOptimizer<NoCoefficients>);
static_assert(!distx::ElementwiseOptimizer<AnotherNumberOfStates>);
static_assert(!distx::ElementwiseOptimizer<NeedsTheWholeParameter>);
static_assert(!distx::ElementwiseOptimizer<int>);
static_assert(distx::detail::DecaysWeights<distx::AdamW> && !distx::detail::DecaysWeights<Lion>);

template <class T, class Optimizer>
struct Trained {
  using A = distx::accumulator_t<T>;
  std::vector<T> weight;
  std::array<std::vector<A>, Optimizer::states> state;

  /// Three steps on n elements, the span cut at the given places.
  Trained(std::size_t n, const std::vector<std::size_t>& cuts) : weight(n) {
    std::vector<T> gradient(n);
    for (auto& values : state) values.resize(n);
    for (std::size_t i = 0; i < n; ++i) weight[i] = static_cast<T>(static_cast<float>(std::sin(0.37 * double(i) + 1)));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      for (std::size_t i = 0; i < n; ++i)
        gradient[i] =
            static_cast<T>(static_cast<float>(std::cos(double(i) * double(step)) * std::exp2(double(i % 40) - 20)));
      std::size_t begin = 0;
      for (std::size_t piece = 0; piece <= cuts.size(); ++piece) {
        const std::size_t end = piece < cuts.size() ? cuts[piece] : n;
        std::array<distx::Span<A>, Optimizer::states> pieces;
        for (std::size_t s = 0; s < state.size(); ++s) pieces[s] = {state[s].data() + begin, end - begin};
        distx::fused_update(distx::HostStream{}, Optimizer{}, {.learning_rate = 0.01, .number = step},
                            distx::Span<T>(weight.data() + begin, end - begin),
                            distx::Span<const T>(gradient.data() + begin, end - begin), pieces);
        begin = end;
      }
    }
  }
  bool same_bits(const Trained& other) const {
    bool same = std::memcmp(weight.data(), other.weight.data(), weight.size() * sizeof(T)) == 0;
    for (std::size_t s = 0; s < state.size(); ++s)
      same = same && std::memcmp(state[s].data(), other.state[s].data(), state[s].size() * sizeof(A)) == 0;
    return same;
  }
};

template <class T, class Optimizer>
void check_cuts() {
  const std::size_t n = 333;
  const Trained<T, Optimizer> whole(n, {});
  CHECK(std::isfinite(static_cast<double>(whole.weight[n - 1])));
  for (std::size_t cut = 0; cut <= n; ++cut) {
    CAPTURE(cut);
    CHECK(whole.same_bits(Trained<T, Optimizer>(n, {cut})));
  }
  CHECK(whole.same_bits(Trained<T, Optimizer>(n, {1, 2, 3, 63, 64, 65, 191, 200, 332})));
  Trained<T, Optimizer> other(n, {});
  other.weight[n - 1] = T(0.0f);
  CHECK_FALSE(whole.same_bits(other));
}

/// Compares all widths that this processor has, on lengths that no width divides, from addresses that none aligns.
template <class T, class Optimizer>
void check_widths() {
  const KeptWidth kept;
  for (const std::size_t n : {std::size_t{1}, std::size_t{15}, std::size_t{64}, std::size_t{333}}) {
    CAPTURE(n);
    distx::detail::lane_bytes() = distx::detail::common_lane_bytes;
    const Trained<T, Optimizer> common(n, {});
    for (std::size_t bytes = 32; bytes <= distx::detail::widest_lane_bytes(); bytes *= 2) {
      CAPTURE(bytes);
      distx::detail::lane_bytes() = bytes;
      CHECK(common.same_bits(Trained<T, Optimizer>(n, {})));
      CHECK(common.same_bits(Trained<T, Optimizer>(n, {n / 7, n / 3})));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("the bits do not depend on how a parameter is partitioned", T, float, double, distx::bfloat16,
                   distx::float16) {
  check_cuts<T, distx::AdamW>();
  check_cuts<T, distx::SGD>();
  check_cuts<T, Lion>();
  check_cuts<T, Plain>();
}

TEST_CASE_TEMPLATE("the bits do not depend on the width of the lanes", T, float, double, distx::bfloat16,
                   distx::float16) {
  check_widths<T, distx::AdamW>();
  check_widths<T, distx::SGD>();
  check_widths<T, Lion>();
  check_widths<T, Plain>();
  check_widths<T, distx::detail::FirstPass<distx::LAMB>>();
  check_widths<T, distx::detail::FirstPass<distx::Muon>>();
}

TEST_CASE("a custom optimizer without wide lanes is applied to every element") {
  static_assert(distx::ElementwiseOptimizer<OnCommonLanes>);
  static_assert(!distx::detail::Updates<OnCommonLanes, float, distx::lanes::Lanes<float, 64>>);
  const Trained<float, OnCommonLanes> narrow(333, {});
  const Trained<float, Plain> plain(333, {});
  CHECK(std::memcmp(narrow.weight.data(), plain.weight.data(), 333 * sizeof(float)) == 0);
}

TEST_CASE("a custom optimizer is applied to every element") {
  std::array<float, 2> weight{1, 1};
  const std::array<float, 2> gradient{0.5f, -2};
  std::array<float, 2> mean{};
  for (std::uint64_t step = 1; step <= 4; ++step)
    distx::fused_update(distx::HostStream{}, Lion{}, {.learning_rate = 0.125, .number = step},
                        distx::Span<float>(weight), distx::Span<const float>(gradient), {distx::Span<float>(mean)});
  CHECK(weight == std::array<float, 2>{0.5f, 1.5f});
}

TEST_CASE("fused_update writes nothing outside its spans") {
  std::vector<float> weight(200, 1.0f);
  std::vector<float> gradient(200, 1.0f);
  std::vector<float> velocity(200);
  distx::fused_update(distx::HostStream{}, distx::SGD{}, {.learning_rate = 1}, distx::Span<float>(&weight[10], 130),
                      distx::Span<const float>(&gradient[10], 130), {distx::Span<float>(&velocity[10], 130)});
  for (std::size_t i = 0; i < 200; ++i) {
    CHECK(weight[i] == (i >= 10 && i < 140 ? 0.0f : 1.0f));
    CHECK(velocity[i] == (i >= 10 && i < 140 ? 1.0f : 0.0f));
  }
}

TEST_CASE("bfloat16 is computed in float and rounded once") {
  std::array<distx::bfloat16, 1> weight{distx::bfloat16(1.0f)};
  const std::array<distx::bfloat16, 1> gradient{distx::bfloat16(1.0f)};
  std::array<float, 1> velocity{};
  // 1 - 0.01 is not a bfloat16 number; rounded to nearest it is 0.98828125.
  distx::fused_update(distx::HostStream{}, distx::SGD{}, {.learning_rate = 0.01}, distx::Span<distx::bfloat16>(weight),
                      distx::Span<const distx::bfloat16>(gradient), {distx::Span<float>(velocity)});
  CHECK(static_cast<float>(weight[0]) == 0.98828125f);
}

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What attention by heads is made of: products over several dimensions, biases by head, attention itself.
#include <doctest/doctest.h>
#include <distx/tensor/ops/causal_attention.hpp>
#include <distx/tensor/ops/contract.hpp>
#include <distx/tensor/ops/trailing.hpp>

#include "cases.hpp"
#include "matrices.hpp"

namespace heads_test {

namespace {

using cases::matrix;
using cases::Whole;
using cases::whole;

/// The same numbers with other dimensions.
Whole reshaped(Whole x, std::vector<std::size_t> extents) {
  x.extents = std::move(extents);
  return x;
}

/// Every token's mean of the values of those up to it, each weighted by exp(query · key / √size).
Whole attention(const Whole& x) {
  const std::size_t batch = x.extents[0], length = x.extents[1], heads = x.extents[3], size = x.extents[4];
  const auto at = [&](std::size_t b, std::size_t t, std::size_t kind, std::size_t h, std::size_t i) {
    return x.values[(((b * length + t) * 3 + kind) * heads + h) * size + i];
  };
  Whole out({batch, length, heads, size});
  for (std::size_t b = 0; b < batch; ++b)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t t = 0; t < length; ++t) {
        double total = 0;
        std::vector<double> mean(size);
        for (std::size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (std::size_t i = 0; i < size; ++i) score += at(b, t, 0, h, i) * at(b, s, 1, h, i);
          const double weight = std::exp(score / std::sqrt(static_cast<double>(size)));
          total += weight;
          for (std::size_t i = 0; i < size; ++i) mean[i] += weight * at(b, s, 2, h, i);
        }
        for (std::size_t i = 0; i < size; ++i) out.values[((b * length + t) * heads + h) * size + i] = mean[i] / total;
      }
  return out;
}

TEST_CASE("contract and its gradients equal Eigen's products in every supported layout") {
  const auto x = Whole::numbers({3, 2, 5}, 1), w = Whole::numbers({5, 3, 2}, 2);
  const auto y = Whole::numbers({3, 2, 3, 2}, 3);
  const auto rows = reshaped(x, {6, 5}), columns = reshaped(w, {5, 6}), slope = reshaped(y, {6, 6});
  CHECK(cases::check<distx::rules::Contract<1>, 3, 3>(
            {x, w}, whole(matrix(rows) * matrix(columns), {3, 2, 3, 2}), 0,
            [](const auto& a, const auto& b) { return distx::ops::contract<1>(a, b); }) == "");
  CHECK(cases::check<distx::rules::ContractInput<1>, 4, 3>(
            {y, w}, whole(matrix(slope) * matrix(columns).transpose(), {3, 2, 5}), 0,
            [](const auto& a, const auto& b) { return distx::ops::contract_input<1>(a, b); }) == "");
  CHECK(cases::check<distx::rules::ContractWeight<1>, 3, 4>(
            {x, y}, whole(matrix(rows).transpose() * matrix(slope), {5, 3, 2}), 0,
            [](const auto& a, const auto& b) { return distx::ops::contract_weight<1>(a, b); }) == "");
}

TEST_CASE("add_trailing and its gradient sum_leading equal loops in every supported layout") {
  const auto x = Whole::numbers({5, 3, 2}, 4), b = Whole::numbers({3, 2}, 5);
  Whole more = x, sum({3, 2});
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    more.values[i] += b.values[i % 6];
    sum.values[i % 6] += x.values[i];
  }
  CHECK(cases::check<distx::rules::AddTrailing, 3, 2>({x, b}, more, 0, [](const auto& each, const auto& added) {
          return distx::ops::add_trailing(each, added);
        }) == "");
  CHECK(cases::check<distx::rules::SumLeading<2>, 3>(
            {x}, sum, 0, [](const auto& a) { return distx::ops::sum_leading<2>(a); }) == "");
}

TEST_CASE("causal_attention equals its formula, and its gradient finite differences, in every supported layout") {
  Whole x = Whole::numbers({3, 4, 3, 3, 2}, 6);
  for (double& value : x.values) value /= 4;
  const auto slope = Whole::numbers({3, 4, 3, 2}, 7);
  CHECK(cases::check<distx::rules::CausalAttention, 5>(
            {x}, attention(x), 1e-14, [](const auto& a) { return distx::ops::causal_attention(a); }) == "");

  const auto along_slope = [&](const Whole& at) {
    const Whole y = attention(at);
    double sum = 0;
    for (std::size_t i = 0; i < y.values.size(); ++i) sum += y.values[i] * slope.values[i];
    return sum;
  };
  Whole gradient(x.extents);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    constexpr double step = 1e-5;
    Whole above = x, below = x;
    above.values[i] += step;
    below.values[i] -= step;
    gradient.values[i] = (along_slope(above) - along_slope(below)) / (2 * step);
  }
  CHECK(cases::check<distx::rules::CausalAttentionBackward, 5, 4>(
            {x, slope}, gradient, 1e-8,
            [](const auto& a, const auto& g) { return distx::ops::causal_attention_backward(a, g); }) == "");
}

}  // namespace

}  // namespace heads_test

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include <doctest/doctest.h>

#include "common/portable_random.hpp"
#include "models/layer.hpp"

namespace examples {

/// Numbers from -1 to 1.
inline Matrix<double> random_matrix(Eigen::Index rows, Eigen::Index columns, Generator& generator) {
  Matrix<double> matrix(rows, columns);
  for (Eigen::Index i = 0; i < matrix.size(); ++i) matrix.data()[i] = uniform(generator, -1, 1);
  return matrix;
}

/// Compares every stride-th element of a gradient with the central difference of `loss` along that element.
///
/// What doubles allow: a step of 1e-5 leaves an error of some 1e-10 from each of rounding and curvature.
template <class Values, class Gradient, class Loss>
void check_gradient(Values& values, const Gradient& gradient, Loss&& loss, Eigen::Index stride = 1) {
  constexpr double step = 1e-5;
  const auto size = static_cast<Eigen::Index>(values.size());
  REQUIRE(size == static_cast<Eigen::Index>(gradient.size()));
  for (Eigen::Index i = 0; i < size; i += stride) {
    double& value = values.data()[i];
    const double there = value;
    value = there + step;
    const double above = loss();
    value = there - step;
    const double below = loss();
    value = there;
    CAPTURE(i);
    CHECK(std::abs(gradient.data()[i] - (above - below) / (2 * step)) < 2e-9);
  }
}

}  // namespace examples

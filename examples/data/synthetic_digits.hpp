// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "digits.hpp"

namespace examples {

namespace detail {

struct Point {
  double x, y;
};

/// The pen's way through each digit, in a box of width and height 1, y downwards.
inline const std::array<std::vector<Point>, 10>& pen_strokes() {
  static const std::array<std::vector<Point>, 10> strokes{{
      {{.50, .05}, {.28, .15}, {.20, .50}, {.28, .85}, {.50, .95}, {.72, .85}, {.80, .50}, {.72, .15}, {.50, .05}},
      {{.33, .25}, {.55, .05}, {.55, .95}},
      {{.20, .25}, {.30, .10}, {.50, .05}, {.70, .12}, {.78, .28}, {.70, .45}, {.20, .95}, {.82, .95}},
      {{.22, .12}, {.50, .05}, {.75, .15}, {.75, .35}, {.50, .47}, {.78, .60}, {.78, .82}, {.50, .95}, {.20, .87}},
      {{.62, .95}, {.62, .05}, {.15, .65}, {.85, .65}},
      {{.78, .05}, {.28, .05}, {.24, .45}, {.55, .40}, {.78, .55}, {.78, .78}, {.55, .95}, {.20, .88}},
      {{.70, .08}, {.42, .25}, {.24, .55}, {.25, .80}, {.50, .95}, {.75, .80}, {.75, .60}, {.50, .48}, {.25, .65}},
      {{.18, .05}, {.82, .05}, {.45, .95}},
      {{.50, .48},
       {.26, .35},
       {.28, .12},
       {.50, .05},
       {.72, .12},
       {.74, .35},
       {.50, .48},
       {.24, .62},
       {.24, .85},
       {.50, .95},
       {.76, .85},
       {.76, .62},
       {.50, .48}},
      {{.30, .92}, {.58, .75}, {.76, .45}, {.75, .20}, {.50, .05}, {.25, .20}, {.25, .40}, {.50, .52}, {.75, .35}},
  }};
  return strokes;
}

/// The square of the distance from p to the straight stroke from a to b.
inline double distance_squared(Point p, Point a, Point b) {
  const Point along{b.x - a.x, b.y - a.y};
  const double length = along.x * along.x + along.y * along.y;
  const double t = length > 0 ? std::clamp(((p.x - a.x) * along.x + (p.y - a.y) * along.y) / length, 0.0, 1.0) : 0.0;
  const Point away{p.x - a.x - t * along.x, p.y - a.y - t * along.y};
  return away.x * away.x + away.y * away.y;
}

/// One digit by an unsteady hand: its size, slant, tilt, place and pen differ, and each turn of the pen misses a
/// little.
inline std::vector<Point> write(std::size_t digit, double side, Generator& generator) {
  const double width = side * uniform(generator, 0.40, 0.72);
  const double height = side * uniform(generator, 0.52, 0.78);
  const double slant = uniform(generator, -0.35, 0.35);
  const double tilt = uniform(generator, -0.25, 0.25);
  const Point center{side * uniform(generator, 0.42, 0.58), side * uniform(generator, 0.42, 0.58)};
  std::vector<Point> stroke = pen_strokes()[digit];
  for (Point& point : stroke) {
    const double x = (point.x - 0.5 + uniform(generator, -0.06, 0.06)) * width;
    const double y = (point.y - 0.5 + uniform(generator, -0.06, 0.06)) * height;
    point = {center.x + x - slant * y, center.y + y + tilt * x};
  }
  return stroke;
}

}  // namespace detail

/// Draws digits, each as often as the others in turn, with a pen that shakes on paper that is not quite clean.
///
/// Same seed, same bits everywhere; with a larger count the first ones stay the same. A simple classifier does not
/// learn them perfectly, a convolutional network nearly does.
/// @pre side >= 8
inline Digits synthetic_digits(std::size_t count, std::uint64_t seed, std::size_t side = 28) {
  constexpr double noise = 0.15;
  Generator generator(seed);
  Digits digits{side, side, std::vector<float>(count * side * side), std::vector<std::uint8_t>(count)};
  auto pixel = digits.images.begin();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t digit = i % 10;
    digits.labels[i] = static_cast<std::uint8_t>(digit);
    const auto stroke = detail::write(digit, static_cast<double>(side), generator);
    const double pen = static_cast<double>(side) * uniform(generator, 0.03, 0.07);
    const double ink = uniform(generator, 0.7, 1.0);
    for (std::size_t row = 0; row < side; ++row) {
      for (std::size_t column = 0; column < side; ++column) {
        const detail::Point here{static_cast<double>(column) + 0.5, static_cast<double>(row) + 0.5};
        double nearest = std::numeric_limits<double>::max();
        for (std::size_t turn = 1; turn < stroke.size(); ++turn) {
          nearest = std::min(nearest, detail::distance_squared(here, stroke[turn - 1], stroke[turn]));
        }
        const double covered = std::clamp(pen + 0.5 - std::sqrt(nearest), 0.0, 1.0);
        const double value = ink * covered + uniform(generator, -noise, noise);
        *pixel++ = static_cast<float>(std::clamp(value, 0.0, 1.0));
      }
    }
  }
  return digits;
}

}  // namespace examples

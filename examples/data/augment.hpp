// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "digits.hpp"

namespace examples {

/// Returns the digits with each side `factor` times as long, interpolated linearly.
///
/// This adds no detail, but a 5 × 5 kernel then covers single strokes rather than most of an 8 × 8 digit.
/// @pre factor > 0
inline Digits enlarge(const Digits& digits, std::size_t factor) {
  const std::size_t height = digits.height * factor;
  const std::size_t width = digits.width * factor;
  Digits larger{height, width, {}, digits.labels};
  larger.images.reserve(digits.images.size() * factor * factor);
  struct Blend {
    std::size_t before, after;
    float share;  // of `after`
  };
  const auto blend = [factor](std::size_t at, std::size_t size) {
    const double place = std::clamp((static_cast<double>(at) + 0.5) / static_cast<double>(factor) - 0.5, 0.0,
                                    static_cast<double>(size - 1));
    const auto before = static_cast<std::size_t>(place);
    return Blend{before, std::min(before + 1, size - 1), static_cast<float>(place - std::floor(place))};
  };
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const auto image = digits.image(i);
    for (std::size_t y = 0; y < height; ++y) {
      const Blend row = blend(y, digits.height);
      for (std::size_t x = 0; x < width; ++x) {
        const Blend column = blend(x, digits.width);
        const auto along = [&](std::size_t at) {
          const auto line = image.subspan(at * digits.width, digits.width);
          return (1 - column.share) * line[column.before] + column.share * line[column.after];
        };
        larger.images.push_back((1 - row.share) * along(row.before) + row.share * along(row.after));
      }
    }
  }
  return larger;
}

/// Returns the digits, then copies moved by one pixel up, down, left and right: five times the number.
///
/// Pixels that are shifted out are dropped; new pixels are background.
inline Digits with_shifted_copies(const Digits& digits) {
  Digits all{digits.height, digits.width, {}, {}};
  all.images.reserve(5 * digits.images.size());
  all.labels.reserve(5 * digits.size());
  struct Shift {
    std::size_t down, right;  // one more than the pixels to move by
  };
  for (const auto& [down, right] : std::array<Shift, 5>{{{1, 1}, {0, 1}, {2, 1}, {1, 0}, {1, 2}}}) {
    for (std::size_t i = 0; i < digits.size(); ++i) {
      const auto image = digits.image(i);
      for (std::size_t y = 1; y <= digits.height; ++y) {
        for (std::size_t x = 1; x <= digits.width; ++x) {
          const std::size_t from_y = y - down;  // wraps to a huge number above the edge
          const std::size_t from_x = x - right;
          const bool inside = from_y < digits.height && from_x < digits.width;
          all.images.push_back(inside ? image[from_y * digits.width + from_x] : 0.0F);
        }
      }
    }
    all.labels.insert(all.labels.end(), digits.labels.begin(), digits.labels.end());
  }
  return all;
}

}  // namespace examples

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <distx/core/error.hpp>

#include "../common/portable_random.hpp"

namespace examples {

/// Pictures of handwritten digits, and which digit each one is.
struct Digits {
  std::size_t height = 0;
  std::size_t width = 0;
  std::vector<float> images;         ///< size() × height × width, row by row, 0 (paper) to 1 (ink)
  std::vector<std::uint8_t> labels;  ///< size(), 0 to 9

  [[nodiscard]] std::size_t size() const { return labels.size(); }
  [[nodiscard]] std::size_t pixels() const { return height * width; }
  [[nodiscard]] std::span<const float> image(std::size_t i) const {
    return std::span(images).subspan(i * pixels(), pixels());
  }
};

/// A set to learn from, and one to be examined with that is never learnt from.
struct SplitDigits {
  Digits training;
  Digits held_out;
};

/// The digits at these places, in this order: a batch.
/// @pre every place is below digits.size()
inline Digits select(const Digits& digits, std::span<const std::size_t> places) {
  Digits chosen{digits.height, digits.width, {}, {}};
  chosen.images.reserve(places.size() * digits.pixels());
  chosen.labels.reserve(places.size());
  for (const std::size_t place : places) {
    const std::span<const float> image = digits.image(place);
    chosen.images.insert(chosen.images.end(), image.begin(), image.end());
    chosen.labels.push_back(digits.labels[place]);
  }
  return chosen;
}

/// Holds out floor(fraction · size) digits drawn by the seed, the same share of each class (give or take one).
///
/// Both parts keep the order that they had.
/// @throws distx::DataError if either part would be empty
inline SplitDigits split_held_out(const Digits& digits, double fraction, std::uint64_t seed) {
  std::vector<std::size_t> places(digits.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  Generator generator(seed);
  shuffle(std::span(places), generator);
  std::ranges::stable_sort(places, {}, [&](std::size_t place) { return digits.labels[place]; });
  const auto held_out_of = [fraction](std::size_t count) { return std::floor(fraction * static_cast<double>(count)); };
  std::vector<std::size_t> training;
  std::vector<std::size_t> held_out;
  for (std::size_t i = 0; i < places.size(); ++i) {  // evenly along the classes, so evenly from each
    (held_out_of(i + 1) > held_out_of(i) ? held_out : training).push_back(places[i]);
  }
  if (training.empty() || held_out.empty()) {
    throw distx::DataError("digits: " + std::to_string(digits.size()) + " cannot be split with a share of " +
                           std::to_string(fraction) +
                           " held out, one part would be empty: give more digits or a share between 0 and 1");
  }
  std::ranges::sort(training);
  std::ranges::sort(held_out);
  return {select(digits, training), select(digits, held_out)};
}

}  // namespace examples

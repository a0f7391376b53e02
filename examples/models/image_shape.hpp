// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <Eigen/Core>

namespace examples {

/// The shape of one image, or of one sample's activations between two layers.
///
/// A batch of them is a matrix of channels × (height · width · samples), column by column: the channels of a pixel
/// lie side by side, then the pixels of a row, the rows of a sample, the samples.
struct ImageShape {
  Eigen::Index channels = 1;
  Eigen::Index height = 0;
  Eigen::Index width = 0;

  [[nodiscard]] constexpr Eigen::Index pixels() const { return height * width; }
  [[nodiscard]] constexpr Eigen::Index size() const { return channels * pixels(); }
  friend constexpr bool operator==(const ImageShape&, const ImageShape&) = default;
};

}  // namespace examples

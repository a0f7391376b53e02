// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <string>

#include <torch/torch.h>

#include "../data/digits_csv.hpp"

namespace examples {

/// The real digits as tensors, in an order that a seed draws, as 28 x 28 images; and which of them make a batch.
struct DigitTensors {
  at::Tensor images;  ///< n x 1 x 28 x 28
  at::Tensor labels;  ///< n, of int64

  /// @throws distx::DataError
  DigitTensors(const std::string& file, at::ScalarType type) {
    const Digits digits = read_digits_csv(file);
    const auto n = static_cast<std::int64_t>(digits.size());
    const auto small = torch::tensor(digits.images).view({n, 1, 8, 8});
    const auto order = torch::randperm(n);
    images = torch::upsample_bilinear2d(small, {28, 28}, false).index_select(0, order).to(type);
    labels =
        torch::tensor(std::vector<std::int64_t>(digits.labels.begin(), digits.labels.end())).index_select(0, order);
  }

  /// A rank's part of the batch of a step: images and labels.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> batch(std::int64_t step, std::int64_t size, int rank,
                                                        int ranks) const {
    const std::int64_t part = size / ranks;
    const auto rows = torch::remainder(torch::arange(part) + step * size + rank * part, images.size(0));
    return {images.index_select(0, rows), labels.index_select(0, rows)};
  }
};

}  // namespace examples

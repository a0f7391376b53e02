// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The factor of the losses that keeps small float16 gradients from vanishing: halved when a gradient is not finite,
/// doubled after 2000 finite steps in a row (Micikevicius et al., arXiv 1710.03740, section 3.2).
class LossScaler {
 public:
  LossScaler() = default;
  explicit LossScaler(double first) noexcept : scale_(first), on_(first != 1) {}

  [[nodiscard]] bool on() const noexcept { return on_; }
  [[nodiscard]] double scale() const noexcept { return scale_; }
  [[nodiscard]] std::uint64_t skipped() const noexcept { return skipped_; }

  [[nodiscard]] std::uint64_t finite_steps() const noexcept { return static_cast<std::uint64_t>(finite_); }

  /// Continues as a scaler with these numbers; without effect on the scale if losses are not scaled.
  void restore(double scale, std::uint64_t finite_steps, std::uint64_t skipped) noexcept {
    skipped_ = skipped;
    if (!on_) return;
    scale_ = scale;
    finite_ = static_cast<int>(std::min<std::uint64_t>(finite_steps, 1999));
  }
  void finite() noexcept {
    if (!on_ || ++finite_ < 2000) return;
    scale_ = std::min(2 * scale_, 0x1p30);
    finite_ = 0;
  }
  /// Counts a step that is skipped.
  void not_finite() noexcept {
    if (on_) scale_ = std::max(scale_ / 2, 0x1p-30);
    finite_ = 0;
    ++skipped_;
  }

 private:
  double scale_ = 1;
  bool on_ = false;
  int finite_ = 0;  // steps in a row
  std::uint64_t skipped_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail

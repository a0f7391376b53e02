// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "distx/core/detail/shortest.hpp"

namespace distx {

inline namespace literals {

/// `25_MiB`: that many bytes.
[[nodiscard]] consteval std::size_t operator""_KiB(unsigned long long n) { return static_cast<std::size_t>(n) << 10; }
[[nodiscard]] consteval std::size_t operator""_MiB(unsigned long long n) { return static_cast<std::size_t>(n) << 20; }

}  // namespace literals

/// `{.bucket_bytes = unlimited}`: one bucket for all.
inline constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// What may be set of a DataParallel when the program runs; the same on every rank.
struct DataParallelOptions {
  std::size_t bucket_bytes = 25_MiB;  ///< of gradients reduced together; 0 is a bucket for each parameter
  bool overlap = true;                ///< buckets are reduced from `ready` on, while the backward pass goes on
  /// A parameter may be without gradient in a step. At stage 3 all gradients of a step are then held together where
  /// `overlap` is off.
  bool allow_unused = false;
  int broadcast_from = 0;      ///< the rank whose weights and buffers all ranks start with
  std::optional<int> stage{};  ///< of ZeRO<Dynamic>, 0 to 3; of no other
  /// Gradients are scaled down so that the norm of all of them together is at most this; infinity leaves them.
  double clip_norm = std::numeric_limits<double>::infinity();
  int group_ranks = 0;        ///< of Hybrid: so many share out; divides the ranks
  double loss_scale = 65536;  ///< of float16 parameters with Precision, at first; 1 leaves losses as they are

  [[nodiscard]] bool clips() const noexcept { return clip_norm != std::numeric_limits<double>::infinity(); }

  /// The first bucket is smaller, so that the first reduction begins early.
  [[nodiscard]] std::size_t first_bucket_bytes() const noexcept {
    return bucket_bytes == unlimited || bucket_bytes < 1_MiB ? bucket_bytes : 1_MiB;
  }
  [[nodiscard]] std::string to_string() const {
    return "bucket_bytes = " + (bucket_bytes == unlimited ? "unlimited" : std::to_string(bucket_bytes)) +
           ", overlap = " + (overlap ? "true" : "false") + ", allow_unused = " + (allow_unused ? "true" : "false") +
           ", broadcast_from = " + std::to_string(broadcast_from) +
           ", clip_norm = " + (clips() ? detail::shortest(clip_norm) : "infinity") +
           ", group_ranks = " + std::to_string(group_ranks) + ", loss_scale = " + detail::shortest(loss_scale);
  }
};

/// What may differ from step to step; the same on every rank.
struct StepOptions {
  double learning_rate = std::numeric_limits<double>::quiet_NaN();  ///< has to be given
  double loss = 0;  ///< this rank's; an error where it is no finite number, unless losses are scaled
};

}  // namespace distx

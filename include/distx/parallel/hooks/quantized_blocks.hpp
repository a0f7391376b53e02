// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "distx/comm/movement.hpp"
#include "distx/core/detail/floating_point.hpp"
#include "distx/memory/operations.hpp"
#include "distx/parallel/hooks/gradient_hook.hpp"
#include "distx/parallel/hooks/weight_hook.hpp"

namespace distx::inline DISTX_ABI::hooks {

/// Sends gradients, or weights, in 8 bits each, and one float for each block of a shard: the largest magnitude
/// (ZeRO++'s qgZ and qwZ, arXiv 2306.10209).
///
/// Each rank receives its shard of all gradients by an all_to_all, and adds in float. At stage 0 the averages are
/// gathered in 8 bits too. Blocks begin with a shard, so the results depend on stage and bucket size. A block with a
/// value that is not finite becomes not a number. State: buffers of one byte for a gradient, twice.
/// @tparam Block  the gradients, or weights, that share a scale
template <std::size_t Block = 256>
struct QuantizedBlocks {
  static_assert(Block > 0, "distx::hooks::QuantizedBlocks: a block must have at least 1 element");

  [[nodiscard]] static std::size_t state_size(const BucketShape& shape) {
    std::size_t all = 0, most = 0;
    for (const std::size_t count : shape.counts) {
      all += encoded_size(count);
      most = std::max(most, encoded_size(count));
    }
    return all + std::max(all, most * shape.counts.size());
  }
  static void reduce(const GradientBucket& bucket) {
    const auto& counts = bucket.shape.counts;
    const auto rank = static_cast<std::size_t>(bucket.comm.rank());
    std::vector<std::size_t> packed;
    for (const std::size_t count : counts) packed.push_back(encoded_size(count));
    const std::size_t all = std::accumulate(packed.begin(), packed.end(), std::size_t{0});
    const std::size_t own =
        std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), std::size_t{0});
    const auto sent = bucket.state.subspan(0, all);
    const auto received = bucket.state.subspan(all, packed[rank] * counts.size());
    float* to = sent.data();
    const float* from = bucket.gradients.data();
    for (std::size_t r = 0; r < counts.size(); ++r, to += packed[r - 1], from += counts[r - 1])
      encode({from, counts[r]}, {to, packed[r]});
    all_to_all(bucket.comm, sent, received, packed, std::vector(counts.size(), packed[rank]), bucket.location);
    const auto averages = bucket.averages.subspan(own - bucket.begin, counts[rank]);
    fill({}, averages, 0.0F);
    for (std::size_t r = 0; r < counts.size(); ++r)
      for_each_value(received.data() + r * packed[rank], counts[rank],
                     [&](std::size_t i, float value) { averages[i] += value; });
    for (float& value : averages) value /= static_cast<float>(counts.size());
    if (!bucket.shape.whole) return;
    encode(averages, sent);
    const auto gathered = bucket.state.subspan(all, all);
    all_gather(bucket.comm, sent.subspan(0, packed[rank]), gathered, packed, bucket.location);
    float* average = bucket.averages.data();
    const float* part = gathered.data();
    for (std::size_t r = 0; r < counts.size(); ++r, average += counts[r - 1], part += packed[r - 1])
      decode({part, packed[r]}, {average, counts[r]});
  }

  /// Returns the floats whose bytes hold the scales and 8 bits for each of `count` values.
  [[nodiscard]] static constexpr std::size_t encoded_size(std::size_t count) noexcept {
    return blocks(count) + (count + sizeof(float) - 1) / sizeof(float);
  }
  /// Writes the scales of all blocks, and then the bytes.
  static void encode(Span<const float> values, Span<float> encoded) noexcept {
    const std::size_t count = values.size();
    float* scale = encoded.data();
    auto* const bytes = reinterpret_cast<unsigned char*>(scale + blocks(count));
    for (std::size_t begin = 0; begin < count; begin += Block) {
      const std::size_t end = std::min(count, begin + Block);
      float magnitude = 0;
      bool finite = true;
      for (std::size_t i = begin; i < end; ++i) {
        magnitude = std::max(magnitude, std::abs(values[i]));
        finite = finite && detail::is_finite(values[i]);
      }
      const float factor = largest / magnitude;
      const bool usable = finite && detail::is_finite(factor);
      *scale++ = finite ? magnitude / largest : std::bit_cast<float>(~0U);
      for (std::size_t i = begin; i < end; ++i) {
        const float scaled = usable ? values[i] * factor : 0;
        bytes[i] = static_cast<unsigned char>(scaled + rounded_zero);
      }
    }
  }
  static void decode(Span<const float> encoded, Span<float> values) noexcept {
    for_each_value(encoded.data(), values.size(), [&](std::size_t i, float value) { values[i] = value; });
  }

 private:
  static constexpr float largest = 127;
  static constexpr float zero_byte = 128;
  static constexpr float rounded_zero = zero_byte + 0.5F;  // a cast to an integer then rounds

  [[nodiscard]] static constexpr std::size_t blocks(std::size_t count) noexcept { return (count + Block - 1) / Block; }
  template <class F>
  static void for_each_value(const float* scale, std::size_t count, F&& f) noexcept {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(scale + blocks(count));
    for (std::size_t begin = 0; begin < count; begin += Block, ++scale)
      for (std::size_t i = begin; i < std::min(count, begin + Block); ++i)
        f(i, (static_cast<float>(bytes[i]) - zero_byte) * *scale);
  }
};

}  // namespace distx::inline DISTX_ABI::hooks

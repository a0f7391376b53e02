// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "distx/connect/tcp/detail/inbox.hpp"

namespace distx::detail::tcp {

/// The parts of a call that a rank receives.
enum class CallResult : std::uint8_t { nothing, of_root, of_all };

/// One rank's part of a collective call.
struct CallPart {
  std::uint64_t limit = 0;  ///< in milliseconds; the largest number stands for no deadline
  std::string call{};       ///< such as "broadcast of 8 bytes from rank 0", equal on all ranks
  CallResult result{};
  int root = 0;
  std::string bytes{};

  [[nodiscard]] Frame frame() const {
    return FrameWriter(FrameKind::call)
        .number(limit)
        .text(call)
        .number(static_cast<std::uint64_t>(result))
        .number(static_cast<std::uint64_t>(root))
        .text(bytes)
        .finish();
  }
  /// Returns null if the frame is malformed.
  [[nodiscard]] static std::optional<CallPart> from(const Frame& frame, int size) {
    FrameReader in(frame.body);
    CallPart part;
    part.limit = in.number();
    part.call = in.text();
    part.result = static_cast<CallResult>(in.small(2));
    part.root = in.small(size - 1);
    part.bytes = in.text();
    if (!in.complete()) return std::nullopt;
    return part;
  }
};

inline constexpr std::uint64_t no_limit = ~std::uint64_t{0};

[[nodiscard]] inline std::uint64_t milliseconds_of(const Timeout& timeout) {
  if (timeout.unlimited()) return no_limit;
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(timeout.limit()).count();
  return count < 0 ? 0 : static_cast<std::uint64_t>(count);
}
[[nodiscard]] inline Timeout timeout_of(std::uint64_t milliseconds) {
  constexpr std::uint64_t most = 3'200'000'000'000;
  if (milliseconds >= most) return no_timeout;
  return std::chrono::milliseconds(static_cast<std::int64_t>(milliseconds));
}

/// Returns "rank 1 of 4", or "ranks 1, 2 and 3 of 4"; names at most 16.
[[nodiscard]] inline std::string list_ranks(const std::vector<int>& ranks, int size) {
  constexpr std::size_t most = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > most) text += ", … (" + std::to_string(ranks.size()) + " ranks)";
  return text + " of " + std::to_string(size);
}

}  // namespace distx::detail::tcp

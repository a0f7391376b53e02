// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "distx/connect/detail/name_ranks.hpp"
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

}  // namespace distx::detail::tcp

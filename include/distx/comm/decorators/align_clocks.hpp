// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "distx/comm/decorators/control.hpp"
#include "distx/observe/chrome_trace.hpp"

namespace distx::inline DISTX_ABI::observe {

/// Returns the offset of this rank's clock to rank 0's at this moment; `now()` returns nanoseconds. Collective.
///
/// Rank 0 queries each rank's time 16 times. Each reply was read between the query and its return, which bounds the
/// offset from both sides; the result is the middle of the intersection of all bounds. If the bounds allow an offset of
/// 0, the clocks are taken to be the same: ranks on one host have an offset of exactly 0.
/// @post |nanoseconds - true offset| <= uncertainty on return, if the clocks do not drift during the call
template <ControlChannel C, class Now>
[[nodiscard]] ClockOffset align_clocks(C& control, Now&& now) {
  constexpr int rounds = 16;
  std::vector<ClockOffset> offsets(static_cast<std::size_t>(control.size()));
  for (int peer = 1; peer < control.size(); ++peer) {
    std::int64_t low = std::numeric_limits<std::int64_t>::min(), high = std::numeric_limits<std::int64_t>::max();
    for (int round = 0; round < rounds; ++round) {
      const auto asked = detail::control_value(control, static_cast<std::int64_t>(now()), 0);
      const auto told = detail::control_value(control, static_cast<std::int64_t>(now()), peer);
      low = std::max(low, told - static_cast<std::int64_t>(now()));
      high = std::min(high, told - asked);
    }
    const bool same_clock = low <= 0 && 0 <= high;
    offsets[static_cast<std::size_t>(peer)] = {same_clock ? 0 : low + (high - low) / 2,
                                               same_clock ? std::max(-low, high) : (high - low + 1) / 2};
  }
  // Only rank 0 can measure: it reads its clock before the query and after the reply.
  detail::control_broadcast(control, std::as_writable_bytes(std::span<ClockOffset>(offsets)), 0);
  return offsets[static_cast<std::size_t>(control.rank())];
}

}  // namespace distx::inline DISTX_ABI::observe

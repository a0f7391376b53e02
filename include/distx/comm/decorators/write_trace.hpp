// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include "distx/comm/decorators/control.hpp"
#include "distx/comm/decorators/traced.hpp"
#include "distx/core/error.hpp"
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

/// Writes all ranks' timelines to one file for Perfetto (ui.perfetto.dev) or chrome://tracing. Collective.
///
/// Rank 0 writes the file, with one process per rank and all times converted to rank 0's clock. `align_clocks` measures
/// the offsets during this call, so a clock's drift since the beginning of the trace is not corrected.
/// @throws BackendError on every rank if the file cannot be written
template <ControlChannel C>
void write_trace(const std::string& path, const Timeline& timeline, C& control) {
  const auto contents = timeline.contents();
  const ClockOffset offset = align_clocks(control, [&] { return timeline.now(); });
  std::int64_t zero = std::numeric_limits<std::int64_t>::max();
  for (const auto& span : contents.spans) zero = std::min(zero, span.begin - offset.nanoseconds);
  for (int rank = 0; rank < control.size(); ++rank) zero = std::min(zero, detail::control_value(control, zero, rank));

  std::ofstream file;
  const auto agree = [&](const char* what) {
    const int code = detail::control_value(control, file.fail() ? std::max(errno, 1) : 0, 0);
    if (code == 0) return;
    throw BackendError("the trace " + path + " cannot be " + what + ": " + std::strerror(code),
                       {.operation = "write_trace", .rank = control.rank(), .size = control.size()}, code);
  };
  if (control.rank() == 0) file.open(path, std::ios::binary | std::ios::trunc);
  agree("opened");
  if (control.rank() == 0) file << detail::chrome_trace_head;
  detail::for_each_text(control, detail::chrome_events(contents, control.rank(), offset, zero),
                        [&](int rank, const std::string& text) {
                          if (control.rank() == 0) file << (rank > 0 ? ",\n" : "") << text;
                        });
  if (control.rank() == 0) {
    file << detail::chrome_trace_tail;
    file.close();
  }
  agree("written");
}

/// Writes the timelines of a traced communicator, over its innermost communicator.
template <Communicator C>
  requires ControlChannel<C>
void write_trace(const std::string& path, Traced<C>& comm) {
  write_trace(path, comm.timeline(), detail::innermost(comm));
}

}  // namespace distx::inline DISTX_ABI::observe

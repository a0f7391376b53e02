// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <cstring>
#include <fstream>

#include "distx/comm/decorators/align_clocks.hpp"
#include "distx/comm/decorators/traced.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::observe {

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

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <csignal>

#include "distx/core/detail/start_thread.hpp"
#include "distx/core/error.hpp"
#include "distx/observe/detail/flight_files.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Writes the flight records to the configured folder, if there is one. Says on stderr why it cannot.
inline void write_flight_files_or_say() noexcept {
  try {
    if (const std::string folder = FlightRegistry::get().folder(); !folder.empty()) write_flight_files(folder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "distx: flight::write_record: %s\n", unknown_exception);
  }
}

/// The number of signals received. A handler may use lock-free atomics, and nothing that allocates or locks.
inline constinit std::atomic<unsigned> flight_signals{0};
static_assert(std::atomic<unsigned>::is_always_lock_free);

extern "C" inline void distx_flight_signal(int) {
  flight_signals.fetch_add(1);
  flight_signals.notify_one();
}

/// Makes SIGUSR1 write the flight records, on a separate thread, so that a blocked rank can be examined.
inline void write_flight_files_on_signal() {
  static const bool installed = [] {
    const auto write = [] {
      for (unsigned seen = 0;; ++seen) {
        flight_signals.wait(seen);
        write_flight_files_or_say();
      }
    };
    start_thread(write, {.operation = "flight::configure"}).detach();
    return std::signal(SIGUSR1, distx_flight_signal) != SIG_ERR;
  }();
  static_cast<void>(installed);
}

}  // namespace distx::inline DISTX_ABI::detail

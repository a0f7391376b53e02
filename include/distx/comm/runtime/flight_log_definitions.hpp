// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/comm/runtime/flight_log.hpp"
#include "distx/observe/detail/flight_signal.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_INLINE FlightLog::~FlightLog() {
  if (is_open_ && FlightRegistry::get().closed()) write_flight_files_or_say();
}
DISTX_INLINE void FlightLog::open(const RankOf& self) {
  group_.rank = self.rank;
  group_.size = self.size;
  group_.backend = self.backend;
  FlightRegistry& registry = FlightRegistry::get();
  registry.opened(group_);
  is_open_ = true;
  if (registry.on_signal()) write_flight_files_on_signal();
}
DISTX_INLINE void FlightLog::split_from(FlightLog& parent, int color, std::vector<int> members) {
  parent.prepare();
  FlightRegistry::get().name_split(group_, parent.group_, parent.splits_++, color, std::move(members));
  named_.store(true, std::memory_order_release);
}
DISTX_INLINE void FlightLog::write(const char* error) noexcept {
  if (!is_open_ || is_written_.exchange(true)) return;
  try {
    FlightRegistry::get().note_error(group_.world_rank, error);
  } catch (...) {  // the record is written without its reason
  }
  write_flight_files_or_say();
}
DISTX_INLINE void FlightLog::prepare() {
  FlightRegistry::get().attach();
  if (named_.load(std::memory_order_acquire)) return;
  FlightRegistry::get().name_root(group_);
  named_.store(true, std::memory_order_release);
}

}  // namespace distx::inline DISTX_ABI::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <climits>
#include <cstddef>

#include "distx/comm/check.hpp"
#include "distx/core/deadline.hpp"

namespace distx {

/// Options of an MpiCommunicator; the same on every rank.
struct MpiOptions {
  /// The time that a call waits for the other ranks before it throws TimeoutError; with `no_timeout` calls wait
  /// indefinitely. It does not limit the rest of a message that has begun to arrive, nor MPI's own collectives.
  Timeout deadline = default_deadline;
  /// When the ranks compare their calls. With `Check::off` and `no_timeout` every call goes directly to MPI. After
  /// `shrink` the ranks compare every call.
  Check check = Check::every_call;
  /// Whether large blocking calls enter MPI's own collectives once all ranks have joined. MPI's collectives cannot be
  /// ended: if a rank fails inside one, its peers wait until the launcher terminates them. By default distx schedules
  /// messages itself, which ends within the deadline, and reduces in rank order; on more than 64 ranks it uses MPI's,
  /// except on the ranks that are left after `shrink`.
  bool vendor_collectives = false;
  /// The maximum number of elements in one call of MPI, which counts in `int`; larger calls are split.
  std::size_t max_count = INT_MAX;
};

}  // namespace distx

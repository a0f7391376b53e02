// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <climits>
#include <cstddef>

#include "distx/comm/check.hpp"
#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI {

/// Whose collectives an MpiCommunicator uses for operands that are too large to be sent with the comparison of a call.
enum class MpiCollectives {
  /// Those of distx on up to `MpiOptions::most_scheduled_ranks` ranks, those of MPI on more.
  by_size,
  /// Those of MPI, which may use the network's topology and hardware. Results have the bits of MPI's order. They cannot
  /// be ended: if one does not end within the deadline, or a rank has failed, the call throws, and MPI keeps its
  /// operands, which must exist until the process ends.
  vendor,
};

/// Options of an MpiCommunicator; the same on every rank.
struct MpiOptions {
  /// The time that a call waits for the other ranks before it throws TimeoutError; with `no_timeout` calls wait
  /// indefinitely. It does not limit the rest of a message that has begun to arrive. Under a deadline, MPI's blocking
  /// collectives are made on a thread of distx, or, if MPI does not serve threads, are replaced by nonblocking ones.
  Timeout deadline = default_deadline;
  /// When the ranks compare their calls. With `Check::off` and `no_timeout` every call goes directly to MPI. After
  /// `shrink` the ranks compare every call.
  Check check = Check::every_call;
  /// Whose collectives are used; with DISTX_LOG=info the first rank of a communicator prints it. distx schedules
  /// messages itself, which end within the deadline, reduces in rank order, and leaves no memory to MPI after an error.
  /// After `shrink`, only distx's are used.
  MpiCollectives collectives = MpiCollectives::by_size;
  /// The maximum number of ranks on which distx makes large collectives by default. Each rank sends directly to each
  /// other one, and the description of a call contains the counts of all ranks: the messages, and their bytes, grow
  /// with the square of the number of ranks, while MPI's algorithms need their logarithm.
  static constexpr int most_scheduled_ranks = 64;
  /// The maximum number of elements in one call of MPI, which counts in `int`; larger calls are split.
  std::size_t max_count = INT_MAX;
};

}  // namespace distx::inline DISTX_ABI

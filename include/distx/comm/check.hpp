// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

/// When the ranks of a communicator compare their calls: operation, sizes, counts, element types, op and its state,
/// root, order of the calls, lengths of lists. A difference throws MismatchError on every rank.
///
/// Threads and shared memory always compare, at little cost, because their ranks read each other's memory; Gloo and
/// Hierarchical always compare as well.
enum class Check {
  every_call,  ///< each call; small operands are transferred with the comparison
  first_use,   ///< the first call with each combination of operation, sizes, types, op and root
  /// Never: calls that differ fail in the vendor's library or at the deadline, or complete with undefined results. The
  /// library may still access the operands of a collective that has thrown: keep them until the process ends. MPI does
  /// not define which memory calls that differ write; with Open MPI it is that of their operands.
  off
};

}  // namespace distx::inline DISTX_ABI

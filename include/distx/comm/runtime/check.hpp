// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

namespace distx {

/// When the ranks of a communicator compare their calls: operation, sizes, counts, element types, op and its state,
/// root, order of the calls, lengths of lists. A difference is a MismatchError on every rank.
///
/// Threads and shared memory always compare: their ranks read each other's memory, and it costs nothing measurable.
enum class Check {
  every_call,  ///< each call; small operands travel with the comparison
  first_use,   ///< each new combination of operation, sizes, types, op and root once
  off          ///< never: what disagrees fails in the vendor's library, or at the deadline
};

}  // namespace distx

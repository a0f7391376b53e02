// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <vector>

namespace timing {

/// A bucket of gradients in a step: when it is full, how long it is on the wire, how long its update takes; in seconds.
struct BucketTimes {
  double full = 0;  ///< since the step began
  double wire = 0;
  double update = 0;
};

/// The shortest step, in seconds: a wire that is never idle while a bucket is full, and weights that are updated as
/// soon as their bucket is reduced and the computation is over.
///
/// The last bucket is full when the computation ends, so that all of it is waited for.
inline double ideal_step(double compute, const std::vector<BucketTimes>& buckets) {
  double wire = 0, updated = compute;
  for (const auto& bucket : buckets) {
    wire = std::max(wire, bucket.full) + bucket.wire;
    updated = std::max(updated, wire) + bucket.update;
  }
  return updated;
}

/// Everything one after the other, in seconds.
inline double serial_step(double compute, const std::vector<BucketTimes>& buckets) {
  for (const auto& bucket : buckets) compute += bucket.wire + bucket.update;
  return compute;
}

}  // namespace timing

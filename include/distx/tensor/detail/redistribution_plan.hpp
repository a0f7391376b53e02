// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <vector>

#include "distx/comm/calls/wire_bytes.hpp"
#include "distx/tensor/detail/sharding.hpp"

// The plan of a redistribution. First the Partials are reduced, axis by axis, so that each rank ends with its part of
// the middle layout: the target, if every rank's target is contained in its source; otherwise the source sharded
// further, so that nothing is reduced twice. Then each rank receives the elements of its target that it lacks from the
// one rank that has them in the middle layout and has its own coordinates on all axes that do not shard the middle.
namespace distx::inline DISTX_ABI::detail {

/// One collective along an axis: a reduce-scatter with a count for each rank, or an all-reduce, which has no counts.
struct ReduceStep {
  std::size_t axis = 0;
  std::size_t size = 0;
  std::vector<std::size_t> counts{};
  std::size_t own = 0;

  [[nodiscard]] bool scatters() const noexcept { return !counts.empty(); }
  [[nodiscard]] std::size_t result() const noexcept { return scatters() ? counts[own] : size; }
};

/// One all-gather or all-to-all along some axes: a box for each rank.
struct ExchangeStep {
  AxisSet axes = 0;
  bool gathers = false;
  std::size_t own = 0;
  std::vector<Box> out{};
  std::vector<Box> in{};
};

/// The requested redistribution; the same on all ranks.
struct Relayout {
  Sharding source{};
  AxisSet partial = 0;
  bool ops_differ = false;  ///< then the Partials are reduced in the mesh's order
  Sharding target{};
};

/// The steps of one rank of the mesh.
struct RedistributionPlan {
  RedistributionPlan(const Relayout& wanted, const Coordinates& coordinates);

  Box source{};
  Box middle{};
  Box target{};
  std::vector<Box> blocks{};  ///< of the source, in the order in which the reductions take them
  std::vector<ReduceStep> reductions{};
  std::optional<ExchangeStep> exchange{};

  [[nodiscard]] std::size_t collectives() const noexcept { return reductions.size() + (exchange ? 1 : 0); }

 private:
  void reduce(const Relayout& wanted, const Sharding& between, const Coordinates& coordinates);

  void exchange_from(const Sharding& between, const Sharding& goal, const Coordinates& coordinates);
};

/// The bytes of all collectives of the plan on one rank, by `wire_bytes`.
[[nodiscard]] WireBytes wire_bytes(const RedistributionPlan& plan, const MeshShape& mesh, std::size_t element_bytes);

}  // namespace distx::inline DISTX_ABI::detail

// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/relayout.hpp"

namespace distx::inline DISTX_ABI {

/// The bytes that a redistribution moves between ranks, as a `Metered` communicator counts them.
struct RedistributionCost {
  std::size_t largest_sent = 0;      ///< the most that one rank sends
  std::size_t largest_received = 0;  ///< the most that one rank receives
  std::size_t total = 0;             ///< that all ranks send, which is what all ranks receive
  std::size_t collectives = 0;       ///< the number of collectives that each rank calls

  friend bool operator==(const RedistributionCost&, const RedistributionCost&) = default;
};

namespace detail {

inline RedistributionCost cost_of(const Relayout& wanted, std::size_t element_bytes) {
  RedistributionCost cost;
  const MeshShape& mesh = wanted.source.mesh();
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const RedistributionPlan plan(wanted, mesh.coordinates(rank));
    const WireBytes wire = wire_bytes(plan, mesh, element_bytes);
    cost.largest_sent = std::max(cost.largest_sent, wire.sent);
    cost.largest_received = std::max(cost.largest_received, wire.received);
    cost.total += wire.sent;
    cost.collectives = plan.collectives();
  }
  return cost;
}

}  // namespace detail

/// Returns what `redistribute` from layout `From` to layout `To` moves. Local; nothing is sent.
///
///     auto cost = redistribution_cost<Layout<Shard<0, Data>>, Layout<>, float>(mesh, {64, 64});
template <class From, class To, class T = float, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] RedistributionCost redistribution_cost(const MeshT& mesh, const Extents<Rank>& extents) {
  if constexpr (detail::may_become<From, To>())
    return detail::cost_of(
        detail::relayout<From, To, MeshT>(detail::shape_of(mesh), extents, detail::PartialOps<From, MeshT, T>::all()),
        sizeof(T));
  else
    return {};
}
template <class From, class To, class T = float, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] RedistributionCost redistribution_cost(const MeshT& mesh, const std::size_t (&extents)[Rank]) {
  return redistribution_cost<From, To, T>(mesh, std::to_array(extents));
}

}  // namespace distx::inline DISTX_ABI

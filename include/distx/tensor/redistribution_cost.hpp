// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/relayout.hpp"

namespace distx {

/// Bytes that a redistribution moves between ranks; those that a `Metered` communicator counts.
struct RedistributionCost {
  std::size_t largest_sent = 0;      ///< by one rank
  std::size_t largest_received = 0;  ///< by one rank
  std::size_t total = 0;             ///< sent by all ranks, and received by all
  std::size_t collectives = 0;       ///< calls of each rank

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

/// What `redistribute` from one layout to another will move: `redistribution_cost<From, To>(mesh, {64, 64})`. Local.
template <class From, class To, class T = float, MeshType MeshT, std::size_t Rank>
[[nodiscard]] RedistributionCost redistribution_cost(const MeshT& mesh, const Extents<Rank>& extents) {
  if constexpr (detail::may_become<From, To>())
    return detail::cost_of(detail::relayout<From, To, MeshT>(mesh.shape(), extents, detail::Ops<From, MeshT, T>::all()),
                           sizeof(T));
  else
    return {};
}
template <class From, class To, class T = float, MeshType MeshT, std::size_t Rank>
[[nodiscard]] RedistributionCost redistribution_cost(const MeshT& mesh, const std::size_t (&extents)[Rank]) {
  return redistribution_cost<From, To, T>(mesh, std::to_array(extents));
}

}  // namespace distx

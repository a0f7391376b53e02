// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/groups.hpp"
#include "distx/tensor/detail/mesh_shape.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The state that all handles on one mesh share, whichever memory space its communicator moves.
struct MeshState {
  MeshShape shape{};
  int rank = 0;
  Coordinates coordinates{};
  std::string_view space{};

  virtual ~MeshState() = default;
};

template <MemorySpace Space>
struct MeshStateIn final : MeshState {
  explicit MeshStateIn(AnyCommunicator<Space> all) : world(std::move(all)) {}

  AnyCommunicator<Space> world;
  typename Space::stream stream{};  ///< orders the work on the mesh's tensors
  std::map<AxisSet, AnyCommunicator<Space>> groups;

  /// The communicator of the ranks that differ from this one only on these axes, in the mesh's order.
  [[nodiscard]] AnyCommunicator<Space>& over(AxisSet axes) {
    if (const auto known = groups.find(axes); known != groups.end()) return known->second;
    Grouping grouping;
    std::map<int, std::size_t> group_at;  // keyed by the group's first rank
    for (int other = 0; other < shape.ranks(); ++other) {
      Coordinates first = shape.coordinates(other);
      for (std::size_t axis = 0; axis < shape.axes; ++axis)
        if ((axes >> axis & 1U) != 0) first[axis] = 0;
      const auto [group, is_new] = group_at.try_emplace(shape.rank(first), grouping.size());
      if (is_new) grouping.emplace_back();
      grouping[group->second].push_back(other);
    }
    auto made = grouping.size() == 1 ? world.share() : distx::groups(world, grouping);
    return groups.emplace(axes, std::move(made)).first->second;
  }
  /// Revokes every communicator of the mesh that this rank has.
  void revoke(const std::string& reason) {
    world.revoke(reason);
    for (auto& [axes, group] : groups) group.revoke(reason);
  }
};

/// Collective. @throws InvalidArgument unless the product of the sizes is the number of ranks
template <MemorySpace Space>
[[nodiscard]] std::shared_ptr<MeshStateIn<Space>> make_mesh(AnyCommunicator<Space> comm, const MeshShape& shape,
                                                            const std::source_location& location,
                                                            typename Space::stream stream = {}) {
  bool positive = true;
  long long ranks = 1;
  for (std::size_t axis = 0; axis < shape.axes; ++axis) {
    positive = positive && shape.sizes[axis] > 0;
    if (ranks <= comm.size()) ranks *= shape.sizes[axis];
  }
  const int rank = comm.rank();
  if (!positive || ranks != comm.size())
    throw InvalidArgument(
        "mesh " + shape.to_string() + " does not match the communicator's " + std::to_string(comm.size()) +
            " ranks: choose positive sizes whose product is " + std::to_string(comm.size()),
        {.operation = "Mesh", .backend = comm.backend(), .rank = rank, .size = comm.size(), .location = location});
  auto state = std::make_shared<MeshStateIn<Space>>(std::move(comm));
  state->shape = shape;
  state->rank = rank;
  state->coordinates = shape.coordinates(rank);
  state->space = Space::name;
  state->stream = stream;
  for (std::size_t axis = 0; axis < shape.axes; ++axis) (void)state->over(1U << axis);
  return state;
}

/// @throws InvalidArgument if the mesh's communicator moves another space
template <MemorySpace Space>
[[nodiscard]] MeshStateIn<Space>& in_space(MeshState& mesh) {
  auto* const state = dynamic_cast<MeshStateIn<Space>*>(&mesh);
  if (state == nullptr)
    throw InvalidArgument("the mesh's communicator moves " + std::string(mesh.space) + " memory, not " +
                              std::string(Space::name) + " memory: make the mesh from a communicator of that memory",
                          {.operation = "Mesh", .rank = mesh.rank, .size = mesh.shape.ranks()});
  return *state;
}

}  // namespace distx::inline DISTX_ABI::detail

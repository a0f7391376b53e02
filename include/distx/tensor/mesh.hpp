// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <utility>

#include "distx/tensor/detail/mesh_state.hpp"
#include "distx/tensor/placements.hpp"

namespace distx {

/// The ranks of a communicator as a grid, whose axes are tag types: `Mesh<Data, Model> mesh(comm, {2, 4})`.
///
/// The last axis runs fastest. A copyable handle on shared state, which owns a communicator for each axis; used by one
/// thread at a time. All that is done to its tensors, and their memory's coming and going, is in the order of one
/// stream: of a GPU's memory work is enqueued there, and the host goes on.
template <class... Axes>
class Mesh {
  static_assert(sizeof...(Axes) >= 1 && sizeof...(Axes) <= most_axes, "distx: a mesh has one to four axes");
  static_assert(detail::all_differ<Axes...>, "distx: a mesh has an axis twice");

 public:
  static constexpr std::size_t axes = sizeof...(Axes);
  template <class Axis>
  static constexpr bool has_axis = (std::is_same_v<Axis, Axes> || ...);

  /// Collective; the mesh keeps a handle on the communicator. The stream outlives the mesh and its tensors.
  /// @throws MismatchError where the sizes do not multiply to the number of ranks
  template <Communicator C>
  Mesh(C& comm, const std::array<int, axes>& sizes, typename C::space::stream stream = {},
       std::source_location location = std::source_location::current()) {
    MeshShape shape;
    shape.axes = axes;
    std::copy(sizes.begin(), sizes.end(), shape.sizes.begin());
    if constexpr (std::same_as<C, AnyCommunicator<typename C::space>>)
      state_ = detail::make_mesh<typename C::space>(comm.share(), shape, location, stream);
    else
      state_ = detail::make_mesh(AnyCommunicator<typename C::space>(comm.share()), shape, location, stream);
  }

  /// Of a tag type among the mesh's axes.
  template <class Axis>
  [[nodiscard]] static constexpr std::size_t index_of() noexcept {
    static_assert(has_axis<Axis>, "distx: the mesh has no such axis");
    std::size_t index = 0, found = 0;
    ((std::is_same_v<Axis, Axes> ? found = index++ : index++), ...);
    return found;
  }

  [[nodiscard]] const MeshShape& shape() const noexcept { return state_->shape; }
  [[nodiscard]] int size() const noexcept { return shape().ranks(); }
  [[nodiscard]] int rank() const noexcept { return state_->rank; }
  /// This rank's places, in the order of the axes.
  [[nodiscard]] const Coordinates& coordinates() const noexcept { return state_->places; }
  template <class Axis>
  [[nodiscard]] int size() const noexcept {
    return shape().sizes[index_of<Axis>()];
  }
  template <class Axis>
  [[nodiscard]] int coordinate() const noexcept {
    return coordinates()[index_of<Axis>()];
  }
  /// The rank so many places further along an axis, round it if need be.
  template <class Axis>
  [[nodiscard]] int neighbour(int distance) const noexcept {
    const int n = size<Axis>();
    Coordinates places = coordinates();
    int& place = places[index_of<Axis>()];
    place = ((place + distance) % n + n) % n;
    return shape().rank(places);
  }

  /// Of all ranks.
  template <MemorySpace Space = Host>
  [[nodiscard]] AnyCommunicator<Space>& communicator() const {
    return detail::in_space<Space>(*state_).world;
  }
  /// Of the ranks along one axis, this one's places on the others: rank i of it is at place i.
  template <class Axis, MemorySpace Space = Host>
  [[nodiscard]] AnyCommunicator<Space>& along() const {
    return detail::in_space<Space>(*state_).over(1U << index_of<Axis>());
  }

  /// On which tensors in this memory are worked on; the space's default stream if the communicator moves another.
  template <MemorySpace Space>
  [[nodiscard]] typename Space::stream stream() const noexcept {
    if constexpr (!std::is_empty_v<typename Space::stream>)
      if (const auto* const state = dynamic_cast<const detail::MeshStateIn<Space>*>(state_.get())) return state->stream;
    return {};
  }

  /// Whether both are handles on one mesh.
  friend bool operator==(const Mesh& a, const Mesh& b) noexcept { return a.state_ == b.state_; }

  /// For those who build on meshes.
  [[nodiscard]] detail::MeshState& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<detail::MeshState> state_;
};

namespace detail {

template <class M>
inline constexpr bool is_mesh = false;
template <class... Axes>
inline constexpr bool is_mesh<Mesh<Axes...>> = true;

}  // namespace detail

template <class M>
concept MeshType = detail::is_mesh<M>;

}  // namespace distx

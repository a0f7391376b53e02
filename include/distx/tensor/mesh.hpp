// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <utility>

#include "distx/tensor/detail/mesh_state.hpp"
#include "distx/tensor/placements.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

struct MeshAccess;

}  // namespace detail

/// Arranges the ranks of a communicator as a grid of one to four named axes.
///
/// The axes are tag types that the program defines; the last one varies fastest: on `{2, 4}` ranks 0 and 1 differ on
/// `Model`, ranks 0 and 4 on `Data`. A mesh is a copyable handle on shared state, which owns a communicator for each
/// axis; one thread at a time uses it. Operations on its tensors, and the allocation and release of their memory, are
/// ordered on one stream: on GPUs they are enqueued there, and the host continues.
///
///     struct Data {};
///     struct Model {};
///     distx::Mesh<Data, Model> mesh(comm, {2, 4});
template <class... Axes>
class Mesh {
  static_assert(sizeof...(Axes) >= 1 && sizeof...(Axes) <= detail::max_axes,
                "distx: Mesh: a mesh has one to four axes");
  static_assert(detail::all_differ<Axes...>, "distx: Mesh: an axis is named twice: each axis needs its own type");

 public:
  static constexpr std::size_t axes = sizeof...(Axes);
  /// Whether `Axis` is one of the mesh's axes.
  template <class Axis>
  static constexpr bool has_axis = (std::is_same_v<Axis, Axes> || ...);

  /// Creates a mesh of the given sizes, in the order of the axes. Collective over `comm`, which the mesh shares.
  ///
  /// @param stream  orders the work on the mesh's tensors; it must outlive the mesh and its tensors
  /// @throws InvalidArgument unless the sizes are positive and their product is the number of ranks
  template <Communicator C>
  Mesh(C& comm, const std::array<int, axes>& sizes, typename C::space::stream stream = {},
       std::source_location location = std::source_location::current()) {
    detail::MeshShape shape;
    shape.axes = axes;
    std::copy(sizes.begin(), sizes.end(), shape.sizes.begin());
    state_ = detail::make_mesh(AnyCommunicator<typename C::space>(comm.share()), shape, location, stream);
  }

  /// Returns the position of `Axis` among the mesh's axes.
  template <class Axis>
  [[nodiscard]] static constexpr std::size_t index_of() noexcept {
    static_assert(has_axis<Axis>, "distx: Mesh: the mesh has no such axis");
    std::size_t index = 0, found = 0;
    ((std::is_same_v<Axis, Axes> ? found = index++ : index++), ...);
    return found;
  }

  /// Returns the number of ranks.
  [[nodiscard]] int size() const noexcept { return state_->shape.ranks(); }
  /// Returns the number of ranks along `Axis`.
  template <class Axis>
  [[nodiscard]] int size() const noexcept {
    return state_->shape.sizes[index_of<Axis>()];
  }
  /// Returns this rank's number in the mesh's communicator.
  [[nodiscard]] int rank() const noexcept { return state_->rank; }
  /// Returns this rank's coordinates, in the order of the axes.
  [[nodiscard]] std::array<int, axes> coordinates() const noexcept {
    std::array<int, axes> own{};
    std::copy_n(state_->coordinates.begin(), axes, own.begin());
    return own;
  }
  /// Returns this rank's coordinate on `Axis`.
  template <class Axis>
  [[nodiscard]] int coordinate() const noexcept {
    return state_->coordinates[index_of<Axis>()];
  }
  /// Returns the rank `distance` steps along `Axis` from this one, wrapping around.
  template <class Axis>
  [[nodiscard]] int neighbour(int distance) const noexcept {
    const int n = size<Axis>();
    detail::Coordinates coordinates = state_->coordinates;
    int& coordinate = coordinates[index_of<Axis>()];
    coordinate = ((coordinate + distance) % n + n) % n;
    return state_->shape.rank(coordinates);
  }

  /// Returns the communicator of all ranks.
  /// @throws InvalidArgument if the mesh's communicator moves another memory space
  template <MemorySpace Space = Host>
  [[nodiscard]] AnyCommunicator<Space>& communicator() const {
    return detail::in_space<Space>(*state_).world;
  }
  /// Returns the communicator of the ranks that differ from this one on `Axis` only; rank i of it has coordinate i.
  /// @throws InvalidArgument if the mesh's communicator moves another memory space
  template <class Axis, MemorySpace Space = Host>
  [[nodiscard]] AnyCommunicator<Space>& along() const {
    return detail::in_space<Space>(*state_).over(1U << index_of<Axis>());
  }

  /// Returns the stream that orders work on tensors in `Space`: the constructor's, or the space's default stream if the
  /// mesh's communicator moves another space.
  template <MemorySpace Space>
  [[nodiscard]] typename Space::stream stream() const noexcept {
    if constexpr (!std::is_empty_v<typename Space::stream>)
      if (const auto* const state = dynamic_cast<const detail::MeshStateIn<Space>*>(state_.get())) return state->stream;
    return {};
  }

  /// Whether both are handles on the same mesh.
  friend bool operator==(const Mesh& a, const Mesh& b) noexcept { return a.state_ == b.state_; }

 private:
  friend struct detail::MeshAccess;
  std::shared_ptr<detail::MeshState> state_;
};

namespace detail {

template <class M>
inline constexpr bool is_mesh = false;
template <class... Axes>
inline constexpr bool is_mesh<Mesh<Axes...>> = true;

template <class M>
concept MeshType = is_mesh<M>;

struct MeshAccess {
  template <MeshType M>
  [[nodiscard]] static MeshState& state(const M& mesh) noexcept {
    return *mesh.state_;
  }
};
template <MeshType M>
[[nodiscard]] MeshState& state_of(const M& mesh) noexcept {
  return MeshAccess::state(mesh);
}
template <MeshType M>
[[nodiscard]] const MeshShape& shape_of(const M& mesh) noexcept {
  return MeshAccess::state(mesh).shape;
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
